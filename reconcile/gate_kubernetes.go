package reconcile

import (
	"context"
	"errors"
	"fmt"
	"time"

	"ichor.maesh.dev/kube"
	"ichor.maesh.dev/talos"
)

// evictLimit bounds one round of a drain: it asks for each pod by itself.
const evictLimit = time.Minute

// errNoKubernetes is in the error of a call to the Kubernetes API where the agent has no way to it.
var errNoKubernetes = errors.New("this agent has no way to the Kubernetes API")

// limit is how long a call may take.
func (g *Gate) limit(kind ActionKind) time.Duration {
	if kind == ActDefragment {
		return g.Timing.Defragment
	}
	return g.Timing.Call
}

// cordoning makes a call to the Kubernetes API that needs a young lease and nothing else: each carries the UID, and where the object
// is changed its version, of what it was decided on, so that one that is late, or is made twice, does no harm.
func (g *Gate) cordoning(ctx context.Context, c call) error {
	if why := refuseLease(attempt{action: c.action, state: c.base, leaseAge: leaseAge(g.Lease), leaseHeld: held(g.Lease)}); why != "" {
		return fmt.Errorf("%s on %s is %w: %s", c.action.Kind, c.action.Machine, errRefused, why)
	}
	if g.Kubernetes == nil {
		return fmt.Errorf("%s on %s was not begun: %w", c.action.Kind, c.action.Machine, errNoKubernetes)
	}
	ctx, cancel := context.WithTimeout(ctx, evictLimit)
	defer cancel()
	node := kube.Node{Name: c.action.Node, UID: c.action.NodeUID}
	g.Log.Debug("asked of Kubernetes", "action", c.action.Kind, "node", node.Name, "why", c.action.Why)
	switch c.action.Kind {
	case ActCordon:
		err := g.Kubernetes.Cordon(ctx, node, c.action.Owner)
		var others *kube.CordonedError
		if errors.As(err, &others) {
			return nil // as good; the next look shows whose it is
		}
		return err
	case ActUncordon:
		_, err := g.Kubernetes.Uncordon(ctx, node, c.action.Owner)
		return err
	}
	drain, err := g.Kubernetes.Evict(ctx, node, kube.EvictOptions{Force: c.action.Force})
	if err != nil {
		return err
	}
	if c.drained != nil {
		c.drained(c.action.Drain, drain)
	}
	return nil
}

func leaseAge(l Lease) time.Duration { age, _ := l.Age(); return age }

func held(l Lease) bool { _, held := l.Age(); return held }

// lookAtNode reads, for the deletion of a machine's Node, that the Node is still the one that was decided on, and that nobody
// configured answers where the machine was.
func (g *Gate) lookAtNode(ctx context.Context, c call, a attempt) (Session, attempt, error) {
	failed := func(err error) (Session, attempt, error) {
		return nil, a, fmt.Errorf("%s of %s was not begun: %w", c.action.Kind, c.action.Machine, err)
	}
	if g.Kubernetes == nil {
		return failed(errNoKubernetes)
	}
	nodes, err := g.Kubernetes.Nodes(ctx)
	if err != nil {
		return failed(err)
	}
	a.facts = map[string]string{"node": "gone"}
	for _, node := range nodes {
		if node.Name == c.action.Node {
			a.facts["node"] = node.UID
		}
	}
	seen := g.Nodes.Observe(ctx, c.target)
	if seen.Mode != talos.ModeUnknown && seen.UUID == "" {
		return failed(fmt.Errorf("what answers at the address of %s doesn't say which machine it is: %s", c.action.Machine, nameOr(seen.Problem, "no reason given")))
	}
	if seen.Mode == talos.ModeConfigured && talos.SameUUID(seen.UUID, c.declared) {
		return failed(fmt.Errorf("%s runs and is configured, and its kubelet would make the Node anew", c.action.Machine))
	}
	a.uuid, a.boot = c.declared, c.action.Boot // the machine is gone, and with it whoever could say so
	return nobody{}, a, nil
}

// nobody is the session of a call that goes to no machine.
type nobody struct{ Session }

func (nobody) Close() error { return nil }
