package statefile_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/statefile/storetest"
)

// stuckStore answers no read until it is let go.
type stuckStore struct {
	statefile.Store
	reads, answer chan struct{}
}

func (s *stuckStore) Get(ctx context.Context, key, known string) (*statefile.Object, error) {
	if s.reads != nil {
		close(s.reads)
		s.reads = nil
		<-s.answer
	}
	return s.Store.Get(ctx, key, known)
}

func TestACallThatWaitsForAnotherWaitsNoLongerThanItsContext(t *testing.T) {
	stuck := &stuckStore{Store: storetest.NewMemory(), answer: make(chan struct{})}
	cluster := create(t, stuck, "agent-1")
	reads := make(chan struct{})
	stuck.reads = reads
	loaded := make(chan error, 1)
	go func() {
		_, err := cluster.Load(context.WithoutCancel(t.Context()))
		loaded <- err
	}()
	<-reads
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, cluster.Swap(ctx, observe("c2")), context.Canceled)
	_, err := cluster.TakeOver(ctx)
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, cluster.Begin(ctx, "a", "b", "c"), context.Canceled)
	close(stuck.answer)
	require.NoError(t, <-loaded)
	require.NotEqual(t, "c2", load(t, cluster).Revision.Observed, "nothing was done")
	require.NoError(t, cluster.Swap(t.Context(), observe("c2")), "whoever waited in vain holds nobody up")
}
