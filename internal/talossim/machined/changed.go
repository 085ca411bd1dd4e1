package machined

import (
	"bytes"
	"net"
	"net/netip"
	"slices"

	"github.com/siderolabs/crypto/x509"
	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/resources/cluster"
	configres "github.com/siderolabs/talos/pkg/machinery/resources/config"
	etcdres "github.com/siderolabs/talos/pkg/machinery/resources/etcd"
	"github.com/siderolabs/talos/pkg/machinery/resources/k8s"
	"github.com/siderolabs/talos/pkg/machinery/resources/secrets"
	"sigs.k8s.io/yaml"
)

// configChanged makes everything follow a config that has become active.
func (m *Machine) configChanged(old, now config.Provider) {
	m.volumes.locate()
	m.publishHostname()
	m.publishMachineType()
	if now.RawV1Alpha1() == nil {
		return
	}
	m.publishCluster(now)
	m.publishSecrets(now)
	m.publishEndpoint(now)
	m.kube.publishComponents(now)
	m.front.refresh()
	if old != nil && old.RawV1Alpha1() != nil && !bytes.Equal(kubeletInputs(old), kubeletInputs(now)) {
		m.kube.restartKubelet()
	}
	m.status.poke()
}

// publishMachineType: the type exists from the start, and is unknown without a config.
func (m *Machine) publishMachineType() {
	r := configres.NewMachineType()
	r.SetMachineType(m.conf.machineType())
	m.put(r)
}

func (m *Machine) publishCluster(p config.Provider) {
	info := cluster.NewInfo()
	info.TypedSpec().ClusterID, info.TypedSpec().ClusterName = p.Cluster().ID(), p.Cluster().Name()
	m.put(info)
	if name := m.hostname(); name != "" {
		nodename := k8s.NewNodename(k8s.NamespaceName, k8s.NodenameID)
		nodename.TypedSpec().Nodename = name
		nodename.TypedSpec().SkipNodeRegistration = p.Machine().Kubelet().SkipNodeRegistration()
		m.put(nodename)
		if p.Machine().Type().IsControlPlane() {
			spec := etcdres.NewSpec(etcdres.NamespaceName, etcdres.SpecID)
			s := spec.TypedSpec()
			s.Name, s.Image = name, p.Cluster().Etcd().Image()
			s.AdvertisedAddresses = []netip.Addr{m.cfg.Address}
			s.ListenPeerAddresses, s.ListenClientAddresses = s.AdvertisedAddresses, s.AdvertisedAddresses
			m.put(spec)
		}
	}
}

func (m *Machine) publishSecrets(p config.Provider) {
	security := p.Machine().Security()
	root := secrets.NewOSRoot(secrets.OSRootID)
	spec := root.TypedSpec()
	spec.IssuingCA, spec.AcceptedCAs, spec.Token = security.IssuingCA(), slices.Clone(security.AcceptedCAs()), security.Token()
	if spec.IssuingCA != nil {
		spec.AcceptedCAs = append(spec.AcceptedCAs, &x509.PEMEncodedCertificate{Crt: spec.IssuingCA.Crt})
		if len(spec.IssuingCA.Key) == 0 {
			spec.IssuingCA = nil // a worker only accepts
		}
	}
	ips, names, _ := m.front.sans()
	for _, ip := range ips {
		if addr, ok := netip.AddrFromSlice(ip); ok {
			spec.CertSANIPs = append(spec.CertSANIPs, addr.Unmap())
		}
	}
	spec.CertSANDNSNames = names
	m.put(root)
}

// publishEndpoint resolves the cluster endpoint of the config.
func (m *Machine) publishEndpoint(p config.Provider) {
	var addrs []netip.Addr
	if u := p.Cluster().Endpoint(); u != nil {
		if a, err := netip.ParseAddr(u.Hostname()); err == nil {
			addrs = append(addrs, a)
		} else if ips, err := (&net.Resolver{}).LookupNetIP(m.ctx, "ip4", u.Hostname()); err == nil {
			addrs = append(addrs, ips...)
		}
	}
	m.putEndpoint(k8s.ControlPlaneKubernetesEndpointsID, addrs)
}

// kubeletInputs is what the kubelet has to be restarted for.
func kubeletInputs(p config.Provider) []byte {
	raw := p.RawV1Alpha1()
	inputs := map[string]any{"kubelet": raw.MachineConfig.MachineKubelet, "taints": raw.MachineConfig.MachineNodeTaints}
	if c := raw.ClusterConfig; c != nil {
		inputs["ca"], inputs["acceptedCAs"] = c.ClusterCA, c.ClusterAcceptedCAs
		inputs["network"], inputs["endpoint"] = c.ClusterNetwork, c.Endpoint()
	}
	out, _ := yaml.Marshal(inputs) // what can't be encoded can't have been decoded
	return out
}
