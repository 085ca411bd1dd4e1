package drill

import (
	"context"
	"errors"
	"io"
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
	if err := spool.Need("the drill", int64(float64(size)*needs)); err != nil {
		return Counts{}, err
	}
	folder, err := spool.Folder()
	if err != nil {
		return Counts{}, err
	}
	defer func() { _ = folder.Close() }()
	file, err := folder.Write("snapshot.db", plain)
	if backup.Bad(err) {
		return Counts{}, &FailedError{err.Error()}
	}
	if err != nil {
		return Counts{}, err
	}
	return start(ctx, order{File: file, Dir: filepath.Join(folder.Dir, "data")})
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
