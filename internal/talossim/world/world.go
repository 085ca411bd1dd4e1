package world

import (
	"net/netip"
	"sync"

	"k8s.io/utils/clock"
)

// World is the surroundings of the machines of one farm.
type World struct {
	Network    *Network
	Discovery  *Discovery
	Kubernetes *Kubernetes
	Trustd     *Trustd
	// MemberChange is held by a machine while it changes the members of etcd, where etcd's own checks are off.
	MemberChange sync.Mutex
}

// New makes a world without machines. scale divides the lifetimes in it.
func New(clk clock.WithTicker, scale float64) *World {
	return &World{
		Network:    newNetwork(clk),
		Discovery:  &Discovery{clk: clk, scale: scale, clusters: map[string]map[string]*entry{}},
		Kubernetes: &Kubernetes{clusters: map[string]map[netip.Addr]KubeletSigner{}},
		Trustd:     &Trustd{servers: map[string]Signer{}},
	}
}
