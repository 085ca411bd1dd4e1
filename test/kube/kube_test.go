package kubetest

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"ichor.maesh.dev/kube"
	"ichor.maesh.dev/talos"
	"ichor.maesh.dev/test/kube/harness"
)

// TestKubernetes shares one API server with controllers among tests that don't take it away.
func TestKubernetes(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "127.0.75.1")
	harness.StartControllers(t, w.secrets, w.server.URL())
	for _, one := range []struct {
		name string
		test func(*testing.T, *world)
	}{
		{"a certificate minted from the bundle is accepted, another's is not", credentials},
		{"the servers are of the version that is named", version},
		{"what a node says is what its kubelet said", whatANodeSays},
		{"a node that somebody else cordoned stays cordoned", cordonOfSomebodyElse},
		{"of two owners one has the cordon", twoOwners},
		{"a node that changes all the time is cordoned and uncordoned, and loses nothing", busyNode},
		{"a Node made anew under the name is left alone", madeAnew},
		{"a deleted Node is gone, another of its name stays", deletion},
		{"a budget without a disruption left holds the drain and is named", stuck},
		{"a drain keeps to the budget and leaves DaemonSets' and mirror pods", drained},
		{"pods without a controller stop a drain before it begins", unmanaged},
		{"two budgets over one pod are both named", twoBudgets},
		{"a budget that Kubernetes can't count says why", uncounted},
		{"a webhook that fails is named, and holds nobody else", failingWebhook},
		{"a StatefulSet's pod that was made anew elsewhere is not evicted", movedPod},
		{"a pod that doesn't end is waited for and named", slowPod},
		{"a drain waits for volumes to be detached", volumes},
		{"a pod of kube-proxy is deleted by its UID and made anew", replacedAgents},
	} {
		t.Run(one.name, func(t *testing.T) {
			t.Parallel()
			one.test(t, w)
		})
	}
}

func credentials(t *testing.T, w *world) {
	client := w.client(t)
	require.NoError(t, client.Ready(within(t)))
	_, err := client.Nodes(within(t))
	require.NoError(t, err)

	other, err := talos.GenerateBundle("v1.13")
	require.NoError(t, err)
	_, err = clientOf(t, other, w.bundle.KubernetesCA(), time.Now, w.server.Address()).Nodes(within(t))
	require.ErrorContains(t, err, "the API server doesn't accept the certificate that Ichor minted")
	require.NotErrorIs(t, err, kube.ErrUnavailable)

	_, err = clientOf(t, w.bundle, w.bundle.KubernetesCA(), func() time.Time { return time.Now().Add(-time.Hour) }, w.server.Address()).Nodes(within(t))
	require.ErrorContains(t, err, "doesn't accept the certificate", "one that has ended is not accepted")

	_, err = clientOf(t, w.bundle, other.KubernetesCA(), time.Now, w.server.Address()).Nodes(within(t))
	require.ErrorIs(t, err, kube.ErrUnavailable, "a server of another cluster's authority is none of ours")
	require.ErrorContains(t, err, "shows a certificate of another authority")
}

func version(t *testing.T, w *world) {
	module, err := os.ReadFile("servers/go.mod")
	require.NoError(t, err)
	said, err := w.api.Discovery().ServerVersion()
	require.NoError(t, err)
	require.Contains(t, string(module), "k8s.io/kubernetes "+said.GitVersion+"\n", "the Makefile and test/kube/servers/go.mod name the same version")
}

func whatANodeSays(t *testing.T, w *world) {
	harness.StartKubelet(t, w.api, "says-1", func(n *corev1.Node) { n.Labels["node-role.kubernetes.io/control-plane"] = "" })
	harness.Eventually(t, "the node is ready", func() error {
		if got := w.node(t, "says-1"); got.Ready != kube.Yes {
			return errors.New(got.ReadyReason)
		}
		return nil
	})
	node := w.node(t, "says-1")
	require.Equal(t, "boot-says-1", node.BootID)
	require.Equal(t, "uuid-says-1", node.SystemUUID)
	require.Equal(t, []string{"10.5.0.9", "says-1"}, node.Addresses)
	require.True(t, node.ControlPlane)
	require.NotEmpty(t, node.UID)
	require.False(t, node.Heartbeat.IsZero())
	harness.Eventually(t, "the heartbeat goes on with the Lease", func() error {
		if now := w.node(t, "says-1").Heartbeat; !now.After(node.Heartbeat) {
			return fmt.Errorf("it stands at %s", now)
		}
		return nil
	})

	renewed := metav1.NewMicroTime(time.Date(2026, 11, 29, 10, 0, 0, 123456000, time.UTC))
	w.plainNode(t, "says-2")
	_, err := w.api.CoordinationV1().Leases(corev1.NamespaceNodeLease).Create(t.Context(), &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: "says-2"}, Spec: coordinationv1.LeaseSpec{RenewTime: &renewed}}, metav1.CreateOptions{})
	require.NoError(t, err)
	node = w.node(t, "says-2")
	require.True(t, renewed.Time.Equal(node.Heartbeat), node.Heartbeat)
	require.NotEqual(t, kube.Yes, node.Ready)
}

func cordonOfSomebodyElse(t *testing.T, w *world) {
	client := w.client(t)
	node := w.plainNode(t, "else-1")
	_, err := w.api.CoreV1().Nodes().Patch(t.Context(), node.Name, types.MergePatchType, []byte(`{"spec":{"unschedulable":true}}`), metav1.PatchOptions{})
	require.NoError(t, err)

	var foreign *kube.CordonedError
	require.ErrorAs(t, client.Cordon(within(t), node, "op-1"), &foreign)
	require.Empty(t, foreign.By)
	lifted, err := client.Uncordon(within(t), node, "op-1")
	require.NoError(t, err)
	require.False(t, lifted)
	require.True(t, w.node(t, node.Name).Unschedulable)
}

func twoOwners(t *testing.T, w *world) {
	client := w.client(t)
	node := w.plainNode(t, "two-1")
	errs := make([]error, 8)
	var wg sync.WaitGroup
	for n := range errs {
		wg.Go(func() { errs[n] = client.Cordon(within(t), node, fmt.Sprintf("op-%d", n)) })
	}
	wg.Wait()
	holder := w.node(t, node.Name).CordonedBy
	require.NotEmpty(t, holder)
	for n, err := range errs {
		if holder == fmt.Sprintf("op-%d", n) {
			require.NoError(t, err)
			continue
		}
		var foreign *kube.CordonedError
		require.ErrorAs(t, err, &foreign)
		require.Equal(t, holder, foreign.By)
		lifted, err := client.Uncordon(within(t), node, fmt.Sprintf("op-%d", n))
		require.NoError(t, err)
		require.False(t, lifted)
	}
	lifted, err := client.Uncordon(within(t), node, holder)
	require.NoError(t, err)
	require.True(t, lifted)
	after := w.node(t, node.Name)
	require.False(t, after.Unschedulable)
	require.Empty(t, after.CordonedBy)
}

// busyNode has somebody write to the node between the client's look and its first patch.
func busyNode(t *testing.T, w *world) {
	node := w.plainNode(t, "busy-1")
	patches := 0
	between := w.between(t, func(r *request) {
		if r.Method != "PATCH" {
			return
		}
		if patches++; patches%2 == 0 {
			return
		}
		object, err := w.api.CoreV1().Nodes().Get(t.Context(), node.Name, metav1.GetOptions{})
		require.NoError(t, err)
		metav1.SetMetaDataLabel(&object.ObjectMeta, fmt.Sprintf("write-%d", patches), "x")
		_, err = w.api.CoreV1().Nodes().Update(t.Context(), object, metav1.UpdateOptions{})
		require.NoError(t, err)
	})
	client := w.client(t, between.address)
	require.NoError(t, client.Cordon(within(t), node, "op-1"))
	require.Equal(t, 1, between.refused("PATCH", 409), "a patch that was decided on an older version is refused")
	require.True(t, w.node(t, node.Name).Unschedulable)
	lifted, err := client.Uncordon(within(t), node, "op-1")
	require.NoError(t, err)
	require.True(t, lifted)
	require.Equal(t, 2, between.refused("PATCH", 409))
	require.False(t, w.node(t, node.Name).Unschedulable)
	object, err := w.api.CoreV1().Nodes().Get(t.Context(), node.Name, metav1.GetOptions{})
	require.NoError(t, err)
	require.Contains(t, object.Labels, "write-1")
	require.Contains(t, object.Labels, "write-3")
}

// madeAnew has the node deleted and made anew between the client's look and its write.
func madeAnew(t *testing.T, w *world) {
	for _, one := range []struct {
		method string
		call   func(*kube.Client, kube.Node) error
	}{
		{"PATCH", func(c *kube.Client, n kube.Node) error { return c.Cordon(within(t), n, "op-1") }},
		{"DELETE", func(c *kube.Client, n kube.Node) error { return c.DeleteNode(within(t), n.Name, n.UID) }},
	} {
		node := w.plainNode(t, "anew-"+map[string]string{"PATCH": "1", "DELETE": "2"}[one.method])
		var once sync.Once
		between := w.between(t, func(r *request) {
			if r.Method == one.method {
				once.Do(func() {
					require.NoError(t, w.api.CoreV1().Nodes().Delete(t.Context(), node.Name, metav1.DeleteOptions{}))
					w.plainNode(t, node.Name)
				})
			}
		})
		err := one.call(w.client(t, between.address), node)
		require.ErrorIs(t, err, kube.ErrChanged)
		require.ErrorContains(t, err, "was made anew")
		require.Equal(t, 1, between.refused(one.method, 409), "the API server itself refuses what was meant for the old one")
		after := w.node(t, node.Name)
		require.NotEqual(t, node.UID, after.UID)
		require.False(t, after.Unschedulable)
	}
}

func deletion(t *testing.T, w *world) {
	client := w.client(t)
	node := w.plainNode(t, "gone-1")
	require.ErrorIs(t, client.DeleteNode(within(t), node.Name, "0000"), kube.ErrChanged)
	require.Equal(t, node.UID, w.node(t, node.Name).UID)
	require.NoError(t, client.DeleteNode(within(t), node.Name, node.UID))
	_, err := w.api.CoreV1().Nodes().Get(t.Context(), node.Name, metav1.GetOptions{})
	require.True(t, apierrors.IsNotFound(err), err)
	require.NoError(t, client.DeleteNode(within(t), node.Name, node.UID))
	require.ErrorIs(t, client.Cordon(within(t), node, "op-1"), kube.ErrNotFound)
}
