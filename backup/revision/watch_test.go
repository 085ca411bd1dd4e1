package revision_test

import (
	"crypto/sha256"
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"ichor.maesh.dev/backup/revision"
)

// next is what a watch hears next.
func next(t *testing.T, watch clientv3.WatchChan) clientv3.WatchResponse {
	t.Helper()
	select {
	case heard, open := <-watch:
		require.True(t, open, "the watch ended without a word")
		return heard
	case <-bounded(t).Done():
		require.Fail(t, "the watch hears nothing")
		panic("unreachable")
	}
}

// watch begins a watch of everything and hears its first event, so that it is known to be open.
func watch(t *testing.T, client *clientv3.Client) clientv3.WatchChan {
	t.Helper()
	heard := client.Watch(t.Context(), "/registry/", clientv3.WithPrefix(), clientv3.WithCreatedNotify())
	require.True(t, next(t, heard).Created)
	at := put(t, client, "/registry/pods/default/watched", "by now")
	require.Equal(t, at, next(t, heard).Events[0].Kv.ModRevision)
	return heard
}

func requireCompacted(t *testing.T, heard clientv3.WatchResponse, target int64) {
	t.Helper()
	require.ErrorIs(t, heard.Err(), rpctypes.ErrCompacted)
	require.Equal(t, target, heard.CompactRevision)
}

func TestAWatchFromBeforeTheRestoreIsToldThatItsRevisionIsGone(t *testing.T) {
	place := newAddress(t)
	stop := place.serve(t, t.TempDir())
	client := place.dial(t)
	fill(t, client)
	before := everything(t, client)
	taken := save(t, client)
	heard := watch(t, client)

	sum := digest(t, taken)
	target, err := revision.Target(revision.Known{Snapshot: 221})
	require.NoError(t, err)
	raised, contents := rewrite(t, taken, target)
	require.Equal(t, sum, digest(t, taken), "the snapshot that was given is as it was")
	require.Equal(t, target, contents.Revision)
	require.EqualValues(t, len(before), contents.Keys)
	stop()
	stop = place.serve(t, place.restore(t, raised))
	requireCompacted(t, next(t, heard), target)
	require.Equal(t, before, everything(t, client), "key by key what was there when the snapshot was taken")
	require.Equal(t, target+1, put(t, client, "/registry/pods/default/new", "x"))
	between := watch(t, client)

	// The same snapshot once more: the restore before must not be wound back either.
	again, err := revision.Target(revision.Known{Snapshot: 221, LastRestore: target})
	require.NoError(t, err)
	raised, _ = rewrite(t, taken, again)
	stop()
	stop = place.serve(t, place.restore(t, raised))
	requireCompacted(t, next(t, between), again)
	require.Equal(t, before, everything(t, client))

	// A snapshot of an etcd whose revision was raised is counted, raised and restored as any other.
	put(t, client, "/registry/pods/default/later", "y")
	before = everything(t, client)
	taken = save(t, client)
	seen, err := revision.Look(bounded(t), taken)
	require.NoError(t, err)
	require.EqualValues(t, len(before), seen.Keys)
	require.Equal(t, again+1, seen.Revision)
	then, err := revision.LookUpTo(bounded(t), taken, again)
	require.NoError(t, err)
	require.EqualValues(t, len(before)-1, then.Keys, "as it was when it was restored")
	require.Equal(t, again, then.Revision)
	require.LessOrEqual(t, then.Compacted, again)
	raised, contents = rewrite(t, taken, again+2*revision.Step)
	require.EqualValues(t, len(before), contents.Keys)
	stop()
	place.serve(t, place.restore(t, raised))
	require.Equal(t, before, everything(t, client))
}

func TestWithoutRaisingTheRevisionAWatchMissesWhatHappensAndIsNotTold(t *testing.T) {
	place := newAddress(t)
	stop := place.serve(t, t.TempDir())
	client := place.dial(t)
	fill(t, client)
	taken := save(t, client)
	for n := range 30 {
		put(t, client, fmt.Sprintf("/registry/pods/default/lost-%d", n), "x")
	}
	heard := watch(t, client)
	stop()
	place.serve(t, place.restore(t, taken))
	first := put(t, client, "/registry/pods/default/missed", "x")
	at := first
	for range 60 {
		at = put(t, client, "/registry/pods/default/seen", "x")
	}
	told := next(t, heard)
	require.NoError(t, told.Err(), "no error says that anything is wrong")
	require.Greater(t, told.Events[0].Kv.ModRevision, first+1, "and what was written since the restore was not heard")
	require.LessOrEqual(t, told.Events[0].Kv.ModRevision, at)
}

func digest(t *testing.T, path string) [sha256.Size]byte {
	t.Helper()
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	return sha256.Sum256(data)
}
