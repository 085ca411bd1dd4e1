package kube

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Identity is what is known of a machine whose Node is looked for.
type Identity struct {
	Name string
	// SameUUID says whether a UUID is the machine's.
	SameUUID func(uuid string) bool
	// Names are what its Node may be called, by its own word or anybody's.
	Names []string
	// Declared are names and addresses of it that others than the machine itself vouch for.
	Declared []string
}

// Match finds each machine's Node, and gives the Nodes that are nobody's. A machine's Node is the one whose kubelet reports its UUID. Where
// several do, all but one of them lie: it is the one that bears the machine's name, or none. Where none does, it is the one of its name that
// reports no other machine's UUID and bears what is declared of the machine: its own word alone would let a machine that was broken into
// have another's Node drained and deleted in its place.
//
// Doubts say of a machine without a Node why it may have one all the same: that it has none is not known.
func Match(machines []Identity, nodes []Node) (of map[string]Node, strangers []Node, doubts map[string]string) {
	of, doubts = map[string]Node{}, map[string]string{}
	taken := map[string]bool{}                                // Nodes that are some machine's
	claimed, claiming := map[string]bool{}, map[string]bool{} // machines whose UUID some Node reports, and Nodes that report a machine's
	take := func(machine string, found []Node) bool {
		if len(found) != 1 {
			return false
		}
		of[machine], taken[found[0].Name] = found[0], true
		return true
	}
	for _, m := range machines {
		claims := having(nodes, func(n Node) bool { return m.SameUUID(n.SystemUUID) })
		for _, n := range claims {
			claimed[m.Name], claiming[n.Name] = true, true
		}
		its := claims
		if len(claims) > 1 {
			its = having(claims, m.isCalled)
		}
		if !take(m.Name, its) && len(claims) > 1 {
			doubts[m.Name] = fmt.Sprintf("%d Nodes report the UUID of %s (%s), and which is its own isn't known; delete those that aren't", len(claims), m.Name, namesOf(claims))
		}
	}
	for _, m := range machines {
		if claimed[m.Name] {
			continue
		}
		called := having(nodes, func(n Node) bool { return !claiming[n.Name] && !taken[n.Name] && m.isCalled(n) })
		if !take(m.Name, having(called, m.declares)) && len(called) > 0 {
			doubts[m.Name] = fmt.Sprintf("the Node %s is called like %s, and reports neither its UUID nor its address; if it is its Node, give that name in spec.hostname "+
				"or the Node's address in spec.endpoint", called[0].Name, m.Name)
		}
	}
	return of, having(nodes, func(n Node) bool { return !taken[n.Name] }), doubts
}

func namesOf(nodes []Node) string {
	var names []string
	for _, n := range nodes {
		names = append(names, n.Name)
	}
	return strings.Join(firstOf(names), ", ")
}

func having(nodes []Node, is func(Node) bool) (found []Node) {
	for _, n := range nodes {
		if is(n) {
			found = append(found, n)
		}
	}
	return found
}

func (m Identity) isCalled(n Node) bool {
	return slices.ContainsFunc(m.Names, func(name string) bool { return name != "" && strings.EqualFold(name, n.Name) })
}

func (m Identity) declares(n Node) bool {
	return slices.ContainsFunc(m.Declared, func(is string) bool {
		return is != "" && (strings.EqualFold(is, n.Name) || slices.ContainsFunc(n.Addresses, func(at string) bool { return sameAddress(is, at) }))
	})
}

// sameAddress compares addresses however they are written.
func sameAddress(a, b string) bool {
	one, err := netip.ParseAddr(a)
	if err != nil {
		return strings.EqualFold(a, b)
	}
	other, err := netip.ParseAddr(b)
	return err == nil && one.Unmap() == other.Unmap()
}
