package kubetest

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"time"

	"filippo.io/age"
	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"ichor.maesh.dev/gitsource"
	"ichor.maesh.dev/internal/scrub"
	"ichor.maesh.dev/internal/sealed"
	"ichor.maesh.dev/internal/talossim"
	"ichor.maesh.dev/operation"
	"ichor.maesh.dev/reconcile"
	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/talos"
	"ichor.maesh.dev/test/kube/harness"
	"ichor.maesh.dev/validate"
)

// oneRevision is a repository in which nothing is ever changed.
type oneRevision struct{ revision *gitsource.Revision }

func (o oneRevision) Poll(context.Context) (*gitsource.Revision, error) { return o.revision, nil }
func (o oneRevision) Seen() (*gitsource.Revision, error)                { return o.revision, nil }
func (o oneRevision) LastGood() (*gitsource.Revision, error)            { return o.revision, nil }
func (o oneRevision) MarkGood(string) error                             { return nil }
func (o oneRevision) At(string) (*gitsource.Revision, error)            { return o.revision, nil }
func (o oneRevision) Object(string) ([]byte, error) {
	return nil, errors.New("nobody signs here")
}
func (o oneRevision) Since(context.Context, string, string) ([]*gitsource.Revision, error) {
	return nil, nil
}
func (o oneRevision) Descends(context.Context, string, string) (bool, error) { return true, nil }
func (o oneRevision) Approved(_ context.Context, revision *gitsource.Revision, _ string, _ func(*gitsource.Revision) (bool, error)) (*gitsource.Revision, error) {
	return revision, nil
}

// onlyAgent is the lease of an agent that has no rival.
type onlyAgent struct{}

func (onlyAgent) Age() (time.Duration, bool) { return 0, true }
func (onlyAgent) Status() statefile.LeaseStatus {
	return statefile.LeaseStatus{Held: true, Token: 1, Holder: "test"}
}
func (onlyAgent) Release(context.Context) error { return nil }
func (onlyAgent) Run(ctx context.Context, _ func(statefile.LeaseStatus)) error {
	<-ctx.Done()
	return ctx.Err()
}

// turnedClock is the time of day, which a test turns on; turnedTimes go with it.
type turnedClock struct {
	clock.RealClock
	ahead *atomic.Int64
}

func (c turnedClock) Now() time.Time {
	return c.RealClock.Now().Add(time.Duration(c.ahead.Load()))
}
func (c turnedClock) Since(then time.Time) time.Duration { return c.Now().Sub(then) }

// turnedTimes are the clocks that nobody sets, as far ahead as the time of day.
type turnedTimes struct {
	statefile.Clocks
	ahead *atomic.Int64
}

func (c turnedTimes) Now() statefile.Instant {
	now, ahead := c.Clocks.Now(), time.Duration(c.ahead.Load())
	return statefile.Instant{Monotonic: now.Monotonic + ahead, Boot: now.Boot + ahead, Wall: now.Wall.Add(ahead)}
}

// agent is one that runs over a farm until the test ends, with somebody who signs operations and puts them into its inbox.
type agent struct {
	t      *testing.T
	w      *world
	agent  *reconcile.Agent
	store  statefile.Store
	signer ssh.Signer
	clock  turnedClock
}

// fleetOf is the repository of a farm's cluster as startFarm configured it.
func fleetOf(t *testing.T, w *world, farm *talossim.Farm, endpoint string, controlPlanes int, recipients []sealed.Recipient) fstest.MapFS {
	t.Helper()
	plain, err := w.bundle.Marshal()
	require.NoError(t, err)
	secrets, err := sealed.Seal(recipients, plain)
	require.NoError(t, err)
	files := fstest.MapFS{"secrets.age": {Data: secrets, Mode: 0o644}, "cluster.yaml": {Mode: 0o644, Data: fmt.Appendf(nil, `apiVersion: ichor.maesh.dev/v1alpha1
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
`, schema.ClusterID(w.bundle.ClusterID()), endpoint, controlPlanes)}}
	for _, node := range farm.Nodes() {
		files["machines/"+node.Name()+".yaml"] = &fstest.MapFile{Mode: 0o644, Data: fmt.Appendf(nil, `apiVersion: ichor.maesh.dev/v1alpha1
kind: TalosMachine
metadata: {name: %s}
spec:
  clusterRef: {name: prod}
  role: %s
  endpoint: %s
  uuid: %s
  hostname: %s
  approved: true
  approvalDecision: {at: 2026-11-29T10:00:00Z, by: alice@example.com}
`, node.Name(), node.Role(), node.Address(), node.UUID(), node.Name())}
	}
	return files
}

// startAgent starts an agent over the machines of startFarm.
func startAgent(t *testing.T, w *world, farm *talossim.Farm, endpoint string, controlPlanes int) *agent {
	t.Helper()
	identity, err := age.GenerateX25519Identity()
	require.NoError(t, err)
	identities, err := sealed.ParseIdentities("test", []byte(identity.String()))
	require.NoError(t, err)
	recipients, err := sealed.ParseRecipients("recipients.txt", []byte(identity.Recipient().String()))
	require.NoError(t, err)
	_, private, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	signer, err := ssh.NewSignerFromKey(private)
	require.NoError(t, err)
	signers, err := operation.ParseAllowedSigners("allowed_signers", fmt.Appendf(nil, `alice namespaces="ichor-operation@prod" %s`, ssh.MarshalAuthorizedKey(signer.PublicKey())))
	require.NoError(t, err)
	store, err := statefile.OpenFolder(t.TempDir(), statefile.FolderOptions{})
	require.NoError(t, err)
	engine, err := validate.New()
	require.NoError(t, err)
	timing := reconcile.DefaultTiming()
	timing.WriterQuiet, timing.Busy, timing.Steady, timing.Inbox = 300*time.Millisecond, 200*time.Millisecond, 500*time.Millisecond, time.Second
	a := &agent{t: t, w: w, store: store, signer: signer, clock: turnedClock{ahead: &atomic.Int64{}}}
	scrubber := scrub.New()
	a.agent = reconcile.New(reconcile.Config{
		Source: oneRevision{&gitsource.Revision{Commit: fmt.Sprintf("%040x", 1), TreeHash: "1", Tree: fleetOf(t, w, farm, endpoint, controlPlanes, recipients),
			Committed: time.Date(2026, 11, 29, 10, 0, 0, 0, time.UTC)}},
		Validator: engine, PollInterval: time.Second, Leases: []reconcile.ShardLease{onlyAgent{}}, Mark: statefile.LocationHash(store),
		TrustedNetworks: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, Timing: timing, Clock: a.clock, Clocks: turnedTimes{statefile.SystemClocks(), a.clock.ahead},
		Log: slog.New(slog.DiscardHandler), Scrubber: scrubber,
		Identities:     func() (*sealed.Identities, error) { return identities, nil },
		Signers:        func() (*operation.AllowedSigners, error) { return signers, nil },
		OpenKubernetes: reconcile.OpenKubernetes(time.Now),
		OpenNodes: func(bundle *talos.Bundle) reconcile.Nodes {
			return reconcile.TalosNodes(talos.NewClient(bundle, talos.ClientOptions{Scrubber: scrubber}))
		},
		Inbox: func(ctx context.Context, cluster string) ([]statefile.InboxFile, bool, error) {
			return statefile.ReadInbox(ctx, store, cluster)
		},
		OpenState: func(cluster string, bundle *talos.Bundle) (reconcile.StateStore, error) {
			material := bundle.SealingMaterial()
			sealer, err := statefile.NewSealer(material.ClusterID, material.EncryptionSecret, "")
			if err != nil {
				return nil, err
			}
			return statefile.OpenCluster(store, statefile.Options{Name: cluster, Sealer: sealer, WriterID: "agent"})
		},
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = a.agent.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done; store.Close() })
	return a
}

// signs puts a signed operation into the inbox.
func (a *agent) signs(name, body string) {
	a.t.Helper()
	created := a.clock.Now().Add(-time.Minute).UTC()
	text := fmt.Appendf(nil, "apiVersion: ichor.maesh.dev/v1alpha1\nkind: TalosOperation\nmetadata:\n  name: %s\nspec:\n  clusterRef:\n    name: prod\n    id: \"%s\"\n  createdAt: %s\n  expiresAt: %s\n%s",
		name, schema.ClusterID(a.w.bundle.ClusterID()), created.Format(time.RFC3339), created.Add(6*time.Hour).Format(time.RFC3339), body)
	signature, err := operation.Sign(text, operation.Namespace("prod"), a.signer)
	require.NoError(a.t, err)
	require.NoError(a.t, statefile.PutInbox(a.t.Context(), a.store, "prod", name, text, signature))
}

// until waits for an operation to be as wanted, and gives it.
func (a *agent) until(name, what string, is func(*statefile.OperationState) bool) *statefile.OperationState {
	a.t.Helper()
	var found *statefile.OperationState
	harness.Eventually(a.t, name+": "+what, func() error {
		report := a.agent.Report()
		for _, c := range report.Clusters {
			if c.State == nil {
				continue
			}
			for _, op := range c.State.Operations {
				if op.Name == name && is(op) {
					found = op
					return nil
				} else if op.Name == name {
					return fmt.Errorf("%s at %s: %s %s %s", op.Phase, op.Step, op.Message, op.FailureReason, op.Refusal)
				}
			}
		}
		return errors.New("it is not known yet: " + strings.Join(report.Problems(), "; "))
	})
	return found
}

func inPhase(phase statefile.OperationPhase) func(*statefile.OperationState) bool {
	return func(op *statefile.OperationState) bool { return op.Phase == phase }
}

// TestASignedRebootIsHeldByABudgetAndResumed has a budget that lets no pod of a worker go for longer than a drain may take: nothing is
// rebooted and the worker takes pods again. With room in the budget a signed resume empties the worker and reboots it once.
func TestASignedRebootIsHeldByABudgetAndResumed(t *testing.T) {
	t.Parallel()
	const endpoint = "127.0.75.69"
	w, farm := startFarm(t, "127.0.75.60", endpoint, 1, 2)
	w.joinPool(t, "web", "w-1")
	namespace := w.namespace(t, "web")
	w.deployment(t, namespace, "web", 2)
	w.budget(t, namespace, "web", 0, 2)
	require.Len(t, w.podsOn(t, namespace, "w-1"), 2)
	w.joinPool(t, "web", "w-2")

	a := startAgent(t, w, farm, endpoint, 1)
	harness.Eventually(t, "the cluster is Ready", func() error {
		report := a.agent.Report()
		if len(report.Clusters) == 0 || !report.Clusters[0].Ready.Status {
			return errors.New(strings.Join(report.Problems(), "; "))
		}
		return nil
	})
	worker, boot := farm.Node("w-1"), farm.Node("w-1").BootID()
	a.signs("reboot", fmt.Sprintf("  kind: node\n  node:\n    machineRef:\n      name: w-1\n      uuid: %s\n    action: reboot\n", worker.UUID()))
	held := "is held by the budget web/keep (0 disruptions allowed, " // how many are healthy a busy machine's kubelets may say late
	a.until("reboot", "it says which budget holds which pod", func(op *statefile.OperationState) bool {
		return op.Phase == statefile.OperationRunning && strings.Contains(op.Message, held)
	})
	require.True(t, w.node(t, "w-1").Unschedulable)

	a.clock.ahead.Store(int64(11 * time.Minute)) // a drain may take ten
	op := a.until("reboot", "it pauses", inPhase(statefile.OperationPaused))
	require.Contains(t, op.FailureReason, held)
	require.Contains(t, op.FailureReason, "web/web-")
	require.Empty(t, worker.Accepted("Reboot"))
	require.Equal(t, boot, worker.BootID())
	harness.Eventually(t, "w-1 takes pods again", func() error {
		if node := w.node(t, "w-1"); node.Unschedulable || node.CordonedBy != "" {
			return fmt.Errorf("cordoned by %q", node.CordonedBy)
		}
		return nil
	})
	require.Len(t, w.podsOn(t, namespace, "w-1"), 2)

	budgets := w.api.PolicyV1().PodDisruptionBudgets(namespace)
	harness.Eventually(t, "the budget has room", func() error {
		budget, err := budgets.Get(t.Context(), "keep", metav1.GetOptions{})
		if err != nil || budget.Status.DisruptionsAllowed > 0 {
			return err
		}
		budget.Spec = policyv1.PodDisruptionBudgetSpec{MaxUnavailable: ptr.To(intstr.FromInt(1)), Selector: budget.Spec.Selector}
		if _, err := budgets.Update(t.Context(), budget, metav1.UpdateOptions{}); err != nil {
			return err
		}
		return errors.New("it isn't counted yet")
	})
	a.signs("resume", fmt.Sprintf("  kind: resume\n  resume:\n    operation: reboot\n    digest: %s\n    pause: %d\n", op.Digest, op.Pause))
	a.until("reboot", "it is completed", inPhase(statefile.OperationCompleted))
	require.Len(t, worker.Accepted("Reboot"), 1)
	require.NotEqual(t, boot, worker.BootID())
	node := w.node(t, "w-1")
	require.False(t, node.Unschedulable)
	require.Equal(t, worker.BootID(), node.BootID)
	w.available(t, namespace, 2)
	require.Empty(t, w.podsOn(t, namespace, "w-1"))
}
