package kubetest

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"ichor.maesh.dev/kube"
	"ichor.maesh.dev/talos"
	"ichor.maesh.dev/test/kube/harness"
)

// world is a Kubernetes with the authorities of a generated Talos secrets bundle.
type world struct {
	bundle  *talos.Bundle
	secrets *harness.Secrets
	etcd    harness.Etcd
	server  *harness.APIServer
	// servers are the addresses that a client of this world is given.
	servers []string
	// api is the test's own client.
	api kubernetes.Interface
}

// withSecrets is a world with secrets and nothing else.
func withSecrets(t *testing.T) *world {
	t.Helper()
	harness.Servers(t)
	bundle, err := talos.GenerateBundle("v1.13")
	require.NoError(t, err)
	text, err := bundle.Marshal()
	require.NoError(t, err)
	return &world{bundle: bundle, secrets: harness.ReadSecrets(t, text)}
}

// newWorld starts an etcd and an API server at an address.
func newWorld(t *testing.T, address string) *world {
	t.Helper()
	w := withSecrets(t)
	w.etcd = harness.StartEtcd(t, w.secrets, address)
	w.server = harness.StartAPIServer(t, w.secrets, address, w.etcd)
	w.servers = []string{w.server.Address()}
	w.api = w.secrets.Client(t, w.server.URL())
	return w
}

// client makes a client as the agent has it: its certificate is minted from the bundle for each connection. It knows the
// world's API servers unless others are given.
func (w *world) client(t *testing.T, servers ...string) *kube.Client {
	t.Helper()
	if len(servers) == 0 {
		servers = w.servers
	}
	return clientOf(t, w.bundle, w.bundle.KubernetesCA(), time.Now, servers...)
}

// clientOf makes a client with certificates of a bundle, minted at the time that a clock shows, for servers of an authority.
func clientOf(t *testing.T, bundle *talos.Bundle, authority []byte, clock func() time.Time, servers ...string) *kube.Client {
	t.Helper()
	client, err := kube.New(kube.Options{Servers: servers, CA: authority, Timeout: time.Minute,
		Certificate: func() (tls.Certificate, error) {
			return bundle.MintKubernetes("ichor", []string{talos.GroupMasters}, 10*time.Minute, clock())
		}})
	require.NoError(t, err)
	return client
}

// namespace makes one, and waits until pods can be made in it.
func (w *world) namespace(t *testing.T, name string) string {
	t.Helper()
	_, err := w.api.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	require.NoError(t, err)
	harness.Eventually(t, "the namespace's service account", func() error {
		_, err := w.api.CoreV1().ServiceAccounts(name).Get(t.Context(), "default", metav1.GetOptions{})
		return err
	})
	return name
}

// plainNode makes a Node without a kubelet.
func (w *world) plainNode(t *testing.T, name string) kube.Node {
	t.Helper()
	_, err := w.api.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	require.NoError(t, err)
	return w.node(t, name)
}

// node gives a node as the client sees it.
func (w *world) node(t *testing.T, name string) kube.Node {
	t.Helper()
	nodes, err := w.client(t).Nodes(t.Context())
	require.NoError(t, err)
	for _, node := range nodes {
		if node.Name == name {
			return node
		}
	}
	require.Fail(t, "no node "+name)
	return kube.Node{}
}

// inPool starts a node called pool-n, whose label pool is that, and waits until pods can be placed on it.
func (w *world) inPool(t *testing.T, pool string, n int) *harness.Kubelet {
	t.Helper()
	name := fmt.Sprintf("%s-%d", pool, n)
	kubelet := harness.StartKubelet(t, w.api, name, func(node *corev1.Node) { node.Labels["pool"] = pool })
	harness.Eventually(t, name+" takes pods", func() error {
		object, err := w.api.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
		if err == nil && len(object.Spec.Taints) > 0 {
			err = fmt.Errorf("taints %v", object.Spec.Taints)
		}
		return err
	})
	return kubelet
}

// podsOf is a template of pods for a pool of nodes.
func podsOf(pool string) corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": pool}},
		Spec: corev1.PodSpec{
			NodeSelector: map[string]string{"pool": pool}, TerminationGracePeriodSeconds: ptr.To[int64](30),
			Containers: []corev1.Container{{Name: "main", Image: "example.com/none:1"}},
			Volumes:    []corev1.Volume{{Name: "scratch", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}},
		},
	}
}

// deployment starts one for a pool of nodes and waits until its pods are ready.
func (w *world) deployment(t *testing.T, namespace, pool string, replicas int32) {
	t.Helper()
	_, err := w.api.AppsV1().Deployments(namespace).Create(t.Context(), &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: appsv1.DeploymentSpec{
		Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": pool}}, Template: podsOf(pool),
	}}, metav1.CreateOptions{})
	require.NoError(t, err)
	w.available(t, namespace, replicas)
}

func (w *world) available(t *testing.T, namespace string, replicas int32) {
	t.Helper()
	harness.Eventually(t, "the deployment is available", func() error {
		found, err := w.api.AppsV1().Deployments(namespace).Get(t.Context(), "web", metav1.GetOptions{})
		if err == nil && found.Status.AvailableReplicas != replicas {
			err = fmt.Errorf("%d of %d are", found.Status.AvailableReplicas, replicas)
		}
		return err
	})
}

// newDaemonSet starts one of pods like the template, and waits for nothing.
func (w *world) newDaemonSet(t *testing.T, namespace, name string, template corev1.PodTemplateSpec) {
	t.Helper()
	_, err := w.api.AppsV1().DaemonSets(namespace).Create(t.Context(), &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: appsv1.DaemonSetSpec{
		Selector: &metav1.LabelSelector{MatchLabels: template.Labels}, Template: template,
	}}, metav1.CreateOptions{})
	require.NoError(t, err)
}

// budget lets so many of a pool's pods be unavailable, and waits until Kubernetes has counted them.
func (w *world) budget(t *testing.T, namespace, pool string, unavailable int, healthy int32) {
	t.Helper()
	w.newBudget(t, namespace, "keep", pool, unavailable)
	harness.Eventually(t, "the budget is counted", func() error {
		found, err := w.api.PolicyV1().PodDisruptionBudgets(namespace).Get(t.Context(), "keep", metav1.GetOptions{})
		if err == nil && (found.Status.ObservedGeneration != found.Generation || found.Status.CurrentHealthy != healthy) {
			err = fmt.Errorf("%+v", found.Status)
		}
		return err
	})
}

func (w *world) newBudget(t *testing.T, namespace, name, pool string, unavailable int) {
	t.Helper()
	_, err := w.api.PolicyV1().PodDisruptionBudgets(namespace).Create(t.Context(), &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: policyv1.PodDisruptionBudgetSpec{
		MaxUnavailable: ptr.To(intstr.FromInt(unavailable)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": pool}},
	}}, metav1.CreateOptions{})
	require.NoError(t, err)
}

// podsOn gives the pods of a namespace that are on a node.
func (w *world) podsOn(t *testing.T, namespace, node string) []corev1.Pod {
	t.Helper()
	pods, err := w.api.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{FieldSelector: "spec.nodeName=" + node})
	require.NoError(t, err)
	return pods.Items
}

// cordon cordons a node and gives it as it is then.
func (w *world) cordon(t *testing.T, name string) kube.Node {
	t.Helper()
	require.NoError(t, w.client(t).Cordon(t.Context(), w.node(t, name), "op-1"))
	return w.node(t, name)
}

// drain makes rounds until the node is drained; each round is shown to look, which may be nil.
func (w *world) drain(t *testing.T, node kube.Node, options kube.EvictOptions, look func(kube.Drain)) {
	t.Helper()
	client := w.client(t)
	harness.Eventually(t, node.Name+" is drained", func() error {
		round, err := client.Evict(t.Context(), node, options)
		if err != nil {
			return err
		}
		if look != nil {
			look(round)
		}
		if !round.Done() {
			return errors.New(round.Sentence())
		}
		return nil
	})
}

// within bounds one call of a test.
func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}
