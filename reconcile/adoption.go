package reconcile

import (
	"fmt"
	"strings"

	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/talos"
)

// verdict is what is to be said about a machine: a reason, and a sentence with the way out. The zero value says nothing.
type verdict struct{ reason, message string }

func (v verdict) none() bool { return v.reason == "" }

// adopt decides whether a configured machine is Ichor's to change, and marks it in the state when it is: it runs what Ichor
// sent it, or it differs from what it should run by nothing but Ichor's mark. Others are compared, shown and left alone.
func adopt(in *Input, next *statefile.State, m *schema.TalosMachine, seen Seen) verdict {
	name := m.Metadata.Name
	memory := next.Machines[name]
	view := seen.Config
	if !marked(in, memory, view.Owner) {
		return verdict{"ManagedElsewhere", fmt.Sprintf("%s bears the mark of another Ichor's state (%s; ours is %s): it is read and "+
			"never touched; run one Ichor for it, or take it over with ichor run-op adopt %s", name, view.Owner, in.Mark, name)}
	}
	if memory.Managed {
		if view.Owner == in.Mark && compareConfigs(next, name, view) == configSame {
			memory.TakenFrom = "" // the other Ichor may take it back, by an adopt of its own, and then it is no longer ours
		}
		return verdict{}
	}
	sent := memory.ConfigSentFor != "" && memory.ConfigDigest != ""
	switch {
	case view.Active == "":
		return verdict{"ConfigUnread", fmt.Sprintf("the config that %s runs could not be read: %s", name, nameOr(seen.Problem, "no reason given"))}
	case sent && view.Active == memory.ConfigDigest,
		sent && view.Owner == in.Mark && next.Origin == statefile.OriginNew,
		view.Problem == "" && view.BareSame:
		memory.Managed = true
		memory.ConfigDigest = view.Active
		memory.PersistentDigest = view.Persistent
		return verdict{}
	}
	return verdict{"Adopting", fmt.Sprintf("%s was configured before Ichor first saw it, and differs from Git%s: it is compared and never "+
		"changed until nothing differs; put what it runs into Git, or let Ichor change it with ichor run-op adopt %s", name, inLines(view.Diff), name)}
}

// marked says whether a machine that bears this mark is Ichor's as far as marks go: it bears none, or this state's, or the one that a
// signed adopt took it over from, until its config is changed.
func marked(in *Input, memory *statefile.MachineState, owner string) bool {
	return owner == "" || owner == in.Mark || memory != nil && owner == memory.TakenFrom
}

// inLines says in how many lines a redacted diff differs, and shows the first few.
func inLines(diff string) string {
	const shown, width = 4, 80
	var changed []string
	for line := range strings.Lines(diff) {
		line = strings.TrimRight(line, "\n")
		if strings.HasPrefix(line, "+++") || strings.HasPrefix(line, "---") || line == "" || line[0] != '+' && line[0] != '-' {
			continue
		}
		changed = append(changed, fmt.Sprintf("%c %.*s", line[0], width, strings.TrimSpace(line[1:])))
	}
	switch {
	case len(changed) == 0:
		return ""
	case len(changed) > shown:
		return fmt.Sprintf(" in %d lines (%s; …)", len(changed), strings.Join(changed[:shown], "; "))
	}
	return fmt.Sprintf(" in %d lines (%s)", len(changed), strings.Join(changed, "; "))
}

// adoptEtcd records an etcd that is there without a bootstrap of ours, so that none is ever made beside it, and ends a
// bootstrap of ours whose etcd answers although nobody saw it begin.
func adoptEtcd(in *Input, next *statefile.State, etcd etcdView) {
	if next.Bootstrap != nil {
		if next.Bootstrap.Done.IsZero() && next.Intent == nil && etcd.known {
			next.Bootstrap.Done = in.now()
			releaseLock(next, lockBootstrap)
		}
		return
	}
	for _, name := range controlPlaneNames(in) {
		seen, ok := in.see(name)
		if ok && seen.Etcd.Data == talos.Yes {
			next.Bootstrap = &statefile.BootstrapRecord{Machine: name, UUID: seen.UUID, At: in.now(), Done: in.now(), Adopted: true}
			return
		}
	}
}

// unmanaged is the verdict on a machine that the state knows and Git doesn't.
func unmanaged(name string, memory *statefile.MachineState) verdict {
	if first, uuid, aside := strings.Cut(name, asideMark); aside {
		return verdict{"Unmanaged", fmt.Sprintf("the machine %s, which was %s (%s) before another one got that name, was not removed: it runs on as it is; to remove it, put "+
			"its YAML back under a name of its own and run ichor run-op node remove with that, or remove it by hand", uuid, first, memory.Address)}
	}
	return verdict{"Unmanaged", fmt.Sprintf("%s (%s) is no longer in Git and was not removed: it runs on as it is; to remove it, put its "+
		"YAML back and run ichor run-op node remove %s, or remove it by hand", name, memory.Address, name)}
}
