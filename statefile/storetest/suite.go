package storetest

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/statefile"
)

// Suite runs the tests that every store must pass. Open gives an empty store each time.
func Suite(t *testing.T, open func(t *testing.T) statefile.Store) {
	for _, test := range []struct {
		name string
		run  func(t *testing.T, store statefile.Store)
	}{
		{"what is written is read back, with the ETag that the write gave", testReadBack},
		{"an absent object is not found, and deleting it is no error", testAbsent},
		{"an object is created once", testCreateOnce},
		{"an object is swapped only by who knows its ETag", testSwap},
		{"an absent object can't be swapped", testSwapAbsent},
		{"of eight that create one object, one succeeds", testCreateRace},
		{"writers that swap one object lose no update", testNoLostUpdate},
		{"a reader never sees half of a write", testNoTornRead},
		{"a read of what is known is unchanged", testUnchanged},
		{"a listing shows what a prefix holds, in order, after a key", testList},
		{"a listing goes past a thousand objects", testListMany},
		{"an object larger than the limit is refused and nothing is written", testTooLarge},
		{"a key that is no key is refused", testBadKeys},
		{"a call whose context has ended does nothing", testEndedContext},
	} {
		t.Run(test.name, func(t *testing.T) {
			store := open(t)
			t.Cleanup(func() { require.NoError(t, store.Close()) })
			test.run(t, store)
		})
	}
}

func put(t *testing.T, store statefile.Store, key, data string, cond statefile.If) string {
	t.Helper()
	etag, err := store.Put(t.Context(), key, []byte(data), cond)
	require.NoError(t, err)
	require.NotEmpty(t, etag)
	return etag
}

func read(t *testing.T, store statefile.Store, key string) string {
	t.Helper()
	object, err := store.Get(t.Context(), key, "")
	require.NoError(t, err)
	return string(object.Data)
}

func list(t *testing.T, store statefile.Store, prefix, after string) []string {
	t.Helper()
	var keys []string
	require.NoError(t, store.List(t.Context(), prefix, after, func(info statefile.ObjectInfo) error {
		keys = append(keys, info.Key)
		return nil
	}))
	return keys
}

func testReadBack(t *testing.T, store statefile.Store) {
	for _, data := range []string{"x", "", strings.Repeat("0123456789abcdef", 1<<16)} {
		etag := put(t, store, "prod/state.json", data, statefile.If{})
		object, err := store.Get(t.Context(), "prod/state.json", "")
		require.NoError(t, err)
		require.Equal(t, "prod/state.json", object.Key)
		require.Equal(t, len(data), len(object.Data))
		require.Equal(t, data, string(object.Data))
		require.Equal(t, etag, object.ETag)
		require.False(t, object.Modified.IsZero())
		require.Equal(t, etag, put(t, store, "prod/state.json", data, statefile.If{}), "equal content has an equal ETag")
	}
	data := []byte("mine")
	_, err := store.Put(t.Context(), "prod/state.json", data, statefile.If{})
	require.NoError(t, err)
	clear(data)
	object, err := store.Get(t.Context(), "prod/state.json", "")
	require.NoError(t, err)
	clear(object.Data)
	require.Equal(t, "mine", read(t, store, "prod/state.json"), "what was written, and what was read, is the caller's")
}

func testAbsent(t *testing.T, store statefile.Store) {
	_, err := store.Get(t.Context(), "prod/state.json", "")
	require.ErrorIs(t, err, statefile.ErrNotFound)
	require.ErrorContains(t, err, "prod")
	require.NoError(t, store.Delete(t.Context(), "prod/state.json"))
	require.Empty(t, list(t, store, "", ""))

	put(t, store, "prod/state.json", "1", statefile.If{})
	require.NoError(t, store.Delete(t.Context(), "prod/state.json"))
	_, err = store.Get(t.Context(), "prod/state.json", "")
	require.ErrorIs(t, err, statefile.ErrNotFound)
	_, err = store.Get(t.Context(), "prod", "")
	require.ErrorIs(t, err, statefile.ErrNotFound, "a folder is no object")
}

func testCreateOnce(t *testing.T, store statefile.Store) {
	put(t, store, "leases/shards.json", "1", statefile.IfAbsent())
	for _, data := range []string{"1", "2"} {
		_, err := store.Put(t.Context(), "leases/shards.json", []byte(data), statefile.IfAbsent())
		require.ErrorIs(t, err, statefile.ErrConflict)
	}
	require.Equal(t, "1", read(t, store, "leases/shards.json"))
}

func testSwap(t *testing.T, store statefile.Store) {
	first := put(t, store, "prod/state.json", "1", statefile.IfAbsent())
	second := put(t, store, "prod/state.json", "2", statefile.IfMatch(first))
	require.NotEqual(t, first, second)
	_, err := store.Put(t.Context(), "prod/state.json", []byte("3"), statefile.IfMatch(first))
	require.ErrorIs(t, err, statefile.ErrConflict)
	require.Equal(t, "2", read(t, store, "prod/state.json"))
}

func testSwapAbsent(t *testing.T, store statefile.Store) {
	etag := put(t, store, "prod/state.json", "1", statefile.If{})
	require.NoError(t, store.Delete(t.Context(), "prod/state.json"))
	_, err := store.Put(t.Context(), "prod/state.json", []byte("2"), statefile.IfMatch(etag))
	require.ErrorIs(t, err, statefile.ErrConflict)
	_, err = store.Get(t.Context(), "prod/state.json", "")
	require.ErrorIs(t, err, statefile.ErrNotFound)
}

func testCreateRace(t *testing.T, store statefile.Store) {
	for round := range 5 {
		key := fmt.Sprintf("race/%d.json", round)
		won := make([]bool, 8)
		var group sync.WaitGroup
		for i := range won {
			group.Go(func() {
				_, err := store.Put(t.Context(), key, []byte(strconv.Itoa(i)), statefile.IfAbsent())
				won[i] = err == nil
			})
		}
		group.Wait()
		var winners []string
		for i, ok := range won {
			if ok {
				winners = append(winners, strconv.Itoa(i))
			}
		}
		require.Len(t, winners, 1)
		require.Equal(t, winners[0], read(t, store, key))
	}
}

func testNoLostUpdate(t *testing.T, store statefile.Store) {
	const writers, each = 4, 10
	const mostLost = 1000 // each conflict is another's success, where the store doesn't invent them
	put(t, store, "count.json", "0 start", statefile.IfAbsent())
	var group sync.WaitGroup
	for writer := range writers {
		group.Go(func() {
			for i, lost := 0, 0; i < each; {
				object, err := store.Get(t.Context(), "count.json", "")
				if err != nil {
					t.Errorf("reading: %v", err)
					return
				}
				before, _, _ := strings.Cut(string(object.Data), " ")
				n, _ := strconv.Atoi(before)
				_, err = store.Put(t.Context(), "count.json", fmt.Appendf(nil, "%d %d-%d", n+1, writer, i), statefile.IfMatch(object.ETag))
				switch {
				case err == nil:
					i++
				case !errors.Is(err, statefile.ErrConflict) || lost == mostLost:
					t.Errorf("writing, after %d conflicts: %v", lost, err)
					return
				default:
					lost++
				}
			}
		})
	}
	group.Wait()
	after, _, _ := strings.Cut(read(t, store, "count.json"), " ")
	require.Equal(t, strconv.Itoa(writers*each), after)
}

func testNoTornRead(t *testing.T, store statefile.Store) {
	content := func(i int) string { return strings.Repeat(string(rune('a'+i%26)), 1000+i*3000) }
	put(t, store, "torn.json", content(0), statefile.If{})
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	for range 2 {
		group.Go(func() {
			for ctx.Err() == nil {
				object, err := store.Get(context.WithoutCancel(ctx), "torn.json", "")
				if err != nil {
					t.Errorf("reading: %v", err)
					return
				}
				first := object.Data[:1]
				if whole := strings.Count(string(object.Data), string(first)); whole != len(object.Data) || (whole-1000)%3000 != 0 {
					t.Errorf("%d bytes, %d of them %s", len(object.Data), whole, first)
					return
				}
			}
		})
	}
	for i := range 40 {
		put(t, store, "torn.json", content(i%10), statefile.If{})
	}
	cancel()
	group.Wait()
}

func testUnchanged(t *testing.T, store statefile.Store) {
	etag := put(t, store, "prod/state.json", "1", statefile.If{})
	_, err := store.Get(t.Context(), "prod/state.json", etag)
	require.ErrorIs(t, err, statefile.ErrUnchanged)
	put(t, store, "prod/state.json", "2", statefile.If{})
	object, err := store.Get(t.Context(), "prod/state.json", etag)
	require.NoError(t, err)
	require.Equal(t, "2", string(object.Data))
}

func testList(t *testing.T, store statefile.Store) {
	keys := []string{"a/audit/0000000001.json", "a/audit/0000000002.json", "a/state.json", "a.json", "ab/state.json", "b/state.json"}
	for _, key := range keys {
		put(t, store, key, key, statefile.If{})
	}
	require.Equal(t, []string{"a.json", "a/audit/0000000001.json", "a/audit/0000000002.json", "a/state.json", "ab/state.json", "b/state.json"},
		list(t, store, "", ""))
	require.Equal(t, []string{"a/audit/0000000001.json", "a/audit/0000000002.json", "a/state.json"}, list(t, store, "a/", ""))
	require.Equal(t, []string{"a/state.json", "ab/state.json"}, list(t, store, "a", "a/audit/0000000003.json"))
	require.Equal(t, []string{"a/audit/0000000002.json"}, list(t, store, "a/audit/", "a/audit/0000000001.json"))
	require.Empty(t, list(t, store, "a/inbox/", ""))
	require.Empty(t, list(t, store, "c/", ""))

	stop := fmt.Errorf("enough")
	seen := 0
	first, err := store.Get(t.Context(), "a.json", "")
	require.NoError(t, err)
	err = store.List(t.Context(), "", "", func(info statefile.ObjectInfo) error {
		require.Equal(t, int64(len(info.Key)), info.Size)
		require.Contains(t, []string{"", first.ETag}, info.ETag)
		require.False(t, info.Modified.IsZero())
		seen++
		return stop
	})
	require.ErrorIs(t, err, stop)
	require.Equal(t, 1, seen)
}

func testListMany(t *testing.T, store statefile.Store) {
	const objects, parallel = 1100, 8
	var group sync.WaitGroup
	for worker := range parallel {
		group.Go(func() {
			for i := worker; i < objects; i += parallel {
				if _, err := store.Put(t.Context(), fmt.Sprintf("many/%06d.json", i), []byte("x"), statefile.If{}); err != nil {
					t.Errorf("writing: %v", err)
					return
				}
			}
		})
	}
	group.Wait()
	keys := list(t, store, "many/", "")
	require.Len(t, keys, objects)
	for i, key := range keys {
		require.Equal(t, fmt.Sprintf("many/%06d.json", i), key)
	}
	require.Len(t, list(t, store, "many/", "many/000004.json"), objects-5)
}

func testTooLarge(t *testing.T, store statefile.Store) {
	_, err := store.Put(t.Context(), "large.json", make([]byte, statefile.MaxObject+1), statefile.If{})
	require.ErrorIs(t, err, statefile.ErrTooLarge)
	_, err = store.Get(t.Context(), "large.json", "")
	require.ErrorIs(t, err, statefile.ErrNotFound)
}

func testBadKeys(t *testing.T, store statefile.Store) {
	for _, key := range []string{"", "/", "a//b", "../a", "a/../b", ".hidden", "a/.b", "a b", "a\nb", "ä", "a/", strings.Repeat("a", 513)} {
		_, err := store.Put(t.Context(), key, []byte("x"), statefile.If{})
		require.Error(t, err, key)
		_, err = store.Get(t.Context(), key, "")
		require.Error(t, err, key)
		require.Error(t, store.Delete(t.Context(), key), key)
	}
	require.Empty(t, list(t, store, "", ""))
}

func testEndedContext(t *testing.T, store statefile.Store) {
	put(t, store, "there.json", "x", statefile.If{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := store.Put(ctx, "a.json", []byte("x"), statefile.If{})
	require.ErrorIs(t, err, context.Canceled)
	require.NotErrorIs(t, err, statefile.ErrUnacknowledged, "nothing was sent, and that is known")
	_, err = store.Get(ctx, "there.json", "")
	require.Error(t, err)
	require.Error(t, store.Delete(ctx, "there.json"))
	require.Error(t, store.List(ctx, "", "", func(statefile.ObjectInfo) error {
		t.Error("it shows an object")
		return nil
	}))
	require.Equal(t, []string{"there.json"}, list(t, store, "", ""))
}
