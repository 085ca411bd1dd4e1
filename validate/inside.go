package validate

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/siderolabs/talos/pkg/machinery/constants"

	"ichor.maesh.dev/schema"
)

// Inside says what of the fleet's clusters an endpoint is: a machine, a cluster's endpoint, or a name or an address that
// exists inside of a cluster only. Empty: nothing of theirs that Git knows. What is kept inside is lost with the cluster.
func Inside(f *schema.Fleet, endpoint string) string { return newPlaces(f).inside(endpoint, "") }

// places are the hosts and networks of a fleet's clusters.
type places struct {
	hosts    map[string]string // what a host is
	domains  map[string]string // the cluster of a domain
	clusters []*schema.TalosCluster
}

func newPlaces(f *schema.Fleet) *places {
	p := &places{hosts: map[string]string{}, domains: map[string]string{}, clusters: f.Clusters}
	for _, c := range f.Clusters {
		name := c.Metadata.Name
		if host := hostOf(c.Spec.Endpoint); host != "" {
			p.hosts[host] = fmt.Sprintf("the endpoint of cluster %s", name)
		}
		if domain := strings.ToLower(cmp.Or(c.Spec.Network.DNSDomain, constants.DefaultDNSDomain)); p.domains[domain] == "" {
			p.domains[domain] = name
		}
	}
	for _, m := range f.Machines {
		if host := hostOf(m.Spec.Endpoint); host != "" {
			p.hosts[host] = fmt.Sprintf("the machine %s of cluster %s", m.Metadata.Name, m.Spec.ClusterRef.Name)
		}
	}
	return p
}

// inside does the work of Inside. With a cluster's name only that cluster's networks count, because those of others may well
// be in use outside of them.
func (p *places) inside(endpoint, cluster string) string {
	host := hostOf(endpoint)
	if host == "" {
		return ""
	}
	if found := p.hosts[host]; found != "" {
		return found
	}
	if strings.HasSuffix(host, ".svc") {
		return "the name of a service in a cluster"
	}
	for parent, ok := host, true; ok; _, parent, ok = strings.Cut(parent, ".") {
		if name := p.domains[parent]; name != "" {
			return fmt.Sprintf("a name in %s, the domain of the services of cluster %s", parent, name)
		}
	}
	for _, c := range p.clusters {
		if cluster != "" && cluster != c.Metadata.Name {
			continue
		}
		if network := networkOf(host, networksOf(c.Spec.Network)); network != "" {
			return fmt.Sprintf("in %s, a network of the pods or services of cluster %s", network, c.Metadata.Name)
		}
	}
	return ""
}

// networksOf gives the networks of a cluster's pods and services.
func networksOf(spec schema.NetworkSpec) []string {
	pods, services := spec.PodSubnets, spec.ServiceSubnets
	if len(pods) == 0 {
		pods = []string{constants.DefaultIPv4PodNet}
	}
	if len(services) == 0 {
		services = []string{constants.DefaultIPv4ServiceNet}
	}
	return slices.Concat(pods, services)
}
