package statefile

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
)

// errLostRace: someone else's write, or an earlier one of this process, stands where this one should. It never leaves the package.
var errLostRace = errors.New("the race for the state was lost")

// Create writes the first state, with this process as writer, if there is none. Its generation lies above any that this machine or the
// audit knows of, and its audit goes on where an older one ended, with an event StateCreated if none is given. [ErrConflict]: there is a
// state now.
func (c *Cluster) Create(ctx context.Context, state *State, events ...Event) error {
	leave, err := c.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	if err := c.canWrite(); err != nil {
		return err
	}
	switch err := c.read(ctx); {
	case err == nil:
		return fmt.Errorf("making the state of %s: %w", c.opts.Name, ErrConflict)
	case !errors.Is(err, ErrNotFound):
		return err
	}
	head, known, err := c.auditTip(ctx, AuditHead{})
	if err != nil {
		return err
	}
	next, err := cloneState(state)
	if err != nil {
		return err
	}
	now := c.opts.Clock.Now().UTC()
	next.SchemaVersion = SchemaVersion
	next.Writer = Writer{ID: c.opts.WriterID, Epoch: 1, Since: now}
	next.Audit = head
	c.flushed = head.Sequence
	generation := max(known, c.water.generation) + 1
	if !slices.ContainsFunc(events, func(event Event) bool { return event.Action == "StateCreated" }) {
		created := Event{Action: "StateCreated", Details: map[string]string{"origin": string(next.Origin)}}
		events = append([]Event{created}, events...)
	}
	err = c.commit(ctx, next, generation, IfAbsent(), events)
	if errors.Is(err, errLostRace) {
		return fmt.Errorf("making the state of %s: %w", c.opts.Name, ErrConflict)
	}
	if err != nil {
		return err
	}
	c.writer, c.lost = next.Writer, nil
	c.flushQuietly(ctx)
	return nil
}

// TakeOver makes this process the writer (epoch+1), whoever was it before, and returns the state. It fails with
// [*StateRolledBackError] when the audit holds events that the state does not know.
func (c *Cluster) TakeOver(ctx context.Context) (*State, error) {
	leave, err := c.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	if err := c.canWrite(); err != nil {
		return nil, err
	}
	for range maxRaces {
		if err := c.read(ctx); err != nil {
			return nil, err
		}
		if c.writer.ID != "" {
			return c.copyState()
		}
		if err := c.checkTip(ctx); errors.Is(err, errLostRace) {
			continue
		} else if err != nil {
			return nil, err
		}
		next, err := c.copyState()
		if err != nil {
			return nil, err
		}
		before := next.Writer
		next.Writer = Writer{ID: c.opts.WriterID, Epoch: before.Epoch + 1, Since: c.opts.Clock.Now().UTC()}
		event := Event{Action: "WriterChanged", Message: fmt.Sprintf("the writer is %s, after %s", next.Writer.ID, before.ID)}
		err = c.commit(ctx, next, c.record.Generation+1, IfMatch(c.etag), []Event{event})
		if errors.Is(err, errLostRace) {
			continue
		}
		if err != nil {
			return nil, err
		}
		c.writer, c.lost = next.Writer, nil
		c.flushQuietly(ctx)
		return c.copyState()
	}
	return nil, fmt.Errorf("taking the state of %s over: others wrote it %d times meanwhile: %w", c.opts.Name, maxRaces, ErrConflict)
}

// Swap changes the state by compare-and-swap. Change gets a copy, and is called again with a fresh one when the swap was lost
// without another writer: it must check there what it rests on, and its error ends the swap. Nothing is sent when nothing
// changed and no event is given. A nil error means that the state in the store is, or was, exactly what change left.
// Change cannot touch the schema version, the writer, the latest time or the audit.
//
// Errors: [ErrNotWriter], [ErrOtherWriter], [ErrUnacknowledged] (it may be written, or be written yet: Load tells), [ErrNoSealer],
// those of Load. After an error that this process got no answer, and found another's write when it looked, its own may have stood
// there before: no error proves that nothing was written.
func (c *Cluster) Swap(ctx context.Context, change func(*State) error, events ...Event) error {
	leave, err := c.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	for range maxRaces {
		if err := c.ready(ctx); err != nil {
			return err
		}
		next, err := c.copyState()
		if err != nil {
			return err
		}
		if err := change(next); err != nil {
			return err
		}
		next.SchemaVersion, next.Writer, next.Latest, next.Audit = SchemaVersion, c.state.Writer, c.state.Latest, c.state.Audit
		content, err := json.Marshal(next)
		if err != nil {
			return fmt.Errorf("encoding the state of %s: %w", c.opts.Name, err)
		}
		if len(events) == 0 && bytes.Equal(content, c.content) {
			return nil
		}
		err = c.commit(ctx, next, c.record.Generation+1, IfMatch(c.etag), events)
		if errors.Is(err, errLostRace) {
			continue
		}
		if err != nil {
			return err
		}
		c.flushQuietly(ctx)
		return nil
	}
	return fmt.Errorf("swapping the state of %s: others wrote it %d times meanwhile: %w", c.opts.Name, maxRaces, ErrConflict)
}

// canWrite says whether this handle could ever write.
func (c *Cluster) canWrite() error {
	switch {
	case c.opts.Sealer == nil:
		return ErrNoSealer
	case c.opts.WriterID == "":
		return fmt.Errorf("the state of %s was opened without a writer's ID: %w", c.opts.Name, ErrNotWriter)
	}
	return nil
}

// ready says whether this process may write, and reads the state if it isn't known.
func (c *Cluster) ready(ctx context.Context) error {
	switch {
	case c.opts.Sealer == nil:
		return ErrNoSealer
	case c.stop != nil:
		return c.stop
	}
	if err := c.water.retry(); err != nil {
		return err
	}
	if c.record == nil && c.writer.ID != "" {
		if err := c.read(ctx); err != nil {
			return err
		}
	}
	switch {
	case c.writer.ID != "":
		return nil
	case c.lost != nil:
		return c.lost
	}
	return fmt.Errorf("the state of %s: %w", c.opts.Name, ErrNotWriter)
}

// commit stamps and writes a state, and adopts it when it is known to be written. When it was lost, what stands there instead is read
// and adopted, and the error is errLostRace, or says that another is the writer.
func (c *Cluster) commit(ctx context.Context, next *State, generation uint64, cond If, events []Event) error {
	now := c.opts.Clock.Now().UTC()
	if now.After(next.Latest) {
		next.Latest = now
	}
	if err := c.makeRoom(ctx, len(events)); err != nil {
		return err
	}
	if err := c.queue(&next.Audit, next.Writer, generation, next.Time(now), events); err != nil {
		return err
	}
	content, err := json.Marshal(next)
	if err != nil {
		return fmt.Errorf("encoding the state of %s: %w", c.opts.Name, err)
	}
	nonce := NewNonce()
	data, err := EncodeRecord(c.opts.Sealer, c.key, generation, nonce, content)
	if err != nil {
		return err
	}
	etag, err := c.store.Put(ctx, c.key, data, cond)
	if err == nil {
		return c.wrote(next, generation, nonce, content, etag)
	}
	if !errors.Is(err, ErrConflict) && !errors.Is(err, ErrUnacknowledged) {
		return fmt.Errorf("the state of %s: %w", c.opts.Name, err)
	}
	return c.resolve(ctx, next, generation, nonce, content, err)
}

// wrote adopts what this process wrote itself.
func (c *Cluster) wrote(next *State, generation uint64, nonce string, content []byte, etag string) error {
	record := &Record{Key: c.key, Generation: generation, Nonce: nonce, Content: content, Checked: true}
	c.know(record, next, content, etag)
	c.water.raiseLater(record)
	return nil
}

// resolve finds out what became of a write that was answered with a conflict or not at all, by reading: only a record with this very
// request's nonce is its own.
func (c *Cluster) resolve(ctx context.Context, next *State, generation uint64, nonce string, content []byte, cause error) error {
	before := ""
	if c.record != nil {
		before = c.record.Nonce
	}
	unknown := fmt.Errorf("the state of %s: %w", c.opts.Name, cause)
	object, err := c.store.Get(ctx, c.key, "")
	if errors.Is(err, ErrNotFound) {
		c.forget()
		if errors.Is(cause, ErrUnacknowledged) && before == "" {
			return unknown
		}
		return fmt.Errorf("the state of %s is gone: %w", c.opts.Name, err)
	}
	if err != nil {
		return fmt.Errorf("the state of %s: %w (%w), and it could not be read back: %w", c.opts.Name, ErrUnacknowledged, cause, err)
	}
	record, state, err := decodeState(c.opts.Sealer, c.key, object.Data)
	if err == nil {
		err = c.water.check(record)
	}
	if err != nil {
		c.forget()
		return err
	}
	switch record.Nonce {
	case nonce:
		return c.wrote(next, generation, nonce, content, object.ETag)
	case before:
		if errors.Is(cause, ErrUnacknowledged) {
			return unknown // not there, and may come yet
		}
	}
	if err := c.adopt(record, state, object.ETag); err != nil {
		return err
	}
	if err := c.water.raise(record); err != nil {
		return err
	}
	return errLostRace
}

// AppendAudit records events and nothing else.
func (c *Cluster) AppendAudit(ctx context.Context, events ...Event) error {
	return c.Swap(ctx, func(*State) error { return nil }, events...)
}

func cloneState(state *State) (*State, error) {
	data, err := json.Marshal(state)
	if err != nil {
		return nil, fmt.Errorf("encoding a state: %w", err)
	}
	var out State
	if err := json.Unmarshal(data, &out); err != nil {
		return nil, fmt.Errorf("copying a state: %w", err)
	}
	return &out, nil
}
