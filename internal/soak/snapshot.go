package soak

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"

	"go.etcd.io/bbolt"

	"ichor.maesh.dev/backup/keyspace"
)

// agesOfData is how many states of its data an etcd goes through, growPeriod how long it stays in each: snapshots that were taken at different
// times are told apart by their keys.
const agesOfData = 6

// newSnapshots makes what an etcd streams at each of its ages: a database of etcd with ever more keys, and its trailer.
func newSnapshots() (snapshots [][]byte, err error) {
	for age := range agesOfData {
		snapshot, err := newSnapshot(int64(20+age), int64(100*(age+1)))
		if err != nil {
			return nil, fmt.Errorf("making a snapshot: %w", err)
		}
		snapshots = append(snapshots, snapshot)
	}
	return snapshots, nil
}

// newSnapshot is a database of etcd with so many keys, the newest of which is of this revision, and its trailer.
func newSnapshot(keys, revision int64) ([]byte, error) {
	dir, err := os.MkdirTemp("", "soak-snapshot-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	path := filepath.Join(dir, "db")
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{NoSync: true})
	if err != nil {
		return nil, err
	}
	err = db.Update(func(tx *bbolt.Tx) error {
		if _, err := tx.CreateBucket([]byte("meta")); err != nil {
			return err
		}
		bucket, err := tx.CreateBucket([]byte("key"))
		if err != nil {
			return err
		}
		for n := range keys {
			name := fmt.Appendf(nil, "/registry/configmaps/default/%d", n)
			entry := append([]byte{1<<3 | 2, byte(len(name))}, name...) // mvccpb.KeyValue, its field 1
			if err := bucket.Put(revisionKey(revision-keys+1+n), entry); err != nil {
				return err
			}
		}
		return nil
	})
	if err = firstOf(err, db.Close()); err != nil {
		return nil, err
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(data)
	return append(data, sum[:]...), nil
}

// revisionKey is the key under which etcd keeps what was written at a revision.
func revisionKey(revision int64) []byte {
	key := binary.BigEndian.AppendUint64(nil, uint64(revision))
	return binary.BigEndian.AppendUint64(append(key, '_'), 0)
}

// countSnapshot counts what a snapshot holds.
func countSnapshot(snapshot []byte) (keyspace.Counts, error) {
	dir, err := os.MkdirTemp("", "soak-snapshot-")
	if err != nil {
		return keyspace.Counts{}, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if len(snapshot) < sha256.Size {
		return keyspace.Counts{}, fmt.Errorf("a snapshot of %d bytes", len(snapshot))
	}
	path := filepath.Join(dir, "db")
	if err := os.WriteFile(path, snapshot[:len(snapshot)-sha256.Size], 0o600); err != nil {
		return keyspace.Counts{}, err
	}
	db, err := bbolt.Open(path, 0o400, &bbolt.Options{ReadOnly: true})
	if err != nil {
		return keyspace.Counts{}, err
	}
	counts, err := keyspace.Count(db)
	return counts, firstOf(err, db.Close())
}

func firstOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
