package statefile_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/statefile/storetest"
)

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
