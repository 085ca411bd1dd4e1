package statefile

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"time"
)

// maxPending bounds the events that wait in the state while their objects can't be written. One write may bring more, if none waits.
const maxPending = 100

// quietFlush bounds how long a swap stays for its events.
const quietFlush = 2 * time.Second

// Event is one entry of a cluster's audit. The caller fills in what happened, from Action on; the rest is filled in when it is
// recorded.
type Event struct {
	Sequence uint64 `json:"sequence"`
	// Previous is the SHA-256 (hex) of the content of the event before, empty for the first.
	Previous string    `json:"previous,omitempty"`
	At       time.Time `json:"at"`
	Writer   Writer    `json:"writer"`
	// StateGeneration is the generation of the state that the event came with.
	StateGeneration uint64 `json:"stateGeneration"`

	// Action is what it is about, in CamelCase ("WriterChanged", "StateAccepted", ...).
	Action  string `json:"action"`
	Machine string `json:"machine,omitempty"`
	// Operation is the digest of the operation it belongs to.
	Operation string `json:"operation,omitempty"`
	// Message is a sentence, scrubbed.
	Message string            `json:"message,omitempty"`
	Details map[string]string `json:"details,omitempty"`
}

// auditPrefix starts the keys of a cluster's events, and of nothing else: what is beside them (audit/once) starts with a letter.
func auditPrefix(cluster string) string { return cluster + "/audit/0" }

func auditKey(cluster string, sequence uint64) string {
	return fmt.Sprintf("%s/audit/%010d.json", cluster, sequence)
}

var auditName = regexp.MustCompile(`/audit/0[0-9]{9}\.json$`)

func hashOf(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}

// queue puts events at the end of the chain, inside the state that is about to be written.
func (c *Cluster) queue(head *AuditHead, writer Writer, generation uint64, at time.Time, events []Event) error {
	var pending []PendingEvent
	for _, waiting := range head.Pending {
		if sequenceOf(waiting.Content) > c.flushed {
			pending = append(pending, waiting)
		}
	}
	if len(events) > 0 && len(pending) > 0 && len(pending)+len(events) > maxPending {
		return fmt.Errorf("%d events of %s wait for the audit, which can't be written (%s); nothing that needs an event is done until it can",
			len(pending), c.opts.Name, auditKey(c.opts.Name, sequenceOf(pending[0].Content)))
	}
	for _, event := range events {
		event.Sequence, event.Previous = head.Sequence+1, head.Hash
		event.At, event.Writer, event.StateGeneration = at, writer, generation
		content, err := json.Marshal(event)
		if err != nil {
			return fmt.Errorf("encoding an audit event of %s: %w", c.opts.Name, err)
		}
		pending = append(pending, PendingEvent{Nonce: NewNonce(), Content: content})
		head.Sequence, head.Hash = event.Sequence, hashOf(content)
	}
	head.Pending = pending
	return nil
}

// makeRoom writes the events that wait in the state, when there is no room for more. Each process that takes over and ends leaves its own
// there, written or not: only who writes the next state could take them out.
func (c *Cluster) makeRoom(ctx context.Context, more int) error {
	if c.state == nil || more == 0 || len(c.state.Audit.Pending)+more <= maxPending {
		return nil
	}
	if err := c.flush(ctx); err != nil {
		return fmt.Errorf("%d events of %s wait for the audit, which can't be written; nothing that needs an event is done until it can: %w",
			len(c.state.Audit.Pending), c.opts.Name, err)
	}
	return nil
}

// sequenceOf is the number of an event that this program, or one like it, wrote into a sealed state.
func sequenceOf(content []byte) uint64 {
	var event struct {
		Sequence uint64 `json:"sequence"`
	}
	_ = json.Unmarshal(content, &event)
	return event.Sequence
}

// FlushAudit writes the events that still wait in the state into their objects. Every write of the state does the same.
func (c *Cluster) FlushAudit(ctx context.Context) error {
	leave, err := c.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	if err := c.ready(ctx); err != nil {
		return err
	}
	return c.flush(ctx)
}

// flushQuietly is flush after a write of the state, which succeeded whatever becomes of the events: they wait in it.
func (c *Cluster) flushQuietly(ctx context.Context) {
	// Who swapped may be in a hurry (an intent goes stale), and the events are safe where they are.
	ctx, cancel := context.WithTimeout(ctx, quietFlush)
	defer cancel()
	err := c.flush(ctx)
	var rolledBack *StateRolledBackError
	var forged *StateForgedError
	if errors.As(err, &rolledBack) || errors.As(err, &forged) {
		c.stop = err
	}
}

// flush makes an object of each event that has none. An event is created once; that it is there already, byte for byte, is as good.
func (c *Cluster) flush(ctx context.Context) error {
	for _, waiting := range c.state.Audit.Pending {
		sequence := sequenceOf(waiting.Content)
		if sequence <= c.flushed {
			continue
		}
		key := auditKey(c.opts.Name, sequence)
		data, err := EncodeRecord(c.opts.Sealer, key, sequence, waiting.Nonce, waiting.Content)
		if err != nil {
			return err
		}
		if err := c.create(ctx, key, data); err != nil {
			return err
		}
		c.flushed = sequence
	}
	return nil
}

func (c *Cluster) create(ctx context.Context, key string, data []byte) error {
	_, err := c.store.Put(ctx, key, data, IfAbsent())
	if err == nil {
		return nil
	}
	if !errors.Is(err, ErrConflict) && !errors.Is(err, ErrUnacknowledged) {
		return fmt.Errorf("recording an audit event of %s: %w", c.opts.Name, err)
	}
	object, readErr := c.store.Get(ctx, key, "")
	if readErr != nil {
		return fmt.Errorf("recording an audit event of %s: %w (reading it back: %w)", c.opts.Name, err, readErr)
	}
	if bytes.Equal(object.Data, data) {
		return nil
	}
	if _, err := DecodeRecord(c.opts.Sealer, key, object.Data); err != nil {
		return err
	}
	return &StateRolledBackError{Cluster: c.opts.Name, Why: fmt.Sprintf("the audit already holds another event %s", key)}
}

// checkTip says whether the audit holds events that the state, as it was read last, does not know. errLostRace: the state has
// moved since.
func (c *Cluster) checkTip(ctx context.Context) error {
	newest, err := newestEvent(ctx, c.store, c.opts.Name, c.state.Audit.Sequence)
	if err != nil || newest == "" {
		return err
	}
	before := c.record.Nonce
	if err := c.read(ctx); err != nil {
		return err
	}
	if c.record.Nonce != before {
		return errLostRace
	}
	return &StateRolledBackError{Cluster: c.opts.Name,
		Why: fmt.Sprintf("the audit holds %s, and the state knows of %d events only", newest, c.state.Audit.Sequence)}
}

// newestEvent is the key of the last event after a number, or empty.
func newestEvent(ctx context.Context, store Store, cluster string, after uint64) (string, error) {
	newest := ""
	err := store.List(ctx, auditPrefix(cluster), auditKey(cluster, after), func(info ObjectInfo) error {
		if auditName.MatchString(info.Key) {
			newest = info.Key
		}
		return nil
	})
	if err != nil {
		return "", fmt.Errorf("looking for the newest audit event of %s: %w", cluster, err)
	}
	return newest, nil
}

// auditTip is the end of the audit as its objects have it, and the state's generation that the last event names; head when the
// objects know nothing newer.
func (c *Cluster) auditTip(ctx context.Context, head AuditHead) (AuditHead, uint64, error) {
	newest, err := newestEvent(ctx, c.store, c.opts.Name, head.Sequence)
	if err != nil || newest == "" {
		return head, 0, err
	}
	event, content, err := readEvent(ctx, c.store, c.opts.Sealer, newest)
	if err != nil {
		return AuditHead{}, 0, err
	}
	return AuditHead{Sequence: event.Sequence, Hash: hashOf(content)}, event.StateGeneration, nil
}

func readEvent(ctx context.Context, store Store, sealer *Sealer, key string) (*Event, []byte, error) {
	object, err := store.Get(ctx, key, "")
	if err != nil {
		return nil, nil, fmt.Errorf("reading an audit event: %w", err)
	}
	record, err := DecodeRecord(sealer, key, object.Data)
	if err != nil {
		return nil, nil, err
	}
	var event Event
	if err := decodeStrict(record.Content, &event); err != nil {
		return nil, nil, fmt.Errorf("%s holds what this ichor does not know (%w): %w", key, err, ErrNewerSchema)
	}
	if event.Sequence != record.Generation {
		return nil, nil, &StateForgedError{Key: key, Why: fmt.Sprintf("it says that it is event %d", event.Sequence)}
	}
	return &event, record.Content, nil
}
