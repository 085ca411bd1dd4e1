package statefile

import (
	"path/filepath"

	"golang.org/x/sys/windows"
)

// networkFileSystem names the network file system that a folder is on, or is empty.
func networkFileSystem(path string) string {
	volume, err := windows.UTF16PtrFromString(filepath.VolumeName(path) + `\`)
	if err == nil && windows.GetDriveType(volume) == windows.DRIVE_REMOTE {
		return "a network drive"
	}
	return ""
}
