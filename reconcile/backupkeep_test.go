package reconcile

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	testclock "k8s.io/utils/clock/testing"

	"ichor.maesh.dev/backup"
	"ichor.maesh.dev/backup/keeper"
	"ichor.maesh.dev/internal/crashmatrix"
	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/talos"
)

// keeping is one cluster's backup over a real etcd and a real S3 server, kept by one process after the other, at a time that the test
// turns.
type keeping struct {
	t     *testing.T
	lab   *lab
	vault *vault
	clock *testclock.FakeClock
	owner backup.Owner
	fleet *schema.Fleet
	// processes counts them.
	processes int
	// fault, if set, is asked before each call of the store; around is the tap of a process that may be killed.
	fault func(call string) error
	lost  func(call string) error
	tap   *tap
	// begun counts attempts that were written into the state.
	begun int
}

// newKeeping brings up one control plane, and gives it a backup that is taken hourly, kept twice, and drilled hourly.
func newKeeping(t *testing.T, first string) *keeping {
	l := newLab(t, first, 1, 0, 30)
	k := &keeping{t: t, lab: l, vault: l.withBackups(t)}
	report := l.run(l.config("agent-0"), allReady)
	require.True(t, allReady(report), "%v", report.Problems())
	k.clock = testclock.NewFakeClock(time.Now().Add(time.Hour).Truncate(time.Hour))
	material := l.fleet.bundle.SealingMaterial()
	var err error
	k.owner, err = backup.NewOwner(material.ClusterID, material.ClusterSecret, material.EncryptionSecret)
	require.NoError(t, err)
	text := string(l.fleet.files["clusters/prod/backup.yaml"].Data)
	l.fleet.write("clusters/prod/backup.yaml", strings.Replace(text, "30 4 * * *", "0 * * * *", 1)+"  retention: {keepLast: 2}\n")
	fleet, problems := schema.Load(l.fleet.files, []string{"."})
	require.Empty(t, problems)
	k.fleet = fleet
	return k
}

// process makes a process that became the writer, and the keeper in it.
func (k *keeping) process() *keeper.Keeper {
	k.processes++
	sealer, err := statefile.NewSealer(k.lab.fleet.bundle.SealingMaterial().ClusterID, k.lab.fleet.bundle.SealingMaterial().EncryptionSecret, "")
	require.NoError(k.t, err)
	state, err := statefile.OpenCluster(k.lab.store, statefile.Options{Name: "prod", Sealer: sealer, WriterID: fmt.Sprintf("process-%d", k.processes), Clock: k.clock})
	require.NoError(k.t, err)
	taken, err := state.TakeOver(k.t.Context())
	require.NoError(k.t, err)
	// Processes that die young leave their audit events to the next ones.
	for len(taken.Audit.Pending) > 20 {
		require.NoError(k.t, state.AppendAudit(k.t.Context(), statefile.Event{Action: "Test"}))
		taken, _ = state.Known()
	}
	spool, err := backup.OpenSpool(k.vault.spool)
	require.NoError(k.t, err)
	return keeper.New(keeper.Options{State: countedAttempts{k, state}, Opener: k, Spool: spool, Limits: keeper.NewLimits(1), Clock: k.clock,
		Log: slog.New(slog.NewTextHandler(k.lab.log, nil)), Scrubber: k.lab.scrubber})
}

// want is what a pass would know; names are those by which the one control plane is asked.
func (k *keeping) want(names ...string) keeper.Want {
	want := keeper.Want{Fleet: k.fleet, Backups: k.fleet.Backups, Owner: k.owner}
	nodes := TalosNodes(talos.NewClient(k.lab.fleet.bundle, talos.ClientOptions{Scrubber: k.lab.scrubber}))
	for _, name := range names {
		inner := nodes.Member(talos.Target{Name: name, Endpoint: k.lab.farm.Nodes()[0].Address(), ControlPlane: true})
		want.Nodes = append(want.Nodes, tappedMember{k, inner})
	}
	return want
}

// around is a call to the world, with the points at which a process may be killed and the faults of the store.
func (k *keeping) around(call string, effect func() error) error {
	if k.fault != nil {
		if err := k.fault(call); err != nil {
			return err
		}
	}
	err := effect
	if k.tap != nil {
		err = func() error { return k.tap.around(call, effect) }
	}
	if err := err(); err != nil {
		return err
	}
	if k.lost != nil {
		return k.lost(call)
	}
	return nil
}

// countedAttempts is the state behind the tap.
type countedAttempts struct {
	k     *keeping
	inner *statefile.Cluster
}

func (s countedAttempts) Known() (*statefile.State, uint64) { return s.inner.Known() }

func (s countedAttempts) Swap(ctx context.Context, change func(*statefile.State) error, events ...statefile.Event) error {
	name, begins := "", false
	before, _ := s.inner.Known()
	probe, _ := s.inner.Known()
	if err := change(probe); err != nil {
		return err
	}
	if sameBackups(before, probe) {
		return nil // nothing is sent
	}
	had, has := before.Backups["hourly"], probe.Backups["hourly"]
	switch {
	case has != nil && has.Attempt != nil && (had == nil || had.Attempt == nil):
		name, begins = "attempt", true
	case had != nil && had.Attempt != nil && has.Attempt == nil:
		name = "outcome"
	case has != nil && has.Attempt != nil && has.Attempt.Snapshot != nil && had.Attempt.Snapshot == nil:
		name = "described"
	case has != nil && has.Drilling != "" && had.Drilling == "":
		name = "drilling"
	case had != nil && had.Drilling != "" && has.Drilling == "":
		name = "drilled"
	default:
		name = "memory"
	}
	return s.k.around("state "+name, func() error {
		err := s.inner.Swap(ctx, change, events...)
		if err == nil && begins {
			s.k.begun++
		}
		return err
	})
}

func sameBackups(a, b *statefile.State) bool {
	left, right := StatusOf(a, nil), StatusOf(b, nil)
	return fmt.Sprintf("%+v", left.Backups) == fmt.Sprintf("%+v", right.Backups) && fmt.Sprintf("%+v", memoryOf(a)) == fmt.Sprintf("%+v", memoryOf(b))
}

func memoryOf(s *statefile.State) string {
	m := s.Backups["hourly"]
	if m == nil {
		return ""
	}
	return fmt.Sprintf("%+v %+v %+v %+v", *m, m.Attempt, m.Request, m.Drill)
}

// Open opens the destination behind the tap and the faults.
func (k *keeping) Open(ctx context.Context, _ *schema.Fleet, b *schema.TalosEtcdBackup, owner backup.Owner) (*keeper.Place, error) {
	s3 := b.Spec.Destination.S3
	bucket, err := statefile.OpenBucket(ctx, statefile.S3Config{Endpoint: s3.Endpoint, Region: s3.Region, Bucket: s3.Bucket, Prefix: s3.Prefix,
		Credentials: &statefile.S3Credentials{AccessKeyID: backupAccess, SecretAccessKey: backupSecret}, Timeout: time.Minute})
	if err != nil {
		return nil, err
	}
	return &keeper.Place{Destination: backup.NewDestination(tappedObjects{bucket, k}, s3.Prefix, owner), Key: s3.Bucket, Close: bucket.Close}, nil
}

// tappedObjects is a bucket behind a tap.
type tappedObjects struct {
	*statefile.Bucket
	k *keeping
}

// keyKind tells objects of one kind from those of another.
func keyKind(key string) string {
	if _, ok := backup.ParseName(key); ok {
		return "snapshot"
	}
	if strings.HasPrefix(key, "probe-") {
		return "probe"
	}
	return key
}

func (o tappedObjects) Get(ctx context.Context, key, known string) (object *statefile.Object, err error) {
	err = o.k.around("get "+keyKind(key), func() error { object, err = o.Bucket.Get(ctx, key, known); return err })
	return object, err
}

func (o tappedObjects) Put(ctx context.Context, key string, data []byte, cond statefile.If) (etag string, err error) {
	err = o.k.around("put "+keyKind(key), func() error { etag, err = o.Bucket.Put(ctx, key, data, cond); return err })
	return etag, err
}

func (o tappedObjects) Delete(ctx context.Context, key string) error {
	return o.k.around("delete "+keyKind(key), func() error { return o.Bucket.Delete(ctx, key) })
}

func (o tappedObjects) List(ctx context.Context, prefix, after string, fn func(statefile.ObjectInfo) error) error {
	return o.k.around("list", func() error { return o.Bucket.List(ctx, prefix, after, fn) })
}

func (o tappedObjects) Stat(ctx context.Context, key string) (stat statefile.Stat, err error) {
	err = o.k.around("stat "+keyKind(key), func() error { stat, err = o.Bucket.Stat(ctx, key); return err })
	return stat, err
}

func (o tappedObjects) Upload(ctx context.Context, key string, content *io.SectionReader, metadata map[string]string) (stat statefile.Stat, err error) {
	err = o.k.around("upload "+keyKind(key), func() error { stat, err = o.Bucket.Upload(ctx, key, content, metadata); return err })
	return stat, err
}

func (o tappedObjects) Download(ctx context.Context, key string) (body io.ReadCloser, stat statefile.Stat, err error) {
	err = o.k.around("download "+keyKind(key), func() error { body, stat, err = o.Bucket.Download(ctx, key); return err })
	return body, stat, err
}

func (o tappedObjects) Remove(ctx context.Context, key string) error {
	return o.k.around("remove "+keyKind(key), func() error { return o.Bucket.Remove(ctx, key) })
}

// tappedMember is a control plane behind a tap.
type tappedMember struct {
	k     *keeping
	inner backup.Node
}

func (m tappedMember) Name() string { return m.inner.Name() }

func (m tappedMember) EtcdStatus(ctx context.Context) (status backup.EtcdStatus, err error) {
	err = m.k.around("etcd status", func() error { status, err = m.inner.EtcdStatus(ctx); return err })
	return status, err
}

func (m tappedMember) EtcdSnapshot(ctx context.Context) (stream io.ReadCloser, err error) {
	err = m.k.around("etcd snapshot", func() error { stream, err = m.inner.EtcdSnapshot(ctx); return err })
	if err != nil {
		return nil, err
	}
	return tappedStream{stream, m.k}, nil
}

type tappedStream struct {
	io.ReadCloser
	k *keeping
}

func (s tappedStream) Read(p []byte) (n int, err error) {
	var ended error
	err = s.k.around("stream", func() error { n, ended = s.ReadCloser.Read(p); return nil })
	return n, cmp.Or(err, ended)
}

// memory is what the state remembers.
func (k *keeping) memory() statefile.BackupState {
	k.t.Helper()
	handle, err := statefile.OpenCluster(k.lab.store, statefile.Options{Name: "prod"})
	require.NoError(k.t, err)
	s, err := handle.Load(k.t.Context())
	require.NoError(k.t, err)
	if s.Backups["hourly"] == nil {
		return statefile.BackupState{}
	}
	return *s.Backups["hourly"]
}

// settled says whether the snapshot and the drill of this hour are done.
func (k *keeping) settled() bool {
	m, hour := k.memory(), k.clock.Now().Truncate(time.Hour)
	return !m.LastSuccess.Before(hour) && m.Drill != nil && !m.Drill.At.Before(hour) && m.Attempt == nil && m.Drilling == "" && !m.LastPrune.Before(m.LastSuccess)
}

// TestABackupKilledAtEveryPointEndsRight kills process after process, each at the first write of the state, call of the store, call of the
// control plane or piece of its stream at which none was killed before, before its effect or after it. The next goes on. At the end of
// each hour the snapshot of that hour is stored, listed and drilled, whatever happened. In an ordinary run one in three dies, until what matters was met.
func TestABackupKilledAtEveryPointEndsRight(t *testing.T) {
	t.Parallel()
	k := newKeeping(t, "127.0.56.9")
	met, ever := map[string]bool{}, map[string]bool{}
	points := []string{"after state attempt", "after state described", "before upload snapshot", "after upload snapshot", "after put etcd-index.json",
		"before state outcome", "after state outcome", "after etcd snapshot", "after stream", "after remove snapshot", "after state drilling", "after state drilled"}
	dies := crashmatrix.Of(t, "backup: a snapshot, its drill, and the pruning", crashmatrix.Simulated).Once(met, 3, 1, points...)
	for hour := 1; ; hour++ {
		require.Less(t, hour, 40, "it never ends: %v", met)
		before := len(met)
		for n := 0; !k.settled(); n++ {
			require.Less(t, n, 200, "the hour never ends: %+v", k.memory())
			k.dieOnce(dies)
			k.clock.Step(5 * time.Second)
			if m := k.memory(); m.Attempt == nil && m.LastError != "" || m.DrillProblem != "" {
				k.clock.Step(5 * time.Minute) // the retry
			}
		}
		k.endedRight(ever)
		if len(met) == before || !crashmatrix.Full() && k.allMet(met, points) {
			break
		}
		k.clock.Step(time.Hour - time.Duration(k.clock.Now().Minute())*time.Minute)
	}
	require.Greater(t, len(met), 50)
	require.True(t, k.allMet(met, points), "of %v were met %v", points, met)
	t.Logf("%d points, %d processes, %d attempts", len(met), k.processes, k.begun)
}

func (k *keeping) allMet(met map[string]bool, points []string) bool {
	return !slices.ContainsFunc(points, func(point string) bool { return !met[point] })
}

// dieOnce runs a process that dies at the first point at which it is to.
func (k *keeping) dieOnce(dies func(string) bool) {
	passed := map[string]int{}
	k.tap = newTap(func(point string) bool { // asked by one at a time
		if passed[point]++; passed[point] > 1 { // the second time, and all after it
			point += " again"
		}
		return dies(point)
	})
	defer func() { k.tap = nil }()
	k.process().Once(k.t.Context(), k.want("cp-1"))
}

// endedRight is what every hour must end with.
func (k *keeping) endedRight(ever map[string]bool) {
	t := k.t
	t.Helper()
	k.process().Once(t.Context(), k.want("cp-1")) // one that nobody kills finds nothing to mend
	m := k.memory()
	require.True(t, m.Ready.Status, "%+v", m.Ready)
	d := k.lab.destination(t, k.vault)
	contents, err := d.Contents(t.Context())
	require.NoError(t, err)
	require.Empty(t, contents.Missing())
	require.Empty(t, contents.Foreign)
	require.Empty(t, contents.Unlisted, "no object stands there that isn't listed")
	require.LessOrEqual(t, len(contents.Snapshots), 3, "two are kept, and the newest that was drilled")
	var names []string
	for _, s := range contents.Snapshots {
		require.False(t, s.Deleting)
		ever[s.Name] = true
		names = append(names, s.Name)
	}
	_, _, err = d.Verify(t.Context(), contents.Snapshots[0].Name, contents.Snapshots[0].SHA256)
	require.NoError(t, err)
	var remembered []string
	for _, s := range m.Snapshots {
		remembered = append(remembered, s.Name)
	}
	require.Equal(t, names, remembered)
	require.Equal(t, k.begun, m.Failures+len(ever), "an attempt was lost from the record, or one stored two snapshots")
	left, err := os.ReadDir(k.vault.spool)
	require.NoError(t, err)
	require.Empty(t, left, "a file stayed in the spool")
}
