package foldertree_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/internal/foldertree"
)

func newTree(t *testing.T) (tree *foldertree.Tree, dir string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "tree")
	for folder := range 50 {
		for file := range 3 {
			name := filepath.Join(dir, fmt.Sprintf("a/%d/b/%d.yaml", folder, file))
			require.NoError(t, os.MkdirAll(filepath.Dir(name), 0o700))
			require.NoError(t, os.WriteFile(name, fmt.Appendf(nil, "%d of %d", file, folder), 0o600))
		}
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "top"), []byte("top"), 0o600))
	tree, err := foldertree.Open(dir)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, tree.Close()) })
	return tree, dir
}

func TestATreeIsAFileSystem(t *testing.T) {
	tree, _ := newTree(t)
	require.NoError(t, fstest.TestFS(tree, "top", "a/0/b/0.yaml", "a/49/b/2.yaml"))
}

func TestManyReadersOfMoreFoldersThanAreKeptOpenReadWhatIsThere(t *testing.T) {
	tree, _ := newTree(t)
	var readers sync.WaitGroup
	for reader := range 8 {
		readers.Go(func() {
			for n := range 500 {
				folder, file := (n*(reader+1))%50, n%3
				text, err := fs.ReadFile(fs.FS(onlyOpens{tree}), fmt.Sprintf("a/%d/b/%d.yaml", folder, file))
				if err != nil || string(text) != fmt.Sprintf("%d of %d", file, folder) {
					t.Errorf("file %d of folder %d: %q, %v", file, folder, text, err)
				}
			}
		})
	}
	readers.Wait()
}

// onlyOpens hides that a tree reads files by itself.
type onlyOpens struct{ fs.FS }

func TestALinkIsFollowedInsideOfTheTreeAndNotOutOfIt(t *testing.T) {
	tree, dir := newTree(t)
	outside := filepath.Join(filepath.Dir(dir), "outside")
	require.NoError(t, os.WriteFile(outside, []byte("outside"), 0o600))
	for name, target := range map[string]string{
		"a/0/b/inside": "../../1/b/1.yaml", "a/0/b/out": "../../../../outside", "a/0/b/absolute": outside, "a/over": "1/b", "a/up": "../..",
	} {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Skip("this system makes no links: ", err)
		}
	}
	for _, name := range []string{"a/0/b/inside", "a/over/1.yaml"} {
		text, err := fs.ReadFile(onlyOpens{tree}, name)
		require.NoError(t, err, name)
		require.Equal(t, "1 of 1", string(text), name)
	}
	for _, name := range []string{"a/0/b/out", "a/0/b/absolute", "a/up/outside", "../outside", "/top", "a/0/b/none", "none/none"} {
		_, err := tree.Open(name)
		require.Error(t, err, name)
	}
	_, err := tree.Open("a/0/b/none")
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.Contains(t, err.Error(), "a/0/b/none", "an error names the whole path")
}
