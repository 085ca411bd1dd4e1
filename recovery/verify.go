package recovery

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"ichor.maesh.dev/backup"
	"ichor.maesh.dev/backup/revision"
)

// errVerified: the comparison says that the recovered etcd is not what the snapshot was.
var errVerified = errors.New("what was recovered is not what the snapshot holds")

// verify takes a snapshot of the recovered etcd and compares what it held when it began with what was uploaded. It changes nothing.
func (r *Run) verify(ctx context.Context, a *action) error {
	limit := r.Timing.Call + time.Duration(r.Prepared.After.Size>>20)*time.Second
	looking, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	session, err := r.dial(looking, a)
	if err != nil {
		return err
	}
	defer func() { _ = session.Close() }()
	r.Say(a.Why)
	stream, err := session.EtcdSnapshot(looking)
	if err != nil {
		return err
	}
	held, err := r.Count(looking, stream, r.marker.Snapshot.at())
	_ = stream.Close()
	if err != nil {
		return fmt.Errorf("comparing the recovered etcd with the snapshot: %w", err)
	}
	verdict, err := compare(r.marker.Snapshot, held)
	if err != nil {
		return err
	}
	return r.write(ctx, func(m *Marker) error {
		m.Recovered.Verified = verdict
		return nil
	})
}

// compare says whether an etcd held the snapshot's keys when it began.
func compare(s Snapshot, held revision.Contents) (string, error) {
	switch {
	case held.Compacted > s.at():
		return fmt.Sprintf("not compared: the Kubernetes API has compacted it since (revision %d)", held.Compacted), nil
	case held.Keys != s.Keys:
		return "", fmt.Errorf("%w: it began with %d keys, and the snapshot has %d", errVerified, held.Keys, s.Keys)
	}
	return fmt.Sprintf("it began with the snapshot's %d keys, at revision %d", s.Keys, s.at()), nil
}

// CountIn counts in a spool folder, with a child process.
func CountIn(spool *backup.Spool) func(ctx context.Context, snapshot io.Reader, at int64) (revision.Contents, error) {
	return func(ctx context.Context, snapshot io.Reader, at int64) (revision.Contents, error) {
		folder, err := spool.Folder()
		if err != nil {
			return revision.Contents{}, err
		}
		defer func() { _ = folder.Close() }()
		path := filepath.Join(folder.Dir, "recovered.db")
		file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if err != nil {
			return revision.Contents{}, fmt.Errorf("spool: %w", err)
		}
		_, err = io.Copy(file, snapshot)
		if err = errors.Join(err, file.Close()); err != nil {
			return revision.Contents{}, err
		}
		return revision.LookUpTo(ctx, path, at)
	}
}
