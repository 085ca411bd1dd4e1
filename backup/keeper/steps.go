package keeper

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"ichor.maesh.dev/backup"
	"ichor.maesh.dev/backup/drill"
	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/statefile"
)

const (
	// finishAgain is how soon a destination is asked again about what was left open.
	finishAgain = time.Minute
	// pinnedFor is how long the copy that a restore rested on is kept at least; that of a restore which never began, as long.
	pinnedFor = 24 * time.Hour
	// drillLimit bounds one drill.
	drillLimit = 3 * time.Hour
)

// open opens the destination, and tries it with a throw-away object when that was not done yet.
func (t *tender) open(ctx context.Context) (*Place, error) {
	want := t.keeper.wanted()
	place, err := t.keeper.options.Opener.Open(ctx, want.Fleet, t.document(), want.Owner)
	if err != nil {
		return nil, err
	}
	if t.proved == place.Key {
		return place, nil
	}
	result, err := place.Probe(ctx)
	if err != nil {
		_ = place.Close()
		return nil, &problem{unusable(err), fmt.Errorf("store: %w", err)}
	}
	t.proved, t.seen.NoDelete = place.Key, slices.Contains(result.Missing, "delete")
	return place, nil
}

// unusable is the reason of a destination that could not be tried: one that can't be reached may be fine.
func unusable(err error) string {
	if errors.Is(err, statefile.ErrUnavailable) || errors.Is(err, statefile.ErrUnacknowledged) {
		return "Failed"
	}
	return "DestinationUnusable"
}

func (t *tender) verdict(p *problem) Verdict {
	text := t.keeper.options.Scrubber.Text(p.Error())
	if len(text) > textLimit {
		text = strings.ToValidUTF8(text[:textLimit], "") + "…"
	}
	return Verdict{p.reason, text}
}

// saw notes what was seen at the destination, or why it was not.
func (t *tender) saw(at time.Time, c backup.Contents, err error) {
	if !same(t.looked, t.document()) {
		t.looked, t.seen = t.document(), Seen{NoDelete: t.seen.NoDelete}
	}
	t.seen.Looked = at
	if err != nil {
		t.seen.Problem = t.verdict(ofStore(err))
		return
	}
	t.seen.Problem, t.seen.Marker, t.seen.Foreign, t.seen.Unlisted = Verdict{}, c.Marker, c.Foreign, c.Unlisted
}

// contents opens the destination and lists it. The place is nil on an error.
func (t *tender) contents(ctx context.Context) (*Place, backup.Contents, error) {
	place, err := t.open(ctx)
	if err != nil {
		return nil, backup.Contents{}, err
	}
	c, err := place.Contents(ctx)
	if err != nil {
		_ = place.Close()
		return nil, backup.Contents{}, err
	}
	return place, c, nil
}

// look compares what the destination holds with what is remembered.
func (t *tender) look(ctx context.Context, order order) error {
	place, c, err := t.contents(ctx)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	t.saw(t.time(), c, err)
	if err != nil {
		return t.write(ctx, nil)
	}
	defer func() { _ = place.Close() }()
	return t.write(ctx, func(s *statefile.State, m *statefile.BackupState) {
		remember(m, place.Location(), c, order.Retention, t.guards(s))
	})
}

// ignore ends a request that comes while the backup is suspended.
func (t *tender) ignore(ctx context.Context) error {
	return t.write(ctx, func(s *statefile.State, m *statefile.BackupState) {
		if m.Request != nil {
			m.Request.Done, m.Request.Outcome = t.now(s), "ignored: the backup is suspended"
		}
	})
}

// finish ends what a process that died left open, or what this one could not see the end of.
func (t *tender) finish(ctx context.Context) error {
	m := t.memory()
	if m.Drilling != "" {
		return t.write(ctx, func(_ *statefile.State, m *statefile.BackupState) {
			m.Drilling, m.DrillProblem = "", "the agent that began it ended before it was done"
		})
	}
	a := m.Attempt
	switch {
	case a == nil:
		return nil
	case a.Snapshot == nil:
		return t.fail(ctx, Verdict{"Failed", "the agent that began it ended before a member's snapshot had come"})
	}
	place, _, err := t.contents(ctx)
	if err == nil {
		defer func() { _ = place.Close() }()
		if place.Location() != a.Destination {
			return t.fail(ctx, Verdict{"Failed", "the agent that began it ended, and the destination was changed before anyone could see whether it was stored: " +
				"look at " + a.Destination})
		}
		var stored bool
		if stored, err = place.Finish(ctx, described(a.Snapshot)); err == nil {
			return t.settle(ctx, a, stored)
		}
	}
	var behind *backup.ClockBehindError
	if errors.As(err, &behind) {
		return t.fail(ctx, t.verdict(ofStore(err)))
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	now := t.time()
	t.finishAt = now.Add(finishAgain)
	t.saw(now, backup.Contents{}, err)
	return t.write(ctx, nil)
}

// settle records what became of an attempt that had come as far as storing.
func (t *tender) settle(ctx context.Context, a *statefile.BackupAttempt, stored bool) error {
	switch {
	case stored:
		return t.succeed(ctx, described(a.Snapshot), "")
	case a.Problem != "":
		return t.fail(ctx, Verdict{a.Reason, a.Problem})
	}
	return t.fail(ctx, Verdict{"Failed", "store: the agent that stored it ended before " + a.Snapshot.Name + " was there"})
}

// fail records that the attempt under way came to nothing. The first failure of a row is an audit event.
func (t *tender) fail(ctx context.Context, why Verdict) error {
	var events []statefile.Event
	if t.memory().LastError == "" {
		events = append(events, statefile.Event{Action: "BackupFailed", Message: t.name + ": " + why.Message, Details: map[string]string{"backup": t.name}})
	}
	return t.write(ctx, func(s *statefile.State, m *statefile.BackupState) { failed(m, why, t.now(s)) }, events...)
}

// succeed records that the attempt's snapshot is stored and listed.
func (t *tender) succeed(ctx context.Context, snapshot backup.Snapshot, took string) error {
	t.seen.Looked = time.Time{} // what is there now is looked at next
	return t.write(ctx, func(s *statefile.State, m *statefile.BackupState) {
		succeeded(m, snapshot, t.now(s))
		if took != "" {
			m.LastDuration = took
		}
	}, statefile.Event{Action: "BackupStored", Message: t.name + ": " + snapshot.Name, Details: map[string]string{"backup": t.name, "snapshot": snapshot.Name,
		"sha256": snapshot.SHA256, "revision": fmt.Sprint(snapshot.Revision)}})
}

// attempt takes a snapshot and stores it.
func (t *tender) attempt(ctx context.Context, requested bool) (again bool, err error) {
	select {
	case t.keeper.options.Limits.takes <- struct{}{}:
		defer func() { <-t.keeper.options.Limits.takes }()
	case <-ctx.Done():
		return false, ctx.Err()
	}
	before := t.memory().LastAttempt
	var began time.Time
	err = t.write(ctx, func(s *statefile.State, m *statefile.BackupState) {
		began = t.now(s)
		m.LastAttempt = began
		m.Attempt = &statefile.BackupAttempt{At: began, Writer: s.Writer}
		if requested && m.Request != nil {
			m.Attempt.Request, m.Request.Started = m.Request.Digest, began
		}
	})
	if err != nil {
		return false, err
	}
	place, c, err := t.contents(ctx)
	if ctx.Err() != nil {
		return false, ctx.Err() // the next process finds the attempt
	}
	t.saw(began, c, err)
	if err != nil {
		return true, t.fail(ctx, t.verdict(ofStore(err)))
	}
	defer func() { _ = place.Close() }()
	if c.Marker {
		return true, t.write(ctx, func(_ *statefile.State, m *statefile.BackupState) {
			m.Attempt, m.LastAttempt = nil, before
			if m.Request != nil && requested {
				m.Request.Started = time.Time{}
			}
		})
	}
	return true, t.takeAndStore(ctx, place, began)
}

func (t *tender) takeAndStore(ctx context.Context, place *Place, began time.Time) error {
	want := t.keeper.wanted()
	now, err := t.nameable(ctx, place)
	if err != nil {
		return t.failUnless(ctx, ofStore(err))
	}
	taken, err := backup.Take(ctx, want.Nodes, t.keeper.options.Spool, want.Owner.Passphrase, now)
	if err != nil {
		var member *backup.MemberError
		if errors.As(err, &member) {
			return t.failUnless(ctx, ofMember(err))
		}
		return t.failUnless(ctx, ofSpool(err))
	}
	defer func() { _ = taken.Close() }()
	talosVersion, kubernetesVersion := versions(t.known(), taken.Member)
	if c := want.Fleet.Cluster(t.document().Spec.ClusterRef.Name); c != nil && kubernetesVersion == "" {
		kubernetesVersion = c.Spec.KubernetesVersion
	}
	snapshot := place.Describe(taken, talosVersion, kubernetesVersion)
	err = t.write(ctx, func(_ *statefile.State, m *statefile.BackupState) {
		if m.Attempt != nil {
			m.Attempt.Snapshot, m.Attempt.Destination = stored(snapshot), place.Location()
		}
	})
	if err != nil {
		return err
	}
	if err := place.Store(ctx, snapshot, taken); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		// Whether it is there is asked next.
		why := t.verdict(ofStore(err))
		return t.write(ctx, func(_ *statefile.State, m *statefile.BackupState) {
			if m.Attempt != nil {
				m.Attempt.Reason, m.Attempt.Problem = why.Reason, why.Message
			}
		})
	}
	if err := t.succeed(ctx, snapshot, t.time().Sub(began).Round(time.Millisecond).String()); err != nil {
		return err
	}
	t.unpinUnbegun(ctx, place)
	return t.unpin(ctx, place)
}

// nameable gives the clock that names a snapshot which may be stored. Names have the second, so that one which is asked for in the second of
// the newest waits for the next; a clock that is further behind is an error at once ([*backup.ClockBehindError]).
func (t *tender) nameable(ctx context.Context, place *Place) (forward, error) {
	now := forward{t.clock(), t.time()}
	err := place.CheckName(ctx, backup.ObjectName(now.Now()))
	var behind *backup.ClockBehindError
	if !errors.As(err, &behind) || behind.Name != behind.Newest {
		return now, err
	}
	timer := t.clock().NewTimer(time.Second)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return now, ctx.Err()
	case <-timer.C():
	}
	now.latest = t.time()
	return now, place.CheckName(ctx, backup.ObjectName(now.Now()))
}

// unpinUnbegun takes away the copies of restores that are over and never came to their marker: they stay behind where the lease was lost, or
// the agent ended, between the copy and the marker.
func (t *tender) unpinUnbegun(ctx context.Context, place *Place) {
	s := t.known()
	if s == nil {
		return
	}
	for _, op := range s.Operations {
		began := op.Marked || op.StartedAt.IsZero() // or never came as far as a copy
		if op.Kind != string(schema.OperationEtcdRestore) || op.Target != t.name || !op.Phase.Over() || began || t.time().Sub(op.FinishedAt) < pinnedFor ||
			t.unpinned[op.Digest] {
			continue
		}
		pinned := backup.PinnedName(op.Digest)
		if last := s.LastRestore; last != nil && last.Pinned == pinned {
			continue
		}
		if err := place.Unpin(ctx, pinned); err != nil {
			t.log.Warn("the copy of a restore that never began could not be taken away; the next backup tries again", "copy", pinned, "operation", op.Name,
				"error", t.keeper.options.Scrubber.Text(err.Error()))
			continue
		}
		t.unpinned[op.Digest] = true
	}
}

// unpin takes away the copy that the last restore rested on, once a backup has succeeded a day later.
func (t *tender) unpin(ctx context.Context, place *Place) error {
	s := t.known()
	if s == nil || s.LastRestore == nil {
		return nil
	}
	last := *s.LastRestore
	if last.Pinned == "" || last.Backup != t.name || t.time().Sub(last.At) < pinnedFor {
		return nil
	}
	if err := place.Unpin(ctx, last.Pinned); err != nil {
		t.log.Warn("the copy that the last restore rested on could not be taken away; the next backup tries again", "copy", last.Pinned,
			"error", t.keeper.options.Scrubber.Text(err.Error()))
		return nil
	}
	return t.write(ctx, func(s *statefile.State, _ *statefile.BackupState) {
		if r := s.LastRestore; r != nil && r.Pinned == last.Pinned {
			r.Backup, r.Pinned = "", ""
		}
	})
}

// failUnless records a failure, unless it is only that this process is to end: the next one finds the attempt.
func (t *tender) failUnless(ctx context.Context, p *problem) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return t.fail(ctx, t.verdict(p))
}

// versions are what the control plane runs that a snapshot came from.
func versions(s *statefile.State, member string) (talos, kubernetes string) {
	if s == nil {
		return "", ""
	}
	if m := s.Machines[member]; m != nil {
		return m.TalosVersion, m.Kubernetes
	}
	return "", ""
}

// prune deletes what the retention lets go. One that is cut off is made again by the next process.
func (t *tender) prune(ctx context.Context, order order) error {
	var pruned backup.Pruned
	place, c, err := t.contents(ctx)
	if err == nil {
		defer func() { _ = place.Close() }()
		if c.Marker {
			t.saw(t.time(), c, nil)
			return nil
		}
		pruned, err = place.Prune(ctx, order.Retention, t.guard(), func(doomed []string) error {
			return t.write(ctx, func(_ *statefile.State, m *statefile.BackupState) { deleting(m, doomed, true) })
		})
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	problems := pruned.Problems
	var foreign *backup.ForeignError
	if err != nil && !errors.As(err, &foreign) { // what is foreign is said by the look
		problems = append(problems, t.verdict(ofStore(err)).Message)
	}
	var events []statefile.Event
	if len(pruned.Deleted) > 0 {
		events = append(events, statefile.Event{Action: "BackupPruned", Message: t.name + ": " + strings.Join(pruned.Deleted, ", "),
			Details: map[string]string{"backup": t.name}})
	}
	if len(pruned.Deleted) > 0 {
		t.seen.Looked = time.Time{} // what is left is looked at next
	}
	text := t.verdict(&problem{err: errors.New(strings.Join(problems, "; "))}).Message
	return t.write(ctx, func(s *statefile.State, m *statefile.BackupState) {
		m.LastPrune, m.PruneProblem = t.now(s), text
		m.Snapshots = slices.DeleteFunc(m.Snapshots, func(s statefile.BackupSnapshot) bool { return slices.Contains(pruned.Deleted, s.Name) })
	}, events...)
}

func deleting(m *statefile.BackupState, names []string, yes bool) {
	for n := range m.Snapshots {
		if slices.Contains(names, m.Snapshots[n].Name) {
			m.Snapshots[n].Deleting = yes
		}
	}
}

// drill restores the newest snapshot into a throw-away etcd.
func (t *tender) drill(ctx context.Context) (again bool, err error) {
	select {
	case t.keeper.options.Limits.drills <- struct{}{}:
		defer func() { <-t.keeper.options.Limits.drills }()
	default:
		return false, nil // another cluster's is under way, and a backup must not wait for it
	}
	place, c, err := t.contents(ctx)
	if ctx.Err() != nil {
		return false, ctx.Err()
	}
	t.saw(t.time(), c, err)
	if err != nil {
		return true, t.write(ctx, func(s *statefile.State, m *statefile.BackupState) {
			m.LastDrillAttempt, m.DrillProblem = t.now(s), t.seen.Problem.Message
		})
	}
	defer func() { _ = place.Close() }()
	if c.Marker {
		return true, nil
	}
	snapshot, err := c.Find("")
	if err != nil {
		return true, t.write(ctx, func(s *statefile.State, m *statefile.BackupState) {
			m.LastDrillAttempt, m.DrillProblem = t.now(s), t.verdict(ofStore(err)).Message
		})
	}
	err = t.write(ctx, func(s *statefile.State, m *statefile.BackupState) {
		m.LastDrillAttempt, m.Drilling = t.now(s), snapshot.Name
	})
	if err != nil {
		return false, err
	}
	return true, t.restore(ctx, place, snapshot)
}

func (t *tender) restore(ctx context.Context, place *Place, snapshot backup.Snapshot) error {
	limit := t.keeper.options.DrillLimit
	bounded, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	result, err := t.try(bounded, place, snapshot)
	trouble := ""
	if err == nil {
		err = place.NoteDrill(ctx, snapshot.Name, result)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var events []statefile.Event
	if err != nil && bounded.Err() != nil {
		err = fmt.Errorf("the drill of %s took longer than %s, its limit, and was broken off: %w", snapshot.Name, limit, err)
	}
	if err != nil {
		trouble = t.verdict(&problem{err: err}).Message
	}
	if !result.At.IsZero() {
		events = append(events, statefile.Event{Action: "BackupDrilled", Message: fmt.Sprintf("%s: %s %s", t.name, snapshot.Name, word(result.Passed)),
			Details: map[string]string{"backup": t.name, "snapshot": snapshot.Name}})
	}
	return t.write(ctx, func(_ *statefile.State, m *statefile.BackupState) {
		m.Drilling, m.DrillProblem = "", trouble
		if result.At.IsZero() {
			return
		}
		snapshot.Drill = &result
		noteDrill(m, snapshot)
		for n := range m.Snapshots {
			if m.Snapshots[n].Name == snapshot.Name {
				m.Snapshots[n].Drill = word(result.Passed)
			}
		}
	}, events...)
}

// try makes the drill. The result's time is zero when nobody knows whether the snapshot is any good.
func (t *tender) try(ctx context.Context, place *Place, snapshot backup.Snapshot) (backup.DrillResult, error) {
	plain, err := place.Open(ctx, snapshot.Name, snapshot.SHA256)
	var counts drill.Counts
	if err == nil {
		counts, err = t.keeper.options.Drill(ctx, plain, snapshot.Size, t.keeper.options.Spool)
		_ = plain.Close()
	}
	var broken *drill.FailedError
	switch {
	case err == nil:
		return backup.DrillResult{At: t.time(), Passed: true, Revision: counts.Revision, Keys: counts.Keys, Resources: counts.Resources}, nil
	case errors.As(err, &broken), backup.Bad(err):
		return backup.DrillResult{At: t.time(), Problem: t.verdict(&problem{err: err}).Message}, nil
	}
	return backup.DrillResult{}, err
}
