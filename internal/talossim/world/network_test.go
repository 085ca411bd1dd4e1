package world

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/utils/clock"
)

func TestAPacketArrivesWhereBothCablesAreInAndSomebodyIsThere(t *testing.T) {
	a, b := netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("127.0.0.2")
	n := newNetwork(clock.RealClock{})
	require.False(t, n.Reachable(a, b), "nothing runs there yet")
	require.True(t, n.Reachable(a, a), "one always reaches itself")
	n.Switch(b, true)
	require.True(t, n.Reachable(a, b))
	require.False(t, n.Reachable(b, a), "and nothing the other way")
	for _, cable := range []netip.Addr{a, b} {
		n.Link(cable).Partition()
		require.False(t, n.Reachable(a, b), "%s has its cable out", cable)
		n.Link(cable).Heal()
		require.True(t, n.Reachable(a, b))
	}
	n.Switch(b, false)
	require.False(t, n.Reachable(a, b))
}

func TestAMemberIsOfTheMachineThatItWasLastSeenOn(t *testing.T) {
	n := newNetwork(clock.RealClock{})
	require.False(t, n.Member("7").IsValid())
	n.SetMember("7", netip.MustParseAddr("127.0.0.1"))
	n.SetMember("7", netip.MustParseAddr("127.0.0.2"))
	require.Equal(t, "127.0.0.2", n.Member("7").String())
}
