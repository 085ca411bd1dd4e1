package statefile_test

import (
	"fmt"
	"path/filepath"
	"strconv"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/statefile/storetest"
)

// life is what a process does from its start: it takes the lease, makes the state or takes it over, and counts up with an event each
// time until the state says three. It stops at the first error.
func life(t *testing.T, store statefile.Store, id string, clocks *handClocks, cache string) error {
	t.Helper()
	ctx := t.Context()
	if err := statefile.AgreeShards(ctx, store, 1); err != nil {
		return err
	}
	lease := newLease(t, store, id, clocks)
	for range 5 {
		if _, err := lease.Tick(ctx); err != nil {
			return err
		}
		if _, held := lease.Age(); held {
			break
		}
		clocks.run(statefile.LeaseTTL)
	}
	if _, held := lease.Age(); !held {
		return fmt.Errorf("%s did not get the lease", id)
	}
	cluster := open(t, store, id, cachedIn(cache))
	if _, err := cluster.TakeOver(ctx); err != nil {
		if err := cluster.Create(ctx, &statefile.State{Origin: statefile.OriginNew}); err != nil {
			return err
		}
	}
	for {
		state, err := cluster.Load(ctx)
		if err != nil {
			return err
		}
		n := count(state)
		if n == 3 {
			return lease.Release(ctx)
		}
		next := strconv.Itoa(n + 1)
		if err := cluster.Swap(ctx, observe(next), statefile.Event{Action: "Counted", Message: next}); err != nil {
			return err
		}
	}
}

func count(state *statefile.State) int {
	n, _ := strconv.Atoi(state.Revision.Observed)
	return n
}

// TestAProcessThatDiesAtAnyCallOfTheStoreLeavesWhatTheNextGoesOnFrom kills the first process before and after the effect of each call it
// makes, and the second one too at each call of its own, and lets a third finish.
func TestAProcessThatDiesAtAnyCallOfTheStoreLeavesWhatTheNextGoesOnFrom(t *testing.T) {
	runs, dir := 0, t.TempDir()
	for first := 1; ; first++ {
		reached := false
		for _, firstAfter := range []bool{false, true} {
			for second := 0; ; second++ { // 0: the second one lives
				memory, clocks := storetest.NewMemory(), newHandClocks()
				cacheA, cacheB := "", "" // syncing files two thousand times would take half a minute
				if second == 0 {
					cacheA, cacheB = filepath.Join(dir, fmt.Sprint("a", runs)), filepath.Join(dir, fmt.Sprint("b", runs))
				}
				dying := storetest.CrashAt(memory, first, firstAfter)
				err := life(t, dying, "first", clocks, cacheA)
				if dying.Crashed() {
					reached = true
					require.ErrorIs(t, err, storetest.ErrCrashed)
				} else {
					require.NoError(t, err)
				}
				clocks.run(statefile.LeaseTTL)
				dying = storetest.CrashAt(memory, second, second%2 == 0)
				err = life(t, dying, "second", clocks, cacheB)
				secondReached := dying.Crashed()
				if !secondReached {
					require.NoError(t, err, "first died at call %d, after its effect: %v", first, firstAfter)
				}
				clocks.run(statefile.LeaseTTL)
				require.NoError(t, life(t, memory, "third", clocks, cacheA),
					"first died at call %d (after: %v), second at call %d", first, firstAfter, second)
				requireCountedOnce(t, memory)
				runs++
				if second > 0 && !secondReached {
					break
				}
			}
		}
		if !reached {
			break
		}
	}
	require.Greater(t, runs, 300)
}

// requireCountedOnce says that each step was made once, that each event tells of a state that was there, and that none is missing.
func requireCountedOnce(t *testing.T, store *storetest.Memory) {
	t.Helper()
	require.Equal(t, 3, count(load(t, open(t, store, ""))))
	var counted []string
	for _, event := range requireWholeAudit(t, store) {
		if event.Action == "Counted" {
			counted = append(counted, event.Message)
		}
	}
	require.Equal(t, []string{"1", "2", "3"}, counted)
}

// hammer lets writers take one state from each other and count up in it.
// It returns what they counted up to.
func hammer(t *testing.T, writers, each int, open func(writer int) *statefile.Cluster) int {
	t.Helper()
	var group sync.WaitGroup
	for writer := range writers {
		cluster := open(writer)
		group.Go(func() {
			for done := 0; done < each; {
				err := cluster.Swap(t.Context(), func(state *statefile.State) error {
					state.Revision.Observed = strconv.Itoa(count(state) + 1)
					return nil
				}, statefile.Event{Action: "Counted"})
				if err == nil {
					done++
					continue
				}
				if _, err := cluster.TakeOver(t.Context()); err != nil {
					var rolledBack *statefile.StateRolledBackError
					require.NotErrorAs(t, err, &rolledBack)
				}
			}
		})
	}
	group.Wait()
	return count(load(t, open(writers)))
}

// countedEvents is how many of the audit's events say that something was counted.
func countedEvents(t *testing.T, store statefile.Store) int {
	t.Helper()
	counted := 0
	for _, event := range requireWholeAudit(t, store) {
		if event.Action == "Counted" {
			counted++
		}
	}
	return counted
}

func TestWritersThatHammerOneStateInABucketLoseNoUpdate(t *testing.T) {
	server := startS3(t)
	first := openS3(t, server)
	create(t, first, "creator")
	prefix := fmt.Sprintf("fleet/%d", prefixes.Load())
	reached := hammer(t, 2, 25, func(writer int) *statefile.Cluster {
		store := openS3(t, server, func(config *statefile.S3Config) { config.Prefix = prefix })
		return open(t, store, fmt.Sprint(writer), cachedIn(t.TempDir()))
	})
	require.Equal(t, 50, reached)
	require.Equal(t, 50, countedEvents(t, first))
}

func TestWritersThatHammerOneStateInAFolderLoseNoUpdate(t *testing.T) {
	dir := t.TempDir()
	folder := func() statefile.Store {
		store, err := statefile.OpenFolder(dir, statefile.FolderOptions{})
		require.NoError(t, err)
		return store
	}
	create(t, folder(), "creator")
	require.Equal(t, 50, hammer(t, 2, 25, func(writer int) *statefile.Cluster { return open(t, folder(), fmt.Sprint(writer)) }))
	require.Equal(t, 50, countedEvents(t, folder()))
}

func TestWritersThatHammerOneStateOverAStoreThatFailsLoseNoUpdate(t *testing.T) {
	memory := storetest.NewMemory()
	create(t, memory, "creator")
	reached := hammer(t, 3, 20, func(writer int) *statefile.Cluster {
		faults := []storetest.Fault{
			storetest.None, storetest.LostReply, storetest.None, storetest.ConflictAfterEffect, storetest.None, storetest.ShortRead, storetest.None,
		}
		store := storetest.NewFaulty(memory, func(call storetest.Call) storetest.Fault {
			return faults[(call.N*7+writer)%len(faults)]
		})
		if writer == 3 {
			return open(t, memory, "reader")
		}
		return open(t, store, fmt.Sprint(writer))
	})
	// A writer whose answer was lost, and who finds another's write when it looks, can't know whether its own was there before. So
	// more may have been counted than was acknowledged, but each count has its event.
	require.GreaterOrEqual(t, reached, 60)
	require.Equal(t, reached, countedEvents(t, memory))
}
