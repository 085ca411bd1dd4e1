package reconcile

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/talos"
)

// procedureFor gives what carries an operation out; false where nothing does, or where the engine does it itself (resume and cancel).
func procedureFor(spec schema.OperationSpec) (procedure, bool) {
	switch spec.Kind {
	case schema.OperationEtcdBackup:
		return procedure{refuse: refuseBackup, next: nextBackup}, true
	case schema.OperationEtcdRestore:
		return procedure{refuse: refuseRestore, next: nextRestore, lock: true}, true
	case schema.OperationNode:
		return nodeProcedure(spec.Node)
	case schema.OperationAdopt:
		return procedure{refuse: refuseAdopt, next: nextAdopt}, true
	case schema.OperationBootstrap:
		return procedure{refuse: refuseSignedBootstrap, next: nextSignedBootstrap, lock: true}, true
	}
	return procedure{}, false
}

func nodeProcedure(node *schema.NodeOperation) (procedure, bool) {
	if node == nil {
		return procedure{}, false
	}
	switch node.Action {
	case schema.ActionReboot:
		return procedure{refuse: refuseReboot, next: nextReboot, lock: true}, true
	case schema.ActionShutdown:
		return procedure{refuse: refuseShutdown, next: nextShutdown, lock: true}, true
	case schema.ActionRestartService:
		return procedure{refuse: refuseRestartService, next: nextRestartService, lock: true}, true
	case schema.ActionEtcdDefrag:
		return procedure{refuse: refuseDefragment, next: nextDefragment, lock: true}, true
	case schema.ActionEtcdForfeit:
		return procedure{refuse: refuseForfeit, next: nextForfeit, lock: true}, true
	case schema.ActionRemove:
		return procedure{refuse: refuseRemove, next: nextRemove, lock: true}, true
	}
	return procedure{}, false
}

// sent says how many calls of a kind were begun for the operation, those left aside that proved to have begun nothing.
func (s situation) sent(kind ActionKind) int { return s.op.Sent[string(kind)] }

// enoughRequests is how often a call that may be repeated without harm is made before its repeating is slowed down, and may be given up.
const enoughRequests = 3

// repeated is the rule for such a call. The other side refuses it for seconds or minutes while the time isn't right (etcd: "unhealthy cluster"
// until each member was connected for 5 s), and a process that dies over it has used up a request that nobody got. So the number of requests
// alone says nothing: it is over only when there were enough of them and its step is older than the limit. From the third on there is a
// pause, a 40th of the limit longer each time. due is how old the step must be for the next one.
func repeated(asked int, since, limit time.Duration) (due time.Duration, over bool) {
	if asked < enoughRequests {
		return 0, false
	}
	pauses := asked - enoughRequests + 1
	return limit / 40 * time.Duration(pauses*(pauses+1)/2), since >= limit
}

// since is for how long the operation has been at its step.
func (s situation) since() time.Duration {
	if s.op.StepSince.IsZero() {
		return 0
	}
	return s.in.passed(stepMoment(s.op), s.op.StepSince)
}

// say is the verdict on a machine that an operation is about.
func (s situation) say(machine, reason, message string) {
	s.says[machine] = verdict{reason, message}
}

// target finds the machine that an operation names. It is refused where the name and the UUID that were signed are not one machine in
// Git, and where that machine is not Ichor's to change.
func (s situation) target(ref schema.MachineRef) (m *schema.TalosMachine, refuse string) {
	if m, refuse = s.named(ref); refuse != "" {
		return nil, refuse
	}
	if v := s.standing(m); !v.none() {
		return nil, v.message
	}
	return m, ""
}

func (s situation) named(ref schema.MachineRef) (m *schema.TalosMachine, refuse string) {
	m = s.in.Cluster.Machine(ref.Name)
	switch {
	case m == nil:
		return nil, fmt.Sprintf("%s is not in Git (commit %.12s)", ref.Name, s.in.Cluster.Commit)
	case !strings.EqualFold(m.Spec.UUID, ref.UUID):
		return nil, fmt.Sprintf("what was signed is about the machine %s with the UUID %s, and Git declares %s: it is another machine; sign anew for the one that is meant",
			ref.Name, ref.UUID, m.Spec.UUID)
	}
	return m, ""
}

// within looks at a machine that must answer, configured, and be Ichor's own; the sentence says what is in the way.
func (s situation) within(m *schema.TalosMachine) (Seen, string) {
	name := m.Metadata.Name
	seen, ok := s.in.see(name)
	switch {
	case !ok:
		return seen, s.unseen(m).message
	case seen.Mode != talos.ModeConfigured:
		return seen, fmt.Sprintf("%s is in maintenance mode", name)
	case !s.eligible(name):
		return seen, fmt.Sprintf("%s is not Ichor's to change (%s); sign an adopt of it first", name, s.why(name, seen))
	}
	return seen, ""
}

// why says why a machine that answers isn't Ichor's to change.
func (s situation) why(name string, seen Seen) string {
	switch {
	case !marked(s.in, s.next.Machines[name], seen.Config.Owner):
		return "it bears the mark of another Ichor's state"
	case seen.Config.Active == "":
		return "the config that it runs could not be read"
	}
	return "it was configured before Ichor first saw it, and differs from Git"
}

// controlPlane says what speaks against taking a control plane away for a while, by etcd's own answers; wait is what passes.
func (s situation) controlPlane(name string) (refuse, wait string) {
	if s.next.Bootstrap == nil || s.next.Bootstrap.Done.IsZero() {
		return "etcd is not bootstrapped yet, and a control plane is not disturbed before that", ""
	}
	if count := s.in.Cluster.Object.Spec.ControlPlane.Count; len(s.etcd.members) > count {
		return "", fmt.Sprintf("etcd has %d members and count is %d: control planes are not disturbed before one was removed, or count was raised", len(s.etcd.members), count)
	}
	if why := quorumWithout(s.etcd, name); why != "" {
		return why, ""
	}
	if ok, why := s.etcd.healthy(s.wanted); !ok {
		return fmt.Sprintf("%s: %s; wait until etcd is healthy, or mend it", countMembers(s.etcd), why), ""
	}
	return "", ""
}

// countMembers is "2 of 3 etcd members are healthy".
func countMembers(v etcdView) string {
	if !v.known {
		return "how many etcd members are healthy is not known"
	}
	voters, healthy, _ := v.quorum()
	return fmt.Sprintf("%d of %d etcd members are healthy", healthy, voters)
}

// quorumWithout says why etcd would lose its quorum while a machine is away; empty when it wouldn't, or has that one member only.
func quorumWithout(v etcdView, name string) string {
	if !v.known || !v.isVoter(name) {
		return ""
	}
	voters, healthy, need := v.quorum()
	if voters == 1 {
		return ""
	}
	left := healthy
	if v.joined[name] {
		left--
	}
	if left >= need {
		return ""
	}
	return fmt.Sprintf("%d of %d etcd members are healthy; without %s there would be %d, quorum is %d", healthy, voters, name, left, need)
}

// onlyNode says why a machine must not go because its pods would have nowhere to go: no other Ready machine takes any.
func (s situation) onlyNode(name string) string {
	if s.in.aside.takesPods || slices.ContainsFunc(s.in.Cluster.Machines, func(m *schema.TalosMachine) bool {
		return m.Metadata.Name != name && takesPods(s.in, m)
	}) {
		return ""
	}
	return fmt.Sprintf("no other machine is Ready and takes pods, so those on %s would have nowhere to go; bring another one up first, or lift a cordon", name)
}

// takesPods says whether a machine is Ready and takes pods.
func takesPods(in *Input, m *schema.TalosMachine) bool {
	if isControlPlane(m) && !in.Cluster.Object.Spec.ControlPlanesSchedulable() {
		return false
	}
	seen, ok := in.see(m.Metadata.Name)
	return ok && runsReady(seen) && seen.NodeReady == talos.Yes && seen.Unschedulable == talos.No
}

// stepLift is where a cordon that was made for an operation is lifted before the operation pauses.
const stepLift = "lift the cordon"

// fail ends an operation in a pause, its reason being why. What it did for its own sake is taken back first: a machine that was
// cordoned for it takes pods again.
func (s situation) fail(machine, why string) move {
	s.op.FailureReason = why
	return s.failing(machine)
}

// failing goes on with a failure that is on its way to its pause. FailureReason stands in an operation that still runs while what is
// taken back is not.
func (s situation) failing(machine string) move {
	e := s.op.Evacuation
	step := "" // nothing to take back: it stays at the step that failed
	if e != nil {
		step = stepLift
	}
	back := lift(s.in, machine, e)
	late := s.op.Step == stepLift && s.since() >= s.in.Timing.Patience
	switch {
	case back.need:
		return move{step: step, needKubernetes: true}
	case back.act != nil && !late:
		return move{step: step, act: back.act}
	case back.wait != "" && !late:
		return move{step: step, wait: back.wait}
	case !back.done():
		return move{step: step, pause: fmt.Sprintf("%s; its cordon could not be lifted: kubectl uncordon %s", s.op.FailureReason, e.Node)}
	}
	for _, kind := range []ActionKind{ActRestartService, ActDefragment, ActForfeit, ActRemoveMember, ActDeleteNode} {
		delete(s.op.Sent, string(kind)) // these may be asked for again once somebody has looked
	}
	s.op.Answer = ""
	if e != nil && s.sent(ActReboot)+s.sent(ActShutdown)+s.sent(ActResetMachine) == 0 {
		s.op.Evacuation = nil // who resumes it begins with an empty hand
	}
	return move{step: step, pause: s.op.FailureReason}
}

// operationOf finds an operation in a state by its digest.
func operationOf(s *statefile.State, digest string) *statefile.OperationState {
	n := slices.IndexFunc(s.Operations, func(o *statefile.OperationState) bool { return o.Digest == digest })
	if n < 0 {
		return nil
	}
	return s.Operations[n]
}

// cordonOwner is what stands in the annotation of a cordon that is made for an operation.
func cordonOwner(op *statefile.OperationState) string { return "operation/" + op.Name }
