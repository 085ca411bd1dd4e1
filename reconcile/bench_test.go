package reconcile

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/utils/clock"

	"ichor.maesh.dev/backup"
	"ichor.maesh.dev/gitsource"
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

// settledNodes answer as machines that run just what Git wants, in a healthy cluster. They stand below the agent in the place
// of the Talos client, because a thousand real etcds would not fit.
type settledNodes struct{ seen map[string]talos.Observation }

func (n *settledNodes) Observe(_ context.Context, target talos.Target) talos.Observation {
	return n.seen[target.Name]
}

var errSettled = errors.New("a settled machine needs no call")

func (n *settledNodes) Dial(context.Context, talos.Target) (Session, error) { return nil, errSettled }

func (n *settledNodes) DialMaintenance(context.Context, talos.Target, string) (Session, error) {
	return nil, errSettled
}

func (n *settledNodes) Recovery() recovery.Nodes { return nil }

func (n *settledNodes) Member(talos.Target) backup.Node { return nil }

func (n *settledNodes) Close() error { return nil }

// settledFleet is an agent over clusters that need nothing: real Git, a real store, real rendering, stubbed machines.
type settledFleet struct {
	agent  *Agent
	source *gitsource.Source
	store  *countingStore
}

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

// newSettledFleet makes so many clusters of so many machines, three of them control planes, and brings the agent's memory to
// where nothing is left to do.
func newSettledFleet(b *testing.B, clusters, machines int) *settledFleet {
	b.Helper()
	ctx := context.Background()
	identities, recipients := newKeys(b)
	bundle := newBundle(b)
	secrets := sealBundle(b, recipients, bundle)

	repository := gittest.New(b)
	files, number := gittest.Files{}, 0
	for c := range clusters {
		cluster := fmt.Sprintf("c-%d", c)
		folder := "clusters/" + cluster + "/"
		files[folder+"cluster.yaml"] = benchCluster(cluster, schema.ClusterID(bundle.ClusterID()), 3)
		files[folder+"secrets.age"] = secrets
		for m := range machines {
			role, name := "worker", fmt.Sprintf("w-%d", m)
			if m < 3 {
				role, name = "controlplane", fmt.Sprintf("cp-%d", m)
			}
			number++
			address := fmt.Sprintf("10.%d.%d.%d", number>>16&255, number>>8&255, number&255)
			files[folder+"machines/"+name+".yaml"] = benchMachine(cluster, name, role, address, number)
		}
	}
	repository.Commit(files)
	folder, err := statefile.OpenFolder(b.TempDir(), statefile.FolderOptions{})
	require.NoError(b, err)
	b.Cleanup(func() { folder.Close() })
	f := &settledFleet{store: &countingStore{Store: folder}}
	f.source, err = gitsource.Open(gitsource.Config{URL: repository.URL(), Cache: b.TempDir()}, clock.RealClock{})
	require.NoError(b, err)
	b.Cleanup(func() { f.source.Close() })
	revision, err := f.source.Poll(ctx)
	require.NoError(b, err)
	fleet, problems := schema.Load(revision.Tree, []string{"."})
	require.Empty(b, problems)

	engine, err := validate.New()
	require.NoError(b, err)
	mark := statefile.LocationHash(folder)
	nodes := settledMachines(b, fleet, bundle, identities, mark)
	f.agent = New(Config{
		Source: f.source, Validator: engine, Leases: []ShardLease{&heldLease{token: 1}}, Mark: mark, Clock: clock.RealClock{},
		Clocks: statefile.SystemClocks(), Log: slog.New(slog.DiscardHandler), Scrubber: scrub.New(),
		Identities: func() (*sealed.Identities, error) { return identities, nil },
		OpenState: func(cluster string, bundle *talos.Bundle) (StateStore, error) {
			material := bundle.SealingMaterial()
			sealer, err := statefile.NewSealer(material.ClusterID, material.EncryptionSecret, "")
			if err != nil {
				return nil, err
			}
			return statefile.OpenCluster(f.store, statefile.Options{Name: cluster, Sealer: sealer, WriterID: "bench"})
		},
	})
	f.agent.pollOnce(ctx)
	for _, w := range f.agent.current() {
		// Every cluster has the same bundle, so the worker's name tells whose machines it opens.
		f.agent.config.OpenNodes = func(*talos.Bundle) Nodes { return nodes[w.name] }
		for range 20 {
			w.once(ctx)
			if report := w.report(); report.Ready.Status {
				break
			}
		}
		report := w.report()
		require.True(b, report.Ready.Status, "%s: %s: %s", w.name, report.Ready.Reason, report.Ready.Message)
	}
	return f
}

// settledMachines renders what each machine should run and lets it say that it does; by cluster.
func settledMachines(b *testing.B, fleet *schema.Fleet, bundle *talos.Bundle, identities *sealed.Identities, mark string) map[string]*settledNodes {
	b.Helper()
	all := map[string]*settledNodes{}
	for _, cluster := range fleet.Clusters {
		name := cluster.Metadata.Name
		compare := NewComparer(fleet, cluster, bundle, identities, mark)
		nodes := &settledNodes{seen: map[string]talos.Observation{}}
		var members []talos.EtcdMember
		for _, m := range fleet.MachinesOf(name) {
			if isControlPlane(m) {
				members = append(members, talos.EtcdMember{ID: uint64(len(members) + 1), Name: m.Spec.Hostname, PeerURLs: []string{"https://" + m.Spec.Endpoint + ":2380"}})
			}
		}
		for _, m := range fleet.MachinesOf(name) {
			rendered, err := compare.Render(m, nil, true)
			require.NoError(b, err)
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
		all[name] = nodes
	}
	return all
}

// pass asks Git once and lets every cluster make a pass, side by side as in the agent.
func (f *settledFleet) pass(ctx context.Context) {
	f.agent.pollOnce(ctx)
	var group sync.WaitGroup
	for _, w := range f.agent.current() {
		group.Go(func() { w.once(ctx) })
	}
	group.Wait()
}

// BenchmarkNoOpPass1000Machines is what the agent does most of its life: nothing. It reports what a pass asks of the state's
// store and of Git: no write, no fetch.
func BenchmarkNoOpPass1000Machines(b *testing.B) {
	for _, shape := range []struct{ clusters, machines int }{{100, 10}, {1, 1000}} {
		b.Run(fmt.Sprintf("%d clusters of %d machines", shape.clusters, shape.machines), func(b *testing.B) {
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			f := newSettledFleet(b, shape.clusters, shape.machines)
			ctx := context.Background()
			f.pass(ctx)
			runtime.GC()
			runtime.ReadMemStats(&after)
			writes, reads, fetches := f.store.writes.Load(), f.store.reads.Load(), f.source.Stats().Fetches
			b.ReportAllocs()
			for b.Loop() {
				f.pass(ctx)
			}
			n := float64(b.N)
			b.ReportMetric(float64(f.store.writes.Load()-writes)/n, "state-writes/op")
			b.ReportMetric(float64(f.store.reads.Load()-reads)/n, "state-reads/op")
			b.ReportMetric(float64(f.source.Stats().Fetches-fetches)/n, "fetches/op")
			b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/(1<<20), "kept-MiB")
			if f.store.writes.Load() != writes || f.source.Stats().Fetches != fetches {
				b.Fatal("a pass that changes nothing wrote to the state's store or fetched from Git")
			}
			for _, w := range f.agent.current() {
				if !w.report().Ready.Status {
					b.Fatal(w.report())
				}
			}
		})
	}
}
