package reconcile

import (
	"fmt"
	"maps"
	"slices"
	"sort"
	"strings"
	"time"

	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/talos"
)

const lockBootstrap = "bootstrap"

// wayOutOfALostPast is what a person does where Ichor must not bootstrap.
const wayOutOfALostPast = "bring it back from a snapshot with 'ichor restore --recover-cluster' (docs/recovery.md), or sign a " +
	"bootstrap of one if there is nothing to restore (ichor run-op bootstrap)"

// bootstrap decides about the one Bootstrap call of a cluster's life. Every guard must hold on what was seen in this very
// pass; whatever is unknown stops it. The machine is the oldest approved.
func bootstrap(in *Input, next *statefile.State, wanted []string, eligible func(string) bool,
	says map[string]verdict) (action *Action, waiting verdict, needBackups bool) {
	if next.Bootstrap != nil && !next.Bootstrap.Done.IsZero() {
		return nil, verdict{}, false
	}
	if next.Origin != statefile.OriginNew {
		return nil, verdict{"NotBootstrapped", "no control plane holds etcd data and this state doesn't know the cluster's past, so it is " +
			"never bootstrapped by itself; " + wayOutOfALostPast}, false
	}
	if why := cannotBootstrap(in, next, wanted, says); why != "" {
		return nil, verdict{"WaitingForBootstrap", why}, false
	}
	past, why, need := speaksOfPast(in)
	switch {
	case need:
		return nil, verdict{"WaitingForBootstrap", "the backup destinations are not listed yet"}, true
	case past:
		return nil, verdict{"BootstrapRefused", why + "; " + wayOutOfALostPast}, false
	case why != "":
		return nil, verdict{"BootstrapRefused", why}, false
	}
	target := oldestApproved(in, wanted)
	if next.Bootstrap != nil && next.Bootstrap.Machine != target {
		target = next.Bootstrap.Machine
		if !slices.Contains(wanted, target) {
			return nil, verdict{"BootstrapRefused", fmt.Sprintf("a bootstrap of %s was begun and that machine is no longer wanted; another "+
				"machine is never bootstrapped, since that might make a second cluster: put %s back", target, target)}, false
		}
	}
	if !eligible(target) {
		return nil, verdict{"WaitingForBootstrap", fmt.Sprintf("etcd is to be bootstrapped on %s, which is not to be touched at the moment", target)}, false
	}
	seen, _ := in.see(target)
	return &Action{
		Kind: ActBootstrap, Machine: target, UUID: seen.UUID, Boot: seen.BootID, Lock: lockBootstrap, Attempt: 1,
		Facts: map[string]string{"data": "absent"},
		Why: fmt.Sprintf("all %d wanted control planes are configured, booted and without etcd data; %s is the oldest approved",
			len(wanted), target),
	}, verdict{"Bootstrapping", fmt.Sprintf("etcd is about to be bootstrapped on %s", target)}, false
}

// againstBootstrap decides once more, on the state that the intent is written into, whether every guard holds. A signed bootstrap is
// one that somebody answers for, whatever speaks of a past.
func againstBootstrap(in Input, state *statefile.State, signed bool) string {
	in.State = state
	wanted := wantedControlPlanes(&in, hold(&in, viewEtcd(&in)))
	if why := cannotBootstrap(&in, state, wanted, nil); why != "" {
		return why
	}
	if signed {
		return ""
	}
	_, why, need := speaksOfPast(&in)
	if need {
		return "the backup destinations are not listed"
	}
	return why
}

// cannotBootstrap gives the first guard that doesn't hold, as a sentence; empty when all do.
func cannotBootstrap(in *Input, next *statefile.State, wanted []string, says map[string]verdict) string {
	if len(wanted) == 0 {
		return "no control plane is approved; set spec.approved: true on one TalosMachine of role controlplane"
	}
	if next.Intent != nil {
		return fmt.Sprintf("what became of %s on %s is not known yet", next.Intent.Action, next.Intent.Machine)
	}
	for _, name := range wanted {
		seen, ok := in.see(name)
		memory := next.Machines[name]
		switch {
		case !ok || seen.Mode == talos.ModeUnknown:
			return fmt.Sprintf("%s (%s) doesn't answer; every wanted control plane must be seen without etcd data first",
				name, in.endpoint(name))
		case seen.Mode != talos.ModeConfigured:
			if v, said := says[name]; said && !v.none() {
				return fmt.Sprintf("%s is not configured yet (%s): %s", name, v.reason, v.message)
			}
			return fmt.Sprintf("%s is not configured yet", name)
		case seen.Stage != "booting" && seen.Stage != "running":
			return fmt.Sprintf("%s is %s", name, nameOr(seen.Stage, "in an unknown stage"))
		case seen.Etcd.Data == talos.Unknown:
			return fmt.Sprintf("whether %s holds etcd data is not known: %s", name, nameOr(seen.Problem, "it is still booting"))
		case seen.Etcd.Data == talos.Yes:
			return fmt.Sprintf("%s holds etcd data", name)
		case memory == nil || !memory.Managed || seen.Config.Owner != "" && seen.Config.Owner != in.Mark:
			return fmt.Sprintf("%s was not configured by this Ichor", name)
		case seen.Discovery == nil:
			return fmt.Sprintf("what %s knows by discovery could not be read: %s", name, nameOr(seen.Problem, "it is still booting"))
		case seen.Etcd.MemberID != 0 || seen.Etcd.Members != nil:
			return fmt.Sprintf("the etcd on %s answers", name)
		}
	}
	return otherMembers(in, next, wanted)
}

// otherMembers names a machine beside the wanted ones that is, or may be, an etcd member.
func otherMembers(in *Input, next *statefile.State, wanted []string) string {
	names := make([]string, 0, len(next.Machines))
	for name := range next.Machines {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		if m := next.Machines[name]; m.MemberID != "" && !m.Removed && !slices.Contains(wanted, name) {
			return fmt.Sprintf("%s was an etcd member when last seen and is not among the wanted control planes", name)
		}
	}
	// Whatever answers with a certificate of this cluster counts, also a machine that isn't the one declared there.
	for _, name := range slices.Sorted(maps.Keys(in.Seen)) {
		seen := in.Seen[name]
		if slices.Contains(wanted, name) || seen.Mode != talos.ModeConfigured || !mayHoldEtcd(in, name) || seen.Etcd.Data == talos.No {
			continue
		}
		if seen.Etcd.Data == talos.Yes {
			return fmt.Sprintf("the machine at %s (%s) holds etcd data", in.endpoint(name), name)
		}
		return fmt.Sprintf("whether the machine at %s (%s) holds etcd data is not known: %s", in.endpoint(name), name,
			nameOr(seen.Problem, "it is still booting"))
	}
	looked := append(slices.Clone(wanted), withoutData(in, next)...)
	for _, name := range looked {
		seen, _ := in.see(name)
		for _, found := range seen.Discovery {
			if found.MachineType != "worker" && !explained(in, looked, found) {
				return fmt.Sprintf("discovery lists %s (%s) as a control plane, which is none of the wanted ones and may be an etcd "+
					"member; remove it, or wait 30 minutes for discovery to forget it", found.Name, strings.Join(found.Addresses, ", "))
			}
		}
	}
	return ""
}

// withoutData are the control planes, wanted or not, that this Ichor configured and that were seen to hold no etcd data. One that is one too
// many, or of which the approval was taken back, is no member either: it joins the etcd that comes, and its removal, which needs that
// etcd, takes it out again. To wait for it to go first would be to wait for ever.
func withoutData(in *Input, next *statefile.State) []string {
	return slices.DeleteFunc(controlPlaneNames(in), func(name string) bool {
		seen, ok := in.see(name)
		memory := next.Machines[name]
		ours := memory != nil && (memory.Managed || seen.Config.Owner == in.Mark) && (seen.Config.Owner == "" || seen.Config.Owner == in.Mark)
		booted := seen.Mode == talos.ModeConfigured && (seen.Stage == "booting" || seen.Stage == "running")
		return !ok || !ours || !booted || seen.Etcd.Data != talos.No || seen.Etcd.MemberID != 0 || seen.Etcd.Members != nil
	})
}

// mayHoldEtcd says whether what answers as a machine may be a control plane: by its own word, else by what is declared.
func mayHoldEtcd(in *Input, name string) bool {
	switch kind := in.Seen[name].MachineType; kind {
	case "":
		return slices.Contains(controlPlaneNames(in), name)
	default:
		return kind != "worker"
	}
}

// explained says whether what discovery lists is one of these machines: by its addresses, since another machine may bear the same
// name.
func explained(in *Input, names []string, found talos.DiscoveredMember) bool {
	return slices.ContainsFunc(names, func(name string) bool {
		return containsAny(in.addresses(name), found.Addresses) ||
			len(found.Addresses) == 0 && found.Name != "" && strings.EqualFold(in.hostname(name), found.Name)
	})
}

// oldestApproved is the machine that is bootstrapped: first by time of approval, then by name.
func oldestApproved(in *Input, names []string) string {
	sorted := slices.Clone(names)
	at := func(name string) time.Time { return approvedAt(in, in.Cluster.Machine(name)) }
	slices.SortFunc(sorted, func(a, b string) int {
		if c := at(a).Compare(at(b)); c != 0 {
			return c
		}
		return strings.Compare(a, b)
	})
	return sorted[0]
}
