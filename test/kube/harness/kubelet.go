package harness

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
)

// Kubelet plays the kubelet of a node: it registers the node once a boot, renews its Lease, says of each pod that it runs
// and is ready, and lets go of pods that were deleted. It runs nothing.
type Kubelet struct {
	client kubernetes.Interface
	node   corev1.Node
	state  func() kubeletState
	cancel context.CancelFunc
	done   chan struct{}
	// registered is the boot in which it registered last.
	registered string

	mu   sync.Mutex
	held map[string]bool
}

// kubeletState is what becomes of the machine under a kubelet.
type kubeletState struct {
	Running bool
	BootID  string
}

// kubeletPeriod is how often it looks; a real one is told. Its Lease is renewed as often, for 40 s each time.
const kubeletPeriod = 250 * time.Millisecond

// leaseSeconds is how long a Lease lasts, as with a real kubelet.
const leaseSeconds = 40

// StartKubelet registers a node and plays its kubelet until the test ends. change may set what the Node says of itself.
func StartKubelet(t testing.TB, client kubernetes.Interface, name string, change ...func(*corev1.Node)) *Kubelet {
	t.Helper()
	k := newKubelet(client, name, func() kubeletState { return kubeletState{Running: true, BootID: "boot-" + name} })
	for _, one := range change {
		one(&k.node)
	}
	require.NoError(t, k.register(t.Context(), "boot-"+name))
	k.start(t)
	return k
}

func newKubelet(client kubernetes.Interface, name string, state func() kubeletState) *Kubelet {
	k := &Kubelet{client: client, state: state, done: make(chan struct{}), held: map[string]bool{}}
	k.node = corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}}, Status: corev1.NodeStatus{
		NodeInfo:  corev1.NodeSystemInfo{SystemUUID: "uuid-" + name, KubeletVersion: "v1.36.3"},
		Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.5.0.9"}, {Type: corev1.NodeHostName, Address: name}},
		Allocatable: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("8"), corev1.ResourceMemory: resource.MustParse("16Gi"),
			corev1.ResourcePods: resource.MustParse("110")},
	}}
	k.node.Status.Capacity = k.node.Status.Allocatable
	return k
}

func (k *Kubelet) start(t testing.TB) {
	// The library's own log is of no use: what fails here is tried again.
	ctx, cancel := context.WithCancel(klog.NewContext(context.Background(), logr.Discard()))
	k.cancel = cancel
	go k.run(ctx)
	t.Cleanup(k.Stop)
}

// register makes the Node, or says in the one that is there which boot it is.
func (k *Kubelet) register(ctx context.Context, bootID string) error {
	nodes := k.client.CoreV1().Nodes()
	node := k.node.DeepCopy()
	node.Status.NodeInfo.BootID = bootID
	// The status of a Node that is made isn't thrown away, as that of others is.
	_, err := nodes.Create(ctx, node, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		if node, err = nodes.Get(ctx, k.node.Name, metav1.GetOptions{}); err != nil {
			return err
		}
		node.Status.NodeInfo.BootID = bootID
		_, err = nodes.UpdateStatus(ctx, node, metav1.UpdateOptions{})
	}
	if err == nil {
		k.registered = bootID
	}
	return err
}

// Stop ends the kubelet's work, as when its machine goes away: the node and its pods stay as they are.
func (k *Kubelet) Stop() {
	k.cancel()
	<-k.done
}

// Hold keeps a pod of the node from ending when it is deleted, as a process does that doesn't heed its signal.
func (k *Kubelet) Hold(namespace, name string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.held[namespace+"/"+name] = true
}

// Release lets such a pod end.
func (k *Kubelet) Release(namespace, name string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.held, namespace+"/"+name)
}

func (k *Kubelet) holds(pod *corev1.Pod) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.held[pod.Namespace+"/"+pod.Name]
}

// run looks until it is stopped. What fails is tried again at the next look: the API may be away.
func (k *Kubelet) run(ctx context.Context) {
	defer close(k.done)
	tick := time.NewTicker(kubeletPeriod)
	defer tick.Stop()
	for ctx.Err() == nil {
		if state := k.state(); state.Running && (k.registered == state.BootID || k.register(ctx, state.BootID) == nil) {
			k.beat(ctx)
			k.sync(ctx)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

// beat renews the Lease, and says that the node is ready where it doesn't stand so.
func (k *Kubelet) beat(ctx context.Context) {
	now := metav1.NowMicro()
	leases := k.client.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	lease, err := leases.Get(ctx, k.node.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		_, _ = leases.Create(ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: k.node.Name, Namespace: corev1.NamespaceNodeLease},
			Spec: coordinationv1.LeaseSpec{HolderIdentity: &k.node.Name, LeaseDurationSeconds: ptr.To[int32](leaseSeconds), RenewTime: &now}}, metav1.CreateOptions{})
	case err == nil:
		lease.Spec.RenewTime = &now
		_, _ = leases.Update(ctx, lease, metav1.UpdateOptions{})
	}
	node, err := k.client.CoreV1().Nodes().Get(ctx, k.node.Name, metav1.GetOptions{})
	if err != nil || ready(node) {
		return
	}
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady",
		Message: "kubelet is posting ready status", LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now()}}
	_, _ = k.client.CoreV1().Nodes().UpdateStatus(ctx, node, metav1.UpdateOptions{})
}

func ready(node *corev1.Node) bool {
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			return condition.Status == corev1.ConditionTrue
		}
	}
	return false
}

// sync brings the node's pods where they should be.
func (k *Kubelet) sync(ctx context.Context) {
	pods, err := k.client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("spec.nodeName", k.node.Name).String()})
	if err != nil {
		return
	}
	for i := range pods.Items {
		pod := &pods.Items[i]
		switch {
		case pod.DeletionTimestamp != nil && !k.holds(pod):
			_ = k.client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{
				GracePeriodSeconds: ptr.To[int64](0), Preconditions: &metav1.Preconditions{UID: &pod.UID}})
		case pod.DeletionTimestamp == nil && pod.Status.Phase == corev1.PodPending:
			pod.Status.Phase, pod.Status.StartTime = corev1.PodRunning, ptr.To(metav1.Now())
			for _, kind := range []corev1.PodConditionType{corev1.PodInitialized, corev1.PodReady, corev1.ContainersReady} {
				pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: kind, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()})
			}
			_, _ = k.client.CoreV1().Pods(pod.Namespace).UpdateStatus(ctx, pod, metav1.UpdateOptions{})
		}
	}
}
