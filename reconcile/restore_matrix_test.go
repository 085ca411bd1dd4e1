package reconcile

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"

	"ichor.maesh.dev/internal/talossim"
	"ichor.maesh.dev/recovery"
	"ichor.maesh.dev/statefile"
)

// mutations are the calls of a restore.
func mutations() []string {
	return []string{"Reset", "EtcdLeaveCluster", "EtcdRecover", "Bootstrap", "Reboot", "EtcdRemoveMemberByID", "ApplyConfiguration", "Shutdown"}
}

// hooked runs an agent that calls hook at each of its points, on the agent's own goroutines: what a hook can't do ends the agent, and then the test.
func (l *restoreLab) hooked(hook func(point string) error, stop func(Report) bool) Report {
	l.t.Helper()
	l.agents++
	p, failed := newTap(nil), make(chan error, 1)
	p.freeze = func(point string) {
		if err := hook(point); err != nil {
			select {
			case failed <- fmt.Errorf("%s: %w", point, err):
			default: // the first one is told
			}
		}
	}
	report := l.runFor(tapped(l.config(fmt.Sprintf("agent-%d", l.agents)), p), aRestore, func(r Report) bool { return len(failed) > 0 || stop(r) })
	select {
	case err := <-failed:
		require.NoError(l.t, err)
	default:
	}
	return report
}

// at is a hook that does something the first time a point is met.
func at(point string, do func() error) func(string) error {
	var once sync.Once
	return func(met string) (err error) {
		if strings.HasPrefix(met, point) {
			once.Do(func() { err = do() })
		}
		return err
	}
}

// killed runs an agent that dies at a point.
func (l *restoreLab) killed(point string) {
	l.t.Helper()
	l.killedWhile(point, func(Report) bool { return false })
}

// killedWhile is killed with a look at each report meanwhile.
func (l *restoreLab) killedWhile(point string, look func(Report) bool) {
	l.t.Helper()
	l.agents++
	dead, _ := l.runUntilKilled(l.config(fmt.Sprintf("agent-%d", l.agents)), look, func(at string) bool { return strings.HasPrefix(at, point) })
	require.True(l.t, dead, "%s was not met", point)
}

// turning turns the clocks, once, when an operation says something.
func (l *restoreLab) turning(name, says string, by time.Duration, stop func(Report) bool) func(Report) bool {
	turned := false
	return func(r Report) bool {
		for _, c := range r.Clusters {
			if op := operationNamed(c.State, name); op != nil && !turned && strings.Contains(op.Message, says) {
				turned = true
				l.turn(by)
			}
		}
		return stop(r)
	}
}

// resumed is whole for a restore that was paused: that pause is not one to stop at.
func resumed(before *statefile.OperationState) func(Report) bool {
	return func(r Report) bool {
		for _, c := range r.Clusters {
			if op := operationNamed(c.State, before.Name); op != nil && op.Phase == statefile.OperationPaused {
				return op.Pause > before.Pause
			}
		}
		return inPhase(before.Name, statefile.OperationCompleted)(r) && allReady(r)
	}
}

// settle runs an agent until the cluster is Ready.
func (l *restoreLab) settle() {
	l.t.Helper()
	report := l.agent(allReady)
	require.True(l.t, allReady(report), "%v", report.Problems())
}

// loseData takes a control plane's power and its etcd data, and gives it its power back.
func (l *restoreLab) loseData(name string) {
	l.t.Helper()
	node := l.farm.Node(name)
	require.NoError(l.t, node.PowerOff())
	require.NoError(l.t, node.LoseEtcdData())
	node.PowerOn()
}

// quorumless waits until a control plane's etcd answers nothing any more.
func (l *restoreLab) quorumless(name string) {
	l.t.Helper()
	l.etcd(name, func(ctx context.Context, client *clientv3.Client) {
		require.Eventually(l.t, func() bool {
			reading, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			_, err := client.Get(reading, "health")
			return err != nil
		}, ample, 100*time.Millisecond)
	})
}

// follower is a control plane that doesn't lead.
func (l *restoreLab) follower() string {
	leads := l.leader()
	for _, name := range l.controlPlanes() {
		if name != leads {
			return name
		}
	}
	return ""
}

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

// met wants a hook to have done what it is there for.
func met(l *restoreLab, did <-chan struct{}) {
	l.t.Helper()
	select {
	case <-did:
	default:
		require.Fail(l.t, "the point that a hook waits for was not met")
	}
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

// startedLearner is the control plane whose member is a learner that runs; empty while there is none.
func (l *restoreLab) startedLearner() (name string) {
	l.etcd(l.target(), func(ctx context.Context, client *clientv3.Client) {
		listing, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		list, err := client.MemberList(listing)
		if err != nil {
			return
		}
		for _, member := range list.Members {
			if member.IsLearner {
				name = member.Name
			}
		}
	})
	return name
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

// memberOf gives the member that a machine is in the etcd that answers on another one, and whether it has started.
func (l *restoreLab) memberOf(on, name string) (id uint64, started bool) {
	l.etcd(on, func(ctx context.Context, client *clientv3.Client) {
		listing, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		list, err := client.MemberList(listing)
		if err != nil {
			return
		}
		url := "http://" + l.farm.Node(name).Address() + ":2380"
		for _, member := range list.Members {
			if len(member.PeerURLs) > 0 && member.PeerURLs[0] == url {
				id, started = member.ID, member.Name != ""
			}
		}
	})
	return id, started
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

// failed is a wipe that fails, and with it the reset: the machine reboots as it was.
func failed() talossim.Fault {
	return talossim.Fault{Method: talossim.BeforeWipe, Kind: talossim.Fail, Times: 1, Text: "the partition is busy"}
}

func refusedOnce() talossim.Fault {
	return talossim.Fault{Method: "Reset", Kind: talossim.Fail, Code: codes.Unavailable, Text: "no connection to machined", Times: 1}
}
