package gitsource

import (
	"errors"
	"os"

	"golang.org/x/sys/windows"
)

// lockFile takes the lock on path for the life of the file that it returns; false when another process (or Source) has it.
func lockFile(path string) (*os.File, bool, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, false, err
	}
	err = windows.LockFileEx(windows.Handle(file.Fd()), windows.LOCKFILE_EXCLUSIVE_LOCK|windows.LOCKFILE_FAIL_IMMEDIATELY, 0, 1, 0,
		new(windows.Overlapped))
	if err == nil {
		return file, true, nil
	}
	_ = file.Close()
	if errors.Is(err, windows.ERROR_LOCK_VIOLATION) {
		return nil, false, nil
	}
	return nil, false, &os.PathError{Op: "lock", Path: path, Err: err}
}

// unlockFile gives the lock back.
func unlockFile(file *os.File) error { return file.Close() }

// syncFolder does nothing: Windows keeps a rename without it.
func syncFolder(string) error { return nil }
