package gitsource_test

import (
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"ichor.maesh.dev/gitsource"
	"ichor.maesh.dev/internal/gittest"
)

// transports are all ways to a repository, each with a server that can be taken away.
var transports = []struct {
	name  string
	serve func(t *testing.T, r *gittest.Repository) (gitsource.Config, away)
}{
	{"a file", func(t *testing.T, r *gittest.Repository) (gitsource.Config, away) {
		return gitsource.Config{URL: r.URL()}, fileAway{r.Dir}
	}},
	{"http without credentials", func(t *testing.T, r *gittest.Repository) (gitsource.Config, away) {
		s := gittest.HTTP(t, r, gittest.HTTPOptions{})
		return gitsource.Config{URL: s.URL}, s
	}},
	{"http with a token", func(t *testing.T, r *gittest.Repository) (gitsource.Config, away) {
		s := gittest.HTTP(t, r, gittest.HTTPOptions{Authorization: gittest.Basic("x-access-token", "t0ken")})
		return gitsource.Config{URL: s.URL, TokenFile: writeFile(t, "t0ken\n")}, s
	}},
	{"http with a bearer token", func(t *testing.T, r *gittest.Repository) (gitsource.Config, away) {
		s := gittest.HTTP(t, r, gittest.HTTPOptions{Authorization: gittest.Bearer("t0ken")})
		return gitsource.Config{URL: s.URL, Token: "t0ken", Bearer: true}, s
	}},
	{"http with user and password", func(t *testing.T, r *gittest.Repository) (gitsource.Config, away) {
		s := gittest.HTTP(t, r, gittest.HTTPOptions{Authorization: gittest.Basic("ada", "pa:ss wörd")})
		return gitsource.Config{URL: s.URL, Username: "ada", PasswordFile: writeFile(t, "pa:ss wörd")}, s
	}},
	{"http with user and password in the URL", func(t *testing.T, r *gittest.Repository) (gitsource.Config, away) {
		s := gittest.HTTP(t, r, gittest.HTTPOptions{Authorization: gittest.Basic("ada", "s3cret")})
		return gitsource.Config{URL: "http://ada:s3cret@" + s.URL[len("http://"):]}, s
	}},
	{"https with its own CA", func(t *testing.T, r *gittest.Repository) (gitsource.Config, away) {
		s := gittest.HTTP(t, r, gittest.HTTPOptions{TLS: true})
		return gitsource.Config{URL: s.URL, CAFile: s.CAFile}, s
	}},
	{"ssh with a key", func(t *testing.T, r *gittest.Repository) (gitsource.Config, away) {
		s := gittest.SSH(t, r)
		return gitsource.Config{URL: s.URL, SSHKeyFile: s.KeyFile, KnownHostsFile: s.KnownHostsFile}, s
	}},
	{"ssh with a key under a passphrase", func(t *testing.T, r *gittest.Repository) (gitsource.Config, away) {
		s := gittest.SSH(t, r)
		return gitsource.Config{URL: s.URL, SSHKeyFile: s.LockedKeyFile, SSHPassphraseFile: writeFile(t, s.Passphrase+"\n"),
			KnownHostsFile: s.KnownHostsFile}, s
	}},
}

// away is a server that can go and come back.
type away interface {
	Stop()
	Start()
}

type fileAway struct{ dir string }

func (f fileAway) Stop()  { _ = os.Rename(f.dir, f.dir+".away") }
func (f fileAway) Start() { _ = os.Rename(f.dir+".away", f.dir) }

func writeFile(t testing.TB, content string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, []byte(content), 0o600))
	return file
}

func open(t testing.TB, config gitsource.Config) *gitsource.Source {
	t.Helper()
	if config.Cache == "" {
		config.Cache = filepath.Join(t.TempDir(), "cache")
	}
	s, err := gitsource.Open(config, clock.RealClock{})
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func poll(t testing.TB, s *gitsource.Source) *gitsource.Revision {
	t.Helper()
	revision, err := s.Poll(t.Context())
	require.NoError(t, err)
	return revision
}

func read(t testing.TB, r *gitsource.Revision, name string) string {
	t.Helper()
	data, err := fs.ReadFile(r.Tree, name)
	require.NoError(t, err)
	return string(data)
}

func TestEveryTransport(t *testing.T) {
	for _, transport := range transports {
		t.Run(transport.name+" is cloned, polled without a fetch, fetched when it moved, and outlives a restart without the server", func(t *testing.T) {
			t.Parallel()
			r := gittest.New(t)
			first := r.Write(gittest.Commit{Subject: "The first", Files: gittest.Files{"clusters/prod/cluster.yaml": "one\n"}})
			config, server := transport.serve(t, r)
			config.Cache = filepath.Join(t.TempDir(), "cache")
			s := open(t, config)

			_, err := s.Seen()
			require.ErrorIs(t, err, gitsource.ErrNone)
			_, err = s.LastGood()
			require.ErrorIs(t, err, gitsource.ErrNone)

			revision := poll(t, s)
			require.Equal(t, first, revision.Commit)
			require.Equal(t, "The first", revision.Subject)
			require.Equal(t, "Ada <ada@example.com>", revision.Author)
			require.Equal(t, time.Date(2026, 1, 1, 0, 1, 0, 0, time.UTC), revision.Committed.UTC())
			require.Equal(t, "one\n", read(t, revision, "clusters/prod/cluster.yaml"))
			require.Equal(t, int64(1), s.Stats().Fetches)

			require.Same(t, revision, poll(t, s), "nothing moved")
			require.Equal(t, gitsource.Stats{Polls: 2, Fetches: 1, Clones: 1, LastSuccess: s.Stats().LastSuccess}, s.Stats())
			require.NoError(t, s.MarkGood(first))

			second := r.Commit(gittest.Files{"clusters/prod/cluster.yaml": "two\n"})
			moved := poll(t, s)
			require.Equal(t, second, moved.Commit)
			require.Equal(t, "two\n", read(t, moved, "clusters/prod/cluster.yaml"))
			require.Equal(t, "one\n", read(t, revision, "clusters/prod/cluster.yaml"), "the old revision can still be read")
			require.Equal(t, int64(2), s.Stats().Fetches)
			require.Equal(t, int64(1), s.Stats().Clones)

			server.Stop()
			_, err = s.Poll(t.Context())
			requireReason(t, err, gitsource.ReasonUnreachable, gitsource.ReasonNotFound)
			require.NoError(t, s.Close())

			s = open(t, config)
			good, err := s.LastGood()
			require.NoError(t, err)
			require.Equal(t, "one\n", read(t, good, "clusters/prod/cluster.yaml"))
			seen, err := s.Seen()
			require.NoError(t, err)
			require.Equal(t, second, seen.Commit)
			require.Equal(t, "two\n", read(t, seen, "clusters/prod/cluster.yaml"))
			_, err = s.Poll(t.Context())
			requireReason(t, err, gitsource.ReasonUnreachable, gitsource.ReasonNotFound)

			server.Start()
			require.Equal(t, second, poll(t, s).Commit, "the source recovers by itself")
			require.Zero(t, s.Stats().Fetches, "all was in the cache")
		})
	}
}

func requireReason(t testing.TB, err error, reasons ...gitsource.Reason) {
	t.Helper()
	var e *gitsource.Error
	require.ErrorAs(t, err, &e)
	require.Contains(t, reasons, e.Reason, e.Message)
}

func TestBranchAndPaths(t *testing.T) {
	r := gittest.New(t)
	r.Commit(gittest.Files{"clusters/prod/cluster.yaml": "main"})
	release := r.Write(gittest.Commit{Branch: "release/1.2", Root: true, Files: gittest.Files{"a/b.yaml": "release"}})

	t.Run("the named branch is watched and no other", func(t *testing.T) {
		s := open(t, gitsource.Config{URL: r.URL(), Branch: "release/1.2", Paths: []string{"a", "/a/"}})
		require.Equal(t, release, poll(t, s).Commit)
		r.Commit(gittest.Files{"other": "x"})
		require.Equal(t, release, poll(t, s).Commit)
		require.Equal(t, int64(1), s.Stats().Fetches)
	})
	t.Run("a folder that isn't there is an error until it is pushed", func(t *testing.T) {
		s := open(t, gitsource.Config{URL: r.URL(), Paths: []string{"clusters/prod", "clusters/lab"}})
		_, err := s.Poll(t.Context())
		requireReason(t, err, gitsource.ReasonPath)
		require.ErrorContains(t, err, `the folder "clusters/lab" isn't there; push it, or give another by --path (branch main of`)
		r.Commit(gittest.Files{"clusters/lab/cluster.yaml": "lab"})
		poll(t, s)
	})
	t.Run("a file where a folder should be is an error", func(t *testing.T) {
		s := open(t, gitsource.Config{URL: r.URL(), Paths: []string{"clusters/prod/cluster.yaml"}})
		_, err := s.Poll(t.Context())
		requireReason(t, err, gitsource.ReasonPath)
	})
}

// Who can push can push one rewritten branch after the other: what each of them brings must not stay.
func TestWhatARefusedRewindBringsTakesNoRoomAndIsFetchedOnce(t *testing.T) {
	r := gittest.New(t)
	r.Commit(gittest.Files{"f": "1"})
	cache := t.TempDir()
	s := open(t, gitsource.Config{URL: r.URL(), Cache: cache})
	first := poll(t, s)
	packs := func() []string {
		list, err := filepath.Glob(filepath.Join(cache, "clone.git", "objects", "pack", "*"))
		require.NoError(t, err)
		return list
	}
	kept := packs()
	var rewound *gitsource.RewoundError
	for n := range 3 {
		r.RawTree(gittest.RawEntry("100644", fmt.Sprint("garbage", n), r.Blob(fmt.Sprint("rewritten ", n))))
		for range 3 {
			_, err := s.Poll(t.Context())
			require.ErrorAs(t, err, &rewound)
			require.Equal(t, kept, packs())
		}
		require.Equal(t, int64(2+n), s.Stats().Fetches, "it is fetched once")
	}
	require.Equal(t, "1", read(t, first, "f"), "and what was there can be read")
	mended := r.Write(gittest.Commit{Parents: []string{first.Commit}, Files: gittest.Files{"f": "2"}})
	require.Equal(t, mended, poll(t, s).Commit)
}

func TestRewoundHistory(t *testing.T) {
	r := gittest.New(t)
	first := r.Commit(gittest.Files{"f": "1"})
	second := r.Commit(gittest.Files{"f": "2"})
	cache := filepath.Join(t.TempDir(), "cache")
	config := gitsource.Config{URL: r.URL(), Cache: cache}
	s := open(t, config)
	poll(t, s)

	r.ForcePush("main", first)
	_, err := s.Poll(t.Context())
	var rewound *gitsource.RewoundError
	require.ErrorAs(t, err, &rewound, "a branch that went back is refused")
	require.Equal(t, second, rewound.Seen)
	require.Equal(t, first, rewound.Tip)
	require.ErrorContains(t, err, "--allow-rewind")

	other := r.Write(gittest.Commit{Parents: []string{first}, Files: gittest.Files{"f": "other"}})
	_, err = s.Poll(t.Context())
	require.ErrorAs(t, err, &rewound, "a branch that was rewritten is refused")
	require.Equal(t, other, rewound.Tip)
	fetches := s.Stats().Fetches
	for range 3 {
		_, err = s.Poll(t.Context())
		require.ErrorAs(t, err, &rewound)
	}
	require.Equal(t, fetches, s.Stats().Fetches, "a refused tip is fetched once")
	seen, err := s.Seen()
	require.NoError(t, err)
	require.Equal(t, second, seen.Commit)

	require.NoError(t, s.Close())
	s = open(t, config)
	_, err = s.Poll(t.Context())
	require.ErrorAs(t, err, &rewound, "a restart does not forget")
	require.NoError(t, s.Close())

	require.NoError(t, os.RemoveAll(filepath.Join(cache, "clone.git")))
	s = open(t, config)
	_, err = s.Poll(t.Context())
	require.ErrorAs(t, err, &rewound, "a lost clone does not forget")

	merge := r.Write(gittest.Commit{Parents: []string{other, second}, Files: gittest.Files{"f": "merged"}})
	require.Equal(t, merge, poll(t, s).Commit, "a merge of what was seen descends from it")
	require.NoError(t, s.Close())

	r.ForcePush("main", first)
	config.AllowRewind = true
	s = open(t, config)
	require.Equal(t, first, poll(t, s).Commit, "one rewind is let pass where it is asked for")
	require.Equal(t, first, poll(t, s).Commit)
	r.ForcePush("main", other)
	require.Equal(t, other, poll(t, s).Commit, "a descendant is no rewind")
	r.ForcePush("main", first)
	_, err = s.Poll(t.Context())
	require.ErrorAs(t, err, &rewound, "and only one")
	require.ErrorContains(t, err, "has done so since this start")
}

func TestBrokenCaches(t *testing.T) {
	damages := map[string]func(t *testing.T, cache string){
		"a clone that is gone": func(t *testing.T, cache string) {
			require.NoError(t, os.RemoveAll(filepath.Join(cache, "clone.git")))
		},
		"a pack that is gone": func(t *testing.T, cache string) { damage(t, cache, "*.pack", func(string) []byte { return nil }) },
		"an index that is gone": func(t *testing.T, cache string) {
			damage(t, cache, "*.idx", func(string) []byte { return nil })
		},
		"a pack that is cut short": func(t *testing.T, cache string) {
			damage(t, cache, "*.pack", func(data string) []byte { return []byte(data[:len(data)/2]) })
		},
		"an index of garbage": func(t *testing.T, cache string) {
			damage(t, cache, "*.idx", func(data string) []byte { return garbage(len(data)) })
		},
		"a pack of garbage": func(t *testing.T, cache string) {
			damage(t, cache, "*.pack", func(data string) []byte { return garbage(len(data)) })
		},
		"an empty index": func(t *testing.T, cache string) {
			damage(t, cache, "*.idx", func(string) []byte { return []byte{} })
		},
	}
	for name, break_ := range damages {
		t.Run(name+" is thrown away and cloned again, and the record stays", func(t *testing.T) {
			r := gittest.New(t)
			good := r.Commit(gittest.Files{"f": "1"})
			tip := r.Commit(gittest.Files{"f": "2"})
			config := gitsource.Config{URL: r.URL(), Cache: filepath.Join(t.TempDir(), "cache")}
			s := open(t, config)
			poll(t, s)
			require.NoError(t, s.MarkGood(good))
			require.NoError(t, s.Close())
			break_(t, config.Cache)

			s = open(t, config)
			if seen, err := s.Seen(); err == nil { // it may be found only when a file is read
				_, err = fs.ReadFile(seen.Tree, "f")
				require.Error(t, err)
			}
			revision := poll(t, s)
			require.Equal(t, tip, revision.Commit)
			require.Equal(t, "2", read(t, revision, "f"))
			require.Equal(t, int64(1), s.Stats().Clones)
			last, err := s.LastGood()
			require.NoError(t, err)
			require.Equal(t, good, last.Commit)
			require.Equal(t, "1", read(t, last, "f"))
		})
	}
	t.Run("bytes that rot while the source is open are never given as a file, and heal at the next poll", func(t *testing.T) {
		r := gittest.New(t)
		r.Commit(gittest.Files{"f": "some content that takes a few bytes"})
		config := gitsource.Config{URL: r.URL(), Cache: filepath.Join(t.TempDir(), "cache")}
		s := open(t, config)
		revision := poll(t, s)
		damage(t, config.Cache, "*.pack", func(data string) []byte { return garbage(len(data)) })
		_, err := fs.ReadFile(revision.Tree, "f")
		require.ErrorContains(t, err, "made anew at the next poll")
		poll(t, s)
		require.Equal(t, "some content that takes a few bytes", read(t, revision, "f"))
		require.Equal(t, int64(2), s.Stats().Clones)
	})
	t.Run("a cache folder of another repository is refused, because its commits would be taken for this one's", func(t *testing.T) {
		cache := t.TempDir()
		mine, other := gittest.New(t), gittest.New(t)
		mine.Commit(gittest.Files{"f": "1"})
		other.Commit(gittest.Files{"f": "2"})
		s, err := gitsource.Open(gitsource.Config{URL: mine.URL(), Cache: cache}, clock.RealClock{})
		require.NoError(t, err)
		poll(t, s)
		require.NoError(t, s.Close())
		_, err = gitsource.Open(gitsource.Config{URL: other.URL(), Cache: cache}, clock.RealClock{})
		require.ErrorContains(t, err, "is that of another repository, "+mine.URL())
		s, err = gitsource.Open(gitsource.Config{URL: mine.URL(), Cache: cache}, clock.RealClock{})
		require.NoError(t, err)
		require.NoError(t, s.Close())
	})
	t.Run("a record that isn't whole is refused, because without it a rewind would pass", func(t *testing.T) {
		r := gittest.New(t)
		cache := t.TempDir()
		for text, want := range map[string]string{
			"{":                                   "isn't whole",
			`{"schemaVersion": 9}`:                "schemaVersion 9",
			`{"schemaVersion": 1, "seen": "../"}`: "no commit",
		} {
			require.NoError(t, os.WriteFile(filepath.Join(cache, "record.json"), []byte(text), 0o600))
			_, err := gitsource.Open(gitsource.Config{URL: r.URL(), Cache: cache}, clock.RealClock{})
			require.ErrorContains(t, err, want)
		}
	})
}

// damage rewrites the files of the clone that match, or removes them where the new content is nil.
func damage(t *testing.T, cache, pattern string, change func(data string) []byte) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(cache, "clone.git", "objects", "pack", pattern))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		data, err := os.ReadFile(file)
		require.NoError(t, err)
		if changed := change(string(data)); changed != nil {
			require.NoError(t, os.WriteFile(file, changed, 0o600))
		} else {
			require.NoError(t, os.Remove(file))
		}
	}
}

func garbage(size int) []byte {
	random := rand.New(rand.NewPCG(1, 2))
	data := make([]byte, size)
	for i := range data {
		data[i] = byte(random.Uint32())
	}
	return data
}

func TestTheCacheFolderBelongsToOneSource(t *testing.T) {
	r := gittest.New(t)
	config := gitsource.Config{URL: r.URL(), Cache: t.TempDir()}
	s := open(t, config)
	_, err := gitsource.Open(config, clock.RealClock{})
	require.ErrorContains(t, err, "in use by another ichor")
	require.NoError(t, s.Close())
	require.NoError(t, s.Close(), "closing twice is closing once")
	_, err = s.Poll(t.Context())
	require.ErrorContains(t, err, "closed")
	open(t, config)
}

func TestMarkGoodRefusesWhatIsNotInTheClone(t *testing.T) {
	r := gittest.New(t)
	r.Commit(gittest.Files{"f": "1"})
	s := open(t, gitsource.Config{URL: r.URL()})
	poll(t, s)
	for _, commit := range []string{"", "main", "0123456789012345678901234567890123456789", "\x1b[2J"} {
		require.Error(t, s.MarkGood(commit))
		_, err := s.At(commit)
		require.Error(t, err)
		require.NotContains(t, err.Error(), "\x1b")
	}
	_, err := s.LastGood()
	require.ErrorIs(t, err, gitsource.ErrNone)
}

func TestStatsTellTheLastSuccessByTheGivenClock(t *testing.T) {
	r := gittest.New(t)
	r.Commit(gittest.Files{"f": "1"})
	now := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	s, err := gitsource.Open(gitsource.Config{URL: r.URL(), Cache: t.TempDir()}, clocktesting.NewFakeClock(now))
	require.NoError(t, err)
	defer func() { _ = s.Close() }()
	require.Zero(t, s.Stats().LastSuccess)
	poll(t, s)
	require.Equal(t, now, s.Stats().LastSuccess)
}

func TestJitterSpreadsPollsByATenth(t *testing.T) {
	for random, want := range map[float64]time.Duration{0: 54 * time.Second, 0.5: 60 * time.Second, 0.999999: 66 * time.Second} {
		require.InDelta(t, want, gitsource.Jitter(time.Minute, random), float64(time.Millisecond))
	}
	require.Zero(t, gitsource.Jitter(0, 0.7))
}
