package main

import (
	"bytes"
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	testclock "k8s.io/utils/clock/testing"

	"ichor.maesh.dev/backup"
	"ichor.maesh.dev/internal/scrub"
	"ichor.maesh.dev/recovery"
	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/statefile/storetest"
	"ichor.maesh.dev/talos"
)

// place opens the bucket of the bench, and the folder of its state, with the cluster's keys.
func (b *restoreBench) place() (*backup.Opened, backup.Owner) {
	b.t.Helper()
	owner := ownerOf(b.t, b.bundle)
	destination, err := backup.OpenDestination(b.t.Context(), statefile.S3Config{Endpoint: b.s3, Bucket: "backups", Prefix: "prod",
		Credentials: &statefile.S3Credentials{AccessKeyID: canaryAccess, SecretAccessKey: canarySecret}}, owner)
	require.NoError(b.t, err)
	b.t.Cleanup(func() { _ = destination.Close() })
	return destination, owner
}

func ownerOf(t *testing.T, bundle *talos.Bundle) backup.Owner {
	t.Helper()
	material := bundle.SealingMaterial()
	owner, err := backup.NewOwner(material.ClusterID, material.ClusterSecret, material.EncryptionSecret)
	require.NoError(t, err)
	return owner
}

// withState works on the state as an agent would, and gives what stands there.
func (b *restoreBench) withState(owner backup.Owner, work func(*statefile.Cluster)) *statefile.State {
	b.t.Helper()
	store, err := statefile.OpenFolder(b.state, statefile.FolderOptions{})
	require.NoError(b.t, err)
	defer func() { _ = store.Close() }()
	handle, err := statefile.OpenCluster(store, statefile.Options{Name: "prod", Sealer: owner.Sealer, WriterID: statefile.NewNonce()})
	require.NoError(b.t, err)
	if work != nil {
		work(handle)
	}
	state, err := handle.Load(b.t.Context())
	require.NoError(b.t, err)
	return state
}

// requireCopy says whether a copy is in the bucket, whole.
func requireCopy(t *testing.T, d *backup.Opened, there bool, pinned, digest string) {
	t.Helper()
	_, _, err := d.Verify(t.Context(), pinned, digest)
	if there {
		require.NoError(t, err)
	} else {
		require.ErrorIs(t, err, statefile.ErrNotFound)
	}
}

// TestARecoveryOutlivesItsSnapshot deletes the snapshot under a restore that an agent began and the command ends, and under one that the command
// began: each goes on from its copy, which the state remembers for the agent that takes it away.
func TestARecoveryOutlivesItsSnapshot(t *testing.T) {
	b := newRestoreBench(t, "127.0.90.101", 1)
	b.bucket(time.Date(2026, 11, 29, 10, 0, 0, 0, time.UTC), 50)
	b.backup()
	b.configure("cp-1")
	destination, owner := b.place()
	ctx := t.Context()
	contents, err := destination.Look(ctx)
	require.NoError(t, err)
	first := contents.Snapshots[0]
	spool, err := backup.OpenSpool(t.TempDir())
	require.NoError(t, err)
	agents := backup.PinnedName("0123456789abcdef")
	require.NoError(t, destination.Pin(ctx, spool, first.Name, first.SHA256, agents))
	require.NoError(t, destination.Unpin(ctx, first.Name))

	node := b.farm.Node("cp-1")
	live := recovery.Marker{SchemaVersion: 1, Kind: "recover-cluster", Phase: recovery.PhaseRecovering, ID: recovery.NewID(), Operation: "0123456789abcdef",
		Cluster: recovery.Cluster{Name: "prod", ID: owner.ClusterID}, Driver: statefile.Writer{ID: "agent", Epoch: 3}, Began: time.Now().Add(-2 * time.Hour).UTC(),
		Snapshot: recovery.Snapshot{Name: first.Name, SHA256: first.SHA256, Revision: 51, Keys: 50}, Target: "cp-1", Wipe: []string{"cp-1"}, Pinned: agents,
		Machines: []recovery.Machine{{Name: "cp-1", Endpoint: node.Address(), UUID: node.UUID()}}}
	content, err := json.Marshal(live)
	require.NoError(t, err)
	marker := destination.Marker()
	_, err = marker.Read(ctx)
	require.NoError(t, err)
	require.NoError(t, marker.Swap(ctx, content))
	b.withState(owner, func(c *statefile.Cluster) {
		require.NoError(t, c.Create(ctx, &statefile.State{SchemaVersion: statefile.SchemaVersion, Lock: &statefile.Lock{Holder: "operation:0123456789abcdef"},
			Cluster: statefile.ClusterIdentity{Name: "prod", ID: owner.ClusterID, BundleFingerprint: b.bundle.Fingerprint(), CAs: b.bundle.CAs()}}))
	})

	fresh := pageCommands(t)[1]
	code, out, said := b.runUntil(nil, b.typed(fresh)...)
	require.Zero(t, code, said)
	require.Contains(t, said, "is under way (recovering); it is gone on with")
	require.Contains(t, out, "prod is recovered from "+first.Name+": it began with the snapshot's 50 keys")
	b.whole(50, "cp-1")
	requireCopy(t, destination, true, agents, first.SHA256)
	content, err = destination.Marker().Read(ctx)
	require.NoError(t, err)
	ended, err := recovery.DecodeMarker(content)
	require.NoError(t, err)
	require.Equal(t, recovery.PhaseDone, ended.Phase)
	require.Equal(t, live.Operation, ended.Operation)
	record := b.withState(owner, nil).LastRestore
	require.Equal(t, []string{"prod", agents}, []string{record.Backup, record.Pinned})

	b.bucket(time.Date(2026, 11, 29, 11, 0, 0, 0, time.UTC), 60)
	contents, err = destination.Look(ctx)
	require.NoError(t, err)
	second, err := contents.Find("")
	require.NoError(t, err)
	own := backup.PinnedName(second.SHA256)
	code, _, said = b.runUntil(func() bool { return b.accepted("cp-1", "Reset") == 1 }, append(b.typed(fresh), "--wipe", "cp-1")...)
	require.Equal(t, exitCannot, code, said)
	requireCopy(t, destination, true, own, second.SHA256)
	require.NoError(t, destination.Unpin(ctx, second.Name))
	code, _, said = b.runUntil(nil, b.typed(fresh)...)
	require.Zero(t, code, said)
	b.whole(60, "cp-1")
	require.Equal(t, 1, b.accepted("cp-1", "Reset"))
	requireCopy(t, destination, true, own, second.SHA256)
	requireCopy(t, destination, false, agents, "")
	record = b.withState(owner, nil).LastRestore
	require.Equal(t, []string{"prod", own}, []string{record.Backup, record.Pinned})
}

func TestTheCopyIsLeftToAnAgentOnlyWhereOneKnowsOfIt(t *testing.T) {
	for name, test := range map[string]struct {
		r      recoverer
		marker recovery.Marker
		agent  bool
	}{
		"the checkout names the backup":       {recoverer{state: &statefile.Cluster{}, restoreFlags: &restoreFlags{backupFlags: backupFlags{backup: "hourly"}}}, recovery.Marker{}, true},
		"no state remembers it":               {recoverer{restoreFlags: &restoreFlags{backupFlags: backupFlags{backup: "hourly"}}}, recovery.Marker{}, false},
		"--from says which bucket":            {recoverer{state: &statefile.Cluster{}, restoreFlags: &restoreFlags{backupFlags: backupFlags{backup: "hourly", from: "s3://a/b"}}}, recovery.Marker{}, false},
		"it is of an agent's own operation":   {recoverer{restoreFlags: &restoreFlags{}}, recovery.Marker{Operation: "0123"}, true},
		"nobody named a backup in a checkout": {recoverer{state: &statefile.Cluster{}, restoreFlags: &restoreFlags{}}, recovery.Marker{}, false},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, test.agent, test.r.agentUnpins(&test.marker))
		})
	}
}

// between is a store in which an agent writes just before the first write of who holds it.
type between struct {
	*storetest.Memory
	agent func()
}

func (b *between) Put(ctx context.Context, key string, data []byte, cond statefile.If) (string, error) {
	if act := b.agent; act != nil {
		b.agent = nil
		act()
	}
	return b.Memory.Put(ctx, key, data, cond)
}

// TestWhatAnAgentHadBegunIsWaitedOut: nothing but its age says that a call of another process can't arrive any more.
func TestWhatAnAgentHadBegunIsWaitedOut(t *testing.T) {
	text, err := newBundleText()
	require.NoError(t, err)
	bundle, err := talos.LoadBundle(text)
	require.NoError(t, err)
	owner := ownerOf(t, bundle)
	for name, test := range map[string]struct {
		age    time.Duration
		late   bool // begun while the command was taking the lock
		waited time.Duration
	}{
		"three minutes ago":                  {age: 3 * time.Minute, waited: 7 * time.Minute},
		"just as the command takes the lock": {late: true, waited: 10 * time.Minute},
		"by a machine whose clock is ahead":  {age: -time.Hour, waited: 10 * time.Minute},
		"ten minutes ago":                    {age: 10 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			memory := storetest.NewMemory()
			clock := testclock.NewFakeClock(time.Date(2026, 11, 30, 3, 0, 0, 0, time.UTC))
			open := func(store statefile.Store) *statefile.Cluster {
				c, err := statefile.OpenCluster(store, statefile.Options{Name: "prod", Sealer: owner.Sealer, WriterID: statefile.NewNonce(), Clock: clock})
				require.NoError(t, err)
				return c
			}
			agent, store := open(memory), &between{Memory: memory}
			require.NoError(t, agent.Create(t.Context(), &statefile.State{SchemaVersion: statefile.SchemaVersion, Cluster: statefile.ClusterIdentity{Name: "prod"}}))
			begin := func() {
				require.NoError(t, agent.Swap(t.Context(), func(s *statefile.State) error {
					s.Intent = &statefile.Intent{Nonce: statefile.NewNonce(), Action: "reboot", Machine: "cp-2", At: clock.Now().Add(-test.age)}
					return nil
				}))
			}
			if store.agent = begin; !test.late {
				store.agent = nil
				begin()
			}
			var said bytes.Buffer
			r := &recoverer{app: &app{terminal: &terminal{err: &said}, clock: clock}, timing: recovery.DefaultTiming(), state: open(store),
				restoreFlags: &restoreFlags{name: "prod", backupFlags: backupFlags{scrubber: scrub.New(), secrets: bundle, owner: owner}}}
			m, ended := &recovery.Marker{}, make(chan error, 1)
			go func() {
				_, err := r.takeFence(t.Context(), m)
				ended <- err
			}()
			if test.waited > 0 {
				require.Eventually(t, clock.HasWaiters, 5*time.Minute, time.Millisecond)
				clock.Step(test.waited - time.Second)
				require.True(t, clock.HasWaiters(), "it went on too soon")
				clock.Step(time.Second)
			}
			require.NoError(t, <-ended)
			require.Equal(t, test.waited > 0, bytes.Contains(said.Bytes(), []byte("an agent had begun reboot on cp-2 at ")), said.String())
			state, err := agent.Load(t.Context())
			require.NoError(t, err)
			require.Equal(t, m.ID, state.Lock.Holder)
			require.ErrorIs(t, agent.Swap(t.Context(), func(s *statefile.State) error { s.RefusedMore++; return nil }), statefile.ErrOtherWriter)
		})
	}
}

func TestACancelledRestoreThatTheCommandEndedIsNotCalledARecovery(t *testing.T) {
	var out bytes.Buffer
	r := &recoverer{app: &app{terminal: &terminal{out: &out}}, restoreFlags: &restoreFlags{name: "prod"}}
	require.NoError(t, r.end(t.Context(), recovery.NoFence{}, &recovery.Marker{Phase: recovery.PhaseDone, Cancelled: true,
		Snapshot: recovery.Snapshot{Name: "etcd-20261129T100000Z.snapshot.age"}, Notes: []string{"cp-3 was the last"}}))
	require.Contains(t, out.String(), "prod is not restored: a cancel of the restore from etcd-20261129T100000Z.snapshot.age had been begun, and is at its end\ncp-3 was the last\n")
	require.NotContains(t, out.String(), "is recovered")
}

func TestWhateverBreaksARecoveryOffTheLastLineIsTheCommandThatGoesOn(t *testing.T) {
	a := &app{terminal: &terminal{}}
	r := &recoverer{app: a, cmd: a.restoreCommand(), restoreFlags: &restoreFlags{name: "prod"}}
	require.NoError(t, r.cmd.ParseFlags([]string{"--recover-cluster", "--fleet", "my fleet", "--cluster", "prod", "--without", "cp-3", "--wipe", "cp-1", "--start-over",
		"--confirm", "prod", "--state", "s3://ichor/prod"}))
	for name, test := range map[string]struct {
		err  error
		code int
		says string
	}{
		"it stopped":            {&recovery.StoppedError{Why: "cp-1 was reset 5 times"}, exitNo, "the recovery of prod is not at its end: cp-1 was reset 5 times"},
		"the lock is another's": {&recovery.FenceError{Why: "the lock is gone"}, exitNo, "the recovery of prod is not at its end: the lock is gone"},
		"another one drives it": {recovery.ErrOtherDriver, exitNo, "the recovery of prod is not at its end: another process has taken this recovery over, and goes on with it"},
		"a person broke it off": {context.Canceled, exitCannot, "the recovery of prod was broken off: context canceled"},
	} {
		t.Run(name, func(t *testing.T) {
			var exit *exitError
			require.ErrorAs(t, r.brokenOff(test.err), &exit)
			require.Equal(t, test.code, exit.code)
			require.Equal(t, test.says, exit.err.Error())
			require.Equal(t, "it goes on with: ichor restore --recover-cluster --cluster prod --fleet 'my fleet' --state s3://ichor/prod --without cp-3", exit.hint)
		})
	}
}
