package statefile

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
)

// bellKey is the object that is written anew whenever something was put into an inbox. Listing the inbox of each cluster would be paid for,
// every minute and for nothing; this one object costs one conditional read for all of them.
const bellKey = leasesFolder + "/inbox.json"

// ErrNotRung says that an operation is in the inbox, and its agent could not be told: it is found when the inbox is next listed, which is
// within the hour.
var ErrNotRung = errors.New("the agent could not be told")

// ring tells agents that something was put into an inbox. It comes after the files, so that who hears it finds them.
func ring(ctx context.Context, store Store, cluster string) error {
	data, err := json.Marshal(struct {
		SchemaVersion int    `json:"schemaVersion"`
		Cluster       string `json:"cluster"`
		Nonce         string `json:"nonce"`
	}{1, cluster, NewNonce()})
	if err != nil {
		return fmt.Errorf("encoding %s: %w", bellKey, err)
	}
	if _, err := store.Put(ctx, bellKey, data, If{}); err != nil {
		return fmt.Errorf("%w, because %s can't be written: %w", ErrNotRung, bellKey, err)
	}
	return nil
}

// Bell hears that something was put into an inbox, whichever. It is safe for concurrent use.
type Bell struct {
	store Store
	mu    sync.Mutex
	etag  string
	rings uint64
}

// NewBell makes one; it reads nothing yet.
func NewBell(store Store) *Bell { return &Bell{store: store} }

// Rings gives a number that is another one whenever something was put into an inbox since the last call. What the object holds is not looked at: it is sealed
// by nobody, and says no more than that inboxes are to be listed.
func (b *Bell) Rings(ctx context.Context) (uint64, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	object, err := b.store.Get(ctx, bellKey, b.etag)
	switch {
	case errors.Is(err, ErrUnchanged), errors.Is(err, ErrNotFound) && b.etag == "":
	case errors.Is(err, ErrNotFound):
		b.etag = ""
		b.rings++
	case err != nil:
		return 0, fmt.Errorf("asking whether something was put into an inbox: %w", err)
	default:
		b.etag = object.ETag
		b.rings++
	}
	return b.rings, nil
}
