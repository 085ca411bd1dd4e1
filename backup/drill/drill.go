package drill

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"ichor.maesh.dev/backup"
	"ichor.maesh.dev/backup/keyspace"
	"ichor.maesh.dev/internal/childprocess"
)

// needs is how many times the plaintext's size a drill takes on disk: itself, the restored copy, and a little for the rest.
const needs = 2.1

// Counts is what a key space holds.
type Counts = keyspace.Counts

// FailedError: the snapshot is no good, and why. Any other error of [Run] says that nobody knows.
type FailedError struct{ Problem string }

func (e *FailedError) Error() string { return e.Problem }

// Run restores a snapshot's plaintext of the given size in the spool, counts what it holds, and leaves nothing. Reading must end with an
// error where the snapshot is not whole (as with [backup.Destination.Open]). Errors: [*FailedError]; any other is this machine's or ctx's.
func Run(ctx context.Context, plain io.Reader, size int64, spool *backup.Spool) (Counts, error) {
	free, err := spool.Free()
	if err != nil {
		return Counts{}, err
	}
	if needed := int64(float64(size) * needs); free < needed {
		return Counts{}, fmt.Errorf("the drill needs %d MiB of disk and the spool folder has %d MiB left: make room, or give another folder", needed>>20+1, free>>20)
	}
	folder, err := spool.Folder()
	if err != nil {
		return Counts{}, err
	}
	defer func() { _ = folder.Close() }()
	todo := order{File: filepath.Join(folder.Dir, "snapshot.db"), Dir: filepath.Join(folder.Dir, "data")}
	if err := write(todo.File, plain); err != nil {
		return Counts{}, err
	}
	return start(ctx, todo)
}

func write(path string, plain io.Reader) error {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("spool: %w", err)
	}
	reading := &source{reader: plain}
	_, err = io.Copy(file, reading)
	err = errors.Join(err, file.Close())
	switch {
	case reading.err != nil && backup.Bad(reading.err):
		return &FailedError{reading.err.Error()}
	case reading.err != nil:
		return reading.err
	case err != nil:
		return fmt.Errorf("spool: writing the snapshot to disk: %w; make room in the spool folder", err)
	}
	return nil
}

type source struct {
	reader io.Reader
	err    error
}

func (s *source) Read(p []byte) (int, error) {
	n, err := s.reader.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		s.err = err
	}
	return n, err
}

// start runs a child.
func start(ctx context.Context, todo order) (Counts, error) {
	var counts Counts
	err := childprocess.Run(ctx, work, todo, &counts)
	var failed *childprocess.FailedError
	if errors.As(err, &failed) {
		return Counts{}, &FailedError{failed.Problem}
	}
	return counts, err
}
