package reconcile

import (
	"fmt"

	"ichor.maesh.dev/kube"
	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/talos"
)

// The steps of a reboot.
const (
	stepEvacuate = "evacuate"
	stepRebooted = "reboot"
	stepHeld     = "held up"
)

// refuseReboot wants a machine that is Ready, and a cluster that can do without it for a while.
func refuseReboot(s situation) (refuse, wait string) {
	m, refuse := s.target(s.spec.Node.MachineRef)
	if refuse != "" {
		return refuse, ""
	}
	return s.mayReboot(m)
}

// mayReboot says what speaks against a reboot of a machine by anybody's wish, signed or rolled.
func (d *decision) mayReboot(m *schema.TalosMachine) (refuse, wait string) {
	s, name := situation{decision: d}, m.Metadata.Name
	seen, refuse := s.within(m)
	switch {
	case refuse != "":
		return refuse, ""
	case seen.BootID == "":
		return fmt.Sprintf("the boot ID of %s could not be read, so whether it rebooted could not be told: %s", name, nameOr(seen.Problem, "no reason given")), ""
	case !runsReady(seen):
		return fmt.Sprintf("%s is not Ready: %s", name, unready(seen)), ""
	}
	if isControlPlane(m) {
		return s.controlPlane(name)
	}
	return s.onlyNode(name), ""
}

// unready says in what way a machine is not running and Ready.
func unready(seen Seen) string {
	switch {
	case seen.Mode != talos.ModeConfigured:
		return "it is not configured"
	case seen.Stage != "running":
		return "it is " + nameOr(seen.Stage, "in an unknown stage")
	case !seen.Ready:
		return nameOr(list(seen.Unmet), "it says so itself, without a reason")
	case seen.NodeReady == talos.No:
		return "its Node in Kubernetes is not Ready"
	}
	return "it has just become so"
}

// nextReboot empties the machine, reboots it once, waits until it is back, and lets it take pods again.
func nextReboot(s situation) move {
	name := s.spec.Node.MachineRef.Name
	switch {
	case s.op.FailureReason != "":
		return s.failing(name)
	case s.sent(ActReboot) > 0:
		return s.comeBack(name)
	}
	m, why := s.target(s.spec.Node.MachineRef)
	wait := ""
	if why == "" {
		why, wait = s.mayReboot(m)
	}
	if held, is := s.held(name, why, wait); is {
		return held
	}
	s.say(name, "Rebooting", fmt.Sprintf("%s is emptied of its pods and then rebooted, as %s asks", name, s.op.Name))
	if empty, is := s.emptied(stepEvacuate, name); !is {
		return empty
	}
	seen, _ := s.in.see(name)
	s.op.BootID = seen.BootID
	return move{step: stepRebooted, act: rebootAction(name, seen, fmt.Sprintf("%s reboots, as %s asks", name, s.op.Name))}
}

// held waits for a while for what speaks against going on, and then fails. It is a step of its own, so that one look at which a machine gives
// no answer doesn't end what goes on for longer. What passes by itself is waited for without the lock where nothing was done yet: what it
// waits for may be another operation, which needs the lock.
func (s situation) held(machine, why, wait string) (move, bool) {
	late := s.op.Step == stepHeld && s.since() >= s.in.Timing.Patience
	switch {
	case why == "" && wait == "":
		return move{}, false
	case why == "" && s.untouched():
		return move{later: wait}, true
	case late:
		return s.fail(machine, nameOr(why, wait)), true
	}
	return move{step: stepHeld, wait: nameOr(why, wait)}, true
}

// untouched says whether nothing was done for the operation yet, to no machine and in no Node.
func (s situation) untouched() bool {
	for kind, calls := range s.op.Sent {
		if calls > 0 && !ActionKind(kind).cordoning() {
			return false
		}
	}
	return s.op.Evacuation == nil
}

// emptied moves the pods off the operation's machine; true once nothing is left to move.
func (s situation) emptied(step, machine string) (move, bool) {
	out := evacuate(s.in, machine, cordonOwner(s.op), &s.op.Evacuation)
	switch {
	case out.need:
		return move{step: step, needKubernetes: true}, false
	case out.stuck != "":
		return s.fail(machine, out.stuck), false
	case out.act != nil:
		return move{step: step, act: out.act}, false
	case out.wait != "":
		return move{step: step, wait: out.wait}, false
	}
	return move{}, true
}

// rebootAction reboots a machine in the boot that it shows.
func rebootAction(name string, seen Seen, why string) *Action {
	return &Action{Kind: ActReboot, Machine: name, UUID: seen.UUID, Boot: seen.BootID, Attempt: 1, Facts: map[string]string{"boot": seen.BootID}, Why: why}
}

// comeBack waits until a machine that was asked to reboot is back in another boot, Ready, its Node too, and a member of etcd. It is
// never asked again.
func (s situation) comeBack(name string) move {
	missing := returned(s.decision, name, s.op.BootID)
	view := s.in.Kubernetes
	if e := s.op.Evacuation; missing == "" && (e == nil || e.Undrained == "") {
		if view == nil {
			return move{step: stepRebooted, needKubernetes: true}
		}
		missing = nodeReturned(s.in, name)
	}
	if missing != "" && s.since() >= s.in.Timing.Return {
		return s.fail(name, fmt.Sprintf("%s did not come back within %s of its reboot: %s; it is not rebooted again by this operation: look at its console, and resume "+
			"%s once it is back, or cancel it", name, s.in.Timing.Return, missing, s.op.Name))
	}
	s.say(name, "Rebooting", fmt.Sprintf("%s reboots, as %s asks: %s", name, s.op.Name, nameOr(missing, "it is back")))
	if missing != "" {
		return move{step: stepRebooted, wait: missing}
	}
	switch back := lift(s.in, name, s.op.Evacuation); {
	case back.need:
		return move{step: stepRebooted, needKubernetes: true}
	case !back.done() && s.since() >= s.in.Timing.Return:
		return s.fail(name, fmt.Sprintf("%s rebooted and is Ready (boot %s), and does not take pods again", name, short(s.op.BootID)))
	case back.act != nil:
		return move{step: stepRebooted, act: back.act}
	case back.wait != "":
		return move{step: stepRebooted, wait: back.wait}
	}
	return move{step: stepRebooted, done: s.rebooted(name)}
}

func (s situation) rebooted(name string) string {
	seen, _ := s.in.see(name)
	said := fmt.Sprintf("%s rebooted (boot %s, before %s) and is Ready", name, short(seen.BootID), short(s.op.BootID))
	if e := s.op.Evacuation; e != nil && e.Undrained != "" {
		return said + "; " + e.Undrained
	}
	return said
}

// returned says what is still missing for a machine to be back in another boot than the one it was asked to leave; empty when it is.
func returned(d *decision, name, left string) string {
	seen, ok := d.in.see(name)
	switch {
	case !ok:
		return fmt.Sprintf("%s gives no answer (%s)", name, nameOr(d.in.Seen[name].Problem, "another machine answers there"))
	case seen.Mode == talos.ModeMaintenance:
		return fmt.Sprintf("%s is in maintenance mode: it has lost its config", name)
	case seen.BootID == "":
		return fmt.Sprintf("the boot ID of %s could not be read", name)
	case seen.BootID == left:
		return fmt.Sprintf("%s still shows the boot that it was asked to leave (%s)", name, short(left))
	case !runsReady(seen):
		return fmt.Sprintf("%s is up again and not Ready: %s", name, unready(seen))
	}
	m := d.in.Cluster.Machine(name)
	if m != nil && isControlPlane(m) && !d.etcd.joined[name] {
		return fmt.Sprintf("%s is up again and its etcd member has not joined", name)
	}
	return ""
}

// nodeReturned says what a machine's Node lacks after a boot: it must be Ready by the word of this boot's kubelet.
func nodeReturned(in *Input, name string) string {
	seen, _ := in.see(name)
	node, known := in.Kubernetes.Nodes[name]
	switch {
	case in.Kubernetes.Problem != "":
		return fmt.Sprintf("%s is up again, and whether its Node is Ready is not known: %s", name, in.Kubernetes.Problem)
	case !known:
		return fmt.Sprintf("%s is up again and has no Node in Kubernetes", name)
	case node.BootID != seen.BootID:
		return fmt.Sprintf("the kubelet of %s has not reported since its boot", name)
	case node.Ready != kube.Yes:
		return fmt.Sprintf("the Node of %s is not Ready: %s", name, nameOr(node.ReadyReason, "no reason given"))
	}
	return ""
}
