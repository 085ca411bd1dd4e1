package statefile

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"ichor.maesh.dev/internal/filelock"
)

// Names in a state folder that are no objects. Keys have no segment that starts with a dot.
const (
	agentLockName = ".agent.lock"
	writeLockName = ".write.lock"
	tempPrefix    = ".tmp-"
)

// lockRetry is how long a writer waits between tries for the write lock, which others hold for milliseconds.
const lockRetry = 5 * time.Millisecond

// folderTimeout bounds each call.
const folderTimeout = 10 * time.Second

// FolderOptions says how a folder is used.
type FolderOptions struct {
	// Agent takes the lock that only one agent may hold. Without it the folder can be read, and written between the agent's own
	// writes (`ichor state accept`).
	Agent bool
}

// folderStore keeps each object in a file. Its ETag is the SHA-256 of the content.
type folderStore struct {
	path  string
	root  *os.Root
	agent *os.File // the agent's lock, or nil

	mu sync.Mutex // one writer at a time in this process; the write lock is for others
	// create opens a new file for writing; tests put a full disk here.
	create func(name string) (tempFile, error)
}

// tempFile is what a file is written through before it gets its name.
type tempFile interface {
	io.WriteCloser
	Sync() error
}

// OpenFolder opens a store over a local folder, which it makes if it isn't there. Network file systems are refused, because locks
// and renames don't hold there what they promise. One agent at a time may use a folder.
func OpenFolder(folder string, opts FolderOptions) (Store, error) {
	store, err := openFolder(folder, opts, networkFileSystem)
	if err != nil {
		return nil, err
	}
	return store, nil
}

func openFolder(folder string, opts FolderOptions, network func(path string) string) (*folderStore, error) {
	absolute, err := filepath.Abs(folder)
	if err != nil {
		return nil, fmt.Errorf("opening the state folder %s: %w", folder, err)
	}
	if err := os.MkdirAll(absolute, 0o700); err != nil {
		return nil, fmt.Errorf("making the state folder %s: %w", absolute, plain(err))
	}
	if resolved, err := filepath.EvalSymlinks(absolute); err == nil {
		absolute = resolved
	}
	if kind := network(absolute); kind != "" {
		return nil, fmt.Errorf("the state folder %s is on a network file system (%s), where locks can't be trusted; "+
			"use a local folder, or s3://bucket/prefix", absolute, kind)
	}
	root, err := os.OpenRoot(absolute)
	if err != nil {
		return nil, fmt.Errorf("opening the state folder %s: %w", absolute, plain(err))
	}
	store := &folderStore{path: absolute, root: root}
	store.create = func(name string) (tempFile, error) {
		return root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	}
	if opts.Agent {
		if err := store.lockForAgent(); err != nil {
			_ = root.Close()
			return nil, err
		}
	}
	return store, nil
}

// lockForAgent takes the agent's lock and removes what an agent that was killed in the middle of a write left behind.
func (s *folderStore) lockForAgent() error {
	file, err := s.root.OpenFile(agentLockName, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("locking the state folder %s: %w", s.path, plain(err))
	}
	locked, err := filelock.Try(file)
	if err != nil || !locked {
		_ = file.Close()
		if err != nil {
			return fmt.Errorf("locking the state folder %s: %w", s.path, plain(err))
		}
		return fmt.Errorf("another agent works with the state folder %s; a folder is for one agent: stop the other, or use s3://bucket/prefix",
			s.path)
	}
	s.agent = file
	release, err := s.lockForWrite(context.Background())
	if err != nil {
		_ = file.Close()
		return err
	}
	defer release()
	return fs.WalkDir(s.root.FS(), ".", func(name string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() && strings.HasPrefix(path.Base(name), tempPrefix) {
			_ = s.root.Remove(name)
		}
		return nil
	})
}

func (s *folderStore) Location() string { return "file://" + machineID() + filepath.ToSlash(s.path) }

func (s *folderStore) Close() error {
	if s.agent != nil {
		_ = s.agent.Close() // gives the lock up
	}
	return s.root.Close()
}

func (s *folderStore) Get(ctx context.Context, key, known string) (*Object, error) {
	if err := checkCall(ctx, key); err != nil {
		return nil, fmt.Errorf("reading %s: %w", s.name(key), err)
	}
	data, modified, err := s.read(key)
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", s.name(key), err)
	}
	etag := etagOf(data)
	if etag == known {
		return nil, fmt.Errorf("reading %s: %w", s.name(key), ErrUnchanged)
	}
	return &Object{Key: key, Data: data, ETag: etag, Modified: modified}, nil
}

func (s *folderStore) read(key string) ([]byte, time.Time, error) {
	file, err := s.root.Open(filepath.FromSlash(key))
	if err != nil {
		return nil, time.Time{}, plain(err)
	}
	defer func() { _ = file.Close() }()
	info, err := file.Stat()
	switch {
	case err != nil:
		return nil, time.Time{}, plain(err)
	case info.IsDir():
		return nil, time.Time{}, ErrNotFound
	case !info.Mode().IsRegular():
		return nil, time.Time{}, errors.New("it is not a regular file")
	case info.Size() > MaxObject:
		return nil, time.Time{}, ErrTooLarge
	}
	data, err := io.ReadAll(io.LimitReader(file, MaxObject+1))
	switch {
	case err != nil:
		return nil, time.Time{}, plain(err)
	case int64(len(data)) != info.Size():
		return nil, time.Time{}, fmt.Errorf("%d bytes came of %d: %w", len(data), info.Size(), ErrUnavailable)
	}
	return data, info.ModTime(), nil
}

func (s *folderStore) Put(ctx context.Context, key string, data []byte, cond If) (string, error) {
	if err := checkCall(ctx, key); err != nil {
		return "", fmt.Errorf("writing %s was not begun: %w", s.name(key), err)
	}
	if len(data) > MaxObject {
		return "", fmt.Errorf("writing %s: %w", s.name(key), ErrTooLarge)
	}
	release, err := s.lockForWrite(ctx)
	if err != nil {
		return "", err
	}
	defer release()
	if err := s.meets(key, cond); err != nil {
		return "", fmt.Errorf("writing %s: %w", s.name(key), err)
	}
	if err := s.replace(key, data); err != nil {
		return "", fmt.Errorf("writing %s: %w", s.name(key), err)
	}
	return etagOf(data), nil
}

// meets says whether the condition holds, under the write lock.
func (s *folderStore) meets(key string, cond If) error {
	if cond == (If{}) {
		return nil
	}
	data, _, err := s.read(key)
	switch {
	case errors.Is(err, ErrNotFound):
		if cond.absent {
			return nil
		}
		return fmt.Errorf("%w (it is gone)", ErrConflict)
	case err != nil:
		return err
	case cond.absent || etagOf(data) != cond.etag:
		return ErrConflict
	}
	return nil
}

// replace puts the content under its name, whole or not at all: a new file is written, synced and renamed.
func (s *folderStore) replace(key string, data []byte) error {
	dir := path.Dir(key)
	if err := s.makeDirs(dir); err != nil {
		return fmt.Errorf("nothing was written: %w", plain(err))
	}
	temp := filepath.FromSlash(path.Join(dir, tempPrefix+NewNonce()))
	if err := s.writeTemp(temp, data); err != nil {
		_ = s.root.Remove(temp)
		return fmt.Errorf("nothing was written: %w", plain(err))
	}
	if err := s.root.Rename(temp, filepath.FromSlash(key)); err != nil {
		_ = s.root.Remove(temp)
		return fmt.Errorf("nothing was written: %w", plain(err))
	}
	if err := s.syncDir(dir); err != nil {
		return fmt.Errorf("%w: syncing its folder: %w", ErrUnacknowledged, plain(err))
	}
	return nil
}

func (s *folderStore) writeTemp(name string, data []byte) error {
	file, err := s.create(name)
	if err != nil {
		return err
	}
	if _, err := file.Write(data); err != nil {
		_ = file.Close()
		return err
	}
	if err := file.Sync(); err != nil {
		_ = file.Close()
		return err
	}
	return file.Close()
}

// makeDirs makes a folder and syncs those that hold a new one.
func (s *folderStore) makeDirs(dir string) error {
	if dir == "." {
		return nil
	}
	err := s.root.Mkdir(filepath.FromSlash(dir), 0o700)
	switch {
	case errors.Is(err, fs.ErrExist):
		return nil
	case errors.Is(err, fs.ErrNotExist):
		if err := s.makeDirs(path.Dir(dir)); err != nil {
			return err
		}
		if err := s.root.Mkdir(filepath.FromSlash(dir), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	case err != nil:
		return err
	}
	return s.syncDir(path.Dir(dir))
}

func (s *folderStore) syncDir(dir string) error {
	if runtime.GOOS == "windows" {
		return nil // folders can't be synced there
	}
	file, err := s.root.Open(filepath.FromSlash(dir))
	if err != nil {
		return err
	}
	if err := file.Sync(); err != nil {
		_ = file.Close()
		return err
	}
	return file.Close()
}

func (s *folderStore) Delete(ctx context.Context, key string) error {
	if err := checkCall(ctx, key); err != nil {
		return fmt.Errorf("deleting %s: %w", s.name(key), err)
	}
	release, err := s.lockForWrite(ctx)
	if err != nil {
		return err
	}
	defer release()
	if err := s.root.Remove(filepath.FromSlash(key)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("deleting %s: %w", s.name(key), plain(err))
	}
	return nil
}

func (s *folderStore) List(ctx context.Context, prefix, after string, fn func(ObjectInfo) error) error {
	if err := checkPrefix(prefix, true); err != nil {
		return fmt.Errorf("listing %s: %w", s.path, err)
	}
	return s.walk(ctx, "", prefix, after, fn)
}

// walk lists a folder ("" or "a/b/") in the order of the keys, in which a folder's name counts with its slash.
func (s *folderStore) walk(ctx context.Context, dir, prefix, after string, fn func(ObjectInfo) error) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("listing %s: %w", s.name(dir), err)
	}
	entries, err := fs.ReadDir(s.root.FS(), path.Clean("./"+dir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil // it went while it was listed
	}
	if err != nil {
		return fmt.Errorf("listing %s: %w", s.name(dir), plain(err))
	}
	keyOf := func(entry fs.DirEntry) string {
		if entry.IsDir() {
			return dir + entry.Name() + "/"
		}
		return dir + entry.Name()
	}
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(keyOf(a), keyOf(b)) })
	for _, entry := range entries {
		key := keyOf(entry)
		switch {
		case entry.IsDir() && !strings.HasPrefix(key, prefix) && !strings.HasPrefix(prefix, key):
			continue
		case entry.IsDir() && after > key && !strings.HasPrefix(after, key):
			continue // all of it comes before
		case entry.IsDir():
			err = s.walk(ctx, key, prefix, after, fn)
		case entry.Type().IsRegular() && strings.HasPrefix(key, prefix) && key > after && CheckKey(key) == nil:
			err = s.show(entry, key, fn)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *folderStore) show(entry fs.DirEntry, key string, fn func(ObjectInfo) error) error {
	info, err := entry.Info()
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("listing %s: %w", s.name(key), plain(err))
	}
	return fn(ObjectInfo{Key: key, Size: info.Size(), Modified: info.ModTime()})
}

// lockForWrite makes a condition and its write one step for every process on this machine.
func (s *folderStore) lockForWrite(ctx context.Context) (release func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, folderTimeout)
	defer cancel()
	s.mu.Lock()
	file, err := s.root.OpenFile(writeLockName, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		s.mu.Unlock()
		return nil, fmt.Errorf("locking the state folder %s for a write: %w", s.path, plain(err))
	}
	for {
		locked, err := filelock.Try(file)
		if locked {
			return func() {
				_ = file.Close()
				s.mu.Unlock()
			}, nil
		}
		if err != nil || !wait(ctx, lockRetry) {
			_ = file.Close()
			s.mu.Unlock()
			return nil, fmt.Errorf("nothing was written: %w: the write lock of %s is held: %w", ErrUnavailable, s.path, errors.Join(err, ctx.Err()))
		}
	}
}

func (s *folderStore) name(key string) string { return filepath.Join(s.path, filepath.FromSlash(key)) }

func checkCall(ctx context.Context, key string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return CheckKey(key)
}

func etagOf(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// plain says what a file error means, once and without the path that the caller names anyway.
func plain(err error) error {
	var pathErr *fs.PathError
	reason := err
	if errors.As(err, &pathErr) {
		reason = pathErr.Err
	}
	var linkErr *os.LinkError
	if errors.As(err, &linkErr) {
		reason = linkErr.Err
	}
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return fmt.Errorf("the disk is full: %w", reason)
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		return fmt.Errorf("%w: %w", ErrPermission, reason)
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		return fmt.Errorf("%w: %w", ErrNotFound, reason)
	}
	return reason
}

// machineID tells two machines apart whose folders have the same path. Empty where there is none.
func machineID() string {
	data, err := os.ReadFile("/etc/machine-id")
	if err != nil {
		return ""
	}
	id := strings.TrimSpace(string(data))
	if len(id) != 32 || CheckKey(id) != nil {
		return ""
	}
	return id
}
