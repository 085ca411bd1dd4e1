package reconcile

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clocktesting "k8s.io/utils/clock/testing"

	"ichor.maesh.dev/operation"
	"ichor.maesh.dev/schema"
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

func TestAFileOfAFullInboxThatWasNotReadIsNotTakenForOneThatIsGone(t *testing.T) {
	f := newRestingFleet(t)
	w := f.worker()
	full := true
	w.agent.config.Inbox = func(context.Context, string) ([]statefile.InboxFile, bool, error) { return nil, full, nil }
	head, _ := w.agent.head()
	op := &statefile.OperationState{Name: "reboot", Phase: statefile.OperationPending, Source: sourceInbox, File: statefile.InboxKey("c-0", "reboot")}
	state := &statefile.State{Operations: []*statefile.OperationState{op}}
	known := w.operations(t.Context(), w.good.cluster("c-0"), state, head, "")
	require.False(t, known.Gone[placed(op.Source, op.File)])
	require.Contains(t, known.Stale, "more files than are read", "what a lost state is to skip is not known either")
	full = false
	known = w.operations(t.Context(), w.good.cluster("c-0"), state, head, "")
	require.True(t, known.Gone[placed(op.Source, op.File)])
	require.Empty(t, known.Stale)
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

// withoutOnce is a store in which no operation can begin, for a reason.
type withoutOnce struct {
	statefile.Store
	why error
}

func (s withoutOnce) Put(ctx context.Context, key string, data []byte, cond statefile.If) (string, error) {
	if strings.Contains(key, "/audit/once/") {
		return "", fmt.Errorf("put %s: %w", key, s.why)
	}
	return s.Store.Put(ctx, key, data, cond)
}

// barred is an agent's worker for which a signed reboot is pending, and whose store answers the object with which it would begin with why.
func barred(t *testing.T, why error) *worker {
	t.Helper()
	ctx, alice := t.Context(), newSigner(t)
	signers := signersOf(t, alice.line("alice", `namespaces="ichor-operation@c-0"`))
	var store statefile.Store = withoutOnce{storetest.NewMemory(), why}
	now := clocktesting.NewFakeClock(time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC))
	world := newSettledWorld(t, 1, 4, statefile.LocationHash(store))
	f := world.newAgent(t, store, Config{Leases: []ShardLease{&heldLease{token: 1}}, Clock: now, Clocks: statefile.SystemClocks(),
		Signers: func() (*operation.AllowedSigners, error) { return signers, nil },
		Inbox: func(ctx context.Context, cluster string) ([]statefile.InboxFile, bool, error) {
			return statefile.ReadInbox(ctx, store, cluster)
		}})
	f.settle(t, ctx)
	f.passes(ctx) // what is there by then is skipped, for nobody knows this cluster's past
	bundle := world.bundles["c-0"]
	text := operationText("reboot-w-3", schema.ClusterID(bundle.ClusterID()), now.Now(), time.Hour, nodeBody("w-3", world.nodes[bundle.ClusterID()].seen["w-3"].UUID, "reboot"))
	text = strings.Replace(text, "name: prod", "name: c-0", 1)
	require.NoError(t, statefile.PutInbox(ctx, store, "c-0", "reboot-w-3", []byte(text), alice.sign(text, "ichor-operation@c-0")))
	now.Step(time.Hour - time.Minute)
	return f.agent.current()[0]
}

func TestWhatCanNotBeginIsTriedAgainAfterAPause(t *testing.T) {
	ctx, w := t.Context(), barred(t, statefile.ErrUnavailable)
	for range 5 {
		wait, err := w.pass(ctx)
		if err != nil {
			require.ErrorContains(t, err, "the operation reboot-w-3 can't begin")
			require.Equal(t, w.agent.timing.Busy, wait)
			return
		}
	}
	state, _ := w.state.Known()
	require.Fail(t, "it begins", "%+v", operationNamed(state, "reboot-w-3"))
}

func TestWhatMayNotBeginIsPausedAndKeepsNothingElseWaiting(t *testing.T) {
	ctx, w := t.Context(), barred(t, statefile.ErrPermission)
	for range 10 {
		_, err := w.pass(ctx)
		require.NoError(t, err)
	}
	state, _ := w.state.Known()
	op := operationNamed(state, "reboot-w-3")
	require.Equal(t, statefile.OperationPaused, op.Phase, op.Message)
	require.Contains(t, op.FailureReason, "nothing was done")
	require.Contains(t, op.FailureReason, statefile.ErrPermission.Error())
	require.Nil(t, state.Lock)
}
