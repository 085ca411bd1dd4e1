package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"ichor.maesh.dev/backup"
	"ichor.maesh.dev/backup/revision"
	"ichor.maesh.dev/reconcile"
	"ichor.maesh.dev/recovery"
	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/talos"
)

// answerLimit is how long control planes may take to answer before anything is begun.
const answerLimit = 10 * time.Minute

// recoverer is one run of the command.
type recoverer struct {
	*app
	*restoreFlags
	cmd    *cobra.Command
	marker *recoveryMarker
	client *talos.Client
	nodes  recovery.Nodes
	config func(string, talos.Observation) (recovery.Config, string)
	timing recovery.Timing
	// store and state are nil without --state.
	store statefile.Store
	state *statefile.Cluster
	mark  string
	// givenUp is the copy that a recovery rested on that --start-over ends; empty where there is none.
	givenUp string
}

func (a *app) recoverCluster(cmd *cobra.Command, f *restoreFlags) error {
	if err := f.loadRestore(cmd, a); err != nil {
		return err
	}
	r := &recoverer{app: a, restoreFlags: f, cmd: cmd, timing: recovery.DefaultTiming().Scaled(f.timeScale)}
	defer r.close()
	if err := r.open(cmd.Context()); err != nil {
		return err
	}
	found, err := r.marker.read(cmd.Context())
	switch {
	case errors.Is(err, recovery.ErrOtherRestore):
		return answerNo(err, "let the agent finish it, or follow what its status says")
	case err != nil:
		return cannot(err, "")
	case found != nil && found.Cluster.Name != r.name && (!r.fleeted || found.Phase != recovery.PhaseDone):
		return answerNo(fmt.Errorf("%s is of a recovery of %s, and the cluster's name is given as %s", r.marker.Location(), r.clean(found.Cluster.Name), r.name),
			"give --cluster "+r.clean(found.Cluster.Name))
	case found != nil && found.Phase == recovery.PhaseDone:
		if released, err := r.releaseEnded(cmd.Context(), found); released || err != nil {
			return err
		}
	case found != nil && !f.startOver:
		return r.goOn(cmd.Context(), found)
	}
	return r.beginAnew(cmd.Context(), found)
}

// open makes the connections. It changes nothing.
func (r *recoverer) open(ctx context.Context) (err error) {
	if r.restoreFlags.state.url != "" {
		if r.store, err = r.restoreFlags.state.open(ctx, r.scrubber, false); err != nil {
			return err
		}
		r.mark = statefile.LocationHash(r.store)
		if r.state, err = statefile.OpenCluster(r.store, statefile.Options{Name: r.name, Sealer: r.owner.Sealer, WriterID: statefile.NewNonce(), Clock: r.clock}); err != nil {
			return cannot(err, "")
		}
		if err = r.stateOfName(ctx); err != nil {
			return err
		}
	}
	if r.marker, err = r.openMarker(r.cmd); err != nil {
		return err
	}
	r.client = talos.NewClient(r.secrets, talos.ClientOptions{Clock: r.clock, Scrubber: r.scrubber})
	r.nodes = recovery.TalosNodes(r.client)
	if !r.fleeted {
		return nil
	}
	networks, err := parseNetworks(r.trusted)
	if err != nil {
		return err
	}
	cluster, err := r.findCluster()
	if err != nil {
		return err
	}
	r.config = recoveryConfigs(reconcile.NewComparer(r.tree, cluster, r.secrets, r.opened, r.mark), r.declared, networks)
	return nil
}

func (r *recoverer) close() {
	if r.client != nil {
		_ = r.client.Close()
	}
	if r.marker != nil {
		_ = r.marker.close()
	}
	if r.store != nil {
		_ = r.store.Close()
	}
}

// say shows a line of progress.
func (r *recoverer) say(line string) {
	fmt.Fprintf(r.err, "%s %s\n", r.clock.Now().UTC().Format("15:04:05"), r.clean(r.scrubber.Text(line)))
}

// releaseEnded gives back the lock of a recovery that ended, and whose process died before it did.
func (r *recoverer) releaseEnded(ctx context.Context, found *recovery.Marker) (bool, error) {
	if r.state == nil {
		return false, nil
	}
	id, _, err := recovery.Standing(ctx, r.state)
	if err != nil {
		return false, r.stateTrouble(err)
	}
	if id != found.ID {
		return false, nil
	}
	last := r.lastRestore(ctx)
	if err := r.fence(id).Release(ctx, "it was at its end already", r.record(found)); err != nil {
		return false, r.stateTrouble(err)
	}
	what := "was recovered"
	if found.Recovered == nil {
		what = "was given back to its old etcd, by a cancel,"
	} else {
		r.unpin(ctx, found, last)
	}
	fmt.Fprintf(r.out, "%s %s at %s already; its lock is given back now\n", r.name, what, found.Ended.Format(time.RFC3339))
	return true, nil
}

func (r *recoverer) fence(id string) *recovery.StateFence {
	return &recovery.StateFence{State: r.state, ID: id}
}

func (r *recoverer) stateTrouble(err error) error {
	var fenced *recovery.FenceError
	if errors.As(err, &fenced) {
		return answerNo(err, "")
	}
	return cannot(fmt.Errorf("the state of %s: %w", r.name, err), "where it is lost, leave --state out and stop every agent first")
}

// goOn goes on with the recovery that is under way.
func (r *recoverer) goOn(ctx context.Context, found *recovery.Marker) error {
	switch {
	case found.Cluster.ID != r.owner.ClusterID:
		return answerNo(fmt.Errorf("%s is of a recovery of another cluster", r.marker.Location()), "give the bundle of that cluster")
	case r.snapshot != "latest" && r.snapshot != found.Snapshot.Name:
		return answerNo(fmt.Errorf("a recovery from %s is under way", found.Snapshot.Name), "leave --snapshot out to go on with it, or give --start-over to begin anew")
	}
	fmt.Fprintf(r.err, "a recovery of %s from %s, begun at %s, is under way (%s); it is gone on with\n", r.name, r.clean(found.Snapshot.Name),
		found.Began.Format(time.RFC3339), found.Phase)
	if found.Problem != "" {
		fmt.Fprintf(r.err, "  the last run stopped: %s\n", r.clean(found.Problem))
	}
	if err := r.adjust(found); err != nil {
		return err
	}
	found.Resume(r.clock.Now(), found.Pause)
	spool, err := backup.OpenSpool(r.spool)
	if err != nil {
		return cannot(err, "give another folder with --spool")
	}
	ready, err := r.readyAgain(ctx, found, spool)
	if err != nil {
		return err
	}
	if ready == nil {
		ready = &readySnapshot{name: found.Snapshot.Name}
	} else {
		defer func() { _ = ready.Close() }()
	}
	return r.drive(ctx, found, ready, spool)
}

// adjust takes into a marker what the command line says anew: addresses, machines that may be wiped, machines that are gone.
func (r *recoverer) adjust(m *recovery.Marker) error {
	if err := r.checkNames(m.Machines); err != nil {
		return err
	}
	if err := m.Leave(r.without); err != nil {
		return answerNo(err, "power it off for good, and give --start-over with --without")
	}
	if len(r.controlPlanes) > 0 {
		for _, given := range r.machines {
			at := slices.IndexFunc(m.Machines, func(one recovery.Machine) bool { return one.Name == given.Name })
			if at < 0 {
				return answerNo(fmt.Errorf("the recovery that is under way is not of %s", given.Name), "give --start-over to begin anew with it")
			}
			m.Machines[at].Endpoint = given.Endpoint
		}
	}
	for _, name := range r.wipe {
		if !slices.Contains(m.Wipe, name) {
			m.Wipe = append(m.Wipe, name)
		}
	}
	return nil
}

// beginAnew prepares a recovery, shows it, asks, and begins.
func (r *recoverer) beginAnew(ctx context.Context, before *recovery.Marker) error {
	if err := r.checkNames(r.machines); err != nil {
		return err
	}
	spool, err := backup.OpenSpool(r.spool)
	if err != nil {
		return cannot(err, "give another folder with --spool")
	}
	known := revision.Known{NewestListed: r.marker.newest}
	assessment := recovery.Assessment{Machines: r.machines, Wipe: r.wipe, Mark: r.mark}
	if before != nil {
		known.LastRestore, assessment.LastTarget = before.Snapshot.Highest(), before.Target
	}
	plan, err := r.assess(ctx, assessment)
	if err != nil {
		return err
	}
	if len(plan.Blockers) > 0 {
		hint := ""
		if slices.ContainsFunc(plan.Blockers, func(why string) bool { return strings.Contains(why, "and that answers") }) {
			hint = "an etcd that answers is not lost: 'ichor restore --live' puts a snapshot in its place; to give it up all the same, go on with --wipe: " + commandLine(r.cmd)
		}
		return answerNo(fmt.Errorf("the recovery can't begin, and nothing was changed: %s", strings.Join(plan.Blockers, "; ")), hint)
	}
	ready, err := r.prepare(r.cmd, r.app, r.snapshot, spool, func(own int64) (int64, error) {
		if !r.bump {
			return 0, nil
		}
		known.Snapshot = own
		return revision.Target(known)
	})
	if err != nil {
		return err
	}
	defer func() { _ = ready.Close() }()
	r.show(plan, ready)
	m := &recovery.Marker{
		Cluster:  recovery.Cluster{Name: r.name, ID: r.owner.ClusterID},
		Snapshot: recovery.Snapshot{Name: ready.name, SHA256: ready.digest, Revision: ready.Before.Revision, Keys: ready.Before.Keys},
		Machines: plan.Machines, Target: plan.Target, Wipe: r.wipe, Workers: r.workers,
	}
	m.Snapshot.Raise(ready.After.Revision, known.LastRestore)
	if before != nil {
		m.Driver.Epoch = before.Driver.Epoch
	}
	if before != nil && before.Phase != recovery.PhaseDone {
		m.ID, r.givenUp = before.ID, before.Pinned // whose lock stands in the state
	}
	return r.drive(ctx, m, ready, spool)
}

// assess looks at the machines until all is known.
func (r *recoverer) assess(ctx context.Context, assessment recovery.Assessment) (recovery.Plan, error) {
	began, said := r.clock.Now(), ""
	for {
		assessment.Seen = recovery.LookAt(ctx, r.nodes, r.machines, r.config)
		assessment.Strangers, assessment.Others = recovery.Beside(ctx, r.nodes, r.machines, r.others(), assessment.Seen)
		plan := recovery.Assess(assessment)
		if len(plan.Blockers) > 0 || len(plan.Waits) == 0 {
			return plan, nil
		}
		if line := strings.Join(plan.Waits, "; "); line != said {
			said = line
			r.say("waiting: " + line)
		}
		if r.clock.Since(began) > answerLimit {
			return plan, answerNo(fmt.Errorf("nothing was changed: after %s it is still so: %s", answerLimit, said), "power on what doesn't answer, or leave it out with --without NAME")
		}
		timer := r.clock.NewTimer(r.timing.Look)
		select {
		case <-ctx.Done():
			timer.Stop()
			return plan, ctx.Err()
		case <-timer.C():
		}
	}
}

// show prints what would be done.
func (r *recoverer) show(plan recovery.Plan, ready *readySnapshot) {
	fmt.Fprintf(r.err, "\nrecover %s from %s: %d keys, revision %d", r.clean(r.name), r.clean(ready.name), ready.Before.Keys, ready.Before.Revision)
	if at, ok := backup.ParseName(ready.name); ok {
		fmt.Fprintf(r.err, ", taken %s ago", r.clock.Since(at).Round(time.Minute))
	}
	fmt.Fprintln(r.err, "\n  everything that changed in Kubernetes since then is lost")
	if ready.After.Revision != ready.Before.Revision {
		fmt.Fprintf(r.err, "  its revision is raised to %d: clients that lived through the loss read everything anew\n", ready.After.Revision)
	} else {
		fmt.Fprintln(r.err, "  its revision is not raised: clients that lived through the loss may be wrong without noticing; restart them all")
	}
	for _, line := range plan.Lines {
		fmt.Fprintf(r.err, "  %s\n", r.clean(line))
	}
	for _, line := range plan.Warnings {
		fmt.Fprintf(r.err, "  WARNING: %s\n", r.clean(line))
	}
	fmt.Fprintln(r.err)
}

// drive asks, fences, and runs to the end.
func (r *recoverer) drive(ctx context.Context, m *recovery.Marker, ready *readySnapshot, spool *backup.Spool) error {
	if r.state == nil {
		fmt.Fprintln(r.err, "WARNING: without --state nothing keeps an agent from acting meanwhile: no agent may be running for this cluster")
	}
	if err := r.confirmName(ctx, r.name, r.confirm, "recover it"); err != nil {
		return err
	}
	if err := r.pin(ctx, m, ready, spool); err != nil {
		return err
	}
	fence, err := r.takeFence(ctx, m)
	if err != nil {
		return err
	}
	kubernetes, err := r.kubernetes(m)
	if err != nil {
		return err
	}
	run := &recovery.Run{
		Nodes: r.nodes, Marker: r.marker, Fence: fence, Kubernetes: kubernetes, Prepared: ready.Prepared, Config: r.config, Count: recovery.CountIn(spool), Say: r.say,
		Clock: r.clock, Clocks: statefile.SystemClocks(), Timing: r.timing, Scrubber: r.scrubber,
	}
	if err := run.Begin(ctx, m); err != nil {
		return cannot(fmt.Errorf("%w; nothing was sent to any machine", err), "")
	}
	if r.givenUp != m.Pinned {
		r.takeAway(ctx, r.givenUp)
	}
	ended, err := run.Go(ctx)
	if err != nil {
		return r.brokenOff(err)
	}
	return r.end(ctx, fence, ended)
}

// brokenOff says why a recovery is not at its end, and the command that goes on.
func (r *recoverer) brokenOff(err error) error {
	var stopped *recovery.StoppedError
	var fenced *recovery.FenceError
	if errors.As(err, &stopped) || errors.As(err, &fenced) || errors.Is(err, recovery.ErrOtherDriver) {
		return answerNo(fmt.Errorf("the recovery of %s is not at its end: %w", r.name, err), "it goes on with: "+r.again())
	}
	return cannot(fmt.Errorf("the recovery of %s was broken off: %w", r.name, err), "it goes on with: "+r.again())
}

// end gives everything back, and says what came of it.
func (r *recoverer) end(ctx context.Context, fence recovery.Fence, ended *recovery.Marker) error {
	what, last := "the cluster was recovered from "+ended.Snapshot.Name, r.lastRestore(ctx)
	if ended.Recovered == nil {
		what = "the restore was cancelled, and the old etcd lives on"
	}
	if state, ok := fence.(*recovery.StateFence); ok {
		if err := state.Release(ctx, what, r.record(ended)); err != nil {
			return cannot(fmt.Errorf("%s: %s, and its lock could not be given back: %w", r.name, what, err), "")
		}
	}
	if ended.Recovered == nil {
		fmt.Fprintf(r.out, "%s is not restored: a cancel of the restore from %s had been begun, and is at its end\n", r.name, r.clean(ended.Snapshot.Name))
	} else {
		r.unpin(ctx, ended, last)
		fmt.Fprintf(r.out, "%s is recovered from %s: %s; %d control planes have joined\n", r.name, r.clean(ended.Snapshot.Name), ended.Recovered.Verified, len(ended.Machines))
	}
	if ended.Survivors != nil {
		fmt.Fprintf(r.out, "its Kubernetes API answers; %d kubelets lived through it and %d of the pods that keep their machines' forwarding\n",
			len(ended.Survivors.Kubelets), len(ended.Survivors.Pods))
	}
	for _, note := range ended.Notes {
		fmt.Fprintf(r.out, "%s\n", r.clean(note))
	}
	fmt.Fprintln(r.out, "now start the agent; one that ran meanwhile goes on by itself")
	return nil
}

// kubernetes gives the way to the Kubernetes API of the recovered control planes, with certificates minted from the bundle.
func (r *recoverer) kubernetes(m *recovery.Marker) (recovery.Kubernetes, error) {
	var servers []string
	for _, machine := range m.Machines {
		servers = append(servers, net.JoinHostPort(talos.Target{Endpoint: machine.Endpoint}.Host(), "6443"))
	}
	if r.endpoint != "" {
		servers = append(servers, r.endpoint)
	}
	api, err := reconcile.OpenKubernetes(r.clock.Now)(r.secrets, servers)
	if err != nil {
		return nil, cannot(err, "")
	}
	return api, nil
}

// again is the command that goes on: what was given, but for what the marker keeps and what must be said anew.
func (r *recoverer) again() string { return commandLine(r.cmd, "confirm", "wipe", "snapshot") }

// takeFence takes the cluster lock where there is a state, and waits for what an agent had begun.
func (r *recoverer) takeFence(ctx context.Context, m *recovery.Marker) (recovery.Fence, error) {
	if r.state == nil {
		if m.ID == "" {
			m.ID = recovery.NewID()
		}
		return recovery.NoFence{}, nil
	}
	id, _, err := recovery.Standing(ctx, r.state)
	if err != nil {
		return nil, r.stateTrouble(err)
	}
	if m.ID == "" {
		if m.ID = id; id == "" { // one that stands is of a run that died before it wrote the marker
			m.ID = recovery.NewID()
		}
	}
	fence := r.fence(m.ID)
	identity := statefile.ClusterIdentity{Name: r.name, ID: r.owner.ClusterID, BundleFingerprint: r.secrets.Fingerprint(), CAs: r.secrets.CAs()}
	if err := fence.Take(ctx, identity, r.clock.Now().UTC()); err != nil {
		return nil, r.stateTrouble(err)
	}
	_, intent, err := recovery.Standing(ctx, r.state) // only now: until the lock was taken an agent could begin one more
	if err != nil {
		return nil, r.stateTrouble(err)
	}
	if intent == nil {
		return fence, nil
	}
	if left := r.timing.Standing - r.clock.Since(intent.At); left > 0 {
		left = min(left, r.timing.Standing)
		r.say(fmt.Sprintf("an agent had begun %s on %s at %s: its end is waited for, %s", intent.Action, intent.Machine, intent.At.Format(time.RFC3339), left.Round(time.Second)))
		timer := r.clock.NewTimer(left)
		defer timer.Stop()
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-timer.C():
		}
	}
	return fence, nil
}
