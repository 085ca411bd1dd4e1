package reconcile

import (
	"fmt"
	"time"

	"ichor.maesh.dev/operation"
	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/statefile"
)

// named is the accepted operation that a resume or cancel names; nil where there is none, and for other operations.
func (d *decision) named(spec schema.OperationSpec) *statefile.OperationState {
	name, digest := "", ""
	switch {
	case spec.Resume != nil:
		name, digest = spec.Resume.Operation, spec.Resume.Digest
	case spec.Cancel != nil:
		name, digest = spec.Cancel.Operation, spec.Cancel.Digest
	default:
		return nil
	}
	if op := accepted(d.next, digest); op != nil && op.Name == name {
		return op
	}
	return nil
}

// checkControl says why a resume or cancel can't be done: it is about what is there now, and never waits for what may come.
func (d *decision) checkControl(spec schema.OperationSpec) *operation.Refusal {
	no := func(reason operation.Reason, format string, args ...any) *operation.Refusal {
		return &operation.Refusal{Reason: reason, Message: fmt.Sprintf(format, args...)}
	}
	op := d.named(spec)
	switch {
	case op == nil:
		return no(refusedOperationUnknown, "%s has no accepted operation %s with that digest; look at ichor op list", d.in.Cluster.Name(), operation.TargetOf(spec))
	case isControl(schema.OperationKind(op.Kind)):
		return no(refusedOperationUnknown, "%s is a %s itself, which is over at once", op.Name, op.Kind)
	case op.Phase.Over():
		return no(refusedIsOver, "%s is %s already", op.Name, op.Phase)
	}
	if r := spec.Resume; r != nil {
		switch {
		case op.Phase != statefile.OperationPaused:
			return no(refusedNotPaused, "%s is %s and not Paused; a resume is signed for the pause that it ends, and never in advance", op.Name, op.Phase)
		case op.Pause != r.Pause:
			return no(refusedOtherPause, "%s is at its pause number %d, and this resume is for number %d; look at why it paused, and write a new one", op.Name, op.Pause, r.Pause)
		}
		return nil
	}
	if op.Marked {
		if why := mayNotTurn(op); why != "" {
			return no(refusedIsRunning, "%s", why)
		}
		return nil
	}
	switch op.Phase {
	case statefile.OperationPending, statefile.OperationPaused:
		return nil
	case statefile.OperationShutDown:
		return no(refusedIsRunning, "%s rests while %s is off, and completes by itself when that is back; there is nothing left to cancel", op.Name, op.Target)
	}
	return no(refusedIsRunning, "%s is Running (%s), and only what is pending or paused can be cancelled", op.Name, nameOr(op.Step, "it starts"))
}

// mayNotTurn says why a restore past its marker can't be cancelled; empty where it can.
func mayNotTurn(op *statefile.OperationState) string {
	switch {
	case op.Cancelling && op.Phase == statefile.OperationPaused:
		return fmt.Sprintf("%s is being cancelled already, and paused over it; resume it, and the cancel goes on", op.Name)
	case op.Cancelling:
		return op.Name + " is being cancelled already"
	case op.Undo == "":
		return fmt.Sprintf("%s can't be cancelled now: the wipe of its control planes was begun and etcd has not recovered "+
			"yet, so that there is no etcd to go back to; let it go on (resume it where it is paused), or end it by hand as its reason says", op.Name)
	}
	return ""
}

// controlWaits is what a resume waits for: the lock that the resumed operation needs.
func (d *decision) controlWaits(spec schema.OperationSpec) string {
	if spec.Resume == nil {
		return ""
	}
	if op := d.named(spec); op != nil && d.locks(op) {
		if l := d.next.Lock; l != nil && l.Holder == operationLock(op.Digest) {
			return "" // a restore past its marker kept it
		}
		return d.lockTaken()
	}
	return ""
}

// control does what a resume or cancel asks for.
func (d *decision) control(op *statefile.OperationState, spec schema.OperationSpec) {
	if refusal := d.checkControl(spec); refusal != nil {
		d.refuseAccepted(op, refusal.Reason, refusal.Message)
		return
	}
	other := d.named(spec)
	if spec.Cancel != nil && other.Marked {
		other.Cancelling = true
		if other.Phase == statefile.OperationPaused {
			goesOn(other, d.operationTime())
		}
		other.Message = fmt.Sprintf("it is cancelled by %s", op.Name)
		d.end(op, statefile.OperationCompleted, fmt.Sprintf("%s is being cancelled; its own status says when the cancel is done", other.Name))
		return
	}
	if spec.Cancel != nil {
		d.end(other, statefile.OperationCancelled, fmt.Sprintf("it was cancelled by %s", op.Name))
		d.end(op, statefile.OperationCompleted, fmt.Sprintf("%s is cancelled", other.Name))
		return
	}
	if why := nameOr(d.mayNotJudge(), d.controlWaits(spec)); why != "" {
		op.Message = why
		return
	}
	if _, refusal := d.verify(other, d.operationTime()); refusal != nil {
		d.refuseAccepted(op, refusal.Reason, fmt.Sprintf("%s can't go on: %s", other.Name, refusal.Message))
		return
	}
	d.verified(other)
	if d.locks(other) && !d.takeLock(other) {
		return
	}
	goesOn(other, d.operationTime())
	other.Message = fmt.Sprintf("it goes on: %s ended its pause number %d", op.Name, other.Pause)
	d.end(op, statefile.OperationCompleted, fmt.Sprintf("%s goes on after its pause number %d", other.Name, other.Pause))
}

// goesOn lets a paused operation run again. A drain begins anew, its time too: what was moved away may be back by now, the machine having
// taken pods meanwhile.
func goesOn(op *statefile.OperationState, now time.Time) {
	op.Phase, op.FailureReason, op.StepSince = statefile.OperationRunning, "", now
	if e := op.Evacuation; e != nil && op.Sent[string(ActReboot)]+op.Sent[string(ActShutdown)]+op.Sent[string(ActResetMachine)] == 0 {
		e.Since, e.Drained, e.Undrained = now, false, ""
	}
}
