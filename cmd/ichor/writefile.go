package main

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"ichor.maesh.dev/internal/filelock"
)

// writeWhole writes a file so that it is there as a whole or not at all, and unless replace is given never in the place of
// another one.
func writeWhole(name string, data []byte, mode os.FileMode, replace bool) error {
	return writeStream(name, mode, replace, func(w io.Writer) error {
		_, err := w.Write(data)
		return err
	})
}

// temporaryPrefix starts the name of a file that is being written; digits follow.
const temporaryPrefix = ".ichor-"

// staleAfter is how long a file must have been left alone to be swept: one that was just made isn't locked yet, and one that was just
// closed isn't renamed yet.
const staleAfter = time.Minute

// sweepTemporary removes from a folder what a process left that was killed while it wrote there. A file whose process lives is locked.
func sweepTemporary(folder string, now time.Time) {
	left, _ := filepath.Glob(filepath.Join(escaped.Replace(folder), temporaryPrefix+"*")) // the pattern is a good one
	for _, name := range left {
		info, err := os.Lstat(name)
		digits := strings.Trim(filepath.Base(name)[len(temporaryPrefix):], "0123456789") == ""
		if err != nil || !digits || !info.Mode().IsRegular() || now.Sub(info.ModTime()) < staleAfter {
			continue
		}
		file, err := os.OpenFile(name, os.O_RDWR, 0)
		if err != nil {
			continue
		}
		free, err := filelock.Try(file)
		_ = file.Close()
		if free && err == nil {
			_ = os.Remove(name)
		}
	}
}

// escaped makes a pattern of a folder's name that matches it alone.
var escaped = strings.NewReplacer("*", "[*]", "?", "[?]", "[", "[[]")

// writeStream is [writeWhole] for what doesn't fit into memory. When write fails, nothing is left. What is no file, as /dev/stdout, is not
// replaced but written to.
func writeStream(name string, mode os.FileMode, replace bool, write func(io.Writer) error) error {
	if info, err := os.Stat(name); replace && err == nil && !info.Mode().IsRegular() && !info.IsDir() {
		file, err := os.OpenFile(name, os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		return errors.Join(write(file), file.Close())
	}
	sweepTemporary(filepath.Dir(name), time.Now())
	temporary, err := os.CreateTemp(filepath.Dir(name), temporaryPrefix+"*") // 0600
	if err != nil {
		return err
	}
	_, _ = filelock.Try(temporary) // says that it is being written; where files can't be locked, none is swept either
	defer func() {
		temporary.Close()
		os.Remove(temporary.Name())
	}()
	if err := temporary.Chmod(mode); err != nil {
		return err
	}
	if err := write(temporary); err != nil {
		return err
	}
	if err := temporary.Sync(); err != nil {
		return err
	}
	if err := temporary.Close(); err != nil {
		return err
	}
	if replace {
		return os.Rename(temporary.Name(), name)
	}
	if err := os.Link(temporary.Name(), name); err == nil || errors.Is(err, os.ErrExist) {
		return err
	}
	// Some file systems have no links; there the check before is all there is.
	if _, err := os.Lstat(name); err == nil {
		return os.ErrExist
	}
	return os.Rename(temporary.Name(), name)
}
