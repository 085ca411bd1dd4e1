package machined

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/siderolabs/talos/pkg/machinery/resources/cluster"
	"github.com/siderolabs/talos/pkg/machinery/resources/k8s"
)

// discoveryLag is how long news takes to and from the discovery service.
const discoveryLag = 3 * time.Second

// discover tells the discovery service about the machine and shows what it tells about the others.
func (m *Machine) discover(ctx context.Context) {
	for m.pace.Sleep(ctx, discoveryLag) == nil {
		if p := m.conf.current(); p == nil || p.Cluster() == nil || !p.Cluster().Discovery().Enabled() || !p.Cluster().Discovery().Registries().Service().Enabled() {
			continue
		}
		if m.cfg.World.Network.Link(m.cfg.Address).Partitioned() {
			continue
		}
		clusterID := m.conf.current().Cluster().ID()
		if own := m.affiliate(); own.NodeID != "" && own.Nodename != "" && !m.status.leaving() {
			m.cfg.World.Discovery.Publish(clusterID, own)
		}
		m.showAffiliates(m.cfg.World.Discovery.List(clusterID))
	}
}

func (m *Machine) affiliate() cluster.AffiliateSpec {
	t := m.conf.machineType()
	spec := cluster.AffiliateSpec{
		NodeID: m.nodeID(), Addresses: []netip.Addr{m.cfg.Address}, Hostname: m.hostname(), Nodename: m.hostname(),
		OperatingSystem: "Talos (" + Version + ")", MachineType: t,
	}
	if t.IsControlPlane() {
		spec.ControlPlane = &cluster.ControlPlane{APIServerPort: m.conf.current().Cluster().LocalAPIServerPort()}
	}
	return spec
}

// forgetAffiliate takes the machine's entry back, as a reset does.
func (m *Machine) forgetAffiliate() {
	if p := m.conf.current(); p != nil && p.Cluster() != nil {
		m.cfg.World.Discovery.Delete(p.Cluster().ID(), m.nodeID())
	}
}

func (m *Machine) showAffiliates(specs []cluster.AffiliateSpec) {
	own := m.nodeID()
	affiliates, members := map[string]bool{}, map[string]bool{}
	var controlPlanes []netip.Addr
	for _, spec := range specs {
		affiliates[spec.NodeID] = true
		a := cluster.NewAffiliate(cluster.NamespaceName, spec.NodeID)
		*a.TypedSpec() = spec
		m.put(a)
		if spec.NodeID != own {
			raw := cluster.NewAffiliate(cluster.RawNamespaceName, "service/"+spec.NodeID)
			*raw.TypedSpec() = spec
			m.put(raw)
			affiliates["service/"+spec.NodeID] = true
		}
		members[spec.Nodename] = true
		r := cluster.NewMember(cluster.NamespaceName, spec.Nodename)
		*r.TypedSpec() = cluster.MemberSpec{
			NodeID: spec.NodeID, Addresses: spec.Addresses, Hostname: spec.Hostname, MachineType: spec.MachineType,
			OperatingSystem: spec.OperatingSystem, ControlPlane: spec.ControlPlane,
		}
		m.put(r)
		if spec.MachineType.IsControlPlane() {
			controlPlanes = append(controlPlanes, spec.Addresses...)
		}
	}
	prune(m, cluster.NewAffiliate(cluster.NamespaceName, ""), affiliates)
	prune(m, cluster.NewAffiliate(cluster.RawNamespaceName, ""), affiliates)
	prune(m, cluster.NewMember(cluster.NamespaceName, ""), members)
	m.putEndpoint(k8s.ControlPlaneDiscoveredEndpointsID, controlPlanes)
}

// prune removes the resources of a kind that aren't to be kept.
func prune[T resource.Resource](m *Machine, kind T, keep map[string]bool) {
	list, err := safe.StateList[T](m.ctx, m.st, kind.Metadata())
	if err != nil {
		return
	}
	for r := range list.All() {
		if !keep[r.Metadata().ID()] {
			m.drop(r)
		}
	}
}

func (m *Machine) putEndpoint(id string, addrs []netip.Addr) {
	r := k8s.NewEndpoint(k8s.ControlPlaneNamespaceName, id)
	if len(addrs) == 0 {
		m.drop(r)
		return
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	r.TypedSpec().Addresses = slices.Compact(addrs)
	m.put(r)
}

// controlPlaneEndpoints are the addresses that all Endpoint resources name.
func (m *Machine) controlPlaneEndpoints() []netip.Addr {
	list, err := safe.StateListAll[*k8s.Endpoint](m.ctx, m.st)
	if err != nil {
		return nil
	}
	var addrs []netip.Addr
	for r := range list.All() {
		addrs = append(addrs, r.TypedSpec().Addresses...)
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	return slices.Compact(addrs)
}
