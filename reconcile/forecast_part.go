package reconcile

import (
	"maps"
	"math"
	"slices"

	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/talos"
)

// A rollout goes machine by machine, and each decision looks at all machines, so a forecast that made each of them with all would grow with the
// square of the machines. It follows a rollout through a part instead: the control planes, the workers whose turn comes next, and whatever
// else may need something. The other workers are put aside meanwhile, and the decisions only count them. They are the same decisions: as soon
// as one on the part would do nothing, all machines are back and it is made with them.

// asideWorkers are the workers that a forecast has put aside, as the decisions count them.
type asideWorkers struct {
	approved, down, downOrCordoned int
	takesPods                      bool
}

// part is what is put back when all machines are looked at again.
type part struct {
	machines []*schema.TalosMachine // all of the cluster
	memories map[string]*statefile.MachineState
	seen     map[string]Seen
	window   bool // whether a window for reboots was open
}

// narrow puts aside the workers that nothing is done to before the next few had their turn, where a rollout is all that goes on.
func (f *foretelling) narrow() {
	all := f.in.Cluster.Machines
	if !rollingOnly(f.in.State) {
		return
	}
	p := &part{machines: all, memories: map[string]*statefile.MachineState{}, seen: map[string]Seen{}, window: f.windowOpen()}
	var kept, aside []*schema.TalosMachine
	// So many that all machines are looked at once a square root of them: then most looks are at few, and few are at all.
	turns := int(math.Ceil(math.Sqrt(float64(len(all)))))
	for _, m := range all {
		waits, inLine := f.standsBy(m, p.window)
		if inLine {
			turns-- // the order is theirs in which the rollout comes to them
			waits = turns < 0
		}
		if waits {
			aside = append(aside, m)
		} else {
			kept = append(kept, m)
		}
	}
	if len(aside) <= len(kept) {
		return
	}
	state := *f.in.State
	state.Machines = maps.Clone(state.Machines)
	for _, m := range aside {
		name := m.Metadata.Name
		f.in.aside.add(&f.in, m)
		p.memories[name] = state.Machines[name]
		delete(state.Machines, name)
		if seen, looked := f.world.seen[name]; looked {
			p.seen[name] = seen
			delete(f.world.seen, name)
		}
	}
	f.in.Cluster.Machines, f.in.State, f.in.Seen, f.part = kept, &state, f.world.look(), p
}

// widen brings back what was put aside.
func (f *foretelling) widen() {
	if f.part == nil {
		return
	}
	state := *f.in.State
	state.Machines = maps.Clone(state.Machines)
	maps.Copy(state.Machines, f.part.memories)
	maps.Copy(f.world.seen, f.part.seen)
	f.in.Cluster.Machines, f.in.State, f.in.Seen, f.in.aside, f.part = f.part.machines, &state, f.world.look(), asideWorkers{}, nil
}

// rollingOnly says whether a rollout under way is all that a cluster has before it.
func rollingOnly(s *statefile.State) bool {
	return s.Origin != "" && s.Bootstrap != nil && !s.Bootstrap.Done.IsZero() && len(s.Joins) == 0 && len(s.Cordons) == 0 &&
		s.Rollout != nil && s.Rollout.Stopped == "" &&
		!slices.ContainsFunc(s.Operations, func(op *statefile.OperationState) bool { return !op.Phase.Over() })
}

// standsBy says whether nothing can come to a machine while a rollout goes through others, or only its turn in the line.
func (f *foretelling) standsBy(m *schema.TalosMachine, window bool) (waits, inLine bool) {
	state, name := f.in.State, m.Metadata.Name
	seen := f.in.Seen[name]
	if isControlPlane(m) || name == state.Rollout.Machine || name == state.AgentOn || seen.Mode == talos.ModeMaintenance ||
		seen.Etcd.MemberID != 0 || state.Machines[name] == nil {
		return false, false
	}
	switch state.Machines[name].Ready.Reason {
	case "RollingOut":
		return false, false
	case "RebootRequired":
		policy := f.in.Cluster.Object.Spec.Rollout.RebootPolicy()
		return policy == schema.RebootsManual || policy == schema.RebootsWindow && !window, false
	case "ChangePending":
		return true, true
	}
	return true, false
}

func (f *foretelling) windowOpen() bool {
	open, _ := f.in.windowOpen(f.in.State)
	return open
}

// enough says whether a decision on the part is the one that would be made with all machines: it acts, and the gate doesn't refuse it.
func (f *foretelling) enough(plan Plan) bool {
	refusal := f.refusals(plan.Next)
	return len(plan.Actions) > 0 && f.windowOpen() == f.part.window &&
		!slices.ContainsFunc(plan.Actions, func(a Action) bool { return refusal(a) != "" })
}

// add counts a worker in.
func (c *asideWorkers) add(in *Input, m *schema.TalosMachine) {
	if m.Spec.Approved {
		c.approved++
		if unavailable(in, m, false) {
			c.down++
		}
		if unavailable(in, m, true) {
			c.downOrCordoned++
		}
	}
	c.takesPods = c.takesPods || takesPods(in, m)
}
