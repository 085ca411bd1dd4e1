package machined

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/resources/k8s"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// The kubelet's times (Kubernetes: pkg/kubelet/apis/config/v1beta1/defaults.go), and what they aren't shortened below.
const (
	leaseDuration = 40 * time.Second
	leasePeriod   = leaseDuration / 4
	reportPeriod  = 5 * time.Minute
	leaseFloor    = 500 * time.Millisecond
	reportFloor   = 10 * time.Second
	// nodeReadyDelay is from the kubelet's start until it finds everything in order.
	nodeReadyDelay = 3 * time.Second
	// settlePeriod is the pause while the node isn't what it is to be yet.
	settlePeriod = time.Second
	// kubeAttempt bounds one call to the API server; kubeAttemptFloor is what a busy host needs for it. A round has several.
	kubeAttempt      = 10 * time.Second
	kubeAttemptFloor = 8 * time.Second
)

// kubelet is what the machine does to its node in Kubernetes, as its kubelet and as Talos: it registers the node, beats, says that it is
// ready, runs and ends its pods, and shows in a resource what the API says about it.
type kubelet struct {
	m *Machine

	mu     sync.Mutex
	client *kubeClient
	next   int

	// Only run uses the rest.
	up         time.Time // since when the kubelet is healthy; zero: it isn't
	registered bool      // in this run of the kubelet, as the real one registers its node at its start only
	reported   time.Time // the last report of the node's status in this run
	settled    bool      // the node was reported ready in this run
	booted     bool      // what Talos does once a boot is done
	lease      *coordinationv1.Lease
	ending     map[types.UID]time.Time

	inOrder atomic.Bool
}

// KubeletUp says whether the kubelet runs and has found everything in order.
func (m *Machine) KubeletUp() bool { return m.kubelet.inOrder.Load() }

func newKubelet(m *Machine) *kubelet {
	return &kubelet{m: m, ending: map[types.UID]time.Time{}}
}

func (k *kubelet) run(ctx context.Context) {
	defer func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.dropLocked()
	}()
	m := k.m
	settling := max(m.pace.Of(settlePeriod), askFloor)
	beating := max(m.pace.Of(leasePeriod), leaseFloor)
	pause := settling
	for m.pace.wait(ctx, pause) == nil {
		pause = settling
		k.follow()
		p := m.conf.current()
		if p == nil || p.Cluster() == nil || p.Machine() == nil || m.hostname() == "" || p.Machine().Kubelet().SkipNodeRegistration() {
			continue
		}
		if err := k.round(ctx, p); err != nil {
			m.log.Debug("the kubelet and the Kubernetes API", "err", err)
			continue
		}
		if k.settled || m.cfg.ForeignKubernetes {
			pause = beating
		}
	}
}

// follow takes note of the kubelet's service, which may have been restarted.
func (k *kubelet) follow() {
	now := k.m.pace.Clock.Now()
	switch {
	case !k.m.services.isUp("kubelet"):
		k.up = time.Time{}
	case k.up.IsZero():
		k.up, k.registered, k.reported, k.settled, k.lease = now, false, time.Time{}, false, nil
	}
	k.inOrder.Store(!k.up.IsZero() && now.Sub(k.up) >= k.m.pace.Of(nodeReadyDelay))
}

// round is everything that there is to do at the API, once.
func (k *kubelet) round(ctx context.Context, p config.Provider) error {
	if k.up.IsZero() && !k.certified() {
		return nil // nothing could have connected yet
	}
	ctx, cancel := k.m.pace.after(ctx, 5*k.m.kubeCallLimit())
	defer cancel()
	c, err := k.connect(ctx, p)
	if err != nil {
		return err
	}
	err = k.work(ctx, c, p)
	k.failed(c, err)
	return err
}

// kubeCallLimit bounds a call to the API server.
func (m *Machine) kubeCallLimit() time.Duration { return max(m.pace.Of(kubeAttempt), kubeAttemptFloor) }

// reports says whether the kubelet runs and its reports are this machine's own.
func (k *kubelet) reports() bool { return !k.up.IsZero() && !k.m.cfg.ForeignKubernetes }

func (k *kubelet) work(ctx context.Context, c *kubeClient, p config.Provider) error {
	name := k.m.hostname()
	node, err := c.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err) && k.reports() && !k.registered:
		if node, err = c.CoreV1().Nodes().Create(ctx, k.newNode(p), metav1.CreateOptions{}); err != nil {
			return err
		}
	case apierrors.IsNotFound(err):
		k.m.drop(k8s.NewNodeStatus(k8s.NamespaceName, name))
		return nil
	case err != nil:
		return err
	}
	if k.reports() {
		k.registered = true
		if node, err = k.maintain(ctx, c, p, node); err != nil {
			return err
		}
	}
	k.show(node)
	return nil
}

// maintain is a running kubelet's share: status, lease, what Talos wants on the node, and pods.
func (k *kubelet) maintain(ctx context.Context, c *kubeClient, p config.Provider, node *corev1.Node) (*corev1.Node, error) {
	if err := k.beat(ctx, c, node); err != nil {
		return nil, err
	}
	node, err := k.report(ctx, c, p, node)
	if err != nil {
		return nil, err
	}
	if wanted, changed := k.wanted(p, node); changed {
		if node, err = c.CoreV1().Nodes().Update(ctx, wanted, metav1.UpdateOptions{}); err != nil {
			return nil, err
		}
	}
	k.booted = k.booted || k.settled
	return node, k.pods(ctx, c, p, node)
}

// beat renews the node's lease, or makes it.
func (k *kubelet) beat(ctx context.Context, c *kubeClient, node *corev1.Node) error {
	leases := c.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	var err error
	if k.lease == nil {
		if k.lease, err = leases.Get(ctx, node.Name, metav1.GetOptions{}); apierrors.IsNotFound(err) {
			k.lease, err = leases.Create(ctx, k.newLease(node), metav1.CreateOptions{})
			return err
		}
		if err != nil {
			k.lease = nil
			return err
		}
	}
	next := k.newLease(node)
	next.ResourceVersion = k.lease.ResourceVersion
	if k.lease, err = leases.Update(ctx, next, metav1.UpdateOptions{}); err != nil {
		k.lease = nil // read again next time
	}
	return err
}

func (k *kubelet) newLease(node *corev1.Node) *coordinationv1.Lease {
	holder, seconds := node.Name, int32(leaseDuration/time.Second)
	now := metav1.NewMicroTime(k.m.pace.Clock.Now())
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Name: node.Name, Namespace: corev1.NamespaceNodeLease,
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}},
		},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: &holder, LeaseDurationSeconds: &seconds, RenewTime: &now},
	}
}

// report writes the node's status at the kubelet's start, when it changes, and now and then.
func (k *kubelet) report(ctx context.Context, c *kubeClient, p config.Provider, node *corev1.Node) (*corev1.Node, error) {
	m := k.m
	now := m.pace.Clock.Now()
	ready := k.inOrder.Load()
	next := k.withStatus(p, node, ready)
	again := now.Sub(k.reported) >= max(m.pace.Of(reportPeriod), reportFloor)
	if !again && isReady(node) == ready && node.Status.NodeInfo == next.Status.NodeInfo {
		k.settled = ready
		return node, nil
	}
	written, err := c.CoreV1().Nodes().UpdateStatus(ctx, next, metav1.UpdateOptions{})
	if err != nil {
		return nil, err
	}
	k.reported, k.settled = now, ready
	return written, nil
}

// show is Talos's view of the own node.
func (k *kubelet) show(node *corev1.Node) {
	r := k8s.NewNodeStatus(k8s.NamespaceName, node.Name)
	spec := r.TypedSpec()
	spec.Nodename, spec.NodeReady, spec.Unschedulable = node.Name, isReady(node), node.Spec.Unschedulable
	spec.Labels, spec.Annotations = node.Labels, node.Annotations
	k.m.put(r)
}

// nodes are all of the cluster.
func (k *kubelet) nodes(ctx context.Context) ([]corev1.Node, error) {
	var nodes []corev1.Node
	err := k.ask(ctx, func(c *kubeClient) error {
		list, err := c.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err == nil {
			nodes = list.Items
		}
		return err
	})
	return nodes, err
}

// ask does something at any API server that this machine reaches.
func (k *kubelet) ask(ctx context.Context, f func(*kubeClient) error) error {
	p := k.m.conf.current()
	if p == nil || p.Cluster() == nil {
		return errors.New("the machine has no cluster")
	}
	c, err := k.connect(ctx, p)
	if err != nil {
		return err
	}
	err = f(c)
	k.failed(c, err)
	return err
}
