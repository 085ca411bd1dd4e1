package soak

import (
	"context"
	"fmt"
	"strings"
	"time"

	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/statefile/storetest"
)

// agentStore is the way from a process to the bucket: its calls take time, and end with the process.
type agentStore struct {
	statefile.Store
	p *process
	// at names the bucket: each has calls of its own.
	at string
}

// Location is the same for every agent and every run.
func (s *agentStore) Location() string { return "memory://soak" }

// lane is whose turn a call takes: a lease is renewed beside whatever else the process asks of its store.
func (s *agentStore) lane(key string) string {
	if strings.HasPrefix(key, "leases/") {
		return "lease"
	}
	return s.at
}

// pass lets a call through to the bucket, or says why not.
func (s *agentStore) pass(ctx context.Context, what, key string) error {
	if err := s.p.point(ctx, s.lane(key), "before "+what+" "+key); err != nil {
		return err
	}
	s.p.w.mu.Lock()
	hangs := s.p.host.store == "hangs"
	s.p.w.mu.Unlock()
	if !hangs {
		return nil
	}
	s.p.w.befell("store hangs")
	lost := statefile.ErrUnavailable
	if what == "put" {
		lost = statefile.ErrUnacknowledged
	}
	select {
	case <-ctx.Done():
		return fmt.Errorf("%s %s: %w: %w", what, key, lost, ctx.Err())
	case <-time.After(30 * time.Second):
		return fmt.Errorf("%s %s: %w: no answer", what, key, lost)
	}
}

// Get implements statefile.Store.
func (s *agentStore) Get(ctx context.Context, key, known string) (*statefile.Object, error) {
	if err := s.pass(ctx, "get", key); err != nil {
		return nil, err
	}
	return s.Store.Get(ctx, key, known)
}

// Put implements statefile.Store.
func (s *agentStore) Put(ctx context.Context, key string, data []byte, cond statefile.If) (string, error) {
	if err := s.pass(ctx, "put", key); err != nil {
		return "", err
	}
	etag, err := s.Store.Put(ctx, key, data, cond)
	if dead := s.p.point(ctx, s.lane(key), "after put "+key); dead != nil {
		return "", dead
	}
	return etag, err
}

// Delete implements statefile.Store.
func (s *agentStore) Delete(ctx context.Context, key string) error {
	if err := s.pass(ctx, "delete", key); err != nil {
		return err
	}
	return s.Store.Delete(ctx, key)
}

// List implements statefile.Store.
func (s *agentStore) List(ctx context.Context, prefix, after string, fn func(statefile.ObjectInfo) error) error {
	if err := s.pass(ctx, "list", prefix); err != nil {
		return err
	}
	return s.Store.List(ctx, prefix, after, fn)
}

// watchedStore is the bucket itself: the monitor sees each write that it takes, and whose it was.
type watchedStore struct {
	*storetest.Memory
	p *process
}

// Put implements statefile.Store.
func (s *watchedStore) Put(ctx context.Context, key string, data []byte, cond statefile.If) (string, error) {
	name, isState := strings.CutSuffix(key, "/state.json")
	ctx = context.WithoutCancel(ctx) // what reaches the bucket is done, whoever still waits for the answer
	if !isState {
		return s.Memory.Put(ctx, key, data, cond)
	}
	w := s.p.w
	if w.adapt != nil {
		return s.Memory.Put(ctx, key, data, cond)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	before := w.stateOf(name)
	etag, err := s.Memory.Put(ctx, key, data, cond)
	if err == nil {
		w.monitor.wrote(s.p, name, before, w.stateOf(name))
	}
	return etag, err
}

// Get implements statefile.Store.
func (s *watchedStore) Get(ctx context.Context, key, known string) (*statefile.Object, error) {
	return s.Memory.Get(context.WithoutCancel(ctx), key, known)
}
