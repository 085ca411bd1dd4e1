package kubeapi

import (
	"context"
	"encoding/json"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// every runs f once a period until it returns true or the context ends.
func (s *Server) every(ctx context.Context, period time.Duration, f func(context.Context) bool) {
	for {
		call, cancel := context.WithTimeout(ctx, s.cfg.RequestTimeout)
		done := f(call)
		cancel()
		if done {
			return
		}
		timer := s.cfg.Clock.NewTimer(period)
		select {
		case <-timer.C():
		case <-ctx.Done():
			timer.Stop()
			return
		}
	}
}

// makeNamespaces makes those that every cluster has.
func (s *Server) makeNamespaces(ctx context.Context) {
	missing := []string{metav1.NamespaceDefault, metav1.NamespaceSystem, metav1.NamespacePublic, corev1.NamespaceNodeLease}
	res := s.resource("namespaces")
	s.every(ctx, time.Second, func(ctx context.Context) bool {
		for len(missing) > 0 {
			body, err := json.Marshal(corev1.Namespace{
				TypeMeta: metav1.TypeMeta{Kind: "Namespace", APIVersion: "v1"}, ObjectMeta: metav1.ObjectMeta{Name: missing[0], Labels: map[string]string{corev1.LabelMetadataName: missing[0]}},
			})
			if err != nil {
				return true
			}
			if _, err := s.create(ctx, &request{resource: res, verb: "create"}, body, false); err != nil && !apierrors.IsAlreadyExists(err) {
				return false
			}
			missing = missing[1:]
		}
		return true
	})
}

// silence is how long a node has been silent, as the monitor has seen it: no clock is compared with another machine's.
type silence struct {
	lease string // the lease's resource version
	since time.Duration
	told  bool
}

// monitor calls nodes unknown that have been silent for too long (Kubernetes: pkg/controller/nodelifecycle). A round in which etcd
// doesn't answer, and one that comes late because the host is busy, count as one period at most.
func (s *Server) monitor(ctx context.Context) {
	nodes := map[string]*silence{}
	last := s.cfg.Clock.Now()
	s.every(ctx, s.cfg.MonitorPeriod, func(ctx context.Context) bool {
		now := s.cfg.Clock.Now()
		passed := min(now.Sub(last), 2*s.cfg.MonitorPeriod)
		last = now
		leases, _, err := s.all(ctx, s.resource("leases"), corev1.NamespaceNodeLease, 0)
		if err != nil {
			return false
		}
		seen := map[string]bool{}
		for _, o := range leases {
			lease := o.(*coordinationv1.Lease)
			seen[lease.Name] = true
			node := nodes[lease.Name]
			if node == nil || node.lease != lease.ResourceVersion {
				nodes[lease.Name] = &silence{lease: lease.ResourceVersion}
				continue
			}
			node.since += passed
			if node.since >= s.cfg.NodeGrace && !node.told {
				node.told = s.callUnknown(ctx, lease.Name)
			}
		}
		for name := range nodes {
			if !seen[name] {
				delete(nodes, name)
			}
		}
		return false
	})
}

// callUnknown writes that a node's conditions are no longer known, and that its pods can't be relied on. It says whether that stands.
func (s *Server) callUnknown(ctx context.Context, name string) bool {
	s.cfg.Log.Debug("a node is silent", "node", name)
	now := metav1.NewTime(s.cfg.Clock.Now()).Rfc3339Copy()
	_, err := s.change(ctx, &request{resource: s.resource("nodes"), name: name, part: "status", verb: "patch"}, false, func(o object) (object, error) {
		node := o.(*corev1.Node)
		for i := range node.Status.Conditions {
			if c := &node.Status.Conditions[i]; c.Status != corev1.ConditionUnknown {
				c.Status, c.LastTransitionTime = corev1.ConditionUnknown, now
				c.Reason, c.Message = "NodeStatusUnknown", "Kubelet stopped posting node status."
			}
		}
		node.ResourceVersion = ""
		return node, nil
	})
	if err != nil && !apierrors.IsNotFound(err) {
		return false
	}
	pods, _, err := s.all(ctx, s.resource("pods"), "", 0)
	if err != nil {
		return false
	}
	for _, o := range pods {
		pod := o.(*corev1.Pod)
		if pod.Spec.NodeName != name || !ready(pod) {
			continue
		}
		_, err := s.change(ctx, &request{resource: s.resource("pods"), namespace: pod.Namespace, name: pod.Name, part: "status", verb: "patch"}, false, func(o object) (object, error) {
			pod := o.(*corev1.Pod)
			for i := range pod.Status.Conditions {
				if c := &pod.Status.Conditions[i]; c.Type == corev1.PodReady {
					c.Status, c.LastTransitionTime, c.Reason = corev1.ConditionFalse, now, "NodeNotReady"
				}
			}
			pod.ResourceVersion = ""
			return pod, nil
		})
		if err != nil && !apierrors.IsNotFound(err) {
			return false
		}
	}
	return true
}
