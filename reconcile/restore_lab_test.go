package reconcile

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"ichor.maesh.dev/backup"
	"ichor.maesh.dev/internal/talossim"
	"ichor.maesh.dev/recovery"
	"ichor.maesh.dev/statefile"
)

// restoreLab is a cluster on simulated machines with a bucket, whose agents restore.
type restoreLab struct {
	*signedLab
	vault *vault
	// bucket is the vault as somebody with the bundle sees it.
	bucket *backup.Opened
	// nodeName is the Node that agents run on; empty: they run elsewhere.
	nodeName string
	// times are turned beside the clock: for how long something has gone on.
	times turnedTimes
	// generations counts what was written into etcd, agents those that ran.
	generations, agents int
	// patient: a restore may take as long as it likes, since a test turns the clock as often as it has to.
	patient bool
	// era counts restores: an etcd of one may be there again after the next.
	era atomic.Int64
}

// turnedTimes are the clocks of the system, which a test may turn on.
type turnedTimes struct {
	statefile.Clocks
	ahead *atomic.Int64
}

func (c turnedTimes) Now() statefile.Instant {
	now, ahead := c.Clocks.Now(), time.Duration(c.ahead.Load())
	return statefile.Instant{Monotonic: now.Monotonic + ahead, Boot: now.Boot + ahead, Wall: now.Wall.Add(ahead)}
}

// newRestoreLab starts machines whose etcds refuse what real ones refuse.
func newRestoreLab(t testing.TB, first string, controlPlanes, workers int) *restoreLab {
	t.Helper()
	return restoreLabOn(t, newLab(t, first, controlPlanes, workers, 30))
}

// newHurriedRestoreLab starts machines whose etcds take each other in at once: for tests that restore again and again.
func newHurriedRestoreLab(t testing.TB, first string, controlPlanes, workers int) *restoreLab {
	t.Helper()
	return restoreLabOn(t, newLabOn(t, talossim.Options{First: first, ControlPlanes: controlPlanes, Workers: workers, TimeScale: 50, LooseMembership: true}))
}

func restoreLabOn(t testing.TB, inner *lab) *restoreLab {
	t.Helper()
	l := &restoreLab{signedLab: newSignedLab(inner), times: turnedTimes{statefile.SystemClocks(), &atomic.Int64{}}}
	l.vault = l.withBackups(t)
	t.Cleanup(func() { l.vault.server.Stop() }) // the one that a scene started again
	l.bucket = l.destination(t, l.vault)
	// Half a day away: beside the first snapshot, which is due at once, none is taken but those that are asked for.
	far := fmt.Sprintf("30 %d * * *", (time.Now().UTC().Hour()+12)%24)
	text := string(l.fleet.files["clusters/prod/backup.yaml"].Data)
	l.fleet.write("clusters/prod/backup.yaml", strings.Replace(text, "30 4 * * *", far, 1)+fmt.Sprintf("  schedule: %q\n", far))
	l.source.push(l.fleet.files)
	l.watchPromisesEvery(10 * time.Second)
	l.watchEtcds()
	return l
}

func (l *restoreLab) config(writer string) Config {
	config := l.signedLab.config(writer)
	config.Backups = l.vault.config
	config.Timing.Patience = 10 * time.Second
	// Two passes, one right after the other, would leave a busy host nothing for the machines.
	config.Timing.Busy, config.Timing.Steady = 300*time.Millisecond, 500*time.Millisecond
	config.RecoveryTiming = recovery.DefaultTiming().Scaled(l.scale)
	config.RecoveryTiming.Look = 300 * time.Millisecond
	config.RecoveryTiming.Settle = 300 * time.Millisecond
	// What is asked for again after these is asked for because a test turned the clock, never because the host is busy.
	config.RecoveryTiming.Again, config.RecoveryTiming.Broken = recovery.DefaultTiming().Again, recovery.DefaultTiming().Broken
	if l.patient {
		config.RecoveryTiming.Recover, config.RecoveryTiming.All = 20*time.Hour, 20*time.Hour
	}
	config.RecoverFlags = "--state " + l.store.Location()
	config.NodeName = l.nodeName
	config.Clocks = l.times
	return config
}

// turn turns all clocks of agents on.
func (l *restoreLab) turn(d time.Duration) {
	l.clock.ahead.Add(int64(d))
	l.times.ahead.Add(int64(d))
}

// later turns the clock by a little: two snapshots of one second would have one name.
func (l *restoreLab) later() { l.clock.ahead.Add(int64(2 * time.Second)) }

// agent runs one until stop says so.
func (l *restoreLab) agent(stop func(Report) bool) Report {
	l.t.Helper()
	l.agents++
	return l.runFor(l.config(fmt.Sprintf("agent-%d", l.agents)), aRestore, stop)
}

// aRestore only ends a test that hangs. A restore is many boots, one after the other.
const aRestore = 3 * ample

// bringUp waits until the cluster is Ready and its first snapshot is stored.
func (l *restoreLab) bringUp() {
	l.t.Helper()
	up := func(r Report) bool { return allReady(r) && backupIn(r, "hourly").Ready.Reason == "Succeeded" }
	report := l.agent(up)
	require.True(l.t, up(report), "%v", report.Problems())
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

// someEtcd is a control plane that is on.
func (l *restoreLab) someEtcd() string {
	for _, name := range l.controlPlanes() {
		if l.farm.Node(name).Powered() {
			return name
		}
	}
	l.t.Fatal("all control planes are off")
	return ""
}

func (l *restoreLab) controlPlanes() []string {
	var names []string
	for _, node := range l.farm.Nodes() {
		if roleOf(node) == "controlplane" {
			names = append(names, node.Name())
		}
	}
	return names
}

// testKeys are below registryData, where no component of Kubernetes looks.
const registryData = "/registry/of-the-test/"

// write writes a new generation of keys: most get its value, some go, some come.
func (l *restoreLab) write() {
	l.t.Helper()
	l.generations++
	l.etcd(l.someEtcd(), func(ctx context.Context, client *clientv3.Client) {
		for n := range 40 {
			key := fmt.Sprintf("%sk-%02d", registryData, n)
			if (n+l.generations)%7 == 0 {
				_, err := client.Delete(ctx, key)
				require.NoError(l.t, err)
				continue
			}
			_, err := client.Put(ctx, key, fmt.Sprintf("generation %d", l.generations))
			require.NoError(l.t, err)
		}
		_, err := client.Put(ctx, fmt.Sprintf("%sonly-%d", registryData, l.generations), "x")
		require.NoError(l.t, err)
	})
}

// held is what a control plane's etcd holds of the tests' keys.
func (l *restoreLab) held(name string) map[string]string {
	l.t.Helper()
	held := map[string]string{}
	l.etcd(name, func(ctx context.Context, client *clientv3.Client) {
		resp, err := client.Get(ctx, registryData, clientv3.WithPrefix())
		require.NoError(l.t, err)
		for _, kv := range resp.Kvs {
			held[string(kv.Key)] = string(kv.Value)
		}
	})
	return held
}

// kept is a snapshot, and what etcd held then.
type kept struct {
	snapshot backup.Snapshot
	held     map[string]string
}

// moment writes, takes a snapshot, and writes what is to be lost again.
func (l *restoreLab) moment() kept {
	l.t.Helper()
	l.write()
	m := kept{held: l.held(l.someEtcd())}
	m.snapshot = l.snapshot()
	l.write()
	return m
}

// snapshot asks for a snapshot and gives it.
func (l *restoreLab) snapshot() backup.Snapshot {
	l.t.Helper()
	l.later()
	defer l.later()
	name := fmt.Sprintf("snapshot-%d", l.generations)
	l.push(name, "ichor-operation@prod", "  kind: etcd-backup\n  etcdBackup:\n    backupRef:\n      name: hourly\n")
	report := l.agent(stands(name))
	require.True(l.t, inPhase(name, statefile.OperationCompleted)(report), "%v", report.Problems())
	return l.contents().Snapshots[0]
}

func (l *restoreLab) contents() backup.Contents {
	l.t.Helper()
	contents, err := l.bucket.Contents(l.t.Context())
	require.NoError(l.t, err)
	return contents
}

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

// accepting is the line with which pods' local data is given up.
const accepting = "    localDataLoss: accepted\n"

// restores pushes an operation that restores a moment on all control planes but those that are gone for good.
func (l *restoreLab) restores(name string, m kept, more string, without ...string) {
	l.era.Add(1)
	body := fmt.Sprintf("  kind: etcd-restore\n  etcdRestore:\n    backupRef:\n      name: hourly\n    snapshot:\n      name: %s\n      sha256: %s\n    confirm: prod\n    controlPlanes:\n",
		m.snapshot.Name, m.snapshot.SHA256)
	gone := ""
	for _, cp := range l.controlPlanes() {
		line := fmt.Sprintf("      %s: %s\n", cp, l.uuid(cp))
		if slices.Contains(without, cp) {
			gone += line
		} else {
			body += line
		}
	}
	if gone != "" {
		body += "    without:\n" + gone
	}
	l.push(name, "ichor-override@prod", body+more)
}

// operation is one as a report shows it.
func (l *restoreLab) operation(report Report, name string) *statefile.OperationState {
	l.t.Helper()
	require.NotEmpty(l.t, report.Clusters)
	op := operationNamed(report.Clusters[0].State, name)
	require.NotNil(l.t, op, "%s: %v", name, report.Problems())
	return op
}

// paused runs an agent until an operation is paused, and gives it.
func (l *restoreLab) paused(name string) *statefile.OperationState {
	l.t.Helper()
	op := l.operation(l.agent(stands(name)), name)
	require.Equal(l.t, statefile.OperationPaused, op.Phase, "%s: %s", op.Step, op.Message)
	return op
}

// cancel ends a paused operation.
func (l *restoreLab) cancelled(op *statefile.OperationState) {
	l.t.Helper()
	l.push("cancel-"+op.Name, "ichor-override@prod", fmt.Sprintf("  kind: cancel\n  cancel:\n    operation: %s\n    digest: %s\n", op.Name, op.Digest))
	report := l.agent(func(r Report) bool { return over(r, op.Name) })
	require.Equal(l.t, statefile.OperationCancelled, l.operation(report, op.Name).Phase)
}

// cameBack wants a restore to be complete, and in one etcd of these control planes what was there at the moment, key by key.
func (l *restoreLab) cameBack(report Report, name string, m kept, members ...string) {
	l.t.Helper()
	op := l.operation(report, name)
	require.Equal(l.t, statefile.OperationCompleted, op.Phase, "%s %s %s", op.Step, op.Message, op.FailureReason)
	require.Nil(l.t, report.Clusters[0].State.Lock)
	if len(members) == 0 {
		members = l.controlPlanes()
	}
	clusters := map[uint64]bool{}
	for _, member := range members {
		require.Equal(l.t, m.held, l.held(member), member)
		l.etcd(member, func(ctx context.Context, client *clientv3.Client) {
			list, err := client.MemberList(ctx)
			require.NoError(l.t, err)
			var names []string
			for _, one := range list.Members {
				names = append(names, one.Name)
				require.False(l.t, one.IsLearner, one.Name)
			}
			require.ElementsMatch(l.t, members, names)
			clusters[list.Header.ClusterId] = true
		})
	}
	require.Len(l.t, clusters, 1)
	marker := l.marker()
	require.Equal(l.t, recovery.PhaseDone, marker.Phase)
	require.Equal(l.t, op.Digest, marker.Operation)
}

// marker is the restore's, as it stands.
func (l *restoreLab) marker() *recovery.Marker {
	l.t.Helper()
	marker, err := l.readMarker(context.Background())
	require.NoError(l.t, err)
	return marker
}

// readMarker is marker for goroutines that may not end the test. The destination that it reads is open for as long as the lab is.
func (l *restoreLab) readMarker(ctx context.Context) (*recovery.Marker, error) {
	content, err := l.bucket.Marker().Read(ctx)
	if err != nil {
		return nil, err
	}
	if content == nil {
		return nil, errors.New("there is no marker")
	}
	return recovery.DecodeMarker(content)
}

// tally counts calls, so that one restore's can be told from an earlier one's.
func (l *restoreLab) tally(methods ...string) (since func() map[string]map[string]int) {
	count := func() map[string]map[string]int {
		counts := map[string]map[string]int{}
		for _, method := range methods {
			counts[method] = l.accepted(method)
		}
		return counts
	}
	before := count()
	return func() map[string]map[string]int {
		now := count()
		for method, machines := range now {
			for machine, n := range before[method] {
				if machines[machine] -= n; machines[machine] == 0 {
					delete(machines, machine)
				}
			}
		}
		return now
	}
}

// watchEtcds fails the test as soon as two etcds have answered that lived at one time: a cluster is one etcd, also while it is restored.
func (l *restoreLab) watchEtcds() {
	ctx, cancel := context.WithCancel(context.Background())
	done, t, names := make(chan struct{}), l.t, l.controlPlanes()
	go func() {
		defer close(done)
		if broken := l.twoEtcds(ctx, names); broken != "" {
			t.Errorf("a promise is broken: %s", broken)
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
}

// alive is when an etcd answered for certain: at the latest by first, and still after last.
type alive struct{ first, last time.Time }

func (l *restoreLab) twoEtcds(ctx context.Context, names []string) string {
	clients := map[string]*clientv3.Client{}
	for _, name := range names {
		client, err := clientv3.New(clientv3.Config{Endpoints: []string{"http://" + l.farm.Node(name).Address() + ":2379"}, Logger: zap.NewNop()})
		if err != nil {
			return err.Error()
		}
		defer func() { _ = client.Close() }()
		clients[name] = client
	}
	seen, era := map[uint64]alive{}, int64(0)
	for {
		if now := l.era.Load(); now != era {
			era = now
			newest := time.Time{}
			for _, was := range seen {
				if was.last.After(newest) {
					newest = was.last
				}
			}
			maps.DeleteFunc(seen, func(_ uint64, was alive) bool { return was.last.Before(newest) })
		}
		for _, name := range slices.Sorted(maps.Keys(clients)) {
			began := time.Now()
			reading, cancel := context.WithTimeout(ctx, time.Second)
			resp, err := clients[name].Get(reading, "health") // only what has a quorum answers
			cancel()
			if err != nil {
				continue
			}
			now := seen[resp.Header.ClusterId]
			if ended := time.Now(); now.first.IsZero() || ended.Before(now.first) {
				now.first = ended
			}
			now.last = began
			seen[resp.Header.ClusterId] = now
			for other, was := range seen {
				if other != resp.Header.ClusterId && was.first.Before(now.last) && now.first.Before(was.last) {
					return fmt.Sprintf("two etcds lived at one time: %x from %s to %s and %x from %s to %s", other, was.first, was.last, resp.Header.ClusterId, now.first, now.last)
				}
			}
		}
		select {
		case <-ctx.Done():
			return ""
		case <-time.After(500 * time.Millisecond):
		}
	}
}
