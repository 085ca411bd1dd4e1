package reconcile

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"ichor.maesh.dev/operation"
	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/statefile"
)

// mostSteps is how many steps of an operation the state names.
const mostSteps = 32

// operate carries operations on: those that are begun first, then the next ones in the order in which they were first seen. It gives the
// one call that is due, if one is.
func (d *decision) operate() *Action {
	if d.in.Operations == nil || d.next.Origin == "" {
		return nil
	}
	for _, op := range d.next.Operations {
		switch op.Phase {
		case statefile.OperationRunning, statefile.OperationShutDown:
			d.goOn(op)
		}
	}
	for _, op := range d.next.Operations {
		if op.Phase == statefile.OperationPending {
			d.start(op)
		}
	}
	for _, op := range d.next.Operations {
		if op.Phase == statefile.OperationPending || op.Phase == statefile.OperationRunning {
			d.plan.Busy = true
		}
	}
	return d.operationAct
}

// start begins an operation if its turn has come.
func (d *decision) start(op *statefile.OperationState) {
	if why := d.mayNotJudge(); why != "" {
		op.Message = why
		return
	}
	spec, refusal := d.verify(op, d.operationTime())
	if refusal == nil {
		refusal = operation.CheckTimes(spec, op.Override, d.operationTime())
	}
	if refusal == nil {
		refusal = d.checkTarget(op, spec)
	}
	if refusal == nil && isControl(spec.Kind) {
		refusal = d.checkControl(spec)
	}
	if refusal == nil && !carriedOut(spec) {
		refusal = &operation.Refusal{Reason: refusedNotYet, Message: fmt.Sprintf("this version of Ichor does not carry out operations of kind %s (not-yet)", asked(spec))}
	}
	if refusal != nil {
		d.refuseAccepted(op, refusal.Reason, refusal.Message)
		return
	}
	if why := d.mayNotStart(op, spec); why != "" {
		// When it was judged is noted when it starts: an operation may wait for days, and each pass would write the state.
		d.judged(op)
		op.Message = why
		return
	}
	d.verified(op)
	d.begin(op)
	d.goOn(op)
}

// mayNotJudge is why nothing can be said of signatures and times at the moment; empty when it can.
func (d *decision) mayNotJudge() string {
	if why := d.skewed(); why != "" {
		return "ClockSkew: " + why
	}
	if d.in.Operations.Signers == nil {
		return d.in.Operations.Problem
	}
	return ""
}

// begin makes an operation a running one, with the cluster lock where it needs that.
func (d *decision) begin(op *statefile.OperationState) {
	op.Phase, op.StartedAt, op.Message = statefile.OperationRunning, d.operationTime(), "it starts"
	if op.OnceNonce == "" {
		op.OnceNonce = d.in.Operations.Nonce + "-" + short(op.Digest)
	}
}

// mayNotStart is what a pending operation waits for; empty when its turn has come.
func (d *decision) mayNotStart(op *statefile.OperationState, spec schema.OperationSpec) string {
	if isControl(spec.Kind) {
		return d.controlWaits(spec)
	}
	if why := d.targetPaused(spec); why != "" {
		return why
	}
	if other := restoring(d.next); other != nil && other != op {
		return fmt.Sprintf("it waits for the restore %s", other.Name)
	}
	proc, _ := procedureFor(spec)
	if !proc.lock {
		_, wait := proc.refuse(d.situation(op, spec))
		return wait
	}
	for _, other := range d.next.Operations {
		if other.Phase == statefile.OperationPaused && d.locks(other) {
			of := fmt.Sprintf("%s --cluster %s --digest %s", other.Name, d.in.Cluster.Name(), other.Digest)
			return fmt.Sprintf("it waits for %s, which is paused (%s): 'ichor run-op cancel %s' ends that one, 'ichor run-op resume %s --pause %d' goes on with it", other.Name,
				other.FailureReason, of, of, other.Pause)
		}
	}
	if why := d.lockTaken(); why != "" {
		if d.in.turn == "" {
			d.in.turn = op.Name
		}
		return why
	}
	_, wait := proc.refuse(d.situation(op, spec))
	return wait
}

// lockTaken says who has the cluster lock, or is about to; empty when it is free.
func (d *decision) lockTaken() string {
	switch l, r := d.next.Lock, d.next.Rollout; {
	case l != nil:
		return fmt.Sprintf("it waits for the cluster lock, which is held by %s (%s)", d.holder(l), l.Reason)
	case r != nil && r.Stopped == "" && r.Phase != phaseAgain && r.Phase != phaseLater:
		return fmt.Sprintf("it waits until the changed config on %s has settled", r.Machine)
	}
	return ""
}

// holder names who holds the lock for people.
func (d *decision) holder(l *statefile.Lock) string {
	if op := d.holding(l); op != nil {
		return "operation " + op.Name
	}
	return l.Holder
}

// holding is the operation that holds the lock, or nil.
func (d *decision) holding(l *statefile.Lock) *statefile.OperationState {
	for _, op := range d.next.Operations {
		if !op.AcceptedAt.IsZero() && operationLock(op.Digest) == l.Holder {
			return op
		}
	}
	return nil
}

// locks says whether an operation needs the cluster lock.
func (d *decision) locks(op *statefile.OperationState) bool {
	spec, refusal := specOf(op)
	if refusal != nil {
		return false
	}
	proc, _ := procedureFor(spec)
	return proc.lock
}

func (d *decision) situation(op *statefile.OperationState, spec schema.OperationSpec) situation {
	return situation{decision: d, op: op, spec: spec}
}

// goOn carries on an operation that is begun.
func (d *decision) goOn(op *statefile.OperationState) {
	spec, goes := d.verifyAgain(op)
	if !goes {
		return
	}
	if !op.Once && !d.beginOnce(op, spec) {
		return
	}
	if isControl(spec.Kind) {
		d.control(op, spec)
		return
	}
	if why := d.targetPaused(spec); why != "" {
		op.Message = why
		return
	}
	if refusal := d.checkTarget(op, spec); refusal != nil {
		if op.Phase == statefile.OperationShutDown && refusal.Reason == refusedTargetUnknown {
			d.end(op, statefile.OperationCompleted, op.Target+" was shut down, and is no longer in Git: nobody waits for it")
			return
		}
		d.pause(op, refusal.Message)
		return
	}
	proc, _ := procedureFor(spec)
	if proc.lock && op.Phase == statefile.OperationRunning && !d.takeLock(op) {
		return
	}
	d.make(op, proc, proc.next(d.situation(op, spec)))
}

// verifyAgain verifies what another writer began; false: it doesn't go on now. Who can seal a state can say in it that this writer
// verified something: what this process remembers counts.
func (d *decision) verifyAgain(op *statefile.OperationState) (schema.OperationSpec, bool) {
	judged := d.in.Operations.Judged[op.Digest] || slices.Contains(d.plan.Judged, op.Digest)
	if judged && op.JudgedEpoch == d.next.Writer.Epoch && operation.Digest([]byte(op.Data)) == op.Digest {
		spec, refusal := specOf(op)
		if refusal != nil {
			d.refuseAccepted(op, refusal.Reason, refusal.Message)
			return spec, false
		}
		return spec, true
	}
	if d.in.Operations.Signers == nil {
		op.Message = "another agent began it, and this one can't verify it: " + d.in.Operations.Problem
		return schema.OperationSpec{}, false
	}
	// The right was judged when it started, or was resumed: that it ended since stops nothing halfway.
	spec, refusal := d.verify(op, op.JudgedAt)
	switch {
	case refusal == nil && !carriedOut(spec):
		op.Message = fmt.Sprintf("another version of Ichor began it, and this one does not carry out operations of kind %s", asked(spec))
		return spec, false
	case refusal == nil:
		d.judged(op)
		return spec, true
	case slices.Contains(rightsGone, refusal.Reason) && op.Cancelling:
		// Somebody who has the right had it cancelled, and half a cancel is worse than a whole one.
		d.judged(op)
		spec, refusal := specOf(op)
		return spec, refusal == nil
	case slices.Contains(rightsGone, refusal.Reason):
		d.pause(op, "another agent began it, and its signer may no longer sign it: "+refusal.Message)
	default:
		d.refuseAccepted(op, refusal.Reason, "the operation that stands in the state as begun does not verify: "+refusal.Message)
	}
	return spec, false
}

// rightsGone are the reasons that say of a good signature that its signer lost the right to it.
var rightsGone = []operation.Reason{operation.KeyUnknown, operation.KeyRevoked, operation.KeyExpired, operation.KeyNotYetValid,
	operation.CertificateRefused, operation.CertificateExpired, operation.CertificateNotYetValid, operation.NamespacesMissing, operation.NamespaceNotAllowed}

// beginOnce settles whether this state is the one that begins the operation, before its first effect; true once it is.
func (d *decision) beginOnce(op *statefile.OperationState, spec schema.OperationSpec) bool {
	ops := d.in.Operations
	switch {
	case op.OnceNonce != "" && ops.Begun[op.Digest] == op.OnceNonce:
		op.Once = true
		return true
	case ops.Taken[op.Digest] != "":
		d.refuseAccepted(op, refusedAlreadyRan, ops.Taken[op.Digest])
		return false
	}
	if why := ops.Unbegun[unbegun(op.Digest, op.Pause)]; why != "" {
		// It would stand there as begun, and nothing else would be done to the cluster, for as long as the store says so.
		if isControl(spec.Kind) {
			d.refuseAccepted(op, refusedCannotBegin, why+"; mend that, and write a new one")
		} else {
			d.pause(op, "nothing was done: "+why+"; mend that, and resume this operation")
		}
		return false
	}
	if proc, is := procedureFor(spec); is {
		why, wait := proc.refuse(d.situation(op, spec))
		switch {
		case why != "":
			d.pause(op, why)
			return false
		case wait != "":
			d.putBack(op, wait)
			return false
		case proc.lock && !d.takeLock(op):
			return false
		}
	}
	d.plan.Begin = append(d.plan.Begin, Beginning{Name: op.Name, Digest: op.Digest, Nonce: op.OnceNonce, Pause: op.Pause})
	d.plan.Busy = true
	return false
}

// takeLock takes the cluster lock for an operation, or finds that it has it.
func (d *decision) takeLock(op *statefile.OperationState) bool {
	holder := operationLock(op.Digest)
	if l := d.next.Lock; l != nil {
		if l.Holder == holder {
			return true
		}
		op.Message = d.lockTaken()
		return false
	}
	if why := d.lockTaken(); why != "" {
		op.Message = why
		return false
	}
	d.next.Lock = &statefile.Lock{Holder: holder, Reason: fmt.Sprintf("%s: %s of %s", op.Name, nameOr(op.Action, op.Kind), op.Target), Since: d.in.now()}
	return true
}

// make does what a procedure decided.
func (d *decision) make(op *statefile.OperationState, proc procedure, m move) {
	d.plan.NeedKubernetes = d.plan.NeedKubernetes || m.needKubernetes && d.in.Kubernetes == nil
	if since := d.in.passed(stepMoment(op), op.StepSince); m.act != nil && !m.act.Kind.cordoning() && op.Step == m.step && since >= d.in.Timing.Return && m.act.Attempt <= 1 {
		spec, _ := specOf(op)
		m = d.situation(op, spec).fail(op.Target, fmt.Sprintf("the %s of %s was decided again and again for %s and never begun; the log of the agent says why: mend that, and "+
			"resume this operation", m.act.Kind, m.act.Machine, since.Round(time.Second)))
	}
	d.step(op, m.step)
	switch {
	case m.act != nil:
		act := *m.act
		act.Operation, act.Lock = op.Digest, ""
		if proc.lock && op.Phase == statefile.OperationRunning {
			act.Lock = operationLock(op.Digest)
		}
		act.Attempt = max(act.Attempt, op.Sent[string(act.Kind)]+1)
		op.Message = act.Why + ownNode(d.next, act)
		if d.operationAct == nil {
			d.operationAct = &act
		}
	case m.done != "":
		phase := statefile.OperationCompleted
		if m.cancelled {
			phase = statefile.OperationCancelled
		}
		d.end(op, phase, m.done)
	case m.pause != "":
		d.pause(op, m.pause)
	case m.rest != "":
		op.Phase, op.Message = statefile.OperationShutDown, m.rest
		releaseLock(d.next, operationLock(op.Digest))
	case m.later != "":
		d.putBack(op, m.later)
	case m.wait != "":
		op.Message = m.wait
	}
}

// putBack lets an operation that has done nothing yet wait for its turn anew, without the lock: others may go first, and it can be cancelled.
func (d *decision) putBack(op *statefile.OperationState, why string) {
	op.Phase, op.Message = statefile.OperationPending, why
	op.Step, op.StepSince, op.Steps = "", time.Time{}, nil
	releaseLock(d.next, operationLock(op.Digest))
}

// ownNode says of a call that takes this agent away, with the machine on which it runs or with the pods on that, what then goes on.
func ownNode(next *statefile.State, act Action) string {
	switch {
	case act.Machine != next.AgentOn:
		return ""
	case act.Kind == ActReboot || act.Kind == ActShutdown:
		return "; this agent runs on it and goes away with it, and the next one goes on from the state"
	case act.Kind == ActCordon || act.Kind == ActEvict:
		return "; this agent runs on it, and its own pod goes too unless a DaemonSet made it: where no other node takes that pod, nothing goes on before kubectl uncordon " + act.Node
	}
	return ""
}

// step notes the step that an operation is at.
func (d *decision) step(op *statefile.OperationState, name string) {
	if name == "" || op.Step == name {
		return
	}
	op.Step, op.StepSince = name, d.operationTime()
	op.Steps = append(op.Steps, statefile.OperationStep{Name: name, At: op.StepSince})
	if len(op.Steps) > mostSteps {
		op.Steps = op.Steps[len(op.Steps)-mostSteps:]
	}
}

// pause stops an operation until a signed resume or cancel. The lock is given back, but by a restore past its marker.
func (d *decision) pause(op *statefile.OperationState, why string) {
	op.Phase, op.FailureReason = statefile.OperationPaused, why
	op.Pause++
	op.Message = why
	if !op.Marked {
		releaseLock(d.next, operationLock(op.Digest))
	}
}

// end ends an operation. What was signed isn't needed any more.
func (d *decision) end(op *statefile.OperationState, phase statefile.OperationPhase, say string) {
	op.Phase, op.Message, op.FinishedAt = phase, say, d.operationTime()
	op.Data, op.Signature, op.FailureReason, op.Answer = "", "", "", ""
	releaseLock(d.next, operationLock(op.Digest))
}

// refuseAccepted refuses what was accepted before: it does not start, and its name stays used up.
func (d *decision) refuseAccepted(op *statefile.OperationState, reason operation.Reason, why string) {
	d.end(op, statefile.OperationRefused, why)
	op.Refusal = string(reason)
}

// targetPaused is the reason why the machine of an operation is left alone; empty when it isn't.
func (d *decision) targetPaused(spec schema.OperationSpec) string {
	ref := spec.Machine()
	if ref == nil {
		return ""
	}
	if m := d.in.Cluster.Machine(ref.Name); m != nil {
		if reason, is := paused(m.Metadata); is {
			return fmt.Sprintf("%s is paused (%s), so nothing is done to it; take the annotation away", ref.Name, nameOr(reason, "no reason given"))
		}
	}
	return ""
}

// checkTarget finds the machine that an operation names, in the revision that is acted on. It must be the one that its signer saw.
func (d *decision) checkTarget(op *statefile.OperationState, spec schema.OperationSpec) *operation.Refusal {
	ref := spec.Machine()
	if ref == nil {
		return d.checkBackup(op, spec)
	}
	m, memory := d.in.Cluster.Machine(ref.Name), d.next.Machines[ref.Name]
	removal := spec.Node != nil && spec.Node.Action == schema.ActionRemove
	if seen, ok := d.in.see(ref.Name); ok && spec.Node != nil && seen.Config.Owner != "" && seen.Config.Owner != d.in.Mark {
		return &operation.Refusal{Reason: refusedTargetNotManaged, Message: fmt.Sprintf("%s bears the mark of another Ichor's state (%s), and is never touched; adopt it "+
			"first, and write a new operation", ref.Name, seen.Config.Owner)}
	}
	switch {
	case m == nil && removal && memory != nil:
		if !strings.EqualFold(memory.UUID, ref.UUID) {
			return differs(ref, memory.UUID, "the state remembers")
		}
		return nil
	case m == nil:
		return &operation.Refusal{Reason: refusedTargetUnknown, Message: fmt.Sprintf("it is about %s, and the revision that is acted on (%.12s) has no such machine; "+
			"write a new operation once it has", ref.Name, d.in.Cluster.Commit)}
	case !strings.EqualFold(m.Spec.UUID, ref.UUID):
		return differs(ref, m.Spec.UUID, "Git declares")
	case removal:
		return nil
	case !m.Spec.Approved:
		return &operation.Refusal{Reason: refusedTargetNotApproved, Message: fmt.Sprintf("%s is not approved, and is never touched; set spec.approved: true, and write "+
			"a new operation", ref.Name)}
	case spec.Node != nil && op.Phase == statefile.OperationPending && (memory == nil || !memory.Managed):
		return &operation.Refusal{Reason: refusedTargetNotManaged, Message: fmt.Sprintf("%s is not managed by this Ichor (%s); adopt it first, and write a new operation",
			ref.Name, nameOr(d.in.remembered(ref.Name).Ready.Reason, "it was not configured by it"))}
	}
	return nil
}

// checkBackup finds the backup of which an operation wants a snapshot.
func (d *decision) checkBackup(op *statefile.OperationState, spec schema.OperationSpec) *operation.Refusal {
	if spec.EtcdBackup == nil || op.Phase != statefile.OperationPending || d.situation(op, spec).backup() != nil {
		return nil
	}
	return &operation.Refusal{Reason: refusedTargetUnknown, Message: fmt.Sprintf("it is about the backup %s, and the revision that is acted on (%.12s) has no such "+
		"TalosEtcdBackup, or this agent takes no backups; write a new operation once it has", spec.EtcdBackup.BackupRef.Name, d.in.Cluster.Commit)}
}

func differs(ref *schema.MachineRef, uuid, who string) *operation.Refusal {
	return &operation.Refusal{Reason: refusedTargetDiffers, Message: fmt.Sprintf("it is about the machine %s with the UUID %s, and %s the UUID %s for %s: it was signed for "+
		"another machine; write a new operation", ref.Name, ref.UUID, who, nameOr(uuid, "(none)"), ref.Name)}
}

// pausedOperations says of each operation that waits for a person why it does.
func pausedOperations(s *statefile.State) []string {
	var list []string
	for _, op := range s.Operations {
		if op.Phase == statefile.OperationPaused {
			list = append(list, fmt.Sprintf("operation %s is paused (%s)", op.Name, op.FailureReason))
		}
	}
	return list
}
