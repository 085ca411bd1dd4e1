package reconcile

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"time"

	"filippo.io/age"
	"github.com/stretchr/testify/require"
	"k8s.io/utils/clock"

	"ichor.maesh.dev/backup"
	"ichor.maesh.dev/internal/scrub"
	"ichor.maesh.dev/internal/sealed"
	"ichor.maesh.dev/recovery"
	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/talos"
	"ichor.maesh.dev/validate"
)

// silentNodes don't answer; those of a cluster may take their time about it.
type silentNodes struct {
	delay time.Duration
	looks *sync.Map
}

func (n silentNodes) Observe(ctx context.Context, target talos.Target) talos.Observation {
	count, _ := n.looks.LoadOrStore(target.Name, new(atomic.Int64))
	count.(*atomic.Int64).Add(1)
	select {
	case <-time.After(n.delay):
	case <-ctx.Done():
	}
	return talos.Observation{Problem: target.Name + " can't be reached: connection refused"}
}

func (n silentNodes) Dial(context.Context, talos.Target) (Session, error) {
	return nil, errors.New("connection refused")
}

func (n silentNodes) DialMaintenance(context.Context, talos.Target, string) (Session, error) {
	return nil, errors.New("connection refused")
}

func (n silentNodes) Recovery() recovery.Nodes { return nil }

func (n silentNodes) Member(talos.Target) backup.Node { return nil }

func (n silentNodes) Close() error { return nil }

// bench is an agent over a repository in memory and machines that don't answer.
type bench struct {
	t          *testing.T
	files      fstest.MapFS
	source     *memorySource
	store      *countedStore
	identities *sealed.Identities
	wrong      bool
	recipients []sealed.Recipient
	log        *syncBuffer
	agent      *Agent
	looks      sync.Map
	delay      map[string]time.Duration
	mu         sync.Mutex
}

// countedStore counts writes, and fails while told to.
type countedStore struct {
	statefile.Store
	mu     sync.Mutex
	puts   int
	broken error
}

func (s *countedStore) Put(ctx context.Context, key string, data []byte, cond statefile.If) (string, error) {
	s.mu.Lock()
	s.puts++
	broken := s.broken
	s.mu.Unlock()
	if broken != nil {
		return "", broken
	}
	return s.Store.Put(ctx, key, data, cond)
}

func (s *countedStore) Get(ctx context.Context, key, known string) (*statefile.Object, error) {
	s.mu.Lock()
	broken := s.broken
	s.mu.Unlock()
	if broken != nil {
		return nil, broken
	}
	return s.Store.Get(ctx, key, known)
}

func (s *countedStore) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.broken = err
}

func (s *countedStore) writes() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.puts
}

func newBench(t *testing.T, clusters ...string) *bench {
	b := &bench{t: t, files: fstest.MapFS{}, source: &memorySource{}, log: &syncBuffer{}, delay: map[string]time.Duration{}}
	b.identities, b.recipients = newKeys(t)
	store, err := statefile.OpenFolder(t.TempDir(), statefile.FolderOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { store.Close() })
	b.store = &countedStore{Store: store}
	for n, name := range clusters {
		b.addCluster(name, n)
	}
	b.source.push(b.files)
	return b
}

func (b *bench) write(name, text string) {
	b.files[name] = &fstest.MapFile{Data: []byte(text), Mode: 0o644}
}

func (b *bench) addCluster(name string, n int) {
	bundle := newBundle(b.t)
	b.write("clusters/"+name+"/secrets.age", sealBundle(b.t, b.recipients, bundle))
	b.write("clusters/"+name+"/cluster.yaml", fmt.Sprintf(`apiVersion: ichor.maesh.dev/v1alpha1
kind: TalosCluster
metadata: {name: %s}
spec:
  id: "%s"
  endpoint: https://10.%d.0.10:6443
  talosVersion: v1.13.6
  kubernetesVersion: v1.36.2
  contract: v1.13
  controlPlane: {count: 1}
  secrets: {file: secrets.age}
  install: {disk: /dev/sda}
`, name, schema.ClusterID(bundle.ClusterID()), n))
	b.machine(name, n, name+"-cp", "controlplane", true)
}

func (b *bench) machine(cluster string, n int, name, role string, approved bool) {
	b.write("clusters/"+cluster+"/machines/"+name+".yaml", fmt.Sprintf(`apiVersion: ichor.maesh.dev/v1alpha1
kind: TalosMachine
metadata: {name: %s}
spec:
  clusterRef: {name: %s}
  role: %s
  endpoint: 10.%d.0.%d
  uuid: 4c4c4544-0039-4a10-8033-%012x
  approved: %t
`, name, cluster, role, n, len(b.files)+10, len(b.files)+n*256, approved))
}

func (b *bench) run(change func(*Config)) *Agent {
	engine, err := validate.New()
	require.NoError(b.t, err)
	scrubber := scrub.New()
	timing := DefaultTiming()
	timing.Busy, timing.Steady, timing.Held = 20*time.Millisecond, 20*time.Millisecond, 20*time.Millisecond
	config := Config{Source: b.source, Validator: engine, PollInterval: 50 * time.Millisecond, Leases: []ShardLease{&heldLease{token: 1}}, Mark: "mark",
		Timing: timing, Clock: clock.RealClock{}, Clocks: statefile.SystemClocks(),
		Log: slog.New(scrubber.Handler(slog.NewTextHandler(b.log, nil))), Scrubber: scrubber,
		Identities: func() (*sealed.Identities, error) {
			b.mu.Lock()
			defer b.mu.Unlock()
			if b.wrong {
				other, err := age.GenerateX25519Identity()
				require.NoError(b.t, err)
				return sealed.ParseIdentities("other", []byte(other.String()))
			}
			return b.identities, nil
		},
		OpenState: func(cluster string, bundle *talos.Bundle) (StateStore, error) {
			material := bundle.SealingMaterial()
			sealer, err := statefile.NewSealer(material.ClusterID, material.EncryptionSecret, "")
			if err != nil {
				return nil, err
			}
			return statefile.OpenCluster(b.store, statefile.Options{Name: cluster, Sealer: sealer, WriterID: "agent"})
		},
		OpenNodes: func(bundle *talos.Bundle) Nodes { return silentNodes{looks: &b.looks} },
	}
	if change != nil {
		change(&config)
	}
	agent, stop := start(config)
	b.t.Cleanup(stop)
	b.agent = agent
	return agent
}

func (b *bench) cluster(name string) ClusterReport {
	for _, c := range b.agent.Report().Clusters {
		if c.Name == name {
			return c
		}
	}
	return ClusterReport{}
}

// until waits until a cluster's report is as wanted.
func (b *bench) until(name string, is func(ClusterReport) bool) ClusterReport {
	b.t.Helper()
	require.Eventually(b.t, func() bool { return is(b.cluster(name)) }, ample, 5*time.Millisecond, "%+v\n%s", b.cluster(name).Ready, b.log)
	return b.cluster(name)
}

func applied(commit string) func(ClusterReport) bool {
	return func(c ClusterReport) bool { return c.State != nil && c.State.Revision.Applied == commit }
}

func reason(reason string) func(ClusterReport) bool {
	return func(c ClusterReport) bool { return c.Ready.Reason == reason }
}

func TestAFindingStopsOnlyItsOwnCluster(t *testing.T) {
	b := newBench(t, "prod", "staging")
	first := b.source.revisions[0].Commit
	b.run(nil)
	b.until("prod", applied(first))
	b.until("staging", applied(first))
	require.Eventually(t, func() bool { return b.source.marked() == first }, ample, 5*time.Millisecond)

	// staging changes its count to 4, which is none of 1, 3, 5; prod gets a worker in the same commit.
	b.write("clusters/staging/cluster.yaml", strings.Replace(string(b.files["clusters/staging/cluster.yaml"].Data), "count: 1", "count: 4", 1))
	b.machine("prod", 0, "prod-w1", "worker", true)
	second := b.source.push(b.files)
	prod := b.until("prod", applied(second))
	require.Nil(t, prod.State.Revision.Refused)
	require.Contains(t, prod.State.Machines, "prod-w1")
	staging := b.until("staging", func(c ClusterReport) bool { return c.State != nil && c.State.Revision.Refused != nil })
	require.Equal(t, first, staging.State.Revision.Applied)
	require.Equal(t, second, staging.State.Revision.Refused.Commit)
	require.Contains(t, strings.Join(staging.State.Revision.Refused.Findings, "\n"), "clusters/staging/cluster.yaml")
	require.Contains(t, b.log.String(), "the newest revision is refused for this cluster")
	require.Equal(t, first, b.source.marked(), "a revision is good once every cluster is on it")

	// It is put right: staging goes on.
	b.write("clusters/staging/cluster.yaml", strings.Replace(string(b.files["clusters/staging/cluster.yaml"].Data), "count: 4", "count: 3", 1))
	third := b.source.push(b.files)
	staging = b.until("staging", applied(third))
	require.Nil(t, staging.State.Revision.Refused)
	require.Eventually(t, func() bool { return b.source.marked() == third }, ample, 5*time.Millisecond)
}

func TestAClusterTakenOutOfGitIsLeftAloneAndSaysSo(t *testing.T) {
	b := newBench(t, "prod", "staging")
	name := "clusters/staging/cluster.yaml"
	b.write(name, strings.Replace(string(b.files[name].Data), "metadata: {name: staging}",
		"metadata: {name: staging, annotations: {ichor.maesh.dev/allow-delete: staging}}", 1))
	b.source.push(b.files)
	b.run(nil)
	b.until("staging", applied(b.source.revisions[1].Commit))
	for file := range b.files {
		if strings.HasPrefix(file, "clusters/staging/") {
			delete(b.files, file)
		}
	}
	third := b.source.push(b.files)
	gone := b.until("staging", func(c ClusterReport) bool { return c.State != nil && c.State.Ready.Reason == "NoCluster" })
	require.Equal(t, third, gone.State.Revision.Applied)
	require.Contains(t, gone.State.Machines, "staging-cp", "what is known of its machines stays")
	require.NotContains(t, strings.Join(b.agent.Report().Problems(), "\n"), "staging")
	require.Eventually(t, func() bool { return b.source.marked() == third }, ample, 5*time.Millisecond)
}

func TestTextsThatDifferEachTimeAreMadeStable(t *testing.T) {
	require.Equal(t, "read tcp 127.0.41.1:50000: connection reset", stable("read tcp 127.0.0.1:45482->127.0.41.1:50000: connection reset"))
	require.Equal(t, "read tcp [::2]:50000: connection reset", stable("read tcp [::1]:45482->[::2]:50000: connection reset"))
}

func TestAFileThatBelongsToNoClusterStopsAll(t *testing.T) {
	b := newBench(t, "prod")
	first := b.source.revisions[0].Commit
	b.run(nil)
	b.until("prod", applied(first))
	b.write("stray.yaml", "apiVersion: ichor.maesh.dev/v1alpha1\nkind: TalosMachin\nmetadata: {name: x}\n")
	second := b.source.push(b.files)
	prod := b.until("prod", func(c ClusterReport) bool { return c.State != nil && c.State.Revision.Refused != nil })
	require.Equal(t, first, prod.State.Revision.Applied)
	require.Equal(t, second, prod.State.Revision.Refused.Commit)
}

func TestTwoLegalStepsAreNotOneIllegalOne(t *testing.T) {
	b := newBench(t, "prod")
	b.write("clusters/prod/cluster.yaml", strings.NewReplacer("talosVersion: v1.13.6", "talosVersion: v1.11.5",
		"kubernetesVersion: v1.36.2", "kubernetesVersion: v1.34.3", "contract: v1.13", "contract: v1.11").
		Replace(string(b.files["clusters/prod/cluster.yaml"].Data)))
	b.source.revisions = nil
	first := b.source.push(b.files)
	b.run(nil)
	b.until("prod", applied(first))
	// One minor at a time: v1.11 to v1.13 in one commit is refused, over v1.12 it isn't, and the agent sees both commits at once.
	b.source.mu.Lock()
	b.source.problem = errors.New("unreachable")
	b.source.mu.Unlock()
	for _, version := range []string{"v1.12.4", "v1.13.6"} {
		text := string(b.files["clusters/prod/cluster.yaml"].Data)
		at := strings.Index(text, "talosVersion: ")
		end := at + strings.Index(text[at:], "\n")
		b.write("clusters/prod/cluster.yaml", text[:at]+"talosVersion: "+version+text[end:])
		b.source.push(b.files)
	}
	last := b.source.revisions[2].Commit
	b.source.mu.Lock()
	b.source.problem = nil
	b.source.mu.Unlock()
	prod := b.until("prod", func(c ClusterReport) bool {
		return c.State != nil && (c.State.Revision.Applied == last || c.State.Revision.Refused != nil)
	})
	require.Equal(t, last, prod.State.Revision.Applied, "%+v", prod.State.Revision.Refused)
}

func TestDocumentsThatNothingActsOnYetAreLeftAloneAndTheRestGoesOn(t *testing.T) {
	b := newBench(t, "prod")
	b.write("clusters/prod/backup.yaml", `apiVersion: ichor.maesh.dev/v1alpha1
kind: TalosEtcdBackup
metadata: {name: hourly}
spec:
  clusterRef: {name: prod}
  destination: {s3: {endpoint: https://s3.example.com, region: eu-1, bucket: backups, prefix: prod}}
`)
	second := b.source.push(b.files)
	b.run(nil)
	prod := b.until("prod", applied(second))
	require.Contains(t, strings.Join(prod.State.Revision.NotYet, "\n"), "hourly", "%+v", prod.State.Revision)
	require.Empty(t, prod.State.Operations)
}

func TestEachTroubleIsOneSentenceAndPassesWithItsCause(t *testing.T) {
	b := newBench(t, "prod")
	b.wrong = true
	b.run(nil)
	first := b.source.revisions[0].Commit

	c := b.until("prod", func(c ClusterReport) bool {
		return c.Ready.Reason == "WrongIdentity"
	})
	require.Contains(t, c.Ready.Message, "clusters/prod/secrets.age")
	require.Contains(t, b.log.String(), "the secrets bundle of prod can't be opened")
	b.mu.Lock()
	b.wrong = false
	b.mu.Unlock()
	b.until("prod", applied(first))

	b.store.fail(fmt.Errorf("writing s3://b/prod/state.json: %w", statefile.ErrUnavailable))
	c = b.until("prod", reason("StateUnavailable"))
	require.Contains(t, c.Ready.Message, "the store can't be reached")
	b.store.fail(nil)
	b.until("prod", reason("OriginUnknown"))

	b.source.mu.Lock()
	b.source.problem = errors.New("the Git server at git.example.com doesn't answer; check the network")
	b.source.mu.Unlock()
	b.until("prod", func(c ClusterReport) bool {
		return c.State != nil && strings.Contains(c.State.Revision.Problem, "git.example.com doesn't answer")
	})
	require.Contains(t, strings.Join(b.agent.Report().Problems(), "\n"), "git.example.com doesn't answer")
	b.source.mu.Lock()
	b.source.problem = nil
	b.source.mu.Unlock()
	b.until("prod", func(c ClusterReport) bool { return c.State != nil && c.State.Revision.Problem == "" })

	machine := b.cluster("prod").State.Machines["prod-cp"]
	require.Equal(t, "Unreachable", machine.Ready.Reason)
	require.Contains(t, machine.Ready.Message, "connection refused")
}

func TestOneClustersTroubleDelaysNoOther(t *testing.T) {
	b := newBench(t, "prod", "staging")
	b.run(func(config *Config) {
		config.Timing.Observe = time.Hour // it hangs for as long as the test lasts
		config.OpenNodes = func(bundle *talos.Bundle) Nodes {
			delay := time.Duration(0)
			if schema.ClusterID(bundle.ClusterID()) == idIn(b.files["clusters/staging/cluster.yaml"].Data) {
				delay = time.Hour
			}
			return silentNodes{delay: delay, looks: &b.looks}
		}
	})
	b.until("prod", applied(b.source.revisions[0].Commit))
	b.machine("prod", 0, "prod-w1", "worker", true)
	second := b.source.push(b.files)
	b.until("prod", applied(second))
	require.Equal(t, "Starting", b.cluster("staging").Ready.Reason, "staging's machines have not answered yet")
}

func idIn(text []byte) string {
	_, rest, _ := strings.Cut(string(text), `id: "`)
	return rest[:16]
}

func TestAPassThatFindsNothingNewWritesNothing(t *testing.T) {
	b := newBench(t, "prod")
	b.run(nil)
	b.until("prod", reason("OriginUnknown"))
	looks := func(more int64) {
		t.Helper()
		count, _ := b.looks.LoadOrStore("prod-cp", new(atomic.Int64))
		before := count.(*atomic.Int64).Load()
		require.Eventually(t, func() bool { return count.(*atomic.Int64).Load() > before+more }, ample, 5*time.Millisecond)
	}
	looks(2) // what the pass that was reported still had to write is written
	writes := b.store.writes()
	looks(5)
	require.Equal(t, writes, b.store.writes())
}

func TestTheTimeOfAnApprovalWithoutOneIsTheCommits(t *testing.T) {
	b := newBench(t, "prod")
	b.machine("prod", 0, "prod-w1", "worker", false)
	b.source.push(b.files)
	b.write("clusters/prod/machines/prod-w1.yaml", strings.Replace(string(b.files["clusters/prod/machines/prod-w1.yaml"].Data), "approved: false", "approved: true", 1))
	third := b.source.push(b.files)
	b.source.push(b.files)
	b.run(nil)
	c := b.until("prod", applied(b.source.revisions[3].Commit))
	approvedIn, err := b.source.At(third)
	require.NoError(t, err)
	require.True(t, c.State.Machines["prod-w1"].FirstApproved.Equal(approvedIn.Committed))
	require.True(t, c.State.Machines["prod-cp"].FirstApproved.Equal(b.source.revisions[0].Committed))
}

func TestAPanicInOnePassIsAFailedPassOfThatClusterAlone(t *testing.T) {
	b := newBench(t, "prod", "staging")
	b.run(func(config *Config) {
		inner := config.OpenState
		config.OpenState = func(cluster string, bundle *talos.Bundle) (StateStore, error) {
			if cluster == "staging" {
				panic("a fault of this program")
			}
			return inner(cluster, bundle)
		}
	})
	b.until("prod", applied(b.source.revisions[0].Commit))
	c := b.until("staging", reason("InternalError"))
	require.Contains(t, c.Ready.Message, "a fault of this program")
}

func TestAStateInsideOfAManagedClusterIsWarnedAboutOnce(t *testing.T) {
	b := newBench(t, "prod")
	b.run(func(c *Config) { c.StateEndpoint = "10.0.0.10" })
	b.until("prod", func(c ClusterReport) bool { return c.State != nil })
	b.machine("prod", 0, "another", "worker", false)
	b.until("prod", applied(b.source.push(b.files)))
	require.Equal(t, 1, strings.Count(b.log.String(), "the state is kept inside of a cluster that this agent manages"), "%s", b.log)
	require.Contains(t, b.log.String(), "the endpoint of cluster prod")
}

// TestAStoreThatIsAwayForTheInboxIsSaidOnce: one that went away after the state was read is the next pass's to say, one that gives the state
// and not the inbox is said.
func TestAStoreThatIsAwayForTheInboxIsSaidOnce(t *testing.T) {
	for _, test := range []struct {
		name string
		away func(read int64) bool
		said int
	}{
		{"it comes and goes", func(read int64) bool { return read%2 == 1 }, 0},
		{"it stays away", func(int64) bool { return true }, 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := newBench(t, "prod")
			var reads atomic.Int64
			b.run(func(config *Config) {
				config.Timing.Inbox = time.Nanosecond
				config.Inbox = func(context.Context, string) ([]statefile.InboxFile, bool, error) {
					if test.away(reads.Add(1)) {
						return nil, false, fmt.Errorf("listing the inbox of prod: %w", statefile.ErrUnavailable)
					}
					return nil, false, nil
				}
			})
			require.Eventually(t, func() bool { return reads.Load() > 6 }, ample, 5*time.Millisecond)
			require.Equal(t, test.said, strings.Count(b.log.String(), "the inbox can't be read"), "%s", b.log)
		})
	}
}
