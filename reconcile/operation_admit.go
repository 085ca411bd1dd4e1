package reconcile

import (
	"fmt"
	"path"
	"slices"
	"sort"
	"strings"
	"time"

	"ichor.maesh.dev/internal/printable"
	"ichor.maesh.dev/operation"
	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/statefile"
)

const (
	// keptFor is how long an operation stays in the state after it expired.
	keptFor = 30 * 24 * time.Hour
	// mostRefused is how many refusals stand in the state; those beyond are counted.
	mostRefused = 100
	// mostNew is how many verdicts one pass comes to: each is an event of the audit, of which few may wait at a time.
	mostNew = 20
	// mostJudged is how many files one pass judges: each is read and its signature verified, some milliseconds. Who floods the repository
	// with files must not hold the cluster's work up.
	mostJudged = 300
	// mostSkew is how far this machine's clock may be from the store's, mostBehind how far behind the latest time in the state.
	mostSkew   = 5 * time.Minute
	mostBehind = time.Hour
)

// The reasons of the engine itself for refusing an operation, beside those of package operation.
const (
	refusedNoSigners         operation.Reason = "NoSigners"
	refusedSignersUnread     operation.Reason = "SignersUnreadable"
	refusedNotYet            operation.Reason = "NotYet"
	refusedAlreadyRan        operation.Reason = "AlreadyRan"
	refusedCannotBegin       operation.Reason = "CannotBegin"
	refusedTargetUnknown     operation.Reason = "TargetUnknown"
	refusedTargetDiffers     operation.Reason = "TargetDiffers"
	refusedTargetNotApproved operation.Reason = "TargetNotApproved"
	refusedTargetNotManaged  operation.Reason = "TargetNotManaged"
	refusedOperationUnknown  operation.Reason = "OperationUnknown"
	refusedNotPaused         operation.Reason = "NotPaused"
	refusedOtherPause        operation.Reason = "OtherPause"
	refusedIsRunning         operation.Reason = "IsRunning"
	refusedIsOver            operation.Reason = "IsOver"
)

// judgedAgain are the reasons that say nothing of an operation's bytes, only of what stands beside them: a signature that is still to
// come, a signer who isn't allowed yet. Nothing valid was ever seen, so nothing is used up, and they are judged again in each pass.
var judgedAgain = []operation.Reason{
	refusedNoSigners, refusedSignersUnread, operation.SignatureMissing, operation.SignatureMalformed, operation.SignatureWrong,
	operation.NamespaceWrong, operation.KeyUnknown, operation.KeyWeak, operation.KeyUntouched, operation.KeyRevoked, operation.KeyExpired,
	operation.CertificateRefused, operation.CertificateExpired, operation.NamespacesMissing, operation.NamespaceNotAllowed,
	operation.ClusterUnknown, operation.ClusterDiffers, operation.FileNameDiffers,
}

// admit takes in the operation files that this pass found: each is accepted or refused, once.
func (d *decision) admit() {
	d.dropOperations()
	ops := d.in.Operations
	if ops == nil || d.next.Origin == "" {
		return
	}
	if d.next.OperationsFrom == "" {
		if d.next.Origin == statefile.OriginLost && !d.skipExisting() {
			return
		}
		d.next.OperationsFrom = ops.Commit
	}
	if d.skewed() != "" {
		return // a wrong clock would refuse what is right, for good
	}
	d.admitFiles()
	d.endPending()
}

// operationTime is now, never behind the latest time in the state.
func (d *decision) operationTime() time.Time { return stamp(d.in.State.Time(d.in.Now)) }

// skewed says that this machine's clock can't be trusted, in a sentence; empty when it can.
func (d *decision) skewed() string {
	if d.in.Operations == nil {
		return ""
	}
	if behind := d.in.State.Latest.Sub(d.in.Now); behind > mostBehind {
		// In whole hours: the sentence stands in the state, which would be written anew with each second.
		return fmt.Sprintf("the state was written at %s by some clock, and this machine's is more than %dh behind that: correct the clock; if that other one was ahead, "+
			"ichor state accept %s goes on from this one's time", d.in.State.Latest.UTC().Format(time.RFC3339), int(behind/time.Hour), d.in.Cluster.Name())
	}
	if d.in.Operations.Skew.Abs() <= mostSkew {
		return ""
	}
	way := "ahead of"
	if d.in.Operations.Skew < 0 {
		way = "behind"
	}
	return fmt.Sprintf("this machine's clock is about %s %s that of the state's store, and operations start only within %s: correct the clock",
		d.in.Operations.Skew.Abs().Round(time.Minute), way, mostSkew)
}

// dropOperations forgets what is long over.
func (d *decision) dropOperations() {
	now := d.operationTime()
	present := map[string]bool{}
	if ops := d.in.Operations; ops != nil {
		for _, f := range ops.Files {
			present[f.Digest+path.Base(f.shown())] = true
		}
	}
	d.next.Operations = slices.DeleteFunc(d.next.Operations, func(op *statefile.OperationState) bool {
		switch {
		case !op.Phase.Over() || op.Evacuation != nil && !op.Evacuation.Lifted:
			return false
		case op.ExpiresAt.IsZero() && d.in.Operations == nil:
			return false
		case op.ExpiresAt.IsZero() && present[op.Digest+baseOf(op.File)]:
			return false // it would be judged anew, and be an event again
		}
		return now.After(keptUntil(op))
	})
	d.makeRoom(present)
	if len(d.next.Operations) == 0 {
		d.next.Operations = nil
	}
}

// makeRoom forgets refusals of files that are gone, where there is no room for another: what was refused once must not hide, for a month,
// why the next one is.
func (d *decision) makeRoom(present map[string]bool) {
	if d.in.Operations == nil || d.in.Operations.Stale != "" || d.refusals() < mostRefused {
		return
	}
	d.next.Operations = slices.DeleteFunc(d.next.Operations, func(op *statefile.OperationState) bool {
		return neverAccepted(op) && !present[op.Digest+path.Base(op.File)]
	})
}

// neverAccepted says whether a file was refused from the beginning.
func neverAccepted(op *statefile.OperationState) bool {
	return op.Phase == statefile.OperationRefused && op.AcceptedAt.IsZero()
}

// refusals counts the files that were refused from the beginning.
func (d *decision) refusals() (count int) {
	for _, op := range d.next.Operations {
		if neverAccepted(op) {
			count++
		}
	}
	return count
}

// keptUntil is when an operation that is over is forgotten.
func keptUntil(op *statefile.OperationState) time.Time {
	if op.AcceptedAt.IsZero() {
		most, _ := operation.MaxLife(schema.OperationSpec{}, false) // expiresAt of one that was refused may say anything
		if latest := op.FirstSeen.Add(most); op.ExpiresAt.After(latest) {
			return latest.Add(keptFor)
		}
	}
	if op.ExpiresAt.IsZero() {
		return op.FirstSeen.Add(keptFor)
	}
	return op.ExpiresAt.Add(keptFor)
}

// longOver says whether a file is of an operation that would be forgotten again at once.
func longOver(f Submitted, now time.Time) bool {
	return !f.ExpiresAt.IsZero() && now.After(f.ExpiresAt.Add(keptFor))
}

// skipExisting marks what was there when a lost state was made anew, since it may have run; false while that can't be seen.
func (d *decision) skipExisting() bool {
	ops := d.in.Operations
	if ops.Stale != "" {
		return false
	}
	now := d.operationTime()
	for _, f := range ops.Files {
		name := strings.TrimSuffix(f.base(), ".yaml")
		if longOver(f, now) || ops.RunExisting[name] || noted(d.next, f) != nil {
			continue
		}
		op := d.note(f)
		op.Phase, op.FinishedAt = statefile.OperationSkipped, now
		op.Message = fmt.Sprintf("it was there already when the state of this cluster was made anew, so it may have run; write a new operation, or start "+
			"the agent with --run-existing-operations %s before the state is made", name)
	}
	return true
}

// note makes the entry of a file that was not seen before.
func (d *decision) note(f Submitted) *statefile.OperationState {
	name := printable.Text(strings.TrimSuffix(f.base(), ".yaml"))
	op := &statefile.OperationState{Name: name[:min(len(name), 63)], Digest: f.Digest, Source: f.Source, File: f.shown(),
		FirstSeen: d.operationTime(), ExpiresAt: stampOf(f.ExpiresAt)}
	if read, refusal := operation.Read(f.File, f.Data); refusal == nil {
		op.Kind, op.Target = string(read.Spec.Kind), operation.TargetOf(read.Spec)
		if read.Spec.Node != nil {
			op.Action = read.Spec.Node.Action
		}
	}
	d.next.Operations = append(d.next.Operations, op)
	return op
}

func stampOf(t time.Time) time.Time {
	if t.IsZero() {
		return t
	}
	return stamp(t)
}

// admitFiles judges new files, and those again that were refused for what stands beside them. resume and cancel come after what they
// may name.
func (d *decision) admitFiles() {
	now := d.operationTime()
	files := slices.Clone(d.in.Operations.Files)
	sort.SliceStable(files, func(i, j int) bool {
		if a, b := isControl(files[i].Kind), isControl(files[j].Kind); a != b {
			return b
		}
		return files[i].base() < files[j].base()
	})
	refused, taken, more := d.refusals(), 0, 0
	for _, f := range files {
		op := noted(d.next, f)
		switch {
		case op == nil && (longOver(f, now) || taken == mostNew):
			d.plan.Busy = d.plan.Busy || taken == mostNew
		case op == nil:
			admitted, override, refusal, judged := d.verdict(f)
			if !judged {
				continue
			}
			if refusal != nil && refused >= mostRefused {
				more++
				continue
			}
			taken++
			op = d.note(f)
			if refusal != nil {
				refused++
			}
			d.settleFile(op, f, admitted, override, refusal)
		case taken == mostNew:
			d.plan.Busy = true
		case neverAccepted(op) && slices.Contains(judgedAgain, operation.Reason(op.Refusal)):
			admitted, override, refusal, judged := d.verdict(f)
			if !judged || refusal != nil && (string(refusal.Reason) == op.Refusal || refusal.Reason == operation.Expired) {
				continue
			}
			taken++
			d.settleFile(op, f, admitted, override, refusal)
		}
	}
	if taken == mostNew || d.judgements == mostJudged { // not all were judged
		more = max(more, d.next.RefusedMore)
	}
	d.next.RefusedMore = more
}

// verdict is judge, and what this process knows from before it doesn't judge again. Not judged: there was too much to judge in this pass.
func (d *decision) verdict(f Submitted) (admitted operation.Admitted, override bool, refusal *operation.Refusal, judged bool) {
	key := f.key()
	if refusal := d.in.Operations.Refused[key]; refusal != nil {
		return operation.Admitted{}, false, refusal, true
	}
	if d.judgements == mostJudged {
		d.plan.Busy = true
		return operation.Admitted{}, false, nil, false
	}
	d.judgements++
	admitted, override, refusal = d.judge(f)
	if refusal != nil && d.in.Operations.Signers != nil && (refusal.Reason == operation.Malformed || slices.Contains(judgedAgain, refusal.Reason)) {
		if d.plan.Refused == nil {
			d.plan.Refused = map[string]*operation.Refusal{}
		}
		d.plan.Refused[key] = refusal
	}
	return admitted, override, refusal, true
}

// judge says whether a file is accepted.
func (d *decision) judge(f Submitted) (operation.Admitted, bool, *operation.Refusal) {
	ops := d.in.Operations
	override := false
	read, refusal := operation.Read(f.File, f.Data)
	if refusal != nil {
		return operation.Admitted{}, false, refusal
	}
	if named := d.named(read.Spec); named != nil {
		override = named.Override
	}
	if ops.Signers == nil {
		reason := refusedNoSigners
		if ops.Unread {
			reason = refusedSignersUnread
		}
		return operation.Admitted{}, false, &operation.Refusal{Reason: reason, Message: ops.Problem}
	}
	known := operation.Known{Signers: ops.Signers, Clusters: map[string]string{d.in.Cluster.Name(): d.in.Cluster.Object.Spec.ID}, Now: d.operationTime()}
	for _, op := range d.next.Operations {
		if !op.AcceptedAt.IsZero() {
			known.Accepted = append(known.Accepted, operation.Accepted{Over: op.Phase.Over(),
				Identity: operation.Identity{ClusterID: d.in.Cluster.Object.Spec.ID, Name: op.Name, Digest: op.Digest}})
		}
	}
	admitted, refusal := operation.Admit(operation.Submission{File: f.File, Data: f.Data, Signature: f.Signature, Override: override}, known)
	if refusal == nil && !carriedOut(read.Spec) {
		refusal = &operation.Refusal{Reason: refusedNotYet, Message: fmt.Sprintf("this version of Ichor does not carry out operations of kind %s (not-yet)", asked(read.Spec))}
	}
	if refusal == nil && isControl(read.Spec.Kind) {
		refusal = d.checkControl(read.Spec)
	}
	return admitted, override, refusal
}

// settleFile puts a verdict into a file's entry.
func (d *decision) settleFile(op *statefile.OperationState, f Submitted, admitted operation.Admitted, override bool, refusal *operation.Refusal) {
	now := d.operationTime()
	if refusal != nil {
		op.Phase, op.Refusal, op.Message, op.FinishedAt = statefile.OperationRefused, string(refusal.Reason), refusal.Message, now
		return
	}
	spec := admitted.Operation.Spec
	op.Phase, op.Refusal, op.Message, op.FinishedAt = statefile.OperationPending, "", "it is accepted, and waits for its turn", time.Time{}
	op.Source, op.File = f.Source, f.shown()
	op.Data, op.Signature = string(f.Data), string(f.Signature)
	op.Override = override || spec.NeedsOverride()
	op.Signer, op.ExpiresAt, op.AcceptedAt = admitted.Signer.String(), stamp(spec.ExpiresAt), now
	d.verified(op)
	d.plan.Busy = true
}

// endPending ends what has not started and never will: its file was taken away, or its time is over.
func (d *decision) endPending() {
	now := d.operationTime()
	for _, op := range d.next.Operations {
		switch {
		case op.Phase != statefile.OperationPending:
		case d.in.Operations.Gone[placed(op.Source, op.File)]:
			d.end(op, statefile.OperationCancelled, fmt.Sprintf("its file %s was removed before it started", op.File))
		case !now.Before(op.ExpiresAt):
			d.refuseAccepted(op, operation.Expired, fmt.Sprintf("expiresAt was %s, and it had not started (%s); write a new operation",
				op.ExpiresAt.Format(time.RFC3339), nameOr(op.Message, "it waited for its turn")))
		}
	}
}

// spec reads what an accepted operation asks for from the bytes in the state.
func specOf(op *statefile.OperationState) (schema.OperationSpec, *operation.Refusal) {
	read, refusal := operation.Read(op.Name+".yaml", []byte(op.Data))
	if refusal != nil {
		return schema.OperationSpec{}, refusal
	}
	return read.Spec, nil
}

// verify judges the bytes and the signature in the state, which may not be what was accepted: before the start, before each resume, and
// by each new writer. at is the time at which the signer must have had the right.
func (d *decision) verify(op *statefile.OperationState, at time.Time) (schema.OperationSpec, *operation.Refusal) {
	ops := d.in.Operations
	read, refusal := operation.Read(op.Name+".yaml", []byte(op.Data))
	if refusal != nil {
		return schema.OperationSpec{}, refusal
	}
	spec := read.Spec
	if digest := operation.Digest([]byte(op.Data)); digest != op.Digest {
		return spec, &operation.Refusal{Reason: operation.BytesChanged, Message: fmt.Sprintf("the state holds other bytes (digest %.12s) than were accepted (%.12s): "+
			"somebody wrote them there; write a new operation", digest, op.Digest)}
	}
	if refusal := operation.CheckCluster(spec.ClusterRef, map[string]string{d.in.Cluster.Name(): d.in.Cluster.Object.Spec.ID}); refusal != nil {
		return spec, refusal
	}
	override := spec.NeedsOverride()
	if named := d.named(spec); named != nil {
		override = override || named.Override
	}
	signer, refusal := ops.Signers.Verify([]byte(op.Data), []byte(op.Signature), at, operation.Namespaces(spec, override)...)
	if refusal == nil {
		op.Signer, op.Override = signer.String(), override
		op.Kind, op.Target, op.Action = string(spec.Kind), operation.TargetOf(spec), ""
		if spec.Node != nil {
			op.Action = spec.Node.Action
		}
	}
	return spec, refusal
}

// verified notes that an operation was judged by this writer, now.
func (d *decision) verified(op *statefile.OperationState) {
	op.JudgedAt = d.operationTime()
	d.judged(op)
}

// judged notes that this writer verified an operation's signature.
func (d *decision) judged(op *statefile.OperationState) {
	op.JudgedEpoch = d.next.Writer.Epoch
	d.plan.Judged = append(d.plan.Judged, op.Digest)
}
