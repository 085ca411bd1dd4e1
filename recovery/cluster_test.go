package recovery

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"ichor.maesh.dev/kube"
	"ichor.maesh.dev/talos"
)

// testKubelet is a machine's kubelet, and what goes wrong with it.
type testKubelet struct {
	service talos.Service
	starts  int
	// refuse is how many restarts are refused; drop has a restart answered and not done. deaf sends no heartbeat, unready isn't Ready, gone has
	// no Node until it restarts.
	refuse               int
	drop, deaf, unready  bool
	gone                 bool
	staged               string // what is added to the digest of the config that the next boot uses
	lastHeartbeat, began time.Time
}

// start is a start of it, by its machine's clock, which runs ahead of everybody's.
func (k *testKubelet) start(w *world) {
	w.clock.Step(time.Millisecond)
	k.starts++
	k.gone = k.gone && k.starts == 1
	k.began = w.clock.Now()
	k.service = talos.Service{ID: "kubelet", State: "Running", Message: "Health check successful", Healthy: talos.Yes, Started: k.clock(w)}
}

func (k *testKubelet) clock(w *world) time.Time { return w.clock.Now().Add(7 * time.Hour) }

// node is what Kubernetes says of a machine. A heartbeat comes ten seconds after the kubelet's start; until then there is the one of before.
func (w *world) node(b *box) kube.Node {
	n := kube.Node{Name: "node-of-" + b.name, UID: "uid-of-" + b.name, Unschedulable: w.cordons[b.name] != "", CordonedBy: w.cordons[b.name], SystemUUID: b.uuid, BootID: b.bootID(), Ready: kube.Yes, ControlPlane: !b.worker, Heartbeat: b.kubelet.lastHeartbeat}
	if b.kubelet.unready {
		n.Ready, n.ReadyReason = kube.No, "KubeletNotReady: the network plugin is not ready"
	}
	if !b.off && !b.kubelet.deaf && w.clock.Now().Sub(b.kubelet.began) > 10*time.Second {
		b.kubelet.lastHeartbeat = b.kubelet.clock(w)
		n.Heartbeat = b.kubelet.lastHeartbeat
	}
	return n
}

// testCluster is the Kubernetes API of a world.
type testCluster struct {
	world *world
	// down is why it doesn't answer, empty where it does.
	down string
	// backAt is when it answers again all the same; zero: never.
	backAt time.Time
	// awayUntil is when it begins to answer, revision what it serves until then; strangers are Nodes of no machine.
	awayUntil time.Time
	revision  int64
	oldUntil  time.Time
	strangers []string
	pods      []*testPod
	made      int
	// slow is how long a pod takes to be Ready in another's place; frozen is a DaemonSet that makes none anew.
	slow    time.Duration
	frozen  string
	deleted []string
	// most is how many pods were not Ready at a time.
	most int
}

type testPod struct {
	kube.Agent
	gone, ready time.Time // when it ends after its deletion, and when it is Ready
}

// withKubernetes gives a stage a Kubernetes with pods of two DaemonSets on every machine, and workers.
func withKubernetes(s *stage, workers ...string) *testCluster {
	for n, name := range workers {
		s.machines[name] = &box{name: name, uuid: fmt.Sprintf("00000000-0000-4000-8000-%012d", 100+n), boot: 1, worker: true}
		s.machines[name].kubelet.start(s.world)
	}
	c := &testCluster{world: s.world, slow: 20 * time.Second, revision: 1_000_000_100}
	for _, name := range slices.Sorted(func(yield func(string) bool) {
		for name := range s.machines {
			if !yield(name) {
				return
			}
		}
	}) {
		c.make("kube-flannel", name)
		c.make("kube-proxy", name)
	}
	for _, pod := range c.pods {
		pod.ready = time.Time{}
	}
	s.kubernetes = c
	return c
}

func (c *testCluster) make(daemonSet, machine string) {
	c.made++
	c.pods = append(c.pods, &testPod{Agent: kube.Agent{DaemonSet: daemonSet, Name: fmt.Sprintf("%s-%d", daemonSet, c.made), UID: fmt.Sprint("uid-", c.made),
		Node: "node-of-" + machine}, ready: c.world.clock.Now().Add(c.slow)})
}

func (c *testCluster) answers() error {
	switch {
	case c.world.clock.Now().Before(c.awayUntil):
		return kube.ErrUnavailable
	case c.down != "" && (c.backAt.IsZero() || c.world.clock.Now().Before(c.backAt)):
		return errors.New(c.down)
	case !c.world.answers(c.world.old) && !c.world.answers(c.world.recovered):
		return errors.New("no etcd answers")
	}
	return nil
}

func (c *testCluster) Nodes(context.Context) (nodes []kube.Node, err error) {
	c.world.mu.Lock()
	defer c.world.mu.Unlock()
	for _, b := range c.world.machines {
		if !b.kubelet.gone {
			nodes = append(nodes, c.world.node(b))
		}
	}
	for _, name := range c.strangers {
		nodes = append(nodes, kube.Node{Name: name, SystemUUID: "of " + name})
	}
	slices.SortFunc(nodes, func(a, b kube.Node) int { return strings.Compare(a.Name, b.Name) })
	return nodes, c.answers()
}

func (c *testCluster) Revision(context.Context) (int64, error) {
	if c.world.clock.Now().Before(c.oldUntil) {
		return 7_000, c.answers()
	}
	return c.revision, c.answers()
}

// Agents lets what was deleted end, and the DaemonSets make it anew.
func (c *testCluster) Agents(context.Context) (agents []kube.Agent, err error) {
	now, unready := c.world.clock.Now(), 0
	for _, pod := range slices.Clone(c.pods) {
		if pod.Going && !now.Before(pod.gone) {
			c.pods = slices.DeleteFunc(c.pods, func(one *testPod) bool { return one == pod })
			if pod.DaemonSet != c.frozen {
				c.make(pod.DaemonSet, strings.TrimPrefix(pod.Node, "node-of-"))
			}
		}
	}
	for _, pod := range c.pods {
		pod.Ready = !pod.Going && !now.Before(pod.ready)
		if !pod.Ready {
			unready++
		}
		agents = append(agents, pod.Agent)
	}
	c.most = max(c.most, unready)
	return agents, c.answers()
}

func (c *testCluster) DeleteAgent(_ context.Context, agent kube.Agent) error {
	for _, pod := range c.pods {
		if pod.UID == agent.UID && !pod.Going {
			pod.Going, pod.gone = true, c.world.clock.Now().Add(5*time.Second)
			c.deleted = append(c.deleted, agent.UID)
		}
	}
	return c.answers()
}

// of gives the machine of a Node.
func of(node kube.Node) string { return strings.TrimPrefix(node.Name, "node-of-") }

func (c *testCluster) Cordon(_ context.Context, node kube.Node, owner string) error {
	if err := c.answers(); err != nil {
		return err
	}
	c.world.accepted = append(c.world.accepted, "cordon "+of(node))
	c.world.cordons[of(node)] = owner
	return nil
}

func (c *testCluster) Uncordon(_ context.Context, node kube.Node, owner string) (bool, error) {
	if err := c.answers(); err != nil || c.world.cordons[of(node)] != owner {
		return false, err
	}
	c.world.accepted = append(c.world.accepted, "uncordon "+of(node))
	delete(c.world.cordons, of(node))
	return true, nil
}

func (c *testCluster) Evict(_ context.Context, node kube.Node, _ kube.EvictOptions) (kube.Drain, error) {
	b := c.world.machines[of(node)]
	switch err := c.answers(); {
	case err != nil:
		return kube.Drain{}, err
	case c.world.cordons[b.name] == "":
		return kube.Drain{Blocked: []string{node.Name + " isn't cordoned"}}, nil
	case b.pods == 0:
		return kube.Drain{}, nil
	case b.held != "":
		return kube.Drain{Left: []kube.Pod{{Namespace: "shop", Name: "web-0", Why: b.held}}}, nil
	}
	c.world.accepted = append(c.world.accepted, "evict "+b.name)
	b.pods--
	return kube.Drain{Left: []kube.Pod{{Namespace: "shop", Name: "web-0", Terminating: true}}}, nil
}

// mortalKubernetes dies before or after a call that changes something.
type mortalKubernetes struct {
	*testCluster
	process *mortal
}

func (k mortalKubernetes) DeleteAgent(ctx context.Context, agent kube.Agent) error {
	if err := k.process.point(); err != nil {
		return err
	}
	if err := k.testCluster.DeleteAgent(ctx, agent); err != nil {
		return err
	}
	return k.process.point()
}

func (k mortalKubernetes) Cordon(ctx context.Context, node kube.Node, owner string) error {
	if err := k.process.point(); err != nil {
		return err
	}
	return errors.Join(k.testCluster.Cordon(ctx, node, owner), k.process.point())
}

func (k mortalKubernetes) Uncordon(ctx context.Context, node kube.Node, owner string) (bool, error) {
	if err := k.process.point(); err != nil {
		return false, err
	}
	lifted, err := k.testCluster.Uncordon(ctx, node, owner)
	return lifted, errors.Join(err, k.process.point())
}

func (k mortalKubernetes) Evict(ctx context.Context, node kube.Node, options kube.EvictOptions) (kube.Drain, error) {
	if err := k.process.point(); err != nil {
		return kube.Drain{}, err
	}
	left, err := k.testCluster.Evict(ctx, node, options)
	return left, errors.Join(err, k.process.point())
}

// uidsOn gives the UIDs of the pods on a machine.
func (c *testCluster) uidsOn(t *testing.T, machine string) []string {
	t.Helper()
	var uids []string
	for _, pod := range c.pods {
		if pod.Node == "node-of-"+machine {
			uids = append(uids, pod.UID)
		}
	}
	return uids
}
