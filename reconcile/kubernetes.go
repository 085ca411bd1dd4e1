package reconcile

import (
	"context"
	"crypto/tls"
	"net"
	"slices"
	"time"

	"ichor.maesh.dev/kube"
	"ichor.maesh.dev/talos"
)

// certificateLife is how long a certificate for the Kubernetes API lives: it is made anew for each connection.
const certificateLife = 10 * time.Minute

// OpenKubernetes gives the way to a cluster's Kubernetes API, with certificates minted from the cluster's bundle. They are of the group of
// administrators: evictions and Nodes are nobody else's, and no role of Ichor's own needs to be made in the cluster first.
func OpenKubernetes(now func() time.Time) func(*talos.Bundle, []string) (Kubernetes, error) {
	return func(bundle *talos.Bundle, servers []string) (Kubernetes, error) {
		client, err := kube.New(kube.Options{Servers: servers, CA: bundle.KubernetesCA(), Certificate: func() (tls.Certificate, error) {
			return bundle.MintKubernetes("ichor", []string{talos.GroupMasters}, certificateLife, now())
		}})
		if err != nil {
			return nil, err
		}
		return client, nil
	}
}

// kubernetesLook bounds one look at the Kubernetes API.
const kubernetesLook = 20 * time.Second

// kubernetesServers are the addresses at which the Kubernetes API of a cluster is asked for, in that order: each control plane, and the
// cluster's endpoint last, since a virtual address goes away with the machine that holds it.
func kubernetesServers(c Cluster) []string {
	var servers []string
	for _, m := range c.Machines {
		if isControlPlane(m) && m.Spec.Approved {
			servers = append(servers, net.JoinHostPort(m.Spec.Host(), "6443"))
		}
	}
	if c.Object.Spec.Endpoint != "" {
		servers = append(servers, c.Object.Spec.Endpoint)
	}
	return servers
}

// kubernetes gives the way to the cluster's Kubernetes API, made anew when its addresses changed; nil and why where there is none.
func (w *worker) kubernetes(desired Cluster) (Kubernetes, string) {
	if w.agent.config.OpenKubernetes == nil {
		return nil, errNoKubernetes.Error()
	}
	servers := kubernetesServers(desired)
	if w.kube.api == nil || !slices.Equal(w.kube.servers, servers) || w.kube.bundle != w.bundle {
		api, err := w.agent.config.OpenKubernetes(w.bundle, servers)
		if err != nil {
			return nil, w.agent.scrubber.Text(err.Error())
		}
		w.kube.api, w.kube.servers, w.kube.bundle = api, servers, w.bundle
	}
	return w.kube.api, ""
}

// lookAtKubernetes asks the Kubernetes API what it says of the cluster's machines.
func (w *worker) lookAtKubernetes(ctx context.Context, desired Cluster, in *Input) *KubernetesView {
	view := &KubernetesView{Nodes: map[string]kube.Node{}, Drain: w.kube.drain, DrainOf: w.kube.drainOf}
	api, problem := w.kubernetes(desired)
	if problem != "" {
		view.Problem = problem
		return view
	}
	ctx, cancel := context.WithTimeout(ctx, kubernetesLook)
	defer cancel()
	nodes, err := api.Nodes(ctx)
	if err != nil {
		view.Problem = w.agent.scrubber.Text(err.Error())
		return view
	}
	view.match(in, nodes)
	return view
}

// match finds the machine behind each Node. What a machine says that it is called counts only where Git says it too, or where the Node lies
// at the address in Git.
func (v *KubernetesView) match(in *Input, nodes []kube.Node) {
	var machines []kube.Identity
	for _, name := range in.names() {
		uuid := in.uuid(name)
		one := kube.Identity{Name: name, SameUUID: func(other string) bool { return talos.SameUUID(uuid, other) }, Names: []string{in.hostname(name)}}
		if m := in.Cluster.Machine(name); m != nil {
			one.Declared = []string{m.Spec.Hostname, m.Spec.Host()}
		} else {
			one.Declared = []string{host(in.remembered(name).Address)}
		}
		machines = append(machines, one)
	}
	v.Nodes, v.Strangers, v.Doubts = kube.Match(machines, nodes)
}

// names are the machines in Git and those that only the state knows, sorted.
func (in *Input) names() []string {
	var names []string
	for _, m := range in.Cluster.Machines {
		names = append(names, m.Metadata.Name)
	}
	for name := range in.State.Machines {
		if in.Cluster.Machine(name) == nil {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// uuid is the UUID of a machine by Git, else by the state.
func (in *Input) uuid(name string) string {
	if m := in.Cluster.Machine(name); m != nil {
		return m.Spec.UUID
	}
	return in.remembered(name).UUID
}
