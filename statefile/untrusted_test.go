package statefile_test

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/statefile/storetest"
)

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

func TestAStateWithNothingWhereAnEntryShouldBeIsNoState(t *testing.T) {
	kinds := map[string]string{}
	for field := range reflect.TypeFor[statefile.State]().Fields() {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		switch typ := field.Type; {
		case typ.Kind() == reflect.Map && typ.Elem().Kind() == reflect.Pointer:
			kinds[name] = `{"one":null}`
		case typ.Kind() == reflect.Slice && typ.Elem().Kind() == reflect.Pointer:
			kinds[name] = `[null]`
		}
	}
	require.Len(t, kinds, 4, "machines, joins, operations and backups")
	for name, value := range kinds {
		t.Run(name, func(t *testing.T) {
			store := storetest.NewMemory()
			content := `{"schemaVersion":1,"cluster":{"name":"prod","id":"","bundleFingerprint":""},"writer":{"id":"x","epoch":1},"` + name + `":` + value + `}`
			data, err := statefile.EncodeRecord(testSealer(t), "prod/state.json", 5, statefile.NewNonce(), []byte(content))
			require.NoError(t, err)
			store.Tamper("prod/state.json", data)
			_, err = open(t, store, "first").Load(t.Context())
			require.ErrorContains(t, err, "holds no state that an agent wrote")
			unsealed, err := statefile.OpenCluster(store, statefile.Options{Name: "prod"})
			require.NoError(t, err)
			_, err = unsealed.Load(t.Context())
			require.ErrorContains(t, err, "holds no state that an agent wrote")
		})
	}
}

func TestAStateThatWouldGrowInMemoryIsReadWithItsSealOnly(t *testing.T) {
	for name, part := range map[string]string{
		"empty operations": `"operations":[` + strings.TrimSuffix(strings.Repeat("{},", 100_000), ",") + `]`,
		"empty findings":   `"ready":{"status":false,"reason":""},"revision":{"notYet":[` + strings.TrimSuffix(strings.Repeat(`"",`, 1_100_000), ",") + `]}`,
	} {
		t.Run(name, func(t *testing.T) {
			store := storetest.NewMemory()
			data, err := statefile.EncodeRecord(testSealer(t), "prod/state.json", 5, statefile.NewNonce(), []byte(`{"schemaVersion":1,`+
				`"cluster":{"name":"prod","id":"","bundleFingerprint":""},"writer":{"id":"x","epoch":1},`+part+`}`))
			require.NoError(t, err)
			store.Tamper("prod/state.json", data)
			_, err = open(t, store, "first").Load(t.Context())
			require.NoError(t, err, "who holds the bundle is believed")
			unsealed, err := statefile.OpenCluster(store, statefile.Options{Name: "prod"})
			require.NoError(t, err)
			_, err = unsealed.Load(t.Context())
			require.ErrorContains(t, err, "not read without its seal")
		})
	}
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
