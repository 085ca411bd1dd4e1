// Package etcdfile makes snapshots as Talos streams them, of an etcd that never ran, for tests and benchmarks: of any size, in seconds.
// etcd's own code restores them.
package etcdfile

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"
	"os"

	"go.etcd.io/bbolt"
	"go.etcd.io/etcd/api/v3/mvccpb"
)

// batch is about how many bytes go into one transaction.
const batch = 16 << 20

// Options say what a snapshot holds.
type Options struct {
	// Keys is how many keys there are; key n has revision n+2.
	Keys int
	// ValueSize is of each value, in bytes. The bytes don't repeat.
	ValueSize int
	// Name gives a key's name; nil: pods of Kubernetes.
	Name func(n int) string
}

// Write makes the file of a snapshot: a database and its trailer. It gives the file's size.
func Write(path string, o Options) (int64, error) {
	if o.Name == nil {
		o.Name = func(n int) string { return fmt.Sprintf("/registry/pods/default/web-%07d", n) }
	}
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{NoSync: true, NoFreelistSync: true})
	if err != nil {
		return 0, err
	}
	if err := fill(db, o); err != nil {
		_ = db.Close()
		return 0, err
	}
	if err := db.Close(); err != nil {
		return 0, err
	}
	return appendTrailer(path)
}

func fill(db *bbolt.DB, o Options) error {
	err := db.Update(func(tx *bbolt.Tx) error {
		for _, name := range []string{"alarm", "auth", "authRoles", "authUsers", "cluster", "key", "lease", "members", "members_removed", "meta"} {
			if _, err := tx.CreateBucketIfNotExists([]byte(name)); err != nil {
				return err
			}
		}
		meta := tx.Bucket([]byte("meta"))
		if err := meta.Put([]byte("consistent_index"), binary.BigEndian.AppendUint64(nil, uint64(o.Keys)+10)); err != nil {
			return err
		}
		return meta.Put([]byte("term"), binary.BigEndian.AppendUint64(nil, 2))
	})
	for from := 0; from < o.Keys && err == nil; {
		err = db.Update(func(tx *bbolt.Tx) error {
			bucket := tx.Bucket([]byte("key"))
			bucket.FillPercent = 0.95 // keys come in order
			for written := 0; from < o.Keys && written < batch; from++ {
				entry, err := encode(o, from)
				if err != nil {
					return err
				}
				if err := bucket.Put(revisionKey(from), entry); err != nil {
					return err
				}
				written += len(entry)
			}
			return nil
		})
	}
	return err
}

func revisionKey(n int) []byte {
	key := binary.BigEndian.AppendUint64(make([]byte, 0, 17), uint64(n)+2)
	return binary.BigEndian.AppendUint64(append(key, '_'), 0)
}

func encode(o Options, n int) ([]byte, error) {
	value := make([]byte, o.ValueSize)
	for at, seed := 0, uint64(n)*0x9E3779B97F4A7C15+1; at < len(value); at++ {
		if at%8 == 0 {
			seed ^= seed << 13
			seed ^= seed >> 7
			seed ^= seed << 17
		}
		value[at] = byte(seed >> (8 * (at % 8)))
	}
	kv := mvccpb.KeyValue{Key: []byte(o.Name(n)), Value: value, CreateRevision: int64(n) + 2, ModRevision: int64(n) + 2, Version: 1}
	return kv.Marshal()
}

func appendTrailer(path string) (int64, error) {
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return 0, err
	}
	defer func() { _ = file.Close() }()
	sum := sha256.New()
	size, err := io.Copy(sum, file)
	if err != nil {
		return 0, err
	}
	_, err = file.Write(sum.Sum(nil))
	return size + sha256.Size, err
}
