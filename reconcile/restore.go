package reconcile

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"ichor.maesh.dev/backup"
	"ichor.maesh.dev/backup/keeper"
	"ichor.maesh.dev/backup/revision"
	"ichor.maesh.dev/recovery"
	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/statefile"
)

// sentRestore counts in the state the effects of a restore: each is written there before its marker and its call.
const sentRestore = "restore"

// restoration is a restore that this process drives.
type restoration struct {
	order RestoreOrder
	place *keeper.Place
	ready *revision.Prepared
	run   *recovery.Run
	view  *RestoreView
}

func (r *restoration) close() {
	if r.ready != nil {
		_ = r.ready.Close()
	}
	if r.place != nil {
		_ = r.place.Close()
	}
	r.ready, r.place, r.run = nil, nil, nil
}

// restoreView is what the last step of a restore left; nil where this process made none.
func (w *worker) restoreView() *RestoreView {
	if w.restoration == nil {
		return nil
	}
	return w.restoration.view
}

// dropRestore forgets the restore that this process drove: another one may have driven it since, and only the marker says how far it is.
func (w *worker) dropRestore() {
	if w.restoration != nil {
		w.restoration.close()
	}
	w.restoration = nil
}

// restore makes the next step of a restore: at most one call. What came of it is decided on in the next pass.
func (w *worker) restore(ctx context.Context, desired Cluster, order *RestoreOrder, in Input) {
	r := w.restoration
	if order == nil || r == nil || r.order.Digest != order.Digest || r.order.Pause != order.Pause {
		w.dropRestore()
		if order == nil {
			return
		}
		r = &restoration{order: *order}
		w.restoration = r
	}
	if r.run == nil {
		view := RestoreView{Digest: order.Digest, Pause: order.Pause, Marked: order.Marked}
		err := w.beginRestore(ctx, desired, r, &view)
		var away *awayError
		var fenced *recovery.FenceError
		switch {
		case ctx.Err() != nil:
			return
		case errors.As(err, &away), errors.As(err, &fenced):
			view.Say = err.Error()
		case err != nil:
			view.Problem = err.Error()
		}
		w.keepRestore(r, view, in)
		return
	}
	r.order.Cancel = order.Cancel
	w.advanceRestore(ctx, r, in)
}

// advanceRestore makes one step of a restore whose marker is written.
func (w *worker) advanceRestore(ctx context.Context, r *restoration, in Input) {
	view := RestoreView{Digest: r.order.Digest, Pause: r.order.Pause, Marked: true}
	r.run.Cancel = r.order.Cancel
	marker, said, err := r.run.Advance(ctx)
	view.Step, view.Say, view.Undo = string(marker.Phase), said, marker.Undo()
	var stopped *recovery.StoppedError
	var fenced *recovery.FenceError
	switch {
	case ctx.Err() != nil:
		return
	case errors.Is(err, recovery.ErrOtherDriver):
		view.Problem = "another process drives this restore, and this one has stopped: " + err.Error()
	case errors.As(err, &stopped):
		view.Problem = stopped.Why
	case errors.As(err, &fenced):
		view.Say = fenced.Why
	case err != nil:
		view.Say = err.Error()
	case marker.Phase == recovery.PhaseDone:
		w.endRestore(ctx, r, &view, marker)
	}
	w.keepRestore(r, view, in)
}

// keepRestore keeps a view. One that can't go on gets the way out, and what it held is given up: a resume begins with the marker.
func (w *worker) keepRestore(r *restoration, view RestoreView, in Input) {
	view.Say, view.Problem = w.agent.scrubber.Text(view.Say), w.agent.scrubber.Text(view.Problem)
	if view.Problem != "" && view.Marked {
		view.Problem += "; resume it, or stop this agent and end it by hand: " + recoverCommand(&in, &r.order.Spec, false)
	}
	if view.Problem != "" || view.Done {
		r.close()
	}
	r.view = &view
}

// endRestore says how a restore ended. The copy that it rested on is kept for a day, unless the old etcd lives on.
func (w *worker) endRestore(ctx context.Context, r *restoration, v *RestoreView, m *recovery.Marker) {
	v.Marked, v.Done, v.Step, v.Say = true, true, string(m.Phase), restored(m)
	v.Cancelled, v.Cordons = m.Cancelled, m.LeftCordons()
	if v.Restored = m.Restored(); v.Restored != nil {
		v.Restored.Backup, v.Restored.Pinned = r.order.Spec.BackupRef.Name, m.Pinned
		return
	}
	if err := r.place.Unpin(ctx, m.Pinned); err != nil {
		v.Say += fmt.Sprintf("; its copy %s could not be taken away: %s", m.Pinned, err)
	}
}

// restored is the sentence of a restore that is over.
func restored(m *recovery.Marker) string {
	if m.Cancelled && m.Recovered == nil {
		return strings.Join(m.Notes, "; ")
	}
	said := fmt.Sprintf("etcd is restored from %s on %s, and %d control planes have joined: %s", m.Snapshot.Name, m.Target, len(m.Machines), m.Recovered.Verified)
	if m.Cancelled {
		said = fmt.Sprintf("etcd is restored from %s on %s", m.Snapshot.Name, m.Target)
	}
	if m.Snapshot.Raised > 0 {
		said += "; the revision was raised, so that whatever lived through it reads everything anew"
	} else {
		said += "; its revision was not raised, as the operation wants it: controllers and pods that lived through it may be wrong without an error, so restart them"
	}
	if m.Survivors != nil {
		said += "; " + survived(m.Survivors)
	}
	for _, note := range m.Notes {
		said += "; " + note
	}
	return said
}

// survived says that Kubernetes answers, and what lived through the restore and was brought to read everything anew.
func survived(s *recovery.Survivors) string {
	var lived []string
	if n := len(s.Kubelets); n > 0 {
		lived = append(lived, numbered(n, "kubelet"))
	}
	if n := len(s.Pods); n > 0 {
		lived = append(lived, numbered(n, "pod")+" of its machines' networking")
	}
	if len(lived) == 0 {
		return "Kubernetes answers"
	}
	return "Kubernetes answers; through it lived " + strings.Join(lived, " and ")
}

// awayError: a store can't be reached at the moment, and the restore waits.
type awayError struct{ err error }

func (e *awayError) Error() string { return e.err.Error() }
func (e *awayError) Unwrap() error { return e.err }

// beginRestore reads the marker and makes the snapshot ready; a new restore pins its copy and writes its marker last.
func (w *worker) beginRestore(ctx context.Context, desired Cluster, r *restoration, view *RestoreView) (err error) {
	defer func() {
		if err == nil {
			return
		}
		r.close()
		if view.Marked && !errors.Is(err, errRestoreLost) && !errors.Is(err, errRestoreOld) {
			err = &awayError{fmt.Errorf("it waits: %w", err)}
		}
	}()
	spec := r.order.Spec
	at := slices.IndexFunc(desired.Backups, func(b *schema.TalosEtcdBackup) bool { return b.Metadata.Name == spec.BackupRef.Name })
	if at < 0 {
		return fmt.Errorf("there is no TalosEtcdBackup %s in the revision that is acted on (%.12s)", spec.BackupRef.Name, desired.Commit)
	}
	owner, err := w.owner()
	if err != nil {
		return err
	}
	if r.place, err = w.agent.backups.Opener.Open(ctx, w.good.fleet, desired.Backups[at], owner); err != nil {
		return err
	}
	file := r.place.Marker()
	found, err := readMarker(ctx, file)
	if err != nil {
		return err
	}
	switch mine := found != nil && found.Operation == r.order.Digest; {
	case mine && found.Phase == recovery.PhaseDone:
		w.endRestore(ctx, r, view, found)
		return nil
	case mine && w.agent.clock.Since(found.Began) > followed && !r.order.Cancel:
		view.Marked, view.Step, view.Undo = true, string(found.Phase), found.Undo()
		return fmt.Errorf("%w: it was written at %s, and what the machines have become since nobody watched", errRestoreOld, found.Began.Format(time.RFC3339))
	case mine:
		view.Marked = true
		return w.goOnRestore(ctx, desired, r, file, found, view)
	case r.order.Marked && (found == nil || found.Phase == recovery.PhaseDone) && r.order.Cancel:
		view.Done, view.Cancelled, view.Say = true, true, "its marker is gone, or another restore has taken its place and ended: there is nothing left to go on with"
		return nil
	case r.order.Marked && (found == nil || found.Phase == recovery.PhaseDone):
		view.Undo = recovery.UndoEnd
		return fmt.Errorf("%w (%s); it can only be cancelled", errRestoreLost, file.Location())
	case r.order.Marked:
		return fmt.Errorf("%w: %s", errRestoreLost, file.Location())
	case found != nil && found.Phase != recovery.PhaseDone:
		return fmt.Errorf("the marker of another restore (%s, from %s, begun %s) stands at %s; let that end first", found.ID, found.Snapshot.Name, found.Began.Format("2006-01-02T15:04:05Z"),
			file.Location())
	case r.order.Refuse != "":
		return errors.New(r.order.Refuse)
	}
	return w.newRestore(ctx, desired, r, file, found, view)
}

// followed is how old a marker may be that an agent goes on with.
const followed = 24 * time.Hour

var errRestoreOld = errors.New("the marker of this restore is older than 24 hours, and no agent goes on with it")

var errRestoreLost = errors.New("the marker of this restore is gone, or another restore's stands in its place")

func readMarker(ctx context.Context, file *backup.Marker) (*recovery.Marker, error) {
	content, err := file.Read(ctx)
	if err != nil || content == nil {
		return nil, err
	}
	return recovery.DecodeMarker(content)
}

// goOnRestore makes this process the driver of the restore that a marker speaks of.
func (w *worker) goOnRestore(ctx context.Context, desired Cluster, r *restoration, file *backup.Marker, found *recovery.Marker, view *RestoreView) (err error) {
	if !r.order.Cancel || found.Undo() != recovery.UndoRejoin { // a cancel must not fail for want of a snapshot
		raised := func(int64) (int64, error) { return found.Snapshot.Raised, nil }
		if r.ready, err = w.readyFor(ctx, r.place, found.Pinned, found.Snapshot.SHA256, 0, raised); err != nil {
			return err
		}
	}
	view.Step, view.Say, view.Undo = string(found.Phase), "it is gone on with from its marker", found.Undo()
	if found.Pause != r.order.Pause {
		found.Resume(w.agent.clock.Now(), r.order.Pause)
	}
	return w.drive(ctx, desired, r, file, found)
}

// newRestore checks the snapshot, pins it, makes it ready, and writes the marker: from then on the restore is under way.
func (w *worker) newRestore(ctx context.Context, desired Cluster, r *restoration, file *backup.Marker, before *recovery.Marker, view *RestoreView) error {
	spec := r.order.Spec
	contents, err := r.place.Contents(ctx)
	if err != nil {
		return err
	}
	listed, err := contents.Find(spec.Snapshot.Name)
	switch {
	case err != nil && spec.AcceptUnlisted && !errors.Is(err, backup.ErrReplaced):
	case err != nil:
		return err
	case listed.SHA256 != spec.Snapshot.SHA256:
		return fmt.Errorf("the index lists %s with the SHA-256 %s, and what was signed says %s: it is another snapshot; sign anew for the one that is meant", listed.Name,
			listed.SHA256, spec.Snapshot.SHA256)
	}
	known := revision.Known{}
	for _, s := range contents.Snapshots {
		known.NewestListed = max(known.NewestListed, s.Revision)
	}
	known.APIServer = w.revisionOfAPI(ctx, desired)
	m := &recovery.Marker{ID: recovery.NewID(), Operation: r.order.Digest, Cluster: recovery.Cluster{Name: w.name, ID: schema.ClusterID(w.bundle.ClusterID())},
		Machines: r.order.Machines, Target: r.order.Target, Holder: r.order.Holder, Own: r.order.Own, Pinned: backup.PinnedName(r.order.Digest), Pause: r.order.Pause,
		Workers: r.order.Workers}
	for _, machine := range m.Machines {
		m.Wipe = append(m.Wipe, machine.Name)
	}
	if before != nil {
		known.LastRestore, m.Driver.Epoch = before.Snapshot.Highest(), before.Driver.Epoch
		avoidTarget(m, before.Target)
	}
	if err := r.place.Pin(ctx, w.agent.backups.Spool, spec.Snapshot.Name, spec.Snapshot.SHA256, m.Pinned); err != nil {
		return err
	}
	if r.ready, err = w.readyFor(ctx, r.place, m.Pinned, spec.Snapshot.SHA256, listed.Size, func(own int64) (int64, error) {
		if spec.RevisionBump != nil && !*spec.RevisionBump {
			return 0, nil
		}
		known.Snapshot = own
		return revision.Target(known)
	}); err != nil {
		if (restoreFence{w, r.order.Digest}).lease() != nil {
			return err // whoever holds the cluster now may rest on the same copy
		}
		return errors.Join(err, r.place.Unpin(ctx, m.Pinned))
	}
	m.Snapshot = recovery.Snapshot{Name: spec.Snapshot.Name, SHA256: spec.Snapshot.SHA256, Revision: r.ready.Before.Revision, Keys: r.ready.Before.Keys}
	m.Snapshot.Raise(r.ready.After.Revision, known.LastRestore)
	if err := (restoreFence{w, r.order.Digest}).Hold(ctx); err != nil {
		return err
	}
	if err := w.drive(ctx, desired, r, file, m); errors.Is(err, statefile.ErrUnacknowledged) {
		return &awayError{err} // it may stand there: it is read again
	} else if err != nil {
		return err
	}
	view.Marked, view.Undo, view.Say = true, m.Undo(), "its marker is written: from here on the cluster is being restored"
	return nil
}

// avoidTarget takes another target than the last restore's: a restore gives the same machine the same member and cluster again, so that a straggler
// of the last one, a machine that was removed since and is switched on again for instance, would be taken in. Where one is wiped only, the agent's own
// machine recovers all the same, since the agent would end with its reboot.
func avoidTarget(m *recovery.Marker, last string) {
	if m.Target != last || m.Holder != "" && m.Own == last {
		return
	}
	for _, other := range m.Machines {
		if other.Name != last && other.Name != m.Own && other.Name != m.Holder {
			m.Target = other.Name
			return
		}
	}
}

// readyFor opens a snapshot in the bucket and makes it ready to be uploaded. Size is its plaintext's, zero where that isn't known.
func (w *worker) readyFor(ctx context.Context, place *keeper.Place, name, digest string, size int64, choose func(int64) (int64, error)) (*revision.Prepared, error) {
	plain, err := place.Destination.Open(ctx, name, digest)
	if err != nil {
		return nil, err
	}
	defer func() { _ = plain.Close() }()
	ready, err := revision.Prepare(ctx, plain, size, w.agent.backups.Spool, choose)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return ready, nil
}

// drive makes this process the driver of a restore.
func (w *worker) drive(ctx context.Context, desired Cluster, r *restoration, file *backup.Marker, m *recovery.Marker) error {
	drain := desired.Object.Spec.Rollout.Drain
	run := &recovery.Run{DrainLimit: drain.Limit(), DrainForce: drain.Force, Cancel: r.order.Cancel, Nodes: w.nodes.Recovery(), Marker: file, Fence: restoreFence{w, r.order.Digest}, Prepared: r.ready,
		Kubernetes: w.restoreKubernetes(desired), Count: recovery.CountIn(w.agent.backups.Spool),
		Say:   func(line string) { w.log.Info("restore", "says", w.agent.scrubber.Text(line)) },
		Clock: w.agent.clock, Clocks: w.agent.clocks, Timing: w.agent.config.RecoveryTiming, Scrubber: w.agent.scrubber}
	if err := run.Begin(ctx, m); err != nil {
		return err
	}
	r.run = run
	return nil
}

// restoreKubernetes gives a restore the way to the Kubernetes API; nil where there is none.
func (w *worker) restoreKubernetes(desired Cluster) recovery.Kubernetes {
	api, problem := w.kubernetes(desired)
	if problem != "" {
		w.log.Warn("a restore does without the Kubernetes API", "problem", problem)
		return nil
	}
	return api
}

// revisionOfAPI is the revision that the Kubernetes API has reached; zero where it doesn't answer.
func (w *worker) revisionOfAPI(ctx context.Context, desired Cluster) int64 {
	api := w.restoreKubernetes(desired)
	if api == nil {
		return 0
	}
	ctx, cancel := context.WithTimeout(ctx, kubernetesLook)
	defer cancel()
	at, err := api.Revision(ctx)
	if err != nil {
		w.log.Info("the Kubernetes API doesn't say which revision it has reached", "problem", w.agent.scrubber.Text(err.Error()))
		return 0
	}
	return at
}

// restoreFence lets a restore do something only while its operation runs, holds the cluster lock, and this process is the state's writer with
// a young lease. The state is swapped for each effect, before the marker is.
type restoreFence struct {
	w      *worker
	digest string
}

// Hold is for what only the marker changes by: the phases.
func (f restoreFence) Hold(ctx context.Context) error {
	return f.write(ctx, nil, statefile.Event{Action: "RestoreStep", Operation: f.digest, Message: "the restore comes to its next step; its marker says which"})
}

// Begin writes an intent into the state's audit, before the marker has it. With the first reset it ends the time in which a cancel is
// accepted: a cancel that was accepted before is what this very write finds.
func (f restoreFence) Begin(ctx context.Context, i recovery.Intent) error {
	return f.write(ctx, func(op *statefile.OperationState) error {
		if i.Action != recovery.ActReset || op.Undo == string(recovery.UndoEnd) {
			return nil
		}
		if op.Cancelling && i.Facts["reason"] == "old" {
			return &recovery.FenceError{Why: "the restore was cancelled: nothing is wiped any more"}
		}
		op.Undo = ""
		return nil
	}, statefile.Event{Action: "Intent", Machine: i.Machine, Operation: f.digest, Message: fmt.Sprintf("a restore: %s on %s", i.Action, i.Machine),
		Details: map[string]string{"call": fmt.Sprintf("%s %s", i.Action, i.Machine), "nonce": i.Nonce, "action": string(i.Action), "carrier": i.Machine,
			"boot": i.BootID, "attempt": strconv.Itoa(i.Attempt), "lock": operationLock(f.digest)}})
}

func (f restoreFence) write(ctx context.Context, change func(*statefile.OperationState) error, event statefile.Event) error {
	if err := f.lease(); err != nil {
		return err
	}
	err := f.w.state.Swap(ctx, func(s *statefile.State) error {
		op := accepted(s, f.digest)
		switch {
		case op == nil || op.Phase != statefile.OperationRunning || op.JudgedEpoch != s.Writer.Epoch:
			return &recovery.FenceError{Why: "the operation of this restore does not run any more, or was not verified by this agent"}
		case s.Lock == nil || s.Lock.Holder != operationLock(f.digest):
			return &recovery.FenceError{Why: "the cluster lock is not this restore's any more"}
		}
		if op.Sent == nil {
			op.Sent = map[string]int{}
		}
		op.Sent[sentRestore]++
		if change != nil {
			return change(op)
		}
		return nil
	}, event)
	if err != nil {
		return fmt.Errorf("the state could not be written before a step of the restore: %w", err)
	}
	return f.lease()
}

// Check wants a young lease, and that the last pass found the restore to be this process's.
func (f restoreFence) Check(context.Context) error { return f.lease() }

func (f restoreFence) lease() error {
	if age, held := f.w.agent.leaseOf(f.w.name).Age(); !held || age >= freshLease {
		return &recovery.FenceError{Why: fmt.Sprintf("the lease is not held, or is too old (%s)", age)}
	}
	return nil
}

// localAddresses are those of this machine that others may know it by.
func localAddresses() []string {
	var list []string
	addresses, _ := net.InterfaceAddrs() // without them the name of the node decides
	for _, address := range addresses {
		if network, is := address.(*net.IPNet); is && !network.IP.IsLoopback() && !network.IP.IsLinkLocalUnicast() {
			list = append(list, network.IP.String())
		}
	}
	return list
}
