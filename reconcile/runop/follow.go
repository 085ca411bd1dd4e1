package runop

import (
	"context"
	"fmt"
	"time"

	"k8s.io/utils/clock"

	"ichor.maesh.dev/reconcile"
	"ichor.maesh.dev/statefile"
)

// followEvery is how often is looked how an operation stands.
const followEvery = 2 * time.Second

// Look gives how a cluster stands: from the state, or from an agent.
type Look func(ctx context.Context) (*reconcile.ClusterStatus, error)

// Follower tells how an operation goes on until it is over, rests or is paused.
type Follower struct {
	Look  Look
	Clock clock.WithTicker
	// Say is given each line, with the time that it tells of.
	Say func(at time.Time, text string)
}

// followed is what was said of an operation.
type followed struct {
	seen                 bool
	steps                int
	phase, step, message string
	waits, trouble       string
}

// Follow looks again and again at the operation with a digest, and says what changed. It ends when nothing more happens without a
// person: the operation is over, Paused, or rests because its machine is off. The error is the context's.
func (f Follower) Follow(ctx context.Context, digest string) (*reconcile.OperationStatus, error) {
	ticker := f.Clock.NewTicker(followEvery)
	defer ticker.Stop()
	told := &followed{}
	for {
		status, err := f.Look(ctx)
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case err != nil:
			f.once(&told.trouble, err.Error())
		default:
			told.trouble = ""
			if op := f.tell(told, status, digest); op != nil {
				return op, nil
			}
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-ticker.C():
		}
	}
}

// once says a sentence unless it was the last of its kind.
func (f Follower) once(last *string, text string) {
	if *last != text && text != "" {
		f.Say(f.Clock.Now(), text)
	}
	*last = text
}

// tell says what is new, and gives the operation where nothing more happens by itself.
func (f Follower) tell(told *followed, status *reconcile.ClusterStatus, digest string) *reconcile.OperationStatus {
	op := find(status, digest)
	if op == nil {
		f.once(&told.waits, unseen(status))
		return nil
	}
	phase := statefile.OperationPhase(op.Phase)
	runs := phase == statefile.OperationRunning
	for n, step := range op.Steps {
		// The last step of what runs is in its sentence.
		if n >= told.steps && (n < len(op.Steps)-1 || !runs || step.Name != op.Step) {
			f.Say(timeOf(step.At, f.Clock), "step: "+step.Name)
		}
	}
	changed := !told.seen || op.Phase != told.phase || op.Step != told.step || op.Message != told.message
	if changed {
		at := f.Clock.Now()
		if n := len(op.Steps); n > told.steps && runs {
			at = timeOf(op.Steps[n-1].At, f.Clock)
		}
		f.Say(at, Sentence(*op))
	}
	told.seen, told.steps, told.phase, told.step, told.message = true, len(op.Steps), op.Phase, op.Step, op.Message
	if phase.Over() || phase == statefile.OperationPaused || phase == statefile.OperationShutDown {
		return op
	}
	return nil
}

func timeOf(text string, clk clock.PassiveClock) time.Time {
	if at, err := time.Parse(time.RFC3339, text); err == nil {
		return at
	}
	return clk.Now()
}

// find gives the operation with a digest, or nil.
func find(status *reconcile.ClusterStatus, digest string) *reconcile.OperationStatus {
	for n := range status.Operations {
		if status.Operations[n].Digest == digest {
			return &status.Operations[n]
		}
	}
	return nil
}

// unseen says why an operation may not be there yet.
func unseen(status *reconcile.ClusterStatus) string {
	const waits = "no agent has seen the operation yet"
	switch {
	case status.Revision.Problem != "":
		return fmt.Sprintf("%s: the repository can't be read: %s", waits, status.Revision.Problem)
	case status.Revision.Observed != "":
		return fmt.Sprintf("%s; the newest commit that one saw is %.12s", waits, status.Revision.Observed)
	}
	return waits
}

// Sentence says in one line how an operation stands.
func Sentence(op reconcile.OperationStatus) string {
	text := op.Phase
	if op.Step != "" && !statefile.OperationPhase(op.Phase).Over() {
		text += " (" + op.Step + ")"
	}
	why := op.Message
	if op.FailureReason != "" && op.FailureReason != op.Message {
		why = op.FailureReason
		if op.Phase == string(statefile.OperationRefused) && op.Message != "" {
			why = op.FailureReason + ": " + op.Message
		}
	}
	if why != "" {
		text += ": " + why
	}
	return text
}
