package e2e

import (
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// smallDisk is the size of the file systems that tests fill, as mount takes it.
const smallDisk = "size=8m"

// mountSmall puts a small file system over a folder until the test ends, where that may be done.
func mountSmall(t *testing.T, folder string) {
	t.Helper()
	if !canMount() {
		return
	}
	require.NoError(t, syscall.Mount("tmpfs", folder, "tmpfs", 0, smallDisk))
	t.Cleanup(func() { _ = syscall.Unmount(folder, syscall.MNT_DETACH) })
}

// canMount finds out by trying: root in a container often may not.
func canMount() bool {
	folder, err := os.MkdirTemp("", "ichor-mount-")
	if err != nil {
		return false
	}
	defer os.Remove(folder)
	if syscall.Mount("tmpfs", folder, "tmpfs", 0, smallDisk) != nil {
		return false
	}
	return syscall.Unmount(folder, 0) == nil
}
