package statefile

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"time"
)

// Once is the content of audit/once/<digest>.json: that an operation was begun, which happens once ever. It is made before the
// operation's first effect, and outlives a state that is lost or put back.
type Once struct {
	Name   string    `json:"name"`
	Digest string    `json:"digest"`
	At     time.Time `json:"at"`
	Writer Writer    `json:"writer"`
}

// AlreadyBegunError says that an operation was begun before, by a state that isn't this one.
type AlreadyBegunError struct {
	Key string
	// Once is who began it and when; zero where the object can't be believed.
	Once Once
	// Forged is why the object can't be believed; empty when it can.
	Forged string
}

func (e *AlreadyBegunError) Error() string {
	if e.Forged != "" {
		return fmt.Sprintf("%s is there and can't be believed (%s), so the operation may have run; find out who can write the bucket, and write a new operation",
			e.Key, e.Forged)
	}
	return fmt.Sprintf("it was begun before, at %s by agent %.12s (%s): an operation runs once; write a new one", e.Once.At.Format(time.RFC3339),
		e.Once.Writer.ID, e.Key)
}

var sha256Name = regexp.MustCompile(`^[0-9a-f]{64}$`)

func onceKey(cluster, digest string) string {
	return fmt.Sprintf("%s/audit/once/%s.json", cluster, digest)
}

// Begin makes the object that says that an operation was begun, unless there is one. Nil: it is there, and was made with this nonce, by
// this call or by an earlier one whose acknowledgement was lost. [*AlreadyBegunError]: another was there first. Any other error: it may
// be there or not; call again with the same nonce.
func (c *Cluster) Begin(ctx context.Context, name, digest, nonce string) error {
	leave, err := c.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	if !sha256Name.MatchString(digest) || nonce == "" {
		return fmt.Errorf("beginning the operation %.80q of %s: its digest %.80q is no SHA-256, or it has no nonce", name, c.opts.Name, digest)
	}
	if err := c.ready(ctx); err != nil {
		return err
	}
	key := onceKey(c.opts.Name, digest)
	content, err := json.Marshal(Once{Name: name, Digest: digest, At: c.opts.Clock.Now().UTC(), Writer: c.writer})
	if err != nil {
		return fmt.Errorf("encoding %s: %w", key, err)
	}
	data, err := EncodeRecord(c.opts.Sealer, key, 1, nonce, content)
	if err != nil {
		return err
	}
	// A store that doesn't honour conditions (--single-agent) would write over the object: it is looked for first.
	if _, err := c.store.Get(ctx, key, ""); err == nil {
		return c.begunBy(ctx, key, nonce, ErrConflict)
	} else if !errors.Is(err, ErrNotFound) {
		return fmt.Errorf("beginning the operation %s of %s: %w", name, c.opts.Name, err)
	}
	_, err = c.store.Put(ctx, key, data, IfAbsent())
	if err == nil {
		return nil
	}
	if !errors.Is(err, ErrConflict) && !errors.Is(err, ErrUnacknowledged) {
		return fmt.Errorf("beginning the operation %s of %s: %w", name, c.opts.Name, err)
	}
	return c.begunBy(ctx, key, nonce, err)
}

// begunBy reads whose object stands where one could not be made.
func (c *Cluster) begunBy(ctx context.Context, key, nonce string, cause error) error {
	object, err := c.store.Get(ctx, key, "")
	if err != nil {
		return fmt.Errorf("%s could not be made (%w) nor read: %w", key, cause, err)
	}
	record, err := DecodeRecord(c.opts.Sealer, key, object.Data)
	var forged *StateForgedError
	switch {
	case errors.As(err, &forged):
		return &AlreadyBegunError{Key: key, Forged: forged.Why}
	case err != nil:
		return err
	case record.Nonce == nonce:
		return nil
	}
	begun := &AlreadyBegunError{Key: key}
	if err := json.Unmarshal(record.Content, &begun.Once); err != nil {
		begun.Forged = err.Error()
	}
	return begun
}
