package gitsource

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/utils/clock"

	"ichor.maesh.dev/internal/gittest"
)

func openSource(t testing.TB, config Config) *Source {
	t.Helper()
	if config.Cache == "" {
		config.Cache = t.TempDir()
	}
	s, err := Open(config, clock.RealClock{})
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func mustPoll(t testing.TB, s *Source) *Revision {
	t.Helper()
	revision, err := s.Poll(t.Context())
	require.NoError(t, err)
	return revision
}

func TestACloneOfManyPacksIsMadeAnewAsOne(t *testing.T) {
	r := gittest.New(t)
	first := r.Commit(gittest.Files{"f": "0"})
	s := openSource(t, Config{URL: r.URL()})
	s.maxPacks = 4
	old := mustPoll(t, s)
	require.NoError(t, s.MarkGood(first))
	for i := range 8 {
		want := r.Commit(gittest.Files{"f": fmt.Sprint(i + 1)})
		require.Equal(t, want, mustPoll(t, s).Commit)
		require.LessOrEqual(t, countPacks(s.clonePath()), 4)
		data, err := fs.ReadFile(old.Tree, "f")
		require.NoError(t, err)
		require.Equal(t, "0", string(data), "an old revision is read from the new clone")
	}
	require.Greater(t, s.Stats().Clones, int64(1))
}

func TestACloneIsNotMadeAnewWhereThatWouldLoseTheLastGoodRevision(t *testing.T) {
	r := gittest.New(t)
	first := r.Commit(gittest.Files{"f": "0"})
	good := r.Commit(gittest.Files{"f": "good"})
	s := openSource(t, Config{URL: r.URL(), AllowRewind: true})
	s.maxPacks = 2
	mustPoll(t, s)
	require.NoError(t, s.MarkGood(good))
	r.ForcePush("main", first)
	mustPoll(t, s)
	for i := range 4 {
		r.Commit(gittest.Files{"f": fmt.Sprint(i)})
		mustPoll(t, s)
	}
	require.Equal(t, int64(1), s.Stats().Clones)
	last, err := s.LastGood()
	require.NoError(t, err)
	require.Equal(t, good, last.Commit)
}

func TestWhatAnInterruptedFetchLeftIsSwept(t *testing.T) {
	r := gittest.New(t)
	r.Commit(gittest.Files{"f": "0"})
	cache := t.TempDir()
	s := openSource(t, Config{URL: r.URL(), Cache: cache})
	mustPoll(t, s)
	require.NoError(t, s.Close())
	packs := filepath.Join(cache, "clone.git", "objects", "pack")
	for _, name := range []string{"tmp_pack_123", ".new-456", "pack-0123456789012345678901234567890123456789.pack"} {
		require.NoError(t, os.WriteFile(filepath.Join(packs, name), []byte("half"), 0o600))
	}
	require.NoError(t, os.MkdirAll(filepath.Join(cache, "clone.new", "objects"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(cache, ".new-789"), []byte("half"), 0o600))

	s = openSource(t, Config{URL: r.URL(), Cache: cache})
	entries, err := os.ReadDir(packs)
	require.NoError(t, err)
	require.Len(t, entries, 2)
	for _, name := range []string{"clone.new", ".new-789"} {
		require.NoFileExists(t, filepath.Join(cache, name))
		require.NoDirExists(t, filepath.Join(cache, name))
	}
	mustPoll(t, s)
	require.Zero(t, s.Stats().Fetches)
}

func TestAHoleInTheCloneDoesNotPassForARewind(t *testing.T) {
	r := gittest.New(t)
	r.Commit(gittest.Files{"f": "0"})
	cache := t.TempDir()
	s := openSource(t, Config{URL: r.URL(), Cache: cache})
	mustPoll(t, s)
	before, err := filepath.Glob(filepath.Join(cache, "clone.git", "objects", "pack", "*"))
	require.NoError(t, err)
	r.Commit(gittest.Files{"f": "1"})
	mustPoll(t, s)
	require.NoError(t, s.Close())
	// The newest pack stays, that of its parent is lost; and the record is of the time before it.
	require.NoError(t, s.record.write(s.recordPath()))
	for _, file := range before {
		require.NoError(t, os.Remove(file))
	}
	older := s.record
	older.Seen = r.Git("rev-parse", "main~1")
	require.NoError(t, older.write(s.recordPath()))

	s = openSource(t, Config{URL: r.URL(), Cache: cache})
	mustPoll(t, s)
	require.Equal(t, int64(1), s.Stats().Clones)
}

func TestARewindAwayFromWhatTheServerLostIsRefusedWithoutCloningAtEachPoll(t *testing.T) {
	r := gittest.New(t)
	first := r.Commit(gittest.Files{"f": "0"})
	r.Commit(gittest.Files{"f": "1"})
	cache := t.TempDir()
	s := openSource(t, Config{URL: r.URL(), Cache: cache})
	mustPoll(t, s)
	require.NoError(t, s.Close())
	r.ForcePush("main", first)
	r.Git("gc", "--quiet", "--prune=now")
	require.NoError(t, os.RemoveAll(filepath.Join(cache, "clone.git")))

	s = openSource(t, Config{URL: r.URL(), Cache: cache})
	for range 4 {
		_, err := s.Poll(t.Context())
		var rewound *RewoundError
		require.ErrorAs(t, err, &rewound)
	}
	require.Equal(t, int64(1), s.Stats().Clones)
}

func TestReadersAndPollsMayRunAtOnce(t *testing.T) {
	r := gittest.New(t)
	r.Commit(gittest.Files{"a/f": "0", "b/f": "0"})
	s := openSource(t, Config{URL: r.URL()})
	s.maxPacks = 3
	first := mustPoll(t, s)
	var readers sync.WaitGroup
	stop := make(chan struct{})
	for range 4 {
		readers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				data, err := fs.ReadFile(first.Tree, "a/f")
				if err != nil || string(data) != "0" {
					t.Errorf("reading while polling gave %q, %v", data, err)
					return
				}
				_, _ = s.Seen()
				_ = s.Stats()
			}
		})
	}
	for i := range 8 {
		r.Commit(gittest.Files{"a/f": fmt.Sprint(i + 1)})
		revision := mustPoll(t, s)
		require.NoError(t, s.MarkGood(revision.Commit))
	}
	close(stop)
	readers.Wait()
}
