package reconcile

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"ichor.maesh.dev/backup"
	"ichor.maesh.dev/recovery"
	"ichor.maesh.dev/statefile"
)

// restoreLab is a cluster on simulated machines with a bucket, whose agents restore.
type restoreLab struct {
	*signedLab
	vault *vault
}

func newRestoreLab(t testing.TB, first string, controlPlanes, workers int) *restoreLab {
	t.Helper()
	l := &restoreLab{signedLab: newSignedLab(newLab(t, first, controlPlanes, workers, 30))}
	l.vault = l.withBackups(t)
	// Half a day away: beside the first snapshot, which is due at once, none is taken but those that are asked for.
	far := fmt.Sprintf("30 %d * * *", (time.Now().UTC().Hour()+12)%24)
	text := string(l.fleet.files["clusters/prod/backup.yaml"].Data)
	l.fleet.write("clusters/prod/backup.yaml", strings.Replace(text, "30 4 * * *", far, 1)+fmt.Sprintf("  schedule: %q\n", far))
	l.source.push(l.fleet.files)
	l.watchPromises()
	return l
}

func (l *restoreLab) config(writer string) Config {
	config := l.signedLab.config(writer)
	config.Backups = l.vault.config
	config.RecoveryTiming = recovery.DefaultTiming().Scaled(l.scale)
	config.RecoveryTiming.Settle = 300 * time.Millisecond
	config.RecoverFlags = "--state " + l.store.Location()
	return config
}

// etcd makes a client of one machine's etcd.
func (l *restoreLab) etcd(name string, use func(ctx context.Context, client *clientv3.Client)) {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), ample)
	defer cancel()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{"http://" + l.farm.Node(name).Address() + ":2379"}, Logger: zap.NewNop()})
	require.NoError(l.t, err)
	defer func() { _ = client.Close() }()
	use(ctx, client)
}

func (l *restoreLab) put(key string) {
	l.etcd("cp-1", func(ctx context.Context, client *clientv3.Client) {
		_, err := client.Put(ctx, key, "a value")
		require.NoError(l.t, err)
	})
}

// up waits until the cluster is Ready and its first snapshot is stored.
func up(r Report) bool { return allReady(r) && backupIn(r, "hourly").Ready.Reason == "Succeeded" }

// later turns the clock by a little: two snapshots of one second would have one name.
func (l *restoreLab) later() { l.clock.ahead.Add(int64(2 * time.Second)) }

// stands waits until an operation is complete, or waits for a person.
func stands(name string) func(Report) bool {
	return func(r Report) bool {
		return inPhase(name, statefile.OperationCompleted)(r) || inPhase(name, statefile.OperationPaused)(r)
	}
}

// whole waits until an operation is complete and the cluster Ready, or until it waits for a person.
func whole(name string) func(Report) bool {
	return func(r Report) bool {
		return inPhase(name, statefile.OperationCompleted)(r) && allReady(r) || inPhase(name, statefile.OperationPaused)(r)
	}
}

// snapshot asks for a snapshot and gives it.
func (l *restoreLab) snapshot() backup.Snapshot {
	l.t.Helper()
	l.later()
	defer l.later()
	l.push("snapshot", "ichor-operation@prod", "  kind: etcd-backup\n  etcdBackup:\n    backupRef:\n      name: hourly\n")
	report := l.run(l.config("agent-snapshot"), stands("snapshot"))
	require.True(l.t, inPhase("snapshot", statefile.OperationCompleted)(report), "%v", report.Problems())
	contents, err := l.destination(l.t, l.vault).Contents(l.t.Context())
	require.NoError(l.t, err)
	return contents.Snapshots[0]
}

// restoreBody is an operation that restores a snapshot on all control planes.
func (l *restoreLab) restoreBody(s backup.Snapshot, more string) string {
	body := fmt.Sprintf("  kind: etcd-restore\n  etcdRestore:\n    backupRef:\n      name: hourly\n    snapshot:\n      name: %s\n      sha256: %s\n    confirm: prod\n    controlPlanes:\n",
		s.Name, s.SHA256)
	for _, node := range l.farm.Nodes() {
		if strings.HasPrefix(node.Name(), "cp-") {
			body += fmt.Sprintf("      %s: %s\n", node.Name(), node.UUID())
		}
	}
	return body + more
}

// requireRestored wants what was there at the snapshot and nothing of what came later, in one etcd of all control planes.
func (l *restoreLab) requireRestored(report Report, name string, controlPlanes int) {
	l.t.Helper()
	op := operationNamed(report.Clusters[0].State, name)
	require.NotNil(l.t, op)
	require.Equal(l.t, statefile.OperationCompleted, op.Phase, "%s %s", op.Step, op.Message)
	require.Nil(l.t, report.Clusters[0].State.Lock)
	for _, node := range l.farm.Nodes()[:controlPlanes] {
		l.etcd(node.Name(), func(ctx context.Context, client *clientv3.Client) {
			before, err := client.Get(ctx, "/registry/before")
			require.NoError(l.t, err)
			require.Len(l.t, before.Kvs, 1, node.Name())
			after, err := client.Get(ctx, "/registry/after")
			require.NoError(l.t, err)
			require.Empty(l.t, after.Kvs, node.Name())
			members, err := client.MemberList(ctx)
			require.NoError(l.t, err)
			require.Len(l.t, members.Members, controlPlanes)
		})
	}
	content, err := l.destination(l.t, l.vault).Marker().Read(l.t.Context())
	require.NoError(l.t, err)
	marker, err := recovery.DecodeMarker(content)
	require.NoError(l.t, err)
	require.Equal(l.t, recovery.PhaseDone, marker.Phase)
	require.Equal(l.t, op.Digest, marker.Operation)
}

func TestALiveRestoreOfAHealthyClusterWipesOneControlPlane(t *testing.T) {
	t.Parallel()
	l := newRestoreLab(t, "127.0.93.1", 3, 1)
	begun := l.run(l.config("agent-1"), up)
	require.True(t, up(begun), "%v", begun.Problems())
	l.put("/registry/before")
	taken := l.snapshot()
	l.put("/registry/after")
	l.push("restore", "ichor-override@prod", l.restoreBody(taken, "    localDataLoss: accepted\n"))
	// The first agent dies once a control plane left; another one ends it.
	l.run(l.config("agent-2"), func(Report) bool { return l.accepted("EtcdLeaveCluster")["cp-1"] > 0 })
	report := l.run(l.config("agent-3"), whole("restore"))
	l.requireRestored(report, "restore", 3)
	require.True(t, allReady(report), "%v", report.Problems())
	resets := l.accepted("Reset")
	require.Len(t, resets, 1)
	require.Len(t, l.accepted("EtcdLeaveCluster"), 2)
	for name, times := range resets {
		require.Equal(t, 1, times, name)
		require.Zero(t, l.accepted("EtcdLeaveCluster")[name], "the one that is wiped did not leave")
	}
	require.Equal(t, map[string]int{"cp-1": 2}, l.accepted("Bootstrap"), "once in its life, and once to recover")
	contents, err := l.destination(t, l.vault).Contents(t.Context())
	require.NoError(t, err)
	require.Greater(t, contents.Snapshots[0].Revision, taken.Revision, "a snapshot of what was lost is kept")
}

func TestALiveRestoreOfOneControlPlaneWipesIt(t *testing.T) {
	t.Parallel()
	l := newRestoreLab(t, "127.0.93.11", 1, 0)
	begun := l.run(l.config("agent-1"), up)
	require.True(t, up(begun), "%v", begun.Problems())
	l.put("/registry/before")
	taken := l.snapshot()
	l.put("/registry/after")
	l.push("unaccepted", "ichor-override@prod", l.restoreBody(taken, ""))
	report := l.run(l.config("agent-2"), stands("unaccepted"))
	require.Contains(t, operationNamed(report.Clusters[0].State, "unaccepted").FailureReason, "nothing was changed: pods may run on the control planes of prod")
	require.Empty(t, l.accepted("Reset"))
	op := operationNamed(report.Clusters[0].State, "unaccepted")
	l.push("cancel", "ichor-override@prod", fmt.Sprintf("  kind: cancel\n  cancel:\n    operation: unaccepted\n    digest: %s\n", op.Digest))
	l.push("restore", "ichor-override@prod", l.restoreBody(taken, "    localDataLoss: accepted\n"))
	report = l.run(l.config("agent-3"), whole("restore"))
	l.requireRestored(report, "restore", 1)
	require.Equal(t, map[string]int{"cp-1": 1}, l.accepted("Reset"))
	require.Empty(t, l.accepted("EtcdLeaveCluster"))
}
