package machined

import (
	"context"
	"fmt"
	"net/url"

	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
)

type healthCheck struct {
	name    string
	problem func() string
}

// healthChecks are those of Talos's list (pkg/cluster/check/default.go) that a simulated cluster can fail, in its order.
func (m *Machine) healthChecks() []healthCheck {
	return []healthCheck{
		{"etcd to be healthy", func() string {
			if m.etcd.isHealthy() {
				return ""
			}
			return "the local member is not healthy"
		}},
		{"etcd members to be consistent across nodes", m.memberProblem},
		{"kubelet to be healthy", func() string {
			if m.services.isUp("kubelet") {
				return ""
			}
			return "not healthy"
		}},
		{"all nodes to finish boot sequence", func() string {
			r, ok := get(m.ctx, m.st, runtime.NewMachineStatus())
			if ok && r.TypedSpec().Stage == runtime.MachineStageRunning {
				return ""
			}
			return "still booting"
		}},
		{"all k8s nodes to report ready", m.nodesProblem},
	}
}

func (m *Machine) memberProblem() string {
	ctx, cancel := m.pace.Within(m.ctx, workFloor)
	defer cancel()
	c, err := m.etcdLocalClient()
	if err != nil {
		return err.Error()
	}
	defer c.Close() //nolint:errcheck // only read from
	list, err := c.MemberList(ctx)
	if err != nil {
		return context.Cause(ctx).Error()
	}
	known := map[string]bool{}
	for _, a := range m.controlPlaneEndpoints() {
		known[a.String()] = true
	}
	for _, mb := range list.Members {
		for _, raw := range mb.PeerURLs {
			if u, err := url.Parse(raw); err == nil && !known[u.Hostname()] {
				return fmt.Sprintf("member %016x at %s is no control plane node", mb.ID, u.Hostname())
			}
		}
		if mb.IsLearner || mb.Name == "" {
			return fmt.Sprintf("member %016x is not a started voter", mb.ID)
		}
	}
	return ""
}

func (m *Machine) nodesProblem() string {
	ctx, cancel := m.pace.Within(m.ctx, workFloor)
	defer cancel()
	nodes, err := m.kubelet.nodes(ctx)
	if err != nil {
		return err.Error()
	}
	for _, n := range nodes {
		if !isReady(&n) {
			return fmt.Sprintf("node %q is not ready", n.Name)
		}
	}
	return ""
}
