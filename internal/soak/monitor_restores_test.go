package soak

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/backup"
	"ichor.maesh.dev/recovery"
	"ichor.maesh.dev/statefile"
)

const restoreDigest = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

// underWay lets a restore be under way that meant these calls; the operation is signed, and agent-1.1 carries it out under the lock.
func underWay(t *testing.T, w *World, p *process, phase recovery.Phase, intents ...recovery.Intent) {
	t.Helper()
	w.monitor.signed[restoreDigest] = true
	w.monitor.restores[restoreDigest] = 20
	put(t, w, p, &statefile.State{Writer: statefile.Writer{ID: "agent-1.1", Epoch: 1}, Lock: &statefile.Lock{Holder: "operation:0123456789ab", Reason: "a restore"}})
	c := w.clusters[0]
	m := &recovery.Marker{SchemaVersion: 1, Kind: "recover-cluster", Phase: phase, ID: "recover:0123456789abcdef", Operation: restoreDigest, Target: "cp-1",
		Pinned: backup.PinnedName(restoreDigest), Cluster: recovery.Cluster{Name: "prod", ID: c.keys.ID}, Intents: intents}
	for _, machine := range c.machines[:3] {
		m.Machines = append(m.Machines, recovery.Machine{Name: machine.name, Endpoint: machine.ip, UUID: machine.uuid})
	}
	if p.on != nil {
		m.Own = p.on.name
	}
	content, err := json.Marshal(m)
	require.NoError(t, err)
	marker := backup.NewDestination(reader{c.objects(w)}, c.name, c.keys.Owner).Marker()
	_, err = marker.Read(context.Background())
	require.NoError(t, err)
	require.NoError(t, marker.Swap(context.Background(), content))
}

// meantBy is the intent of a call on a machine's present boot.
func meantBy(w *World, name string, action recovery.ActionKind) recovery.Intent {
	m := w.clusters[0].machine(name)
	return recovery.Intent{Nonce: "n-" + name + string(action), Action: action, Machine: name, UUID: m.uuid, BootID: m.bootID(), Driver: "driver", Epoch: 1, Attempt: 1}
}

// taking lets a machine take a call of a restore.
func taking(w *World, p *process, name string, action recovery.ActionKind) {
	w.monitor.accepted(p, taken{m: w.clusters[0].machine(name), method: string(action), action: string(action), restore: true})
}

// TestTheMonitorSeesBrokenPromisesOfRestores shows that each promise about backups and restores can be found broken.
func TestTheMonitorSeesBrokenPromisesOfRestores(t *testing.T) {
	keys := sharedKeys(t)
	// recovered lets cp-1 have recovered, all others being empty.
	recovered := func(t *testing.T, w *World, p *process) {
		for _, name := range []string{"cp-1", "cp-2", "cp-3"} {
			w.clusters[0].machine(name).forget()
		}
		m := w.clusters[0].machine("cp-1")
		underWay(t, w, p, recovery.PhaseRecovering, meantBy(w, "cp-1", recovery.ActRecover))
		m.upload = keys.snapshots[0]
		taking(w, p, "cp-1", recovery.ActRecover)
		m.recover()
		w.monitor.restored(m.c, m.etcd)
	}
	snapshots := func(w *World, names ...string) {
		for _, name := range names {
			w.bucket.Tamper("prod/"+name, []byte("sealed"))
			w.labels["prod/"+name] = map[string]string{"cluster-id": w.clusters[0].keys.ID}
		}
	}
	four := []string{"etcd-20261129T100000Z.snapshot.age", "etcd-20261129T110000Z.snapshot.age", "etcd-20261129T120000Z.snapshot.age", "etcd-20261129T130000Z.snapshot.age"}
	for _, test := range []struct {
		name, broken string
		do           func(t *testing.T, w *World, p *process)
	}{
		{"a restore that does what it means breaks none", "", recovered},
		{"a call of a restore that nobody meant", "without an intent in the marker", func(t *testing.T, w *World, p *process) {
			underWay(t, w, p, recovery.PhaseLeaving, meantBy(w, "cp-2", recovery.ActLeave))
			taking(w, p, "cp-3", recovery.ActLeave)
		}},
		{"a restore that nobody signed", "which nobody signed who may", func(t *testing.T, w *World, p *process) {
			underWay(t, w, p, recovery.PhaseLeaving, meantBy(w, "cp-2", recovery.ActLeave))
			clear(w.monitor.signed)
			taking(w, p, "cp-2", recovery.ActLeave)
		}},
		{"a recovery beside an etcd that answers", "recovers beside an etcd that answers", func(t *testing.T, w *World, p *process) {
			w.clusters[0].machine("cp-1").forget()
			underWay(t, w, p, recovery.PhaseRecovering, meantBy(w, "cp-1", recovery.ActRecover))
			taking(w, p, "cp-1", recovery.ActRecover)
		}},
		{"a second recovery", "is a second recovery of one restore", func(t *testing.T, w *World, p *process) {
			recovered(t, w, p)
			w.clusters[0].machine("cp-1").service = "Failed"
			underWay(t, w, p, recovery.PhaseRecovering, meantBy(w, "cp-2", recovery.ActRecover))
			taking(w, p, "cp-2", recovery.ActRecover)
		}},
		{"a recovery from another snapshot", "recovers from a snapshot of 21 keys", func(t *testing.T, w *World, p *process) {
			for _, name := range []string{"cp-1", "cp-2", "cp-3"} {
				w.clusters[0].machine(name).forget()
			}
			underWay(t, w, p, recovery.PhaseRecovering, meantBy(w, "cp-1", recovery.ActRecover))
			w.clusters[0].machine("cp-1").upload = keys.snapshots[1]
			taking(w, p, "cp-1", recovery.ActRecover)
		}},
		{"a late call that has the target leave what it recovered", "leaves the recovered etcd (late: true)", func(t *testing.T, w *World, p *process) {
			recovered(t, w, p)
			underWay(t, w, p, recovery.PhaseJoining, meantBy(w, "cp-1", recovery.ActLeave))
			taking(w, &process{w: w, host: p.host, id: "agent-0.1"}, "cp-1", recovery.ActLeave)
		}},
		{"a late call that wipes the target", "wipes a member of the recovered etcd (late: true)", func(t *testing.T, w *World, p *process) {
			recovered(t, w, p)
			underWay(t, w, p, recovery.PhaseJoining, meantBy(w, "cp-1", recovery.ActReset))
			taking(w, &process{w: w, host: p.host, id: "agent-0.1"}, "cp-1", recovery.ActReset)
		}},
		{"an agent that wipes its own machine first", "wipes the machine that it runs on, and no other one has recovered", func(t *testing.T, w *World, p *process) {
			p.on = w.clusters[0].machine("cp-2")
			underWay(t, w, p, recovery.PhaseConfiguring, meantBy(w, "cp-2", recovery.ActReset))
			taking(w, p, "cp-2", recovery.ActReset)
		}},
		{"a boot that is wiped twice", "that boot was wiped a moment ago", func(t *testing.T, w *World, p *process) {
			underWay(t, w, p, recovery.PhaseConfiguring, meantBy(w, "cp-1", recovery.ActReset))
			taking(w, p, "cp-1", recovery.ActReset)
			taking(w, p, "cp-1", recovery.ActReset)
		}},
		{"two etcds that answer", "2 etcds of prod answer", func(_ *testing.T, w *World, _ *process) {
			c := w.clusters[0]
			c.machine("cp-3").forget()
			c.machine("cp-3").bootstrap()
			w.monitor.oneEtcd(c)
		}},
		{"a restore that is done and wasn't", "the etcd that lives did not come of it", func(t *testing.T, w *World, p *process) {
			w.monitor.signed[restoreDigest] = true
			put(t, w, p, &statefile.State{Writer: statefile.Writer{ID: "agent-1.1", Epoch: 1}, Operations: []*statefile.OperationState{{Name: "op-1", Digest: restoreDigest, Kind: kindRestore,
				Phase: statefile.OperationCompleted}}})
		}},
		{"the oldest of four snapshots may go", "", func(t *testing.T, w *World, p *process) {
			put(t, w, p, &statefile.State{Writer: statefile.Writer{ID: "agent-1.1", Epoch: 1}})
			snapshots(w, four...)
			w.monitor.deletes(p, w.clusters[0], four[0])
		}},
		{"a snapshot that is to be kept", "and 2 newer ones are there of the 3 that are kept", func(_ *testing.T, w *World, p *process) {
			snapshots(w, four...)
			w.monitor.deletes(p, w.clusters[0], four[1])
		}},
		{"a snapshot of another cluster", "which is nothing that it stored", func(_ *testing.T, w *World, p *process) {
			snapshots(w, four...)
			w.labels["prod/"+four[0]]["cluster-id"] = "another"
			w.monitor.deletes(p, w.clusters[0], four[0])
		}},
		{"what somebody put beside them", "which is nothing that it stored", func(_ *testing.T, w *World, p *process) {
			w.monitor.deletes(p, w.clusters[0], "notes-1.txt")
		}},
		{"a snapshot that is pruned during a restore", "while a restore is under way", func(t *testing.T, w *World, p *process) {
			underWay(t, w, p, recovery.PhaseLeaving)
			snapshots(w, four...)
			w.monitor.deletes(p, w.clusters[0], four[0])
		}},
		{"the copy on which a restore rests", "on which the restore under way rests", func(t *testing.T, w *World, p *process) {
			underWay(t, w, p, recovery.PhaseLeaving)
			w.monitor.deletes(p, w.clusters[0], backup.PinnedName(restoreDigest))
		}},
		{"a snapshot that is replaced", "replaced " + four[0], func(_ *testing.T, w *World, p *process) {
			w.monitor.stored(p, w.clusters[0], four[0], &statefile.Object{Data: []byte("one")}, []byte("another"))
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			w, p := scene(t, keys)
			w.clusters[0].etcds[0].began = time.Now()
			test.do(t, w, p)
			if test.broken == "" {
				require.Empty(t, w.monitor.broken)
				return
			}
			require.NotEmpty(t, w.monitor.broken)
			require.Contains(t, w.monitor.broken[len(w.monitor.broken)-1], test.broken)
		})
	}
}
