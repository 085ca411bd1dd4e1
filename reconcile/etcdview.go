package reconcile

import (
	"fmt"
	"slices"
	"sort"
	"strings"

	"ichor.maesh.dev/talos"
)

// caughtUp is how many raft entries a member may be behind and still count as caught up.
const caughtUp = 1000

// etcdView is etcd as the machines of a cluster show it together.
type etcdView struct {
	// known is whether a linearizable list was read, and source the machine that gave it.
	known   bool
	source  string
	members []talos.EtcdMember
	// split says that two machines gave lists of different clusters.
	split string
	// machine gives the name of the machine that a member runs on, where one explains it; member is the inverse.
	machine map[uint64]string
	member  map[string]talos.EtcdMember
	// joined says which machines are started voters, caught up and healthy; working those that would be but for an alarm that etcd is
	// out of space, which is what a defragmentation is against.
	joined, working map[string]bool
}

// viewEtcd puts the observations of all control planes together.
func viewEtcd(in *Input) etcdView {
	v := etcdView{machine: map[uint64]string{}, member: map[string]talos.EtcdMember{}, joined: map[string]bool{},
		working: map[string]bool{}}
	names := controlPlaneNames(in)
	for _, name := range names {
		seen, ok := in.see(name)
		if !ok || seen.Etcd.Members == nil {
			continue
		}
		switch {
		case !v.known:
			v.known, v.source, v.members = true, name, slices.Clone(seen.Etcd.Members)
		case !sameMembers(v.members, seen.Etcd.Members):
			v.note(name, seen.Etcd.Members)
		}
	}
	sort.Slice(v.members, func(i, j int) bool { return v.members[i].ID < v.members[j].ID })
	for _, member := range v.members {
		if name := machineOf(in, names, member); name != "" {
			v.machine[member.ID] = name
			// A machine may be behind two members for a while: a dead one and the one it joined as. Its own word decides.
			if had, twice := v.member[name]; !twice || in.ownMember(name) != had.ID {
				v.member[name] = member
			}
		}
	}
	for name, member := range v.member {
		seen, ok := in.see(name)
		etcd := seen.Etcd
		works := ok && etcd.MemberID == member.ID && !member.Learner && !etcd.Learner && member.Name != "" &&
			etcd.ServiceHealthy == talos.Yes && etcd.RaftApplied+caughtUp >= etcd.RaftIndex
		v.joined[name] = works && len(etcd.Errors) == 0
		v.working[name] = works && onlyOutOfSpace(etcd)
	}
	return v
}

// note keeps the longer list when two differ by a change under way, and says so when they have no member in common: then
// two clusters live side by side.
func (v *etcdView) note(name string, other []talos.EtcdMember) {
	common := slices.ContainsFunc(other, func(m talos.EtcdMember) bool { return v.has(m.ID) })
	if !common && len(other) > 0 && len(v.members) > 0 {
		v.split = fmt.Sprintf("%s and %s are in two different etcd clusters: no member of one is in the other", v.source, name)
		return
	}
	if len(other) > len(v.members) {
		v.source, v.members = name, slices.Clone(other)
	}
}

func (v etcdView) has(id uint64) bool {
	return slices.ContainsFunc(v.members, func(m talos.EtcdMember) bool { return m.ID == id })
}

func (v etcdView) find(id uint64) (talos.EtcdMember, bool) {
	for _, m := range v.members {
		if m.ID == id {
			return m, true
		}
	}
	return talos.EtcdMember{}, false
}

// healthy says whether etcd names exactly the wanted control planes, all of them joined; when not, why not.
func (v etcdView) healthy(wanted []string) (bool, string) {
	switch {
	case v.split != "":
		return false, v.split
	case !v.known:
		return false, "no control plane gave a member list within 10 s"
	}
	for _, m := range v.members {
		name, explained := v.machine[m.ID]
		switch {
		case !explained:
			return false, fmt.Sprintf("member %s (%s) belongs to no machine in Git", hexID(m.ID), nameOr(m.Name, "nameless"))
		case !slices.Contains(wanted, name):
			return false, fmt.Sprintf("%s is a member and not a wanted control plane", name)
		case v.member[name].ID != m.ID:
			return false, fmt.Sprintf("%s stands behind two members", name)
		case m.Learner:
			return false, fmt.Sprintf("%s is a learner", name)
		}
	}
	for _, name := range wanted {
		if _, listed := v.member[name]; !listed {
			return false, fmt.Sprintf("%s is not a member", name)
		}
		if !v.joined[name] {
			return false, fmt.Sprintf("%s is a member and not healthy", name)
		}
	}
	return true, ""
}

// quorum counts the voters, how many of them are healthy, and how many must be.
func (v etcdView) quorum() (voters, healthy, need int) {
	for _, m := range v.members {
		if m.Learner {
			continue
		}
		voters++
		if name, ok := v.machine[m.ID]; ok && v.joined[name] && v.member[name].ID == m.ID {
			healthy++
		}
	}
	return voters, healthy, voters/2 + 1
}

// onlyOutOfSpace says whether alarms that etcd is out of space are all that a member's status complains of.
func onlyOutOfSpace(etcd talos.EtcdObservation) bool {
	return len(etcd.Errors) <= len(etcd.Alarms) && !slices.ContainsFunc(etcd.Alarms, func(a talos.EtcdAlarm) bool { return a.Kind != "NOSPACE" })
}

func (v etcdView) voters() int {
	voters, _, _ := v.quorum()
	return voters
}

// holds says whether the machine stands behind any member, a learner too.
func (v etcdView) holds(name string) bool {
	_, is := v.member[name]
	return is
}

// mayHold says whether a member is the machine's, or is one that no machine explains; it names the member.
func (v etcdView) mayHold(name string) (member string, may bool) {
	for _, m := range v.members {
		if on := v.machine[m.ID]; on == "" || on == name {
			return fmt.Sprintf("member %s, %s", hexID(m.ID), nameOr(m.Name, "nameless")), true
		}
	}
	return "", false
}

// isVoter says whether the machine is a voting member.
func (v etcdView) isVoter(name string) bool {
	m, ok := v.member[name]
	return ok && !m.Learner
}

func sameMembers(a, b []talos.EtcdMember) bool {
	if len(a) != len(b) {
		return false
	}
	for _, m := range a {
		if !slices.ContainsFunc(b, func(o talos.EtcdMember) bool {
			return o.ID == m.ID && o.Learner == m.Learner && o.Name == m.Name
		}) {
			return false
		}
	}
	return true
}

// machineOf finds the machine behind a member: the one that says so itself, else the one at its address, else the one that the state
// remembers, else the one of its name.
func machineOf(in *Input, names []string, member talos.EtcdMember) string {
	for _, name := range names {
		if seen, ok := in.see(name); ok && seen.Etcd.MemberID == member.ID {
			return name
		}
	}
	hosts := memberHosts(member)
	for _, name := range names {
		if containsAny(in.addresses(name), hosts) {
			return name
		}
	}
	for _, name := range names {
		if in.remembered(name).MemberID == hexID(member.ID) {
			return name
		}
	}
	for _, name := range names {
		if member.Name != "" && strings.EqualFold(in.hostname(name), member.Name) {
			return name
		}
	}
	return ""
}

// controlPlaneNames are the control planes in Git and those that only the state knows, sorted.
func controlPlaneNames(in *Input) []string {
	var names []string
	for _, m := range in.Cluster.Machines {
		if isControlPlane(m) {
			names = append(names, m.Metadata.Name)
		}
	}
	for name, m := range in.State.Machines {
		if in.Cluster.Machine(name) == nil && m.Role == "controlplane" {
			names = append(names, name)
		}
	}
	sort.Strings(names)
	return names
}

// ownMember is the member ID that the machine itself reports; zero when it doesn't.
func (in *Input) ownMember(name string) uint64 {
	seen, _ := in.see(name)
	return seen.Etcd.MemberID
}

// addresses are all that is known to lead to a machine.
func (in *Input) addresses(name string) []string {
	var list []string
	if m := in.Cluster.Machine(name); m != nil {
		list = append(list, host(m.Spec.Endpoint))
	} else if a := in.remembered(name).Address; a != "" {
		list = append(list, host(a))
	}
	if seen, ok := in.see(name); ok {
		list = append(list, seen.Addresses...)
	}
	return list
}

// hostname is what the machine is called in etcd and Kubernetes: what it reports, else what the state remembers, else what
// Git says.
func (in *Input) hostname(name string) string {
	if seen, ok := in.see(name); ok && seen.Hostname != "" && seen.Mode == talos.ModeConfigured {
		return seen.Hostname
	}
	if h := in.remembered(name).Hostname; h != "" {
		return h
	}
	if m := in.Cluster.Machine(name); m != nil {
		return m.Spec.Hostname
	}
	return ""
}

// see gives what is known of a machine, and whether the machine that answered is the one that was meant. Where it isn't,
// everything is unknown.
func (in *Input) see(name string) (Seen, bool) {
	seen, looked := in.Seen[name]
	if !looked {
		return Seen{}, false
	}
	want := in.remembered(name).UUID
	if m := in.Cluster.Machine(name); m != nil {
		want = m.Spec.UUID
	}
	if seen.UUID == "" || !strings.EqualFold(seen.UUID, want) {
		return Seen{}, false
	}
	return seen, true
}

func nameOr(name, other string) string {
	if name == "" {
		return other
	}
	return name
}
