package gittest_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/internal/gittest"
)

func TestACommitHoldsWhatItsFilesSayAndComesAMinuteAfterTheLast(t *testing.T) {
	r := gittest.New(t)
	require.Empty(t, r.Tip("main"), "an empty repository has no tip")
	first := r.Commit(gittest.Files{"a.yaml": "one\n", "old.yaml": "old\n"})
	second := r.Commit(gittest.Files{"a.yaml": "two\n", "old.yaml": nil, "link": gittest.Link("a.yaml"), "module": gittest.Submodule(first)})
	require.Equal(t, second, r.Tip("main"))
	require.Equal(t, first, r.Git("rev-parse", second+"^"))
	require.Equal(t, "two", r.Git("show", second+":a.yaml"))
	require.Equal(t, "100644 blob a.yaml\n120000 blob link\n160000 commit module",
		r.Git("ls-tree", "--format=%(objectmode) %(objecttype) %(path)", second))
	require.Equal(t, "a.yaml", r.Git("cat-file", "blob", second+":link"))
	seconds := func(commit string) time.Time {
		at, err := time.Parse(time.RFC3339, r.Git("log", "-1", "--format=%cI", commit))
		require.NoError(t, err)
		return at
	}
	require.Equal(t, time.Minute, seconds(second).Sub(seconds(first)))
	require.Contains(t, string(r.Object(second)), "parent "+first+"\n")
}

func TestACommitStandsWhereItIsTold(t *testing.T) {
	r := gittest.New(t)
	base := r.Commit(gittest.Files{"a": "1"})
	tip := r.Commit(gittest.Files{"a": "2"})
	for _, test := range []struct {
		name    string
		commit  gittest.Commit
		parents string
	}{
		{"on a branch that is new it has no parents", gittest.Commit{Branch: "new", Files: gittest.Files{"b": "1"}}, ""},
		{"on a parent that isn't the tip", gittest.Commit{Branch: "aside", Parents: []string{base}, Files: gittest.Files{"a": "3"}}, base},
		{"as a merge", gittest.Commit{Branch: "merge", Parents: []string{tip, base}}, tip + " " + base},
		{"as a root of a branch that is there", gittest.Commit{Branch: "new", Root: true, Files: gittest.Files{"c": "1"}}, ""},
		{"rewinding its branch", gittest.Commit{Parents: []string{base}, Files: gittest.Files{"a": "4"}}, base},
	} {
		t.Run(test.name, func(t *testing.T) {
			commit := r.Write(test.commit)
			require.Equal(t, test.parents, r.Git("log", "-1", "--format=%P", commit))
			branch := test.commit.Branch
			if branch == "" {
				branch = "main"
			}
			require.Equal(t, commit, r.Tip(branch))
		})
	}
	last := r.WriteAll([]gittest.Commit{{Files: gittest.Files{"d": "1"}}, {Files: gittest.Files{"d": "2"}}})
	require.Equal(t, last, r.Tip("main"))
	require.Equal(t, "4", r.Git("show", last+"~2:a"), "one stands on the other, and both on the tip")
	r.ForcePush("main", base)
	require.Equal(t, base, r.Tip("main"))
}

func TestRawObjectsAreWhatTheyWereGiven(t *testing.T) {
	r := gittest.New(t)
	blob := r.Blob("content")
	commit := r.RawTree(gittest.RawEntry("100644", "..", blob))
	require.Equal(t, commit, r.Tip("main"))
	require.Equal(t, "100644 blob "+blob+"\t..", r.Git("ls-tree", commit))
	object := r.Object(commit)
	require.Equal(t, commit, r.RawCommit(object))
	require.Panics(t, func() { gittest.RawEntry("100644", "a", "abc") })
}
