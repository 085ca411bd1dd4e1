package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"ichor.maesh.dev/backup"
	"ichor.maesh.dev/internal/s3gateway"
	"ichor.maesh.dev/statefile"
)

const (
	snapshotsAt = "backups/prod"
	markerName  = "etcd-restore.marker.json"
)

// restorable is a running cluster of three control planes with backups, and an agent that works for it.
type restorable struct {
	*world
	signers *signers
	agent   *agent
	checked string
	// older and newer are two snapshots of it. "kept" is in newer alone; it was deleted since, and "lost" was written since.
	older, newer backup.Snapshot
}

// with runs do on the etcd of a machine.
func (r *restorable) with(machine string, do func(context.Context, *clientv3.Client) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{"http://" + r.farm.Node(machine).Address() + ":2379"}, Logger: zap.NewNop()})
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	return do(ctx, client)
}

func (r *restorable) put(key string) {
	r.t.Helper()
	require.NoError(r.t, r.with("cp-1", func(ctx context.Context, c *clientv3.Client) error { _, err := c.Put(ctx, key, "a value"); return err }))
}

// holds says which of the keys the etcd of a machine holds, and how many members it has.
func (r *restorable) holds(machine string, keys ...string) (found []string, members int) {
	r.t.Helper()
	require.NoError(r.t, r.with(machine, func(ctx context.Context, c *clientv3.Client) error {
		for _, key := range keys {
			answer, err := c.Get(ctx, key)
			if err != nil {
				return err
			}
			if answer.Count > 0 {
				found = append(found, key)
			}
		}
		list, err := c.MemberList(ctx)
		if err == nil {
			members = len(list.Members)
		}
		return err
	}))
	return found, members
}

// handIn runs a command that signs, as alice, on the checkout.
func (r *restorable) handIn(args ...string) result {
	r.t.Helper()
	args = append(args, "--repo", r.checked, "--key", r.path("alice.key"), "--age-identity", r.path("age.key"))
	return r.ichor(append(args, r.stateArguments()...)...)
}

// The commands of docs/recovery.md that an agent carries out, or is asked by, in the order of the page. Those that need none are run beside the
// command itself.
const (
	pageDryRun = iota
	pageRestore
	pageNamed
	pageWithout
	pageViaState
	pageShow
	pageStatus
	pageResume
	pageCancel
	pageCommands
)

// typed runs a command of the page in the checkout, with the names of this world in the place of the page's, and more behind it.
func (r *restorable) typed(which int, operation string, more ...string) result {
	r.t.Helper()
	text, err := os.ReadFile("../../docs/recovery.md")
	require.NoError(r.t, err)
	var commands []string
	for line := range strings.Lines(string(text)) {
		line, code := strings.CutPrefix(line, "    ")
		line = strings.TrimSpace(line)
		last := len(commands) - 1
		switch {
		case code && strings.HasPrefix(line, "ichor "):
			commands = append(commands, strings.TrimPrefix(line, "ichor "))
		case code && last >= 0 && strings.HasSuffix(commands[last], "\\"):
			commands[last] = strings.TrimSuffix(commands[last], "\\") + line
		}
	}
	commands = slices.DeleteFunc(commands, func(c string) bool {
		return strings.HasPrefix(c, "backup list") || strings.HasPrefix(c, "restore --recover-cluster")
	})
	require.Len(r.t, commands, pageCommands, "a command that was added to the page must be run here")
	words := strings.Fields(commands[which])
	for n, word := range words {
		switch word {
		case "key.txt":
			words[n] = r.path("age.key")
		case "NAME":
			words[n] = operation
		case "etcd-20261129T100000Z.snapshot.age":
			words[n] = r.newer.Name
		}
	}
	words = append(append(words, r.stateArguments()...), more...)
	switch words[0] {
	case "restore":
		words = append(words, "--key", r.path("alice.key"), "--s3-credentials", r.path("s3.yaml"))
	case "run-op":
		words = append(words, "--key", r.path("alice.key"))
	}
	return r.ichorIn(r.checked, words...)
}

func (r *restorable) list() []backup.Snapshot {
	r.t.Helper()
	got := r.ichor("backup", "list", "--fleet", r.checked, "--age-identity", r.path("age.key"), "--s3-credentials", r.path("s3.yaml"), "-o", "json")
	require.Zero(r.t, got.code, got.err)
	var answer struct{ Snapshots []backup.Snapshot }
	require.NoError(r.t, json.Unmarshal([]byte(got.out), &answer))
	return answer.Snapshots
}

// snapshotNow asks for a snapshot as a person does, and gives it.
func (r *restorable) snapshotNow() backup.Snapshot {
	r.t.Helper()
	if before := r.list(); len(before) > 0 { // two snapshots of one second would have one name
		require.Eventually(r.t, func() bool { return !strings.Contains(before[0].Name, time.Now().UTC().Format("20060102T150405Z")) }, time.Minute, 10*time.Millisecond)
	}
	got := r.handIn("backup", "now", "--yes", "--follow")
	require.Zero(r.t, got.code, "%s%s", got.out, got.err)
	return r.list()[0]
}

// stored is the file in which the S3 server keeps an object of the backups.
func (r *restorable) stored(name string) string { return r.path("s3", bucketName, snapshotsAt, name) }

func (r *restorable) read(name string) []byte {
	r.t.Helper()
	data, err := os.ReadFile(r.stored(name))
	require.NoError(r.t, err)
	return data
}

// inPlace runs do while an object is other bytes, or gone (nil), as somebody with the bucket's keys would have it.
func (r *restorable) inPlace(name string, data []byte, do func()) {
	r.t.Helper()
	before := r.read(name)
	if data == nil {
		require.NoError(r.t, os.Remove(r.stored(name)))
	} else {
		require.NoError(r.t, os.WriteFile(r.stored(name), data, 0o600))
	}
	do()
	require.NoError(r.t, os.WriteFile(r.stored(name), before, 0o600))
}

// body is a restore of a snapshot, signed with a digest.
func (r *restorable) body(name, digest string) string {
	text := fmt.Sprintf("  kind: etcd-restore\n  etcdRestore:\n    backupRef:\n      name: hourly\n    snapshot:\n      name: %s\n      sha256: \"%s\"\n    confirm: prod\n    localDataLoss: accepted\n    controlPlanes:\n", name, digest)
	for _, node := range r.farm.Nodes() {
		text += fmt.Sprintf("      %s: %s\n", node.Name(), node.UUID())
	}
	return text
}

// paused hands a restore in that must not begin, and sees it pause with a reason and without having touched a machine. Then it is cancelled.
func (r *restorable) paused(name, body, says string) {
	r.t.Helper()
	before := r.disruptions()
	text := r.submit(r.signers.alice, overrides, name, body)
	r.push()
	state := r.awaitState(name+" paused", inPhase(name, text, statefile.OperationPaused))
	why := remembered(state, name, text).FailureReason
	assert.Contains(r.t, why, "nothing was changed: ")
	assert.Contains(r.t, why, says)
	assert.Equal(r.t, before, r.disruptions())
	got := r.typed(pageResume, name, "--dry-run")
	assert.Zero(r.t, got.code, "%s%s", got.out, got.err)
	assert.Contains(r.t, got.out, name+" (etcd-restore hourly) goes on from its step preparing, after its pause number 1")
	got = r.typed(pageCancel, name, "--yes")
	require.Zero(r.t, got.code, "%s%s", got.out, got.err)
	r.awaitState(name+" cancelled", inPhase(name, text, statefile.OperationCancelled))
}

func newRestorable(t *testing.T) *restorable {
	t.Helper()
	r := &restorable{world: newWorld(t, "127.0.98.1", 3, 0)}
	r.signers = r.meet()
	r.key(r.signers.alice)
	r.files[clusterDir+"/backup.yaml"] = fmt.Sprintf(`apiVersion: ichor.maesh.dev/v1alpha1
kind: TalosEtcdBackup
metadata: {name: hourly}
spec:
  clusterRef: {name: prod}
  schedule: "30 %d * * *"
  destination: {s3: {endpoint: %q, region: %s, bucket: %s, prefix: %s, addressing: path}}
`, (time.Now().UTC().Hour()+12)%24, r.bucket.Endpoint, s3gateway.Region, bucketName, snapshotsAt)
	r.push()
	r.agent = r.startAgent("one", append(r.signing(), "--backup-destination", "s3://"+bucketName+"/"+snapshotsAt)...)
	r.awaitState("the cluster Ready", ready)
	r.awaitState("a first snapshot", backupIs("stored", func(b *statefile.BackupState) bool { return b.Ready.Status && !b.LastSuccess.IsZero() }))
	r.checked = r.clone("desk")
	r.repo.Git("-C", r.checked, "config", "user.name", "Alice")
	r.repo.Git("-C", r.checked, "config", "user.email", "alice@example.com")
	r.older = r.list()[0]
	r.put("/registry/kept")
	r.newer = r.snapshotNow()
	require.Greater(t, r.newer.Name, r.older.Name)
	r.put("/registry/lost")
	require.NoError(t, r.with("cp-1", func(ctx context.Context, c *clientv3.Client) error {
		_, err := c.Delete(ctx, "/registry/kept")
		return err
	}))
	return r
}

// TestALiveRestoreBringsBackWhatWasThereAndNobodyElsesWill goes through one cluster's restores, one after the other: those that must not
// begin, one as a person makes it, and what somebody makes of its marker afterwards.
func TestALiveRestoreBringsBackWhatWasThereAndNobodyElsesWill(t *testing.T) {
	t.Parallel()
	r := newRestorable(t)
	for _, step := range []struct {
		what string
		do   func()
	}{
		{"what a restore would do is said, and nothing is changed", r.onlySaid},
		{"last month's snapshot under today's name is found out", r.refuseReplaced},
		{"a snapshot that was pruned meanwhile, or never was what was signed", r.refuseGone},
		{"a restore is made with one command, while a second one waits and is withdrawn", r.restoreWithOneCommand},
		{"a marker that is forged, or put back, starts nothing and is obeyed by none", r.refuseMarkers},
	} {
		ok := t.Run(step.what, func(t *testing.T) {
			r.t, r.agent.t = t, t
			defer func() { r.t, r.agent.t = r.whole, r.whole }()
			step.do()
		})
		require.True(t, ok, "what follows rests on it: %s", step.what)
	}
	assert.Empty(t, r.agent.saying(0, "panic"))
	r.noSecrets(r.agent)
	_, code := r.agent.stop(syscall.SIGTERM)
	assert.Zero(t, code)
}

func (r *restorable) onlySaid() {
	before, commit := r.disruptions(), r.repo.Tip("main")
	got := r.typed(pageDryRun, "", "--local-data-loss", "accepted")
	assert.Zero(r.t, got.code, "%s%s", got.out, got.err)
	assert.Contains(r.t, got.out, r.newer.Name+": taken ")
	assert.Contains(r.t, got.out, "it goes gently, because etcd is healthy with 3 members")
	got = r.typed(pageRestore, "", "--local-data-loss", "accepted", "--confirm", "prod", "--print")
	assert.Zero(r.t, got.code, "%s%s", got.out, got.err)
	assert.Contains(r.t, got.out, r.newer.SHA256)
	got = r.typed(pageWithout, "", "--local-data-loss", "accepted", "--dry-run")
	assert.Equal(r.t, 1, got.code, "%s%s", got.out, got.err)
	assert.Contains(r.t, got.out, "cp-3 is off for good, and it answers")
	got = r.typed(pageViaState, "", "--local-data-loss", "accepted", "--dry-run")
	assert.Zero(r.t, got.code, "%s%s", got.out, got.err)
	assert.Equal(r.t, before, r.disruptions())
	assert.Equal(r.t, commit, r.repo.Tip("main"))
}

func (r *restorable) refuseReplaced() {
	old := r.read(r.older.Name)
	r.inPlace(r.newer.Name, old, func() {
		// Whoever asks for it is told before anything is signed.
		got := r.handIn("restore", "--live", "--s3-credentials", r.path("s3.yaml"), "--local-data-loss", "accepted", "--confirm", "prod", "--snapshot", r.newer.Name)
		assert.Equal(r.t, 1, got.code, "%s%s", got.out, got.err)
		assert.Contains(r.t, got.err, r.newer.Name)
		assert.NotContains(r.t, got.out, "signed for")
		// Where it was signed before, the agent refuses it; also under the digest of what stands there now.
		r.paused("replaced", r.body(r.newer.Name, r.newer.SHA256), r.newer.Name)
		r.paused("replaced-again", r.body(r.newer.Name, r.older.SHA256), r.newer.Name)
	})
}

func (r *restorable) refuseGone() {
	r.inPlace(r.newer.Name, nil, func() { r.paused("pruned", r.body(r.newer.Name, r.newer.SHA256), r.newer.Name) })
	r.paused("another", r.body(r.newer.Name, strings.Repeat("0", 64)), "it is another snapshot; sign anew")
}

func (r *restorable) restoreWithOneCommand() {
	before := r.disruptions()
	done := make(chan result, 1)
	go func() {
		done <- r.typed(pageNamed, "", "--allowed-signers", r.path("allowed_signers"), "--time-scale", fmt.Sprint(timeScale))
	}()
	running := func(s *statefile.State) error {
		for _, op := range s.Operations {
			if op.Kind == "etcd-restore" && op.Phase == statefile.OperationRunning && op.Marked {
				return nil
			}
		}
		return fmt.Errorf("no restore runs past its marker")
	}
	r.awaitState("the restore under way", running)
	marker := r.read(markerName)
	require.NotContains(r.t, string(marker), `"phase":"done"`)
	r.writeFile("marker", string(marker))

	// A second one waits, and is withdrawn by taking its file away.
	second := r.submit(r.signers.alice, overrides, "second", r.body(r.older.Name, r.older.SHA256))
	r.push()
	r.awaitState("the second restore waiting", inPhase("second", second, statefile.OperationPending))
	r.withdraw(orderFile("second"))
	r.push()
	r.awaitState("the second restore cancelled", inPhase("second", second, statefile.OperationCancelled))

	got := <-done
	require.Zero(r.t, got.code, "%s%s", got.out, got.err)
	for _, want := range []string{"it goes gently, because etcd is healthy with 3 members", "what is lost:", "the way out, if it stops half way", "ichor restore --recover-cluster --cluster prod",
		"signed for ichor-override@prod by alice@example.com", "(leaving)", "(joining)", "Completed: etcd is restored from " + r.newer.Name} {
		assert.Contains(r.t, got.out, want)
	}
	r.awaitState("the cluster Ready", ready)
	name, _, _ := strings.Cut(got.out, " ")
	shown := r.typed(pageShow, name)
	assert.Zero(r.t, shown.code, "%s%s", shown.out, shown.err)
	assert.Contains(r.t, shown.out, "Completed: etcd is restored from "+r.newer.Name)
	shown = r.typed(pageStatus, "")
	assert.Zero(r.t, shown.code, "%s%s", shown.out, shown.err)
	assert.Regexp(r.t, name+` +etcd-restore +hourly +Completed`, shown.out)
	for _, node := range r.farm.Nodes() {
		found, members := r.holds(node.Name(), "/registry/kept", "/registry/lost")
		assert.Equal(r.t, []string{"/registry/kept"}, found, node.Name())
		assert.Equal(r.t, 3, members, node.Name())
	}
	after := r.disruptions()
	resets, leaves := 0, 0
	for _, node := range r.farm.Nodes() {
		resets += after["Reset "+node.Name()] - before["Reset "+node.Name()]
		leaves += after["EtcdLeaveCluster "+node.Name()] - before["EtcdLeaveCluster "+node.Name()]
	}
	assert.Equal(r.t, []int{1, 2}, []int{resets, leaves}, "one is wiped, the others leave")
	assert.Greater(r.t, r.list()[0].Name, r.newer.Name, "what was lost is kept in a snapshot of its own")
}

func (r *restorable) refuseMarkers() {
	captured, err := os.ReadFile(r.path("marker"))
	require.NoError(r.t, err)
	forged := bytes.ReplaceAll(captured, []byte("cp-1"), []byte("cp-2"))
	require.NotEqual(r.t, captured, forged)
	before := r.disruptions()
	for name, marker := range map[string][]byte{"put-back": captured, "forged": forged} {
		r.inPlace(markerName, marker, func() {
			r.passes(r.agent, 5)
			assert.Equal(r.t, before, r.disruptions(), "nobody follows it by itself: %s", name)
			r.paused(name, r.body(r.newer.Name, r.newer.SHA256), "marker")
		})
	}
	r.awaitState("the cluster Ready", ready)
}
