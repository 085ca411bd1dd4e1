package gitsource_test

import (
	"fmt"
	"io/fs"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/gitsource"
	"ichor.maesh.dev/internal/cputime"
	"ichor.maesh.dev/internal/gittest"
)

// fleet makes a repository of 2,000 files and 5,000 commits, each of which changes one file. The one in file 0 is approved at
// commit 10, and moves at commit 3,000.
func fleet(b *testing.B) *gittest.Repository {
	b.Helper()
	const files, count = 2000, 5000
	r := gittest.New(b)
	path := func(i int) string { return fmt.Sprintf("clusters/c%02d/machines/m-%04d.yaml", i%50, i) }
	text := func(i, edit int) string {
		return fmt.Sprintf("apiVersion: ichor.maesh.dev/v1alpha1\nkind: TalosMachine\nmetadata: {name: m-%04d}\nspec:\n  approved: %v\n  labels: {edit: %q}\n",
			i, i != 0 || edit >= 10, fmt.Sprint(edit))
	}
	commits := []gittest.Commit{{Files: gittest.Files{}}}
	for i := range files {
		commits[0].Files[path(i)] = text(i, 0)
	}
	for edit := 1; edit < count; edit++ {
		i := 1 + edit*7%(files-1)
		commits = append(commits, gittest.Commit{Files: gittest.Files{path(i): text(i, edit)}})
	}
	commits[10].Files[path(0)] = text(0, 10)
	commits[1000].Files[path(0)] = text(0, 1000)
	commits[3000].Files[path(0)] = nil
	commits[3000].Files["moved/m-0000.yaml"] = text(0, 3000)
	r.WriteAll(commits)
	return r
}

// BenchmarkNoOpPoll is a poll of a branch that did not move: it must fetch nothing.
func BenchmarkNoOpPoll(b *testing.B) {
	r := fleet(b)
	ssh := gittest.SSH(b, r)
	for name, config := range map[string]gitsource.Config{
		"file": {URL: r.URL()},
		"http": {URL: gittest.HTTP(b, r, gittest.HTTPOptions{}).URL},
		"ssh":  {URL: ssh.URL, SSHKeyFile: ssh.KeyFile, KnownHostsFile: ssh.KnownHostsFile},
	} {
		b.Run(name, func(b *testing.B) {
			s := open(b, config)
			poll(b, s)
			fetches := s.Stats().Fetches
			b.ReportAllocs()
			defer cputime.Of(b)()
			for b.Loop() {
				poll(b, s)
			}
			require.Equal(b, fetches, s.Stats().Fetches)
			b.ReportMetric(float64(s.Stats().Fetches-fetches), "fetches")
		})
	}
}

// BenchmarkClone is a first poll.
func BenchmarkClone(b *testing.B) {
	server := gittest.HTTP(b, fleet(b), gittest.HTTPOptions{})
	b.ReportAllocs()
	for b.Loop() {
		s := open(b, gitsource.Config{URL: server.URL})
		poll(b, s)
		require.NoError(b, s.Close())
	}
}

// BenchmarkReadRevision reads every file of a revision.
func BenchmarkReadRevision(b *testing.B) {
	s := open(b, gitsource.Config{URL: fleet(b).URL()})
	tree := poll(b, s).Tree
	b.ReportAllocs()
	for b.Loop() {
		files := 0
		require.NoError(b, fs.WalkDir(tree, ".", func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			files++
			_, err = fs.ReadFile(tree, path)
			return err
		}))
		require.Equal(b, 2000, files)
	}
}

// BenchmarkApproved looks for an approval 4,990 commits back, once with nothing remembered and once more after that.
func BenchmarkApproved(b *testing.B) {
	r := fleet(b)
	look := func(b *testing.B, s *gitsource.Source) {
		asked := 0
		revision, err := s.Approved(b.Context(), poll(b, s), "moved/m-0000.yaml", func(r *gitsource.Revision) (bool, error) {
			asked++
			approved := false
			err := fs.WalkDir(r.Tree, ".", func(path string, d fs.DirEntry, err error) error {
				if err != nil || d.IsDir() {
					return err
				}
				data, err := fs.ReadFile(r.Tree, path)
				approved = approved || strings.Contains(string(data), "name: m-0000}") && strings.Contains(string(data), "approved: true")
				return err
			})
			return approved, err
		})
		require.NoError(b, err)
		require.Equal(b, r.Git("rev-parse", "main~4989"), revision.Commit)
		require.Less(b, asked, 10)
	}
	b.Run("first", func(b *testing.B) {
		s := open(b, gitsource.Config{URL: r.URL()})
		poll(b, s)
		for b.Loop() {
			b.StopTimer()
			require.NoError(b, s.Close())
			s = open(b, gitsource.Config{URL: r.URL()})
			poll(b, s)
			b.StartTimer()
			look(b, s)
		}
	})
	b.Run("again", func(b *testing.B) {
		s := open(b, gitsource.Config{URL: r.URL()})
		look(b, s)
		for b.Loop() {
			look(b, s)
		}
	})
}
