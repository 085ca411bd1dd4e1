package backup_test

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"

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

func TestASpoolLeavesAFolderThatOthersUseAsItIs(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "tmp") // as /tmp is
	require.NoError(t, os.Mkdir(dir, 0o700))
	require.NoError(t, os.Chmod(dir, os.ModeSticky|0o777))
	before, err := os.Stat(dir)
	require.NoError(t, err)
	spool, err := backup.OpenSpool(dir)
	require.NoError(t, err)
	after, err := os.Stat(dir)
	require.NoError(t, err)
	require.Equal(t, before.Mode(), after.Mode())
	folder, err := spool.Folder()
	require.NoError(t, err)
	path, err := folder.Write("db", strings.NewReader("plain"))
	require.NoError(t, err)
	for file, mode := range map[string]os.FileMode{folder.Dir: 0o700, path: 0o600} {
		info, err := os.Stat(file)
		require.NoError(t, err)
		require.Equal(t, mode, info.Mode().Perm(), "what is put into it is nobody else's to read")
	}
	require.NoError(t, folder.Close())
}

func TestWhatCannotBeReadIsTheReadersErrorAndNotTheDisks(t *testing.T) {
	spool := emptySpool(t)
	folder, err := spool.Folder()
	require.NoError(t, err)
	defer func() { require.NoError(t, folder.Close()) }()
	_, err = folder.Write("db", iotest.ErrReader(backup.ErrDamaged))
	require.Equal(t, backup.ErrDamaged, err)
	require.ErrorContains(t, spool.Need("the drill", 1<<62), "the drill needs 4398046511105 MiB of disk and the spool folder has")
	require.NoError(t, spool.Need("the drill", 1))
}
