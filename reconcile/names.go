package reconcile

import (
	"strings"

	"ichor.maesh.dev/statefile"
)

// asideMark stands in the name under which a machine is remembered whose own name Git gave to another one. No machine in Git is called so.
const asideMark = "~"

// nameMachines has what is remembered stand under the names that Git gives the machines now.
func (d *decision) nameMachines() {
	aside := setAside(d.next, d.in.Cluster)
	if renamed := d.follow(); aside || renamed {
		d.in.State = cloneState(d.next)
	}
}

// setAside keeps what is remembered of a machine from the next one that gets its name: the UUID says which machine is meant. The first may be
// a member of etcd and run on, and is remembered beside the other until Git has it again, under a name of its own.
func setAside(s *statefile.State, c Cluster) (changed bool) {
	for _, m := range c.Machines {
		name := m.Metadata.Name
		memory := s.Machines[name]
		if memory == nil || memory.UUID == "" || strings.EqualFold(memory.UUID, m.Spec.UUID) {
			continue
		}
		changed = true
		if forgettable(memory) {
			delete(s.Machines, name)
			continue
		}
		rename(s, name, name+asideMark+strings.ToLower(memory.UUID))
	}
	return changed
}

// forgettable says whether nothing needs to be remembered of a machine that is no longer in Git.
func forgettable(memory *statefile.MachineState) bool {
	return memory.Removed || !memory.Managed && memory.ConfigSentFor == "" && memory.MemberID == ""
}

// tookPlace says whether a machine has the name and the address of another one that isn't in Git any more.
func tookPlace(in *Input, name, other string) bool {
	first, _, aside := strings.Cut(other, asideMark)
	return aside && first == name && in.Cluster.Machine(other) == nil && host(in.remembered(other).Address) == host(in.endpoint(name))
}

// follow lets what is remembered of a machine go with it where Git gave it another name: the UUID says which machine is meant,
// and under a new name it must be neither configured once more for an approval that is used, nor somebody else's.
func (d *decision) follow() (renamed bool) {
	for _, m := range d.in.Cluster.Machines {
		name := m.Metadata.Name
		if had := d.next.Machines[name]; had != nil && (had.Managed || had.ConfigSentFor != "" || had.MemberID != "") {
			continue
		}
		for old, memory := range d.next.Machines {
			if d.in.Cluster.Machine(old) == nil && !memory.Removed && memory.UUID != "" && strings.EqualFold(memory.UUID, m.Spec.UUID) {
				rename(d.next, old, name)
				renamed = true
				break
			}
		}
	}
	return renamed
}

// rename gives a machine another name everywhere in a state.
func rename(s *statefile.State, old, name string) {
	s.Machines[name] = s.Machines[old]
	delete(s.Machines, old)
	to := func(at *string) {
		if *at == old {
			*at = name
		}
	}
	if s.Intent != nil {
		to(&s.Intent.Machine)
		to(&s.Intent.Carrier)
	}
	if s.Bootstrap != nil {
		to(&s.Bootstrap.Machine)
	}
	if s.Rollout != nil {
		to(&s.Rollout.Machine)
	}
	for n := range s.Cordons {
		to(&s.Cordons[n].Machine)
	}
	for _, join := range s.Joins {
		to(&join.Machine)
	}
	if join := s.Joins[machineKey(old)]; join != nil {
		delete(s.Joins, machineKey(old))
		s.Joins[machineKey(name)] = join
	}
}
