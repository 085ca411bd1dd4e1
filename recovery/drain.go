package recovery

import (
	"context"
	"fmt"
	"slices"
	"time"

	"ichor.maesh.dev/kube"
	"ichor.maesh.dev/statefile"
)

// defaultDrain is how long pods may take to be moved away where nothing else is set.
const defaultDrain = 15 * time.Minute

// blockedPatience is how long what no waiting solves is waited for all the same.
const blockedPatience = 30 * time.Second

// emptied is what must be done until the pods of a machine that is to be rebooted are moved away. A restore must come to its end: where that
// can't be done it goes on without, and undrained says why.
func (d *decision) emptied(name string) (step nextStep, undrained string) {
	e := d.m.Drains[name]
	if e != nil && (e.Drained || e.Undrained != "") {
		return nextStep{}, ""
	}
	k := d.Kubernetes
	switch {
	case k == nil:
		return nextStep{}, "the Kubernetes API is not asked in this phase"
	case k.None:
		return nextStep{}, k.Problem
	case k.Problem != "" && !k.silent(d.Timing.Serves):
		return wait("%s is to be rebooted, and before that the Kubernetes API is to answer, so that its pods can be moved away: %s", name, k.Problem), ""
	case k.Problem != "":
		return nextStep{}, fmt.Sprintf("the Kubernetes API has not answered for %s (%s)", d.Timing.Serves, k.Problem)
	}
	node, known := k.Nodes[name]
	switch {
	case !known:
		return nextStep{}, k.Doubts[name]
	case node.Unschedulable && node.CordonedBy != d.m.ID:
		// Somebody else's cordon, which stays; what is on it is moved all the same.
	case !node.Unschedulable:
		if e != nil && d.Now.Sub(e.Since) >= d.drainLimit() {
			return nextStep{}, fmt.Sprintf("it could not be kept from taking pods within %s", d.drainLimit())
		}
		return d.onNode(ActCordon, name, node, fmt.Sprintf("%s is to take no more pods, since it is rebooted next", name)), ""
	}
	return d.evicted(name, node)
}

// evicted decides on the next round of a drain by what the last one left.
func (d *decision) evicted(name string, node kube.Node) (nextStep, string) {
	e, says := d.m.Drains[name], "what is on it is looked at"
	left, looked := d.Drains[name]
	if looked {
		says = left.Sentence()
	}
	if e != nil {
		spent := d.Now.Sub(e.Since)
		if spent >= d.drainLimit() || looked && len(left.Blocked) > 0 && spent >= blockedPatience {
			return nextStep{}, says
		}
	}
	return d.onNode(ActEvict, name, node, fmt.Sprintf("the pods on %s are moved away: %s", name, says)), ""
}

func (d *decision) drainLimit() time.Duration {
	if d.DrainLimit <= 0 {
		return defaultDrain
	}
	return d.DrainLimit
}

// lifted is what must be done until a machine that has joined takes pods again.
func (d *decision) lifted(name string) nextStep {
	e := d.m.Drains[name]
	if e == nil || !e.Cordoned || e.Lifted || d.Kubernetes == nil {
		return nextStep{}
	}
	if k := d.Kubernetes; k.Problem != "" {
		if !k.silent(d.Timing.Serves) {
			return wait("%s has joined and is to take pods again, and the Kubernetes API can't be asked: %s", name, k.Problem)
		}
		return nextStep{} // the cordon is left to be lifted later
	}
	node, known := d.Kubernetes.Nodes[name]
	if !known || node.CordonedBy != d.m.ID {
		return nextStep{}
	}
	return d.onNode(ActUncordon, name, node, name+" takes pods again")
}

func (d *decision) onNode(kind ActionKind, name string, node kube.Node, why string) nextStep {
	return nextStep{Action: &action{Kind: kind, Machine: name, Node: node, Why: why}}
}

// LeftCordons are the cordons of a restore that ended before they could be lifted, by machine.
func (m *Marker) LeftCordons() map[string]statefile.Evacuation {
	left := map[string]statefile.Evacuation{}
	for name, e := range m.Drains {
		if e.Cordoned && !e.Lifted {
			left[name] = *e
		}
	}
	return left
}

// drainOf gives what is kept of a machine's drain, made where there is nothing yet.
func (m *Marker) drainOf(name string, now time.Time) *statefile.Evacuation {
	if m.Drains[name] == nil {
		if m.Drains == nil {
			m.Drains = map[string]*statefile.Evacuation{}
		}
		m.Drains[name] = &statefile.Evacuation{Owner: m.ID, Since: now}
	}
	return m.Drains[name]
}

// onKubernetes makes a call to the Kubernetes API. Nothing hangs on when it arrives, so that it has no intent; a cordon is noted before it is
// made, or nobody would know that it is to be lifted.
func (r *Run) onKubernetes(ctx context.Context, a *action) error {
	ctx, cancel := context.WithTimeout(ctx, r.Timing.Call)
	defer cancel()
	if err := r.Fence.Check(ctx); err != nil {
		return err
	}
	note := func(change func(*statefile.Evacuation)) error {
		return r.write(ctx, func(m *Marker) error {
			e := m.drainOf(a.Machine, r.now())
			e.Node, e.NodeUID = a.Node.Name, a.Node.UID
			change(e)
			return nil
		})
	}
	r.progress(a.Why)
	switch a.Kind {
	case ActCordon:
		if err := note(func(e *statefile.Evacuation) { e.Cordoned, e.Lifted = true, false }); err != nil {
			return err
		}
		return r.Kubernetes.Cordon(ctx, a.Node, r.marker.ID)
	case ActUncordon:
		if _, err := r.Kubernetes.Uncordon(ctx, a.Node, r.marker.ID); err != nil {
			return err
		}
		return note(func(e *statefile.Evacuation) { e.Lifted = true })
	}
	if r.marker.Drains[a.Machine] == nil {
		if err := note(func(*statefile.Evacuation) {}); err != nil {
			return err
		}
	}
	left, err := r.Kubernetes.Evict(ctx, a.Node, kube.EvictOptions{Force: r.DrainForce})
	if err != nil {
		return err
	}
	r.drains[a.Machine] = left
	if left.Done() {
		return note(func(e *statefile.Evacuation) { e.Drained = true })
	}
	return nil
}

// onKubernetes says whether an action is a call to Kubernetes.
func (k ActionKind) onKubernetes() bool {
	return slices.Contains([]ActionKind{ActCordon, ActEvict, ActUncordon}, k)
}
