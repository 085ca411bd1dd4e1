package recovery

import (
	"context"
	"time"

	"ichor.maesh.dev/kube"
	"ichor.maesh.dev/talos"
)

// Kubernetes is the API of the cluster's Kubernetes; *kube.Client is one. No recovery of etcd waits for it: it is asked only once etcd
// answers, and what it would be needed for is said where it doesn't.
type Kubernetes interface {
	// Nodes gives each Node with its readiness and its kubelet's heartbeat. That it answers at all says that the API serves.
	Nodes(ctx context.Context) ([]kube.Node, error)
	// Revision is the one that etcd has reached, as the API server sees it.
	Revision(ctx context.Context) (int64, error)
	// Agents gives the pods that keep the nodes' forwarding.
	Agents(ctx context.Context) ([]kube.Agent, error)

	// The calls that change something. Each is made only after [Fence.Check].
	Cordon(ctx context.Context, node kube.Node, owner string) error
	Uncordon(ctx context.Context, node kube.Node, owner string) (bool, error)
	Evict(ctx context.Context, node kube.Node, options kube.EvictOptions) (kube.Drain, error)
	DeleteAgent(ctx context.Context, agent kube.Agent) error
}

// silent says whether it has kept silent for so long that what needs it is done without.
func (k *kubernetesSeen) silent(limit time.Duration) bool {
	return k.None || k.Problem != "" && k.Away >= limit
}

// kubernetesLook bounds one look at the Kubernetes API.
const kubernetesLook = 20 * time.Second

// kubernetesSeen is what one look at the Kubernetes API showed.
type kubernetesSeen struct {
	// None says that no way to it is known, whatever is waited for.
	None bool
	// Problem is why it can't be asked, and Away for how long this process has asked in vain. Empty and zero where it answers.
	Problem string
	Away    time.Duration
	// Nodes are those of the marker's machines and workers, by machine. Strangers are the names of all others.
	Nodes     map[string]kube.Node
	Strangers []string
	// Doubts say of machines without a Node why it isn't known that they have none.
	Doubts map[string]string
	// Agents are the pods that keep the nodes' forwarding, and Revision what etcd has reached; only in PhaseReconciling.
	Agents   []kube.Agent
	Revision int64
}

// asksKubernetes says in which phases there is an etcd for the Kubernetes API to serve from.
func (p Phase) asksKubernetes() bool {
	return p == PhaseJoining || p == PhaseReconciling || p == PhaseCancelling
}

// lookAtKubernetes asks the Kubernetes API, in the phases that need it; nil in the others.
func (r *Run) lookAtKubernetes(ctx context.Context) *kubernetesSeen {
	if !r.marker.Phase.asksKubernetes() {
		return nil
	}
	if r.Kubernetes == nil {
		return &kubernetesSeen{None: true, Problem: "no way to the Kubernetes API is known here", Away: r.passed()}
	}
	ctx, cancel := context.WithTimeout(ctx, kubernetesLook)
	defer cancel()
	look, err := r.askKubernetes(ctx)
	if err != nil {
		if r.away == notSeen {
			r.away = r.passed()
		}
		return &kubernetesSeen{Problem: r.Scrubber.Text(err.Error()), Away: r.passed() - r.away}
	}
	r.away = notSeen
	return look
}

// askKubernetes asks for what the phase needs.
func (r *Run) askKubernetes(ctx context.Context) (look *kubernetesSeen, err error) {
	look = &kubernetesSeen{}
	if r.marker.Phase == PhaseReconciling {
		if look.Revision, err = r.Kubernetes.Revision(ctx); err != nil {
			return nil, err
		}
		if look.Agents, err = r.Kubernetes.Agents(ctx); err != nil {
			return nil, err
		}
	}
	nodes, err := r.Kubernetes.Nodes(ctx)
	if err != nil {
		return nil, err
	}
	look.Nodes, look.Doubts = nodesOf(r.marker.everyone(), r.seen, nodes)
	for _, node := range nodes {
		known := false
		for _, one := range look.Nodes {
			known = known || one.Name == node.Name
		}
		if !known {
			look.Strangers = append(look.Strangers, node.Name)
		}
	}
	return look, nil
}

// nodesOf finds each machine's Node: the one whose kubelet reports its UUID, else the one of its name, or of the host name that it says it
// has, at its address.
func nodesOf(machines []Machine, seen map[string]Seen, nodes []kube.Node) (of map[string]kube.Node, doubts map[string]string) {
	var known []kube.Identity
	for _, m := range machines {
		known = append(known, kube.Identity{Name: m.Name, SameUUID: func(other string) bool { return talos.SameUUID(m.UUID, other) },
			Names: []string{m.Name, seen[m.Name].Hostname}, Declared: []string{talos.Target{Endpoint: m.Endpoint}.Host()}})
	}
	of, _, doubts = kube.Match(known, nodes)
	return of, doubts
}
