// Package wholefile puts a file into its place as a whole or not at all, and has it on the disk when it says so.
package wholefile

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
)

// Prefix begins the name of a file that is being written. One that stays was left by a process that was killed.
const Prefix = ".new-"

// Write puts a file into the place of what bears its name, for nobody but its owner to read.
func Write(name string, data []byte) error {
	temporary, err := os.CreateTemp(filepath.Dir(name), Prefix+"*") // 0600
	if err != nil {
		return err
	}
	_, err = temporary.Write(data)
	if err == nil {
		err = temporary.Sync()
	}
	if err = errors.Join(err, temporary.Close()); err == nil {
		err = os.Rename(temporary.Name(), name)
	}
	if err != nil {
		_ = os.Remove(temporary.Name())
		return err
	}
	return SyncFolder(filepath.Dir(name))
}

// SyncFolder makes a rename in a folder last. Windows keeps one without it, and can't.
func SyncFolder(folder string) error {
	if runtime.GOOS == "windows" {
		return nil
	}
	file, err := os.Open(folder)
	if err != nil {
		return err
	}
	return errors.Join(file.Sync(), file.Close())
}
