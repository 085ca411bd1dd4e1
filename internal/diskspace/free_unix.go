//go:build !windows

package diskspace

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Free is how many bytes an ordinary user can still write in a folder.
func Free(dir string) (int64, error) {
	var stat unix.Statfs_t
	if err := unix.Statfs(dir, &stat); err != nil {
		return 0, fmt.Errorf("asking how much room there is in %s: %w", dir, err)
	}
	return int64(stat.Bavail) * int64(stat.Bsize), nil
}
