package reconcile

import (
	"fmt"
	"slices"
	"time"

	"ichor.maesh.dev/kube"
	"ichor.maesh.dev/statefile"
)

// blockedPatience is how long what no waiting solves is waited for all the same: a person may be at it.
const blockedPatience = 30 * time.Second

// emptying is what a machine needs next to be emptied of its pods, or to take pods again. Nothing set: it is done.
type emptying struct {
	act  *Action
	wait string
	// stuck is why it comes to nothing.
	stuck string
	// need asks for a look at the Kubernetes API.
	need bool
}

func (e emptying) done() bool { return e == emptying{} }

// evacuate moves the pods off a machine: it is cordoned in the name of owner, and what may go is evicted round by round until nothing
// is left, its volumes included, for at most spec.rollout.drain.timeout. How far it is stands in kept, a place in the next state.
func evacuate(in *Input, machine, owner string, kept **statefile.Evacuation) emptying {
	if e := *kept; e != nil && (e.Drained || e.Undrained != "") {
		return emptying{}
	}
	if in.Kubernetes == nil {
		return emptying{need: true}
	}
	if *kept == nil {
		*kept = &statefile.Evacuation{Owner: owner, Since: in.now()}
	}
	e, view := *kept, in.Kubernetes
	limit := in.Cluster.Object.Spec.Rollout.Drain.Limit()
	since := in.passed(evacuationMoment(machine, e), e.Since)
	late := since >= limit
	if view.Problem != "" {
		if late {
			return emptying{stuck: fmt.Sprintf("the pods on %s could not be moved away within %s, because the Kubernetes API could not be asked: %s; mend it, "+
				"or raise spec.rollout.drain.timeout", machine, limit, view.Problem)}
		}
		return emptying{wait: fmt.Sprintf("the pods on %s are to be moved away, and the Kubernetes API can't be asked: %s", machine, view.Problem)}
	}
	node, known := view.Nodes[machine]
	if doubt := view.Doubts[machine]; !known && doubt != "" {
		return emptying{stuck: fmt.Sprintf("the pods on %s can't be moved away: %s", machine, doubt)}
	}
	if !known {
		e.Undrained = machine + " has no Node in Kubernetes, so there is nothing to move away"
		return emptying{}
	}
	if e.NodeUID != node.UID {
		e.Node, e.NodeUID, e.Cordoned, e.Lifted = node.Name, node.UID, false, false
	}
	switch {
	case node.Unschedulable && node.CordonedBy == owner:
		e.Cordoned = true
	case node.Unschedulable:
		e.Lifted = true // it is somebody else's cordon, and stays
	case late:
		return emptying{stuck: fmt.Sprintf("the pods on %s could not be moved away within %s: it takes pods, and could not be kept from that; look at the Node, or raise "+
			"spec.rollout.drain.timeout", machine, limit)}
	default:
		e.Cordoned, e.Lifted = true, false
		return emptying{act: &Action{Kind: ActCordon, Machine: machine, Node: node.Name, NodeUID: node.UID, Owner: owner,
			Why: fmt.Sprintf("%s is to take no more pods", machine)}}
	}
	return evict(in, machine, e, since, limit)
}

// evict decides on one round of a drain, by what the last one left.
func evict(in *Input, machine string, e *statefile.Evacuation, since, limit time.Duration) emptying {
	late := since >= limit
	drain, says := in.Kubernetes.Drain, "what is on it is looked at"
	if in.Kubernetes.DrainOf != drainKey(machine, e) {
		drain = nil
	}
	if drain == nil && late {
		return emptying{stuck: fmt.Sprintf("the pods on %s could not be moved away within %s, and no round of the drain came to an end", machine, limit)}
	}
	if drain != nil {
		if drain.Done() {
			e.Drained = true
			return emptying{}
		}
		says = drain.Sentence()
		if late || len(drain.Blocked) > 0 && since >= min(blockedPatience, limit) {
			return emptying{stuck: fmt.Sprintf("the pods on %s could not be moved away in %s (the limit is %s): %s", machine, inWords(since.Round(time.Second)), inWords(limit), says)}
		}
	}
	return emptying{act: &Action{Kind: ActEvict, Machine: machine, Node: e.Node, NodeUID: e.NodeUID, Owner: e.Owner, Drain: drainKey(machine, e),
		Force: in.Cluster.Object.Spec.Rollout.Drain.Force, Why: fmt.Sprintf("the pods on %s are moved away: %s", machine, says)}}
}

// drainKey tells one drain of a machine from another: what was left of an earlier one says nothing.
func drainKey(machine string, e *statefile.Evacuation) string {
	return machine + " for " + e.Owner + " since " + e.Since.Format(time.RFC3339Nano)
}

// lift takes the cordon of an evacuation away again, if it is its own.
func lift(in *Input, machine string, e *statefile.Evacuation) emptying {
	if e == nil || e.Lifted || !e.Cordoned {
		return emptying{}
	}
	if in.Kubernetes == nil {
		return emptying{need: true}
	}
	if in.Kubernetes.Problem != "" {
		return emptying{wait: fmt.Sprintf("%s is to take pods again, and the Kubernetes API can't be asked: %s", machine, in.Kubernetes.Problem)}
	}
	node, name, known := in.Kubernetes.cordoned(machine, e)
	if !known || node.CordonedBy != e.Owner {
		e.Lifted = true
		return emptying{}
	}
	return emptying{act: &Action{Kind: ActUncordon, Machine: name, Node: node.Name, NodeUID: node.UID, Owner: e.Owner,
		Why: fmt.Sprintf("%s takes pods again", machine)}}
}

// cordoned finds the Node of an evacuation, and the machine's name: Git may have given it another one meanwhile, or none.
func (v *KubernetesView) cordoned(machine string, e *statefile.Evacuation) (node kube.Node, name string, known bool) {
	for name, node := range v.Nodes {
		if node.UID == e.NodeUID && node.UID != "" {
			return node, name, true
		}
	}
	for _, node := range v.Strangers {
		if node.UID == e.NodeUID && node.UID != "" {
			return node, machine, true
		}
	}
	node, known = v.Nodes[machine]
	return node, machine, known
}

// leftovers lifts the cordon of an operation or a rollout that stopped before it could do so itself: because the Kubernetes API was away,
// because it was cancelled or its machine left alone, or because its agent died. Not while somebody holds the cluster lock, who may be at
// the same machine.
func (d *decision) leftovers() {
	if d.next.Lock != nil {
		return
	}
	for _, op := range d.next.Operations {
		if op.Evacuation != nil && op.Phase != statefile.OperationRunning && d.leftover(op.Target, op.Evacuation) {
			return
		}
	}
	for n := range d.next.Cordons {
		if left := &d.next.Cordons[n]; d.leftover(left.Machine, &left.Evacuation) {
			return
		}
	}
	d.next.Cordons = slices.DeleteFunc(d.next.Cordons, func(left statefile.LeftCordon) bool { return left.Lifted })
	if len(d.next.Cordons) == 0 {
		d.next.Cordons = nil
	}
}

// leftover lifts a cordon that was left behind; true when there is something to be done for it now.
func (d *decision) leftover(machine string, e *statefile.Evacuation) bool {
	if !e.Cordoned || e.Lifted {
		return false
	}
	if m := d.in.Cluster.Machine(machine); m != nil {
		if _, is := paused(m.Metadata); is {
			return false
		}
	}
	out := lift(d.in, machine, e)
	if out.need {
		d.in.wantKubernetes = true
	}
	if out.act == nil {
		return false
	}
	d.plan.Actions, d.plan.Busy = []Action{*out.act}, true
	return true
}
