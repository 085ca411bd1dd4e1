package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"filippo.io/age"
	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/internal/gittest"
	"ichor.maesh.dev/internal/s3gateway"
	"ichor.maesh.dev/internal/sealed"
	"ichor.maesh.dev/internal/talossim"
	"ichor.maesh.dev/internal/talossim/apid"
	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/talos"
)

// timeScale is how many times faster than Talos the machines wait.
const timeScale = 40

const (
	bucketName = "fleet"
	clusterDir = "clusters/prod"
	accessKey  = "e2e"
)

// world is all that surrounds an agent: machines, a bucket, a Git server, and a fleet repository with its secrets.
type world struct {
	// t is the running test, whole the one that the world was made for: what runs is ended with that.
	t, whole *testing.T
	dir      string
	farm     *talossim.Farm
	// first is the address of the first machine.
	first string

	repo  *gittest.Repository
	git   *gittest.Server
	token string

	bucket   *s3gateway.Child
	s3Secret string
	// endpoint is where agents find the bucket: the server itself, or what a test puts in between.
	endpoint string
	// folder, when it isn't empty, is a state in a folder instead of the bucket.
	folder string

	identity *age.X25519Identity
	bundle   *talos.Bundle
	plain    []byte
	files    gittest.Files
	// patch is the value in the sealed patch.
	patch string
	// printed is everything that ichor printed, as a child that ended or an agent.
	printed *transcript
}

// newWorld starts machines from an address on, in maintenance mode, and pushes a fleet repository that names them.
func newWorld(t *testing.T, first string, controlPlanes, workers int) *world {
	t.Helper()
	if testing.Short() {
		t.Skip("machines with a real etcd each, and a program as a child, take seconds")
	}
	w := &world{t: t, whole: t, dir: t.TempDir(), first: first, token: "git-" + statefile.NewNonce(), s3Secret: "s3-" + statefile.NewNonce(),
		patch: "patch-" + statefile.NewNonce(), files: gittest.Files{}, printed: &transcript{}}
	require.NoError(t, os.MkdirAll(w.path("tmp"), 0o700))
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	var err error
	w.farm, err = talossim.Start(ctx, talossim.Options{Dir: filepath.Join(w.dir, "nodes"), First: first, ControlPlanes: controlPlanes,
		Workers: workers, TimeScale: timeScale, LooseMembership: true})
	require.NoError(t, err)
	t.Cleanup(func() { _ = w.farm.Close() })
	w.startBucket()
	w.endpoint = w.bucket.Endpoint
	w.repo = gittest.New(t)
	w.git = gittest.HTTP(t, w.repo, gittest.HTTPOptions{Authorization: gittest.Basic("x-access-token", w.token)})
	w.writeFile("token", w.token+"\n")
	w.writeFile("s3.yaml", fmt.Sprintf("accessKeyID: %s\nsecretAccessKey: %s\n", accessKey, w.s3Secret))
	w.makeFleet(controlPlanes)
	return w
}

// startBucket starts the S3 server, or brings it back at the same address over the same folder.
func (w *world) startBucket() {
	w.t.Helper()
	var child *s3gateway.Child
	var err error
	if w.bucket != nil {
		child, err = w.bucket.Restart(context.Background())
	} else {
		child, err = s3gateway.StartChild(context.Background(), s3gateway.Options{Dir: filepath.Join(w.dir, "s3"), Access: accessKey, Secret: w.s3Secret,
			Buckets: []string{bucketName}})
	}
	require.NoError(w.t, err)
	w.bucket = child
	w.whole.Cleanup(child.Stop)
}

func (w *world) path(parts ...string) string {
	return filepath.Join(append([]string{w.dir}, parts...)...)
}

// writeFile puts a file beside the agent: a token, a key.
func (w *world) writeFile(name, text string) {
	w.t.Helper()
	next := w.path(name + ".next")
	require.NoError(w.t, os.WriteFile(next, []byte(text), 0o600))
	require.NoError(w.t, os.Rename(next, w.path(name)))
}

// makeFleet writes the cluster prod with all machines of the farm, its secrets sealed, and pushes it.
func (w *world) makeFleet(count int) {
	w.t.Helper()
	var err error
	w.identity, err = age.GenerateX25519Identity()
	require.NoError(w.t, err)
	w.writeFile("age.key", w.identity.String()+"\n")
	w.bundle, err = talos.GenerateBundle("v1.13")
	require.NoError(w.t, err)
	w.plain, err = w.bundle.Marshal()
	require.NoError(w.t, err)
	w.files[clusterDir+"/secrets.age"] = w.seal(w.plain)
	w.files[clusterDir+"/patches/secret.age"] = w.seal([]byte("machine:\n  env:\n    PROXY_PASSWORD: " + w.patch + "\n"))
	w.files[clusterDir+"/cluster.yaml"] = clusterYAML("prod", w.bundle, w.farm.Nodes()[0].Address(), count)
	w.setting("65530")
	for n, node := range w.farm.Nodes() {
		w.files[machineFile(node.Name())] = machineYAML("prod", node.Name(), node, n)
	}
	w.push()
}

func (w *world) seal(plain []byte) string {
	w.t.Helper()
	recipients, err := sealed.ParseRecipients("recipients.txt", []byte(w.identity.Recipient().String()))
	require.NoError(w.t, err)
	data, err := sealed.Seal(recipients, plain)
	require.NoError(w.t, err)
	return string(data)
}

// push commits all files as they are now.
func (w *world) push() string { return w.repo.Commit(w.files) }

// setting changes a harmless setting of all machines; push makes it known.
func (w *world) setting(value string) {
	w.files[clusterDir+"/patches/sysctls.yaml"] = "machine:\n  sysctls:\n    vm.max_map_count: \"" + value + "\"\n"
}

// change replaces a text in a file of the fleet.
func (w *world) change(file, old, replacement string) {
	w.t.Helper()
	text, _ := w.files[file].(string)
	require.Equal(w.t, 1, strings.Count(text, old), "%s in %s", old, file)
	w.files[file] = strings.Replace(text, old, replacement, 1)
}

func machineFile(name string) string { return clusterDir + "/machines/" + name + ".yaml" }

func clusterYAML(name string, bundle *talos.Bundle, address string, count int) string {
	return fmt.Sprintf(`apiVersion: ichor.maesh.dev/v1alpha1
kind: TalosCluster
metadata: {name: %s}
spec:
  id: "%s"
  endpoint: https://%s:6443
  talosVersion: v1.13.6
  kubernetesVersion: v1.36.2
  contract: v1.13
  controlPlane: {count: %d}
  secrets: {file: secrets.age}
  install: {disk: /dev/sda}
  patches: {all: [{file: patches/sysctls.yaml}, {file: patches/secret.age}]}
`, name, schema.ClusterID(bundle.ClusterID()), address, count)
}

func machineYAML(cluster, name string, node *talossim.Node, n int) string {
	return fmt.Sprintf(`apiVersion: ichor.maesh.dev/v1alpha1
kind: TalosMachine
metadata: {name: %s}
spec:
  clusterRef: {name: %s}
  role: %s
  endpoint: %s
  uuid: %s
  hostname: %s
  approved: true
  approvalDecision: {at: 2026-11-29T10:%02d:00Z, by: alice@example.com}
`, name, cluster, node.Role(), node.Address(), node.UUID(), name, n)
}

// stateArguments are the flags that say where the state is.
func (w *world) stateArguments() []string {
	if w.folder != "" {
		return []string{"--state", "file://" + w.folder}
	}
	return []string{"--state", "s3://" + bucketName + "/state", "--state-endpoint", w.endpoint, "--state-region", s3gateway.Region,
		"--state-credentials", w.path("s3.yaml")}
}

// agentArguments are the flags of an agent that has a name of its own, and with it a cache of its own.
func (w *world) agentArguments(name string) []string {
	address, err := netip.ParseAddr(w.first)
	require.NoError(w.t, err)
	network, err := address.Prefix(24)
	require.NoError(w.t, err)
	args := []string{"agent", "--repo", w.git.URL, "--git-token-file", w.path("token"), "--age-identity", w.path("age.key"),
		"--cache", w.path("cache", name), "--interval", "1s", "--trust-maintenance-network", network.String(),
		"--time-scale", fmt.Sprint(timeScale), "--log-format", "json", "--listen", "none"}
	return append(args, w.stateArguments()...)
}

// store opens the state's store past the agent.
func (w *world) store() statefile.Store {
	w.t.Helper()
	var store statefile.Store
	var err error
	if w.folder != "" {
		store, err = statefile.OpenFolder(w.folder, statefile.FolderOptions{})
	} else {
		store, err = statefile.OpenS3(context.Background(), statefile.S3Config{Endpoint: w.bucket.Endpoint, Region: s3gateway.Region,
			Bucket: bucketName, Prefix: "state", Credentials: &statefile.S3Credentials{AccessKeyID: accessKey, SecretAccessKey: w.s3Secret}})
	}
	require.NoError(w.t, err)
	w.whole.Cleanup(func() { _ = store.Close() })
	return store
}

// state reads a cluster's state past the agent.
func (w *world) state(ctx context.Context, store statefile.Store, cluster string) (*statefile.State, error) {
	handle, err := statefile.OpenCluster(store, statefile.Options{Name: cluster})
	if err != nil {
		return nil, err
	}
	return handle.Load(ctx)
}

// awaitState waits until the state of prod satisfies a condition, and gives it.
func (w *world) awaitState(what string, condition func(*statefile.State) error) *statefile.State {
	w.t.Helper()
	return w.awaitStateOf("prod", what, condition)
}

func (w *world) awaitStateOf(cluster, what string, condition func(*statefile.State) error) *statefile.State {
	w.t.Helper()
	store := w.store()
	var last *statefile.State
	await(w.t, what, func(ctx context.Context) error {
		state, err := w.state(ctx, store, cluster)
		if err != nil {
			return err
		}
		last = state
		return condition(state)
	})
	return last
}

// ready is nil when a cluster is Ready.
func ready(s *statefile.State) error {
	if s.Ready.Status {
		return nil
	}
	return fmt.Errorf("%s: %s", s.Ready.Reason, s.Ready.Message)
}

// readyAt gives a condition that is nil when a cluster is Ready at a commit.
func readyAt(commit string) func(*statefile.State) error {
	return func(s *statefile.State) error {
		if s.Revision.Applied != commit {
			return fmt.Errorf("commit %.12s is applied and not %.12s", s.Revision.Applied, commit)
		}
		return ready(s)
	}
}

// accepted counts the calls of a method that the machines took, by machine.
func (w *world) accepted(method string) map[string]int {
	counts := map[string]int{}
	for _, node := range w.farm.Nodes() {
		if n := len(node.Accepted(method)); n > 0 {
			counts[node.Name()] = n
		}
	}
	return counts
}

// acceptedCalls are all mutating calls that a machine took.
func acceptedCalls(node *talossim.Node) []apid.Entry {
	var list []apid.Entry
	for _, entry := range node.Journal() {
		if entry.Accepted {
			list = append(list, entry)
		}
	}
	return list
}

// patience only ends a test that hangs: how long things take depends on what else the host does.
const patience = 10 * time.Minute

// await asks until the answer is nil.
func await(t *testing.T, what string, ask func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	for {
		last := ask(ctx)
		if last == nil {
			return
		}
		select {
		case <-ctx.Done():
			require.NoError(t, last, "%s was not seen within %s", what, patience)
		case <-ticker.C:
		}
	}
}
