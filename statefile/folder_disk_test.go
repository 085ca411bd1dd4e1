package statefile

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// fullDisk takes so many bytes and no more.
type fullDisk struct {
	*os.File
	room int
}

func (f *fullDisk) Write(data []byte) (int, error) {
	if len(data) <= f.room {
		return f.File.Write(data)
	}
	n, _ := f.File.Write(data[:f.room])
	return n, &os.PathError{Op: "write", Path: f.Name(), Err: syscall.ENOSPC}
}

// brokenSync takes what is written and can't keep it.
type brokenSync struct{ *os.File }

func (f *brokenSync) Sync() error { return &os.PathError{Op: "sync", Path: f.Name(), Err: syscall.EIO} }

func TestAFullDiskIsOneSentenceAndNothingIsHalfWritten(t *testing.T) {
	for name, test := range map[string]struct {
		create func(name string) (tempFile, error)
		says   string
		is     error
	}{
		"the disk is full": {func(name string) (tempFile, error) {
			file, err := os.Create(name)
			return &fullDisk{File: file, room: 3}, err
		}, "the disk is full", syscall.ENOSPC},
		"no file can be made": {func(name string) (tempFile, error) {
			return nil, &os.PathError{Op: "open", Path: name, Err: syscall.EACCES}
		}, "does not permit", ErrPermission},
		"the disk is broken": {func(name string) (tempFile, error) {
			file, err := os.Create(name)
			return &brokenSync{file}, err
		}, "input/output error", syscall.EIO},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			store, err := openFolder(dir, FolderOptions{Agent: true}, networkFileSystem)
			require.NoError(t, err)
			etag, err := store.Put(t.Context(), "prod/state.json", []byte("before"), IfAbsent())
			require.NoError(t, err)
			good := store.create
			store.create = func(name string) (tempFile, error) { return test.create(filepath.Join(dir, name)) }
			_, err = store.Put(t.Context(), "prod/state.json", []byte("after"), IfMatch(etag))
			require.ErrorIs(t, err, test.is)
			require.ErrorContains(t, err, "nothing was written")
			require.ErrorContains(t, err, test.says)
			require.NotErrorIs(t, err, ErrUnacknowledged)

			object, err := store.Get(t.Context(), "prod/state.json", "")
			require.NoError(t, err)
			require.Equal(t, "before", string(object.Data))
			entries, err := os.ReadDir(filepath.Join(dir, "prod"))
			require.NoError(t, err)
			require.Len(t, entries, 1)

			store.create = good
			_, err = store.Put(t.Context(), "prod/state.json", []byte("after"), IfMatch(etag))
			require.NoError(t, err, "it goes on when the cause is gone")
		})
	}
}

func TestAFolderOnANetworkFileSystemIsRefused(t *testing.T) {
	dir := t.TempDir()
	require.Empty(t, networkFileSystem(dir))
	_, err := openFolder(dir, FolderOptions{Agent: true}, func(path string) string {
		require.Equal(t, dir, path)
		return "NFS"
	})
	require.ErrorContains(t, err, "is on a network file system (NFS)")
	require.ErrorContains(t, err, "s3://bucket/prefix")
}
