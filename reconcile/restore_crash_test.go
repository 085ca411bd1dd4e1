package reconcile

import (
	"flag"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/internal/crashmatrix"
	"ichor.maesh.dev/recovery"
	"ichor.maesh.dev/statefile"
)

var (
	restoreCrash = flag.String("restore-crash", "", "kill agents at every point of the restores whose name holds this (all: of each), until a restore meets no new one (takes many minutes)")
	restoreSeed  = flag.Uint64("restore-seed", 1, "which points of a restore are drawn where not every one is taken")
)

// oneIn is of how many points one is drawn in CI.
const oneIn = 12

// perils is a restore whose agents are killed.
type perils struct {
	name, first            string
	controlPlanes, workers int
	// full: all are wiped, for etcd has lost its quorum.
	full bool
	// hosted: agents run on a control plane; where all are wiped, on the one that still has its data. Its wipe comes last, and they end with it.
	hosted bool
}

func everyPeril() []perils {
	return []perils{
		{name: "gentle, 3 control planes, the agent outside", first: "127.0.95.1", controlPlanes: 3, workers: 1},
		{name: "gentle, 3 control planes, the agent on one", first: "127.0.95.11", controlPlanes: 3, hosted: true},
		{name: "full, 3 control planes, the agent outside", first: "127.0.95.21", controlPlanes: 3, full: true},
		{name: "full, 3 control planes, the agent on the one that has its data", first: "127.0.95.71", controlPlanes: 3, full: true, hosted: true},
		{name: "full, 1 control plane, the agent outside", first: "127.0.95.31", controlPlanes: 1, full: true},
		{name: "gentle, 5 control planes, the agent outside", first: "127.0.95.41", controlPlanes: 5},
		{name: "full, 5 control planes, the agent outside", first: "127.0.95.51", controlPlanes: 5, full: true},
	}
}

// TestAnAgentKilledAtEveryPointOfARestore kills each agent at the first point that none was killed at before: every write of the state, of
// the marker and of the pinned copy, and every call to a machine or to Kubernetes, before its effect and after it. A new agent goes on each
// time. The points are not listed anywhere: they are met. Restores follow one another until one meets nothing new. CI takes a sample of the
// points, in a gentle restore and a full one.
func TestAnAgentKilledAtEveryPointOfARestore(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("no machine is simulated, so no point would be met")
	}
	if *restoreCrash == "" {
		t.Run("a sample", sampled)
		return
	}
	for _, p := range everyPeril() {
		if *restoreCrash == "all" || strings.Contains(p.name, *restoreCrash) {
			t.Run(p.name, func(t *testing.T) {
				t.Parallel()
				p.atEveryPoint(t)
			})
		}
	}
}

// sampled kills at points that the seed draws, in a gentle restore and then in a full one of the same machines.
func sampled(t *testing.T) {
	l := newHurriedRestoreLab(t, "127.0.95.61", 3, 0)
	l.patient = true
	l.bringUp()
	for _, p := range []perils{{name: "gentle", controlPlanes: 3}, {name: "full", controlPlanes: 3, full: true}} {
		met := map[string]bool{}
		killed, _ := p.restoreOnce(l, "restore-"+p.name, met, func(point string) bool { return drawn(point, oneIn) })
		p.metWhatMatters(t, met)
		require.Greater(t, killed, len(met)/oneIn/3)
		t.Logf("%s: killed at %d of %d points (seed %d)", p.name, killed, len(met), *restoreSeed)
	}
	l.promisesKept()
}

func (p perils) atEveryPoint(t *testing.T) {
	l := newHurriedRestoreLab(t, p.first, p.controlPlanes, p.workers)
	l.patient = true
	l.bringUp()
	count := crashmatrix.Of(t, "restore, "+p.name, crashmatrix.Simulated)
	met, killed, died, rounds := map[string]bool{}, 0, 0, 0
	for before := -1; len(met) > before; rounds++ {
		require.Less(t, rounds, 12, "it never ends: %v", met)
		before = len(met)
		points, deaths := p.restoreOnce(l, fmt.Sprintf("restore-%d", rounds), met, func(string) bool { return true })
		killed, died = killed+points, died+deaths
		t.Logf("restore %d: %d points met, %d agents killed so far", rounds+1, len(met), killed)
	}
	count.Found(len(met))
	count.Killed(killed, died)
	p.metWhatMatters(t, met)
	require.Greater(t, len(met), 60)
	l.promisesKept()
	t.Logf("| %s | %d points | killed at %d | %d restores | %d agents killed |", p.name, len(met), killed, rounds, died)
}

// drawn says whether a point is among those that the seed draws.
func drawn(point string, oneIn uint64) bool {
	h := fnv.New64a()
	fmt.Fprintf(h, "%d %s", *restoreSeed, point)
	return h.Sum64()%oneIn == 0
}

// restoreOnce carries out one restore by agents that die, each at the first point that isn't in met yet and that is drawn, and with the machine
// that they run on. killed is at how many new points one died, died how many did.
func (p perils) restoreOnce(l *restoreLab, name string, met map[string]bool, drawn func(string) bool) (killed, died int) {
	l.t.Helper()
	l.nodeName = ""
	m := l.moment()
	if p.hosted {
		l.nodeName = p.host(l)
	}
	if p.full {
		for _, cp := range l.controlPlanes()[(p.controlPlanes-1)/2:] {
			if cp != "cp-1" {
				l.loseData(cp)
			}
		}
		if p.controlPlanes > 1 {
			l.quorumless("cp-1")
		}
	}
	since := l.tally(mutations()...)
	l.restores(name, m, accepting)
	for n := 1; ; n++ {
		require.Less(l.t, n, 400, "it never ends: %v", met)
		l.agents++
		again := false
		dead, at := l.runUntilKilled(l.config(fmt.Sprintf("agent-%d", l.agents)), l.untilWhole(name), func(point string) bool {
			point = strings.ReplaceAll(point, name, "restore")
			under := p.full && l.nodeName != "" && strings.HasPrefix(point, "after restore's Reset "+l.nodeName)
			if met[point] {
				again = under
				return under
			}
			met[point] = true
			return under || drawn(point)
		})
		if !dead {
			break
		}
		if died++; !again {
			killed++
		}
		l.t.Logf("agent %d of %s was killed %s", n, name, at)
		if p.full && p.hosted && since()["Reset"][l.nodeName] > 0 {
			l.nodeName = l.target()
		}
	}
	report := l.agent(l.untilWhole(name))
	l.cameBack(report, name, m)
	p.tookOnce(l, since())
	l.begunOnce(l.operation(report, name).Digest)
	return killed, died
}

// host is the control plane that agents run on.
func (p perils) host(l *restoreLab) string {
	if p.full {
		return "cp-1"
	}
	return l.follower()
}

// untilWhole waits until a restore is whole. An agent that died may leave a call behind of which nobody can know whether it was sent: it is
// waited for as if it had been, for as much as ten minutes, and those are turned.
func (l *restoreLab) untilWhole(name string) func(Report) bool {
	said, since := "", time.Now()
	return func(r Report) bool {
		for _, c := range r.Clusters {
			op := operationNamed(c.State, name)
			switch {
			case op == nil:
			case op.Message != said:
				said, since = op.Message, time.Now()
			case waitsForTime(said) && time.Since(since) > 3*time.Second:
				since = time.Now()
				l.turn(recovery.DefaultTiming().Again/4 + time.Second)
			}
		}
		return whole(name)(r)
	}
}

// waitsForTime says whether what an operation says is that it waits for minutes that nothing but the clock brings.
func waitsForTime(said string) bool {
	return slices.ContainsFunc([]string{" was told to ", " reboots, to join", "cp-1 is member"}, func(part string) bool { return strings.Contains(said, part) })
}

// tookOnce is what the machines must have taken in one restore, however many agents died in it.
func (p perils) tookOnce(l *restoreLab, took map[string]map[string]int) {
	l.t.Helper()
	require.Equal(l.t, map[string]int{l.target(): 1}, took["Bootstrap"], "one recovery")
	for machine, times := range took["Reset"] {
		require.Equal(l.t, 1, times, "%s was wiped", machine)
	}
	for machine, times := range took["EtcdLeaveCluster"] {
		require.Equal(l.t, 1, times, "%s left", machine)
	}
	for machine, times := range took["Reboot"] {
		require.Equal(l.t, 1, times, "%s was rebooted", machine)
	}
	if !p.full {
		require.Len(l.t, took["Reset"], 1)
		require.Len(l.t, took["EtcdLeaveCluster"], p.controlPlanes-1)
	}
	require.Empty(l.t, took["ApplyConfiguration"])
	require.Empty(l.t, took["Shutdown"])
}

// begunOnce is that an operation was accepted, begun and completed once.
func (l *restoreLab) begunOnce(digest string) {
	l.t.Helper()
	counts := map[string]int{}
	for _, e := range l.events() {
		if e.Operation == digest {
			counts[e.Action]++
		}
	}
	for _, action := range []string{"OperationAccepted", "OperationStarted", "Operation" + string(statefile.OperationCompleted)} {
		require.Equal(l.t, 1, counts[action], "%s: %v", action, counts)
	}
}

// metWhatMatters is that the points are those of a restore: a run that met none of them would prove nothing.
func (p perils) metWhatMatters(t *testing.T, met map[string]bool) {
	points := []string{"after pinned copy", "before marker made", "after marker made", "before marker intent upload", "before restore's UploadSnapshot", "after restore's UploadSnapshot",
		"after restore's RecoverEtcd", "before marker outcome ", "before marker enters joining", "before restore's EtcdSnapshot", "after marker enters done", "before state OperationCompleted",
		"after restore's Reset"}
	if !p.full {
		points = append(points, "after marker intent leave", "after restore's LeaveEtcd", "before restore's Reboot")
	}
	for _, point := range points {
		found := false
		for at := range met {
			found = found || strings.HasPrefix(at, point)
		}
		require.True(t, found, "%s was not met, but %v", point, met)
	}
}
