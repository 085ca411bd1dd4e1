package reconcile

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/siderolabs/crypto/x509"
	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/config/generate/secrets"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v4"
	"k8s.io/utils/clock"

	"ichor.maesh.dev/backup"
	"ichor.maesh.dev/gitsource"
	"ichor.maesh.dev/internal/cputime"
	"ichor.maesh.dev/internal/gittest"
	"ichor.maesh.dev/internal/scrub"
	"ichor.maesh.dev/internal/sealed"
	"ichor.maesh.dev/recovery"
	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/talos"
	"ichor.maesh.dev/validate"
)

// countingStore counts what is asked of a store.
type countingStore struct {
	statefile.Store
	reads, writes atomic.Int64
}

func (s *countingStore) Get(ctx context.Context, key, known string) (*statefile.Object, error) {
	s.reads.Add(1)
	return s.Store.Get(ctx, key, known)
}

func (s *countingStore) Put(ctx context.Context, key string, data []byte, cond statefile.If) (string, error) {
	s.writes.Add(1)
	return s.Store.Put(ctx, key, data, cond)
}

// nodeCalls counts what was asked of machines, by kind.
type nodeCalls struct{ observe, dial atomic.Int64 }

// settledNodes answer as machines that run just what Git wants, in a healthy cluster. They stand below the agent in the place
// of the Talos client, because a thousand real etcds would not fit.
type settledNodes struct {
	seen  map[string]talos.Observation
	calls *nodeCalls
	// hang makes every machine answer nothing until the caller gives up; each says here that it was asked.
	hang chan struct{}
	// dialled takes the place of the stubs where it is there.
	dialled Nodes
}

func (n *settledNodes) Observe(ctx context.Context, target talos.Target) talos.Observation {
	n.calls.observe.Add(1)
	if n.dialled != nil {
		return n.dialled.Observe(ctx, target)
	}
	if n.hang != nil {
		select {
		case n.hang <- struct{}{}:
		case <-ctx.Done():
		}
		<-ctx.Done()
		return talos.Observation{Problem: "no answer: " + ctx.Err().Error()}
	}
	return n.seen[target.Name]
}

var errSettled = errors.New("a settled machine needs no call")

func (n *settledNodes) Dial(ctx context.Context, target talos.Target) (Session, error) {
	n.calls.dial.Add(1)
	if n.dialled != nil {
		return n.dialled.Dial(ctx, target)
	}
	return nil, errSettled
}

func (n *settledNodes) DialMaintenance(ctx context.Context, target talos.Target, fingerprint string) (Session, error) {
	n.calls.dial.Add(1)
	if n.dialled != nil {
		return n.dialled.DialMaintenance(ctx, target, fingerprint)
	}
	return nil, errSettled
}

func (n *settledNodes) Recovery() recovery.Nodes { return nil }

func (n *settledNodes) Member(talos.Target) backup.Node { return nil }

func (n *settledNodes) Close() error { return nil }

func benchCluster(name string, id string, count int) string {
	return fmt.Sprintf(`apiVersion: ichor.maesh.dev/v1alpha1
kind: TalosCluster
metadata: {name: %s}
spec:
  id: "%s"
  endpoint: https://%s.example.com:6443
  talosVersion: v1.13.6
  kubernetesVersion: v1.36.2
  contract: v1.13
  controlPlane: {count: %d}
  secrets: {file: secrets.age}
  install: {disk: /dev/sda}
`, name, id, name, count)
}

func benchMachine(cluster, name, role, address string, number int) string {
	return fmt.Sprintf(`apiVersion: ichor.maesh.dev/v1alpha1
kind: TalosMachine
metadata: {name: %s}
spec:
  clusterRef: {name: %s}
  role: %s
  endpoint: %s
  uuid: 4c4c4544-0039-4210-8052-%012x
  hostname: %s-%s
  approved: true
  approvalDecision: {at: 2026-11-29T10:00:00Z, by: alice@example.com}
`, name, cluster, role, address, number, cluster, name)
}

// settledWorld is what agents look after in a benchmark: a real repository, and machines that need nothing.
type settledWorld struct {
	repository *gittest.Repository
	identities *sealed.Identities
	bundles    map[string]*talos.Bundle // by cluster
	nodes      map[string]*settledNodes // by the ID in the cluster's bundle
	calls      nodeCalls
}

// newSettledWorld makes so many clusters of so many machines, three of them control planes. Each cluster has secrets of its own. The
// machines bear the mark of the state that their agent keeps.
func newSettledWorld(tb testing.TB, clusters, machines int, mark string) *settledWorld {
	tb.Helper()
	return newSettledWorldOf(tb, slices.Repeat([]int{machines}, clusters), mark, farAway)
}

// farAway is the address of a machine that nothing is sent to, by its number in the world.
func farAway(_, number int) string {
	return fmt.Sprintf("10.%d.%d.%d", number>>16&255, number>>8&255, number&255)
}

// newSettledWorldOf makes a cluster of each size. Where each machine is goes by its cluster's number and its own in the world, which begins at 1.
func newSettledWorldOf(tb testing.TB, sizes []int, mark string, address func(cluster, number int) string) *settledWorld {
	tb.Helper()
	identities, recipients := newKeys(tb)
	w := &settledWorld{repository: gittest.New(tb), identities: identities, bundles: map[string]*talos.Bundle{}, nodes: map[string]*settledNodes{}}
	base := newBundle(tb)
	files, number := gittest.Files{}, 0
	for c, machines := range sizes {
		cluster := fmt.Sprintf("c-%d", c)
		bundle := likeBundle(tb, base, c)
		w.bundles[cluster] = bundle
		folder := "clusters/" + cluster + "/"
		files[folder+"cluster.yaml"] = benchCluster(cluster, schema.ClusterID(bundle.ClusterID()), 3)
		files[folder+"secrets.age"] = sealBundle(tb, recipients, bundle)
		for m := range machines {
			role, name := "worker", fmt.Sprintf("w-%d", m)
			if m < 3 {
				role, name = "controlplane", fmt.Sprintf("cp-%d", m)
			}
			number++
			files[folder+"machines/"+name+".yaml"] = benchMachine(cluster, name, role, address(c, number), number)
		}
	}
	w.repository.Commit(files)
	source, err := gitsource.Open(gitsource.Config{URL: w.repository.URL(), Cache: tb.TempDir()}, clock.RealClock{})
	require.NoError(tb, err)
	defer source.Close()
	revision, err := source.Poll(context.Background())
	require.NoError(tb, err)
	fleet, problems := schema.Load(revision.Tree, []string{"."})
	require.Empty(tb, problems)
	for _, cluster := range fleet.Clusters {
		w.settle(tb, fleet, cluster, mark)
	}
	return w
}

// likeBundle makes the secrets of another cluster. The key of Kubernetes's service accounts stays, because making one takes a second.
func likeBundle(tb testing.TB, base *talos.Bundle, number int) *talos.Bundle {
	tb.Helper()
	plain, err := base.Marshal()
	require.NoError(tb, err)
	var b secrets.Bundle
	require.NoError(tb, yaml.Unmarshal(plain, &b))
	other := func(text string) string {
		sum := sha256.Sum256(fmt.Appendf(nil, "%d %s", number, text))
		return base64.StdEncoding.EncodeToString(sum[:])
	}
	b.Cluster.ID, b.Cluster.Secret, b.TrustdInfo.Token = other(b.Cluster.ID), other(b.Cluster.Secret), other(b.TrustdInfo.Token)
	b.Secrets.SecretboxEncryptionSecret = other(b.Secrets.SecretboxEncryptionSecret)
	now := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
	made := func(ca *x509.CertificateAuthority, err error) *x509.PEMEncodedCertificateAndKey {
		require.NoError(tb, err)
		return &x509.PEMEncodedCertificateAndKey{Crt: ca.CrtPEM, Key: ca.KeyPEM}
	}
	b.Certs.OS, b.Certs.Etcd = made(secrets.NewTalosCA(now)), made(secrets.NewEtcdCA(now, config.TalosVersion1_13))
	b.Certs.K8s = made(secrets.NewKubernetesCA(now, config.TalosVersion1_13))
	b.Certs.K8sAggregator = made(secrets.NewAggregatorCA(now, config.TalosVersion1_13))
	plain, err = yaml.Marshal(b)
	require.NoError(tb, err)
	bundle, err := talos.LoadBundle(plain)
	require.NoError(tb, err)
	return bundle
}

// settle renders what each machine of a cluster should run and lets it say that it does.
func (w *settledWorld) settle(tb testing.TB, fleet *schema.Fleet, cluster *schema.TalosCluster, mark string) {
	tb.Helper()
	name := cluster.Metadata.Name
	bundle := w.bundles[name]
	compare := NewComparer(fleet, cluster, bundle, w.identities, mark)
	nodes := &settledNodes{seen: map[string]talos.Observation{}, calls: &w.calls}
	var members []talos.EtcdMember
	for _, m := range fleet.MachinesOf(name) {
		if isControlPlane(m) {
			members = append(members, talos.EtcdMember{ID: uint64(len(members) + 1), Name: m.Spec.Hostname, PeerURLs: []string{"https://" + m.Spec.Endpoint + ":2380"}})
		}
	}
	for _, m := range fleet.MachinesOf(name) {
		rendered, err := compare.Render(m, nil, true)
		require.NoError(tb, err)
		o := talos.Observation{Mode: talos.ModeConfigured, UUID: m.Spec.UUID, BootID: "boot-" + m.Metadata.Name, Stage: "running", Ready: true,
			Hostname: m.Spec.Hostname, Addresses: []string{m.Spec.Endpoint}, TalosVersion: "v1.13.6", MachineType: string(m.Spec.Role),
			Active: rendered.Config, Persistent: rendered.Config, NodeReady: talos.Yes, Unschedulable: talos.No}
		if isControlPlane(m) {
			o.Etcd = talos.EtcdObservation{Data: talos.Yes, Service: "Running", ServiceHealthy: talos.Yes, Leader: 1, Members: members, RaftIndex: 100, RaftApplied: 100}
			for _, member := range members {
				if member.Name == m.Spec.Hostname {
					o.Etcd.MemberID = member.ID
				}
			}
		}
		nodes.seen[m.Metadata.Name] = o
	}
	w.nodes[bundle.ClusterID()] = nodes
}

// settledAgent is an agent of a settled world: real Git, a real store, real rendering, stubbed machines.
type settledAgent struct {
	agent  *Agent
	source *gitsource.Source
}

// newAgent makes an agent as the command does. What the benchmark gives in the config stays.
func (w *settledWorld) newAgent(tb testing.TB, store statefile.Store, given Config) *settledAgent {
	tb.Helper()
	engine, err := validate.New()
	require.NoError(tb, err)
	a := &settledAgent{}
	a.source, err = gitsource.Open(gitsource.Config{URL: w.repository.URL(), Cache: tb.TempDir()}, clock.RealClock{})
	require.NoError(tb, err)
	tb.Cleanup(func() { a.source.Close() })
	writer := statefile.NewNonce()
	given.Source, given.Validator, given.Mark = a.source, engine, statefile.LocationHash(store)
	given.Log, given.Scrubber = slog.New(slog.DiscardHandler), scrub.New()
	given.Identities = func() (*sealed.Identities, error) { return w.identities, nil }
	given.OpenNodes = func(bundle *talos.Bundle) Nodes { return w.nodes[bundle.ClusterID()] }
	states := statefile.InTurn(store, statefile.AtOnce)
	given.OpenState = func(cluster string, bundle *talos.Bundle) (StateStore, error) {
		material := bundle.SealingMaterial()
		sealer, err := statefile.NewSealer(material.ClusterID, material.EncryptionSecret, "")
		if err != nil {
			return nil, err
		}
		return statefile.OpenCluster(states, statefile.Options{Name: cluster, Sealer: sealer, WriterID: writer, Clock: given.Clock})
	}
	a.agent = New(given)
	return a
}

// passes lets every cluster make a pass, side by side as in the agent.
func (a *settledAgent) passes(ctx context.Context) { a.agent.passAll(ctx) }

// pass asks Git once and lets every cluster make a pass.
func (a *settledAgent) pass(ctx context.Context) {
	a.agent.pollOnce(ctx)
	a.passes(ctx)
}

// settle makes passes until every cluster is Ready.
func (a *settledAgent) settle(tb testing.TB, ctx context.Context) {
	tb.Helper()
	for range 20 {
		a.pass(ctx)
		if a.unready() == "" {
			return
		}
	}
	tb.Fatal(a.unready())
}

// unready says of the first cluster that isn't Ready why; empty when all are.
func (a *settledAgent) unready() string {
	for _, w := range a.agent.current() {
		if r := w.report(); !r.Ready.Status || r.Blocked {
			return fmt.Sprintf("%s: %s: %s", w.name, r.Ready.Reason, r.Ready.Message)
		}
	}
	return ""
}

// BenchmarkNoOpPass1000Machines is what the agent does most of its life: nothing. It reports what a pass asks of the state's
// store and of Git: no write, no fetch.
func BenchmarkNoOpPass1000Machines(b *testing.B) {
	for _, shape := range []struct{ clusters, machines int }{{100, 10}, {1, 1000}} {
		b.Run(fmt.Sprintf("%d clusters of %d machines", shape.clusters, shape.machines), func(b *testing.B) {
			var before, after runtime.MemStats
			folder, err := statefile.OpenFolder(b.TempDir(), statefile.FolderOptions{})
			require.NoError(b, err)
			b.Cleanup(func() { folder.Close() })
			store := &countingStore{Store: folder}
			world := newSettledWorld(b, shape.clusters, shape.machines, statefile.LocationHash(store))
			runtime.GC()
			runtime.ReadMemStats(&before)
			ctx := context.Background()
			f := world.newAgent(b, store, Config{Leases: []ShardLease{&heldLease{token: 1}}, Clock: clock.RealClock{}, Clocks: statefile.SystemClocks()})
			f.settle(b, ctx)
			f.pass(ctx)
			runtime.GC()
			runtime.ReadMemStats(&after)
			writes, reads, fetches := store.writes.Load(), store.reads.Load(), f.source.Stats().Fetches
			b.ReportAllocs()
			defer cputime.Of(b)()
			for b.Loop() {
				f.pass(ctx)
			}
			n := float64(b.N)
			b.ReportMetric(float64(store.writes.Load()-writes)/n, "state-writes/op")
			b.ReportMetric(float64(store.reads.Load()-reads)/n, "state-reads/op")
			b.ReportMetric(float64(f.source.Stats().Fetches-fetches)/n, "fetches/op")
			b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/(1<<20), "kept-MiB")
			if store.writes.Load() != writes || f.source.Stats().Fetches != fetches {
				b.Fatal("a pass that changes nothing wrote to the state's store or fetched from Git")
			}
			if why := f.unready(); why != "" {
				b.Fatal(why)
			}
		})
	}
}
