package reconcile

import (
	"testing"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/recovery"
)

func TestTheTargetOfTheLastRestoreIsAvoided(t *testing.T) {
	for name, test := range map[string]struct{ target, holder, own, last, want string }{
		"another one was it": {"cp-1", "", "", "cp-2", "cp-1"},
		"all are wiped":      {"cp-1", "", "", "cp-1", "cp-2"},
		"all are wiped, and the agent's own comes last": {"cp-1", "", "cp-2", "cp-1", "cp-3"},
		"one is wiped":                          {"cp-1", "cp-2", "", "cp-1", "cp-3"},
		"one is wiped, and the agent must live": {"cp-1", "cp-2", "cp-1", "cp-1", "cp-1"},
	} {
		m := &recovery.Marker{Machines: []recovery.Machine{{Name: "cp-1"}, {Name: "cp-2"}, {Name: "cp-3"}}, Target: test.target, Holder: test.holder, Own: test.own}
		avoidTarget(m, test.last)
		require.Equal(t, test.want, m.Target, name)
	}
	two := &recovery.Marker{Machines: []recovery.Machine{{Name: "cp-1"}, {Name: "cp-2"}}, Target: "cp-1", Holder: "cp-2"}
	avoidTarget(two, "cp-1")
	require.Equal(t, "cp-1", two.Target, "there is no other")
}
