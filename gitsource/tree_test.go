package gitsource_test

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/gitsource"
	"ichor.maesh.dev/internal/gittest"
)

func TestTreeIsAFileSystem(t *testing.T) {
	r := gittest.New(t)
	elsewhere := r.Write(gittest.Commit{Branch: "elsewhere", Root: true, Files: gittest.Files{"x": "x"}})
	r.Commit(gittest.Files{
		"clusters/prod/cluster.yaml": "kind: TalosCluster\n",
		"clusters/prod.yaml":         "sorts between\n",
		"clusters/prod-2/a":          "",
		"README.md":                  "hello\n",
		"link":                       gittest.Link("README.md"),
		"clusters/out":               gittest.Link("../../../etc/passwd"),
		"clusters/folder":            gittest.Link("prod"),
		"vendored":                   gittest.Submodule(elsewhere),
		"ünï code.yaml":              "ü\n",
		`back\slash`:                 "b\n",
	})
	s := open(t, gitsource.Config{URL: r.URL()})
	tree := poll(t, s).Tree

	t.Run("it keeps every rule of Go's file systems", func(t *testing.T) {
		// Its tests open links and know no backslash: they get a tree without.
		r := gittest.New(t)
		r.Commit(gittest.Files{"clusters/prod/cluster.yaml": "1", "clusters/prod.yaml": "2", "clusters/prod-2/a": "", "README.md": "3", "ünï code.yaml": "4",
			"vendored": gittest.Submodule(strings.Repeat("1", 40))})
		s := open(t, gitsource.Config{URL: r.URL()})
		require.NoError(t, fstest.TestFS(poll(t, s).Tree, "clusters/prod/cluster.yaml", "clusters/prod.yaml", "clusters/prod-2/a", "README.md", "ünï code.yaml"))
	})
	t.Run("a symlink is shown as one, and not followed", func(t *testing.T) {
		for _, link := range []string{"link", "clusters/out", "clusters/folder"} {
			info, err := fs.Stat(tree, link)
			require.NoError(t, err)
			require.Equal(t, fs.ModeSymlink, info.Mode().Type())
			_, err = fs.ReadFile(tree, link)
			require.ErrorContains(t, err, "links are not followed")
		}
		target, err := fs.ReadLink(tree, "clusters/out")
		require.NoError(t, err)
		require.Equal(t, "../../../etc/passwd", target)
		_, err = fs.ReadFile(tree, "clusters/folder/cluster.yaml")
		require.ErrorIs(t, err, fs.ErrNotExist)
	})
	t.Run("a submodule isn't there", func(t *testing.T) {
		_, err := fs.Stat(tree, "vendored")
		require.ErrorIs(t, err, fs.ErrNotExist)
	})
	t.Run("what is no path is refused", func(t *testing.T) {
		for _, path := range []string{"", "/README.md", "../x", "clusters/../README.md", "clusters//prod.yaml", "README.md/"} {
			_, err := fs.ReadFile(tree, path)
			require.ErrorIs(t, err, fs.ErrInvalid, path)
		}
	})
	t.Run("equal content has the same name, and another has another", func(t *testing.T) {
		info, err := fs.Stat(tree, "README.md")
		require.NoError(t, err)
		require.Equal(t, "ce013625030ba8dba906f756967f9e9ca394464a", info.Sys())
	})
}

func TestHostileTreesAreRefused(t *testing.T) {
	r := gittest.New(t)
	blob := r.Blob("x")
	for name, want := range map[string]string{
		"..":      "leads out of its folder",
		".":       "leads out of its folder",
		".git":    "Git's own folder",
		".GIT":    "Git's own folder",
		".git. ":  "Git's own folder",
		"git~1":   "Git's own folder",
		"/etc":    "holds a slash",
		"a/../b":  "holds a slash",
		"a/b":     "holds a slash",
		"../../x": "holds a slash",
	} {
		t.Run(fmt.Sprintf("%q at the top", name), func(t *testing.T) {
			refuses(t, r, gittest.RawEntry("100644", name, blob), want)
		})
		t.Run(fmt.Sprintf("%q in a folder", name), func(t *testing.T) {
			folder := r.GitInput(gittest.RawEntry("40000", name, r.GitInput(nil, "mktree")), "hash-object", "-t", "tree", "-w", "--literally", "--stdin")
			refuses(t, r, gittest.RawEntry("40000", "folder", folder), want)
		})
	}
	t.Run("a name that stands twice", func(t *testing.T) {
		refuses(t, r, append(gittest.RawEntry("100644", "a", blob), gittest.RawEntry("120000", "a", blob)...), "stands twice")
	})
	t.Run("something that is neither file nor folder", func(t *testing.T) {
		refuses(t, r, gittest.RawEntry("10644", "fifo", blob), "neither file, folder, link nor submodule")
	})
	t.Run("folders too deep in each other", func(t *testing.T) {
		hash := r.GitInput(gittest.RawEntry("100644", "a", blob), "hash-object", "-t", "tree", "-w", "--stdin")
		for range 70 {
			hash = r.GitInput(gittest.RawEntry("40000", "d", hash), "hash-object", "-t", "tree", "-w", "--stdin")
		}
		refuses(t, r, gittest.RawEntry("40000", "d", hash), "more than 64 deep")
	})
	t.Run("terminal escapes in a name don't reach the message", func(t *testing.T) {
		refuses(t, r, append(gittest.RawEntry("100644", "\x1b[2Ja", blob), gittest.RawEntry("100644", "\x1b[2Ja", blob)...), "stands twice")
	})
	t.Run("more files than allowed", func(t *testing.T) {
		r := gittest.New(t)
		r.Commit(gittest.Files{"a": "1", "b/c": "1", "b/d": "1"})
		s := open(t, gitsource.Config{URL: r.URL(), MaxFiles: 2})
		_, err := s.Poll(t.Context())
		requireReason(t, err, gitsource.ReasonTree)
		require.ErrorContains(t, err, "more than 2 files")
	})
}

// nested makes a folder of which each holds ten times the same one, so many deep, with leaf at the bottom.
func nested(r *gittest.Repository, leaf string, deep int) string {
	for range deep {
		var tree []byte
		for n := range 10 {
			tree = append(tree, gittest.RawEntry("40000", fmt.Sprint("d", n), leaf)...)
		}
		leaf = r.GitInput(tree, "hash-object", "-t", "tree", "-w", "--stdin")
	}
	return leaf
}

func TestAFewFoldersThatStandForBillionsAreRefusedAtOnce(t *testing.T) {
	r := gittest.New(t)
	for name, leaf := range map[string][]byte{
		"without a file":      nil,
		"with a submodule":    gittest.RawEntry("160000", "sub", r.Blob("x")),
		"with a file in each": gittest.RawEntry("100644", "file", r.Blob("x")),
	} {
		t.Run(name, func(t *testing.T) {
			bottom := r.GitInput(leaf, "hash-object", "-t", "tree", "-w", "--stdin")
			refuses(t, r, gittest.RawEntry("40000", "d", nested(r, bottom, 12)), "more than")
		})
	}
}

func refuses(t *testing.T, r *gittest.Repository, tree []byte, want string) {
	t.Helper()
	r.RawTree(tree)
	s := open(t, gitsource.Config{URL: r.URL()})
	_, err := s.Poll(t.Context())
	require.ErrorContains(t, err, want)
	require.NotContains(t, err.Error(), "\x1b")
	requireReason(t, err, gitsource.ReasonTree)
	_, err = s.Seen()
	require.ErrorIs(t, err, gitsource.ErrNone)
	require.NoError(t, s.Close())
}

func TestARefusedTreeIsReadNoFurtherAndHealsByACommit(t *testing.T) {
	r := gittest.New(t)
	r.Commit(gittest.Files{"f": "1"})
	s := open(t, gitsource.Config{URL: r.URL()})
	good := poll(t, s)
	bad := r.GitInput(gittest.RawEntry("100644", "..", r.Blob("x")), "hash-object", "-t", "tree", "-w", "--literally", "--stdin")
	text := "tree " + bad + "\nparent " + good.Commit + "\nauthor A <a> 1767225600 +0000\ncommitter A <a> 1767225600 +0000\n\nbad\n"
	commit := r.GitInput([]byte(text), "hash-object", "-t", "commit", "-w", "--literally", "--stdin")
	r.ForcePush("main", commit)
	_, err := s.Poll(t.Context())
	requireReason(t, err, gitsource.ReasonTree)
	seen, err := s.Seen()
	require.NoError(t, err)
	require.Same(t, good, seen)

	mended := r.Write(gittest.Commit{Parents: []string{good.Commit}, Files: gittest.Files{"f": "2"}})
	require.Equal(t, mended, poll(t, s).Commit)
	at, err := s.At(commit)
	require.NoError(t, err)
	_, err = fs.ReadDir(at.Tree, ".")
	require.ErrorContains(t, err, "leads out of its folder", "also a past commit is not read where names mean nothing certain")
}

func TestFilesAreBoundedInSize(t *testing.T) {
	r := gittest.New(t)
	r.Commit(gittest.Files{"big": strings.Repeat("x", 2000), "small": strings.Repeat("y", 1000)})
	s := open(t, gitsource.Config{URL: r.URL(), MaxBlob: 1000})
	tree := poll(t, s).Tree
	_, err := fs.ReadFile(tree, "big")
	require.ErrorContains(t, err, "2000 bytes and at most 1000 are read")
	info, err := fs.Stat(tree, "big")
	require.NoError(t, err)
	require.Equal(t, int64(2000), info.Size())
	require.Len(t, read(t, poll(t, s), "small"), 1000)
	require.Equal(t, int64(1), s.Stats().Clones, "a big file is no broken clone")
}

func TestOpenFilesSeekAndEnd(t *testing.T) {
	r := gittest.New(t)
	r.Commit(gittest.Files{"f": "content"})
	s := open(t, gitsource.Config{URL: r.URL()})
	file, err := poll(t, s).Tree.Open("f")
	require.NoError(t, err)
	defer func() { _ = file.Close() }()
	var out bytes.Buffer
	_, err = io.Copy(&out, file)
	require.NoError(t, err)
	require.Equal(t, "content", out.String())
}
