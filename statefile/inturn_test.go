package statefile_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/statefile/storetest"
)

// gauged counts how many calls go on, each of which ends when let says so.
type gauged struct {
	*storetest.Memory
	now, most, calls atomic.Int64
	let              chan struct{}
}

func (g *gauged) Get(ctx context.Context, key, known string) (*statefile.Object, error) {
	g.call()
	return g.Memory.Get(ctx, key, known)
}

func (g *gauged) Put(ctx context.Context, key string, data []byte, cond statefile.If) (string, error) {
	g.call()
	return g.Memory.Put(ctx, key, data, cond)
}

func (g *gauged) Delete(ctx context.Context, key string) error {
	g.call()
	return g.Memory.Delete(ctx, key)
}

func (g *gauged) call() {
	g.calls.Add(1)
	now := g.now.Add(1)
	for most := g.most.Load(); now > most && !g.most.CompareAndSwap(most, now); most = g.most.Load() {
	}
	<-g.let
	g.now.Add(-1)
}

func TestAThousandCallsHaveTheirTurnsAFewAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := &gauged{Memory: storetest.NewMemory(), let: make(chan struct{})}
		store := statefile.InTurn(inner, 8)
		var all sync.WaitGroup
		for n := range 1000 {
			all.Go(func() {
				var err error
				switch key := fmt.Sprintf("clusters/c-%d/state.json", n); n % 3 {
				case 0:
					_, err = store.Put(t.Context(), key, []byte("{}"), statefile.IfAbsent())
				case 1:
					err = store.Delete(t.Context(), key)
				default:
					if _, err = store.Get(t.Context(), key, ""); err != nil {
						require.ErrorIs(t, err, statefile.ErrNotFound)
						err = nil
					}
				}
				require.NoError(t, err)
			})
		}
		synctest.Wait()
		require.EqualValues(t, 8, inner.now.Load())
		require.NoError(t, store.List(t.Context(), "clusters/", "", func(statefile.ObjectInfo) error { return nil }), "a listing waits for no turn")

		impatient, cancel := context.WithCancel(t.Context())
		failed := make(chan error)
		for _, call := range []func() error{
			func() error { _, err := store.Get(impatient, "late", ""); return err },
			func() error { _, err := store.Put(impatient, "late", []byte("x"), statefile.IfAbsent()); return err },
			func() error { return store.Delete(impatient, "late") },
		} {
			go func() { failed <- call() }()
		}
		synctest.Wait()
		cancel()
		for range 3 {
			err := <-failed
			require.ErrorIs(t, err, context.Canceled)
			require.ErrorIs(t, err, statefile.ErrUnavailable)
			require.NotErrorIs(t, err, statefile.ErrUnacknowledged, "nothing was sent")
		}
		close(inner.let)
		all.Wait()
		require.EqualValues(t, 1000, inner.calls.Load())
		require.LessOrEqual(t, inner.most.Load(), int64(8))
		require.Len(t, inner.Snapshot(), 334)
	})
}
