package revision

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"time"

	"go.etcd.io/bbolt"
	"go.etcd.io/etcd/server/v3/storage/backend"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
	"go.etcd.io/etcd/server/v3/storage/schema"

	"ichor.maesh.dev/backup/keyspace"
	"ichor.maesh.dev/internal/childprocess"
)

// work is what a child is started for.
const work = "rewriting of a snapshot"

// sectorSize is what the length of a bbolt file is a multiple of; what is over is the trailer.
const sectorSize = 512

// order is what a child is to do: count what the snapshot From holds and, where To is given, write it there at revision Target.
type order struct {
	From   string `json:"from"`
	To     string `json:"to,omitempty"`
	Target int64  `json:"target,omitempty"`
	// UpTo counts only what was there at that revision; zero counts all.
	UpTo int64 `json:"upTo,omitempty"`
}

// RunIfChild does a child's work and ends the process if it was started as one; else it returns at once. The program calls it first.
func RunIfChild() {
	childprocess.RunIfChild(work, func(encoded []byte) (any, error) {
		var todo order
		if err := json.Unmarshal(encoded, &todo); err != nil {
			return nil, fmt.Errorf("the order doesn't parse: %w", err)
		}
		return do(todo)
	})
}

func do(todo order) (Contents, error) {
	var copied *os.File
	if todo.To != "" {
		var err error
		if copied, err = os.OpenFile(todo.To, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600); err != nil {
			return Contents{}, err
		}
		defer func() { _ = copied.Close() }()
	}
	size, err := readChecked(todo.From, copied)
	if err != nil {
		return Contents{}, err
	}
	before, compacted, err := countFile(todo.From, todo.UpTo)
	if err != nil {
		return Contents{}, err
	}
	if copied == nil {
		return Contents{Counts: before, Size: size, Compacted: compacted}, nil
	}
	if err := raise(todo.To, todo.Target); err != nil {
		return Contents{}, err
	}
	after, compacted, err := countFile(todo.To, 0)
	if err != nil {
		return Contents{}, fmt.Errorf("after its revision was raised: %w", err)
	}
	if after.Keys != before.Keys || after.Revision != todo.Target {
		return Contents{}, fmt.Errorf("raising its revision left %d keys of %d, at revision %d: its list of free pages lies", after.Keys, before.Keys, after.Revision)
	}
	size, err = seal(copied)
	return Contents{Counts: after, Size: size, Compacted: compacted}, err
}

// readChecked reads a snapshot, checks its trailer, and writes the database without it to copied where that is given. It gives the
// snapshot's size.
func readChecked(path string, copied *os.File) (int64, error) {
	from, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer func() { _ = from.Close() }()
	info, err := from.Stat()
	if err != nil {
		return 0, err
	}
	if info.Size()%sectorSize != sha256.Size || info.Size() < sectorSize {
		return 0, fmt.Errorf("it has %d bytes and so no trailer: it is not what Talos or etcdctl streams", info.Size())
	}
	sum := sha256.New()
	into := io.Writer(sum)
	if copied != nil {
		into = io.MultiWriter(sum, copied)
	}
	if _, err := io.CopyN(into, from, info.Size()-sha256.Size); err != nil {
		return 0, err
	}
	trailer := make([]byte, sha256.Size)
	if _, err := io.ReadFull(from, trailer); err != nil {
		return 0, err
	}
	if !bytes.Equal(trailer, sum.Sum(nil)) {
		return 0, errors.New("its SHA-256 trailer doesn't match: it ends early, or was changed")
	}
	return info.Size(), nil
}

func countFile(path string, upTo int64) (counts keyspace.Counts, compacted int64, err error) {
	db, err := bbolt.Open(path, 0o400, &bbolt.Options{ReadOnly: true, Timeout: time.Second})
	if err != nil {
		return counts, 0, fmt.Errorf("opening its database: %w", err)
	}
	if upTo == 0 {
		upTo = math.MaxInt64
	}
	counts, err = keyspace.CountUpTo(db, upTo)
	if err == nil {
		err = db.View(func(tx *bbolt.Tx) error {
			if meta := tx.Bucket(schema.Meta.Name()); meta != nil {
				if at := meta.Get(schema.FinishedCompactKeyName); len(at) > 0 {
					compacted = mvcc.BytesToRev(at).Main
				}
			}
			return nil
		})
	}
	return counts, compacted, errors.Join(err, db.Close())
}

// raise sets the newest revision of a database and marks it to be compacted, as etcdutl does.
func raise(path string, target int64) error {
	// An array of free pages takes the least memory. Nothing is synced: what a crash leaves is never used.
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{NoFreelistSync: true, NoSync: true, NoGrowSync: true, FreelistType: bbolt.FreelistArrayType,
		Timeout: time.Second})
	if err != nil {
		return fmt.Errorf("opening its database: %w", err)
	}
	err = db.Update(func(tx *bbolt.Tx) error {
		keys := tx.Bucket(schema.Key.Name())
		if keys == nil || tx.Bucket(schema.Meta.Name()) == nil {
			return errors.New("it is no database of etcd: it has no key space")
		}
		newest := mvcc.Revision{Main: 1}
		if last, _ := keys.Cursor().Last(); last != nil {
			newest = mvcc.BytesToRev(last)
		}
		if target <= newest.Main {
			return fmt.Errorf("it is at revision %d already, and is not wound back to %d", newest.Main, target)
		}
		writer := writer{tx: tx}
		writer.UnsafePut(schema.Key, mvcc.RevToBytes(mvcc.Revision{Main: target}, mvcc.NewRevBytes()), []byte{})
		mvcc.UnsafeSetScheduledCompact(&writer, target)
		return writer.err
	})
	var size int64
	if err == nil {
		err = db.View(func(tx *bbolt.Tx) error {
			size = tx.Size()
			return nil
		})
	}
	if err = errors.Join(err, db.Close()); err != nil {
		return err
	}
	return os.Truncate(path, size) // bbolt makes room ahead
}

// seal writes the trailer, and gives the file's size.
func seal(file *os.File) (int64, error) {
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return 0, err
	}
	sum := sha256.New()
	size, err := io.Copy(sum, file)
	if err != nil {
		return 0, err
	}
	n, err := file.Write(sum.Sum(nil))
	return size + int64(n), err
}

// writer lets etcd's own code write in a transaction.
type writer struct {
	tx  *bbolt.Tx
	err error
}

func (w *writer) bucket(b backend.Bucket) *bbolt.Bucket { return w.tx.Bucket(b.Name()) }

func (w *writer) UnsafePut(b backend.Bucket, key, value []byte) {
	w.err = errors.Join(w.err, w.bucket(b).Put(key, value))
}

func (w *writer) UnsafeSeqPut(b backend.Bucket, key, value []byte) { w.UnsafePut(b, key, value) }

func (w *writer) UnsafeDelete(b backend.Bucket, key []byte) {
	w.err = errors.Join(w.err, w.bucket(b).Delete(key))
}

func (w *writer) UnsafeCreateBucket(b backend.Bucket) {
	_, err := w.tx.CreateBucketIfNotExists(b.Name())
	w.err = errors.Join(w.err, err)
}

func (w *writer) UnsafeDeleteBucket(b backend.Bucket) {
	w.err = errors.Join(w.err, w.tx.DeleteBucket(b.Name()))
}
