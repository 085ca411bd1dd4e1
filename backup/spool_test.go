package backup_test

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/backup"
)

func entries(t *testing.T, dir string) []string {
	t.Helper()
	list, err := os.ReadDir(dir)
	require.NoError(t, err)
	var names []string
	for _, e := range list {
		names = append(names, e.Name())
	}
	return names
}

func TestASpoolIsPrivateAndKeepsNothing(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "spool")
	spool, err := backup.OpenSpool(dir)
	require.NoError(t, err)
	if runtime.GOOS != "windows" {
		info, err := os.Stat(dir)
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o700), info.Mode().Perm())
	}
	file, err := spool.File()
	require.NoError(t, err)
	_, err = file.WriteString("sealed")
	require.NoError(t, err)
	if runtime.GOOS != "windows" {
		require.Empty(t, entries(t, dir), "an open file has no name, so that nothing stays when the process dies")
	}
	require.NoError(t, file.Close())
	require.Empty(t, entries(t, dir))
	folder, err := spool.Folder()
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(folder.Dir, "db"), []byte("plain"), 0o600))
	require.NoError(t, folder.Close())
	require.Empty(t, entries(t, dir))
}

func TestAnOpenedSpoolRemovesWhatADeadProcessLeftAndNothingElse(t *testing.T) {
	dir := t.TempDir()
	spool, err := backup.OpenSpool(dir)
	require.NoError(t, err)
	living, err := spool.Folder()
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(living.Dir, "db"), []byte("plain"), 0o600))
	dead := filepath.Join(dir, "ichor-spool-dead")
	require.NoError(t, os.MkdirAll(filepath.Join(dead, "member"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dead, ".lock"), nil, 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "ichor-spool-file"), []byte("x"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "notes.txt"), []byte("x"), 0o600))
	_, err = backup.OpenSpool(dir)
	require.NoError(t, err)
	require.ElementsMatch(t, []string{filepath.Base(living.Dir), "notes.txt"}, entries(t, dir))
	require.NoError(t, living.Close())
}
