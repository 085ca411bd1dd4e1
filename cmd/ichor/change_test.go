package main

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// A home or a whole disk isn't read for minutes because ichor validate was started in the wrong folder.
func TestAFolderThatIsTooLargeForAFleetIsRefusedOutsideOfGit(t *testing.T) {
	dir := t.TempDir()
	for n := range 10 {
		folder := filepath.Join(dir, fmt.Sprint(n))
		require.NoError(t, os.Mkdir(folder, 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(folder, "a.yaml"), nil, 0o600))
	}
	require.NoError(t, refuseAllOfADisk(".", dir, 21), "the folder itself, 10 in it, and a file in each")
	err := refuseAllOfADisk(".", dir, 20)
	require.EqualError(t, err, ". is in no Git checkout and holds more than 20 files and folders, so it is hardly a fleet repository; nothing was read")
	var exit *exitError
	require.ErrorAs(t, err, &exit)
	require.Equal(t, exitCannot, exit.code)
	require.Contains(t, exit.hint, "give the path of one")
}
