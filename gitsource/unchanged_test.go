package gitsource

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTheCommitThatBroughtAFileIsFound(t *testing.T) {
	folder := t.TempDir()
	commit := func(subject string, files map[string]string) {
		for name, text := range files {
			require.NoError(t, os.MkdirAll(filepath.Join(folder, filepath.Dir(name)), 0o755))
			require.NoError(t, os.WriteFile(filepath.Join(folder, name), []byte(text), 0o644))
		}
		gitIn(t, folder, "add", ".")
		gitIn(t, folder, "commit", "--quiet", "-m", subject)
	}
	gitIn(t, folder, "init", "--quiet", "--initial-branch=main")
	commit("one", map[string]string{"a": "1", "deep/b": "1"})
	commit("two", map[string]string{"deep/b": "2"})
	commit("three", map[string]string{"a": "3"})
	commit("four", map[string]string{"deep/b": "1"})
	commit("five", map[string]string{"c": "5"})
	checkout, err := OpenCheckout(folder)
	require.NoError(t, err)
	head, err := checkout.Revision("HEAD")
	require.NoError(t, err)
	for name, subject := range map[string]string{"a": "three", "deep/b": "four", "c": "five"} {
		found, err := checkout.UnchangedSince(t.Context(), head, name)
		require.NoError(t, err)
		require.Equal(t, subject, found.Subject, name)
	}
	before, err := checkout.Revision("HEAD~3")
	require.NoError(t, err)
	found, err := checkout.UnchangedSince(t.Context(), before, "a")
	require.NoError(t, err)
	require.Equal(t, "one", found.Subject)
	_, err = checkout.UnchangedSince(t.Context(), head, "none")
	require.ErrorContains(t, err, "look for the commit that brought none")

	shallow := filepath.Join(t.TempDir(), "shallow")
	gitIn(t, folder, "clone", "--quiet", "--depth=1", "file://"+folder, shallow)
	checkout, err = OpenCheckout(shallow)
	require.NoError(t, err)
	head, err = checkout.Revision("HEAD")
	require.NoError(t, err)
	_, err = checkout.UnchangedSince(t.Context(), head, "a")
	require.ErrorContains(t, err, "shallow")
}
