package backup

import (
	"context"
	"errors"
	"fmt"
	"io"

	"ichor.maesh.dev/statefile"
)

// PinnedName is the key of the copy of a snapshot that a restore keeps for itself, by a digest (hex): of its operation, or of the snapshot
// where a command restores it. It is never listed or pruned as a snapshot.
func PinnedName(digest string) string {
	return fmt.Sprintf("etcd-restore.%.12s.snapshot.age", digest)
}

// Pin copies a snapshot as it is stored, so that neither retention nor a late delete reaches what a restore rests on. One that is there
// already is left as it is: it is read by its digest. Errors: [ErrReplaced], those of the store.
func (d *Destination) Pin(ctx context.Context, spool *Spool, name, digest, pinned string) error {
	sealed, err := d.Fetch(ctx, name, digest)
	if err != nil {
		return fmt.Errorf("fetching %s: %w", name, err)
	}
	defer func() { _ = sealed.Close() }()
	file, err := spool.File()
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	size, err := io.Copy(file, sealed)
	if err != nil {
		return fmt.Errorf("fetching %s: %w", name, err)
	}
	if _, err := d.objects.Upload(ctx, pinned, io.NewSectionReader(file, 0, size), nil); err != nil {
		return fmt.Errorf("copying %s to %s: %w", name, pinned, err)
	}
	return nil
}

// Unpin takes the copy away. One that is gone is no error.
func (d *Destination) Unpin(ctx context.Context, pinned string) error {
	if err := d.objects.Remove(ctx, pinned); err != nil && !errors.Is(err, statefile.ErrNotFound) {
		return fmt.Errorf("taking away %s: %w", pinned, err)
	}
	return nil
}
