package reconcile

import (
	"context"
	"errors"
	"maps"
	"slices"

	"ichor.maesh.dev/kube"
	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/talos"
)

// act does what the plan asks for, one call at a time; after a call that isn't a first config everything is looked at anew.
func (w *worker) act(ctx context.Context, desired Cluster, plan Plan, in Input) (acted bool, err error) {
	for _, action := range plan.Actions {
		base, _ := w.state.Known()
		if base == nil {
			return false, trouble("StateUnavailable", "the state of %s was not read", w.name)
		}
		if base.Intent != nil {
			// Only a first config that the machine took lets the next one follow in the same pass.
			if base, err = w.settled(ctx, base); err != nil || base == nil {
				return true, err
			}
		}
		c, err := w.call(desired, action, in, base)
		if err != nil {
			return false, err
		}
		if err := w.gate().Do(ctx, c); err != nil {
			if errors.Is(err, statefile.ErrOtherWriter) || errors.Is(err, statefile.ErrNotWriter) {
				return false, w.fenced(err)
			}
			if action.Kind == ActFirstConfig && errors.Is(err, errUntouched) {
				w.deferred[action.Machine] = deferral{w.agent.scrubber.Text(err.Error()), w.agent.clock.Now().Add(12 * w.agent.timing.Retry)}
				w.log.Warn("not configured", "machine", action.Machine, "why", err)
				continue
			}
			return acted, trouble("NotDone", "%w", err)
		}
		if action.Kind.cordoning() {
			return false, nil // pods need a moment to go: the next look comes when the pass is over
		}
		acted = true
		if action.Kind != ActFirstConfig {
			return true, nil
		}
	}
	return acted, nil
}

// settled ends the intent of a first config that the machine took: its answer is all the proof there is, and enough. Nil: the
// intent stands, and the next look at the machines settles it.
func (w *worker) settled(ctx context.Context, base *statefile.State) (*statefile.State, error) {
	intent := *base.Intent
	if intent.Action != string(ActFirstConfig) || intent.Outcome != statefile.OutcomeOK {
		return nil, nil
	}
	err := w.state.Swap(ctx, func(s *statefile.State) error {
		if s.Intent == nil || s.Intent.Nonce != intent.Nonce {
			return errStale
		}
		s.Intent = nil
		return nil
	}, statefile.Event{Action: "Resolved", Machine: intent.Machine, Message: "the machine took its config",
		Details: map[string]string{"call": intent.Action, "nonce": intent.Nonce}})
	if err != nil {
		return nil, w.fenced(err)
	}
	next, _ := w.state.Known()
	return next, nil
}

// call puts together what an action is sent with.
func (w *worker) call(desired Cluster, action Action, in Input, base *statefile.State) (call, error) {
	carrier, found := reached(desired, base, action.carrier())
	if !found && !action.Kind.cordoning() { // what is asked of Kubernetes is carried by no machine
		return call{}, trouble("NotDone", "%s on %s: the machine is neither in Git nor in the state any more", action.Kind, action.Machine)
	}
	c := call{action: action, cluster: desired.Object, declared: carrier.uuid, base: base, target: carrier.Target}
	c.etcd = viewEtcd(&in)
	c.drained = func(key string, drain kube.Drain) { w.kube.drainOf, w.kube.drain = key, &drain }
	if m, found := reached(desired, base, action.Machine); found {
		c.worker = !m.ControlPlane
	}
	if asksEtcd(action) && base.Bootstrap != nil && !c.worker {
		c.lookAtEtcd = func(ctx context.Context) etcdView { return w.etcdNow(ctx, desired, in) }
	}
	switch action.Kind {
	case ActBootstrap:
		c.against = againstBootstrap(in, base, action.Operation != "")
	case ActFirstConfig, ActTry, ActConfirm, ActStage:
		target := desired.Machine(action.Machine)
		if target == nil {
			return call{}, trouble("NotDone", "%s on %s: the machine is no longer in Git", action.Kind, action.Machine)
		}
		rendered, err := w.compare.Render(target, in.Seen[action.Machine].Active, true)
		if err != nil {
			return call{}, trouble("RenderFailed", "%w", err)
		}
		if rendered.Digest != action.Digest {
			return call{}, trouble("NotDone", "the config of %s changed while it was decided on", action.Machine)
		}
		c.config = rendered.Bytes
	}
	return c, nil
}

// reachable is where a machine is reached, and the UUID that it must show.
type reachable struct {
	talos.Target
	uuid string
}

// reached says where a machine is reached: by Git, else by what the state remembers of it.
func reached(desired Cluster, s *statefile.State, name string) (reachable, bool) {
	if m := desired.Machine(name); m != nil {
		return reachable{talos.Target{Name: name, Endpoint: m.Spec.Endpoint, ControlPlane: isControlPlane(m)}, m.Spec.UUID}, true
	}
	m := s.Machines[name]
	if m == nil || m.UUID == "" || m.Address == "" {
		return reachable{}, false
	}
	return reachable{talos.Target{Name: name, Endpoint: m.Address, ControlPlane: m.Role == string(schema.RoleControlPlane)}, m.UUID}, true
}

// asksEtcd says whether a call rests on what etcd says at its very moment.
func asksEtcd(a Action) bool {
	switch a.Kind {
	case ActReset, ActReboot, ActShutdown, ActResetMachine, ActRemoveMember, ActDefragment, ActForfeit:
		return true
	}
	return false
}

// etcdNow asks every control plane for its etcd.
func (w *worker) etcdNow(ctx context.Context, desired Cluster, in Input) etcdView {
	now := in
	now.Seen = maps.Clone(in.Seen)
	var targets []talos.Target
	for _, target := range Targets(desired, in.State) {
		if target.ControlPlane {
			targets = append(targets, target)
		}
	}
	for name, o := range Observe(ctx, w.nodes, targets, w.agent.timing) {
		now.Seen[name] = Seen{Observation: o, Config: in.Seen[name].Config}
	}
	return viewEtcd(&now)
}

func (w *worker) gate() *Gate {
	return &Gate{Nodes: w.nodes, Kubernetes: w.kube.api, State: w.state, Lease: w.agent.leaseOf(w.name), Clock: w.agent.clock, Clocks: w.agent.clocks,
		Timing: w.agent.timing, Log: w.log, Scrubber: w.agent.scrubber, BundleID: schema.ClusterID(w.bundle.ClusterID()), Open: &w.agent.open,
		NotSent: w.notSent}
}

// mostNotSent is how many of the calls that were not made are remembered: each is the last one or, where writes arrive late, one shortly before.
const mostNotSent = 16

func (w *worker) notSent(nonce string) {
	w.unsent = append(w.unsent, nonce)
	w.unsent = w.unsent[max(0, len(w.unsent)-mostNotSent):]
}

// settleUnsent says of an intent that stands without an outcome that its call was not made, where this process knows that: its write was not
// acknowledged and arrived all the same. Nobody could say so later, and a machine that loses its power meanwhile would seem to have done it.
func (w *worker) settleUnsent(s *statefile.State) {
	if i := s.Intent; i != nil && i.Outcome == "" && slices.Contains(w.unsent, i.Nonce) {
		i.Outcome, i.Message, i.OutcomeAt = statefile.OutcomeRefused, notSent+"writing its intent was not acknowledged in time", stamp(w.agent.clock.Now())
	}
}
