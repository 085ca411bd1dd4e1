package statefile_test

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/statefile/storetest"
)

// withEvents makes a state with six events.
func withEvents(t *testing.T, store statefile.Store) *statefile.Cluster {
	t.Helper()
	cluster := create(t, store, "first")
	for i := range 5 {
		require.NoError(t, cluster.AppendAudit(t.Context(), statefile.Event{Action: fmt.Sprintf("Test%d", i), Machine: "cp-1"}))
	}
	return cluster
}

func event(i int) string { return fmt.Sprintf("prod/audit/%010d.json", i) }

func TestEventsAreNumberedChainedAndStamped(t *testing.T) {
	store := storetest.NewMemory()
	withEvents(t, store)
	events := requireWholeAudit(t, store)
	require.Len(t, events, 6)
	for i, got := range events {
		require.Equal(t, uint64(i+1), got.Sequence)
		require.Equal(t, uint64(i+1), got.StateGeneration)
		require.Equal(t, noon, got.At)
		require.Equal(t, "first", got.Writer.ID)
		require.Equal(t, i == 0, got.Previous == "")
	}
	require.Equal(t, "Test4", events[5].Action)
	require.Equal(t, "cp-1", events[5].Machine)
}

func TestSeveralEventsComeWithOneSwap(t *testing.T) {
	store := storetest.NewMemory()
	cluster := create(t, store, "first")
	require.NoError(t, cluster.Swap(t.Context(), observe("abc"), statefile.Event{Action: "One"}, statefile.Event{Action: "Two"}))
	_, generation := cluster.Known()
	require.Equal(t, uint64(2), generation)
	events := requireWholeAudit(t, store)
	require.Equal(t, "Two", events[2].Action)
	require.Equal(t, uint64(2), events[2].StateGeneration)
}

func TestVerifyingAnAuditFindsWhatWasDoneToIt(t *testing.T) {
	for _, test := range []struct {
		name   string
		tamper func(t *testing.T, store *storetest.Memory)
		says   []string
	}{
		{"nothing", func(*testing.T, *storetest.Memory) {}, nil},
		{"an event was removed", func(_ *testing.T, store *storetest.Memory) { store.Tamper(event(3), nil) },
			[]string{event(3) + " is missing"}},
		{"several were", func(_ *testing.T, store *storetest.Memory) {
			store.Tamper(event(2), nil)
			store.Tamper(event(3), nil)
			store.Tamper(event(4), nil)
		}, []string{event(2) + " to " + event(4) + " are missing (3 events)"}},
		{"the first was", func(_ *testing.T, store *storetest.Memory) { store.Tamper(event(1), nil) },
			[]string{event(1) + " is missing"}},
		{"an event was edited", func(_ *testing.T, store *storetest.Memory) {
			data := store.Snapshot()[event(4)]
			store.Tamper(event(4), []byte(strings.Replace(string(data), "cp-1", "cp-2", 1)))
		}, []string{event(4) + ": its seal is wrong"}},
		{"two were exchanged", func(_ *testing.T, store *storetest.Memory) {
			all := store.Snapshot()
			store.Tamper(event(2), all[event(3)])
			store.Tamper(event(3), all[event(2)])
		}, []string{event(2) + ": it is the record of", event(3) + ": it is the record of"}},
		{"two were exchanged and their keys mended", func(_ *testing.T, store *storetest.Memory) {
			all := store.Snapshot()
			store.Tamper(event(2), []byte(strings.ReplaceAll(string(all[event(3)]), event(3), event(2))))
			store.Tamper(event(3), []byte(strings.ReplaceAll(string(all[event(2)]), event(2), event(3))))
		}, []string{event(2) + ": its seal is wrong", event(3) + ": its seal is wrong"}},
		{"someone with the key put another event in", func(t *testing.T, store *storetest.Memory) {
			data, err := statefile.EncodeRecord(testSealer(t), event(3), 3, statefile.NewNonce(),
				[]byte(`{"sequence":3,"at":"2026-11-29T12:00:00Z","writer":{"id":"x","epoch":1},"stateGeneration":3,"action":"Forged"}`))
			require.NoError(t, err)
			store.Tamper(event(3), data)
		}, []string{event(3) + " does not follow", event(4) + " does not follow"}},
		{"an event of another cluster was put in", func(t *testing.T, store *storetest.Memory) {
			sealer, err := statefile.NewSealer("another", "secret", "")
			require.NoError(t, err)
			data, err := statefile.EncodeRecord(sealer, event(7), 7, statefile.NewNonce(), []byte(`{}`))
			require.NoError(t, err)
			store.Tamper(event(7), data)
		}, []string{event(7) + ": its seal is wrong", "goes on to event 7"}},
		{"it says that it is another number", func(t *testing.T, store *storetest.Memory) {
			data, err := statefile.EncodeRecord(testSealer(t), event(3), 3, statefile.NewNonce(),
				[]byte(`{"sequence":4,"at":"2026-11-29T12:00:00Z","writer":{"id":"x","epoch":1},"stateGeneration":3,"action":"Forged"}`))
			require.NoError(t, err)
			store.Tamper(event(3), data)
		}, []string{"it says that it is event 4"}},
		{"the state was rolled back", func(t *testing.T, store *storetest.Memory) {
			rollBack(t, store, mustTakeOver(t, store))
		}, []string{"goes on to event 11, and the state knows of 8"}},
		{"the state is gone", func(_ *testing.T, store *storetest.Memory) { store.Tamper("prod/state.json", nil) },
			[]string{"prod/state.json is gone"}},
		{"the state was forged", func(_ *testing.T, store *storetest.Memory) { store.Tamper("prod/state.json", []byte("{}")) },
			[]string{"prod/state.json: it has the format"}},
		{"an event has a field of a newer program", func(t *testing.T, store *storetest.Memory) {
			data, err := statefile.EncodeRecord(testSealer(t), event(3), 3, statefile.NewNonce(), []byte(`{"sequence":3,"new":true}`))
			require.NoError(t, err)
			store.Tamper(event(3), data)
		}, []string{"written by a newer ichor"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			store := storetest.NewMemory()
			withEvents(t, store)
			store.Tamper("prod/audit/once/0123.json", []byte("what stands beside the events is none"))
			test.tamper(t, store)
			report, err := statefile.VerifyAudit(t.Context(), store, testSealer(t), "prod")
			require.NoError(t, err)
			require.Len(t, report.Problems, len(test.says), "%q", report.Problems)
			for i, want := range test.says {
				require.Contains(t, report.Problems[i], want)
			}
		})
	}
}

func mustTakeOver(t *testing.T, store statefile.Store) *statefile.Cluster {
	t.Helper()
	cluster := open(t, store, "second")
	_, err := cluster.TakeOver(t.Context())
	require.NoError(t, err)
	return cluster
}

func TestTheLastEventsCanNotBeCutOff(t *testing.T) {
	store := storetest.NewMemory()
	cluster := withEvents(t, store)
	require.NoError(t, cluster.Swap(t.Context(), observe("abc"))) // the last event is no longer in the state
	store.Tamper(event(5), nil)
	store.Tamper(event(6), nil)
	report, err := statefile.VerifyAudit(t.Context(), store, testSealer(t), "prod")
	require.NoError(t, err)
	require.Equal(t, []string{event(5) + " to " + event(6) + " are missing (2 events)"}, report.Problems)
}

func TestAnAuditThatGoesOnWhileItIsVerifiedIsWhole(t *testing.T) {
	for _, at := range []storetest.Op{storetest.Get, storetest.List} {
		for _, after := range []bool{false, true} {
			t.Run(fmt.Sprintf("at each %s, or after it: %t", at, after), func(t *testing.T) {
				store := storetest.NewMemory()
				first := create(t, store, "first")
				require.NoError(t, first.Swap(t.Context(), observe("abc")))
				calls := 0
				busy := storetest.NewFaulty(store, func(call storetest.Call) storetest.Fault {
					if call.Op == at && (calls > 0 || !after) && calls < 5 {
						require.NoError(t, first.AppendAudit(t.Context(), statefile.Event{Action: "Test", Message: "the agent works on"}))
					}
					calls++
					return storetest.None
				})
				report, err := statefile.VerifyAudit(t.Context(), busy, testSealer(t), "prod")
				require.NoError(t, err)
				require.Empty(t, report.Problems)
			})
		}
	}
}

func TestWithoutTheBundleAnAuditIsReadAndNotChecked(t *testing.T) {
	store := storetest.NewMemory()
	withEvents(t, store)
	report, err := statefile.VerifyAudit(t.Context(), store, nil, "prod")
	require.NoError(t, err)
	require.False(t, report.Checked)
	require.Empty(t, report.Problems)
	require.Len(t, report.Events, 6)
}

func TestAnAuditThatCanNotBeReadIsAnErrorAndNoProblem(t *testing.T) {
	for _, op := range []storetest.Op{storetest.Get, storetest.List} {
		store := storetest.NewMemory()
		withEvents(t, store)
		_, err := statefile.VerifyAudit(t.Context(), storetest.NewFaulty(store, func(call storetest.Call) storetest.Fault {
			if call.Op == op {
				return storetest.ShortRead
			}
			return storetest.None
		}), testSealer(t), "prod")
		require.ErrorIs(t, err, statefile.ErrUnavailable)
	}
}

// A store that fails may take its time to do so, and an audit has thousands of events.
func TestAStoreThatFailsIsNotAskedForEachOfTheOtherEvents(t *testing.T) {
	store := storetest.NewMemory()
	withEvents(t, store)
	for i := range 200 {
		_, err := store.Put(t.Context(), event(1000+i), []byte("{}"), statefile.If{})
		require.NoError(t, err)
	}
	var asked atomic.Int32
	_, err := statefile.VerifyAudit(t.Context(), storetest.NewFaulty(store, func(call storetest.Call) storetest.Fault {
		if call.Op != storetest.Get || !strings.Contains(call.Key, "/audit/") {
			return storetest.None
		}
		asked.Add(1)
		return storetest.Unavailable
	}), testSealer(t), "prod")
	require.ErrorIs(t, err, statefile.ErrUnavailable)
	require.Less(t, asked.Load(), int32(100))
}

func TestEventsWaitInTheStateWhileTheirObjectsCanNotBeWritten(t *testing.T) {
	store := storetest.NewMemory()
	away := false
	cluster := create(t, storetest.NewFaulty(store, func(call storetest.Call) storetest.Fault {
		if away && call.Op == storetest.Put && strings.Contains(call.Key, "/audit/") {
			return storetest.Unavailable
		}
		return storetest.None
	}), "first")
	away = true
	for i := range 100 {
		require.NoError(t, cluster.AppendAudit(t.Context(), statefile.Event{Action: fmt.Sprint(i)}))
	}
	require.Len(t, store.Snapshot(), 2)
	report, err := statefile.VerifyAudit(t.Context(), store, testSealer(t), "prod")
	require.NoError(t, err)
	require.Empty(t, report.Problems)
	require.Equal(t, 100, report.Waiting)
	require.ErrorContains(t, cluster.AppendAudit(t.Context(), statefile.Event{Action: "TooMany"}), "100 events of prod wait")
	require.NoError(t, cluster.Swap(t.Context(), observe("abc")), "what needs no event goes on")
	require.ErrorIs(t, cluster.FlushAudit(t.Context()), statefile.ErrUnacknowledged)

	away = false
	require.NoError(t, cluster.FlushAudit(t.Context()))
	require.Len(t, store.Snapshot(), 102)
	require.Len(t, requireWholeAudit(t, store), 101)
	require.NoError(t, cluster.AppendAudit(t.Context(), statefile.Event{Action: "Next"}))
	require.Len(t, load(t, cluster).Audit.Pending, 1)
}

func TestOneWriteMayBringMoreEventsThanMayWait(t *testing.T) {
	store := storetest.NewMemory()
	cluster := create(t, store, "first")
	require.NoError(t, cluster.FlushAudit(t.Context()))
	events := make([]statefile.Event, 250)
	for i := range events {
		events[i].Action = fmt.Sprint(i)
	}
	require.NoError(t, cluster.AppendAudit(t.Context(), events...))
	require.NoError(t, cluster.FlushAudit(t.Context()))
	require.Len(t, requireWholeAudit(t, store), 251)
	require.NoError(t, cluster.AppendAudit(t.Context(), statefile.Event{Action: "Next"}))
	require.Len(t, load(t, cluster).Audit.Pending, 1)
}

func TestAnEventWhoseAnswerIsLostIsNotWrittenTwice(t *testing.T) {
	for _, fault := range []storetest.Fault{storetest.LostReply, storetest.ConflictAfterEffect, storetest.LateRequest} {
		store := storetest.NewMemory()
		now := storetest.None
		cluster := create(t, storetest.NewFaulty(store, func(call storetest.Call) storetest.Fault {
			if call.Op == storetest.Put && strings.Contains(call.Key, "/audit/") {
				return now
			}
			return storetest.None
		}), "first")
		now = fault
		for range 3 {
			require.NoError(t, cluster.AppendAudit(t.Context(), statefile.Event{Action: "Test"}))
		}
		now = storetest.None
		require.NoError(t, cluster.FlushAudit(t.Context()))
		require.Len(t, requireWholeAudit(t, store), 4)
		require.Contains(t, store.Snapshot(), event(4))
	}
}

func TestAnEventThatStandsWhereAnotherShouldStopsTheWork(t *testing.T) {
	store := storetest.NewMemory()
	cluster := withEvents(t, store)
	data, err := statefile.EncodeRecord(testSealer(t), event(7), 7, statefile.NewNonce(), []byte(`{"sequence":7}`))
	require.NoError(t, err)
	store.Tamper(event(7), data)
	require.NoError(t, cluster.AppendAudit(t.Context(), statefile.Event{Action: "Test"}), "it is in the state")
	requireRolledBack(t, cluster.Swap(t.Context(), observe("abc")))
	_, err = cluster.Load(t.Context())
	requireRolledBack(t, err)

	store = storetest.NewMemory()
	cluster = withEvents(t, store)
	store.Tamper(event(7), []byte("not sealed"))
	require.NoError(t, cluster.AppendAudit(t.Context(), statefile.Event{Action: "Test"}))
	var forged *statefile.StateForgedError
	require.ErrorAs(t, cluster.Swap(t.Context(), observe("abc")), &forged)
}

func TestAnyNumberOfTakeOversInARowLeavesTheAuditWhole(t *testing.T) {
	for name, dies := range map[string]bool{"each writes its event": false, "each dies before it writes its event": true} {
		t.Run(name, func(t *testing.T) {
			store := storetest.NewMemory()
			create(t, store, "first")
			for n := range 250 {
				next := storetest.NewFaulty(store, func(call storetest.Call) storetest.Fault {
					// The last that fits writes what the others left, and then dies as they did.
					if dies && call.Op == storetest.Put && strings.HasPrefix(call.Key, event(n + 2)[:len(event(n+2))-len(".json")]) {
						return storetest.CrashBefore
					}
					return storetest.None
				})
				_, err := open(t, next, fmt.Sprintf("writer-%d", n)).TakeOver(t.Context())
				if dies {
					continue // whether the call ended well, nobody is there to say
				}
				require.NoError(t, err)
			}
			last := open(t, store, "last")
			state, err := last.TakeOver(t.Context())
			require.NoError(t, err)
			require.Equal(t, uint64(252), state.Writer.Epoch)
			require.LessOrEqual(t, len(state.Audit.Pending), 100)
			require.Len(t, requireWholeAudit(t, store), 252)
		})
	}
}
