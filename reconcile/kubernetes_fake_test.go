package reconcile

import (
	"context"
	"fmt"
	"sync"
	"time"

	"ichor.maesh.dev/internal/talossim"
	"ichor.maesh.dev/kube"
)

// fakeKubernetes is what Kubernetes would say of the machines of a farm, in memory. Every pod goes when it is asked to.
type fakeKubernetes struct {
	farm *talossim.Farm

	mu      sync.Mutex
	cordons map[string]string // owner by node
	deleted map[string]bool
	pods    map[string]int
	// held is why a node's pods don't go; down why the API can't be asked.
	held map[string]string
	down error
	// revision is the last that was asked for.
	revision int64
	// calls are those that were made, in their order.
	calls []string
}

func newFakeKubernetes(farm *talossim.Farm) *fakeKubernetes {
	k := &fakeKubernetes{farm: farm, cordons: map[string]string{}, deleted: map[string]bool{}, pods: map[string]int{}, held: map[string]string{}}
	for _, node := range farm.Nodes() {
		k.pods[node.Name()] = 2
	}
	return k
}

func (k *fakeKubernetes) Nodes(context.Context) ([]kube.Node, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.down != nil {
		return nil, k.down
	}
	var nodes []kube.Node
	for _, node := range k.farm.Nodes() {
		if k.deleted[node.Name()] {
			continue
		}
		n := kube.Node{Name: node.Name(), UID: "uid-" + node.Name(), SystemUUID: node.UUID(), BootID: node.BootID(), Ready: kube.Unknown}
		n.CordonedBy, n.Unschedulable = k.cordons[node.Name()], k.cordons[node.Name()] != ""
		if node.Powered() {
			n.Ready, n.Heartbeat = kube.Yes, time.Now()
		}
		nodes = append(nodes, n)
	}
	return nodes, nil
}

func (k *fakeKubernetes) call(what string, node kube.Node) error {
	k.calls = append(k.calls, what+" "+node.Name)
	if node.UID != "uid-"+node.Name {
		return fmt.Errorf("another Node: %w", kube.ErrChanged)
	}
	return k.down
}

func (k *fakeKubernetes) Cordon(_ context.Context, node kube.Node, owner string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.call("cordon", node); err != nil {
		return err
	}
	if by := k.cordons[node.Name]; by != "" && by != owner {
		return &kube.CordonedError{Node: node.Name, By: by}
	}
	k.cordons[node.Name] = owner
	return nil
}

func (k *fakeKubernetes) Uncordon(_ context.Context, node kube.Node, owner string) (bool, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.call("uncordon", node); err != nil || k.cordons[node.Name] != owner {
		return false, err
	}
	delete(k.cordons, node.Name)
	k.pods[node.Name] = 2
	return true, nil
}

func (k *fakeKubernetes) Evict(_ context.Context, node kube.Node, _ kube.EvictOptions) (kube.Drain, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.call("evict", node); err != nil {
		return kube.Drain{}, err
	}
	switch {
	case k.cordons[node.Name] == "":
		return kube.Drain{Blocked: []string{node.Name + " isn't cordoned"}}, nil
	case k.pods[node.Name] == 0:
		return kube.Drain{}, nil
	}
	why := k.held[node.Name]
	if why == "" {
		k.pods[node.Name]--
	}
	return kube.Drain{Left: []kube.Pod{{Namespace: "shop", Name: "web-0", Terminating: why == "", Why: why}}}, nil
}

func (k *fakeKubernetes) Revision(context.Context) (int64, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.revision += 2_000_000_000 // far ahead of whatever a restore raised it to meanwhile
	return k.revision, k.down
}

func (k *fakeKubernetes) Agents(context.Context) ([]kube.Agent, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return nil, k.down
}

func (k *fakeKubernetes) DeleteAgent(context.Context, kube.Agent) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.down
}

func (k *fakeKubernetes) DeleteNode(_ context.Context, name, uid string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.call("delete", kube.Node{Name: name, UID: uid}); err != nil {
		return err
	}
	k.deleted[name] = true
	return nil
}

// release lets a node's pods go.
func (k *fakeKubernetes) release(name string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.held, name)
}

// cordoned are the nodes that take no pods.
func (k *fakeKubernetes) cordoned() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	var names []string
	for name := range k.cordons {
		names = append(names, name)
	}
	return names
}
