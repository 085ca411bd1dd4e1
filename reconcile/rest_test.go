package reconcile

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clocktesting "k8s.io/utils/clock/testing"

	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/statefile/storetest"
	"ichor.maesh.dev/talos"
)

// restingFleet is an agent over one cluster that needs nothing, and a clock that the test turns.
type restingFleet struct {
	*settledAgent
	world *settledWorld
	store *countingStore
	clock *clocktesting.FakeClock
	// listed counts listings of the inbox.
	listed int
}

func newRestingFleet(t *testing.T) *restingFleet {
	t.Helper()
	f := &restingFleet{store: &countingStore{Store: storetest.NewMemory()}, clock: clocktesting.NewFakeClock(time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC))}
	f.world = newSettledWorld(t, 1, 4, statefile.LocationHash(f.store))
	f.settledAgent = f.world.newAgent(t, f.store, Config{Leases: []ShardLease{&heldLease{token: 1}}, Clock: f.clock, Clocks: statefile.SystemClocks(),
		Bell: statefile.NewBell(f.store).Rings,
		Inbox: func(ctx context.Context, cluster string) ([]statefile.InboxFile, bool, error) {
			f.listed++
			return statefile.ReadInbox(ctx, f.store, cluster)
		}})
	f.settle(t, context.Background())
	for range 5 {
		if f.passes(context.Background()); f.worker().idle {
			return f
		}
	}
	t.Fatal("the passes find something to do again and again")
	return nil
}

func (f *restingFleet) worker() *worker { return f.agent.current()[0] }

func TestAPassThatFindsNothingToDoAsksTheStoreForNothing(t *testing.T) {
	f := newRestingFleet(t)
	reads, writes := f.store.reads.Load(), f.store.writes.Load()
	for range 3 {
		f.clock.Step(15 * time.Second)
		f.passes(context.Background())
	}
	require.Equal(t, reads, f.store.reads.Load())
	f.clock.Step(15 * time.Second)
	f.passes(context.Background())
	require.Equal(t, reads+2, f.store.reads.Load(), "the state and the bell, once a minute")
	require.Equal(t, writes, f.store.writes.Load())
	require.True(t, f.worker().report().Ready.Status)
}

func TestWhatIsToBeDoneRestsOnTheStateInTheStoreAndNotOnMemory(t *testing.T) {
	f := newRestingFleet(t)
	ctx := context.Background()
	bundle := f.world.bundles["c-0"]
	material := bundle.SealingMaterial()
	sealer, err := statefile.NewSealer(material.ClusterID, material.EncryptionSecret, "")
	require.NoError(t, err)
	other, err := statefile.OpenCluster(f.store, statefile.Options{Name: "c-0", Sealer: sealer, WriterID: "a restore by hand"})
	require.NoError(t, err)
	_, err = other.TakeOver(ctx)
	require.NoError(t, err)
	require.NoError(t, other.Swap(ctx, func(s *statefile.State) error {
		s.Lock = &statefile.Lock{Holder: "somebody else", Reason: "a test"}
		return nil
	}))
	writes := f.store.writes.Load()
	f.clock.Step(15 * time.Second)
	f.passes(ctx)
	require.True(t, f.worker().report().Ready.Status, "nothing is to be done, and nobody asked")

	seen := f.world.nodes[bundle.ClusterID()].seen
	seen["w-3"] = talos.Observation{Problem: "no answer"}
	f.clock.Step(15 * time.Second)
	f.passes(ctx)
	require.Equal(t, "OtherWriter", f.worker().report().Ready.Reason, "a machine is away, and that is to be written down")
	require.Equal(t, writes, f.store.writes.Load())
}

func TestAnInboxIsListedWhenSomebodyRang(t *testing.T) {
	f := newRestingFleet(t)
	ctx := context.Background()
	listed := f.listed
	for range 8 {
		f.clock.Step(15 * time.Second)
		f.passes(ctx)
	}
	require.Equal(t, listed, f.listed, "nobody rang")

	require.NoError(t, statefile.PutInbox(ctx, f.store, "c-0", "reboot-w-0", []byte("no operation"), []byte("no signature")))
	f.clock.Step(time.Minute)
	f.passes(ctx)
	require.Equal(t, listed+1, f.listed)
	require.Len(t, f.worker().inbox.files, 1)

	_, err := f.store.Put(ctx, statefile.InboxKey("c-0", "by-hand"), []byte("no operation"), statefile.IfAbsent())
	require.NoError(t, err)
	f.clock.Step(time.Hour)
	f.passes(ctx)
	require.Equal(t, listed+2, f.listed, "files that are put there by hand are found within the hour")
	require.Len(t, f.worker().inbox.files, 2)
}

func TestAnInboxIsListedOftenWhileGitCannotBeRead(t *testing.T) {
	f := newRestingFleet(t)
	f.agent.gitProblem = "the server is away"
	listed := f.listed
	f.passes(context.Background())
	require.Equal(t, listed, f.listed)
	for range 3 {
		f.clock.Step(time.Minute)
		f.passes(context.Background())
	}
	require.Equal(t, listed+3, f.listed)
}
