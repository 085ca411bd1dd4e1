package reconcile

import (
	"context"
	"flag"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/internal/crashmatrix"
	"ichor.maesh.dev/talos"
)

var crashEach = flag.Bool("crash-each", false, "kill an agent at one point a bring-up, at every point (takes an hour)")

// TestAnAgentKilledAtEveryPointOfABringUp kills each agent at the first point that none was killed at before: every write of the
// state and every call on a connection to a machine, before its effect and after it, from an empty start to Ready. The points are
// not listed anywhere: they are met. A new agent goes on each time.
//
// A point after a kill is met only in another bring-up (the outcome of a call whose agent died right after it), so there are as
// many bring-ups as it takes to meet nothing new. An ordinary run has one, and kills at a sample.
func TestAnAgentKilledAtEveryPointOfABringUp(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("no machine is simulated, so no point would be met")
	}
	met := map[string]bool{}
	must := []string{"before Bootstrap cp-1", "after Bootstrap cp-1", "after state Intent bootstrap cp-1", "after ApplyConfig cp-3", "before state created", "after state created"}
	dies := crashmatrix.Of(t, "bring-up", crashmatrix.Simulated).Once(met, 3, 1, must...)
	for round := 1; ; round++ {
		require.Less(t, round, 10, "it never ends: %v", met)
		before := len(met)
		t.Run(fmt.Sprintf("bring-up %d", round), func(t *testing.T) { crashAtNewPoints(t, fmt.Sprintf("127.0.51.%d", round*4), dies) })
		if t.Failed() || len(met) == before || !crashmatrix.Full() {
			break
		}
	}
	require.Greater(t, len(met), 30)
	if crashmatrix.Full() {
		must = append(must, "before state Outcome bootstrap cp-1", "after state Outcome bootstrap cp-1")
	}
	for _, point := range must {
		require.True(t, met[point], "%s was not met, but %v", point, met)
	}
}

// crashAtNewPoints brings a cluster up with agents each of which dies at the first point at which it is to.
func crashAtNewPoints(t *testing.T, first string, dies func(string) bool) {
	l := newHurriedLab(t, first)
	for n := 1; ; n++ {
		require.Less(t, n, 300, "it never ends")
		killed, at := l.runUntilKilled(l.config(fmt.Sprintf("agent-%d", n)), allReady, dies)
		if !killed {
			break
		}
		t.Logf("agent %d was killed %s", n, at)
	}
	l.oneEtcdOfThree()
}

// TestAnAgentKilledOncePerBringUp kills one agent a bring-up, at the points around the call that must never be made twice; with
// -crash-each at every point that is met.
func TestAnAgentKilledOncePerBringUp(t *testing.T) {
	t.Parallel()
	points := []string{"after state Intent bootstrap cp-1", "after Bootstrap cp-1"}
	if *crashEach {
		points = everyPoint(t)
	}
	for n, point := range points {
		t.Run(point, func(t *testing.T) {
			l := newHurriedLab(t, fmt.Sprintf("127.0.52.%d", 4+n%60*4))
			killed, _ := l.runUntilKilled(l.config("agent-1"), allReady, func(at string) bool { return at == point })
			require.True(t, killed)
			killed, _ = l.runUntilKilled(l.config("agent-2"), allReady, nil)
			require.False(t, killed)
			l.oneEtcdOfThree()
		})
	}
}

// everyPoint meets every point of an undisturbed bring-up.
func everyPoint(t *testing.T) []string {
	l := newHurriedLab(t, "127.0.52.1")
	var points []string
	met := map[string]bool{}
	l.runUntilKilled(l.config("agent-1"), allReady, func(point string) bool {
		if !met[point] {
			met[point] = true
			points = append(points, point)
		}
		return false
	})
	return points
}

// runUntilKilled runs an agent until it dies or is done.
func (l *lab) runUntilKilled(config Config, isDone func(Report) bool, dies func(string) bool) (killed bool, at string) {
	l.t.Helper()
	p := newTap(dies)
	agent := New(tapped(config, p))
	ctx, cancel := context.WithTimeout(context.Background(), ample)
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = agent.Run(ctx)
	}()
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for {
		select {
		case <-p.died:
			cancel()
			<-done
			return true, p.at
		case <-ctx.Done():
			<-done
			require.FailNow(l.t, "the agent was not done in time", "%v", agent.Report().Problems())
		case <-ticker.C:
			if isDone(agent.Report()) {
				cancel()
				<-done
				return false, ""
			}
		}
	}
}

// oneEtcdOfThree is what every bring-up must end with: one etcd of three joined members, and one accepted Bootstrap.
func (l *lab) oneEtcdOfThree() {
	l.t.Helper()
	total := 0
	for _, n := range l.accepted("Bootstrap") {
		total += n
	}
	require.Equal(l.t, 1, total, "%v", l.accepted("Bootstrap"))
	for name, n := range l.accepted("ApplyConfiguration") {
		require.Equal(l.t, 1, n, "%s took a config more than once", name)
	}
	client := talos.NewClient(l.fleet.bundle, talos.ClientOptions{})
	defer client.Close()
	var first []talos.EtcdMember
	for _, node := range l.farm.Nodes() {
		var o talos.Observation
		require.Eventually(l.t, func() bool {
			o = client.Observe(context.Background(), talos.Target{Name: node.Name(), Endpoint: node.Address(), ControlPlane: true})
			return o.Etcd.Members != nil
		}, ample, 20*time.Millisecond, "%s doesn't say who is in its etcd", node.Name())
		require.Len(l.t, o.Etcd.Members, 3, "%s: %s", node.Name(), o.Problem)
		require.False(l.t, o.Etcd.Learner)
		if first == nil {
			first = o.Etcd.Members
		}
		require.True(l.t, sameMembers(first, o.Etcd.Members), "%s is in another etcd", node.Name())
	}
	l.promisesKept()
}
