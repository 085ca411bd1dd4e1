package diskspace

import (
	"fmt"

	"golang.org/x/sys/windows"
)

// Free is how many bytes an ordinary user can still write in a folder.
func Free(dir string) (int64, error) {
	path, err := windows.UTF16PtrFromString(dir)
	if err != nil {
		return 0, fmt.Errorf("asking how much room there is in %s: %w", dir, err)
	}
	var free uint64
	if err := windows.GetDiskFreeSpaceEx(path, &free, nil, nil); err != nil {
		return 0, fmt.Errorf("asking how much room there is in %s: %w", dir, err)
	}
	return int64(free), nil
}
