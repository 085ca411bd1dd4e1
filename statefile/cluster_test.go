package statefile_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
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

func TestWhoFindsAnotherWriterStops(t *testing.T) {
	for name, touch := range map[string]func(t *testing.T, first *statefile.Cluster){
		"when it swaps":                  func(*testing.T, *statefile.Cluster) {},
		"when it has read the new state": func(t *testing.T, first *statefile.Cluster) { load(t, first) },
	} {
		t.Run(name, func(t *testing.T) {
			store := storetest.NewMemory()
			first := create(t, store, "first")
			require.True(t, first.IsWriter())
			second := open(t, store, "second")
			state, err := second.TakeOver(t.Context())
			require.NoError(t, err)
			require.Equal(t, uint64(2), state.Writer.Epoch)

			touch(t, first)
			for range 3 {
				called := 0
				err = first.Swap(t.Context(), func(state *statefile.State) error {
					called++
					state.Revision.Observed = "stale"
					return nil
				})
				require.ErrorIs(t, err, statefile.ErrOtherWriter)
				require.ErrorContains(t, err, "second")
				require.LessOrEqual(t, called, 1)
			}
			require.False(t, first.IsWriter())
			require.Empty(t, load(t, first).Revision.Observed)
			require.NoError(t, second.Swap(t.Context(), observe("abc")))

			_, err = first.TakeOver(t.Context())
			require.NoError(t, err)
			require.NoError(t, first.Swap(t.Context(), observe("def")))
			require.ErrorIs(t, second.Swap(t.Context(), observe("ghi")), statefile.ErrOtherWriter)
			requireWholeAudit(t, store)
		})
	}
}

func TestAWriterOfAnEarlierEpochIsAnotherWriter(t *testing.T) {
	store := storetest.NewMemory()
	first := create(t, store, "same")
	again := open(t, store, "same")
	_, err := again.TakeOver(t.Context())
	require.NoError(t, err)
	require.ErrorIs(t, first.Swap(t.Context(), observe("abc")), statefile.ErrOtherWriter)
}

func TestNobodySwapsWithoutBeingTheWriter(t *testing.T) {
	store := storetest.NewMemory()
	create(t, store, "first")
	reader := open(t, store, "second")
	load(t, reader)
	require.ErrorIs(t, reader.Swap(t.Context(), observe("abc")), statefile.ErrNotWriter)
	nameless := open(t, store, "")
	_, err := nameless.TakeOver(t.Context())
	require.ErrorIs(t, err, statefile.ErrNotWriter)
}

func TestAStateIsMadeOnce(t *testing.T) {
	store := storetest.NewMemory()
	second := open(t, store, "second")
	_, err := second.Load(t.Context())
	require.ErrorIs(t, err, statefile.ErrNotFound)
	_, err = second.TakeOver(t.Context())
	require.ErrorIs(t, err, statefile.ErrNotFound)
	create(t, store, "first")
	require.ErrorIs(t, second.Create(t.Context(), &statefile.State{}), statefile.ErrConflict)
	require.False(t, second.IsWriter())
}

func TestWithoutTheBundleTheStateIsShownAndNotWritten(t *testing.T) {
	store := storetest.NewMemory()
	create(t, store, "first")
	before := store.Snapshot()
	blind := open(t, store, "second", func(opts *statefile.Options) { opts.Sealer = nil })
	require.Equal(t, "1f3a9c0d2b4e6f78", load(t, blind).Cluster.ID)
	require.False(t, blind.Checked())
	_, err := blind.TakeOver(t.Context())
	require.ErrorIs(t, err, statefile.ErrNoSealer)
	require.ErrorIs(t, blind.Swap(t.Context(), observe("abc")), statefile.ErrNoSealer)
	require.ErrorIs(t, blind.Create(t.Context(), &statefile.State{}), statefile.ErrNoSealer)
	_, err = blind.Accept(t.Context(), "alice", "")
	require.ErrorIs(t, err, statefile.ErrNoSealer)
	require.Equal(t, before, store.Snapshot())

	_, err = statefile.NewSealer("id", "", "")
	require.Error(t, err)
	_, err = statefile.NewSealer("", "x", "")
	require.Error(t, err)
}

func TestAForgedStateStopsTheCluster(t *testing.T) {
	other, err := statefile.NewSealer("cluster-id", "another-secret", "")
	require.NoError(t, err)
	for _, test := range []struct {
		name  string
		forge func(t *testing.T, store *storetest.Memory, data []byte) []byte
		says  string
	}{
		{"its content was edited", func(_ *testing.T, _ *storetest.Memory, data []byte) []byte {
			return []byte(strings.Replace(string(data), "1f3a9c0d2b4e6f78", "0000000000000000", 1))
		}, "seal is wrong"},
		{"its generation was raised", func(_ *testing.T, _ *storetest.Memory, data []byte) []byte {
			return []byte(strings.Replace(string(data), `"generation":2`, `"generation":9`, 1))
		}, "seal is wrong"},
		{"its nonce was changed", func(t *testing.T, _ *storetest.Memory, data []byte) []byte {
			var record struct{ Nonce string }
			require.NoError(t, json.Unmarshal(data, &record))
			return []byte(strings.Replace(string(data), record.Nonce, statefile.NewNonce(), 1))
		}, "seal is wrong"},
		{"it has no seal", func(t *testing.T, _ *storetest.Memory, data []byte) []byte {
			before, rest, _ := strings.Cut(string(data), `"seal":"`)
			_, after, _ := strings.Cut(rest, `"`)
			return []byte(before + `"seal":"` + after)
		}, ""},
		{"its seal is empty", func(t *testing.T, _ *storetest.Memory, data []byte) []byte {
			before, rest, _ := strings.Cut(string(data), `"seal":"`)
			_, after, _ := strings.Cut(rest, `"`)
			return []byte(before + `"seal":""` + after)
		}, "seal is wrong"},
		{"it was sealed with another bundle", func(t *testing.T, _ *storetest.Memory, _ []byte) []byte {
			data, err := statefile.EncodeRecord(other, "prod/state.json", 9, statefile.NewNonce(), []byte(`{"schemaVersion":1}`))
			require.NoError(t, err)
			return data
		}, "seal is wrong"},
		{"it is another object of the same cluster", func(t *testing.T, store *storetest.Memory, _ []byte) []byte {
			return store.Snapshot()["prod/audit/0000000001.json"]
		}, "record of"},
		{"it is no JSON", func(*testing.T, *storetest.Memory, []byte) []byte { return []byte("hello") }, "no record"},
		{"it is empty", func(*testing.T, *storetest.Memory, []byte) []byte { return []byte{} }, "no record"},
		{"something follows it", func(_ *testing.T, _ *storetest.Memory, data []byte) []byte { return append(data, '1') }, "follows"},
	} {
		t.Run(test.name, func(t *testing.T) {
			store := storetest.NewMemory()
			first := create(t, store, "first")
			require.NoError(t, first.Swap(t.Context(), observe("abc")))
			data := store.Snapshot()["prod/state.json"]
			forged := test.forge(t, store, data)
			require.NotEqual(t, data, forged)
			store.Tamper("prod/state.json", forged)

			var stateForged *statefile.StateForgedError
			_, err := open(t, store, "second").TakeOver(t.Context())
			require.ErrorAs(t, err, &stateForged)
			require.ErrorContains(t, err, test.says)
			_, err = first.Load(t.Context())
			require.ErrorAs(t, err, &stateForged)
			require.ErrorAs(t, first.Swap(t.Context(), observe("def")), &stateForged)
			_, err = first.Accept(t.Context(), "mallory", "")
			require.ErrorAs(t, err, &stateForged)
			require.Equal(t, forged, store.Snapshot()["prod/state.json"], "a forged state is left for who looks into it")

			store.Tamper("prod/state.json", data)
			require.NoError(t, first.Swap(t.Context(), observe("def")), "once it is put right the work goes on")
		})
	}
}

func TestAStateOfANewerProgramIsRefusedAndLeftAlone(t *testing.T) {
	for name, content := range map[string]string{
		"a newer schemaVersion": `{"schemaVersion":2,"cluster":{}}`,
		"a field that this program doesn't know": `{"schemaVersion":1,"cluster":{"name":"prod","id":"","bundleFingerprint":""},` +
			`"writer":{"id":"x","epoch":1},"surprise":true}`,
	} {
		t.Run(name, func(t *testing.T) {
			store := storetest.NewMemory()
			data, err := statefile.EncodeRecord(testSealer(t), "prod/state.json", 5, statefile.NewNonce(), []byte(content))
			require.NoError(t, err)
			store.Tamper("prod/state.json", data)
			cluster := open(t, store, "first")
			_, err = cluster.Load(t.Context())
			require.ErrorIs(t, err, statefile.ErrNewerSchema)
			_, err = cluster.TakeOver(t.Context())
			require.ErrorIs(t, err, statefile.ErrNewerSchema)
			require.ErrorIs(t, cluster.Create(t.Context(), &statefile.State{}), statefile.ErrNewerSchema)
			_, err = cluster.Accept(t.Context(), "alice", "")
			require.ErrorIs(t, err, statefile.ErrNewerSchema)
			require.Equal(t, data, store.Snapshot()["prod/state.json"])
		})
	}
	t.Run("a newer record", func(t *testing.T) {
		store := storetest.NewMemory()
		store.Tamper("prod/state.json", []byte(`{"format":"ichor.maesh.dev/record/v2","sealed":"with something better"}`))
		_, err := open(t, store, "first").TakeOver(t.Context())
		require.ErrorIs(t, err, statefile.ErrNewerSchema)
	})
}

func TestNamesThatAreNoClustersHaveNoState(t *testing.T) {
	for _, name := range []string{"", "leases", "Prod", "a/b", "..", "a.b", "-a", strings.Repeat("a", 64)} {
		_, err := statefile.OpenCluster(storetest.NewMemory(), statefile.Options{Name: name})
		require.Error(t, err, name)
	}
}

func TestTheClustersOfAStoreAreNamed(t *testing.T) {
	server := startS3(t)
	folder := openFolder(t, t.TempDir(), true)
	for name, store := range map[string]statefile.Store{"memory": storetest.NewMemory(), "folder": folder, "bucket": openS3(t, server)} {
		t.Run(name, func(t *testing.T) {
			names, err := statefile.Clusters(t.Context(), store)
			require.NoError(t, err)
			require.Empty(t, names)
			for _, key := range []string{
				"a/state.json", "a/audit/0000000001.json", "a-2/state.json", "a0/state.json", "leases/state.json", "leases/0.json",
				"lost/audit/0000000001.json", "prod/state.json", "prod/state.json.old", "old/state.json.old", "zz/inbox/x.yaml", "z.json", "Caps/state.json",
			} {
				_, err := store.Put(t.Context(), key, []byte("x"), statefile.If{})
				require.NoError(t, err)
			}
			names, err = statefile.Clusters(t.Context(), store)
			require.NoError(t, err)
			require.Equal(t, []string{"a", "a-2", "a0", "prod"}, names)
		})
	}
	_, err := statefile.Clusters(t.Context(), storetest.NewFaulty(storetest.NewMemory(), func(storetest.Call) storetest.Fault { return storetest.ShortRead }))
	require.ErrorIs(t, err, statefile.ErrUnavailable)
}

func TestTracesSayWhatSpeaksOfAPast(t *testing.T) {
	store, cache := storetest.NewMemory(), t.TempDir()
	traces, err := open(t, store, "first", cachedIn(cache)).Traces(t.Context())
	require.NoError(t, err)
	require.Empty(t, traces)

	create(t, store, "first", cachedIn(cache))
	store.Tamper("prod-2/state.json", []byte("another cluster's"))
	store.Tamper("prod/state.json", nil)
	traces, err = open(t, store, "first").Traces(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"the state's store holds prod/audit/0000000001.json"}, traces)
	store.Tamper("prod/audit/0000000001.json", nil)
	traces, err = open(t, store, "first", cachedIn(cache)).Traces(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"this machine's cache remembers a state of generation 1"}, traces)

	_, err = open(t, storetest.NewFaulty(store, func(storetest.Call) storetest.Fault { return storetest.Unavailable }), "x").Traces(t.Context())
	require.ErrorIs(t, err, statefile.ErrUnavailable, "what can't be listed is not empty")
}

func TestALostStateIsMadeAgainAboveWhatWasAndItsAuditGoesOn(t *testing.T) {
	store, cache := storetest.NewMemory(), t.TempDir()
	first := create(t, store, "first", cachedIn(cache))
	for i := range 5 {
		require.NoError(t, first.Swap(t.Context(), observe(fmt.Sprint(i)), statefile.Event{Action: "Test"}))
	}
	store.Tamper("prod/state.json", nil)
	_, err := first.Load(t.Context())
	require.ErrorIs(t, err, statefile.ErrNotFound)

	second := open(t, store, "second", cachedIn(cache))
	require.NoError(t, second.Create(t.Context(), &statefile.State{Origin: statefile.OriginLost}))
	state, generation := second.Known()
	require.Equal(t, uint64(7), generation)
	require.Equal(t, uint64(7), state.Audit.Sequence)
	require.Equal(t, statefile.OriginLost, state.Origin)
	require.ErrorIs(t, first.Swap(t.Context(), observe("stale")), statefile.ErrOtherWriter)
	events := requireWholeAudit(t, store)
	require.Equal(t, "StateCreated", events[6].Action)
	require.Equal(t, map[string]string{"origin": "lost"}, events[6].Details)
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
