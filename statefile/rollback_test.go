package statefile_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clocktesting "k8s.io/utils/clock/testing"

	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/statefile/storetest"
)

// rollBack writes a few states and puts the object of an earlier one back.
func rollBack(t *testing.T, store *storetest.Memory, cluster *statefile.Cluster) {
	t.Helper()
	require.NoError(t, cluster.Swap(t.Context(), observe("early"), statefile.Event{Action: "Early"}))
	early := store.Snapshot()["prod/state.json"]
	for i := range 3 {
		require.NoError(t, cluster.Swap(t.Context(), observe(fmt.Sprint(i)), statefile.Event{Action: "Late"}))
	}
	store.Tamper("prod/state.json", early)
}

func requireRolledBack(t *testing.T, err error) {
	t.Helper()
	var rolledBack *statefile.StateRolledBackError
	require.ErrorAs(t, err, &rolledBack)
	require.ErrorContains(t, err, "ichor state accept prod")
}

func TestAStateThatWasRolledBackStopsTheClusterUntilItIsAccepted(t *testing.T) {
	store, cache := storetest.NewMemory(), t.TempDir()
	first := create(t, store, "first", cachedIn(cache))
	rollBack(t, store, first)

	_, err := first.Load(t.Context())
	requireRolledBack(t, err)
	requireRolledBack(t, first.Swap(t.Context(), observe("next")))
	restarted := open(t, store, "restarted", cachedIn(cache))
	_, err = restarted.Load(t.Context())
	requireRolledBack(t, err)
	_, err = restarted.TakeOver(t.Context())
	requireRolledBack(t, err)

	elsewhere := open(t, store, "", cachedIn(t.TempDir()))
	accepted, err := elsewhere.Accept(t.Context(), "alice", "the bucket was restored from a copy")
	require.NoError(t, err)
	require.Equal(t, uint64(2), accepted.Found)
	require.Equal(t, uint64(5), accepted.Highest, "the audit knows what this machine never saw")
	require.Equal(t, uint64(1_000_005), accepted.Now)

	_, err = restarted.TakeOver(t.Context())
	require.NoError(t, err)
	require.NoError(t, restarted.Swap(t.Context(), observe("next"), statefile.Event{Action: "Next"}))
	require.ErrorIs(t, first.Swap(t.Context(), observe("stale")), statefile.ErrOtherWriter)

	events := requireWholeAudit(t, store)
	var actions []string
	for _, event := range events {
		actions = append(actions, event.Action)
	}
	require.Equal(t, []string{"StateCreated", "Early", "Late", "Late", "Late", "StateAccepted", "WriterChanged", "Next"}, actions)
	require.Equal(t, map[string]string{"by": "alice", "found": "2", "highest": "5"}, events[5].Details)
	require.Equal(t, "the bucket was restored from a copy", events[5].Message)
}

func TestAWriterThatIsStillThereGoesOnAfterTheAcceptance(t *testing.T) {
	store := storetest.NewMemory()
	first := create(t, store, "first")
	rollBack(t, store, first)
	requireRolledBack(t, first.Swap(t.Context(), observe("next")))
	_, err := open(t, store, "").Accept(t.Context(), "alice", "")
	require.NoError(t, err)
	require.NoError(t, first.Swap(t.Context(), observe("next"), statefile.Event{Action: "Next"}))
	requireWholeAudit(t, store)
}

func TestARolledBackStateIsFoundByItsAuditWithoutAnyCache(t *testing.T) {
	store := storetest.NewMemory()
	rollBack(t, store, create(t, store, "first"))
	_, err := open(t, store, "elsewhere").TakeOver(t.Context())
	requireRolledBack(t, err)
	require.ErrorContains(t, err, "prod/audit/0000000005.json")
}

func TestAStateThatWasRolledBackTwiceIsRefusedTwice(t *testing.T) {
	store, cache := storetest.NewMemory(), t.TempDir()
	agent := create(t, store, "agent", cachedIn(cache))
	rollBack(t, store, agent)
	early := store.Snapshot()["prod/state.json"]
	for range 3 {
		store.Tamper("prod/state.json", early)
		_, err := agent.Load(t.Context())
		requireRolledBack(t, err)
		_, err = open(t, store, "").Accept(t.Context(), "alice", "")
		require.NoError(t, err)
		_, err = agent.TakeOver(t.Context())
		require.NoError(t, err)
		require.NoError(t, agent.Swap(t.Context(), observe("next"), statefile.Event{Action: "Next"}))
	}
	requireWholeAudit(t, store)
}

func TestAStateThatWasRolledBackAndWrittenAgainIsFound(t *testing.T) {
	store, cache := storetest.NewMemory(), t.TempDir()
	first := create(t, store, "first", cachedIn(cache))
	early := store.Snapshot()["prod/state.json"]
	require.NoError(t, first.Swap(t.Context(), observe("abc")))
	require.NoError(t, first.Swap(t.Context(), observe("def")))
	store.Tamper("prod/state.json", early)
	blind := open(t, store, "blind")
	_, err := blind.TakeOver(t.Context())
	require.NoError(t, err, "nothing here could know better")
	require.NoError(t, blind.Swap(t.Context(), observe("forked")))

	_, err = open(t, store, "again", cachedIn(cache)).Load(t.Context())
	requireRolledBack(t, err)
	require.ErrorContains(t, err, "written again")
}

func TestAnAuditThatWasRolledBackTooIsWrittenOn(t *testing.T) {
	store, cache := storetest.NewMemory(), t.TempDir()
	agent := create(t, store, "agent", cachedIn(cache))
	before := store.Snapshot()
	for range 4 {
		require.NoError(t, agent.Swap(t.Context(), observe("x"), statefile.Event{Action: "Gone"}))
	}
	for key := range store.Snapshot() {
		store.Tamper(key, before[key])
	}
	_, err := agent.Load(t.Context())
	requireRolledBack(t, err)
	accepted, err := open(t, store, "", cachedIn(cache)).Accept(t.Context(), "alice", "")
	require.NoError(t, err)
	require.Equal(t, uint64(5), accepted.Highest)
	for range 6 {
		require.NoError(t, agent.Swap(t.Context(), observe("x"), statefile.Event{Action: "Next"}))
	}
	require.Len(t, requireWholeAudit(t, store), 8, "every event became an object")
	keys := store.Snapshot()
	for i := 1; i <= 8; i++ {
		require.Contains(t, keys, fmt.Sprintf("prod/audit/%010d.json", i))
	}
}

func TestAcceptingAStateTakesBackATimeThatAWrongClockWrote(t *testing.T) {
	store := storetest.NewMemory()
	wrong := clocktesting.NewFakePassiveClock(time.Now().Add(10 * 365 * 24 * time.Hour))
	ahead, err := statefile.OpenCluster(store, statefile.Options{Name: "prod", Sealer: testSealer(t), WriterID: "ahead", Clock: wrong})
	require.NoError(t, err)
	require.NoError(t, ahead.Create(t.Context(), &statefile.State{}))
	right, err := statefile.OpenCluster(store, statefile.Options{Name: "prod", Sealer: testSealer(t), WriterID: "right"})
	require.NoError(t, err)
	_, err = right.TakeOver(t.Context())
	require.NoError(t, err)
	require.WithinDuration(t, wrong.Now(), load(t, right).Latest, time.Minute, "it never runs back by itself")
	_, err = right.Accept(t.Context(), "alice", "the clock was ten years ahead")
	require.NoError(t, err)
	state := load(t, right)
	require.True(t, state.Latest.Before(time.Now().Add(time.Minute)), state.Latest)
	events := requireWholeAudit(t, store)
	require.Equal(t, "StateAccepted", events[len(events)-1].Action)
	require.NotEmpty(t, events[len(events)-1].Details["latest"])
}

func TestAcceptingAStateGivesBackTheLockOfWhatItPausesAndNoOther(t *testing.T) {
	reboot := statefile.OperationState{Name: "reboot", Digest: strings.Repeat("a", 64), Phase: statefile.OperationRunning}
	snapshot := statefile.OperationState{Name: "snapshot", Digest: strings.Repeat("b", 64), Phase: statefile.OperationRunning}
	restore := statefile.OperationState{Name: "restore", Digest: strings.Repeat("c", 64), Phase: statefile.OperationPaused, Pause: 1, Marked: true}
	restoring := restore
	restoring.Phase = statefile.OperationRunning
	for name, c := range map[string]struct {
		operations []statefile.OperationState
		holder     string
		kept       bool
	}{
		"of an operation that ran":                     {[]statefile.OperationState{reboot, snapshot}, "operation:aaaaaaaaaaaa", false},
		"of a restore past its marker that was paused": {[]statefile.OperationState{restore, snapshot}, "operation:cccccccccccc", true},
		"of a restore past its marker that ran":        {[]statefile.OperationState{restoring}, "operation:cccccccccccc", true},
		"of a person's":                                {[]statefile.OperationState{reboot}, "recover:1f3a9c0d2b4e6f78", true},
	} {
		t.Run(name, func(t *testing.T) {
			agent := create(t, storetest.NewMemory(), "agent")
			require.NoError(t, agent.Swap(t.Context(), func(s *statefile.State) error {
				for n := range c.operations {
					s.Operations = append(s.Operations, &c.operations[n])
				}
				s.Lock = &statefile.Lock{Holder: c.holder, Reason: "a test"}
				return nil
			}))
			_, err := agent.Accept(t.Context(), "alice", "")
			require.NoError(t, err)
			state := load(t, agent)
			require.Equal(t, c.kept, state.Lock != nil)
			for _, op := range state.Operations {
				require.Equal(t, statefile.OperationPaused, op.Phase)
			}
		})
	}
}
