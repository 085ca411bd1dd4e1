package statefile

import (
	"context"
	"fmt"
)

// AtOnce is how many calls an agent has on its clusters' states at one time. Their answers take some ten milliseconds, so that a thousand clusters
// have theirs within a second.
const AtOnce = 64

// inTurn is a store on which a bounded number of calls go on at one time.
type inTurn struct {
	Store
	turns chan struct{}
}

// InTurn gives the same store for calls that have their turn: at most atOnce reads, writes and deletions go on at one time, and the others wait,
// as long as their contexts last and before any deadline of the store's own begins. A commit wakes every cluster of an agent at once, and
// a thousand requests side by side are more than S3 servers answer. Leases are kept over the store itself: a renewal waits for nobody.
//
// Listings don't wait: what is called with each object may itself read.
func InTurn(store Store, atOnce int) Store {
	return &inTurn{Store: store, turns: make(chan struct{}, max(1, atOnce))}
}

// take waits for a turn; give it back by calling done.
func (s *inTurn) take(ctx context.Context, verb, key string) (done func(), err error) {
	select {
	case s.turns <- struct{}{}:
		return func() { <-s.turns }, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("%s %s was not begun, for other calls had their turn: %w: %w", verb, key, ErrUnavailable, ctx.Err())
	}
}

func (s *inTurn) Get(ctx context.Context, key, known string) (*Object, error) {
	done, err := s.take(ctx, "reading", key)
	if err != nil {
		return nil, err
	}
	defer done()
	return s.Store.Get(ctx, key, known)
}

func (s *inTurn) Put(ctx context.Context, key string, data []byte, cond If) (string, error) {
	done, err := s.take(ctx, "writing", key)
	if err != nil {
		return "", err
	}
	defer done()
	return s.Store.Put(ctx, key, data, cond)
}

func (s *inTurn) Delete(ctx context.Context, key string) error {
	done, err := s.take(ctx, "deleting", key)
	if err != nil {
		return err
	}
	defer done()
	return s.Store.Delete(ctx, key)
}
