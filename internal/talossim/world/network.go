package world

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync"

	"k8s.io/utils/clock"

	"ichor.maesh.dev/internal/talossim/apid"
)

// Network knows each machine's cable, and which machine an etcd member runs on.
type Network struct {
	clk clock.WithTicker

	mu      sync.Mutex
	links   map[netip.Addr]*apid.Link
	on      map[netip.Addr]bool
	members map[string]netip.Addr
}

func newNetwork(clk clock.WithTicker) *Network {
	return &Network{clk: clk, links: map[netip.Addr]*apid.Link{}, on: map[netip.Addr]bool{}, members: map[string]netip.Addr{}}
}

// Link returns the cable of the machine at an address, making it when there is none yet.
func (n *Network) Link(addr netip.Addr) *apid.Link {
	n.mu.Lock()
	defer n.mu.Unlock()
	l, ok := n.links[addr]
	if !ok {
		l = apid.NewLink(n.clk)
		n.links[addr] = l
	}
	return l
}

// Switch says whether the machine at an address has an operating system that answers packets.
func (n *Network) Switch(addr netip.Addr, on bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.on[addr] = on
}

// Reachable says whether a packet from one machine would arrive at another.
func (n *Network) Reachable(from, to netip.Addr) bool {
	if from == to {
		return true
	}
	n.mu.Lock()
	on := n.on[to]
	n.mu.Unlock()
	return on && !n.Link(from).Partitioned() && !n.Link(to).Partitioned()
}

// Dial connects one machine to an address and port of another. The connection depends on both machines' cables.
func (n *Network) Dial(ctx context.Context, from netip.Addr, target string) (net.Conn, error) {
	to, err := netip.ParseAddrPort(target)
	if err != nil {
		return nil, fmt.Errorf("dialling %q: %w", target, err)
	}
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", target)
	if err != nil || from == to.Addr() {
		return c, err
	}
	return n.Link(from).Wrap(c), nil
}

// SetMember says which machine an etcd member runs on, so that its peer connections can be told apart.
func (n *Network) SetMember(id string, addr netip.Addr) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.members[id] = addr
}

// Member returns the machine of an etcd member, an invalid address when it is unknown.
func (n *Network) Member(id string) netip.Addr {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.members[id]
}
