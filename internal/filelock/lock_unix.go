//go:build !windows

package filelock

import (
	"errors"
	"os"
	"syscall"
)

// Try takes an exclusive lock on an open file if nobody has it. It ends with the file's closing, or the process.
func Try(file *os.File) (bool, error) {
	err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, syscall.EWOULDBLOCK), errors.Is(err, syscall.EINTR):
		return false, nil
	}
	return false, err
}

// Release gives a lock back, also while a process that is just being started has the file open too.
func Release(file *os.File) error { return syscall.Flock(int(file.Fd()), syscall.LOCK_UN) }
