package reconcile

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/talos"
)

func TestAMemberThatWasPromotedWhileItsRemovalWasTriedIsNotCalledStuck(t *testing.T) {
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	in := &Input{Now: now, Timing: DefaultTiming(), State: &statefile.State{}}
	next := &statefile.State{Joins: map[string]*statefile.JoinState{"66": {Machine: "cp-2", FirstSeen: now.Add(-time.Hour), Acts: 1, ActAt: now}}}
	etcd := etcdView{known: true, members: []talos.EtcdMember{{ID: 0x65, Name: "cp-1"}, {ID: 0x66, Name: "cp-2"}}, joined: map[string]bool{"cp-1": true}}
	says := map[string]verdict{}
	everyone := func(string) bool { return true }
	require.Nil(t, mendMembers(in, next, etcd, says, everyone))
	require.Empty(t, says)

	etcd.members[1].Learner = true
	require.Nil(t, mendMembers(in, next, etcd, says, everyone), "it was asked for a moment ago")
	require.Equal(t, "JoinStuck", says["cp-2"].reason)
}
