package gitsource

import (
	"errors"
	"os"

	"ichor.maesh.dev/internal/filelock"
)

// lockFile takes the lock on path for the life of the file that it returns; false when another process (or Source) has it.
func lockFile(path string) (*os.File, bool, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, false, err
	}
	free, err := filelock.Try(file)
	if err == nil && free {
		return file, true, nil
	}
	_ = file.Close()
	if err != nil {
		return nil, false, &os.PathError{Op: "lock", Path: path, Err: err}
	}
	return nil, false, nil
}

// unlockFile gives the lock back at once: closing alone would not while a process that is just being started has the file too.
func unlockFile(file *os.File) error { return errors.Join(filelock.Release(file), file.Close()) }
