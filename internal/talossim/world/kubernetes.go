package world

import (
	"context"
	"net/netip"
	"slices"
	"sync"
)

// KubeletSigner answers a kubelet that has no certificate yet but knows the cluster's bootstrap token, as the controllers of a control
// plane do: the signed certificate, PEM.
type KubeletSigner func(ctx context.Context, token string, csr []byte) (cert []byte, err error)

// Kubernetes knows which machines serve the Kubernetes API of a cluster. What the API says is in the cluster's etcd.
type Kubernetes struct {
	mu       sync.Mutex
	clusters map[string]map[netip.Addr]KubeletSigner
}

// Serve makes a machine one that serves the API of a cluster; nil ends it.
func (k *Kubernetes) Serve(clusterID string, addr netip.Addr, sign KubeletSigner) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if sign == nil {
		delete(k.clusters[clusterID], addr)
		return
	}
	if k.clusters[clusterID] == nil {
		k.clusters[clusterID] = map[netip.Addr]KubeletSigner{}
	}
	k.clusters[clusterID][addr] = sign
}

// APIs returns the machines that serve the API of a cluster.
func (k *Kubernetes) APIs(clusterID string) []netip.Addr {
	k.mu.Lock()
	defer k.mu.Unlock()
	var addrs []netip.Addr
	for a := range k.clusters[clusterID] {
		addrs = append(addrs, a)
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	return addrs
}

// Signer returns who signs for kubelets on a machine, nil when it serves no API of the cluster.
func (k *Kubernetes) Signer(clusterID string, addr netip.Addr) KubeletSigner {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.clusters[clusterID][addr]
}
