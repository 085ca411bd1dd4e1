package statefile

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// acceptStep is how far an acceptance lifts the generation above the highest that is known of here, so that it also lies above
// what other agents have seen and nobody here knows of.
const acceptStep = 1_000_000

// Acceptance says what Accept did.
type Acceptance struct {
	// Found is the generation of the state that was accepted, Highest the highest that was known of, Now the one it has now.
	Found, Highest, Now uint64
}

// Accept takes the state that is there as the one to go on from, although it was rolled back: it lifts its generation above every
// one that was seen, and puts the end of the audit back into it. A latest time ahead of the clock here is put to now. The writer stays who it was. By says who decided it; both go
// into the audit. A forged state can't be accepted.
func (c *Cluster) Accept(ctx context.Context, by, reason string) (*Acceptance, error) {
	leave, err := c.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	if c.opts.Sealer == nil {
		return nil, ErrNoSealer
	}
	object, err := c.store.Get(ctx, c.key, "")
	if err != nil {
		return nil, fmt.Errorf("accepting the state of %s: %w", c.opts.Name, err)
	}
	record, state, err := decodeState(c.opts.Sealer, c.key, object.Data)
	if err != nil {
		return nil, err
	}
	head, named, err := c.auditTip(ctx, state.Audit)
	if err != nil {
		return nil, err
	}
	accepted := &Acceptance{Found: record.Generation, Highest: max(record.Generation, c.water.generation, named)}
	accepted.Now = accepted.Highest + acceptStep

	c.forget()
	c.stop = nil
	if err := c.adopt(record, state, object.ETag); err != nil {
		return nil, err
	}
	next, err := c.copyState()
	if err != nil {
		return nil, err
	}
	next.Audit = head
	details := map[string]string{"by": by, "found": fmt.Sprint(accepted.Found), "highest": fmt.Sprint(accepted.Highest)}
	if now := c.opts.Clock.Now().UTC(); next.Latest.After(now) {
		// Some clock was ahead once, and as long as that stands every operation is expired.
		details["latest"] = next.Latest.Format(time.RFC3339)
		next.Latest = now
	}
	pauseOperations(next)
	if head.Sequence > state.Audit.Sequence {
		c.flushed = head.Sequence // what waited in the state is among the objects, or lost to another chain
	}
	event := Event{Action: "StateAccepted", Message: reason, Details: details}
	err = c.commit(ctx, next, accepted.Now, IfMatch(object.ETag), []Event{event})
	if errors.Is(err, errLostRace) {
		return nil, fmt.Errorf("accepting the state of %s: it was written meanwhile; look at it again: %w", c.opts.Name, ErrConflict)
	}
	if err != nil {
		return nil, err
	}
	if err := c.flush(ctx); err != nil {
		return nil, fmt.Errorf("the state of %s is accepted, but not yet in the audit: %w", c.opts.Name, err)
	}
	return accepted, nil
}

// pauseOperations stops what ran when the state was as it is now: nobody knows how far it came since, so a person looks first. Its lock
// is given back, but by a restore past its marker, which keeps it until it is over.
func pauseOperations(state *State) {
	for _, op := range state.Operations {
		if op.Phase != OperationRunning {
			continue
		}
		op.Phase, op.Pause = OperationPaused, op.Pause+1
		op.FailureReason = "the state was put back to a time when this operation ran, and accepted: how far it came since is not in it; look at " +
			op.Target + " before you resume it"
		op.Message = op.FailureReason
		if state.Lock != nil && state.Lock.Holder == op.lockHolder() && !op.Marked {
			state.Lock = nil
		}
	}
}
