package soak

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"ichor.maesh.dev/backup"
	"ichor.maesh.dev/recovery"
	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/statefile"
)

const kindRestore = string(schema.OperationEtcdRestore)

// ofBackups are the events of histories whose clusters have backups.
func ofBackups() []event {
	return []event{{4, (*run).signBackup}, {9, (*run).signRestore}, {3, (*run).loseQuorum}, {2, (*run).foreignObject}, {8, (*run).killRestore}, {8, (*run).freezeRestore}}
}

// aBackedUp is a cluster that has backups, nil where none has.
func (r *run) aBackedUp() *wantedCluster {
	if c := r.aCluster(); c.backups {
		return c
	}
	return nil
}

func (r *run) signBackup() bool {
	c := r.aBackedUp()
	if c == nil {
		return false
	}
	name := r.sign(c.c, "  kind: etcd-backup\n  etcdBackup:\n    backupRef:\n      name: "+backupName+"\n", false, time.Hour)
	r.push(fmt.Sprintf("%s: a snapshot of %s now", name, c.c.name))
	return true
}

// reader is a bucket as somebody reads it who may see everything.
type reader struct{ prefixed }

var errOnlyRead = errors.New("this bucket is only read")

// Stat implements backup.Objects.
func (b reader) Stat(ctx context.Context, key string) (statefile.Stat, error) {
	object, err := b.Get(ctx, key, "")
	if err != nil {
		return statefile.Stat{}, err
	}
	return statefile.Stat{Size: int64(len(object.Data)), ETag: object.ETag, Modified: object.Modified}, nil
}

// Upload implements backup.Objects.
func (b reader) Upload(context.Context, string, *io.SectionReader, map[string]string) (statefile.Stat, error) {
	return statefile.Stat{}, errOnlyRead
}

// Download implements backup.Objects.
func (b reader) Download(ctx context.Context, key string) (io.ReadCloser, statefile.Stat, error) {
	object, err := b.Get(ctx, key, "")
	if err != nil {
		return nil, statefile.Stat{}, err
	}
	stat, err := b.Stat(ctx, key)
	return io.NopCloser(bytes.NewReader(object.Data)), stat, err
}

// Remove implements backup.Objects.
func (b reader) Remove(context.Context, string) error { return errOnlyRead }

// listed are the snapshots that the index lists and the bucket holds, newest first.
func (r *run) listed(c *cluster) (*backup.Destination, []backup.Snapshot) {
	d := backup.NewDestination(reader{c.objects(r.w)}, c.name, c.keys.Owner)
	contents, err := d.Look(context.Background())
	if err != nil {
		return d, nil
	}
	var there []backup.Snapshot
	for _, s := range contents.Snapshots {
		if !s.Missing && !s.Deleting {
			there = append(there, s)
		}
	}
	return d, there
}

// restoreOf is the restore of a cluster that isn't over, nil where there is none.
func restoreOf(s *statefile.State) *statefile.OperationState {
	if s == nil {
		return nil
	}
	for _, op := range s.Operations {
		if op.Kind == kindRestore && !op.Phase.Over() {
			return op
		}
	}
	return nil
}

// signRestore signs a restore of one of the newest snapshots, unless one is under way.
func (r *run) signRestore() bool {
	c := r.aBackedUp()
	if c == nil || restoreOf(r.stateOf(c.c)) != nil {
		return false
	}
	return r.restore(c, r.lot.IntN(keptSnapshots), "")
}

// restore signs a restore of the nth newest snapshot there is.
func (r *run) restore(c *wantedCluster, nth int, why string) bool {
	d, snapshots := r.listed(c.c)
	if len(snapshots) == 0 {
		return false
	}
	s := snapshots[min(nth, len(snapshots)-1)]
	plain, err := d.Open(context.Background(), s.Name, s.SHA256)
	if err != nil {
		return false
	}
	defer func() { _ = plain.Close() }()
	data, err := io.ReadAll(plain)
	if err != nil {
		return false
	}
	counts, err := countSnapshot(data)
	if err != nil {
		return false
	}
	body := fmt.Sprintf("  kind: etcd-restore\n  etcdRestore:\n    backupRef:\n      name: %s\n    snapshot:\n      name: %s\n      sha256: %s\n    confirm: %s\n    localDataLoss: accepted\n    controlPlanes:\n",
		backupName, s.Name, s.SHA256, c.c.name)
	without := ""
	for _, name := range c.approved(schema.RoleControlPlane) {
		line := fmt.Sprintf("      %s: %s\n", name, c.machines[name].m.uuid)
		if c.machines[name].m.scrapped() {
			without += line
			continue
		}
		body += line
	}
	if without != "" {
		body += "    without:\n" + without
	}
	name, digest := r.signed(c.c, body, true, time.Hour)
	r.locked(func() { r.w.monitor.restores[digest] = counts.Keys })
	r.push(fmt.Sprintf("%s: restore %s from %s, which has %d keys%s", name, c.c.name, s.Name, counts.Keys, why))
	r.w.befell("restore signed")
	return true
}

// loseQuorum takes the disks of most control planes away at once, so that etcd has no quorum any more, where a snapshot is there to restore.
func (r *run) loseQuorum() bool {
	c := r.aBackedUp()
	if c == nil || restoreOf(r.stateOf(c.c)) != nil {
		return false
	}
	if _, snapshots := r.listed(c.c); len(snapshots) == 0 {
		return false
	}
	var members []*machine
	r.locked(func() {
		for _, m := range c.c.machines {
			if m.etcd != nil && m.etcd.has(m.member) && m.power {
				members = append(members, m)
			}
		}
	})
	if len(members) == 0 {
		return false
	}
	most := members[:len(members)/2+1]
	r.w.say("etcd's data on %d of the %d control planes of %s is lost", len(most), len(members), c.c.name)
	r.w.befell("quorum lost for good")
	r.locked(func() {
		for _, m := range most {
			m.forget()
			m.cycle(time.Now())
			m.byHand, m.byUs = time.Now(), ""
		}
	})
	return r.lot.IntN(2) == 0 || r.restore(c, 0, "")
}

// foreignObject puts something beside the snapshots that is nobody's business.
func (r *run) foreignObject() bool {
	c := r.aBackedUp()
	if c == nil {
		return false
	}
	r.foreign++
	key := fmt.Sprintf("%s/notes-%d.txt", c.c.name, r.foreign)
	r.w.say("somebody puts %s beside the snapshots", key)
	r.w.bucket.Tamper(key, []byte("not a snapshot"))
	return true
}

// killRestore kills the agents in the middle of a restore.
func (r *run) killRestore() bool { return r.inRestore(r.kill) }

// freezeRestore freezes the agents in the middle of a restore, often for minutes: what it was about to send is late then.
func (r *run) freezeRestore() bool {
	return r.inRestore(r.freezeLong)
}

// inRestore lets something happen while a restore has a marker that isn't done.
func (r *run) inRestore(what func() bool) bool {
	for _, c := range r.fleet.clusters {
		var m *recovery.Marker
		r.locked(func() { m = r.w.monitor.marker(c.c) })
		if m != nil && m.Phase != recovery.PhaseDone {
			return what()
		}
	}
	return false
}

// seeToLostEtcd does what the status asks for where an etcd has lost its quorum for good: it has the newest snapshot restored.
func (r *run) seeToLostEtcd(c *wantedCluster, state *statefile.State) {
	if !c.backups || restoreOf(state) != nil || time.Since(r.lastRestore) < 30*time.Minute {
		return
	}
	lost := false
	r.locked(func() {
		lost = state.Bootstrap != nil && !state.Bootstrap.Done.IsZero()
		for _, e := range c.c.etcds {
			all, holding := 0, 0
			for _, member := range e.members {
				if !member.Learner {
					all++
					if e.of(c.c, member.ID) != nil {
						holding++
					}
				}
			}
			lost = lost && holding <= all/2
		}
	})
	if lost && r.restore(c, 0, ": etcd has lost its quorum for good") {
		r.lastRestore = time.Now()
	}
}

// judgeBuckets says in the end whether every snapshot is there that is listed, and whatever else somebody put beside them.
func (r *run) judgeBuckets() {
	o := r.w.monitor
	for _, c := range r.fleet.clusters {
		if !c.backups {
			continue
		}
		contents, err := backup.NewDestination(reader{c.c.objects(r.w)}, c.c.name, c.c.keys.Owner).Contents(context.Background())
		if err != nil {
			o.breach("the bucket of %s can't be read: %v", c.c.name, err)
			continue
		}
		if missing := contents.Missing(); len(missing) > 0 {
			o.breach("the bucket of %s misses %s", c.c.name, strings.Join(missing, ", "))
		}
	}
	for n := range r.foreign {
		found := false
		for _, name := range clusterNames() {
			object, err := r.w.bucket.Get(context.Background(), fmt.Sprintf("%s/notes-%d.txt", name, n+1), "")
			found = found || err == nil && string(object.Data) == "not a snapshot"
		}
		if !found {
			o.breach("what somebody put beside the snapshots (notes-%d.txt) is gone or another", n+1)
		}
	}
}
