package reconcile

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"ichor.maesh.dev/backup"
	"ichor.maesh.dev/backup/keeper"
	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/talos"
)

// Backups is what an agent takes backups with.
type Backups struct {
	Opener keeper.Opener
	Spool  *backup.Spool
	Limits *keeper.Limits
}

// list lists the destinations of a cluster's backups: a snapshot, or a destination that can't be listed, keeps the cluster from being
// bootstrapped.
func (b *Backups) list(ctx context.Context, fleet *schema.Fleet, backups []*schema.TalosEtcdBackup, owner backup.Owner, noOwner error) Listing {
	listing := Listing{Snapshots: map[string][]string{}, Markers: map[string][]string{}, Problem: map[string]string{}}
	var mu sync.Mutex
	var group sync.WaitGroup
	for _, document := range backups {
		group.Go(func() {
			name := document.Metadata.Name
			contents, err := b.contents(ctx, fleet, document, owner, noOwner)
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				err = contents.IndexProblem
			}
			if err != nil {
				listing.Problem[name] = stable(err.Error())
			}
			for _, s := range contents.Snapshots {
				listing.Snapshots[name] = append(listing.Snapshots[name], s.Name)
			}
			listing.Snapshots[name] = slices.Concat(listing.Snapshots[name], contents.Foreign, contents.Unlisted)
			if contents.Indexed && len(listing.Snapshots[name]) == 0 {
				listing.Snapshots[name] = []string{"the index of its snapshots"}
			}
			if contents.Marker || contents.MarkerEnded { // either speaks of a past
				listing.Markers[name] = []string{backup.MarkerKey}
			}
		})
	}
	group.Wait()
	return listing
}

func (b *Backups) contents(ctx context.Context, fleet *schema.Fleet, document *schema.TalosEtcdBackup, owner backup.Owner, noOwner error) (backup.Contents, error) {
	if noOwner != nil {
		return backup.Contents{}, noOwner
	}
	place, err := b.Opener.Open(ctx, fleet, document, owner)
	if err != nil {
		return backup.Contents{}, err
	}
	defer func() { _ = place.Close() }()
	return place.Look(ctx)
}

// owner is whose the cluster's snapshots are, as its bundle says.
func (w *worker) owner() (backup.Owner, error) {
	material := w.bundle.SealingMaterial()
	return backup.NewOwner(material.ClusterID, material.ClusterSecret, material.EncryptionSecret)
}

// tend tells the keeper of the cluster's backups what this pass knows.
func (w *worker) tend(ctx context.Context, desired Cluster, plan Plan, in Input) {
	if w.agent.backups == nil {
		return
	}
	owner, err := w.owner()
	if err != nil {
		w.tell("backups", err.Error(), func() { w.log.Error("no backups can be taken", "problem", err) })
		return
	}
	if w.keeper == nil {
		w.agent.scrubber.Add(owner.Passphrase.Secret())
		w.keeper = keeper.New(keeper.Options{State: w.state, Opener: w.agent.backups.Opener, Spool: w.agent.backups.Spool, Limits: w.agent.backups.Limits,
			Clock: w.agent.clock, Log: w.log, Scrubber: w.agent.scrubber})
	}
	want := keeper.Want{Fleet: w.good.fleet, Backups: desired.Backups, Owner: owner, Hold: backupHold(desired, plan.Next, in), Named: toRestore(plan.Next)}
	for _, name := range wantedControlPlanes(&in, hold(&in, viewEtcd(&in))) {
		m := desired.Machine(name)
		want.Nodes = append(want.Nodes, w.nodes.Member(talos.Target{Name: name, Endpoint: m.Spec.Endpoint, ControlPlane: true}))
	}
	if w.agent.single {
		w.due = func(ctx context.Context) { w.keeper.Once(ctx, want) }
		return
	}
	w.keeper.Tend(ctx, want)
}

// toRestore are the snapshots that accepted restores name, by backup, and what the restores are called. Until its marker a restore has no copy of
// its own, and may wait for days.
func toRestore(state *statefile.State) map[string]map[string]string {
	named := map[string]map[string]string{}
	for _, op := range state.Operations {
		if op.Phase.Over() || op.AcceptedAt.IsZero() || op.Kind != string(schema.OperationEtcdRestore) {
			continue
		}
		spec, refusal := specOf(op)
		if refusal != nil || spec.EtcdRestore == nil {
			continue
		}
		backup := spec.EtcdRestore.BackupRef.Name
		if named[backup] == nil {
			named[backup] = map[string]string{}
		}
		named[backup][spec.EtcdRestore.Snapshot.Name] = op.Name
	}
	return named
}

// firstBackupPatience is how long the first snapshot waits for an etcd of which all members have joined.
const firstBackupPatience = 15 * time.Minute

// attempted says whether an attempt of any backup was ever begun.
func attempted(state *statefile.State) bool {
	for _, b := range state.Backups {
		if !b.LastAttempt.IsZero() {
			return true
		}
	}
	return false
}

// elsewhere names a machine that another Ichor manages; empty when none is known.
func elsewhere(state *statefile.State) string {
	for _, name := range slices.Sorted(maps.Keys(state.Machines)) {
		if state.Machines[name].Ready.Reason == "ManagedElsewhere" {
			return name
		}
	}
	return ""
}

// backupHold is why a cluster's backups stand still; its reason is empty when they don't.
func backupHold(desired Cluster, state *statefile.State, in Input) keeper.Verdict {
	why, isPaused := paused(desired.Object.Metadata)
	switch {
	case isPaused:
		return keeper.Verdict{Reason: "Paused", Message: "the cluster is paused, so no snapshot is taken, drilled or pruned: " + nameOr(why, "no reason given")}
	case elsewhere(state) != "":
		return keeper.Verdict{Reason: "ManagedElsewhere", Message: fmt.Sprintf("%s bears the mark of another Ichor's state, which looks after the backups of "+
			"this cluster: nothing is taken, drilled or pruned from here; run one Ichor for it", elsewhere(state))}
	case state.Bootstrap == nil || state.Bootstrap.Done.IsZero():
		return keeper.Verdict{Reason: "WaitingForBootstrap", Message: "the first snapshot is taken once etcd is bootstrapped"}
	case state.Ready.Reason == "EtcdSplit":
		return keeper.Verdict{Reason: "EtcdSplit", Message: "the control planes are in different etcds, and which one to keep only a person can say: no snapshot " +
			"is taken, so that none of the wrong one takes the place of an earlier one"}
	case !attempted(state) && in.now().Sub(state.Bootstrap.Done) < firstBackupPatience:
		etcd := viewEtcd(&in)
		if ok, why := etcd.healthy(wantedControlPlanes(&in, hold(&in, etcd))); !ok {
			return keeper.Verdict{Reason: "WaitingForEtcd", Message: fmt.Sprintf("the first snapshot is taken once etcd is healthy, and in any case %s after its "+
				"bootstrap: %s", firstBackupPatience, why)}
		}
	}
	return keeper.Verdict{}
}

// refresh takes the state that was written since the pass into the report.
func (w *worker) refresh() {
	state, _ := w.state.Known()
	w.mu.Lock()
	defer w.mu.Unlock()
	if state != nil {
		w.last.State = state
	}
}

// backupsOnce does what is due for the backups of each cluster, for an agent that makes one pass.
func (a *Agent) backupsOnce(ctx context.Context) {
	var group sync.WaitGroup
	for _, w := range a.current() {
		if w.due != nil && w.owned {
			group.Go(func() {
				w.due(ctx)
				w.refresh()
			})
		}
	}
	group.Wait()
}
