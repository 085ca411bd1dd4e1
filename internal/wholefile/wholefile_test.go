package wholefile

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAFileIsReplacedAsAWholeAndIsItsOwnersAlone(t *testing.T) {
	name := filepath.Join(t.TempDir(), "record.json")
	require.NoError(t, os.WriteFile(name, []byte("what was there, and is longer"), 0o644))
	require.NoError(t, Write(name, []byte("new")))
	content, err := os.ReadFile(name)
	require.NoError(t, err)
	require.Equal(t, "new", string(content))
	if info, err := os.Stat(name); runtime.GOOS != "windows" {
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	}
	alone(t, name)
}

func TestWhatCannotBePutInItsPlaceLeavesNothing(t *testing.T) {
	folder := t.TempDir()
	name := filepath.Join(folder, "record.json")
	require.NoError(t, os.MkdirAll(filepath.Join(name, "in the way"), 0o700))
	require.Error(t, Write(name, []byte("new")))
	alone(t, name)
	require.ErrorIs(t, Write(filepath.Join(folder, "no such folder", "record.json"), []byte("new")), os.ErrNotExist)
}

// alone holds that nothing stands beside a file.
func alone(t *testing.T, name string) {
	t.Helper()
	beside, err := os.ReadDir(filepath.Dir(name))
	require.NoError(t, err)
	require.Len(t, beside, 1)
}
