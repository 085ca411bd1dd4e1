package recovery

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/statefile/storetest"
)

var identity = statefile.ClusterIdentity{Name: "prod", ID: "1f3a9c0d2b4e6f78", BundleFingerprint: "print"}

func handle(t *testing.T, store statefile.Store) *statefile.Cluster {
	t.Helper()
	sealer, err := statefile.NewSealer("cluster", "secret", "")
	require.NoError(t, err)
	cluster, err := statefile.OpenCluster(store, statefile.Options{Name: "prod", Sealer: sealer, WriterID: statefile.NewNonce()})
	require.NoError(t, err)
	return cluster
}

// agent is an agent's handle on a state that it made.
func agent(t *testing.T, store statefile.Store, lock *statefile.Lock) *statefile.Cluster {
	t.Helper()
	cluster := handle(t, store)
	require.NoError(t, cluster.Create(t.Context(), &statefile.State{Cluster: identity, Lock: lock}))
	return cluster
}

func TestALockMakesAgentsLookOnlyAndOustsTheWriter(t *testing.T) {
	store := storetest.NewMemory()
	before := agent(t, store, &statefile.Lock{Holder: "rollout"})
	fence := &StateFence{State: handle(t, store), ID: NewID()}
	require.NoError(t, fence.Take(t.Context(), identity, time.Now()))
	require.NoError(t, fence.Hold(t.Context()))
	require.ErrorIs(t, before.Swap(t.Context(), func(s *statefile.State) error { s.Lock = nil; return nil }), statefile.ErrOtherWriter)
	state, err := before.Load(t.Context())
	require.NoError(t, err)
	require.Equal(t, fence.ID, state.Lock.Holder)

	// One that comes up makes itself the writer, which the lock survives; it is ousted before the next call.
	later := handle(t, store)
	_, err = later.TakeOver(t.Context())
	require.NoError(t, err)
	require.NoError(t, fence.Hold(t.Context()))
	require.ErrorIs(t, later.Swap(t.Context(), func(s *statefile.State) error { s.Lock = nil; return nil }), statefile.ErrOtherWriter)

	require.NoError(t, fence.Release(t.Context(), "it ended", nil))
	state, err = later.Load(t.Context())
	require.NoError(t, err)
	require.Nil(t, state.Lock)
	require.NoError(t, fence.Release(t.Context(), "it ended", nil), "given back already")
}

func TestAStateThatIsNotThereIsMadeWithTheLock(t *testing.T) {
	store := storetest.NewMemory()
	id, intent, err := Standing(t.Context(), handle(t, store))
	require.NoError(t, err)
	require.Empty(t, id)
	require.Nil(t, intent)
	fence := &StateFence{State: handle(t, store), ID: NewID()}
	require.NoError(t, fence.Take(t.Context(), identity, time.Now()))
	state, err := handle(t, store).Load(t.Context())
	require.NoError(t, err)
	require.Equal(t, fence.ID, state.Lock.Holder)
	require.Equal(t, statefile.OriginLost, state.Origin)
	require.Equal(t, identity, state.Cluster)

	// The next process goes on with the same lock.
	id, _, err = Standing(t.Context(), handle(t, store))
	require.NoError(t, err)
	require.Equal(t, fence.ID, id)
	require.NoError(t, (&StateFence{State: handle(t, store), ID: id}).Take(t.Context(), identity, time.Now()))
}

func TestAnotherRecoverysLockAndAnotherBundlesStateStop(t *testing.T) {
	store := storetest.NewMemory()
	agent(t, store, &statefile.Lock{Holder: "recover:0000000000000000"})
	var fenced *FenceError
	require.ErrorAs(t, (&StateFence{State: handle(t, store), ID: NewID()}).Take(t.Context(), identity, time.Now()), &fenced)
	require.ErrorContains(t, fenced, "recover:0000000000000000")
	other := identity
	other.BundleFingerprint = "another"
	require.ErrorAs(t, (&StateFence{State: handle(t, store), ID: "recover:0000000000000000"}).Take(t.Context(), other, time.Now()), &fenced)
	require.ErrorContains(t, fenced, "another secrets bundle")
}

func TestARecoveryWhoseLockIsGoneSendsNothing(t *testing.T) {
	store := storetest.NewMemory()
	agent(t, store, nil)
	fence := &StateFence{State: handle(t, store), ID: NewID()}
	require.NoError(t, fence.Take(t.Context(), identity, time.Now()))
	s := newStage(t, newWorld("cp-1"))
	r, _, ctx := s.process(0)
	r.Fence = fence
	require.NoError(t, s.begin(ctx, r))
	thief := handle(t, store)
	_, err := thief.TakeOver(ctx)
	require.NoError(t, err)
	require.NoError(t, thief.Swap(ctx, func(s *statefile.State) error { s.Lock = nil; return nil }))
	_, err = r.Go(ctx)
	var fenced *FenceError
	require.ErrorAs(t, err, &fenced)
	require.ErrorContains(t, err, "held by nobody by now")
	require.Empty(t, s.accepted)
}
