package revision_test

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/backup"
	"ichor.maesh.dev/backup/revision"
	"ichor.maesh.dev/internal/etcdfile"
)

// whole is a snapshot of an etcd that never ran, of some 2000 keys.
func whole(t testing.TB) []byte {
	t.Helper()
	path := filepath.Join(t.TempDir(), "snapshot.db")
	_, err := etcdfile.Write(path, etcdfile.Options{Keys: 2000, ValueSize: 300})
	require.NoError(t, err)
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	return data
}

// damaged is a snapshot whose trailer matches all the same.
func damaged(data []byte, change func(body []byte)) []byte {
	body := bytes.Clone(data[:len(data)-sha256.Size])
	change(body)
	sum := sha256.Sum256(body)
	return append(body, sum[:]...)
}

func store(t testing.TB, data []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "snapshot.db")
	require.NoError(t, os.WriteFile(path, data, 0o600))
	return path
}

func TestADamagedSnapshotIsAnErrorAndNothingIsWritten(t *testing.T) {
	data := whole(t)
	flipped := bytes.Clone(data)
	flipped[len(flipped)/2] ^= 1
	for name, bad := range map[string][]byte{
		"an empty file":                 {},
		"a trailer alone":               bytes.Repeat([]byte{1}, sha256.Size),
		"no trailer":                    data[:len(data)-sha256.Size],
		"one bit is flipped":            flipped,
		"it ends early":                 data[:len(data)-1024],
		"no database at all":            damaged(make([]byte, 8192+32), func([]byte) {}),
		"the meta pages are wiped":      damaged(data, func(b []byte) { clear(b[:8192]) }),
		"pages hold other pages' bytes": damaged(data, func(b []byte) { copy(b[4*4096:], b[2*4096:]) }),
		"every page but the meta pages": damaged(data, func(b []byte) {
			for n := range b[8192:] {
				b[8192+n] = 0xff
			}
		}),
		"it is cut in the middle": damaged(data, func(b []byte) { clear(b[len(b)/2:]) }),
	} {
		t.Run(name, func(t *testing.T) {
			from, to := store(t, bad), filepath.Join(t.TempDir(), "raised.db")
			var problem *revision.BadError
			_, err := revision.Rewrite(bounded(t), from, to, 1_000_000_000)
			require.ErrorAs(t, err, &problem)
			require.NoFileExists(t, to)
			_, err = revision.Look(bounded(t), from)
			require.ErrorAs(t, err, &problem)
		})
	}
}

func TestARevisionIsNeverWoundBack(t *testing.T) {
	from, to := store(t, whole(t)), filepath.Join(t.TempDir(), "raised.db")
	_, err := revision.Rewrite(bounded(t), from, to, 2001)
	require.ErrorContains(t, err, "it is at revision 2001 already, and is not wound back to 2001")
	require.NoFileExists(t, to)
	for _, target := range []int64{0, -1, 1<<62 + 1} {
		_, err = revision.Rewrite(bounded(t), from, to, target)
		require.ErrorContains(t, err, "no etcd comes to it")
	}
	require.NoError(t, os.WriteFile(to, []byte("x"), 0o600))
	_, err = revision.Rewrite(bounded(t), from, to, 5000)
	require.ErrorContains(t, err, "it is there already")
	kept, err := os.ReadFile(to)
	require.NoError(t, err)
	require.Equal(t, "x", string(kept), "a file that is there stays")
}

// A page of which some bytes lie is an error, or is not part of the key space: never a crash, and never a file with other keys.
func TestWhateverBytesLieTheKeysAreAllThereOrItIsAnError(t *testing.T) {
	data := whole(t)
	const rounds = 12
	for seed := range uint64(rounds) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 1))
			bad := damaged(data, func(b []byte) {
				page := random.IntN(len(b)/4096) * 4096
				for range 1 + random.IntN(8) {
					b[page+random.IntN(64)] = byte(random.Uint32())
				}
			})
			to := filepath.Join(t.TempDir(), "raised.db")
			contents, err := revision.Rewrite(bounded(t), store(t, bad), to, 1_000_000_000)
			if err != nil {
				var problem *revision.BadError
				require.ErrorAs(t, err, &problem)
				require.NoFileExists(t, to)
				return
			}
			seen, err := revision.Look(bounded(t), to)
			require.NoError(t, err)
			require.Equal(t, contents, seen)
			require.EqualValues(t, 1_000_000_000, seen.Revision)
		})
	}
}

func TestASnapshotIsMadeReadyOnDiskAndLeavesNothing(t *testing.T) {
	data, dir := whole(t), t.TempDir()
	spool, err := backup.OpenSpool(dir)
	require.NoError(t, err)
	prepared, err := revision.Prepare(bounded(t), bytes.NewReader(data), int64(len(data)), spool, func(own int64) (int64, error) {
		return revision.Target(revision.Known{Snapshot: own})
	})
	require.NoError(t, err)
	require.EqualValues(t, 2001, prepared.Before.Revision)
	require.EqualValues(t, 1_000_002_001, prepared.After.Revision)
	require.Equal(t, prepared.Before.Keys, prepared.After.Keys)
	ready, err := os.ReadFile(prepared.Path)
	require.NoError(t, err)
	require.EqualValues(t, len(ready), prepared.After.Size)
	require.NotEqual(t, data, ready)
	require.NoError(t, prepared.Close())

	plain, err := revision.Prepare(bounded(t), bytes.NewReader(data), int64(len(data)), spool, func(int64) (int64, error) { return 0, nil })
	require.NoError(t, err)
	same, err := os.ReadFile(plain.Path)
	require.NoError(t, err)
	require.Equal(t, data, same)
	require.NoError(t, plain.Close())

	for name, plain := range map[string]io.Reader{
		"the connection breaks": io.MultiReader(bytes.NewReader(data[:1000]), failing{errors.New("it was reset")}),
		"it is damaged":         io.MultiReader(bytes.NewReader(data[:1000]), failing{backup.ErrDamaged}),
		"it is no snapshot":     bytes.NewReader(data[:1000]),
	} {
		t.Run(name, func(t *testing.T) {
			_, err := revision.Prepare(bounded(t), plain, 1000, spool, func(int64) (int64, error) { return 0, nil })
			require.Error(t, err)
			var problem *revision.BadError
			require.Equal(t, name != "the connection breaks", errors.As(err, &problem))
		})
	}
	_, err = revision.Prepare(bounded(t), bytes.NewReader(data), 1<<60, spool, nil)
	require.ErrorContains(t, err, "MiB of disk and the spool folder has")
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, left)
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }
