package reconcile

import (
	"context"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"ichor.maesh.dev/internal/talossim"
	"ichor.maesh.dev/recovery"
)

// fullAfterLoss loses the data of two control planes of three: etcd has no quorum, and all are wiped.
func fullAfterLoss(l *restoreLab) {
	m := l.moment()
	since := l.tally(mutations()...)
	l.loseData("cp-2")
	l.loseData("cp-3")
	l.quorumless("cp-1")
	l.restores("full", m, accepting)
	report := l.agent(whole("full"))
	l.cameBack(report, "full", m)
	require.Empty(l.t, l.marker().Holder)
	require.Empty(l.t, since()["EtcdLeaveCluster"])
	require.Equal(l.t, 1, since()["Reset"]["cp-1"])
	require.Equal(l.t, map[string]int{l.target(): 1}, since()["Bootstrap"])
}

// fullUnderTheAgent has etcd lose its quorum with the agent on the one control plane that has its data still: that is wiped once the others have
// recovered, the agent dies with it, and one on another machine goes on.
func fullUnderTheAgent(l *restoreLab) {
	m := l.moment()
	since := l.tally(mutations()...)
	l.loseData("cp-2")
	l.loseData("cp-3")
	l.quorumless("cp-1")
	l.nodeName = "cp-1"
	defer func() { l.nodeName = "" }()
	l.restores("under-the-agent", m, accepting)
	// Nothing of its etcd answers, so that it might be one that has only just joined: for some minutes it is waited for.
	l.killedWhile("after restore's Reset", l.turning("under-the-agent", "cp-1 is member", recovery.DefaultTiming().Broken+time.Minute, func(Report) bool { return false }))
	marker := l.marker()
	require.Equal(l.t, recovery.PhaseJoining, marker.Phase)
	require.Equal(l.t, "cp-1", marker.Own)
	require.NotEqual(l.t, "cp-1", marker.Target)
	require.Equal(l.t, map[string]int{"cp-1": 1}, since()["Reset"], "the agent's own alone, for the others lost their data")
	for _, name := range []string{"cp-2", "cp-3"} {
		require.Equal(l.t, m.held, l.held(name), "%s has recovered before the agent's own was wiped", name)
	}
	l.nodeName = marker.Target
	report := l.agent(whole("under-the-agent"))
	l.cameBack(report, "under-the-agent", m)
	require.Equal(l.t, map[string]int{"cp-1": 1}, since()["Reset"])
	require.Equal(l.t, map[string]int{marker.Target: 1}, since()["Bootstrap"])
	require.Empty(l.t, since()["EtcdLeaveCluster"])
}

// oneStaysAway restores on two of three while the third is off for good; it comes back with the old etcd on it all the same.
func oneStaysAway(l *restoreLab) {
	m := l.moment()
	require.NoError(l.t, l.farm.Node("cp-3").PowerOff())
	require.NoError(l.t, l.farm.Node("cp-2").PowerOff())
	l.quorumless("cp-1")
	l.farm.Node("cp-2").PowerOn()
	l.restores("two", m, accepting, "cp-3")
	done := func(r Report) bool { return stands("two")(r) }
	report := l.agent(done)
	l.cameBack(report, "two", m, "cp-1", "cp-2")
	since := l.tally(mutations()...)
	l.farm.Node("cp-3").PowerOn()
	// It is alone with the old etcd, and has no quorum. That is said, and nothing of it is believed.
	report = l.agent(func(r Report) bool {
		return len(r.Clusters) > 0 && r.Clusters[0].State != nil && !r.Clusters[0].Ready.Status && l.farm.Node("cp-3").KubeletUp()
	})
	l.cameBack(report, "two", m, "cp-1", "cp-2")
	l.tookNothing(since)
	require.NoError(l.t, l.farm.Node("cp-3").PowerOff())
	require.NoError(l.t, l.farm.Node("cp-3").LoseEtcdData())
	l.farm.Node("cp-3").PowerOn()
	l.settle()
	l.cameBack(report, "two", m)
}

// straggler has a control plane finish its wipe while the two others still hold a quorum of the old etcd: it joins that again, and is wiped
// once more.
func straggler(l *restoreLab) {
	m := l.moment()
	// A learner that nobody promotes: etcd isn't healthy, and has its quorum.
	require.NoError(l.t, l.farm.Node("cp-3").PowerOff())
	require.NoError(l.t, l.farm.Node("cp-3").LoseEtcdData())
	remove := l.farm.Node("cp-3").Inject(talossim.Fault{Method: talossim.BeforePromotion, Kind: talossim.Hang})
	l.farm.Node("cp-3").PowerOn()
	l.etcd("cp-1", func(ctx context.Context, client *clientv3.Client) {
		require.Eventually(l.t, func() bool {
			list, err := client.MemberList(ctx)
			if err != nil {
				return false
			}
			for _, member := range list.Members {
				if member.IsLearner && member.Name == "cp-3" {
					return true
				}
			}
			return false
		}, ample, 100*time.Millisecond)
	})
	was, _ := l.memberOf("cp-1", "cp-3")
	since := l.tally(mutations()...)
	var over []func()
	for _, cp := range []string{"cp-1", "cp-2"} {
		over = append(over, l.farm.Node(cp).Inject(talossim.Fault{Method: talossim.BeforeStopping, Kind: talossim.Hang}))
	}
	l.restores("straggler", m, accepting)
	rejoined := false
	report := l.agent(l.turning("straggler", "cp-3 is member", recovery.DefaultTiming().Again+time.Minute, func(r Report) bool {
		if !rejoined && since()["Reset"]["cp-3"] > 0 && since()["Reset"]["cp-1"] > 0 && since()["Reset"]["cp-2"] > 0 {
			is, started := l.memberOf("cp-1", "cp-3")
			rejoined = started && is != was
		}
		if rejoined && remove != nil {
			remove()
			remove = nil
			for _, goOn := range over {
				goOn()
			}
		}
		return whole("straggler")(r)
	}))
	require.True(l.t, rejoined)
	l.cameBack(report, "straggler", m)
	require.Equal(l.t, map[string]int{"cp-1": 1, "cp-2": 1, "cp-3": 2}, since()["Reset"])
}

// stragglersOfTheFirst restores a second time while members of what the first restore made are still about: another machine recovers, since
// the same one would have the same member and cluster IDs again, and be taken in by them.
func stragglersOfTheFirst(l *restoreLab) {
	m := l.moment()
	l.loseData("cp-2")
	l.loseData("cp-3")
	l.quorumless("cp-1")
	l.restores("first", m, accepting)
	report := l.agent(whole("first"))
	l.cameBack(report, "first", m)
	target := l.target()
	// Of the three that the first restore made, the target has its data, one comes too late, and one has lost its own.
	var late, lost string
	for _, name := range l.controlPlanes() {
		switch {
		case name == target:
		case late == "":
			late = name
		default:
			lost = name
		}
	}
	require.NoError(l.t, l.farm.Node(late).PowerOff())
	l.loseData(lost)
	l.quorumless(target)
	l.restores("second", m, accepting, late)
	on := make(chan struct{})
	report = l.hooked(at("after marker outcome recover", func() error {
		defer close(on)
		l.farm.Node(late).PowerOn()
		return nil
	}), stands("second"))
	met(l, on)
	l.cameBack(report, "second", m, target, lost)
	require.NotEqual(l.t, target, l.target())
	require.NoError(l.t, l.farm.Node(late).PowerOff())
	require.NoError(l.t, l.farm.Node(late).LoseEtcdData())
	l.farm.Node(late).PowerOn()
	l.settle()
	l.cameBack(report, "second", m)
}

// fullOfFive loses three of five.
func fullOfFive(l *restoreLab) {
	m := l.moment()
	since := l.tally(mutations()...)
	for _, name := range []string{"cp-2", "cp-4", "cp-5"} {
		l.loseData(name)
	}
	l.quorumless("cp-1")
	l.restores("full", m, accepting)
	l.cameBack(l.agent(whole("full")), "full", m)
	require.Equal(l.t, 1, since()["Reset"]["cp-1"])
	require.Equal(l.t, 1, since()["Reset"]["cp-3"])
	require.Equal(l.t, map[string]int{l.target(): 1}, since()["Bootstrap"])
}
