package reconcile

import (
	"fmt"
	"time"

	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/talos"
)

const stepShutdown = "shutdown"

// refuseShutdown wants a cluster that can do without the machine. It need not be Ready: a sick one may be stopped.
func refuseShutdown(s situation) (refuse, wait string) {
	m, refuse := s.target(s.spec.Node.MachineRef)
	if refuse != "" {
		return refuse, ""
	}
	name := m.Metadata.Name
	seen, refuse := s.ours(m)
	switch {
	case refuse != "":
		return refuse, ""
	case isControlPlane(m):
		return s.controlPlane(name)
	case seen.BootID == "":
		return fmt.Sprintf("the boot ID of %s could not be read: %s", name, nameOr(seen.Problem, "no reason given")), ""
	}
	return s.onlyNode(name), ""
}

// ours looks at a machine that must answer and be Ichor's own, in whatever state it is.
func (s situation) ours(m *schema.TalosMachine) (Seen, string) {
	name := m.Metadata.Name
	seen, ok := s.in.see(name)
	memory := s.next.Machines[name]
	switch {
	case !ok:
		return seen, s.unseen(m).message
	case seen.Mode != talos.ModeConfigured:
		return seen, fmt.Sprintf("%s is in maintenance mode, where Talos takes no such call", name)
	case seen.BootID == "":
		return seen, fmt.Sprintf("the boot ID of %s could not be read: %s", name, nameOr(seen.Problem, "no reason given"))
	case memory == nil || !memory.Managed || !marked(s.in, memory, seen.Config.Owner):
		return seen, fmt.Sprintf("%s is not Ichor's to change (%s); sign an adopt of it first", name, s.why(name, seen))
	}
	return seen, ""
}

// nextShutdown shuts the machine down once, rests while it is off, and is complete when it is back.
func nextShutdown(s situation) move {
	name := s.spec.Node.MachineRef.Name
	switch {
	case s.op.FailureReason != "":
		return s.failing(name)
	case s.sent(ActShutdown) > 0:
		return s.resting(name)
	}
	refuse, wait := refuseShutdown(s)
	if held, is := s.held(name, refuse, wait); is {
		return held
	}
	seen, _ := s.in.see(name)
	s.op.BootID = seen.BootID
	force := s.etcd.isVoter(name) && s.etcd.voters() == 1
	why := fmt.Sprintf("%s shuts down, as %s asks; Talos moves its pods away first", name, s.op.Name)
	if force {
		why = fmt.Sprintf("%s shuts down, as %s asks; it is the only control plane, so nobody could move its pods away", name, s.op.Name)
	}
	return move{step: stepShutdown, act: &Action{Kind: ActShutdown, Machine: name, UUID: seen.UUID, Boot: seen.BootID, Attempt: 1, Force: force,
		Facts: map[string]string{"boot": seen.BootID, "force": yesNo(force)}, Why: why}}
}

// resting waits, without any lock, until a machine that was shut down is back.
func (s situation) resting(name string) move {
	memory, seen := s.next.Machines[name], Seen{}
	if memory == nil || memory.Removed {
		return move{step: stepShutdown, done: name + " was shut down, and removed from the cluster while it was off"}
	}
	missing := returned(s.decision, name, s.op.BootID)
	if missing == "" && s.op.Pause > 0 && s.op.SilentSince.IsZero() {
		// It paused because nothing showed that the call had arrived, and whatever booted it since, nobody saw it off.
		return s.fail(name, fmt.Sprintf("%s runs another boot, and was never seen off: nothing shows that it shut down; cancel this operation, and sign another if it is to be off", name))
	}
	if missing == "" {
		said := "it is back"
		if s.op.SilentSince.IsZero() {
			said = "it is back without having been seen off (Talos reboots a machine whose drain fails on its way down)"
		}
		seen, _ = s.in.see(name)
		return move{step: stepShutdown, done: fmt.Sprintf("%s was shut down, and %s (boot %s)", name, said, short(seen.BootID))}
	}
	seen, ok := s.in.see(name)
	if ok && seen.BootID == s.op.BootID && s.op.Phase != statefile.OperationShutDown {
		if s.since() >= s.in.Timing.Return {
			return s.fail(name, fmt.Sprintf("%s is still up in the boot that it was asked to end; cancel this operation and sign another", name))
		}
		return move{step: stepShutdown, wait: missing}
	}
	rest := fmt.Sprintf("%s is off: the operation completes when it is back", name)
	if ok {
		rest = fmt.Sprintf("%s was off and comes back: %s", name, missing)
	}
	s.say(name, "ShutDown", rest)
	return move{step: stepShutdown, rest: rest}
}

// resolveShutdown waits until a machine is off: it has given no answer for a while, and somebody else says the same. A machine that can't be
// reached isn't off, and one that is forgotten while it runs would be missed by nobody.
func resolveShutdown(in *Input, op *statefile.OperationState, intent statefile.Intent) ended {
	name := intent.Machine
	seen, ok := in.see(name)
	late := in.age(intent) >= in.Timing.Return
	switch {
	case ok && seen.Mode == talos.ModeConfigured && seen.BootID != "" && seen.BootID != intent.BootID && intent.Outcome != statefile.OutcomeOK && op.SilentSince.IsZero():
		return ended{result: resolveGiven, say: "it runs another boot, and nobody saw it off", failure: fmt.Sprintf("%s runs another boot, and whether it was asked to shut down is not "+
			"known (%s); nobody saw it off: cancel this operation, and sign another if it is to be off", name, nameOr(intent.Message, "who was to ask ended over it"))}
	case ok && seen.Mode == talos.ModeConfigured && seen.BootID != "" && seen.BootID != intent.BootID:
		return ended{result: resolveDone, say: "it runs another boot"}
	case ok && late:
		return ended{result: resolveGiven, say: "it is still up", failure: fmt.Sprintf("%s did not shut down within %s (%s%s); it is not asked twice by one operation: "+
			"look at its console, cancel this operation and sign another", name, in.Timing.Return, stillThere(in, intent), answered(intent))}
	case ok:
		op.SilentSince, op.Heartbeat = time.Time{}, time.Time{}
		return waiting(fmt.Sprintf("%s was asked to shut down at %s: %s", name, intent.At.Format("15:04:05Z"), stillThere(in, intent)))
	}
	off, say := goneSilent(in, op, name, in.Timing.Silent)
	switch {
	case off:
		return ended{result: resolveDone, say: say}
	case late && in.watchedFor(in.Timing.Silent):
		return ended{result: resolveGiven, say: say, failure: fmt.Sprintf("%s was asked to shut down, and that it is off is not certain: %s; look at it: once it is off, or "+
			"is back, resume this operation", name, say)}
	}
	return waiting(fmt.Sprintf("%s was asked to shut down: %s", name, say))
}

// goneSilent says whether a machine that gives no answer is off: it has given none for long, and a second witness agrees. That is
// Kubernetes, which has had no new heartbeat of it all that time; for the only control plane, that Kubernetes is gone with it.
func goneSilent(in *Input, op *statefile.OperationState, name string, long time.Duration) (off bool, say string) {
	if op.SilentSince.IsZero() {
		op.SilentSince = in.now()
	}
	if in.Kubernetes == nil {
		in.wantKubernetes = true
		return false, "it gives no answer"
	}
	node, known := nodeOf(in, name)
	if known && !node.Heartbeat.Equal(op.Heartbeat) {
		lives := !op.Heartbeat.IsZero() // else this is the first heartbeat that is looked at
		op.SilentSince, op.Heartbeat = in.now(), node.Heartbeat
		if lives {
			return false, "it gives no answer, and Kubernetes has heartbeats of it: it runs, and can't be reached from here"
		}
	}
	since := fmt.Sprintf("it has given no answer since %s", op.SilentSince.Format("15:04:05Z"))
	alone := onlyControlPlane(in, name)
	switch problem := in.Kubernetes.Problem; {
	case in.certainly(silentMoment(op), op.SilentSince) < long:
		return false, since
	case problem != "" && alone:
		return true, since + ", and neither has Kubernetes, which ran on it"
	case problem != "":
		return false, since + ", and Kubernetes can't be asked for its heartbeat: " + problem
	case !known:
		return true, since + ", and it has no Node in Kubernetes"
	}
	return true, since + ", and Kubernetes has had no heartbeat of it since"
}

// watchedFor says whether this process has been at it long enough to have seen a silence of that length: one that takes over after the limit of a
// call gives nothing up before.
func (in *Input) watchedFor(silence time.Duration) bool {
	return in.writerAge(in.State) >= silence+in.Timing.Patience
}

// onlyControlPlane says whether a machine is the one control plane that its cluster has.
func onlyControlPlane(in *Input, name string) bool {
	m := in.Cluster.Machine(name)
	return m != nil && isControlPlane(m) && len(wantedControlPlanes(in, nil)) == 1
}
