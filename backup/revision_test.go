package backup

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/bbolt"
)

// EtcdDatabase makes a database as etcd keeps it, with revisions up to n, and gives its bytes.
func EtcdDatabase(t *testing.T, pageSize, n int, valueSize func() int, more ...string) []byte {
	t.Helper()
	db, err := bbolt.Open(filepath.Join(t.TempDir(), "db"), 0o600, &bbolt.Options{PageSize: pageSize, NoSync: true})
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close()) }()
	for from := 2; from <= n || from == 2; from += 1000 {
		require.NoError(t, db.Update(func(tx *bbolt.Tx) error {
			for _, name := range append([]string{"alarm", "auth", "cluster", "key", "lease", "members", "meta"}, more...) {
				if _, err := tx.CreateBucketIfNotExists([]byte(name)); err != nil {
					return err
				}
			}
			for revision := from; revision < from+1000 && revision <= n; revision++ {
				key := binary.BigEndian.AppendUint64(nil, uint64(revision))
				key = binary.BigEndian.AppendUint64(append(key, '_'), 0)
				if revision%7 == 0 {
					key = append(key, 't')
				}
				if err := tx.Bucket([]byte("key")).Put(key, make([]byte, valueSize())); err != nil {
					return err
				}
			}
			return tx.Bucket([]byte("meta")).Put([]byte("scheduledCompactRev"), make([]byte, 17))
		}))
	}
	if n > 4000 { // leaves free pages that still look like what they were
		require.NoError(t, db.Update(func(tx *bbolt.Tx) error {
			c := tx.Bucket([]byte("key")).Cursor()
			for k, _ := c.First(); k != nil && binary.BigEndian.Uint64(k) < uint64(n/2); k, _ = c.Next() {
				if err := c.Delete(); err != nil {
					return err
				}
			}
			return nil
		}))
	}
	var out []byte
	require.NoError(t, db.View(func(tx *bbolt.Tx) error {
		w := writerFunc(func(p []byte) (int, error) { out = append(out, p...); return len(p), nil })
		_, err := tx.WriteTo(w)
		return err
	}))
	return out
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func readRevision(data []byte, piece func() int) (int64, error) {
	r := newRevisionReader()
	for len(data) > 0 {
		n := min(piece(), len(data))
		_, _ = r.Write(data[:n])
		data = data[n:]
	}
	return r.revision()
}

func TestTheRevisionIsReadWhileTheStreamPasses(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	small := func() int { return 10 }
	mixed := func() int { return random.IntN(300) }
	large := func() int { return random.IntN(20_000) }
	huge := func() int { return 1 << 20 }
	many := make([]string, 300)
	for n := range many {
		many[n] = fmt.Sprintf("bucket-%03d", n)
	}
	for _, c := range []struct {
		name     string
		pageSize int
		n        int
		value    func() int
		more     []string
	}{
		{"no key at all", 4096, 1, small, nil},
		{"few keys, in their parent's page", 4096, 3, small, nil},
		{"one page", 4096, 40, small, nil},
		{"many pages", 4096, 20_000, mixed, nil},
		{"values longer than a page", 4096, 300, large, nil},
		{"values of a MiB", 4096, 9, huge, nil},
		{"large pages", 16384, 5000, mixed, nil},
		{"small pages", 1024, 6000, mixed, nil},
		{"so many buckets that their own tree has branches", 4096, 5000, mixed, many},
	} {
		t.Run(c.name, func(t *testing.T) {
			data := EtcdDatabase(t, c.pageSize, c.n, c.value, c.more...)
			for _, piece := range []func() int{func() int { return 1024 }, func() int { return 64 << 10 }, func() int { return 1 + random.IntN(9000) }} {
				got, err := readRevision(data, piece)
				require.NoError(t, err)
				require.EqualValues(t, max(c.n, 1), got)
			}
		})
	}
}

func TestALastKeyOverTheEdgeOfAPageIsRead(t *testing.T) {
	for size := 4096 - 120; size < 4096; size++ { // the second key of the leaf begins everywhere around the edge
		data := EtcdDatabase(t, 4096, 3, func() int { return size })
		got, err := readRevision(data, func() int { return 1024 })
		require.NoError(t, err, size)
		require.EqualValues(t, 3, got, size)
	}
}

func FuzzRevision(f *testing.F) {
	f.Add([]byte("not a database"), 100)
	f.Add(make([]byte, 8192), 4096)
	f.Fuzz(func(t *testing.T, data []byte, piece int) {
		_, _ = readRevision(data, func() int { return max(1, min(piece, 4096)) })
	})
}
