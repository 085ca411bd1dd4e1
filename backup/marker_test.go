package backup_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/backup"
	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/statefile/storetest"
)

func sealerOf(t *testing.T, secret string) *statefile.Sealer {
	t.Helper()
	sealer, err := statefile.NewSealer("prod-id", secret, "")
	require.NoError(t, err)
	return sealer
}

func TestAMarkerIsSwappedByOneAtATime(t *testing.T) {
	store, sealer := storetest.NewMemory(), sealerOf(t, "a")
	first, second := backup.NewMarker(store, sealer), backup.NewMarker(store, sealer)
	require.ErrorContains(t, first.Swap(t.Context(), json.RawMessage(`{}`)), "without having been read")
	for _, m := range []*backup.Marker{first, second} {
		content, err := m.Read(t.Context())
		require.NoError(t, err)
		require.Nil(t, content)
	}
	require.NoError(t, first.Swap(t.Context(), json.RawMessage(`{"phase":"a"}`)))
	require.ErrorIs(t, second.Swap(t.Context(), json.RawMessage(`{"phase":"b"}`)), statefile.ErrConflict)
	require.ErrorContains(t, second.Swap(t.Context(), json.RawMessage(`{"phase":"b"}`)), "without having been read")
	require.NoError(t, first.Swap(t.Context(), json.RawMessage(`{"phase":"c"}`)), "who wrote it last goes on from that")
	content, err := second.Read(t.Context())
	require.NoError(t, err)
	require.JSONEq(t, `{"phase":"c"}`, string(content))
	require.NoError(t, second.Swap(t.Context(), json.RawMessage(`{"phase":"d"}`)))
	require.ErrorIs(t, first.Swap(t.Context(), json.RawMessage(`{"phase":"e"}`)), statefile.ErrConflict)
}

func TestAWriteOfTheMarkerWhoseAnswerIsLostIsFoundByItsNonce(t *testing.T) {
	for name, test := range map[string]struct {
		fault storetest.Fault
		done  bool
	}{
		"it was done":                         {storetest.LostReply, true},
		"it was done, and a copy was refused": {storetest.ConflictAfterEffect, true},
		"it never arrived":                    {storetest.LostRequest, false},
		"it comes after it was read back":     {storetest.LateRequest, false},
	} {
		t.Run(name, func(t *testing.T) {
			store := storetest.NewFaulty(storetest.NewMemory(), func(c storetest.Call) storetest.Fault {
				if c.Op == storetest.Put && c.N == 2 {
					return test.fault
				}
				return storetest.None
			})
			m := backup.NewMarker(store, sealerOf(t, "a"))
			_, err := m.Read(t.Context())
			require.NoError(t, err)
			err = m.Swap(t.Context(), json.RawMessage(`{"phase":"a"}`))
			if test.done {
				require.NoError(t, err)
				require.NoError(t, m.Swap(t.Context(), json.RawMessage(`{"phase":"b"}`)))
				return
			}
			require.ErrorIs(t, err, statefile.ErrUnacknowledged)
		})
	}
}

func TestAMarkerOfAnotherBundleIsForged(t *testing.T) {
	store := storetest.NewMemory()
	m := backup.NewMarker(store, sealerOf(t, "a"))
	_, err := m.Read(t.Context())
	require.NoError(t, err)
	require.NoError(t, m.Swap(t.Context(), json.RawMessage(`{"phase":"done"}`)))
	_, err = backup.NewMarker(store, sealerOf(t, "b")).Read(t.Context())
	var forged *statefile.StateForgedError
	require.ErrorAs(t, err, &forged)
}

func TestAMarkerStopsBackupsUntilItsRestoreHasEnded(t *testing.T) {
	bucket := bucketAt(t, startS3(t), "prod")
	d := backup.NewDestination(bucket, "prod", prod.owner(t))
	look := func() (under, ended bool) {
		c, err := d.Look(t.Context())
		require.NoError(t, err)
		return c.Marker, c.MarkerEnded
	}
	under, ended := look()
	require.False(t, under || ended)
	m := d.Marker()
	_, err := m.Read(t.Context())
	require.NoError(t, err)
	require.NoError(t, m.Swap(t.Context(), json.RawMessage(`{"phase":"joining"}`)))
	under, ended = look()
	require.True(t, under && !ended)
	require.NoError(t, m.Swap(t.Context(), json.RawMessage(`{"phase":"done"}`)))
	under, ended = look()
	require.True(t, !under && ended)
	// Who can write the bucket can't say that a restore has ended.
	_, err = bucket.Put(t.Context(), backup.MarkerKey, []byte(`{"phase":"done"}`), statefile.If{})
	require.NoError(t, err)
	under, ended = look()
	require.True(t, under && !ended)
}
