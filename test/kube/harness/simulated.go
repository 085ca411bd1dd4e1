package harness

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"

	"ichor.maesh.dev/internal/talossim"
	"ichor.maesh.dev/internal/talossim/member"
	"ichor.maesh.dev/internal/talossim/world"
)

// Simulated is a real Kubernetes on simulated machines: on each control plane an API server over that machine's own etcd, and a
// kubelet on every machine.
type Simulated struct {
	// Endpoint is the URL of the cluster's endpoint, which leads to a control plane that serves.
	Endpoint string
	// API is a client of the endpoint, for the test's own use.
	API kubernetes.Interface
	// Kubelets are those of the machines, by name.
	Kubelets map[string]*Kubelet
}

// hiddenPort is where an API server listens behind its machine's port 6443, which a machine that is off doesn't have.
const hiddenPort = 16443

// staticPodPeriod is how often it is looked whether a machine's API server should run.
const staticPodPeriod = 100 * time.Millisecond

// StartSimulated lets a farm's machines run Kubernetes, and starts controllers, all until the test ends. endpoint is a
// loopback address of the test's own, for the cluster's endpoint (port 6443).
//
// A control plane's API server runs while the simulator says that its static pods do: from some seconds after its etcd is
// healthy until that ends or the machine goes down, which kills it. It is reached over the machine's cable. The simulated
// kubelet's reports become a Node with the machine's boot ID, a Lease and running pods. The name of a machine in the farm has
// to be its host name, and the farm one with foreign Kubernetes.
func StartSimulated(t testing.TB, farm *talossim.Farm, secrets *Secrets, endpoint string) *Simulated {
	t.Helper()
	path, address := Servers(t), net.JoinHostPort(endpoint, strconv.Itoa(Port))
	s := &Simulated{Endpoint: "https://" + address, Kubelets: map[string]*Kubelet{}}
	var fronts []string
	ctx, cancel := context.WithCancel(context.Background())
	var running []chan struct{}
	for _, node := range farm.Nodes() {
		if node.Role() != talossim.ControlPlane {
			continue
		}
		fronts = append(fronts, net.JoinHostPort(node.Address(), strconv.Itoa(Port)))
		pod := newStaticPod(t, farm, node, secrets, path, endpoint)
		running = append(running, make(chan struct{}))
		go pod.run(ctx, running[len(running)-1])
		t.Cleanup(func() { pod.show(t) })
	}
	t.Cleanup(func() {
		cancel()
		for _, one := range running {
			<-one
		}
	})
	balancer, err := world.OpenRelay(address, fronts)
	require.NoError(t, err)
	t.Cleanup(balancer.Close)
	s.API = secrets.Client(t, s.Endpoint)
	for _, node := range farm.Nodes() {
		s.Kubelets[node.Name()] = startSimulatedKubelet(t, s.API, node, secrets)
	}
	StartControllers(t, secrets, s.Endpoint)
	return s
}

// staticPod is the API server of a simulated control plane.
type staticPod struct {
	t         testing.TB
	farm      *talossim.Farm
	address   netip.Addr
	clusterID string
	path      string
	server    *APIServer
	front     *world.Relay
}

func newStaticPod(t testing.TB, farm *talossim.Farm, node *talossim.Node, secrets *Secrets, path, endpoint string) *staticPod {
	t.Helper()
	address, err := netip.ParseAddr(node.Address())
	require.NoError(t, err)
	etcd := Etcd{Endpoints: []string{member.ClientURL(address)}}
	return &staticPod{t: t, farm: farm, address: address, clusterID: secrets.bundle.Cluster.ID, path: path,
		server: newAPIServer(t, secrets, node.Address(), hiddenPort, etcd, endpoint)}
}

// run keeps the API server as the simulator says, until ctx ends.
func (p *staticPod) run(ctx context.Context, done chan<- struct{}) {
	defer close(done)
	defer p.stop()
	tick := time.NewTicker(staticPodPeriod)
	defer tick.Stop()
	for ctx.Err() == nil {
		switch wanted := slices.Contains(p.farm.World().Kubernetes.APIs(p.clusterID), p.address); {
		case !wanted:
			p.stop()
		case p.server.process == nil || p.server.process.ended():
			if err := p.start(); err != nil {
				p.t.Errorf("the API server of %s: %v", p.address, err)
				return
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

func (p *staticPod) start() (err error) {
	if p.server.process, err = launch(p.path, p.server.dir, "kube-apiserver", p.server.args...); err != nil || p.front != nil {
		return err
	}
	p.front, err = world.OpenRelay(net.JoinHostPort(p.address.String(), strconv.Itoa(Port)), []string{p.server.Address()},
		p.farm.World().Network.Link(p.address).Wrap)
	return err
}

func (p *staticPod) stop() {
	if p.front != nil {
		p.front.Close()
		p.front = nil
	}
	if p.server.process != nil {
		p.server.process.kill()
		p.server.process = nil
	}
}

// show shows the end of the log of an API server of a test that failed.
func (p *staticPod) show(t testing.TB) {
	if t.Failed() {
		log := &process{log: p.server.dir + "/kube-apiserver.log"}
		t.Logf("the end of %s:\n%s", log.log, log.tail())
	}
}

// startSimulatedKubelet plays the kubelet of a machine while the simulator says that it runs.
func startSimulatedKubelet(t testing.TB, api kubernetes.Interface, node *talossim.Node, secrets *Secrets) *Kubelet {
	t.Helper()
	k := newKubelet(api, node.Name(), func() kubeletState {
		return kubeletState{Running: node.KubeletUp(), BootID: node.BootID()}
	})
	k.node.Status.NodeInfo.SystemUUID = node.UUID()
	k.node.Status.Addresses[0].Address = node.Address()
	if node.Role() == talossim.ControlPlane {
		k.node.Labels["node-role.kubernetes.io/control-plane"] = ""
		k.node.Spec.Taints = []corev1.Taint{{Key: "node-role.kubernetes.io/control-plane", Effect: corev1.TaintEffectNoSchedule}}
	}
	k.start(t)
	return k
}
