package machined

import (
	"context"
	"sync"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/resources/k8s"

	"ichor.maesh.dev/internal/talossim/kubeapi"
)

// Times of the Kubernetes side, as seen on small machines.
const (
	kubePeriod     = time.Second
	apiServerStart = 5 * time.Second
	// apiServerEnd is how long the API server's container outlives etcd: the kubelet looks for its static pods every 20 s, and gives them 30.
	apiServerEnd = 40 * time.Second
	// apiServerAgain is the pause after a failed start (not scaled).
	apiServerAgain = 5 * time.Second
)

// staticPodNames are the control plane's components.
func staticPodNames() []string {
	return []string{k8s.APIServerID, k8s.ControllerManagerID, k8s.SchedulerID}
}

// kubeControl is the control plane's side of Kubernetes on the machine: static pods while etcd is healthy, and an API server some seconds
// later. What the kubelet does is [kubelet].
type kubeControl struct {
	m *Machine

	mu         sync.Mutex
	over       bool // the boot ends: nothing is served any more
	serving    bool
	server     *kubeapi.Server // nil also where somebody else's serves
	clusterID  string          // that it serves
	podsSince  time.Time       // zero: no static pods
	again      time.Time       // when a server that could not start is tried next
	ends       time.Time       // when the API server's container is gone, as it stands
	restarting sync.Mutex
}

func (k *kubeControl) run(ctx context.Context) {
	for k.m.pace.wait(ctx, max(k.m.pace.Of(kubePeriod), pollFloor)) == nil {
		p := k.m.conf.current()
		if p == nil || p.Cluster() == nil || p.Machine() == nil {
			continue
		}
		k.staticPods(p)
	}
}

// staticPods follows etcd: Talos removes the static pods when etcd stops being healthy.
func (k *kubeControl) staticPods(p config.Provider) {
	m := k.m
	wanted := m.conf.machineType().IsControlPlane() && m.etcd.isHealthy() && m.services.stateOf("kubelet") == stateRunning
	k.mu.Lock()
	switch {
	case !wanted:
		k.podsSince = time.Time{}
	case k.podsSince.IsZero():
		k.podsSince = m.pace.Clock.Now()
	}
	started := wanted && m.pace.Clock.Since(k.podsSince) >= m.pace.Of(apiServerStart)
	k.mu.Unlock()
	serving := k.serve(p, started)
	if serving {
		k.mu.Lock()
		k.ends = m.pace.Clock.Now().Add(m.pace.Of(apiServerEnd))
		k.mu.Unlock()
	}
	for _, name := range staticPodNames() {
		m.staticPod(name, wanted, serving)
	}
}

// serve starts or ends the API server, and says whether it runs.
func (k *kubeControl) serve(p config.Provider, wanted bool) bool {
	m := k.m
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.over:
		return false
	case !wanted:
		k.endLocked()
		return false
	case k.serving:
		return true
	case m.pace.Clock.Now().Before(k.again):
		return false
	}
	if !m.cfg.ForeignKubernetes {
		server, err := m.startAPIServer(p)
		if err != nil {
			m.log.Error("the Kubernetes API doesn't start", "err", err)
			k.again = m.pace.Clock.Now().Add(apiServerAgain)
			return false
		}
		k.server = server
	}
	k.serving, k.clusterID = true, p.Cluster().ID()
	m.cfg.World.Kubernetes.Serve(k.clusterID, m.cfg.Address, m.signKubelet)
	return true
}

func (k *kubeControl) endLocked() {
	if !k.serving {
		return
	}
	k.m.cfg.World.Kubernetes.Serve(k.clusterID, k.m.cfg.Address, nil)
	if k.server != nil {
		k.server.Close()
	}
	k.serving, k.server = false, nil
}

// containerRuns says whether the API server's container runs. It outlives what it serves.
func (k *kubeControl) containerRuns() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return !k.over && (k.serving || k.m.pace.Clock.Now().Before(k.ends))
}

// gone is the end of the machine's API server with the boot.
func (k *kubeControl) gone() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.over = true
	k.endLocked()
}

// restartKubelet makes the kubelet take up what has changed: its Service resource goes and comes back.
func (k *kubeControl) restartKubelet() {
	m := k.m
	m.spawn(func(ctx context.Context) {
		k.restarting.Lock()
		defer k.restarting.Unlock()
		if m.services.stateOf("kubelet") != stateRunning {
			return
		}
		if err := m.services.stop(ctx, "kubelet"); err != nil {
			return
		}
		if ctx.Err() == nil && !m.status.leaving() {
			_ = m.services.start("kubelet") // it is registered: it has run
		}
	})
}
