package filelock

import (
	"errors"
	"os"

	"golang.org/x/sys/windows"
)

// Try takes an exclusive lock on an open file if nobody has it. It ends with the file's closing, or the process.
func Try(file *os.File) (bool, error) {
	const whole = ^uint32(0)
	err := windows.LockFileEx(windows.Handle(file.Fd()), windows.LOCKFILE_EXCLUSIVE_LOCK|windows.LOCKFILE_FAIL_IMMEDIATELY,
		0, whole, whole, new(windows.Overlapped))
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, windows.ERROR_LOCK_VIOLATION), errors.Is(err, windows.ERROR_IO_PENDING):
		return false, nil
	}
	return false, err
}

// Release gives a lock back.
func Release(file *os.File) error {
	const whole = ^uint32(0)
	return windows.UnlockFileEx(windows.Handle(file.Fd()), 0, whole, whole, new(windows.Overlapped))
}
