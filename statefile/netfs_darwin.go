package statefile

import "golang.org/x/sys/unix"

// networkFileSystem names the network file system that a folder is on, or is empty.
func networkFileSystem(path string) string {
	var stat unix.Statfs_t
	if err := unix.Statfs(path, &stat); err != nil || stat.Flags&unix.MNT_LOCAL != 0 {
		return ""
	}
	return unix.ByteSliceToString(stat.Fstypename[:])
}
