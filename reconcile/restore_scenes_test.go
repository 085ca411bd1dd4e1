package reconcile

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/internal/talossim"
	"ichor.maesh.dev/recovery"
	"ichor.maesh.dev/statefile"
)

// hosted plays a gentle restore whose agent runs on a machine: it recovers there where that is a control plane, and lives through it.
func hosted(name string, on func(l *restoreLab) string) func(l *restoreLab) {
	return func(l *restoreLab) {
		l.nodeName = on(l)
		defer func() { l.nodeName = "" }()
		m := l.moment()
		since := l.tally(mutations()...)
		l.restores(name, m, accepting)
		l.cameBack(l.agent(whole(name)), name, m)
		took := since()
		require.Len(l.t, took["Reset"], 1)
		require.Len(l.t, took["EtcdLeaveCluster"], len(l.controlPlanes())-1)
		require.Zero(l.t, took["Reset"][l.nodeName])
		require.Zero(l.t, took["Reboot"][l.nodeName])
		if strings.HasPrefix(l.nodeName, "cp-") {
			require.Equal(l.t, l.nodeName, l.target())
			require.Equal(l.t, map[string]int{l.nodeName: 1}, took["Bootstrap"])
		}
	}
}

// resetsOf makes something go wrong with the first reset of each control plane: the one that is wiped is asked again, and took one in the end.
func resetsOf(name string, fault talossim.Fault, accepted int) func(l *restoreLab) {
	return func(l *restoreLab) {
		m := l.moment()
		since := l.tally(mutations()...)
		var over []func()
		for _, cp := range l.controlPlanes() {
			over = append(over, l.farm.Node(cp).Inject(fault))
		}
		l.restores(name, m, accepting)
		report := l.agent(l.turning(name, "was told to wipe", recovery.DefaultTiming().Again+time.Minute, whole(name)))
		l.cameBack(report, name, m)
		for _, remove := range over {
			remove()
		}
		resets := since()["Reset"]
		require.Len(l.t, resets, 1)
		for on, times := range resets {
			require.Equal(l.t, accepted, times, on)
		}
	}
}

// goesDark has the holder lose its power in the middle of its reset, before anything of it was wiped.
func goesDark(l *restoreLab) {
	m := l.moment()
	since := l.tally(mutations()...)
	stopped := make(chan struct{}, 8)
	over := map[string]func(){}
	for _, cp := range l.controlPlanes() {
		over[cp] = l.farm.Node(cp).Inject(talossim.Fault{Method: talossim.BeforeGoingDown, Kind: talossim.Hang, Times: 1, Reached: stopped})
	}
	l.restores("dark", m, accepting)
	cycled := false
	report := l.agent(func(r Report) bool {
		select {
		case <-stopped:
			for cp := range since()["Reset"] {
				over[cp]()
				require.NoError(l.t, l.farm.Node(cp).PowerCycle())
				cycled = true
			}
			for _, remove := range over {
				remove()
			}
		default:
		}
		return whole("dark")(r)
	})
	require.True(l.t, cycled)
	l.cameBack(report, "dark", m)
}

// slowToGo has the holder answer for long after it took its reset: nothing is uploaded before it was seen empty in another boot.
func slowToGo(l *restoreLab) {
	m := l.moment()
	since := l.tally(mutations()...)
	var over []func()
	stopped := make(chan struct{}, 8)
	for _, cp := range l.controlPlanes() {
		over = append(over, l.farm.Node(cp).Inject(talossim.Fault{Method: talossim.BeforeGoingDown, Kind: talossim.Hang, Reached: stopped}))
	}
	l.restores("slow", m, accepting)
	passes, held := 0, true
	report := l.agent(func(r Report) bool {
		if len(stopped) > 0 && held {
			if passes++; passes > 150 { // three seconds of looking at a doomed machine
				held = false
				require.Empty(l.t, since()["EtcdRecover"])
				require.Empty(l.t, since()["Bootstrap"])
				for _, remove := range over {
					remove()
				}
			}
		}
		return whole("slow")(r)
	})
	require.False(l.t, held)
	l.cameBack(report, "slow", m)
	require.Len(l.t, since()["Reset"], 1)
}

// targetDies cuts the target's power once it has the snapshot: it gets it again.
func targetDies(l *restoreLab) {
	m := l.moment()
	since := l.tally(mutations()...)
	l.restores("dies", m, accepting)
	cycled := make(chan struct{})
	report := l.hooked(at("after restore's UploadSnapshot", func() error {
		defer close(cycled)
		marker, err := l.readMarker(context.Background())
		if err != nil {
			return err
		}
		return l.farm.Node(marker.Target).PowerCycle()
	}), whole("dies"))
	met(l, cycled)
	l.cameBack(report, "dies", m)
	require.Equal(l.t, map[string]int{l.target(): 2}, since()["EtcdRecover"])
}

// uploadsOf spoils uploads, which Talos takes all the same: the restore on the target fails, its remains are wiped and it is done again.
func uploadsOf(name string, kind talossim.FaultKind) func(l *restoreLab) {
	return func(l *restoreLab) {
		m := l.moment()
		since := l.tally(mutations()...)
		for _, cp := range l.controlPlanes() {
			defer l.farm.Node(cp).Inject(talossim.Fault{Method: "EtcdRecover", Kind: kind, Times: 1})()
		}
		l.restores(name, m, accepting)
		l.cameBack(l.agent(whole(name)), name, m)
		require.Equal(l.t, map[string]int{l.target(): 2}, since()["EtcdRecover"])
	}
}

// neverRestores spoils every upload: it is done again twice, and then a person is told what Talos says. Once the trouble is over a resume ends it.
func neverRestores(l *restoreLab) {
	m := l.moment()
	since := l.tally(mutations()...)
	var over []func()
	for _, cp := range l.controlPlanes() {
		over = append(over, l.farm.Node(cp).Inject(talossim.Fault{Method: "EtcdRecover", Kind: talossim.Damage}))
	}
	l.restores("never", m, accepting)
	op := l.paused("never")
	require.Contains(l.t, op.FailureReason, "expected sha256")
	require.Contains(l.t, op.FailureReason, "ichor restore --recover-cluster --cluster prod")
	target := l.target()
	require.Equal(l.t, map[string]int{target: 3}, since()["EtcdRecover"])
	require.Equal(l.t, map[string]int{target: 3}, since()["Bootstrap"])
	require.Equal(l.t, 2, since()["Reset"][target])
	for _, remove := range over {
		remove()
	}
	l.resume(op)
	l.cameBack(l.agent(resumed(op)), "never", m)
}

// pruned takes the snapshot out of the bucket once the restore is under way: it goes on from its own copy.
func pruned(l *restoreLab) {
	m := l.moment()
	l.restores("pruned", m, accepting)
	bucket, removed := l.vault.bucket(l.t), make(chan struct{})
	report := l.hooked(at("after marker made", func() error {
		defer close(removed)
		return bucket.Remove(context.Background(), m.snapshot.Name)
	}), whole("pruned"))
	met(l, removed)
	l.cameBack(report, "pruned", m)
}

// away takes the bucket away for ten minutes, in the middle.
func away(l *restoreLab) {
	m := l.moment()
	since := l.tally(mutations()...)
	l.restores("away", m, accepting)
	l.killed("after restore's LeaveEtcd")
	l.vault.server.Stop()
	left := since()
	turned, passes := 0, uint64(0)
	report := l.agent(func(r Report) bool {
		if len(r.Clusters) == 0 {
			return false
		}
		op := operationNamed(r.Clusters[0].State, "away")
		if op == nil || op.Phase == statefile.OperationPaused {
			return op != nil
		}
		// A minute for each pass that found the bucket away.
		if now := r.Clusters[0].Passes.Count; now > passes && strings.Contains(op.Message, "it waits: ") {
			passes = now
			turned++
			l.turn(time.Minute)
		}
		return turned == 10
	})
	require.Equal(l.t, 10, turned, "%s", l.operation(report, "away").FailureReason)
	require.Equal(l.t, left, since(), "nothing is done without the marker")
	server, err := l.vault.server.Restart(context.Background())
	require.NoError(l.t, err)
	l.vault.server = server
	l.cameBack(l.agent(whole("away")), "away", m)
}

// nodeRebooted cuts the power of the machine that the agent runs on after it left the old etcd, which takes it in again when it is back.
func nodeRebooted(l *restoreLab) {
	l.nodeName = l.follower()
	defer func() { l.nodeName = "" }()
	m := l.moment()
	since := l.tally(mutations()...)
	l.restores("rebooted", m, accepting)
	l.killed("after marker outcome leave " + l.nodeName)
	require.NoError(l.t, l.farm.Node(l.nodeName).PowerCycle())
	report := l.agent(l.turning("rebooted", "was told to leave", recovery.DefaultTiming().Again+time.Minute, whole("rebooted")))
	l.cameBack(report, "rebooted", m)
	require.Equal(l.t, l.nodeName, l.target())
	require.Zero(l.t, since()["Reset"][l.nodeName])
}

// frozen freezes an agent with the wipe in its hand; another one ends the restore, and what the first one sends then reaches nothing.
func frozen(l *restoreLab) {
	m := l.moment()
	since := l.tally(mutations()...)
	l.restores("frozen", m, accepting)
	thaw, reached := make(chan struct{}), make(chan struct{})
	p := newTap(nil)
	var once, warm sync.Once
	p.freeze = func(point string) {
		if strings.HasPrefix(point, "before restore's Reset") {
			once.Do(func() { close(reached); <-thaw })
		}
	}
	_, stop := start(tapped(l.config("frozen-agent"), p))
	ends := func() { warm.Do(func() { close(thaw); stop() }) }
	defer ends() // also of a test that fails
	select {
	case <-reached:
	case <-time.After(ample):
		l.t.Fatal("no wipe was begun")
	}
	report := l.agent(l.turning("frozen", "was told to wipe", recovery.DefaultTiming().Again+time.Minute, whole("frozen")))
	l.cameBack(report, "frozen", m)
	took := since()
	ends()
	require.Equal(l.t, took, since(), "what was sent late reached nothing")
	require.Len(l.t, took["Reset"], 1)
	l.settle()
	l.cameBack(report, "frozen", m)
}

// twoAsked has two restores asked for at once: one waits for the other.
func twoAsked(l *restoreLab) {
	m := l.moment()
	l.restores("first-of-two", m, accepting)
	l.restores("second-of-two", m, accepting)
	report := l.agent(func(r Report) bool {
		if len(r.Clusters) > 0 && r.Clusters[0].State != nil {
			one, two := operationNamed(r.Clusters[0].State, "first-of-two"), operationNamed(r.Clusters[0].State, "second-of-two")
			require.False(l.t, one != nil && two != nil && one.Phase == statefile.OperationRunning && two.Phase == statefile.OperationRunning)
		}
		return whole("second-of-two")(r)
	})
	require.Equal(l.t, statefile.OperationCompleted, l.operation(report, "first-of-two").Phase)
	l.cameBack(report, "second-of-two", m)
}

// stuckLearner has a control plane lose its power as a learner: nobody promotes it, and all others wait behind it, until it is mended.
func stuckLearner(l *restoreLab) {
	m := l.moment()
	reached := make(chan struct{}, 8)
	over := map[string]func(){}
	for _, cp := range l.controlPlanes() {
		over[cp] = l.farm.Node(cp).Inject(talossim.Fault{Method: talossim.BeforePromotion, Kind: talossim.Hang, Reached: reached})
	}
	l.restores("learner", m, accepting)
	cut := ""
	report := l.agent(l.turning("learner", "is a learner", 15*time.Minute, func(r Report) bool {
		if cut == "" && len(reached) > 0 {
			cut = l.startedLearner()
			if cut != "" {
				require.NoError(l.t, l.farm.Node(cut).PowerCycle())
				for _, remove := range over {
					remove()
				}
			}
		}
		return whole("learner")(r)
	}))
	require.NotEmpty(l.t, cut)
	l.cameBack(report, "learner", m)
}

// neverBack has the holder stay off after its wipe: for an hour it is waited for, then a person is told; a resume goes on once it is back.
func neverBack(l *restoreLab) {
	m := l.moment()
	l.restores("gone", m, accepting)
	l.killed("after restore's Reset")
	holder := l.marker().Holder
	require.NoError(l.t, l.farm.Node(holder).PowerOff())
	op := l.operation(l.agent(l.turning("gone", holder+" doesn't answer", recovery.DefaultTiming().Recover+time.Minute, stands("gone"))), "gone")
	require.Equal(l.t, statefile.OperationPaused, op.Phase, op.Message)
	require.Contains(l.t, op.FailureReason, holder+" doesn't answer")
	require.Contains(l.t, op.FailureReason, "ichor restore --recover-cluster --cluster prod")
	l.farm.Node(holder).PowerOn()
	l.resume(op)
	l.cameBack(l.agent(l.turning("gone", "was told to wipe", recovery.DefaultTiming().Again+time.Minute, resumed(op))), "gone", m)
}
