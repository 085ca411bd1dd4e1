package gitsource

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/go-git/go-git/v5/plumbing"
	"k8s.io/utils/clock"

	"ichor.maesh.dev/internal/printable"
)

// ErrNone says that there is no such revision yet: nothing was seen, or nothing was marked good.
var ErrNone = errors.New("no revision yet")

// Source is one branch of one repository. Its methods may be called from several goroutines; only Poll uses the network.
type Source struct {
	config   Config
	clock    clock.Clock
	location location
	lock     *os.File
	store    *store
	history  *history

	// polling is held for a whole Poll, and guards what only Poll uses.
	polling sync.Mutex
	http    *http.Transport
	httpCA  []byte
	// rewound is set once AllowRewind let a tip pass.
	rewound bool
	// lost is a commit that was seen and that the server no longer sends: no use in cloning for it again.
	lost string
	// refused is the tip that was last refused because it rewinds history.
	refused RewoundError
	// maxPacks is how many packs the clone may grow to, one a fetch, before it is made anew as one.
	maxPacks int

	mu      sync.Mutex
	closed  bool
	record  record
	current *Revision
	stats   Stats
}

// Stats counts what a Source did since it was opened.
type Stats struct {
	// Polls is how often the server was asked where the branch stands; Fetches how often objects were asked of it, Clones
	// included; Clones how often the whole history was.
	Polls, Fetches, Clones int64
	// LastSuccess is when a poll last succeeded; zero if none did.
	LastSuccess time.Time
}

// Open checks the config and takes the cache folder. It does not use the network; what is wrong with credentials or the server
// is an error of Poll.
func Open(config Config, clk clock.Clock) (*Source, error) {
	where, err := parseLocation(config.URL)
	if err != nil {
		return nil, err
	}
	if err := config.check(where); err != nil {
		return nil, err
	}
	if config.Cache, err = filepath.Abs(config.Cache); err != nil {
		return nil, explainCache(config.Cache, err)
	}
	s := &Source{config: config.withDefaults(), clock: clk, location: where, maxPacks: 200}
	if err := os.MkdirAll(config.Cache, 0o700); err != nil {
		return nil, explainCache(config.Cache, err)
	}
	lock, free, err := lockFile(filepath.Join(config.Cache, "lock"))
	if err != nil {
		return nil, explainCache(config.Cache, err)
	}
	if !free {
		return nil, fmt.Errorf("the cache folder %s is in use by another ichor; stop that one, or give another folder by --cache", config.Cache)
	}
	s.lock = lock
	if s.record, err = readRecord(s.recordPath()); err != nil {
		_ = unlockFile(lock)
		return nil, err
	}
	if other := s.record.Repository; other != "" && other != where.shown {
		_ = unlockFile(lock)
		return nil, fmt.Errorf("the cache folder %s is that of another repository, %s: commits of the one must not be taken for those of the other; give "+
			"another folder by --cache, or, if the repository has moved, remove this one", config.Cache, printable.Text(other))
	}
	s.sweep()
	s.store = newStore(s.clonePath())
	s.store.reopen()
	s.history = newHistory(s.store)
	return s, nil
}

// sweep removes what an earlier process left half done.
func (s *Source) sweep() {
	_ = os.RemoveAll(s.newClonePath())
	torn, _ := filepath.Glob(filepath.Join(s.config.Cache, ".new-*"))
	for _, file := range torn {
		_ = os.Remove(file)
	}
	sweepPacks(s.clonePath())
}

func (s *Source) recordPath() string   { return filepath.Join(s.config.Cache, "record.json") }
func (s *Source) clonePath() string    { return filepath.Join(s.config.Cache, "clone.git") }
func (s *Source) newClonePath() string { return filepath.Join(s.config.Cache, "clone.new") }

// Close gives the cache folder back. It waits for a Poll that runs.
func (s *Source) Close() error {
	s.polling.Lock()
	defer s.polling.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	if s.http != nil {
		s.http.CloseIdleConnections()
	}
	s.store.close()
	return unlockFile(s.lock)
}

// Seen gives the newest revision that Poll accepted, also before a restart, without the network. ErrNone if there is none.
func (s *Source) Seen() (*Revision, error) {
	s.mu.Lock()
	current, seen := s.current, s.record.Seen
	s.mu.Unlock()
	if current != nil && current.Commit == seen {
		return current, nil
	}
	return s.recorded(seen)
}

// LastGood gives the revision last given to MarkGood, also before a restart. ErrNone if there is none.
func (s *Source) LastGood() (*Revision, error) {
	s.mu.Lock()
	good := s.record.Good
	s.mu.Unlock()
	return s.recorded(good)
}

func (s *Source) recorded(commit string) (*Revision, error) {
	if commit == "" {
		return nil, ErrNone
	}
	return s.At(commit)
}

// MarkGood records commit as the last good revision. The record is on disk when it returns nil.
func (s *Source) MarkGood(commit string) error {
	if !isHash(commit) || !s.store.has(plumbing.NewHash(commit)) {
		return fmt.Errorf("commit %.12s can't be marked good: it isn't in the clone", printable.Text(commit))
	}
	return s.updateRecord(func(r *record) { r.Good = commit })
}

// updateRecord changes the record on disk and then in memory; on disk whole or not at all.
func (s *Source) updateRecord(change func(*record)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	next := s.record
	next.Repository = s.location.shown
	change(&next)
	if next == s.record {
		return nil
	}
	if err := next.write(s.recordPath()); err != nil {
		return explainCache(s.config.Cache, err)
	}
	s.record = next
	return nil
}

// At gives the revision of a commit in the cache (full hash).
func (s *Source) At(commit string) (*Revision, error) {
	if !isHash(commit) {
		return nil, fmt.Errorf("%.60q is no commit; want 40 lower-case hex digits", commit)
	}
	hash := plumbing.NewHash(commit)
	if !s.store.has(hash) {
		return nil, fmt.Errorf("commit %.12s isn't in the clone in the cache folder; it comes with the next poll if the server still has it", commit)
	}
	return s.revision(hash, nil)
}

// revision gives a commit, with only the named files if any are named.
func (s *Source) revision(hash plumbing.Hash, only map[string]bool) (*Revision, error) {
	c, err := s.store.commit(hash)
	if err != nil {
		return nil, err
	}
	return &Revision{
		Commit:    hash.String(),
		Committed: c.committed,
		Author:    c.author,
		Subject:   c.subject,
		Parents:   names(c.parents),
		TreeHash:  c.tree.String(),
		Tree:      &treeFS{store: s.store, root: c.tree, when: c.committed, maxBlob: s.config.MaxBlob, only: only},
	}, nil
}

func names(hashes []plumbing.Hash) []string {
	list := make([]string, 0, len(hashes))
	for _, hash := range hashes {
		list = append(list, hash.String())
	}
	return list
}

// Object gives the bytes of a commit in the cache (full hash), which are what a signature of it is over. They have that hash.
func (s *Source) Object(commit string) ([]byte, error) {
	if !isHash(commit) {
		return nil, fmt.Errorf("%.60q is no commit; want 40 lower-case hex digits", commit)
	}
	return s.store.read(plumbing.NewHash(commit), plumbing.CommitObject, maxMeta)
}

// Since gives the commits of to's first-parent line that descend from from, oldest first, to being the last. Where from is
// empty, unknown or no ancestor of to (a rewind that was allowed), it is to alone. Where they are equal it is empty.
func (s *Source) Since(ctx context.Context, from, to string) ([]*Revision, error) {
	if !isHash(to) || (from != "" && !isHash(from)) {
		return nil, fmt.Errorf("%.60q to %.60q is no pair of commits; want 40 lower-case hex digits each", from, to)
	}
	line, err := s.history.since(ctx, plumbing.NewHash(from), plumbing.NewHash(to))
	if err != nil {
		return nil, fmt.Errorf("listing the commits from %.12s to %.12s: %w", from, to, err)
	}
	revisions := make([]*Revision, 0, len(line))
	for _, hash := range line {
		revision, err := s.revision(hash, nil)
		if err != nil {
			return nil, err
		}
		revisions = append(revisions, revision)
	}
	return revisions, nil
}

// Approved gives the commit since which something has been true without a break: it walks revision's first-parent line back
// while approved says yes, and returns the oldest such commit, whose Committed is the time of the approval.
//
// File is where the approved object stands in revision (TalosMachine.Source.File). Approved is asked only about commits that
// change that file. The Tree it sees holds a single file, and the .ichorignore files above it: it must look for the object by
// what it is (kind, cluster, name), not by path, because it is asked about each file from which the object may have moved.
func (s *Source) Approved(ctx context.Context, revision *Revision, file string, approved func(*Revision) (bool, error)) (*Revision, error) {
	narrow := func(at plumbing.Hash, files ...string) (*Revision, error) {
		return s.revision(at, withIgnoreFiles(files))
	}
	at, err := s.history.approved(ctx, plumbing.NewHash(revision.Commit), file, narrow, approved)
	if err != nil {
		return nil, fmt.Errorf("looking for the commit that approved what stands in %s: %w", printable.Text(file), err)
	}
	return s.revision(at, nil)
}

// Stats gives the counts so far.
func (s *Source) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stats
}

func (s *Source) count(add func(*Stats)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	add(&s.stats)
}

// Jitter spreads polls: interval, up to a tenth longer or shorter by random, which is in [0, 1).
func Jitter(interval time.Duration, random float64) time.Duration {
	return interval - interval/10 + time.Duration(random*float64(interval/5))
}
