package gitsource_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/gitsource"
	"ichor.maesh.dev/internal/gittest"
)

func TestSinceListsWhatWasMadeOnTopOfACommit(t *testing.T) {
	r := gittest.New(t)
	first := r.Commit(gittest.Files{"f": "1"})
	second := r.Commit(gittest.Files{"f": "2"})
	third := r.Commit(gittest.Files{"f": "3"})
	// A pull request from second, merged on top of third.
	side := r.Write(gittest.Commit{Branch: "side", Parents: []string{second}, Files: gittest.Files{"g": "side"}})
	merged := r.Write(gittest.Commit{Parents: []string{third, side}, Files: gittest.Files{"g": "side"}})
	after := r.Commit(gittest.Files{"f": "4"})
	// main merged into a branch, which then was pushed as main: what was main is the second parent.
	feature := r.Write(gittest.Commit{Branch: "feature", Parents: []string{first}, Files: gittest.Files{"h": "1"}})
	foxtrot := r.Write(gittest.Commit{Parents: []string{feature, after}, Files: gittest.Files{"h": "1", "f": "4", "g": "side"}})
	tip := r.Commit(gittest.Files{"f": "5"})
	unrelated := r.Write(gittest.Commit{Branch: "unrelated", Root: true, Files: gittest.Files{"u": "1"}})
	r.Write(gittest.Commit{Parents: []string{tip, unrelated}, Files: gittest.Files{"u": "1"}})

	s := open(t, gitsource.Config{URL: r.URL()})
	poll(t, s)
	for name, c := range map[string]struct {
		from, to string
		want     []string
	}{
		"commits come oldest first":                                                        {first, third, []string{second, third}},
		"the newest is its own end":                                                        {third, third, nil},
		"a merged branch is one step, its own commits are not":                             {second, merged, []string{third, merged}},
		"a merge and what follows it":                                                      {third, after, []string{merged, after}},
		"where the start came in by a merge, only what was made on top of it counts":       {after, tip, []string{foxtrot, tip}},
		"from a commit of a branch, what was made since its merge":                         {side, after, []string{merged, after}},
		"without a start there is one step":                                                {"", tip, []string{tip}},
		"from a commit that is no ancestor there is one step":                              {unrelated, third, []string{third}},
		"from a commit that nobody knows there is one step":                                {strings.Repeat("0", 39) + "1", third, []string{third}},
		"going back there is one step":                                                     {third, first, []string{first}},
		"from the root everything on the first-parent line of a foxtrot, which skips main": {first, foxtrot, []string{feature, foxtrot}},
	} {
		t.Run(name, func(t *testing.T) {
			revisions, err := s.Since(t.Context(), c.from, c.to)
			require.NoError(t, err)
			var got []string
			for _, revision := range revisions {
				got = append(got, revision.Commit)
			}
			require.Equal(t, c.want, got)
		})
	}
	t.Run("a stopped context ends it", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := s.Since(ctx, first, tip)
		require.ErrorIs(t, err, context.Canceled)
	})
	t.Run("what is no commit is refused", func(t *testing.T) {
		_, err := s.Since(t.Context(), first, "main")
		require.Error(t, err)
	})
}

// approves looks through a revision as the agent does: for a line that says so, in whatever file. It leaves out files below a
// folder whose .ichorignore has a line "*".
func approves(machine string, asked *[]string) func(*gitsource.Revision) (bool, error) {
	return func(r *gitsource.Revision) (bool, error) {
		approved := false
		err := fs.WalkDir(r.Tree, ".", func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if d.IsDir() {
				if ignore, err := fs.ReadFile(r.Tree, strings.TrimPrefix(path+"/.ichorignore", "./")); err == nil && string(ignore) == "*" {
					return fs.SkipDir
				}
				return nil
			}
			data, err := fs.ReadFile(r.Tree, path)
			if err != nil {
				return err
			}
			if asked != nil && d.Name() != ".ichorignore" {
				*asked = append(*asked, r.Commit+":"+path)
			}
			approved = approved || strings.Contains(string(data), machine+": approved")
			return nil
		})
		return approved, err
	}
}

func TestApprovedFindsTheCommitThatApprovedAMachine(t *testing.T) {
	const yes, no = "cp-1: approved\n", "cp-1: no\n"
	at := func(minute int) time.Time { return time.Date(2026, 3, 1, 0, minute, 0, 0, time.UTC) }
	for name, c := range map[string]struct {
		history []gittest.Files
		file    string
		want    int // index into history
	}{
		"approved when it was made": {
			[]gittest.Files{{"m/cp-1.yaml": yes}, {"other": "1"}}, "m/cp-1.yaml", 0,
		},
		"approved by a later edit": {
			[]gittest.Files{{"m/cp-1.yaml": no}, {"other": "1"}, {"m/cp-1.yaml": yes}, {"other": "2"}}, "m/cp-1.yaml", 2,
		},
		"edits that leave the approval alone don't count": {
			[]gittest.Files{{"a": "1"}, {"m/cp-1.yaml": yes}, {"m/cp-1.yaml": yes + "labels\n"}, {"m/cp-1.yaml": yes + "taints\n"}}, "m/cp-1.yaml", 1,
		},
		"the last of several approvals counts": {
			[]gittest.Files{{"m/cp-1.yaml": yes}, {"m/cp-1.yaml": no}, {"m/cp-1.yaml": yes}, {"m/cp-1.yaml": yes + "x"}}, "m/cp-1.yaml", 2,
		},
		"deleted and made again": {
			[]gittest.Files{{"m/cp-1.yaml": yes}, {"m/cp-1.yaml": nil}, {"x": "1"}, {"m/cp-1.yaml": yes}}, "m/cp-1.yaml", 3,
		},
		"a file that moved is followed": {
			[]gittest.Files{{"old/cp-1.yaml": yes}, {"x": "1"}, {"old/cp-1.yaml": nil, "new/cp-1.yaml": yes}, {"x": "2"}}, "new/cp-1.yaml", 0,
		},
		"a file that moved and changed at once is followed": {
			[]gittest.Files{{"old.yaml": no}, {"old.yaml": yes}, {"old.yaml": nil, "new.yaml": yes + "labels\n", "y": "1"}, {"x": "2"}}, "new.yaml", 1,
		},
		"a machine that moved between files of several documents is followed": {
			[]gittest.Files{{"all.yaml": "cp-2: approved\n" + yes}, {"all.yaml": "cp-2: approved\n", "cp-1.yaml": yes}, {"cp-1.yaml": yes + "x"}}, "cp-1.yaml", 0,
		},
		"a machine that moved into a file that was there already is followed": {
			[]gittest.Files{{"a.yaml": yes, "b.yaml": "cp-2: approved\n"}, {"a.yaml": nil, "b.yaml": "cp-2: approved\n" + yes}}, "b.yaml", 0,
		},
		"a move that also approves is the approval": {
			[]gittest.Files{{"old.yaml": no}, {"old.yaml": nil, "new.yaml": yes}, {"x": "1"}}, "new.yaml", 1,
		},
		"another machine's file in the old place is not it": {
			[]gittest.Files{{"m.yaml": "cp-2: approved\n"}, {"m.yaml": yes}, {"x": "1"}}, "m.yaml", 1,
		},
		"a file that was ignored before it moved was no machine": {
			[]gittest.Files{{"drafts/.ichorignore": "*", "drafts/cp-1.yaml": yes}, {"drafts/cp-1.yaml": nil, "m/cp-1.yaml": yes}, {"x": "1"}}, "m/cp-1.yaml", 1,
		},
		"a folder that became a file": {
			[]gittest.Files{{"m/cp-1.yaml": yes}, {"m/cp-1.yaml": nil, "m": yes}}, "m", 0,
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := gittest.New(t)
			var commits []gittest.Commit
			for i, files := range c.history {
				commits = append(commits, gittest.Commit{At: at(i), Files: files})
			}
			r.WriteAll(commits)
			s := open(t, gitsource.Config{URL: r.URL()})
			revision, err := s.Approved(t.Context(), poll(t, s), c.file, approves("cp-1", nil))
			require.NoError(t, err)
			require.Equal(t, at(c.want), revision.Committed.UTC())
		})
	}
	t.Run("the merge of a pull request is the approval, not the commits in it", func(t *testing.T) {
		r := gittest.New(t)
		base := r.Write(gittest.Commit{At: at(0), Files: gittest.Files{"cp-1.yaml": no}})
		side := r.Write(gittest.Commit{Branch: "side", Parents: []string{base}, At: at(1), Files: gittest.Files{"cp-1.yaml": yes}})
		main := r.Write(gittest.Commit{At: at(2), Files: gittest.Files{"x": "1"}})
		r.Write(gittest.Commit{Parents: []string{main, side}, At: at(3), Files: gittest.Files{"cp-1.yaml": yes}})
		s := open(t, gitsource.Config{URL: r.URL()})
		revision, err := s.Approved(t.Context(), poll(t, s), "cp-1.yaml", approves("cp-1", nil))
		require.NoError(t, err)
		require.Equal(t, at(3), revision.Committed.UTC())
	})
	t.Run("what isn't approved now is an error, and so is an error of the caller", func(t *testing.T) {
		r := gittest.New(t)
		r.Commit(gittest.Files{"cp-1.yaml": no})
		s := open(t, gitsource.Config{URL: r.URL()})
		tip := poll(t, s)
		_, err := s.Approved(t.Context(), tip, "cp-1.yaml", approves("cp-1", nil))
		require.ErrorContains(t, err, "does not hold what was said to be approved there")
		broken := errors.New("cannot tell")
		_, err = s.Approved(t.Context(), tip, "cp-1.yaml", func(*gitsource.Revision) (bool, error) { return false, broken })
		require.ErrorIs(t, err, broken)
	})
}

func TestApprovedIsFoundBehindACommitThatNobodyCouldCompare(t *testing.T) {
	file := func(r *gittest.Repository) string {
		return r.GitInput(gittest.RawEntry("100644", "file", r.Blob("x")), "hash-object", "-t", "tree", "-w", "--stdin")
	}
	for name, hostile := range map[string]func(r *gittest.Repository) string{
		"a few folders that stand for billions": func(r *gittest.Repository) string { return nested(r, file(r), 12) },
		"folders too deep in each other": func(r *gittest.Repository) string {
			deep := file(r)
			for range 70 {
				deep = r.GitInput(gittest.RawEntry("40000", "d", deep), "hash-object", "-t", "tree", "-w", "--stdin")
			}
			return deep
		},
		"what is no file": func(r *gittest.Repository) string {
			return r.GitInput(gittest.RawEntry("10644", "fifo", r.Blob("x")), "hash-object", "-t", "tree", "-w", "--literally", "--stdin")
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := gittest.New(t)
			approval := r.Write(gittest.Commit{At: time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC), Files: gittest.Files{"cp-1.yaml": "cp-1: approved\n"}})
			with := r.GitInput(append(gittest.RawEntry("100644", "cp-1.yaml", r.Git("rev-parse", approval+":cp-1.yaml")), gittest.RawEntry("40000", "d", hostile(r))...),
				"hash-object", "-t", "tree", "-w", "--literally", "--stdin")
			bad := r.RawCommit([]byte("tree " + with + "\nparent " + approval + "\nauthor A <a> 1767225600 +0000\ncommitter A <a> 1767225600 +0000\n\nbad\n"))
			r.Write(gittest.Commit{Parents: []string{bad}, Files: gittest.Files{"d": nil, "x": "1"}})
			s := open(t, gitsource.Config{URL: r.URL()})
			revision, err := s.Approved(t.Context(), poll(t, s), "cp-1.yaml", approves("cp-1", nil))
			require.NoError(t, err)
			require.Equal(t, approval, revision.Commit)
		})
	}
}

func TestApprovedReadsOnlyFilesThatChanged(t *testing.T) {
	r := gittest.New(t)
	commits := []gittest.Commit{{Files: gittest.Files{}}}
	for i := range 50 {
		commits[0].Files[fmt.Sprintf("m/cp-%d.yaml", i)] = fmt.Sprintf("cp-%d: approved\n", i)
	}
	for i := range 100 {
		commits = append(commits, gittest.Commit{Files: gittest.Files{fmt.Sprintf("m/cp-%d.yaml", 10+i%40): fmt.Sprintf("cp-%d: approved\n%d", 10+i%40, i)}})
	}
	commits[60].Files["m/cp-1.yaml"] = "cp-1: approved\nlabels"
	r.WriteAll(commits)
	s := open(t, gitsource.Config{URL: r.URL()})
	var asked []string
	revision, err := s.Approved(t.Context(), poll(t, s), "m/cp-1.yaml", approves("cp-1", &asked))
	require.NoError(t, err)
	root := r.Git("rev-list", "--max-parents=0", "main")
	require.Equal(t, root, revision.Commit)
	require.Len(t, asked, 2, "the file as it is, and as it was before its one change")
}
