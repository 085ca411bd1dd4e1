package talossim_test

import (
	"bytes"
	"context"
	stdx509 "crypto/x509"
	"errors"
	"fmt"
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/siderolabs/crypto/x509"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/resources/k8s"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/kubectl/pkg/drain"

	"ichor.maesh.dev/internal/talossim"
	"ichor.maesh.dev/internal/talossim/kubeapi"
)

// kubernetes is an administrator's client of a control plane's API server.
func (b *bench) kubernetes(n *talossim.Node) kubernetes.Interface {
	b.t.Helper()
	certs := b.input.Options.SecretsBundle.Certs.K8s
	ca, err := x509.NewCertificateAuthorityFromCertificateAndKey(certs)
	require.NoError(b.t, err)
	pair, err := x509.NewKeyPair(ca, x509.CommonName("admin"), x509.Organization("system:masters"), x509.NotAfter(time.Now().Add(time.Hour)),
		x509.ExtKeyUsage([]stdx509.ExtKeyUsage{stdx509.ExtKeyUsageClientAuth}))
	require.NoError(b.t, err)
	pem := x509.NewCertificateAndKeyFromKeyPair(pair)
	set, err := kubernetes.NewForConfig(&rest.Config{
		Host: "https://" + net.JoinHostPort(n.Address(), strconv.Itoa(kubeapi.Port)), QPS: -1, Timeout: 10 * time.Second,
		TLSClientConfig: rest.TLSClientConfig{CAData: certs.Crt, CertData: pem.Crt, KeyData: pem.Key},
	})
	require.NoError(b.t, err)
	return set
}

// nodename is what Kubernetes calls a machine.
func (b *bench) nodename(n *talossim.Node) string {
	b.t.Helper()
	var name string
	b.eventually(n.Name()+" has a name", func(ctx context.Context) error {
		r, err := safe.StateGetByID[*k8s.Nodename](ctx, b.admin(n).COSI, k8s.NodenameID)
		if err == nil {
			name = r.TypedSpec().Nodename
		}
		return err
	})
	return name
}

func readyCondition(node *corev1.Node) corev1.ConditionStatus {
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status
		}
	}
	return ""
}

// nodeReady waits until a node's Ready condition has a value.
func (b *bench) nodeReady(c kubernetes.Interface, name string, want corev1.ConditionStatus) *corev1.Node {
	b.t.Helper()
	var node *corev1.Node
	b.eventually(fmt.Sprintf("node %s is Ready=%s", name, want), func(ctx context.Context) (err error) {
		if node, err = c.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{}); err != nil {
			return err
		}
		if got := readyCondition(node); got != want {
			return fmt.Errorf("it is %q", got)
		}
		return nil
	})
	return node
}

func (b *bench) runPod(c kubernetes.Interface, name, node string) {
	b.t.Helper()
	controller, grace := true, int64(5)
	_, err := c.CoreV1().Pods(metav1.NamespaceDefault).Create(b.t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Labels: map[string]string{"app": "web"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "example.com/v1", Kind: "Web", Name: "web", UID: "1", Controller: &controller}},
		},
		Spec: corev1.PodSpec{NodeName: node, TerminationGracePeriodSeconds: &grace, Containers: []corev1.Container{{Name: "main", Image: "none"}}},
	}, metav1.CreateOptions{})
	require.NoError(b.t, err)
	b.eventually(name+" runs", func(ctx context.Context) error {
		pod, err := c.CoreV1().Pods(metav1.NamespaceDefault).Get(ctx, name, metav1.GetOptions{})
		if err == nil && pod.Status.Phase != corev1.PodRunning {
			err = errors.New(string(pod.Status.Phase))
		}
		return err
	})
}

func TestANodeIsDrainedByKubectlsOwnCode(t *testing.T) {
	b := newBench(t, talossim.Options{First: "127.0.76.101", ControlPlanes: 1, Workers: 1})
	cp, worker := b.farm.Nodes()[0], b.farm.Nodes()[1]
	b.configure(cp, worker)
	b.bootstrap(cp)
	b.ready(cp, worker)
	c := b.kubernetes(cp)
	name := b.nodename(worker)
	node := b.nodeReady(c, name, corev1.ConditionTrue)
	require.Equal(t, worker.BootID(), node.Status.NodeInfo.BootID)
	require.Equal(t, worker.UUID(), node.Status.NodeInfo.SystemUUID)
	control := b.nodeReady(c, b.nodename(cp), corev1.ConditionTrue)
	require.Contains(t, control.Labels, "node-role.kubernetes.io/control-plane")
	require.Len(t, control.Spec.Taints, 1)

	b.runPod(c, "web-1", name)
	one := intstr.FromInt32(1)
	budgets := c.PolicyV1().PodDisruptionBudgets(metav1.NamespaceDefault)
	_, err := budgets.Create(t.Context(), &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec:       policyv1.PodDisruptionBudgetSpec{MinAvailable: &one, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	var out bytes.Buffer
	helper := &drain.Helper{
		Ctx: t.Context(), Client: c, GracePeriodSeconds: -1, IgnoreAllDaemonSets: true, Out: &out, ErrOut: &out,
		Timeout: 2 * time.Second, EvictErrorRetryDelay: 100 * time.Millisecond,
	}
	require.NoError(t, drain.RunCordonOrUncordon(helper, node, true))
	err = drain.RunNodeDrain(helper, name)
	require.ErrorContains(t, err, "global timeout reached")
	require.Contains(t, out.String(), "Cannot evict pod as it would violate the pod's disruption budget")

	require.NoError(t, budgets.Delete(t.Context(), "web", metav1.DeleteOptions{}))
	helper.Timeout = patience
	require.NoError(t, drain.RunNodeDrain(helper, name))
	_, err = c.CoreV1().Pods(metav1.NamespaceDefault).Get(t.Context(), "web-1", metav1.GetOptions{})
	require.True(t, apierrors.IsNotFound(err), "%v", err)
	b.eventually("Talos shows the cordon", func(ctx context.Context) error {
		r, err := safe.StateGetByID[*k8s.NodeStatus](ctx, b.admin(worker).COSI, name)
		if err == nil && !r.TypedSpec().Unschedulable {
			err = errors.New("schedulable")
		}
		return err
	})

	b.deletedNodeStaysDeleted(c, worker, name)
}

// deletedNodeStaysDeleted: a kubelet registers its node when it starts, and not again.
func (b *bench) deletedNodeStaysDeleted(c kubernetes.Interface, worker *talossim.Node, name string) {
	b.t.Helper()
	before, err := c.CoreV1().Nodes().Get(b.t.Context(), name, metav1.GetOptions{})
	require.NoError(b.t, err)
	require.NoError(b.t, c.CoreV1().Nodes().Delete(b.t.Context(), name, metav1.DeleteOptions{}))
	b.eventually("Talos no longer shows the node", func(ctx context.Context) error {
		if r, err := safe.StateGetByID[*k8s.NodeStatus](ctx, b.admin(worker).COSI, name); err == nil {
			return fmt.Errorf("it shows %v", r.TypedSpec())
		}
		return nil
	})
	_, err = c.CoreV1().Nodes().Get(b.t.Context(), name, metav1.GetOptions{})
	require.True(b.t, apierrors.IsNotFound(err), "the running kubelet has looked and made none: %v", err)
	require.NoError(b.t, worker.PowerCycle())
	again := b.nodeReady(c, name, corev1.ConditionTrue)
	require.NotEqual(b.t, before.UID, again.UID)
	require.False(b.t, again.Spec.Unschedulable)
}

func TestTheKubernetesAPIGoesWithEtcdsQuorumAndComesBack(t *testing.T) {
	b := newBench(t, talossim.Options{First: "127.0.76.111", ControlPlanes: 3, Workers: 1, LooseMembership: true, TimeScale: 100})
	nodes := b.farm.Nodes()
	b.configure(nodes...)
	b.bootstrap(nodes[0])
	b.voters(nodes[0], 3)
	b.ready(nodes...)
	worker := b.nodename(nodes[3])
	for _, n := range nodes[:3] {
		b.nodeReady(b.kubernetes(n), worker, corev1.ConditionTrue)
	}
	first := b.kubernetes(nodes[0])
	uid := b.nodeReady(first, worker, corev1.ConditionTrue).UID
	b.runPod(first, "web-1", worker)

	require.NoError(t, nodes[3].PowerOff())
	b.nodeReady(first, worker, corev1.ConditionUnknown)
	require.NoError(t, nodes[1].PowerOff())
	require.NoError(t, nodes[2].PowerOff())
	b.eventually("the API is gone", func(ctx context.Context) error {
		if _, err := first.CoreV1().Nodes().List(ctx, metav1.ListOptions{}); err == nil {
			return errors.New("it answers")
		}
		return nil
	})
	nodes[1].PowerOn()
	nodes[2].PowerOn()
	node := b.nodeReady(b.kubernetes(nodes[1]), worker, corev1.ConditionUnknown)
	require.Equal(t, uid, node.UID, "objects are in etcd")
	nodes[3].PowerOn()
	node = b.nodeReady(b.kubernetes(nodes[2]), worker, corev1.ConditionTrue)
	require.Equal(t, uid, node.UID)
	require.Equal(t, nodes[3].BootID(), node.Status.NodeInfo.BootID)
}

func TestAShutdownEvictsThePodsAndTheNextBootLiftsItsCordon(t *testing.T) {
	b := newBench(t, talossim.Options{First: "127.0.76.121", ControlPlanes: 1, Workers: 1})
	cp, worker := b.farm.Nodes()[0], b.farm.Nodes()[1]
	b.configure(cp, worker)
	b.bootstrap(cp)
	b.ready(cp, worker)
	c := b.kubernetes(cp)
	name := b.nodename(worker)
	b.runPod(c, "web-1", name)
	_, err := b.admin(worker).MachineClient.Shutdown(t.Context(), &machineapi.ShutdownRequest{})
	require.NoError(t, err)
	b.eventually("it is off", func(context.Context) error {
		if worker.Powered() {
			return errors.New("on")
		}
		return nil
	})
	_, err = c.CoreV1().Pods(metav1.NamespaceDefault).Get(t.Context(), "web-1", metav1.GetOptions{})
	require.True(t, apierrors.IsNotFound(err), "%v", err)
	node := b.nodeReady(c, name, corev1.ConditionUnknown)
	require.True(t, node.Spec.Unschedulable)
	worker.PowerOn()
	b.eventually("it is schedulable again", func(ctx context.Context) error {
		node, err := c.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if err == nil && (node.Spec.Unschedulable || readyCondition(node) != corev1.ConditionTrue) {
			err = errors.New("not yet")
		}
		return err
	})
}

func TestAFarmSaysWhoseKubernetesPortIsTaken(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.76.131:6443")
	require.NoError(t, err)
	defer l.Close() //nolint:errcheck // only held
	_, err = talossim.Start(t.Context(), talossim.Options{Dir: t.TempDir(), First: "127.0.76.131", ControlPlanes: 1})
	require.ErrorContains(t, err, "cp-1 can't serve its Kubernetes API, for the port is in use")
}
