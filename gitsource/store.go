package gitsource

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/go-git/go-billy/v5/osfs"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/cache"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/go-git/go-git/v5/storage/filesystem"

	"ichor.maesh.dev/internal/printable"
)

const (
	// maxMeta bounds a commit or a tree object, in bytes.
	maxMeta = 16 << 20
	// cachedEntries and cachedCommits bound what the store keeps decoded.
	cachedEntries = 200_000
	cachedCommits = 50_000
	// objectCache bounds what go-git keeps of the pack, in bytes.
	objectCache = 16 << 20
)

// brokenCacheError says that the clone can't be read: it is thrown away at the next poll.
type brokenCacheError struct {
	hash  string
	cause error
}

func (e *brokenCacheError) Error() string {
	return fmt.Sprintf("object %.12s can't be read from the clone in the cache folder (%v); the clone is made anew at the next poll", e.hash, e.cause)
}
func (e *brokenCacheError) Unwrap() error { return e.cause }

// tooLargeError says that an object is larger than may be read.
type tooLargeError struct{ size, limit int64 }

func (e *tooLargeError) Error() string {
	return fmt.Sprintf("it is %d bytes and at most %d are read", e.size, e.limit)
}

// commit is what the store keeps of a commit object.
type commit struct {
	hash, tree plumbing.Hash
	parents    []plumbing.Hash
	committed  time.Time
	author     string
	subject    string
}

// store reads objects from the clone. It stays the same while the clone under it grows or is replaced, so a Revision outlives both.
type store struct {
	folder string

	mu sync.Mutex
	// storage is nil while there is no clone.
	storage *filesystem.Storage
	// broken is set when an object that must be there can't be read.
	broken  bool
	commits map[plumbing.Hash]*commit
	dirs    map[plumbing.Hash]*dir
	entries int // in dirs
}

func newStore(folder string) *store { return &store{folder: folder} }

// reopen looks at the clone anew, after a fetch or at the start.
func (s *store) reopen() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reopenLocked()
}

// replace lets swap put another clone in the place of this one, while nothing reads.
func (s *store) replace(swap func() error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closeLocked()
	defer s.reopenLocked()
	return swap()
}

func (s *store) reopenLocked() {
	s.closeLocked()
	s.commits, s.dirs, s.entries = map[plumbing.Hash]*commit{}, map[plumbing.Hash]*dir{}, 0
	s.broken = false
	if _, err := os.Stat(filepath.Join(s.folder, "objects", "pack")); err != nil {
		return
	}
	s.storage = filesystem.NewStorageWithOptions(osfs.New(s.folder, osfs.WithBoundOS()), cache.NewObjectLRU(objectCache),
		filesystem.Options{MaxOpenDescriptors: 64})
}

func (s *store) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closeLocked()
}

func (s *store) closeLocked() {
	if s.storage != nil {
		_ = s.storage.Close()
		s.storage = nil
	}
}

// usable tells whether there is a clone that isn't known to be broken.
func (s *store) usable() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.storage != nil && !s.broken
}

func (s *store) has(hash plumbing.Hash) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.hasLocked(hash)
}

func (s *store) hasLocked(hash plumbing.Hash) (has bool) {
	if s.storage == nil {
		return false
	}
	defer func() {
		if recover() != nil {
			s.broken, has = true, false
		}
	}()
	return s.storage.HasEncodedObject(hash) == nil
}

// read gives an object's content, whose hash is checked: neither a torn disk nor go-git's leniency gives other bytes.
func (s *store) read(hash plumbing.Hash, kind plumbing.ObjectType, limit int64) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.readLocked(hash, kind, limit)
}

func (s *store) readLocked(hash plumbing.Hash, kind plumbing.ObjectType, limit int64) ([]byte, error) {
	data, err := s.readRaw(hash, kind, limit)
	var tooLarge *tooLargeError
	if err == nil || errors.As(err, &tooLarge) {
		return data, err
	}
	s.broken = true
	return nil, &brokenCacheError{hash: hash.String(), cause: err}
}

func (s *store) readRaw(hash plumbing.Hash, kind plumbing.ObjectType, limit int64) (data []byte, err error) {
	defer func() {
		if reason := recover(); reason != nil {
			err = fmt.Errorf("%v", reason)
		}
	}()
	if s.storage == nil {
		return nil, errors.New("there is no clone")
	}
	if kind == plumbing.BlobObject { // before it is in memory; go-git needs longer to tell a size than to read a commit or folder
		size, err := s.storage.EncodedObjectSize(hash)
		if err != nil {
			return nil, err
		}
		if size > limit {
			return nil, &tooLargeError{size: size, limit: limit}
		}
	}
	encoded, err := s.storage.EncodedObject(kind, hash)
	if err != nil {
		return nil, err
	}
	if size := encoded.Size(); size > limit {
		return nil, &tooLargeError{size: size, limit: limit}
	}
	reader, err := encoded.Reader()
	if err != nil {
		return nil, err
	}
	defer func() { _ = reader.Close() }()
	data, err = io.ReadAll(io.LimitReader(reader, limit+1))
	if err != nil {
		return nil, err
	}
	if plumbing.ComputeHash(kind, data) != hash {
		return nil, errors.New("its content has another hash")
	}
	return data, nil
}

// size gives a file's size without reading it whole.
func (s *store) size(hash plumbing.Hash) (size int64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer func() {
		if reason := recover(); reason != nil {
			err = fmt.Errorf("%v", reason)
		}
		if err != nil {
			s.broken = true
			err = &brokenCacheError{hash: hash.String(), cause: err}
		}
	}()
	if s.storage == nil {
		return 0, errors.New("there is no clone")
	}
	return s.storage.EncodedObjectSize(hash)
}

func (s *store) commit(hash plumbing.Hash) (*commit, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.commits[hash]; c != nil {
		return c, nil
	}
	data, err := s.readLocked(hash, plumbing.CommitObject, maxMeta)
	if err != nil {
		return nil, err
	}
	c, err := decodeCommit(hash, data)
	if err != nil {
		return nil, err
	}
	if len(s.commits) >= cachedCommits {
		clear(s.commits)
	}
	s.commits[hash] = c
	return c, nil
}

// decodeCommit reads a commit object. Whoever can push can push any.
func decodeCommit(hash plumbing.Hash, data []byte) (c *commit, err error) {
	defer func() {
		if reason := recover(); reason != nil {
			c, err = nil, fmt.Errorf("commit %.12s can't be understood: %s", hash, printable.Text(fmt.Sprint(reason)))
		}
	}()
	encoded := &plumbing.MemoryObject{}
	encoded.SetType(plumbing.CommitObject)
	if _, err := encoded.Write(data); err != nil {
		return nil, err
	}
	var decoded object.Commit
	if err := decoded.Decode(encoded); err != nil {
		return nil, fmt.Errorf("commit %.12s can't be understood: %s", hash, printable.Text(err.Error()))
	}
	subject, _, _ := strings.Cut(strings.TrimSpace(decoded.Message), "\n")
	return &commit{
		hash:      hash,
		tree:      decoded.TreeHash,
		parents:   decoded.ParentHashes,
		committed: writable(decoded.Committer.When),
		author:    clip(printable.Text(strings.TrimSpace(decoded.Author.Name + " <" + decoded.Author.Email + ">"))),
		subject:   clip(printable.Text(subject)),
	}, nil
}

// writable is a time that can be written down: a commit may say that it is of any second of any year, and of any zone, and no state could be
// stored that holds such a one.
func writable(t time.Time) time.Time {
	const last = 253402300799 // 9999-12-31T23:59:59Z
	return time.Unix(min(max(t.Unix(), 0), last), 0).UTC()
}

func clip(text string) string {
	if len(text) <= 200 {
		return text
	}
	return strings.ToValidUTF8(text[:200], "") + "..."
}

// dir gives a decoded folder.
func (s *store) dir(hash plumbing.Hash) (*dir, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if d := s.dirs[hash]; d != nil {
		return d, nil
	}
	data, err := s.readLocked(hash, plumbing.TreeObject, maxMeta)
	if err != nil {
		return nil, err
	}
	d, err := decodeTree(data)
	if err != nil {
		return nil, err
	}
	if s.entries+len(d.entries) > cachedEntries {
		clear(s.dirs)
		s.entries = 0
	}
	s.dirs[hash] = d
	s.entries += len(d.entries)
	return d, nil
}
