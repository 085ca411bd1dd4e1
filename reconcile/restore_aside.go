package reconcile

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/talos"
)

// leftBehind says which control plane a restore would leave with the old etcd's data, because Git does not want it: it is held, or not approved.
// Enough of those are that etcd's quorum, out of sight, and it would live beside the restored one. Where etcd answers, its list says who is a
// member.
func (s situation) leftBehind() string {
	if s.etcd.known {
		return ""
	}
	for _, m := range s.in.Cluster.Machines {
		name := m.Metadata.Name
		if !isControlPlane(m) || slices.Contains(s.wanted, name) || s.in.remembered(name).Removed {
			continue
		}
		has := s.mayHoldOldData(name)
		uuid, gone := s.spec.EtcdRestore.Without[name]
		switch {
		case has == "":
		case gone:
			if why := s.isGone(m, uuid); why != "" {
				return why
			}
		default:
			return fmt.Sprintf("%s, and the restore would leave it that: the old etcd could live on there, beside the restored one; %sor wipe it (talosctl reset), or power it off "+
				"for good and sign it into without", has, s.takeIn(m))
		}
	}
	return nameOr(s.forgotten(), s.discovered())
}

// forgotten says which machine that Git has no more may hold the old etcd's data. It can't be removed, since etcd gives no list.
func (s situation) forgotten() string {
	for _, name := range controlPlaneNames(s.in) {
		if s.in.Cluster.Machine(name) != nil || s.in.remembered(name).Removed {
			continue
		}
		if has := s.mayHoldOldData(name); has != "" {
			first, _, _ := strings.Cut(name, asideMark)
			return fmt.Sprintf("%s, and Git has %s (%s, UUID %s) no more: the old etcd could live on there, beside the restored one; put its YAML back, under a name that no other "+
				"has, and it is restored with the others, or, if it is off for good, signed into without; or wipe it (talosctl reset)", has, first, s.in.endpoint(name), s.in.uuid(name))
		}
	}
	return ""
}

// discovered says which machine discovery lists as a control plane that neither Git nor the state knows: of its etcd nothing is known.
func (s situation) discovered() string {
	names := controlPlaneNames(s.in)
	for _, name := range s.wanted {
		seen, _ := s.in.see(name)
		for _, found := range seen.Discovery {
			if found.MachineType == "worker" || explained(s.in, names, found) || s.unseenAs(names, found.Name) {
				continue
			}
			return fmt.Sprintf("discovery lists %s (%s) as a control plane, and neither Git nor the state knows it: the old etcd could live on there, beside the restored one; put it "+
				"into Git, or wipe it (talosctl reset) or power it off, and wait 30 minutes for discovery to forget it", found.Name, strings.Join(found.Addresses, ", "))
		}
	}
	return ""
}

// unseenAs says whether a known control plane of which nothing is seen bears a name: what its addresses are is known to discovery alone.
func (s situation) unseenAs(names []string, hostname string) bool {
	return slices.ContainsFunc(names, func(name string) bool {
		_, answers := s.in.see(name)
		return !answers && hostname != "" && strings.EqualFold(s.in.hostname(name), hostname)
	})
}

// aboutToJoin names a control plane that is not restored on, has its config, and is no member yet: one that boots joins the old etcd a moment later,
// and would keep its data. That is waited for and refuses nothing, since it may as well be off for good.
func (s situation) aboutToJoin() string {
	for _, name := range controlPlaneNames(s.in) {
		memory := s.in.remembered(name)
		_, without := s.spec.EtcdRestore.Without[name]
		if !s.etcd.known || without || slices.Contains(s.wanted, name) || memory.Removed || memory.MemberID != "" || !memory.Managed && memory.ConfigSentFor == "" {
			continue
		}
		seen, answers := s.in.see(name)
		switch {
		case !answers:
			return fmt.Sprintf("%s has its config, gives no answer, and may be about to join the old etcd", name)
		case seen.Mode == talos.ModeConfigured && seen.Etcd.Data != talos.Yes:
			return fmt.Sprintf("%s has its config and may be about to join the old etcd (%s)", name, nameOr(seen.Problem, "it is "+nameOr(seen.Stage, "booting")))
		}
	}
	return ""
}

// mayHoldOldData says of a machine that its data is that of the etcd that is replaced, or may be; empty where it certainly has none, and where
// it gives no answer and never was a member.
func (s situation) mayHoldOldData(name string) string {
	seen, answers := s.in.see(name)
	member := s.in.remembered(name).MemberID
	switch {
	case answers && (seen.Mode == talos.ModeMaintenance || seen.Etcd.Data == talos.No):
		return ""
	case answers && seen.Etcd.Data == talos.Yes:
		return name + " holds etcd data"
	case answers:
		return fmt.Sprintf("whether %s holds etcd data is not known (%s)", name, nameOr(seen.Problem, "it is "+nameOr(seen.Stage, "booting")))
	case member != "":
		return fmt.Sprintf("%s was etcd's member %s when it was last seen and gives no answer", name, member)
	}
	return ""
}

// takeIn is what has Git want a control plane, so that it is restored on with the others; empty where no count is high enough.
func (s situation) takeIn(m *schema.TalosMachine) string {
	name := m.Metadata.Name
	if op := removing(s.in.State, name); op != nil {
		return fmt.Sprintf("let %s, which removes it, end or cancel it first, ", op.Name)
	}
	if s.decision.held[name] == "" {
		return "approve it until etcd is restored, "
	}
	enough := 0
	for _, count := range []int{3, 5} {
		cluster := *s.in.Cluster.Object
		cluster.Spec.ControlPlane.Count = count
		in := *s.in
		in.Cluster.Object = &cluster
		if hold(&in, s.etcd)[name] == "" {
			enough = count
			break
		}
	}
	if enough == 0 {
		return ""
	}
	return fmt.Sprintf("it is held, because count is %d: raise spec.controlPlane.count in %s to %d until etcd is restored, ", s.in.Cluster.Object.Spec.ControlPlane.Count,
		fileOr(s.in.Cluster.Object), enough)
}

// signedAside says which control plane was signed that Git does not want any more. One that is held is left as it is: whoever signs names all that
// are approved, and that it has no data of the old etcd was seen before.
func (s situation) signedAside() string {
	for _, name := range slices.Sorted(maps.Keys(s.spec.EtcdRestore.ControlPlanes)) {
		if slices.Contains(s.wanted, name) {
			continue
		}
		if op := removing(s.in.State, name); op != nil {
			return fmt.Sprintf("%s removes %s, which what was signed names; let that end, or cancel it, and sign anew", op.Name, name)
		}
		if s.decision.held[name] != "" {
			continue
		}
		return fmt.Sprintf("what was signed names the control plane %s, and %s is not wanted by Git (commit %.12s) any more; sign anew", name, name, s.in.Cluster.Commit)
	}
	return ""
}
