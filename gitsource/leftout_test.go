package gitsource

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/internal/gittest"
)

func TestWhatGitLeavesOutIsWhatIsIgnoredAndWasNotAdded(t *testing.T) {
	r := gittest.New(t)
	r.Commit(gittest.Files{".gitignore": "# keys\n*.key\n/top.txt\n!kept.key\n", "a/.gitignore": "local\r\n!again.key\n", "a/added.txt": "1"})
	folder := filepath.Join(t.TempDir(), "work")
	gitIn(t, ".", "clone", "--quiet", r.Dir, folder)
	for _, name := range []string{"age.key", "a/age.key", "a/added.key", "kept.key", "top.txt", "a/top.txt", "a/local", "a/b/local", "a/again.key", "excluded", "other"} {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(folder, name)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(folder, name), []byte("x"), 0o600))
	}
	require.NoError(t, os.MkdirAll(filepath.Join(folder, ".git/info"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(folder, ".git/info/exclude"), []byte("excluded\n"), 0o600))
	gitIn(t, folder, "add", "--force", "a/added.key")

	c, err := OpenCheckout(folder)
	require.NoError(t, err)
	want := map[string]bool{"age.key": true, "a/age.key": true, "a/added.key": false, "kept.key": false, "top.txt": true, "a/top.txt": false,
		"a/local": true, "a/b/local": true, "a/again.key": false, "excluded": true, "other": false, "a/added.txt": false}
	var names []string
	for name := range want {
		names = append(names, name)
	}
	left, err := c.LeftOut(names)
	require.NoError(t, err)
	for name, is := range want {
		require.Equal(t, is, left[name], name)
	}
}
