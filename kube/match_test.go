package kube

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestANodeIsTheMachinesThatOthersThanTheMachineSayItIs(t *testing.T) {
	t.Parallel()
	machine := func(name, hostname string, declared ...string) Identity {
		return Identity{Name: name, SameUUID: func(uuid string) bool { return strings.EqualFold(uuid, "uuid-of-"+name) }, Names: []string{hostname}, Declared: declared}
	}
	w1, w2 := machine("w-1", "host-1", "10.0.0.1"), machine("w-2", "host-2", "10.0.0.2")
	honest := Node{Name: "host-2", SystemUUID: "uuid-of-w-2", Addresses: []string{"10.0.0.2", "host-2"}}
	for name, c := range map[string]struct {
		machines []Identity
		nodes    []Node
		want     map[string]string
		doubt    string
	}{
		"the UUID decides, not the name": {[]Identity{w1, w2}, []Node{{Name: "host-2", SystemUUID: "UUID-OF-w-1"}, {Name: "host-1", SystemUUID: "uuid-of-w-2"}},
			map[string]string{"w-1": "host-2", "w-2": "host-1"}, ""},
		"a kubelet that reports another machine's UUID takes nothing from it": {[]Identity{w1, w2}, []Node{{Name: "aaa", SystemUUID: "uuid-of-w-2"}, honest},
			map[string]string{"w-2": "host-2"}, ""},
		"of two that report a UUID, and neither bears its name, neither is believed": {[]Identity{w2}, []Node{{Name: "aaa", SystemUUID: "uuid-of-w-2"}, {Name: "bbb", SystemUUID: "uuid-of-w-2"}},
			map[string]string{}, "2 Nodes report the UUID of w-2 (aaa, bbb)"},
		"a machine that says it is called like a stranger doesn't get the stranger's Node": {[]Identity{machine("w-1", "db-1", "10.0.0.1")},
			[]Node{{Name: "db-1", SystemUUID: "uuid-of-nobody-here", Addresses: []string{"10.9.9.9"}}}, map[string]string{}, "the Node db-1 is called like w-1"},
		"nor where the stranger reports no UUID":                  {[]Identity{machine("w-1", "db-1", "10.0.0.1")}, []Node{{Name: "db-1", Addresses: []string{"10.9.9.9"}}}, map[string]string{}, "the Node db-1 is called like w-1"},
		"nor where the stranger is first in the alphabet":         {[]Identity{machine("w-1", "aaa", "10.0.0.1")}, []Node{{Name: "aaa"}, {Name: "host-1", SystemUUID: "uuid-of-w-1"}}, map[string]string{"w-1": "host-1"}, ""},
		"a machine that says it is called like another one":       {[]Identity{machine("w-1", "host-2", "10.0.0.1"), w2}, []Node{honest}, map[string]string{"w-2": "host-2"}, ""},
		"a Node without a UUID at the declared address":           {[]Identity{w1}, []Node{{Name: "host-1", Addresses: []string{"10.0.0.1"}}}, map[string]string{"w-1": "host-1"}, ""},
		"a Node whose UUID the board makes up, at the address":    {[]Identity{w1}, []Node{{Name: "host-1", SystemUUID: "machine-id", Addresses: []string{"10.0.0.1"}}}, map[string]string{"w-1": "host-1"}, ""},
		"a Node without a UUID of the declared host name":         {[]Identity{machine("w-1", "host-1", "w-1.example.com", "host-1")}, []Node{{Name: "host-1"}}, map[string]string{"w-1": "host-1"}, ""},
		"a Node without a UUID of a name that nobody vouches for": {[]Identity{machine("w-1", "host-1", "w-1.example.com")}, []Node{{Name: "host-1", Addresses: []string{"10.0.0.1"}}}, map[string]string{}, "give that name in spec.hostname"},
		"of two that bear names of a machine, the one at its address": {[]Identity{{Name: "w-1", SameUUID: func(string) bool { return false }, Names: []string{"one", "two"}, Declared: []string{"10.0.0.1"}}},
			[]Node{{Name: "one", Addresses: []string{"10.9.9.9"}}, {Name: "two", Addresses: []string{"10.0.0.1"}}}, map[string]string{"w-1": "two"}, ""},
		"an address is the same however it is written": {[]Identity{machine("w-1", "host-1", "FD00:0::1")}, []Node{{Name: "host-1", Addresses: []string{"fd00::1"}}}, map[string]string{"w-1": "host-1"}, ""},
		"a machine that isn't called anything":         {[]Identity{machine("w-1", "", "")}, []Node{{Name: ""}, {Name: "x"}}, map[string]string{}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			of, strangers, doubts := Match(c.machines, c.nodes)
			got := map[string]string{}
			for machine, node := range of {
				got[machine] = node.Name
			}
			require.Equal(t, c.want, got)
			require.Len(t, strangers, len(c.nodes)-len(c.want))
			require.Equal(t, c.doubt != "", len(doubts) > 0, "%v", doubts)
			for machine, doubt := range doubts {
				require.NotContains(t, got, machine)
				require.Contains(t, doubt, c.doubt)
			}
		})
	}
}
