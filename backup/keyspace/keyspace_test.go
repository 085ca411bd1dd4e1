package keyspace

import (
	"encoding/binary"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/bbolt"
)

// entry is one entry of a key space: etcd's key is the revision, and a t where the key was deleted.
type entry struct {
	revision int64
	key      string
	deleted  bool
	bare     bool // the mark that bumping a revision leaves: an entry without a value
}

func database(t *testing.T, entries ...entry) *bbolt.DB {
	t.Helper()
	db, err := bbolt.Open(filepath.Join(t.TempDir(), "db"), 0o600, nil)
	require.NoError(t, err)
	t.Cleanup(func() { _ = db.Close() })
	require.NoError(t, db.Update(func(tx *bbolt.Tx) error {
		bucket, err := tx.CreateBucket([]byte(keySpace))
		if err != nil {
			return err
		}
		for _, e := range entries {
			k := binary.BigEndian.AppendUint64(nil, uint64(e.revision))
			k = binary.BigEndian.AppendUint64(append(k, '_'), 0)
			if e.deleted {
				k = append(k, tombstone)
			}
			v := append([]byte{1<<3 | 2, byte(len(e.key))}, e.key...)
			if e.bare {
				v = nil
			}
			if err := bucket.Put(k, v); err != nil {
				return err
			}
		}
		return nil
	}))
	return db
}

func TestOnlyTheNewestEntryOfAKeyCountsUnlessItIsItsDeletion(t *testing.T) {
	db := database(t, entry{revision: 2, key: "/registry/pods/a/x"}, entry{revision: 3, key: "/registry/pods/a/x"}, entry{revision: 4, key: "/registry/minions/cp-1"},
		entry{revision: 5, key: "/registry/pods/a/y"}, entry{revision: 6, key: "/registry/pods/a/y", deleted: true},
		entry{revision: 7, key: "/registry/apiextensions.k8s.io/customresourcedefinitions/c"}, entry{revision: 8, key: "mine"})
	counts, err := Count(db)
	require.NoError(t, err)
	require.Equal(t, Counts{Revision: 8, Keys: 4, Resources: map[string]int64{"pods": 1, "nodes": 1, "apiextensions.k8s.io/customresourcedefinitions": 1},
		Nodes: []string{"cp-1"}}, counts)
}

func TestNodesAreNamedOnceAndOnlyThoseThatAreThere(t *testing.T) {
	db := database(t, entry{revision: 2, key: "/registry/minions/w-2"}, entry{revision: 3, key: "/registry/minions/cp-1"}, entry{revision: 4, key: "/registry/minions/w-2"},
		entry{revision: 5, key: "/registry/minions/w-1"}, entry{revision: 6, key: "/registry/minions/w-1", deleted: true}, entry{revision: 7, key: "/registry/minions"})
	counts, err := Count(db)
	require.NoError(t, err)
	require.Equal(t, []string{"cp-1", "w-2"}, counts.Nodes)
}

func TestWhatCameAfterARevisionIsLeftOut(t *testing.T) {
	db := database(t, entry{revision: 2, key: "/registry/pods/a/x"}, entry{revision: 5, key: "/registry/pods/a/x", deleted: true}, entry{revision: 6, key: "/registry/pods/a/z"})
	counts, err := CountUpTo(db, 4)
	require.NoError(t, err)
	require.Equal(t, Counts{Revision: 2, Keys: 1, Resources: map[string]int64{"pods": 1}}, counts)
}

func TestTheMarkOfABumpedRevisionIsNoKey(t *testing.T) {
	counts, err := Count(database(t, entry{revision: 2, key: "a"}, entry{revision: 1_000_000_002, bare: true}))
	require.NoError(t, err)
	require.Equal(t, Counts{Revision: 1_000_000_002, Keys: 1, Resources: map[string]int64{}}, counts)
}

func TestADatabaseThatIsNoKeySpaceIsAnError(t *testing.T) {
	db, err := bbolt.Open(filepath.Join(t.TempDir(), "db"), 0o600, nil)
	require.NoError(t, err)
	defer db.Close()
	_, err = Count(db)
	require.ErrorContains(t, err, "no key space")

	odd := database(t)
	require.NoError(t, odd.Update(func(tx *bbolt.Tx) error { return tx.Bucket([]byte(keySpace)).Put([]byte("short"), []byte("x")) }))
	_, err = Count(odd)
	require.ErrorContains(t, err, "key has 5 bytes")

	for name, value := range map[string][]byte{"it doesn't begin with a key": {9, 1, 'a'}, "its key is longer than itself": {1<<3 | 2, 200, 1}} {
		bad := database(t)
		require.NoError(t, bad.Update(func(tx *bbolt.Tx) error { return tx.Bucket([]byte(keySpace)).Put(make([]byte, revisionKeySize), value) }))
		_, err = Count(bad)
		require.ErrorContains(t, err, name)
	}
}
