package reconcile

import (
	"flag"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/internal/talossim"
)

var restoreMatrix = flag.Bool("restore-matrix", false, "play every scenario of a restore on simulated machines, not only those that CI plays (takes many minutes)")

// scene is one restore, or one that is refused, on machines that earlier scenes of the same stage left Ready, and that it leaves Ready.
type scene struct {
	name string
	// always says that CI plays it, too.
	always bool
	play   func(l *restoreLab)
}

// stage is a cluster on which scenes are played one after the other.
type stage struct {
	name, first            string
	controlPlanes, workers int
	// strict: the etcds refuse what real ones refuse, five seconds a join.
	strict bool
	scenes []scene
}

// TestRestoresOnSimulatedMachines plays restores on machines with a real etcd each. Meanwhile what the machines took is judged
// against what was meant, and no two etcds may live at one time. What was written before the snapshot must be there at the end, key by key and
// on each control plane, and nothing of what came after it.
func TestRestoresOnSimulatedMachines(t *testing.T) {
	t.Parallel()
	for _, s := range stages() {
		var scenes []scene
		for _, one := range s.scenes {
			if one.always || *restoreMatrix {
				scenes = append(scenes, one)
			}
		}
		if len(scenes) == 0 {
			continue
		}
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			s.open(t, scenes)
		})
	}
}

func (s stage) open(t *testing.T, scenes []scene) {
	var l *restoreLab
	if s.strict {
		l = newRestoreLab(t, s.first, s.controlPlanes, s.workers)
	} else {
		l = newHurriedRestoreLab(t, s.first, s.controlPlanes, s.workers)
	}
	l.bringUp()
	for _, one := range scenes {
		played := t.Run(one.name, func(t *testing.T) {
			l.on(t, func() { one.play(l) })
		})
		if !played {
			return // the cluster isn't what the next scene begins with
		}
	}
	t.Logf("%s: %d scenes", s.name, len(scenes))
}

// on has a lab fail another test meanwhile.
func (l *restoreLab) on(t *testing.T, do func()) {
	outer := l.t
	l.t, l.alice.t = t, t
	defer func() { l.t, l.alice.t = outer, outer }()
	do()
}

func stages() []stage {
	return []stage{
		{name: "three and a worker", first: "127.0.93.1", controlPlanes: 3, workers: 1, strict: true, scenes: []scene{
			{"the agent outside: the leader alone is wiped, and another agent goes on", true, gentleWithTwoAgents},
			{"a member that is in Git no more is refused", false, refusedForAnUnmanaged},
			{"one that is off for good and answers is refused", false, refusedForOneThatAnswers},
		}},
		{name: "a restore that goes wrong", first: "127.0.94.1", controlPlanes: 3, workers: 1, scenes: []scene{
			{"the agent on a worker", false, hosted("on-a-worker", func(*restoreLab) string { return "w-1" })},
			{"the agent on a follower", false, hosted("on-a-follower", (*restoreLab).follower)},
			{"the agent on the leader", false, hosted("on-the-leader", func(l *restoreLab) string { return l.leader() })},
			{"a reset that is answered OK and dropped", false, resetsOf("dropped", talossim.Fault{Method: "Reset", Kind: talossim.DropEffect, Times: 1}, 1)},
			{"a reset that is refused for a moment", false, resetsOf("refused", refusedOnce(), 1)},
			{"a reset whose wipe fails", false, resetsOf("failed", failed(), 2)},
			{"a reset in the middle of which the power goes", false, goesDark},
			{"a machine that takes long to go down", false, slowToGo},
			{"a target that dies with the snapshot", false, targetDies},
			{"an upload that is cut short and answered OK", false, uploadsOf("torn", talossim.EndEarly)},
			{"an upload that is damaged", false, uploadsOf("damaged", talossim.Damage)},
			{"a restore that always fails on the target", false, neverRestores},
			{"a snapshot that is pruned meanwhile", false, pruned},
			{"a bucket that is away for ten minutes", false, away},
			{"the agent's node reboots in the middle", false, nodeRebooted},
			{"an agent that is frozen in the wipe", false, frozen},
			{"two restores at once", false, twoAsked},
			{"a learner that nobody promotes", false, stuckLearner},
			{"a control plane that never comes back", false, neverBack},
		}},
		{name: "without a quorum", first: "127.0.94.21", controlPlanes: 3, scenes: []scene{
			{"two of three have lost their data", false, fullAfterLoss},
			{"the agent on the one that has its data, which comes last", false, fullUnderTheAgent},
			{"one stays away, and comes back with the old etcd", false, oneStaysAway},
			{"one joins the old etcd again after its wipe", false, straggler},
			{"a second restore beside what is left of the first", false, stragglersOfTheFirst},
		}},
		{name: "five", first: "127.0.94.41", controlPlanes: 5, scenes: []scene{
			{"etcd healthy, the agent on a follower", false, hosted("gentle", (*restoreLab).follower)},
			{"three of five have lost their data", false, fullOfFive},
		}},
		{name: "one", first: "127.0.93.11", controlPlanes: 1, scenes: []scene{
			{"what pods keep must be given up in writing, and then it is wiped", true, singleIsWiped},
			{"its revision is left as it is", true, singleKeepsItsRevision},
			{"the agent on it is told the command", true, singleWithTheAgentIsRefused},
		}},
	}
}

// gentleWithTwoAgents has the first agent die once a control plane left; another one ends it.
func gentleWithTwoAgents(l *restoreLab) {
	m := l.moment()
	since := l.tally("Reset", "EtcdLeaveCluster", "Bootstrap", "Reboot", "EtcdRecover", "ServiceRestart")
	l.restores("gentle", m, accepting)
	l.agent(func(Report) bool { return since()["EtcdLeaveCluster"]["cp-1"] > 0 })
	report := l.agent(whole("gentle"))
	l.cameBack(report, "gentle", m)
	took := since()
	require.Len(l.t, took["Reset"], 1)
	require.Len(l.t, took["EtcdLeaveCluster"], 2)
	for name, times := range took["Reset"] {
		require.Equal(l.t, 1, times, name)
		require.Zero(l.t, took["EtcdLeaveCluster"][name], "the one that is wiped did not leave")
	}
	require.Equal(l.t, map[string]int{"cp-1": 1}, took["Bootstrap"])
	require.Equal(l.t, map[string]int{"cp-1": 1, "w-1": 1}, took["ServiceRestart"], "the kubelets that lived through it")
	require.Greater(l.t, l.contents().Snapshots[0].Revision, m.snapshot.Revision, "a snapshot of what was lost is kept")
}

func singleIsWiped(l *restoreLab) {
	m := l.moment()
	l.restores("unaccepted", m, "")
	op := l.paused("unaccepted")
	require.Contains(l.t, op.FailureReason, "nothing was changed: pods may run on the control planes of prod")
	require.Empty(l.t, l.accepted("Reset"))
	l.cancelled(op)
	l.restores("single", m, accepting)
	l.cameBack(l.agent(whole("single")), "single", m)
	require.Equal(l.t, map[string]int{"cp-1": 1}, l.accepted("Reset"))
	require.Empty(l.t, l.accepted("EtcdLeaveCluster"))
}

// singleKeepsItsRevision leaves etcd's revision as the snapshot has it, after a restore that raised it.
func singleKeepsItsRevision(l *restoreLab) {
	before := l.marker().Snapshot.Raised
	require.Positive(l.t, before)
	m := l.moment()
	l.restores("plain", m, accepting+"    revisionBump: false\n")
	report := l.agent(whole("plain"))
	l.cameBack(report, "plain", m)
	snapshot := l.marker().Snapshot
	require.Zero(l.t, snapshot.Raised)
	require.Equal(l.t, before, snapshot.Highest(), "the next one that raises it knows")
	require.Contains(l.t, l.operation(report, "plain").Message, "its revision was not raised, as the operation wants it: controllers and pods that lived through it may be wrong")
}

func singleWithTheAgentIsRefused(l *restoreLab) {
	l.nodeName = "cp-1"
	defer func() { l.nodeName = "" }()
	m := l.moment()
	since := l.tally("Reset", "EtcdLeaveCluster", "Bootstrap", "Reboot", "EtcdRecover")
	l.restores("hosted", m, accepting)
	op := l.paused("hosted")
	require.Contains(l.t, op.FailureReason, nothingChanged)
	require.Contains(l.t, op.FailureReason, fmt.Sprintf("ichor restore --recover-cluster --cluster prod --backup hourly --snapshot %s --wipe cp-1 --state %s", m.snapshot.Name, l.store.Location()))
	l.tookNothing(since)
	l.cancelled(op)
}

func (l *restoreLab) tookNothing(since func() map[string]map[string]int) {
	l.t.Helper()
	for method, machines := range since() {
		require.Empty(l.t, machines, method)
	}
}

// refusedForAnUnmanaged takes the YAML of a control plane away: its member would keep the old etcd alive.
func refusedForAnUnmanaged(l *restoreLab) {
	m := l.moment()
	since := l.tally("Reset", "EtcdLeaveCluster", "Bootstrap", "Reboot", "EtcdRecover")
	const file = "clusters/prod/machines/cp-3.yaml"
	kept := l.fleet.files[file]
	l.fleet.write(file, replaceOnce(l.t, string(kept.Data), "metadata: {name: cp-3}", "metadata: {name: cp-3, annotations: {ichor.maesh.dev/allow-delete: cp-3}}"))
	l.source.push(l.fleet.files)
	delete(l.fleet.files, file)
	l.source.push(l.fleet.files)
	l.restores("unmanaged", m, accepting)
	op := l.paused("unmanaged")
	require.Contains(l.t, op.FailureReason, nothingChanged)
	require.Contains(l.t, op.FailureReason, "cp-3")
	l.tookNothing(since)
	l.cancelled(op)
	l.fleet.files[file] = kept
	l.source.push(l.fleet.files)
	report := l.agent(allReady)
	require.True(l.t, allReady(report), "%v", report.Problems())
}

func refusedForOneThatAnswers(l *restoreLab) {
	m := l.moment()
	since := l.tally("Reset", "EtcdLeaveCluster", "Bootstrap", "Reboot", "EtcdRecover")
	l.restores("without", m, accepting, "cp-3")
	op := l.paused("without")
	require.Contains(l.t, op.FailureReason, nothingChanged+"what was signed says that cp-3 is off for good, and it answers")
	l.tookNothing(since)
	l.cancelled(op)
}

// target is who recovers in the restore that the marker is of.
func (l *restoreLab) target() string { return l.marker().Target }
