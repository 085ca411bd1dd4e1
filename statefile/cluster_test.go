package statefile_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clocktesting "k8s.io/utils/clock/testing"

	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/statefile/storetest"
)

var noon = time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)

func testSealer(t *testing.T) *statefile.Sealer {
	t.Helper()
	sealer, err := statefile.NewSealer("cluster-id", "secretbox-secret", "")
	require.NoError(t, err)
	return sealer
}

// open makes a handle on the state of prod, as a process of its own would.
func open(t *testing.T, store statefile.Store, writer string, change ...func(*statefile.Options)) *statefile.Cluster {
	t.Helper()
	opts := statefile.Options{Name: "prod", Sealer: testSealer(t), WriterID: writer, Clock: clocktesting.NewFakePassiveClock(noon)}
	for _, f := range change {
		f(&opts)
	}
	cluster, err := statefile.OpenCluster(store, opts)
	require.NoError(t, err)
	return cluster
}

func cachedIn(dir string) func(*statefile.Options) {
	return func(opts *statefile.Options) { opts.CacheDir = dir }
}

func create(t *testing.T, store statefile.Store, writer string, change ...func(*statefile.Options)) *statefile.Cluster {
	t.Helper()
	cluster := open(t, store, writer, change...)
	require.NoError(t, cluster.Create(t.Context(), &statefile.State{
		Cluster: statefile.ClusterIdentity{Name: "prod", ID: "1f3a9c0d2b4e6f78"}, Origin: statefile.OriginNew,
	}))
	return cluster
}

// observe is a change of the state that tests make: it says which revision was seen.
func observe(commit string) func(*statefile.State) error {
	return func(state *statefile.State) error {
		state.Revision.Observed = commit
		return nil
	}
}

func load(t *testing.T, cluster *statefile.Cluster) *statefile.State {
	t.Helper()
	state, err := cluster.Load(t.Context())
	require.NoError(t, err)
	return state
}

func requireWholeAudit(t *testing.T, store statefile.Store) []statefile.Event {
	t.Helper()
	report, err := statefile.VerifyAudit(t.Context(), store, testSealer(t), "prod")
	require.NoError(t, err)
	require.Empty(t, report.Problems)
	require.True(t, report.Checked)
	return report.Events
}

func TestWhatIsSwappedInIsLoadedByAnother(t *testing.T) {
	store := storetest.NewMemory()
	first := create(t, store, "first")
	require.NoError(t, first.Swap(t.Context(), observe("abc")))

	other := open(t, store, "")
	state := load(t, other)
	require.Equal(t, "abc", state.Revision.Observed)
	require.Equal(t, statefile.SchemaVersion, state.SchemaVersion)
	require.Equal(t, statefile.Writer{ID: "first", Epoch: 1, Since: noon}, state.Writer)
	require.Equal(t, noon, state.Latest)
	require.True(t, other.Checked())
	known, generation := other.Known()
	require.Equal(t, state, known)
	require.Equal(t, uint64(2), generation)
}

func TestNothingIsWrittenWhenNothingChanged(t *testing.T) {
	store := storetest.NewMemory()
	cluster := create(t, store, "first")
	require.NoError(t, cluster.Swap(t.Context(), observe("abc")))
	_, before := store.Counts()
	for range 10 {
		load(t, cluster)
		require.NoError(t, cluster.Swap(t.Context(), observe("abc")))
		require.NoError(t, cluster.FlushAudit(t.Context()))
	}
	_, after := store.Counts()
	require.Equal(t, before, after)
}

func TestAChangeThatFailsWritesNothing(t *testing.T) {
	store := storetest.NewMemory()
	cluster := create(t, store, "first")
	before := store.Snapshot()
	no := errors.New("no")
	require.ErrorIs(t, cluster.Swap(t.Context(), func(state *statefile.State) error {
		state.Revision.Observed = "abc"
		return no
	}), no)
	require.Equal(t, before, store.Snapshot())
	require.Empty(t, load(t, cluster).Revision.Observed)
}

func TestAChangeCanNotTouchWriterAuditTimeOrVersion(t *testing.T) {
	store := storetest.NewMemory()
	cluster := create(t, store, "first")
	require.NoError(t, cluster.Swap(t.Context(), func(state *statefile.State) error {
		state.Writer, state.Audit, state.SchemaVersion = statefile.Writer{ID: "mallory"}, statefile.AuditHead{}, 99
		state.Latest = noon.Add(time.Hour)
		state.Revision.Observed = "abc"
		return nil
	}))
	state := load(t, open(t, store, ""))
	require.Equal(t, "first", state.Writer.ID)
	require.Equal(t, uint64(1), state.Audit.Sequence)
	require.Equal(t, statefile.SchemaVersion, state.SchemaVersion)
	require.Equal(t, noon, state.Latest)
}

func TestTheLatestTimeNeverRunsBackwards(t *testing.T) {
	store := storetest.NewMemory()
	create(t, store, "first")
	behind := open(t, store, "second", func(opts *statefile.Options) {
		opts.Clock = clocktesting.NewFakePassiveClock(noon.Add(-time.Hour))
	})
	state, err := behind.TakeOver(t.Context())
	require.NoError(t, err)
	require.Equal(t, noon, state.Latest)
	require.Equal(t, noon, state.Time(noon.Add(-time.Hour)))
	require.Equal(t, noon.Add(time.Minute), state.Time(noon.Add(time.Minute)))
	events := requireWholeAudit(t, store)
	require.Equal(t, noon, events[len(events)-1].At)
}

func TestAWriteWhoseAnswerIsLostIsFoundByItsNonce(t *testing.T) {
	for _, test := range []struct {
		name  string
		fault storetest.Fault
		want  error
		there bool
	}{
		{"the write was done and its answer lost", storetest.LostReply, nil, true},
		{"the write was done and a copy of the request was answered with a conflict", storetest.ConflictAfterEffect, nil, true},
		{"the write never came", storetest.LostRequest, statefile.ErrUnacknowledged, false},
		{"the store answered 503", storetest.Unavailable, statefile.ErrUnacknowledged, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			memory := storetest.NewMemory()
			var fault storetest.Fault
			cluster := create(t, storetest.NewFaulty(memory, func(call storetest.Call) storetest.Fault {
				if call.Op == storetest.Put && call.Key == "prod/state.json" {
					return fault
				}
				return storetest.None
			}), "first")
			fault = test.fault
			require.ErrorIs(t, cluster.Swap(t.Context(), observe("abc")), test.want)
			fault = storetest.None
			require.Equal(t, test.there, load(t, open(t, memory, "")).Revision.Observed == "abc")
			require.NoError(t, cluster.Swap(t.Context(), observe("def")))
			require.Equal(t, "def", load(t, open(t, memory, "")).Revision.Observed)
			requireWholeAudit(t, memory)
		})
	}
}

func TestAnUnacknowledgedWriteThatComesAfterItWasReadBackIsDecidedAgain(t *testing.T) {
	memory := storetest.NewMemory()
	late := false
	cluster := create(t, storetest.NewFaulty(memory, func(call storetest.Call) storetest.Fault {
		if late && call.Op == storetest.Put {
			late = false
			return storetest.LateRequest
		}
		return storetest.None
	}), "first")
	late = true
	require.ErrorIs(t, cluster.Swap(t.Context(), observe("late")), statefile.ErrUnacknowledged)
	require.Empty(t, load(t, open(t, memory, "")).Revision.Observed, "it is on its way still")

	var seen []string
	require.NoError(t, cluster.Swap(t.Context(), func(state *statefile.State) error {
		seen = append(seen, state.Revision.Observed)
		state.Revision.Applied = "next"
		return nil
	}))
	require.Equal(t, []string{"", "late"}, seen, "the swap was lost to the late write, and decided again on what it left")
	state := load(t, open(t, memory, ""))
	require.Equal(t, "late", state.Revision.Observed)
	require.Equal(t, "next", state.Revision.Applied)
	requireWholeAudit(t, memory)
}

func TestTheCacheFolderThatCanNotBeWrittenStopsTheWork(t *testing.T) {
	store := storetest.NewMemory()
	create(t, store, "first")
	blocked := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(blocked, nil, 0o600))
	cluster, err := statefile.OpenCluster(store, statefile.Options{Name: "prod", Sealer: testSealer(t), WriterID: "x", CacheDir: blocked})
	if err == nil {
		_, err = cluster.Load(t.Context())
	}
	require.Error(t, err)
	require.ErrorContains(t, err, "highest generation seen of prod")
}

func TestASwapThatSucceededIsNotHiddenByAFullCacheDisk(t *testing.T) {
	store, cache := storetest.NewMemory(), t.TempDir()
	cluster := create(t, store, "first", cachedIn(cache))
	require.NoError(t, os.RemoveAll(filepath.Join(cache, "highwater")))
	require.NoError(t, os.WriteFile(filepath.Join(cache, "highwater"), nil, 0o600))

	require.NoError(t, cluster.Swap(t.Context(), observe("abc")), "the state is written")
	err := cluster.Swap(t.Context(), observe("def"))
	require.ErrorContains(t, err, "highest generation seen of prod", "and nothing more is, before the cache can be")
	require.NoError(t, os.Remove(filepath.Join(cache, "highwater")))
	require.NoError(t, cluster.Swap(t.Context(), observe("def")), "and it goes on by itself")
}
