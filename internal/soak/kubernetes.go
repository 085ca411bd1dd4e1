package soak

import (
	"context"
	"fmt"
	"strings"
	"time"

	"ichor.maesh.dev/kube"
)

// kubeNode is a machine's Node with the pods on it.
type kubeNode struct {
	kube.Node
	pods int
	// held is why the pods stay when they are to go; empty: they go.
	held string
}

// served says whether the Kubernetes API of a cluster answers.
func (c *cluster) served() bool {
	if c.kubernetesAway {
		return false
	}
	for _, m := range c.machines {
		if m.controlPlane() && m.stage == stageRunning && m.power && m.etcd != nil && m.etcd.quorumFor(m) && !m.alone {
			return true
		}
	}
	return false
}

// kubeletStep is what a machine's kubelet does by itself: it registers its Node and tells that it lives.
func (m *machine) kubeletStep(now time.Time) {
	if m.kubeletStarted.IsZero() && m.up() && now.Sub(m.since) >= 4*time.Second {
		m.kubeletStarted = now
	}
	served := m.c.served()
	if m.node != nil && served && now.Sub(m.node.Heartbeat) > 40*time.Second {
		m.node.Ready, m.node.ReadyReason = kube.Unknown, "NodeStatusUnknown: Kubelet stopped posting node status."
	}
	if m.stage != stageRunning || !m.power || m.kubeletStarted.IsZero() || m.alone || !served || now.Sub(m.kubeletStarted) < 8*time.Second {
		return
	}
	if m.node == nil {
		m.c.nextNode++
		m.node = &kubeNode{Node: kube.Node{Name: m.hostname, UID: fmt.Sprintf("uid-%s-%d", m.name, m.c.nextNode), SystemUUID: m.uuid, ControlPlane: m.controlPlane(),
			Addresses: []string{m.ip}, KubeletVersion: "v1.36.2"}}
	}
	m.node.BootID, m.node.Ready, m.node.ReadyReason, m.node.Heartbeat = m.bootID(), kube.Yes, "", now
	if !m.node.Unschedulable && m.node.pods < 4 && m.w.draw("pods", m.uuid, now.Unix())%20 == 0 {
		m.node.pods++
	}
}

// agentKubernetes is one agent's way to the Kubernetes API of a cluster.
type agentKubernetes struct {
	p *process
	c *cluster
}

func (k agentKubernetes) begin(ctx context.Context, what string) error {
	if err := k.p.point(ctx, k.c.name+"/kubernetes", "before "+what); err != nil {
		return err
	}
	k.p.w.mu.Lock()
	defer k.p.w.mu.Unlock()
	if on := k.p.host.on; !k.c.served() || on != nil && on.alone {
		return fmt.Errorf("%s: %w", what, kube.ErrUnavailable)
	}
	return nil
}

// Nodes implements reconcile.Kubernetes.
func (k agentKubernetes) Nodes(ctx context.Context) ([]kube.Node, error) {
	if err := k.begin(ctx, "reading the cluster's nodes"); err != nil {
		return nil, err
	}
	k.p.w.mu.Lock()
	defer k.p.w.mu.Unlock()
	var nodes []kube.Node
	for _, m := range k.c.machines {
		if seen := k.p.w.see(m); seen.node != nil {
			nodes = append(nodes, seen.node.Node)
		}
	}
	return nodes, nil
}

// Revision implements reconcile.Kubernetes.
func (k agentKubernetes) Revision(ctx context.Context) (int64, error) {
	if err := k.begin(ctx, "reading the revision"); err != nil {
		return 0, err
	}
	k.p.w.mu.Lock()
	defer k.p.w.mu.Unlock()
	for _, e := range k.c.living() {
		if e.quorum(k.c) {
			return max(agesOfData*100, e.raised), nil
		}
	}
	return 1, nil
}

// Agents implements reconcile.Kubernetes. Modelled machines have none.
func (k agentKubernetes) Agents(ctx context.Context) ([]kube.Agent, error) {
	return nil, k.begin(ctx, "reading the agents")
}

// DeleteAgent implements reconcile.Kubernetes.
func (k agentKubernetes) DeleteAgent(ctx context.Context, agent kube.Agent) error {
	return k.begin(ctx, "deleting "+agent.Name)
}

// change finds the Node that was decided on and does something to it.
func (k agentKubernetes) change(ctx context.Context, what, uid string, change func(*machine) error) error {
	if err := k.begin(ctx, what); err != nil {
		return err
	}
	k.p.w.mu.Lock()
	err := fmt.Errorf("%s: %w", what, kube.ErrChanged)
	for _, m := range k.c.machines {
		if m.node != nil && m.node.UID == uid {
			k.p.w.calls[strings.Fields(what)[0]]++
			err = change(m)
		}
	}
	k.p.w.mu.Unlock()
	if late := k.p.point(ctx, k.c.name+"/kubernetes", "after "+what); late != nil {
		return late
	}
	return err
}

// Cordon implements reconcile.Kubernetes.
func (k agentKubernetes) Cordon(ctx context.Context, node kube.Node, owner string) error {
	return k.change(ctx, "cordon "+node.Name, node.UID, func(m *machine) error {
		if m.node.Unschedulable && m.node.CordonedBy != owner {
			return &kube.CordonedError{Node: node.Name, By: m.node.CordonedBy}
		}
		m.node.Unschedulable, m.node.CordonedBy = true, owner
		return nil
	})
}

// Uncordon implements reconcile.Kubernetes.
func (k agentKubernetes) Uncordon(ctx context.Context, node kube.Node, owner string) (lifted bool, err error) {
	err = k.change(ctx, "uncordon "+node.Name, node.UID, func(m *machine) error {
		if m.node.Unschedulable && m.node.CordonedBy == owner {
			m.node.Unschedulable, m.node.CordonedBy, lifted = false, "", true
		}
		return nil
	})
	return lifted, err
}

// Evict implements reconcile.Kubernetes.
func (k agentKubernetes) Evict(ctx context.Context, node kube.Node, _ kube.EvictOptions) (drain kube.Drain, err error) {
	err = k.change(ctx, "evict "+node.Name, node.UID, func(m *machine) error {
		switch {
		case !m.node.Unschedulable:
			drain.Blocked = []string{node.Name + " isn't cordoned (any more)"}
			return nil
		case m.node.held == "":
			m.node.pods = max(0, m.node.pods-2)
			for _, h := range k.p.w.hosts {
				h.evicted = h.evicted || h.on == m && m.c.another(m, time.Now())
			}
		}
		for n := range m.node.pods {
			drain.Left = append(drain.Left, kube.Pod{Namespace: "shop", Name: fmt.Sprintf("web-%d", n), Terminating: m.node.held == "", Why: m.node.held})
		}
		return nil
	})
	return drain, err
}

// DeleteNode implements reconcile.Kubernetes.
func (k agentKubernetes) DeleteNode(ctx context.Context, name, uid string) error {
	return k.change(ctx, "delete-node "+name, uid, func(m *machine) error {
		k.p.w.monitor.accepted(k.p, taken{m: m, method: "DeleteNode", action: "delete-node", uid: uid})
		m.node = nil
		return nil
	})
}
