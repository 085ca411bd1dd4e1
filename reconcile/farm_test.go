package reconcile

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/utils/clock"

	"ichor.maesh.dev/gitsource"
	"ichor.maesh.dev/internal/scrub"
	"ichor.maesh.dev/internal/sealed"
	"ichor.maesh.dev/internal/talossim"
	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/talos"
	"ichor.maesh.dev/validate"
)

// fleetOnFarm is a fleet repository in memory for the machines of a farm.
type fleetOnFarm struct {
	identities *sealed.Identities
	recipients []sealed.Recipient
	bundle     *talos.Bundle
	files      fstest.MapFS
}

// newFleetOnFarm writes a cluster, its sealed secrets and one file a machine.
func newFleetOnFarm(t testing.TB, farm *talossim.Farm, count int) *fleetOnFarm {
	t.Helper()
	identities, recipients := newKeys(t)
	bundle := newBundle(t)
	f := &fleetOnFarm{identities: identities, recipients: recipients, bundle: bundle, files: fstest.MapFS{}}
	first := farm.Nodes()[0].Address()
	f.write("clusters/prod/secrets.age", sealBundle(t, recipients, bundle))
	f.write("clusters/prod/cluster.yaml", fmt.Sprintf(`apiVersion: ichor.maesh.dev/v1alpha1
kind: TalosCluster
metadata: {name: prod}
spec:
  id: "%s"
  endpoint: https://%s:6443
  talosVersion: v1.13.6
  kubernetesVersion: v1.36.2
  contract: v1.13
  controlPlane: {count: %d}
  secrets: {file: secrets.age}
  install: {disk: /dev/sda}
`, schema.ClusterID(bundle.ClusterID()), first, count))
	for n, node := range farm.Nodes() {
		f.write("clusters/prod/machines/"+node.Name()+".yaml", fmt.Sprintf(`apiVersion: ichor.maesh.dev/v1alpha1
kind: TalosMachine
metadata: {name: %s}
spec:
  clusterRef: {name: prod}
  role: %s
  endpoint: %s
  uuid: %s
  hostname: %s
  approved: true
  approvalDecision: {at: 2026-11-29T10:%02d:00Z, by: alice@example.com}
`, node.Name(), roleOf(node), node.Address(), node.UUID(), node.Name(), n))
	}
	return f
}

func roleOf(node *talossim.Node) string {
	if strings.HasPrefix(node.Name(), "cp-") {
		return "controlplane"
	}
	return "worker"
}

func (f *fleetOnFarm) write(name, text string) {
	f.files[name] = &fstest.MapFile{Data: []byte(text), Mode: 0o644}
}

// memorySource is a branch in memory: a list of commits, each on top of the one before.
type memorySource struct {
	mu        sync.Mutex
	revisions []*gitsource.Revision
	good      string
	problem   error
	polls     int
}

func (s *memorySource) push(files fstest.MapFS) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	copied := fstest.MapFS{}
	for name, file := range files {
		copied[name] = file
	}
	commit := fmt.Sprintf("%040x", len(s.revisions)+1)
	var parents []string
	if last, err := s.last(); err == nil {
		parents = []string{last.Commit}
	}
	s.revisions = append(s.revisions, &gitsource.Revision{Commit: commit, TreeHash: commit, Tree: copied, Parents: parents,
		Committed: time.Date(2026, 11, 29, 9, len(s.revisions), 0, 0, time.UTC)})
	return commit
}

func (s *memorySource) Poll(context.Context) (*gitsource.Revision, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.polls++
	if s.problem != nil {
		return nil, s.problem
	}
	return s.last()
}

func (s *memorySource) last() (*gitsource.Revision, error) {
	if len(s.revisions) == 0 {
		return nil, gitsource.ErrNone
	}
	return s.revisions[len(s.revisions)-1], nil
}

func (s *memorySource) Seen() (*gitsource.Revision, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last()
}

func (s *memorySource) LastGood() (*gitsource.Revision, error) {
	s.mu.Lock()
	good := s.good
	s.mu.Unlock()
	if good == "" {
		return nil, gitsource.ErrNone
	}
	return s.At(good)
}

func (s *memorySource) MarkGood(commit string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.good = commit
	return nil
}

func (s *memorySource) marked() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.good
}

func (s *memorySource) index(commit string) int {
	for n, r := range s.revisions {
		if r.Commit == commit {
			return n
		}
	}
	return -1
}

func (s *memorySource) At(commit string) (*gitsource.Revision, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := s.index(commit); n >= 0 {
		return s.revisions[n], nil
	}
	return nil, fmt.Errorf("no commit %s", commit)
}

func (s *memorySource) Object(commit string) ([]byte, error) {
	return nil, fmt.Errorf("no object of commit %s", commit)
}

func (s *memorySource) Since(_ context.Context, from, to string) ([]*gitsource.Revision, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.revisions[s.index(from)+1 : s.index(to)+1], nil
}

func (s *memorySource) Descends(_ context.Context, tip, ancestor string) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.index(ancestor) >= 0 && s.index(ancestor) <= s.index(tip), nil
}

func (s *memorySource) Approved(_ context.Context, revision *gitsource.Revision, _ string,
	approved func(*gitsource.Revision) (bool, error)) (*gitsource.Revision, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	found := revision
	for n := s.index(revision.Commit); n >= 0; n-- {
		yes, err := approved(s.revisions[n])
		if err != nil || !yes {
			return found, err
		}
		found = s.revisions[n]
	}
	return found, nil
}

// heldLease is a lease that is always held and never ages, until it is lost.
type heldLease struct {
	mu    sync.Mutex
	lost  bool
	token uint64
}

func (l *heldLease) Age() (time.Duration, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return 0, !l.lost
}

func (l *heldLease) Status() statefile.LeaseStatus {
	l.mu.Lock()
	defer l.mu.Unlock()
	return statefile.LeaseStatus{Held: !l.lost, Token: l.token, Holder: "test"}
}

func (l *heldLease) Run(ctx context.Context, _ func(statefile.LeaseStatus)) error {
	<-ctx.Done()
	return ctx.Err()
}

func (l *heldLease) Release(context.Context) error { return nil }

// lab is everything an agent needs, over a farm of simulated machines.
type lab struct {
	t      testing.TB
	farm   *talossim.Farm
	fleet  *fleetOnFarm
	source *memorySource
	store  statefile.Store
	scale  float64
	engine *validate.Engine
	log    *syncBuffer
	// kubernetes stands in the place of the API that the control planes serve; nil: theirs is asked.
	kubernetes *fakeKubernetes
	// recipients are those of sealedPatch.
	recipients []sealed.Recipient
	scrubber   *scrub.Scrubber
}

// syncBuffer collects a log.
type syncBuffer struct {
	mu   sync.Mutex
	text strings.Builder
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// newLab starts machines whose etcds refuse what real ones refuse.
func newLab(t testing.TB, first string, controlPlanes, workers int, scale float64) *lab {
	t.Helper()
	return newLabOn(t, talossim.Options{First: first, ControlPlanes: controlPlanes, Workers: workers, TimeScale: scale})
}

// newHurriedLab starts three control planes whose etcds take each other in without the five seconds that each voter must have been
// connected before the next may join: for tests that bring clusters up many times.
func newHurriedLab(t testing.TB, first string) *lab {
	t.Helper()
	return newLabOn(t, talossim.Options{First: first, ControlPlanes: 3, TimeScale: 50, LooseMembership: true})
}

func newLabOn(t testing.TB, options talossim.Options) *lab {
	t.Helper()
	if testing.Short() {
		t.Skip("simulated machines with a real etcd each take seconds")
	}
	ctx, cancel := context.WithCancel(context.Background())
	options.Dir = t.TempDir()
	farm, err := talossim.Start(ctx, options)
	require.NoError(t, err)
	t.Cleanup(func() { farm.Close(); cancel() })
	store, err := statefile.OpenFolder(t.TempDir(), statefile.FolderOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { store.Close() })
	engine, err := validate.New()
	require.NoError(t, err)
	l := &lab{t: t, farm: farm, source: &memorySource{}, store: store, scale: options.TimeScale, engine: engine, log: &syncBuffer{}, scrubber: scrub.New()}
	l.fleet = newFleetOnFarm(t, farm, options.ControlPlanes)
	l.source.push(l.fleet.files)
	t.Cleanup(func() {
		if t.Failed() || os.Getenv("LAB_LOG") != "" {
			os.Stderr.WriteString(l.log.String())
		}
	})
	return l
}

// config is an agent's over the lab.
func (l *lab) config(writer string) Config {
	timing := DefaultTiming().Scaled(l.scale)
	timing.WriterQuiet = 300 * time.Millisecond
	return Config{
		Source: l.source, Validator: l.engine, PollInterval: time.Second, Leases: []ShardLease{&heldLease{token: 1}}, Mark: statefile.LocationHash(l.store),
		TrustedNetworks: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, Timing: timing, Clock: clock.RealClock{},
		Clocks: statefile.SystemClocks(), Log: slog.New(l.scrubber.Handler(slog.NewTextHandler(l.log, nil))), Scrubber: l.scrubber,
		Identities: func() (*sealed.Identities, error) { return l.fleet.identities, nil },
		OpenState: func(cluster string, bundle *talos.Bundle) (StateStore, error) {
			material := bundle.SealingMaterial()
			sealer, err := statefile.NewSealer(material.ClusterID, material.EncryptionSecret, "")
			if err != nil {
				return nil, err
			}
			return statefile.OpenCluster(l.store, statefile.Options{Name: cluster, Sealer: sealer, WriterID: writer})
		},
		OpenKubernetes: l.openKubernetes,
		OpenNodes: func(bundle *talos.Bundle) Nodes {
			return TalosNodes(talos.NewClient(bundle, talos.ClientOptions{Scrubber: l.scrubber}))
		},
	}
}

// openKubernetes gives the simulated control planes' own API, or the one that a test put in its place.
func (l *lab) openKubernetes(bundle *talos.Bundle, servers []string) (Kubernetes, error) {
	if l.kubernetes != nil {
		return l.kubernetes, nil
	}
	return OpenKubernetes(time.Now)(bundle, servers)
}

// ample only ends a test that hangs: how long real etcds take depends on what else the host does.
const ample = 5 * time.Minute

// run runs an agent until stop says so, or ample time has passed.
func (l *lab) run(config Config, stop func(Report) bool) Report {
	l.t.Helper()
	return l.runFor(config, ample, stop)
}

// runFor is run with another patience.
func (l *lab) runFor(config Config, patience time.Duration, stop func(Report) bool) Report {
	l.t.Helper()
	agent := New(config)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = agent.Run(ctx)
	}()
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for ctx.Err() == nil && !stop(agent.Report()) {
		select {
		case <-ticker.C:
		case <-ctx.Done():
		}
	}
	report := agent.Report()
	cancel()
	<-done
	return report
}

func allReady(r Report) bool {
	for _, c := range r.Clusters {
		if !c.Ready.Status {
			return false
		}
	}
	return len(r.Clusters) > 0
}

// accepted counts the calls of a method that machines accepted, by machine.
func (l *lab) accepted(method string) map[string]int {
	counts := map[string]int{}
	for _, node := range l.farm.Nodes() {
		for _, entry := range node.Journal() {
			if entry.Accepted && strings.HasSuffix(entry.Method, "/"+method) {
				counts[node.Name()]++
			}
		}
	}
	return counts
}

func TestSimulatedMachinesBecomeAReadyCluster(t *testing.T) {
	t.Parallel()
	l := newLab(t, "127.0.50.1", 3, 1, 30)
	l.watchPromises()
	report := l.run(l.config("agent-1"), allReady)
	require.True(t, allReady(report), "%+v", report.Problems())
	require.Equal(t, map[string]int{"cp-1": 1}, l.accepted("Bootstrap"))
	require.Equal(t, map[string]int{"cp-1": 1, "cp-2": 1, "cp-3": 1, "w-1": 1}, l.accepted("ApplyConfiguration"))
}
