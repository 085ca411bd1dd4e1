package backup

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"ichor.maesh.dev/internal/diskspace"
	"ichor.maesh.dev/internal/filelock"
)

// spoolPrefix starts the name of everything in a spool folder.
const spoolPrefix = "ichor-spool-"

// lockName is the file in a folder of a spool that its process holds locked.
const lockName = ".lock"

// Spool is a private folder on disk for what is too large for memory. What a file in it holds is gone when the file is closed, and where
// the operating system lets an open file lose its name, also when the process dies. A folder in it is gone when it is closed, and after a
// crash at the next [OpenSpool].
type Spool struct {
	dir string
	// free asks how much room the disk has.
	free func(dir string) (int64, error)
}

// keptFree is what a snapshot on its way leaves free on the disk, and roomEvery after how many bytes of it that is asked: a machine that
// sends without end must not fill the disk on which the agent keeps what it remembers of every cluster.
const (
	keptFree  = 512 << 20
	roomEvery = 64 << 20
)

// OpenSpool makes the folder where it isn't there, for this user alone, and removes what a process that is gone left in it. A folder that is
// there keeps its rights, since it may be one for others too: what is put into it is readable by this user alone wherever it is.
func OpenSpool(dir string) (*Spool, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("spool: making the folder: %w", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("spool: %w", err)
	}
	for _, entry := range entries {
		if !strings.HasPrefix(entry.Name(), spoolPrefix) {
			continue
		}
		err := sweep(filepath.Join(dir, entry.Name()))
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrPermission) { // what isn't ours is left alone
			return nil, fmt.Errorf("spool: removing what an earlier process left: %w", err)
		}
	}
	return &Spool{dir: dir, free: diskspace.Free}, nil
}

// sweep removes a file, or a folder that no process holds. A folder without a lock may be one that is just being made.
func sweep(path string) error {
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	if info.IsDir() {
		lock, err := openLock(filepath.Join(path, lockName))
		switch {
		case errors.Is(err, fs.ErrNotExist):
			if time.Since(info.ModTime()) < time.Minute {
				return nil
			}
		case err != nil:
			return err
		default:
			free, err := filelock.Try(lock)
			if err = errors.Join(err, lock.Close()); err != nil || !free {
				return err
			}
		}
	}
	return os.RemoveAll(path)
}

// openLock opens the lock of a folder. What isn't a file has none: a pipe would wait for its other end.
func openLock(path string) (*os.File, error) {
	if info, err := os.Lstat(path); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(err, fs.ErrNotExist)
	}
	return os.Open(path)
}

// Free is how many bytes can still be written.
func (s *Spool) Free() (int64, error) {
	free, err := s.free(s.dir)
	if err != nil {
		return 0, fmt.Errorf("spool: %w", err)
	}
	return free, nil
}

// Need refuses a work, "the drill", that takes more room than there is.
func (s *Spool) Need(work string, bytes int64) error {
	free, err := s.Free()
	if err == nil && free < bytes {
		err = fmt.Errorf("%s needs %d MiB of disk and the spool folder has %d MiB left: make room, or give another folder", work, bytes>>20+1, free>>20)
	}
	return err
}

// Folder makes an empty folder for files that need names. Closing it is the end of it and of all that is in it.
func (s *Spool) Folder() (*SpoolFolder, error) {
	dir, err := os.MkdirTemp(s.dir, spoolPrefix+"*") // 0700
	if err != nil {
		return nil, fmt.Errorf("spool: %w", err)
	}
	f := &SpoolFolder{Dir: dir}
	if f.lock, err = os.OpenFile(filepath.Join(dir, lockName), os.O_CREATE|os.O_RDWR, 0o600); err == nil {
		_, err = filelock.Try(f.lock)
	}
	if err != nil {
		return nil, fmt.Errorf("spool: %w", errors.Join(err, f.Close()))
	}
	return f, nil
}

// SpoolFolder is a folder of a [Spool].
type SpoolFolder struct {
	// Dir is its path.
	Dir  string
	lock *os.File
}

// Write stores what is read in a new file of the folder, and gives its path. What can't be read is the reader's error, as it is; any other
// is the disk's.
func (f *SpoolFolder) Write(name string, content io.Reader) (path string, err error) {
	path = filepath.Join(f.Dir, name)
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return "", fmt.Errorf("spool: %w", err)
	}
	source := &origin{reader: content}
	_, err = io.Copy(file, source)
	if err = errors.Join(err, file.Close()); source.err != nil {
		return "", source.err
	}
	if err != nil {
		return "", fmt.Errorf("spool: writing the snapshot to disk: %w; make room in the spool folder", err)
	}
	return path, nil
}

// Close gives up the folder and what is in it.
func (f *SpoolFolder) Close() error {
	err := os.RemoveAll(f.Dir)
	if f.lock != nil {
		err = errors.Join(err, f.lock.Close())
	}
	if err != nil { // where an open file keeps its folder
		err = os.RemoveAll(f.Dir)
	}
	return err
}

// File makes an empty file. Closing it is the end of it.
func (s *Spool) File() (*SpoolFile, error) {
	file, err := os.CreateTemp(s.dir, spoolPrefix+"*") // 0600
	if err != nil {
		return nil, fmt.Errorf("spool: %w", err)
	}
	// Where an open file can't lose its name (Windows), Close removes it.
	named := os.Remove(file.Name()) != nil
	return &SpoolFile{File: file, named: named}, nil
}

// SpoolFile is a file of a [Spool].
type SpoolFile struct {
	*os.File
	named bool
}

// Close gives up the file and what it holds.
func (f *SpoolFile) Close() error {
	err := f.File.Close()
	if f.named {
		err = errors.Join(err, os.Remove(f.Name()))
	}
	return err
}
