package statefile_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/statefile/storetest"
)

func TestTheBellRingsForEachOperationThatIsPutIntoAnInbox(t *testing.T) {
	ctx, store := context.Background(), storetest.NewMemory()
	bell := statefile.NewBell(store)
	rings := func() uint64 {
		t.Helper()
		n, err := bell.Rings(ctx)
		require.NoError(t, err)
		return n
	}
	first := rings()
	require.Equal(t, first, rings(), "nothing was put there")
	require.NoError(t, statefile.PutInbox(ctx, store, "prod", "a", []byte("file"), []byte("signature")))
	second := rings()
	require.NotEqual(t, first, second)
	require.Equal(t, second, rings())
	require.NoError(t, statefile.PutInbox(ctx, store, "staging", "a", []byte("file"), []byte("signature")))
	third := rings()
	require.NotEqual(t, second, third, "whichever cluster it is for")
	require.NoError(t, statefile.PutInbox(ctx, store, "staging", "a", []byte("file"), []byte("signature")))
	require.NotEqual(t, third, rings(), "the same once more rings too: the first may have died before it did")
	before := rings()
	require.NoError(t, store.Delete(ctx, "leases/inbox.json"))
	require.NotEqual(t, before, rings(), "who takes the bell away is noticed")
}

func TestWhatCannotRingIsInTheInboxAllTheSame(t *testing.T) {
	ctx, store := context.Background(), &stopping{Memory: storetest.NewMemory(), left: 2}
	require.ErrorIs(t, statefile.PutInbox(ctx, store, "prod", "reboot", []byte("file"), []byte("signature")), statefile.ErrNotRung)
	files, _, err := statefile.ReadInbox(ctx, store, "prod")
	require.NoError(t, err)
	require.Len(t, files, 1)
	store.left = 2
	require.NoError(t, statefile.PutInbox(ctx, store, "prod", "reboot", []byte("file"), []byte("signature")), "again, and it rings")
}
