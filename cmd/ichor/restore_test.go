package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"k8s.io/utils/clock"

	"ichor.maesh.dev/internal/etcdfile"
	"ichor.maesh.dev/internal/s3gateway"
	"ichor.maesh.dev/internal/sealed"
	"ichor.maesh.dev/internal/talossim"
	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/talos"
)

// restoreBench is a fleet of simulated control planes in maintenance mode, its repository, and a bucket.
type restoreBench struct {
	*planBench
	bundle  *talos.Bundle
	network string
	s3      string
}

func newRestoreBench(t *testing.T, first string, controlPlanes int) *restoreBench {
	t.Helper()
	if testing.Short() {
		t.Skip("simulated machines with a real etcd each take seconds")
	}
	dir := t.TempDir()
	b := &restoreBench{planBench: &planBench{t: t, dir: dir, fleet: filepath.Join(dir, "fleet"), state: filepath.Join(dir, "state"), keys: filepath.Join(dir, "age.key")},
		network: first[:strings.LastIndex(first, ".")] + ".0/24"}
	farm, err := talossim.Start(context.Background(), talossim.Options{Dir: filepath.Join(dir, "machines"), First: first, ControlPlanes: controlPlanes,
		TimeScale: 10, LooseMembership: true})
	require.NoError(t, err)
	t.Cleanup(func() { _ = farm.Close() })
	b.farm = farm
	args := []string{"init", b.fleet, "--cluster", "prod", "--endpoint", "https://" + first + ":6443", "--age-identity-out", b.keys, "--approve", "--install-disk", "/dev/sda"}
	client := talos.NewClient(nil, talos.ClientOptions{})
	defer func() { _ = client.Close() }()
	for _, node := range farm.Nodes() {
		target := talos.Target{Name: node.Name(), Endpoint: node.Endpoint()}
		require.Eventually(t, func() bool { return client.Observe(context.Background(), target).UUID != "" }, 10*time.Minute, 50*time.Millisecond)
		args = append(args, "--control-plane", fmt.Sprintf("%s=%s,%s", node.Name(), node.Address(), node.UUID()))
	}
	code, _, errText := b.run(args...)
	require.Zero(t, code, errText)
	identities, err := sealed.LoadIdentities(b.keys)
	require.NoError(t, err)
	b.bundle, err = bundleFromCheckout(b.fleet, "prod", identities)
	require.NoError(t, err)
	require.NoError(t, os.Mkdir(b.state, 0o700))
	return b
}

// bucket starts an S3 server and stores a snapshot of so many keys in it.
func (b *restoreBench) bucket(at time.Time, keys int) {
	b.t.Helper()
	if b.s3 == "" {
		server, err := s3gateway.StartChild(context.Background(), s3gateway.Options{Dir: b.t.TempDir(), Access: canaryAccess, Secret: canarySecret, Buckets: []string{"backups"}, Domain: "s3.test"})
		require.NoError(b.t, err)
		b.t.Cleanup(server.Stop)
		b.t.Setenv("AWS_ACCESS_KEY_ID", canaryAccess)
		b.t.Setenv("AWS_SECRET_ACCESS_KEY", canarySecret)
		b.s3 = server.Endpoint
	}
	text, err := b.bundle.Marshal()
	require.NoError(b.t, err)
	require.NoError(b.t, storeSnapshot(statefile.S3Config{Endpoint: b.s3, Bucket: "backups", Prefix: "prod",
		Credentials: &statefile.S3Credentials{AccessKeyID: canaryAccess, SecretAccessKey: canarySecret}}, text, at, b.t.TempDir(), keys, 100))
}

// runUntil runs a command until done says so, and gives its exit code and what it said. A nil done lets it run to its end.
func (b *restoreBench) runUntil(done func() bool, args ...string) (int, string, string) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Minute)
	defer cancel()
	var out, errText syncBuffer
	a := &app{terminal: &terminal{in: strings.NewReader(""), out: &out, err: &errText}, clock: clock.RealClock{}, getenv: func(string) string { return "" }}
	ended := make(chan int, 1)
	go func() { ended <- a.execute(ctx, args) }()
	look := time.NewTicker(10 * time.Millisecond)
	defer look.Stop()
	for {
		select {
		case code := <-ended:
			return code, out.String(), errText.String()
		case <-look.C:
			if done != nil && done() {
				cancel()
				done = nil
			}
		}
	}
}

type syncBuffer struct {
	mu     sync.Mutex
	buffer bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buffer.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buffer.String()
}

// accepted is how often a machine took a call.
func (b *restoreBench) accepted(name, method string) int {
	return len(b.farm.Node(name).Accepted(method))
}

// etcd asks the etcd of a machine for the snapshot's keys, its revision, and how many members it has. Kubernetes writes others beside them.
func (b *restoreBench) etcd(name string) (map[string]string, int64, int) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{"http://" + b.farm.Node(name).Address() + ":2379"}, Logger: zap.NewNop()})
	require.NoError(b.t, err)
	defer func() { _ = client.Close() }()
	answer, err := client.Get(ctx, "/registry/pods/default/web-", clientv3.WithPrefix())
	require.NoError(b.t, err)
	members, err := client.MemberList(ctx)
	require.NoError(b.t, err)
	all := map[string]string{}
	for _, kv := range answer.Kvs {
		all[string(kv.Key)] = string(kv.Value)
	}
	return all, answer.Header.Revision, len(members.Members)
}

func (b *restoreBench) lock() *statefile.Lock {
	b.t.Helper()
	store, err := statefile.OpenFolder(b.state, statefile.FolderOptions{})
	require.NoError(b.t, err)
	defer func() { _ = store.Close() }()
	handle, err := statefile.OpenCluster(store, statefile.Options{Name: "prod"})
	require.NoError(b.t, err)
	state, err := handle.Load(context.Background())
	require.NoError(b.t, err)
	return state.Lock
}

// pageCommands gives the commands of docs/recovery.md that need no agent, in their order; internal/e2e runs the others.
func pageCommands(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile("../../docs/recovery.md")
	require.NoError(t, err)
	var commands []string
	for line := range strings.Lines(string(text)) {
		line, code := strings.CutPrefix(line, "    ")
		line = strings.TrimSpace(line)
		switch {
		case !code:
		case strings.HasPrefix(line, "ichor "):
			commands = append(commands, strings.TrimPrefix(line, "ichor "))
		case len(commands) > 0 && strings.HasSuffix(commands[len(commands)-1], "\\"):
			commands[len(commands)-1] += " " + line
		}
	}
	return slices.DeleteFunc(commands, func(command string) bool {
		return !strings.HasPrefix(command, "backup list") && !strings.HasPrefix(command, "restore --recover-cluster")
	})
}

// typed makes of a command of the page one for the bench: with its files, and with the time of its machines.
func (b *restoreBench) typed(command string) []string {
	words := strings.Fields(strings.ReplaceAll(command, "\\", " "))
	for n, word := range words {
		switch word {
		case ".":
			words[n] = b.fleet
		case "key.txt":
			words[n] = b.keys
		case "s3://ichor/prod":
			words[n] = "file://" + b.state
		case "10.0.0.0/24":
			words[n] = b.network
		}
	}
	if words[0] == "restore" {
		words = append(words, "--confirm", "prod", "--time-scale", "10", "--spool", filepath.Join(b.dir, "spool"))
	}
	return words
}

func TestEveryCommandOfThePageForThreeInTheMorningWorks(t *testing.T) {
	commands := pageCommands(t)
	require.Len(t, commands, 6, "a command that was added to the page must be run here")
	list, fresh, bare, wiping, without, anew := commands[0], commands[1], commands[2], commands[3], commands[4], commands[5]
	require.Contains(t, bare, "--bundle secrets.yaml", "which another test runs")
	b := newRestoreBench(t, "127.0.88.101", 3)
	b.bucket(time.Date(2026, 11, 29, 10, 0, 0, 0, time.UTC), 300)
	b.backup()
	code, listed, said := b.run(b.typed(list)...)
	require.Zero(t, code, said)
	require.Contains(t, listed, "etcd-20261129T100000Z")

	code, out, said := b.runUntil(nil, b.typed(fresh)...)
	require.Zero(t, code, said)
	require.Contains(t, out, "prod is recovered from etcd-20261129T100000Z.snapshot.age: it began with the snapshot's 300 keys, at revision 1000000301; 3 control planes have joined")
	b.whole(300, "cp-1", "cp-2", "cp-3")
	for _, node := range b.farm.Nodes() {
		require.Equal(t, 1, b.accepted(node.Name(), "ApplyConfiguration"))
		require.Zero(t, b.accepted(node.Name(), "Reset"))
	}
	require.Equal(t, []int{1, 0, 0}, b.bootstraps())
	_, _, warned := b.run(b.typed(list)...)
	require.NotContains(t, warned, "marker", "a restore that has ended stops no backup")

	// The same once more finds machines that run an etcd, and touches none.
	code, _, said = b.runUntil(nil, b.typed(fresh)...)
	require.Equal(t, exitNo, code, said)
	require.Contains(t, said, "cp-2 (127.0.88.102) runs an etcd with data, and that answers: it has 3 members; if that may be lost, name it: --wipe cp-2")
	require.Contains(t, said, "nothing was changed")
	require.Contains(t, said, "to give it up all the same, go on with --wipe: ichor restore --recover-cluster")

	// With all of them named it is broken off just after a machine was told to recover, and gone on with.
	code, _, said = b.runUntil(func() bool { return b.accepted("cp-2", "Bootstrap") == 1 }, b.typed(wiping)...)
	require.Equal(t, exitCannot, code, said)
	require.Contains(t, said, "was broken off")
	require.NotNil(t, b.lock(), "agents only look meanwhile")
	code, out, said = b.runUntil(nil, b.typed(fresh)...)
	require.Zero(t, code, said)
	require.Contains(t, said, "is under way")
	require.Contains(t, out, "300 keys, at revision 2000000301")
	require.Equal(t, []int{1, 1, 0}, b.bootstraps(), "another machine than the last one recovers, once")
	b.whole(300, "cp-1", "cp-2", "cp-3")

	// One is said to be gone for good, and is not: it would live on beside the recovered etcd.
	code, _, said = b.runUntil(nil, b.typed(without)...)
	require.Equal(t, exitNo, code, said)
	require.Contains(t, said, "Git declares cp-3 (127.0.88.103) as a control plane, which isn't one of those to recover on, and it answers")
	require.NotContains(t, said, "discovery knows cp-3", "it is named once")

	// It is gone for good. The recovery without it is broken off and given up, and another one begun.
	require.NoError(t, b.farm.Node("cp-3").PowerOff())
	code, _, said = b.runUntil(func() bool { return b.accepted("cp-1", "Reset") == 2 }, b.typed(without)...)
	require.Equal(t, exitCannot, code, said)
	require.Contains(t, said, "was broken off")
	code, out, said = b.runUntil(nil, b.typed(anew)...)
	require.Zero(t, code, said)
	require.Contains(t, out, "2 control planes have joined")
	b.whole(300, "cp-1", "cp-2")
	b.noSecretIn(out, said)
}

// backup writes the TalosEtcdBackup of the bucket into the checkout.
func (b *restoreBench) backup() {
	b.t.Helper()
	require.NoError(b.t, os.WriteFile(filepath.Join(b.fleet, "clusters/prod/backup.yaml"), fmt.Appendf(nil, `apiVersion: ichor.maesh.dev/v1alpha1
kind: TalosEtcdBackup
metadata: {name: prod}
spec:
  clusterRef: {name: prod}
  destination: {s3: {endpoint: %s, region: us-east-1, bucket: backups, prefix: prod, addressing: path}}
`, b.s3), 0o600))
}

// whole says that these machines run one etcd of so many keys, and that nothing holds the cluster.
func (b *restoreBench) whole(keys int, names ...string) {
	b.t.Helper()
	for _, name := range names {
		all, _, members := b.etcd(name)
		require.Len(b.t, all, keys)
		require.Equal(b.t, len(names), members)
	}
	require.Nil(b.t, b.lock(), "the lock is given back")
	left, err := os.ReadDir(filepath.Join(b.dir, "spool"))
	require.NoError(b.t, err)
	require.Empty(b.t, left, "no plaintext stays on disk")
}

// bootstraps is how often each machine took a bootstrap, recovering or not.
func (b *restoreBench) bootstraps() []int {
	var all []int
	for _, node := range b.farm.Nodes() {
		all = append(all, b.accepted(node.Name(), "Bootstrap"))
	}
	return all
}

func (b *restoreBench) noSecretIn(texts ...string) {
	b.t.Helper()
	for _, secret := range append(b.bundle.Scalars(), canarySecret) {
		for _, text := range texts {
			require.False(b.t, strings.Contains(text, secret), "a secret is shown (%.6s…)", secret)
		}
	}
}

func TestASingleControlPlaneIsRecoveredFromAFileAndTheBundleAlone(t *testing.T) {
	b := newRestoreBench(t, "127.0.89.101", 1)
	file := filepath.Join(b.dir, "etcd.snapshot")
	_, err := etcdfile.Write(file, etcdfile.Options{Keys: 120, ValueSize: 200})
	require.NoError(t, err)
	bundle := filepath.Join(b.dir, "secrets.yaml")
	text, err := b.bundle.Marshal()
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(bundle, text, 0o600))
	command := pageCommands(t)[2]
	for was, is := range map[string]string{"secrets.yaml": bundle, "etcd.snapshot": file, "cp-1=10.0.0.11": "cp-1=127.0.89.101",
		"--control-plane cp-2=10.0.0.12 --control-plane cp-3=10.0.0.13": ""} {
		require.Contains(t, command, was)
		command = strings.ReplaceAll(command, was, is)
	}
	args := append(b.typed(command), "--work", filepath.Join(b.dir, "work"))

	// A machine in maintenance mode needs a config, and that a checkout.
	code, _, said := b.runUntil(nil, args...)
	require.Equal(t, exitNo, code, said)
	require.Contains(t, said, "without a fleet checkout no config can be made for it: give --fleet")

	b.configure("cp-1")
	code, _, said = b.runUntil(nil, append(args[:len(args):len(args)], "--confirm", "staging")...)
	require.Equal(t, exitCannot, code, said)
	require.Contains(t, said, `"staging" is not the cluster's name prod; nothing was changed`)
	code, out, said := b.runUntil(nil, args...)
	require.Zero(t, code, said)
	require.Contains(t, said, "no agent may be running for this cluster")
	require.Contains(t, out, "it began with the snapshot's 120 keys, at revision 1000000121; 1 control planes have joined")
	all, _, _ := b.etcd("cp-1")
	require.Len(t, all, 120)
	require.Equal(t, 1, b.accepted("cp-1", "Bootstrap"))
	left, err := os.ReadDir(filepath.Join(b.dir, "spool"))
	require.NoError(t, err)
	require.Empty(t, left, "no plaintext stays on disk")
}

// configure gives a machine its config as an agent would, and waits until it is up with an empty etcd.
func (b *restoreBench) configure(name string) {
	b.t.Helper()
	tree, _ := loadTree(b.fleet)
	cluster := tree.Cluster("prod")
	var machine *schema.TalosMachine
	for _, m := range tree.Machines {
		if m.Metadata.Name == name {
			machine = m
		}
	}
	rendered, err := talos.Render(cluster, machine, b.bundle, talos.RenderOptions{Read: tree.ReadRef})
	require.NoError(b.t, err)
	client := talos.NewClient(b.bundle, talos.ClientOptions{})
	defer func() { _ = client.Close() }()
	target := talos.Target{Name: name, Endpoint: machine.Spec.Endpoint, ControlPlane: true}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	session, err := client.DialMaintenance(ctx, target, client.Observe(ctx, target).Fingerprint)
	require.NoError(b.t, err)
	defer func() { _ = session.Close() }()
	require.NoError(b.t, session.ApplyConfig(ctx, talos.ApplyRequest{Config: rendered.Bytes, Mode: talos.ApplyNoReboot}))
	require.Eventually(b.t, func() bool { return client.Observe(ctx, target).Etcd.Data == talos.No }, 10*time.Minute, 50*time.Millisecond)
}

func TestAnAgentThatFindsSnapshotsAndNoEtcdWaitsLooksOnAndGoesOn(t *testing.T) {
	b := newRestoreBench(t, "127.0.89.111", 1)
	b.bucket(time.Date(2026, 11, 29, 10, 0, 0, 0, time.UTC), 50)
	b.backup()
	b.git("init", "-q", "-b", "main")
	b.git("add", "-A")
	b.git("commit", "-q", "-m", "first")
	serving := []string{"--trust-maintenance-network", b.network, "--backup-destination", "s3://backups/prod"}
	b.agent(func() bool {
		_, out, _ := b.run("status", "--state", "file://"+b.state, "-o", "json")
		if !strings.Contains(out, `"reason": "NotBootstrapped"`) {
			return false
		}
		require.Zero(t, b.accepted("cp-1", "Bootstrap"), "the snapshots prove a past")
		code, out, said := b.runUntil(nil, b.typed(pageCommands(t)[1])...)
		require.Zero(t, code, said)
		require.Contains(t, out, "one that ran meanwhile goes on by itself")
		return true
	}, serving...)
	// The next agent adopts what runs, and takes backups again.
	b.agent(func() bool {
		_, out, _ := b.run("status", "--state", "file://"+b.state, "-o", "json")
		return strings.Contains(out, `"reason": "Succeeded"`)
	}, serving...)
	require.Equal(t, 1, b.accepted("cp-1", "Bootstrap"))
	require.Zero(t, b.accepted("cp-1", "Reset"))
	all, _, _ := b.etcd("cp-1")
	require.Len(t, all, 50)
}
