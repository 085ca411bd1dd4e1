package storetest_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/statefile/storetest"
)

const key = "prod/state.json"

// at lets a fault befall the nth call.
func at(n int, fault storetest.Fault) func(storetest.Call) storetest.Fault {
	return func(call storetest.Call) storetest.Fault {
		if call.N == n {
			return fault
		}
		return storetest.None
	}
}

// holds gives what the store behind a Faulty has under the key, "" where it has nothing.
func holds(memory *storetest.Memory) string { return string(memory.Snapshot()[key]) }

func TestAWriteHasTheErrorAndTheEffectOfItsFault(t *testing.T) {
	for _, test := range []struct {
		name  string
		fault storetest.Fault
		err   error
		// now is what the store holds after the call, later what it holds after the one that follows, last after two.
		now, later, last string
	}{
		{"without a fault it is done", storetest.None, nil, "new", "new", "new"},
		{"a lost request is never done", storetest.LostRequest, statefile.ErrUnacknowledged, "old", "old", "old"},
		{"of a write that is done the answer is lost", storetest.LostReply, statefile.ErrUnacknowledged, "new", "new", "new"},
		{"a late request comes after the next call", storetest.LateRequest, statefile.ErrUnacknowledged, "old", "old", "new"},
		{"a copy of a write that is done meets a conflict", storetest.ConflictAfterEffect, statefile.ErrConflict, "new", "new", "new"},
		{"a 503 proves nothing", storetest.Unavailable, statefile.ErrUnacknowledged, "old", "old", "old"},
		{"a fault of reads is none", storetest.ShortRead, nil, "new", "new", "new"},
		{"a fault of listings is none", storetest.StaleList, nil, "new", "new", "new"},
		{"a crash before it leaves what was there", storetest.CrashBefore, storetest.ErrCrashed, "old", "old", "old"},
		{"a crash after it leaves it done", storetest.CrashAfter, storetest.ErrCrashed, "new", "new", "new"},
	} {
		t.Run(test.name, func(t *testing.T) {
			memory := storetest.NewMemory()
			store := storetest.NewFaulty(memory, at(2, test.fault))
			etag, err := store.Put(t.Context(), key, []byte("old"), statefile.IfAbsent())
			require.NoError(t, err)
			data := []byte("new")
			etag, err = store.Put(t.Context(), key, data, statefile.IfMatch(etag))
			require.ErrorIs(t, err, test.err)
			require.Equal(t, test.err == nil, etag != "")
			clear(data) // it is the caller's again, also where it is on its way still
			require.Equal(t, test.now, holds(memory))
			for _, want := range []string{test.later, test.last} {
				object, err := store.Get(t.Context(), key, "")
				if store.Crashed() {
					require.ErrorIs(t, err, storetest.ErrCrashed)
					continue
				}
				require.NoError(t, err)
				require.Equal(t, want, string(object.Data))
			}
			require.Equal(t, test.last, holds(memory))
			require.Equal(t, 4, store.Calls())
		})
	}
}

func TestALateRequestThatWasOvertakenMeetsItsCondition(t *testing.T) {
	memory := storetest.NewMemory()
	store := storetest.NewFaulty(memory, at(1, storetest.LateRequest))
	_, err := store.Put(t.Context(), key, []byte("late"), statefile.IfAbsent())
	require.ErrorIs(t, err, statefile.ErrUnacknowledged)
	_, err = store.Put(t.Context(), key, []byte("next"), statefile.IfAbsent())
	require.NoError(t, err, "the late one is on its way still")
	_, err = store.Get(t.Context(), key, "")
	require.NoError(t, err)
	require.Equal(t, "next", holds(memory))
}

func TestALateRequestComesAlsoWhenItsCallerHasGivenUp(t *testing.T) {
	memory := storetest.NewMemory()
	store := storetest.NewFaulty(memory, at(1, storetest.LateRequest))
	ctx, cancel := context.WithCancel(t.Context())
	_, err := store.Put(ctx, key, []byte("late"), statefile.If{})
	require.ErrorIs(t, err, statefile.ErrUnacknowledged)
	cancel()
	for range 2 {
		_, _ = store.Get(t.Context(), key, "")
	}
	require.Equal(t, "late", holds(memory))
}

func TestAReadHasTheErrorOfItsFault(t *testing.T) {
	for _, test := range []struct {
		name  string
		fault storetest.Fault
		err   error
	}{
		{"without a fault it is answered", storetest.None, nil},
		{"a 503 is unavailable", storetest.Unavailable, statefile.ErrUnavailable},
		{"content that came up short is unavailable", storetest.ShortRead, statefile.ErrUnavailable},
		{"a crash before it", storetest.CrashBefore, storetest.ErrCrashed},
		{"a crash after it", storetest.CrashAfter, storetest.ErrCrashed},
		{"a lost request is a fault of writes", storetest.LostRequest, nil},
		{"a lost reply is a fault of writes", storetest.LostReply, nil},
		{"a late request is a fault of writes", storetest.LateRequest, nil},
		{"a conflict is a fault of writes", storetest.ConflictAfterEffect, nil},
		{"a stale listing is a fault of listings", storetest.StaleList, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			memory := storetest.NewMemory()
			memory.Tamper(key, []byte("old"))
			store := storetest.NewFaulty(memory, at(1, test.fault))
			object, err := store.Get(t.Context(), key, "")
			if test.err != nil {
				require.ErrorIs(t, err, test.err)
				require.Nil(t, object)
				require.ErrorContains(t, err, map[bool]string{true: "crashed", false: key}[errors.Is(err, storetest.ErrCrashed)])
				return
			}
			require.NoError(t, err)
			require.Equal(t, "old", string(object.Data))
		})
	}
}

func TestADeletionHasTheErrorAndTheEffectOfItsFault(t *testing.T) {
	for _, test := range []struct {
		name  string
		fault storetest.Fault
		err   error
		left  string
	}{
		{"without a fault it is done", storetest.None, nil, ""},
		{"a lost request is never done", storetest.LostRequest, statefile.ErrUnavailable, "old"},
		{"of one that is done the answer is lost", storetest.LostReply, statefile.ErrUnavailable, ""},
		{"a 503 leaves the object", storetest.Unavailable, statefile.ErrUnavailable, "old"},
		{"a crash before it leaves the object", storetest.CrashBefore, storetest.ErrCrashed, "old"},
		{"a crash after it leaves none", storetest.CrashAfter, storetest.ErrCrashed, ""},
		{"a late request is none", storetest.LateRequest, nil, ""},
		{"a conflict is none", storetest.ConflictAfterEffect, nil, ""},
		{"a short read is none", storetest.ShortRead, nil, ""},
		{"a stale listing is none", storetest.StaleList, nil, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			memory := storetest.NewMemory()
			memory.Tamper(key, []byte("old"))
			store := storetest.NewFaulty(memory, at(1, test.fault))
			require.ErrorIs(t, store.Delete(t.Context(), key), test.err)
			require.Equal(t, test.left, holds(memory))
		})
	}
}

func TestAListingHasTheErrorOfItsFaultAndShowsWhatItLeaves(t *testing.T) {
	for _, test := range []struct {
		name  string
		fault storetest.Fault
		err   error
		shown []string
	}{
		{"without a fault it is whole", storetest.None, nil, []string{"a", "b", "c"}},
		{"a 503 shows nothing", storetest.Unavailable, statefile.ErrUnavailable, nil},
		{"one that breaks off has shown its first object", storetest.ShortRead, statefile.ErrUnavailable, []string{"a"}},
		{"a stale one hides what was last put", storetest.StaleList, nil, []string{"a", "c"}},
		{"a crash before it", storetest.CrashBefore, storetest.ErrCrashed, nil},
		{"a crash after it", storetest.CrashAfter, storetest.ErrCrashed, nil},
		{"a lost request is a fault of writes", storetest.LostRequest, nil, []string{"a", "b", "c"}},
		{"a lost reply is a fault of writes", storetest.LostReply, nil, []string{"a", "b", "c"}},
		{"a late request is a fault of writes", storetest.LateRequest, nil, []string{"a", "b", "c"}},
		{"a conflict is a fault of writes", storetest.ConflictAfterEffect, nil, []string{"a", "b", "c"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			store := storetest.NewFaulty(storetest.NewMemory(), at(5, test.fault))
			for _, one := range []string{"a", "c", "b"} {
				_, err := store.Put(t.Context(), one, []byte("x"), statefile.If{})
				require.NoError(t, err)
			}
			_, err := store.Put(t.Context(), "c", []byte("x"), statefile.IfAbsent())
			require.ErrorIs(t, err, statefile.ErrConflict, "what is refused was not put")
			shown, err := keysOf(t, store)
			require.ErrorIs(t, err, test.err)
			require.Equal(t, test.shown, shown)
		})
	}
}

func TestAStaleListingHidesAlsoWhatWasPutWithoutAnAnswer(t *testing.T) {
	for name, fault := range map[string]storetest.Fault{
		"its answer was lost": storetest.LostReply, "a copy of it met a conflict": storetest.ConflictAfterEffect, "it came late": storetest.LateRequest,
	} {
		t.Run(name, func(t *testing.T) {
			store := storetest.NewFaulty(storetest.NewMemory(), func(call storetest.Call) storetest.Fault {
				switch {
				case call.Op == storetest.List:
					return storetest.StaleList
				case call.Key == "b":
					return fault
				}
				return storetest.None
			})
			_, err := store.Put(t.Context(), "a", []byte("x"), statefile.If{})
			require.NoError(t, err)
			_, err = store.Put(t.Context(), "b", []byte("x"), statefile.If{})
			require.Error(t, err)
			_, err = store.Get(t.Context(), "a", "")
			require.NoError(t, err)
			shown, err := keysOf(t, store)
			require.NoError(t, err)
			require.Equal(t, []string{"a"}, shown)
		})
	}
}

func TestAListingThatBreaksOffHasTheErrorOfWhomItShowsTo(t *testing.T) {
	memory := storetest.NewMemory()
	memory.Tamper(key, []byte("old"))
	enough := errors.New("enough")
	err := storetest.NewFaulty(memory, at(1, storetest.ShortRead)).List(t.Context(), "", "", func(statefile.ObjectInfo) error { return enough })
	require.ErrorIs(t, err, enough)
}

func TestAProcessThatCrashedMakesNoCall(t *testing.T) {
	for name, after := range map[string]bool{"before the effect": false, "after the effect": true} {
		t.Run(name, func(t *testing.T) {
			memory := storetest.NewMemory()
			store := storetest.CrashAt(memory, 2, after)
			_, err := store.Put(t.Context(), key, []byte("first"), statefile.If{})
			require.NoError(t, err)
			require.False(t, store.Crashed())
			_, err = store.Put(t.Context(), key, []byte("second"), statefile.If{})
			require.ErrorIs(t, err, storetest.ErrCrashed)
			require.True(t, store.Crashed())
			left := map[bool]string{false: "first", true: "second"}[after]
			require.Equal(t, left, holds(memory))

			_, err = store.Put(t.Context(), key, []byte("third"), statefile.If{})
			require.ErrorIs(t, err, storetest.ErrCrashed)
			_, err = store.Get(t.Context(), key, "")
			require.ErrorIs(t, err, storetest.ErrCrashed)
			require.ErrorIs(t, store.Delete(t.Context(), key), storetest.ErrCrashed)
			_, err = keysOf(t, store)
			require.ErrorIs(t, err, storetest.ErrCrashed)
			require.Equal(t, left, holds(memory))
			require.Equal(t, 6, store.Calls())
		})
	}
}

func TestACallIsToldToWhoDecides(t *testing.T) {
	var calls []storetest.Call
	store := storetest.NewFaulty(storetest.NewMemory(), func(call storetest.Call) storetest.Fault {
		calls = append(calls, call)
		return storetest.None
	})
	_, _ = store.Put(t.Context(), "a", nil, statefile.If{})
	_, _ = store.Get(t.Context(), "a", "")
	_, _ = keysOf(t, store)
	_ = store.Delete(t.Context(), "a")
	require.Equal(t, []storetest.Call{{1, storetest.Put, "a"}, {2, storetest.Get, "a"}, {3, storetest.List, ""}, {4, storetest.Delete, "a"}}, calls)
}

func keysOf(t *testing.T, store statefile.Store) (keys []string, err error) {
	t.Helper()
	err = store.List(t.Context(), "", "", func(info statefile.ObjectInfo) error {
		keys = append(keys, info.Key)
		return nil
	})
	return keys, err
}
