package soak

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"ichor.maesh.dev/backup"
	"ichor.maesh.dev/recovery"
	"ichor.maesh.dev/statefile"
)

// watch is what the monitor remembers of backups and restores.
type watch struct {
	// restores are the keys of the snapshot that each signed restore names, by its operation's digest.
	restores map[string]int64
	// recoveries are the etcds that came of each restore, by its operation's digest.
	recoveries map[string][]*etcd
	// wipes are when each boot took a reset of a restore.
	wipes map[string][]time.Time
	// split are the clusters of which two etcds were seen to answer.
	split map[string]bool
}

func newWatch() watch {
	return watch{restores: map[string]int64{}, recoveries: map[string][]*etcd{}, wipes: map[string][]time.Time{}, split: map[string]bool{}}
}

// oneEtcd judges, at every second, whether one etcd of a cluster answers at most.
func (o *monitor) oneEtcd(c *cluster) {
	if len(c.etcds) < 2 || o.split[c.name] {
		return
	}
	answering := 0
	for _, e := range c.etcds {
		if e.quorum(c) {
			answering++
		}
	}
	if answering > 1 {
		o.split[c.name] = true
		o.breach("%d etcds of %s answer", answering, c.name)
	}
}

// marker reads a cluster's marker as it stands in the bucket; nil where there is none.
func (o *monitor) marker(c *cluster) *recovery.Marker {
	content, err := backup.NewDestination(reader{c.objects(o.w)}, c.name, c.keys.Owner).Marker().Read(context.Background())
	if err != nil || content == nil {
		return nil
	}
	m, err := recovery.DecodeMarker(content)
	if err != nil {
		o.breach("the marker of %s can't be read back: %v", c.name, err)
		return nil
	}
	return m
}

// acceptedOfRestore judges a call of a restore that a machine is about to accept.
func (o *monitor) acceptedOfRestore(p *process, t taken) {
	c := t.m.c
	state, m := o.w.stateOf(c.name), o.marker(c)
	what := fmt.Sprintf("%s of a restore on %s/%s (boot %d) by %s", t.action, c.name, t.m.name, t.m.boot, p.id)
	if state == nil || m == nil {
		o.breach("%s was accepted, and there is no state or no marker", what)
		return
	}
	late := state.Writer.ID != p.id
	if late {
		o.late++
		o.w.faults["late call of a replaced agent in a restore"]++
	}
	explained := slices.ContainsFunc(m.Intents, func(i recovery.Intent) bool {
		carrier, boot := i.Machine, t.m.bootID()
		if t.action == string(recovery.ActConfig) {
			boot = t.m.fingerprint()
		}
		action := string(i.Action)
		if action == string(recovery.ActRestart) {
			action = "restart-service"
		}
		return carrier == t.m.name && i.BootID == boot && (action == t.action || t.method == "ApplyConfiguration" && i.Action == recovery.ActConfig)
	})
	switch {
	case !explained:
		o.breach("%s was accepted without an intent in the marker that explains it", what)
	case !o.signed[m.Operation]:
		o.breach("%s was accepted for %.12s, which nobody signed who may", what, m.Operation)
	case !late && (state.Lock == nil || !strings.HasPrefix(state.Lock.Holder, "operation:")):
		o.breach("%s was accepted without the cluster lock", what)
	}
	own := p.on == t.m && m.Own == t.m.name && m.Target != t.m.name
	if own && t.action == string(recovery.ActReset) && len(o.recoveries[m.Operation]) == 0 {
		o.breach("%s wipes the machine that it runs on, and no other one has recovered", what)
	}
	o.harmless(m, t, what, late)
}

// harmless judges what a call of a restore does: no boot is wiped twice, nothing recovers beside an etcd that lives or a second time, and what was
// recovered is neither wiped nor left.
func (o *monitor) harmless(m *recovery.Marker, t taken, what string, late bool) {
	e, recovered := t.m.etcd, o.recoveries[m.Operation]
	switch recovery.ActionKind(t.action) {
	case recovery.ActReset:
		key := t.m.uuid + " " + t.m.bootID()
		if before := o.wipes[key]; len(before) > 0 && time.Since(before[len(before)-1]) < 10*time.Minute {
			o.breach("%s: that boot was wiped a moment ago", what)
		}
		o.wipes[key] = append(o.wipes[key], time.Now())
		// The data of a learner that was taken out of it again is no member's any more.
		if e != nil && slices.Contains(recovered, e) && e.has(t.m.member) && e.quorum(t.m.c) {
			o.breach("%s wipes a member of the recovered etcd (late: %t)", what, late)
		}
	case recovery.ActLeave:
		if e != nil && slices.Contains(recovered, e) {
			o.breach("%s leaves the recovered etcd (late: %t)", what, late)
		}
	case recovery.ActRecover:
		for _, other := range t.m.c.etcds {
			if other.quorum(t.m.c) {
				o.breach("%s recovers beside an etcd that answers (late: %t)", what, late)
			}
		}
		if slices.ContainsFunc(recovered, func(other *etcd) bool { return other.held(t.m.c) }) {
			o.breach("%s is a second recovery of one restore (late: %t)", what, late)
		}
		o.keys(m, t, what)
	}
}

// keys judges what a machine recovers from: the keys of the snapshot that was signed, or nothing.
func (o *monitor) keys(m *recovery.Marker, t taken, what string) {
	if t.m.upload == nil {
		return
	}
	counts, err := countSnapshot(t.m.upload)
	if want := o.restores[m.Operation]; err != nil || counts.Keys != want {
		o.breach("%s recovers from a snapshot of %d keys (%v), and %d were signed", what, counts.Keys, err, want)
	}
}

// restored notes the etcd that came of a recovery, which the machine has just begun.
func (o *monitor) restored(c *cluster, e *etcd) {
	if m := o.marker(c); m != nil && e != nil {
		o.recoveries[m.Operation] = append(o.recoveries[m.Operation], e)
	}
}

// unrestored says what a restore that is said to be completed has not done.
func (o *monitor) unrestored(cluster string, op *statefile.OperationState) string {
	c := o.w.cluster(cluster)
	living := c.living()
	switch {
	case len(living) != 1:
		return fmt.Sprintf("machines hold the data of %d etcds", len(living))
	case !slices.Contains(o.recoveries[op.Digest], living[0]):
		return "the etcd that lives did not come of it"
	}
	counts, err := countSnapshot(living[0].data)
	if err != nil || counts.Keys != o.restores[op.Digest] {
		return fmt.Sprintf("etcd holds %d keys (%v), and the snapshot held %d", counts.Keys, err, o.restores[op.Digest])
	}
	return ""
}

// snapshotName is how the objects of snapshots are called, probeName those with which a bucket is tried, pinnedName the copies that restores
// rest on.
var (
	snapshotName = regexp.MustCompile(`^etcd-\d{8}T\d{6}Z\.snapshot\.age$`)
	probeName    = regexp.MustCompile(`^(etcd-probe|probe-[0-9a-f]{32})\.json$`)
	pinnedName   = regexp.MustCompile(`^etcd-restore\.[0-9a-f]{12}\.snapshot\.age$`)
)

// stored judges an object that the bucket of the backups took.
func (o *monitor) stored(p *process, c *cluster, key string, before *statefile.Object, data []byte) {
	if before == nil || string(before.Data) == string(data) {
		return
	}
	if key != backup.MarkerKey && key != "etcd-index.json" && !probeName.MatchString(key) {
		o.breach("%s replaced %s in the bucket of %s", p.id, key, c.name)
	}
}

// deletes judges an object that is about to go out of the bucket of the backups: only what the cluster itself stored, never one of the newest, and
// while a restore is under way no snapshot at all.
func (o *monitor) deletes(p *process, c *cluster, key string) {
	m := o.marker(c)
	open := m != nil && m.Phase != recovery.PhaseDone
	state := o.w.stateOf(c.name)
	writer := state != nil && state.Writer.ID == p.id
	switch {
	case probeName.MatchString(key):
	case pinnedName.MatchString(key):
		if open && key == m.Pinned && writer {
			o.breach("%s takes %s out of the bucket of %s, on which the restore under way rests", p.id, key, c.name)
		}
	case !snapshotName.MatchString(key) || c.label(o.w, key)["cluster-id"] != c.keys.ID:
		o.breach("%s takes %s out of the bucket of %s, which is nothing that it stored", p.id, key, c.name)
	default:
		o.w.calls["prune"]++
		newer := 0
		for _, name := range c.snapshots(o.w) {
			if name > key {
				newer++
			}
		}
		if newer < keptSnapshots {
			o.breach("%s takes %s out of the bucket of %s, and %d newer ones are there of the %d that are kept", p.id, key, c.name, newer, keptSnapshots)
		}
		if open && writer {
			o.breach("%s takes %s out of the bucket of %s while a restore is under way", p.id, key, c.name)
		}
	}
}

// snapshots are the names of the snapshots in a cluster's bucket.
func (c *cluster) snapshots(w *World) (names []string) {
	_ = c.objects(w).List(context.Background(), "etcd-", "", func(o statefile.ObjectInfo) error {
		if snapshotName.MatchString(o.Key) {
			names = append(names, o.Key)
		}
		return nil
	})
	return names
}
