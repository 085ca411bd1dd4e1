package reconcile

import (
	"fmt"
	"slices"
	"sort"
	"strings"
	"time"

	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/talos"
)

// The steps of mending one member, as JoinState.Step keeps them.
const (
	stepRemove  = "remove"  // its removal from etcd was begun
	stepRemoved = "removed" // it is gone from etcd; its machine is wiped if it still has the data
	stepReset   = "reset"   // its machine's EPHEMERAL was reset
	stepReboot  = "reboot"  // a machine without data and with a dead etcd service was rebooted
)

const lockJoins = "joins"

// joins watches every control plane on its way into etcd and mends what Talos doesn't mend by itself: it promotes a learner
// only in the boot that added it, and retries nothing once etcd's start has failed. One act at a time, each with its
// intent, never two on one boot of a machine.
func joins(in *Input, next *statefile.State, etcd etcdView, wanted []string, mendable func(string) bool) (*Action, map[string]verdict) {
	says := map[string]verdict{}
	if !etcd.known || etcd.split != "" || next.Bootstrap == nil || next.Bootstrap.Done.IsZero() {
		return nil, says
	}
	watch(in, next, etcd, wanted)
	candidates := []func(*Input, *statefile.State, etcdView, map[string]verdict, func(string) bool) *Action{
		mendMembers, mendReset, mendStaleName, mendDeadService,
	}
	var first *Action
	for _, candidate := range candidates {
		if action := candidate(in, next, etcd, says, mendable); action != nil && first == nil {
			first = action
		}
	}
	return first, says
}

// watch keeps one entry for each member that has not joined, since when it was seen, and drops what is over.
func watch(in *Input, next *statefile.State, etcd etcdView, wanted []string) {
	for _, m := range etcd.members {
		name := etcd.machine[m.ID]
		if !m.Learner && m.Name != "" || name == "" {
			continue
		}
		if _, known := next.Joins[hexID(m.ID)]; !known {
			if next.Joins == nil {
				next.Joins = map[string]*statefile.JoinState{}
			}
			next.Joins[hexID(m.ID)] = &statefile.JoinState{Machine: name, FirstSeen: in.now()}
		}
	}
	for key, join := range next.Joins {
		id, isMember := memberKey(key)
		m, listed := etcd.find(id)
		seen, ok := in.see(join.Machine)
		switch {
		case etcd.joined[join.Machine] && (!isMember || !listed || !m.Learner && m.Name != ""):
			delete(next.Joins, key)
		case isMember && listed && !m.Learner && m.Name != "" && join.Step != stepRemove && !tooSoon(in, join):
			delete(next.Joins, key)
		case isMember && !listed && join.Step == stepRemove:
			join.Step = stepRemoved
		case isMember && !listed && join.Step == "":
			// It left by other hands; whoever took it out sees to its machine.
			delete(next.Joins, key)
		case isMember && !listed && ok && seen.Etcd.Data == talos.No:
			delete(next.Joins, key)
		case isMember && !listed && join.Step == stepReset && ok && etcd.has(seen.Etcd.MemberID):
			delete(next.Joins, key)
		case !slices.Contains(wanted, join.Machine) && in.Cluster.Machine(join.Machine) == nil && !listed:
			delete(next.Joins, key)
		}
	}
	if len(next.Joins) == 0 {
		next.Joins = nil
	}
}

// patience is how long after the last act of a mending the next may come: a minute, twice as long each time, so that what the
// machines refuse is not asked for without end.
func patience(in *Input, join *statefile.JoinState) time.Duration {
	wait := 12 * in.Timing.Retry
	for range join.Acts - 1 {
		wait = min(2*wait, in.Timing.MendCap)
	}
	return wait
}

// tooSoon says whether a mending waits for its patience to be over.
func tooSoon(in *Input, join *statefile.JoinState) bool {
	return join != nil && join.Acts > 0 && in.passed(mendMoment(join), join.ActAt) < patience(in, join)
}

// mendMembers removes a learner that was not promoted, and a member that never got a name.
func mendMembers(in *Input, next *statefile.State, etcd etcdView, says map[string]verdict, mendable func(string) bool) *Action {
	var first *Action
	for _, key := range joinKeys(next) {
		join := next.Joins[key]
		id, isMember := memberKey(key)
		member, listed := etcd.find(id)
		if !isMember || !listed {
			continue
		}
		kind, grace := "a learner", in.Timing.LearnerGrace
		switch {
		case member.Name == "":
			kind, grace = "an etcd member without a name", in.Timing.NamelessGrace
		case !member.Learner:
			continue // it was promoted since, and is a voter
		}
		age := in.certainly(joinMoment(key), join.FirstSeen)
		if age < grace {
			says[join.Machine] = verdict{"Joining", fmt.Sprintf("%s is %s (%s) since %s; it is mended if it stays one for %s",
				join.Machine, kind, key, join.FirstSeen.Format(time.RFC3339), grace)}
			continue
		}
		says[join.Machine] = verdict{"JoinStuck", fmt.Sprintf("%s is %s (%s) since %s, longer than %s: it is removed from etcd and joins again",
			join.Machine, kind, key, join.FirstSeen.Format(time.RFC3339), grace)}
		if first == nil && mendable(join.Machine) && !tooSoon(in, join) {
			first = removal(in, etcd, mendable, join.Machine, member, join.Acts+1, fmt.Sprintf("%s has been %s since %s", join.Machine, kind,
				join.FirstSeen.Format(time.RFC3339)))
		}
	}
	return first
}

// mendReset wipes EPHEMERAL on the machine of a removed member that still has the member's data.
func mendReset(in *Input, next *statefile.State, etcd etcdView, says map[string]verdict, mendable func(string) bool) *Action {
	var first *Action
	for _, key := range joinKeys(next) {
		join := next.Joins[key]
		seen, ok := in.see(join.Machine)
		if join.Step != stepRemoved && join.Step != stepReset || !ok || seen.Etcd.Data != talos.Yes {
			continue
		}
		if _, still := etcd.member[join.Machine]; still || next.Machines[join.Machine] == nil || next.Machines[join.Machine].MemberID != "" ||
			seen.Etcd.ServiceHealthy == talos.Yes {
			continue // its data is of a member that is there, even where the list doesn't say that it is this machine's
		}
		if stuck, wait := mended(in, join, seen); wait {
			says[join.Machine] = stuck
			continue
		}
		says[join.Machine] = verdict{"JoinStuck", fmt.Sprintf("%s holds the data of member %s, which was removed from etcd: its EPHEMERAL is wiped "+
			"so that it joins again", join.Machine, key)}
		if first == nil && mendable(join.Machine) {
			id, _ := memberKey(key)
			first = &Action{
				Kind: ActReset, Machine: join.Machine, UUID: seen.UUID, Boot: seen.BootID, Member: id, Lock: lockJoins,
				Facts: map[string]string{"data": "present"}, Attempt: join.Acts,
				Why: fmt.Sprintf("%s still holds the data of member %s, which is no longer in etcd", join.Machine, key),
			}
		}
	}
	return first
}

// mendStaleName removes a member that stands at an empty machine's address under another name: it is the machine's former
// self, and blocks its return for good.
func mendStaleName(in *Input, next *statefile.State, etcd etcdView, says map[string]verdict, mendable func(string) bool) *Action {
	var first *Action
	for _, member := range etcd.members {
		name := etcd.machine[member.ID]
		seen, ok := in.see(name)
		if !ok || member.Name == "" || seen.Etcd.Data != talos.No || seen.Hostname == "" || strings.EqualFold(member.Name, seen.Hostname) {
			continue
		}
		if other := claimed(in, next, name, member); other != "" {
			says[name] = verdict{"JoinStuck", fmt.Sprintf("member %s (%s) stands at the address of %s and is %s's: nothing is removed; give the "+
				"machines addresses of their own", hexID(member.ID), member.Name, name, other)}
			continue
		}
		says[name] = verdict{"JoinStuck", fmt.Sprintf("member %s stands at the address of %s under its former name %s: it is removed, so that %s "+
			"can join", hexID(member.ID), name, member.Name, name)}
		if first == nil && mendable(name) && !tooSoon(in, next.Joins[hexID(member.ID)]) {
			first = removal(in, etcd, mendable, name, member, 1, fmt.Sprintf("member %s at the address of %s is its former self under the name %s, "+
				"and %s has no data", hexID(member.ID), name, member.Name, name))
		}
	}
	return first
}

// claimed names another machine that a member may be of, by its name or by what the state remembers: machines may have swapped
// their addresses. Of a machine that another one took the place of, nothing runs at the address any more.
func claimed(in *Input, next *statefile.State, name string, member talos.EtcdMember) string {
	for _, other := range controlPlaneNames(in) {
		memory := next.Machines[other]
		if other != name && !tookPlace(in, name, other) && (strings.EqualFold(in.hostname(other), member.Name) || memory != nil && memory.MemberID == hexID(member.ID)) {
			return other
		}
	}
	return ""
}

// mendDeadService reboots a control plane without data whose etcd service has ended: Talos starts it again only at a boot.
func mendDeadService(in *Input, next *statefile.State, etcd etcdView, says map[string]verdict, mendable func(string) bool) *Action {
	var first *Action
	for _, name := range wantedControlPlanes(in, nil) {
		seen, ok := in.see(name)
		if !ok || seen.Etcd.Data != talos.No || seen.Etcd.Service != "Failed" && seen.Etcd.Service != "Finished" {
			continue
		}
		if _, listed := etcd.member[name]; listed {
			continue
		}
		join := next.Joins[machineKey(name)]
		if join == nil {
			join = &statefile.JoinState{}
		}
		if stuck, wait := mended(in, join, seen); wait {
			says[name] = stuck
			continue
		}
		says[name] = verdict{"JoinStuck", fmt.Sprintf("the etcd service of %s is %s without having data (%s): it is rebooted, since Talos starts "+
			"it again only at a boot", name, seen.Etcd.Service, nameOr(seen.Etcd.ServiceMessage, "no message"))}
		if first == nil && mendable(name) {
			first = &Action{
				Kind: ActReboot, Machine: name, UUID: seen.UUID, Boot: seen.BootID, Lock: lockJoins,
				Facts: map[string]string{"data": "absent", "service": seen.Etcd.Service}, Attempt: join.Acts + 1,
				Why: fmt.Sprintf("%s has no etcd data and its etcd service is %s", name, seen.Etcd.Service),
			}
		}
	}
	return first
}

// mended says whether a machine was acted on in the boot that it still shows: then it is waited for, and after the cap that
// is what is wrong with it.
func mended(in *Input, join *statefile.JoinState, seen Seen) (verdict, bool) {
	if join.BootID == "" && join.Step != stepRemoved && tooSoon(in, join) {
		return verdict{"Mending", fmt.Sprintf("%s refused a %s at %s and is asked again after %s", join.Machine, join.Step,
			join.ActAt.Format(time.RFC3339), patience(in, join))}, true
	}
	if join.BootID == "" || join.BootID != seen.BootID {
		return verdict{}, false
	}
	if in.passed(mendMoment(join), join.ActAt) < in.Timing.MendCap {
		return verdict{"Mending", fmt.Sprintf("%s was asked for a %s at %s and still shows the same boot", join.Machine, join.Step,
			join.ActAt.Format(time.RFC3339))}, true
	}
	return verdict{"MendFailed", fmt.Sprintf("%s was asked for a %s at %s and shows the same boot after more than %s; it isn't asked twice on one boot: "+
		"power-cycle it by hand", join.Machine, join.Step, join.ActAt.Format(time.RFC3339), in.Timing.MendCap)}, true
}

// removal takes a member out of etcd over a machine that has joined it, is not the member's own, and may be touched.
func removal(in *Input, etcd etcdView, mendable func(string) bool, name string, member talos.EtcdMember, attempt int, why string) *Action {
	carriers := make([]string, 0, len(etcd.joined))
	for carrier, joined := range etcd.joined {
		if joined && carrier != name && mendable(carrier) {
			carriers = append(carriers, carrier)
		}
	}
	if len(carriers) == 0 {
		return nil
	}
	sort.Strings(carriers)
	carrier := carriers[0]
	seen, _ := in.see(carrier)
	return &Action{
		Kind: ActRemoveMember, Machine: name, Via: carrier, UUID: seen.UUID, Boot: seen.BootID, Member: member.ID, Lock: lockJoins,
		Facts: map[string]string{"member": describeMember(member)}, Attempt: attempt, Why: why,
	}
}

// describeMember is a member as a fact: what it is must not have changed when the call goes out.
func describeMember(m talos.EtcdMember) string {
	kind := "voter"
	if m.Learner {
		kind = "learner"
	}
	return fmt.Sprintf("%s %q", kind, m.Name)
}

// joinKeys are the keys of the joins, those seen first first.
func joinKeys(s *statefile.State) []string {
	keys := make([]string, 0, len(s.Joins))
	for key := range s.Joins {
		keys = append(keys, key)
	}
	sort.Slice(keys, func(i, j int) bool {
		a, b := s.Joins[keys[i]].FirstSeen, s.Joins[keys[j]].FirstSeen
		if !a.Equal(b) {
			return a.Before(b)
		}
		return keys[i] < keys[j]
	})
	return keys
}

// machineKey is the key under which mending of a machine that is no member is kept.
func machineKey(name string) string { return "machine/" + name }
