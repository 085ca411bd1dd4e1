package revision

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

// room is what the two files of a rewriting take on disk beside their size, in bytes.
const room = 32 << 20

// Contents is what a snapshot holds.
type Contents struct {
	keyspace.Counts
	// Size is of the file with its trailer, in bytes.
	Size int64 `json:"size"`
	// Compacted is the revision up to which etcd has forgotten what was overwritten or deleted since; zero where it never did.
	Compacted int64 `json:"compacted,omitempty"`
}

// BadError: the snapshot is no good, and why. Any other error says that nobody knows.
type BadError struct{ Problem string }

func (e *BadError) Error() string { return "the snapshot can't be used: " + e.Problem }

// Look checks the snapshot in a file, trailer and key space, and counts what it holds. Errors: [*BadError], this machine's, ctx's.
func Look(ctx context.Context, path string) (Contents, error) {
	return run(ctx, order{From: path})
}

// LookUpTo is [Look] for what was there at a revision. What the etcd wrote later is left out; where [Contents.Compacted] is above that
// revision, keys that were changed later are missing.
func LookUpTo(ctx context.Context, path string, upTo int64) (Contents, error) {
	return run(ctx, order{From: path, UpTo: upTo})
}

// Rewrite checks the snapshot in a file and writes it to another, which must not be there, with its revision raised to target and marked
// as compacted, and a trailer that matches. It gives what the new file holds: the same keys. The first file is only read.
// Errors: [*BadError], this machine's, ctx's; then there is no new file.
func Rewrite(ctx context.Context, from, to string, target int64) (Contents, error) {
	if target < 1 || target > ceiling {
		return Contents{}, fmt.Errorf("raising a snapshot to revision %d: no etcd comes to it", target)
	}
	if _, err := os.Lstat(to); err == nil {
		return Contents{}, fmt.Errorf("rewriting a snapshot to %s: it is there already", to)
	}
	contents, err := run(ctx, order{From: from, To: to, Target: target})
	if err != nil {
		_ = os.Remove(to)
	}
	return contents, err
}

func run(ctx context.Context, todo order) (Contents, error) {
	var contents Contents
	err := childprocess.Run(ctx, work, todo, &contents)
	var failed *childprocess.FailedError
	if errors.As(err, &failed) {
		return Contents{}, &BadError{failed.Problem}
	}
	if err != nil {
		return Contents{}, err
	}
	return contents, nil
}

// Prepared is a snapshot on disk as it is to be uploaded. Close is the end of it.
type Prepared struct {
	// Path is where it is.
	Path string
	// Before is what the snapshot held as it was taken, After what is to be uploaded: the same where nothing was raised.
	Before, After Contents

	folder *backup.SpoolFolder
}

// Close removes it.
func (p *Prepared) Close() error { return p.folder.Close() }

// Prepare writes a snapshot's plaintext of the given size into the spool and makes it ready to be uploaded. Choose gives the revision to
// raise it to, knowing its own; zero leaves it as it is. Reading must end with an error where the snapshot is not whole (as with
// [backup.Destination.Open]). Errors: [*BadError], those of choose and plain, this machine's, ctx's.
func Prepare(ctx context.Context, plain io.Reader, size int64, spool *backup.Spool, choose func(own int64) (int64, error)) (_ *Prepared, err error) {
	if err := spool.Need("making the snapshot ready", 2*size+room); err != nil {
		return nil, err
	}
	folder, err := spool.Folder()
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = folder.Close()
		}
	}()
	plainPath, err := folder.Write("snapshot.db", plain)
	if backup.Bad(err) {
		return nil, &BadError{err.Error()}
	}
	if err != nil {
		return nil, err
	}
	before, err := Look(ctx, plainPath)
	if err != nil {
		return nil, err
	}
	target, err := choose(before.Revision)
	if err != nil {
		return nil, err
	}
	if target == 0 {
		return &Prepared{Path: plainPath, Before: before, After: before, folder: folder}, nil
	}
	raised := filepath.Join(folder.Dir, "raised.db")
	after, err := Rewrite(ctx, plainPath, raised, target)
	if err != nil {
		return nil, err
	}
	if err := os.Remove(plainPath); err != nil {
		return nil, fmt.Errorf("spool: %w", err)
	}
	return &Prepared{Path: raised, Before: before, After: after, folder: folder}, nil
}
