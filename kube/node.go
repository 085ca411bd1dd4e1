package kube

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// cordonAnnotation stands on a node that Ichor cordoned, with the owner of the cordon as its value.
const cordonAnnotation = "ichor.maesh.dev/cordoned-by"

// controlPlaneLabel is what Talos and kubeadm put on the Node of a control plane.
const controlPlaneLabel = "node-role.kubernetes.io/control-plane"

// Node is what Kubernetes says of a machine. Its texts come from the cluster and are cleaned.
type Node struct {
	// Name, UID and ResourceVersion name one version of one Node: what is done to it is done to that, or not at all.
	Name, UID, ResourceVersion string
	// Ready is the Ready condition. It says nothing about now when Heartbeat is old.
	Ready Fact
	// ReadyReason is the condition's reason and message.
	ReadyReason string
	// Heartbeat is when the kubelet last renewed its Lease in kube-node-lease, or, without one, the condition's last
	// heartbeat; by the clock of the node. Zero when there never was one.
	Heartbeat     time.Time
	Unschedulable bool
	// CordonedBy is the owner of Ichor's own cordon, empty when there is none.
	CordonedBy string
	// BootID and SystemUUID are the machine's own, as its kubelet reported them.
	BootID, SystemUUID string
	// Addresses are the internal and external IP addresses and the host name.
	Addresses    []string
	ControlPlane bool
	// Taints keep pods away that don't tolerate them, as KEY=VALUE:EFFECT or KEY:EFFECT. Those that Kubernetes sets for
	// conditions (node.kubernetes.io/...) are not among them.
	Taints []string
	// KubeletVersion is like v1.36.3.
	KubeletVersion string
}

// Schedulable says whether an ordinary pod may be placed on the node: it isn't cordoned, and no taint of its own keeps
// away what doesn't tolerate it.
func (n Node) Schedulable() bool {
	return !n.Unschedulable && !slices.ContainsFunc(n.Taints, func(taint string) bool {
		return strings.HasSuffix(taint, ":"+string(corev1.TaintEffectNoSchedule)) || strings.HasSuffix(taint, ":"+string(corev1.TaintEffectNoExecute))
	})
}

// pageSize is how many objects are asked for at once.
const pageSize = 250

// Nodes gives all nodes, in the order of their names.
func (c *Client) Nodes(ctx context.Context) ([]Node, error) {
	const doing = "reading the cluster's nodes"
	found, err := pages(ctx, c, func(ctx context.Context, options metav1.ListOptions) ([]corev1.Node, string, error) {
		page, err := c.api.CoreV1().Nodes().List(ctx, options)
		if err != nil {
			return nil, "", err
		}
		return page.Items, page.Continue, nil
	}, metav1.ListOptions{})
	if err != nil {
		return nil, failure(doing, err)
	}
	leases, err := pages(ctx, c, func(ctx context.Context, options metav1.ListOptions) ([]coordinationv1.Lease, string, error) {
		page, err := c.api.CoordinationV1().Leases(corev1.NamespaceNodeLease).List(ctx, options)
		if err != nil {
			return nil, "", err
		}
		return page.Items, page.Continue, nil
	}, metav1.ListOptions{})
	if err != nil {
		return nil, failure("reading the nodes' heartbeats", err)
	}
	renewed := map[string]time.Time{}
	for _, lease := range leases {
		if lease.Spec.RenewTime != nil {
			renewed[lease.Name] = lease.Spec.RenewTime.Time
		}
	}
	nodes := make([]Node, 0, len(found))
	for i := range found {
		nodes = append(nodes, nodeOf(&found[i], renewed[found[i].Name]))
	}
	slices.SortFunc(nodes, func(a, b Node) int { return strings.Compare(a.Name, b.Name) })
	return nodes, nil
}

// maxPages bounds a list, so that a server that always says "there is more" ends somewhere.
const maxPages = 400

// pages reads a list to its end. Each page is a call with its own deadline.
func pages[T any](ctx context.Context, c *Client, list func(context.Context, metav1.ListOptions) ([]T, string, error), options metav1.ListOptions) ([]T, error) {
	options.Limit = pageSize
	var all []T
	for range maxPages {
		items, next, err := func() ([]T, string, error) {
			ctx, cancel := c.call(ctx)
			defer cancel()
			return list(ctx, options)
		}()
		if err != nil {
			return nil, err
		}
		if len(items) > pageSize {
			return nil, fmt.Errorf("a page of the list holds %d objects, and %d were asked for", len(items), pageSize)
		}
		all = append(all, items...)
		if next == "" {
			return all, nil
		}
		options.Continue = next
	}
	return nil, fmt.Errorf("the list is longer than %d objects", maxPages*pageSize)
}

// nodeOf gives what a Node object says; renewed is its Lease's last renewal, zero without one.
func nodeOf(object *corev1.Node, renewed time.Time) Node {
	node := Node{
		Name:            clean(object.Name),
		UID:             clean(string(object.UID)),
		ResourceVersion: clean(object.ResourceVersion),
		Unschedulable:   object.Spec.Unschedulable,
		CordonedBy:      clean(object.Annotations[cordonAnnotation]),
		BootID:          clean(object.Status.NodeInfo.BootID),
		SystemUUID:      clean(object.Status.NodeInfo.SystemUUID),
		KubeletVersion:  clean(object.Status.NodeInfo.KubeletVersion),
		Heartbeat:       renewed,
	}
	_, node.ControlPlane = object.Labels[controlPlaneLabel]
	for _, address := range object.Status.Addresses {
		node.Addresses = append(node.Addresses, clean(address.Address))
	}
	for _, taint := range object.Spec.Taints {
		if !strings.HasPrefix(taint.Key, "node.kubernetes.io/") {
			node.Taints = append(node.Taints, clean(taint.ToString()))
		}
	}
	for _, condition := range object.Status.Conditions {
		if condition.Type != corev1.NodeReady {
			continue
		}
		switch condition.Status {
		case corev1.ConditionTrue:
			node.Ready = Yes
		case corev1.ConditionFalse:
			node.Ready = No
		}
		node.ReadyReason = clean(strings.TrimSuffix(strings.Join([]string{condition.Reason, condition.Message}, ": "), ": "))
		if node.Heartbeat.IsZero() {
			node.Heartbeat = condition.LastHeartbeatTime.Time
		}
	}
	return node
}

// node reads one Node.
func (c *Client) node(ctx context.Context, name string) (*corev1.Node, error) {
	ctx, cancel := c.call(ctx)
	defer cancel()
	return c.api.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
}
