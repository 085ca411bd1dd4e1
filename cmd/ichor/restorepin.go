package main

import (
	"context"
	"errors"
	"fmt"

	"ichor.maesh.dev/backup"
	"ichor.maesh.dev/backup/revision"
	"ichor.maesh.dev/recovery"
	"ichor.maesh.dev/statefile"
)

// pin copies the snapshot of a new recovery beside the others, so that neither retention nor a delete takes it away while machines without
// data wait for it. A snapshot that is a file is left to who owns it.
func (r *recoverer) pin(ctx context.Context, m *recovery.Marker, ready *readySnapshot, spool *backup.Spool) error {
	if r.marker.destination == nil || !m.Began.IsZero() {
		return nil
	}
	pinned := backup.PinnedName(ready.digest)
	if err := r.marker.destination.Pin(ctx, spool, ready.name, ready.digest, pinned); err != nil {
		return r.refuse(fmt.Errorf("the snapshot's copy, which the recovery would rest on, can't be made, and nothing was sent to any machine: %w", err))
	}
	m.Pinned = pinned
	return nil
}

// readyAgain makes the snapshot of a recovery that is under way ready: from its copy, where that is there. Nil where none is needed any more.
func (r *recoverer) readyAgain(ctx context.Context, found *recovery.Marker, spool *backup.Spool) (*readySnapshot, error) {
	if found.Phase == recovery.PhaseCancelling {
		return nil, nil // the old etcd lives on, and that must not fail for want of a snapshot
	}
	raised := func(int64) (int64, error) { return found.Snapshot.Raised, nil }
	if found.Pinned != "" && r.marker.destination != nil {
		ready, err := r.openPinned(ctx, found, spool, raised)
		if !errors.Is(err, statefile.ErrNotFound) {
			return ready, err
		}
		fmt.Fprintf(r.err, "warning: %s, the copy that this recovery rests on, is gone; %s itself is taken\n", r.clean(found.Pinned), r.clean(found.Snapshot.Name))
	}
	ready, err := r.prepare(r.cmd, r.app, found.Snapshot.Name, spool, raised)
	if err != nil {
		return nil, err
	}
	if ready.digest != found.Snapshot.SHA256 {
		_ = ready.Close()
		return nil, answerNo(fmt.Errorf("%s is not the snapshot that this recovery began with: its SHA-256 is %s, and was %s", r.clean(ready.name), ready.digest, found.Snapshot.SHA256),
			"give the one that it began with, or --start-over to begin anew")
	}
	return ready, nil
}

func (r *recoverer) openPinned(ctx context.Context, found *recovery.Marker, spool *backup.Spool, raised func(int64) (int64, error)) (*readySnapshot, error) {
	plain, err := r.marker.destination.Open(ctx, found.Pinned, found.Snapshot.SHA256)
	if err == nil {
		defer func() { _ = plain.Close() }()
		var ready *revision.Prepared
		if ready, err = revision.Prepare(ctx, plain, 0, spool, raised); err == nil {
			return &readySnapshot{ready, found.Snapshot.Name, found.Snapshot.SHA256}, nil
		}
	}
	err = fmt.Errorf("%s, the copy that this recovery rests on: %w", found.Pinned, err)
	if errors.Is(err, statefile.ErrNotFound) {
		return nil, err
	}
	return nil, r.refuse(err)
}

// agentUnpins says whether an agent takes the copy away, a day after the recovery: it must know of it by the state or by its own operation,
// and which backup's bucket it is in.
func (r *recoverer) agentUnpins(m *recovery.Marker) bool {
	return m.Operation != "" || r.state != nil && r.from == "" && r.backup != ""
}

// record is what the state keeps of a recovery that is over; nil where the old etcd lives on.
func (r *recoverer) record(m *recovery.Marker) *statefile.RestoreRecord {
	record := m.Restored()
	if record != nil && m.Pinned != "" && r.from == "" && r.backup != "" && r.agentUnpins(m) {
		record.Backup, record.Pinned = r.backup, m.Pinned
	}
	return record
}

// unpin takes away the copy of an ended recovery that no agent will, and that of the restore before it.
func (r *recoverer) unpin(ctx context.Context, ended *recovery.Marker, last *statefile.RestoreRecord) {
	if !r.agentUnpins(ended) {
		r.takeAway(ctx, ended.Pinned)
	}
	if last != nil && last.Pinned != ended.Pinned && last.Backup == r.backup {
		r.takeAway(ctx, last.Pinned)
	}
}

// takeAway removes a copy on which nothing rests any more. That it stays harms nothing, and is said.
func (r *recoverer) takeAway(ctx context.Context, pinned string) {
	if pinned == "" || r.marker.destination == nil {
		return
	}
	if err := r.marker.destination.Unpin(ctx, pinned); err != nil {
		fmt.Fprintf(r.err, "warning: %s\n", r.clean(r.scrubber.Text(err.Error())))
	}
}

// lastRestore is what the state keeps of the restore before; nil where that isn't known.
func (r *recoverer) lastRestore(ctx context.Context) *statefile.RestoreRecord {
	if r.state == nil {
		return nil
	}
	state, err := r.state.Load(ctx)
	if err != nil {
		return nil // its copy stays, and harms nothing
	}
	return state.LastRestore
}
