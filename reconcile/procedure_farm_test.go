package reconcile

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/internal/crashmatrix"
	"ichor.maesh.dev/internal/talossim"
	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/talos"
)

// does pushes a signed operation and runs an agent until it is in a phase.
func (l *signedLab) does(name, body string, phase statefile.OperationPhase) *statefile.OperationState {
	l.t.Helper()
	l.push(name, "ichor-override@prod", body)
	return l.comes(name, phase)
}

// comes runs an agent until an operation is in a phase, and the cluster lock is given back.
func (l *signedLab) comes(name string, phase statefile.OperationPhase) *statefile.OperationState {
	l.t.Helper()
	config := l.config("agent-" + name + "-" + string(phase))
	if phase != statefile.OperationPaused { // what is waited for comes, however busy the host
		config.Timing.Patience, config.Timing.Return = 4*ample, 4*ample
	}
	report := l.run(config, inPhase(name, phase))
	op := operationNamed(report.Clusters[0].State, name)
	require.NotNil(l.t, op, name)
	require.Equal(l.t, phase, op.Phase, "%s at %s: %s", name, op.Step, op.Message)
	require.Nil(l.t, report.Clusters[0].State.Lock, name)
	return op
}

// leader is the control plane that leads etcd.
func (l *signedLab) leader() string {
	l.t.Helper()
	client := talos.NewClient(l.fleet.bundle, talos.ClientOptions{})
	defer client.Close()
	found := ""
	require.Eventually(l.t, func() bool {
		for _, node := range l.farm.Nodes() {
			o := client.Observe(l.t.Context(), talos.Target{Name: node.Name(), Endpoint: node.Address(), ControlPlane: roleOf(node) == "controlplane"})
			if o.Etcd.MemberID != 0 && o.Etcd.MemberID == o.Etcd.Leader {
				found = node.Name()
			}
		}
		return found != ""
	}, ample, 100*time.Millisecond)
	return found
}

// TestEveryActionOnSimulatedMachines carries out one action after another on machines with a real etcd each and a Kubernetes API.
func TestEveryActionOnSimulatedMachines(t *testing.T) {
	t.Parallel()
	l := newSignedLab(newLab(t, "127.0.79.1", 3, 2, 50))
	require.True(t, allReady(l.run(l.config("bring-up"), allReady)))
	node := func(machine, action, more string) string { return nodeBody(machine, l.uuid(machine), action) + more }

	l.does("kubelet", node("w-1", "restart-service", "    service: kubelet\n"), statefile.OperationCompleted)
	require.Equal(t, 1, l.accepted("ServiceRestart")["w-1"])

	op := l.does("cri", node("w-1", "restart-service", "    service: cri\n"), statefile.OperationPaused)
	require.Contains(t, op.FailureReason, `service "cri" doesn't support restart operation via API`)
	l.push("cancel-cri", "ichor-override@prod", fmt.Sprintf("  kind: cancel\n  cancel:\n    operation: cri\n    digest: %s\n", op.Digest))
	l.comes("cri", statefile.OperationCancelled)

	leads := l.leader()
	l.does("forfeit", node(leads, "etcd-forfeit-leadership", ""), statefile.OperationCompleted)
	require.Equal(t, 1, l.accepted("EtcdForfeitLeadership")[leads])
	require.NotEqual(t, leads, l.leader())
	l.does("defrag", node(leads, "etcd-defrag", ""), statefile.OperationCompleted)
	require.Equal(t, 1, l.accepted("EtcdDefragment")[leads])

	l.does("reboot", node("cp-2", "reboot", ""), statefile.OperationCompleted)
	require.Equal(t, 1, l.accepted("Reboot")["cp-2"])

	l.does("stop", node("w-1", "shutdown", ""), statefile.OperationShutDown)
	require.False(t, l.farm.Node("w-1").Powered())
	l.farm.Node("w-1").PowerOn()
	op = l.comes("stop", statefile.OperationCompleted)
	require.Contains(t, op.Message, "it is back")
	require.Equal(t, 1, l.accepted("Shutdown")["w-1"])

	l.does("remove-w-2", node("w-2", "remove", "    confirm: w-2\n    then: reboot\n"), statefile.OperationCompleted)
	require.Equal(t, 1, l.accepted("Reset")["w-2"])

	// One of three is off for good: its member and its Node go.
	require.NoError(t, l.farm.Node("cp-3").PowerOff())
	op = l.does("gone-cp-3", node("cp-3", "remove", "    confirm: cp-3\n    gone: true\n"), statefile.OperationCompleted)
	require.Zero(t, l.accepted("Reset")["cp-3"])
	removed := 0
	for _, n := range l.accepted("EtcdRemoveMemberByID") {
		removed += n
	}
	require.Equal(t, 1, removed, op.Message)
	require.Empty(t, l.cordonedNodes())
	l.acceptedOnceEach()
}

// cordonedNodes are the nodes that Ichor left cordoned.
func (l *signedLab) cordonedNodes() []string {
	l.t.Helper()
	api, err := l.openKubernetes(l.fleet.bundle, []string{l.farm.Node("cp-1").Address()})
	require.NoError(l.t, err)
	var names []string
	require.Eventually(l.t, func() bool {
		nodes, err := api.Nodes(l.t.Context())
		if err != nil {
			return false
		}
		for _, node := range nodes {
			if node.CordonedBy != "" {
				names = append(names, node.Name)
			}
		}
		return true
	}, ample, 100*time.Millisecond)
	return names
}

// acceptedOnceEach is that no call that an operation makes was accepted twice by a machine.
func (l *signedLab) acceptedOnceEach() {
	l.t.Helper()
	for _, method := range []string{"Reboot", "Shutdown", "Reset", "EtcdDefragment", "EtcdForfeitLeadership"} {
		for machine, times := range l.accepted(method) {
			require.Equal(l.t, 1, times, "%s took %s", machine, method)
		}
	}
}

// TestAnAgentKilledAtEveryPointOfARemoval kills each agent at the first point that none was killed at before, from the file in Git to the
// deletion of the Node: a control plane leaves etcd, is wiped, and is asked for each once.
func TestAnAgentKilledAtEveryPointOfARemoval(t *testing.T) {
	t.Parallel()
	l := newSignedLab(newLab(t, "127.0.79.21", 3, 1, 50))
	require.True(t, allReady(l.run(l.config("bring-up"), allReady)))
	lowerCount(l, 1)
	l.push("remove-cp-3", "ichor-override@prod", nodeBody("cp-3", l.uuid("cp-3"), "remove")+"    confirm: cp-3\n    then: reboot\n")
	l.killedAtEachPoint("remove", "remove-cp-3", statefile.OperationCompleted, []string{"after state Intent remove-member cp-3", "after state Intent reset-machine cp-3", "before Reset cp-3"},
		"after RemoveMember cp-1", "after Reset cp-3", "after DeleteNode cp-3", "after Cordon cp-3")
	require.Equal(t, 1, l.accepted("Reset")["cp-3"])
	require.Empty(t, l.cordonedNodes())
}

// TestAnAgentKilledAtEveryPointOfAShutdown does the same with a shutdown.
func TestAnAgentKilledAtEveryPointOfAShutdown(t *testing.T) {
	t.Parallel()
	l := newSignedLab(newLab(t, "127.0.79.41", 1, 2, 50))
	require.True(t, allReady(l.run(l.config("bring-up"), allReady)))
	l.push("stop", "ichor-operation@prod", nodeBody("w-1", l.uuid("w-1"), "shutdown"))
	l.killedAtEachPoint("shutdown", "stop", statefile.OperationShutDown, []string{"after state Intent shutdown w-1", "before Shutdown w-1"}, "after Shutdown w-1",
		"before state Resolved shutdown w-1")
	l.farm.Node("w-1").PowerOn()
	l.comes("stop", statefile.OperationCompleted)
	require.Equal(t, map[string]int{"w-1": 1}, l.accepted("Shutdown"))
}

// lowerCount lowers the cluster's count in Git.
func lowerCount(l *signedLab, count int) {
	text := string(l.fleet.files["clusters/prod/cluster.yaml"].Data)
	l.fleet.write("clusters/prod/cluster.yaml", replaceOnce(l.t, text, "{count: 3}", fmt.Sprintf("{count: %d}", count)))
	l.source.push(l.fleet.files)
}

// killedAtEachPoint kills agents until the operation is in a phase: each at the first point that none was killed at before, in an ordinary
// run at one in four. Not at those after which nobody can know whether the call was sent, which the modelled machines have. The points in
// must have been among them.
func (l *signedLab) killedAtEachPoint(procedure, name string, phase statefile.OperationPhase, unknowable []string, must ...string) {
	l.t.Helper()
	seen := map[string]bool{}
	for _, point := range unknowable {
		seen[point] = true
	}
	dies := crashmatrix.Of(l.t, procedure, crashmatrix.Simulated).Once(seen, 4, 1, must...)
	for n := 1; ; n++ {
		require.Less(l.t, n, 200, "it never ends: %v", seen)
		config := l.config(fmt.Sprintf("%s-agent-%d", name, n))
		config.Timing.Patience, config.Timing.Return = 4*ample, 4*ample // however busy the host: what is tried here is not how long things may take
		killed, at := l.runUntilKilled(config, inPhase(name, phase), dies)
		if !killed {
			break
		}
		l.t.Logf("agent %d was killed %s", n, at)
	}
	for _, point := range must {
		found := false
		for at := range seen {
			found = found || strings.HasPrefix(at, point) // a write bears the events that went with it
		}
		require.True(l.t, found, "%s was not met, but %v", point, seen)
	}
}

func replaceOnce(t testing.TB, text, old, other string) string {
	t.Helper()
	require.Equal(t, 1, strings.Count(text, old), "%q in %s", old, text)
	return strings.Replace(text, old, other, 1)
}

// stateOf is the state of the one cluster; nil as long as none was read.
func stateOf(r Report) *statefile.State {
	if len(r.Clusters) == 0 {
		return nil
	}
	return r.Clusters[0].State
}

// resume signs a resume of a paused operation, for the pause that it is at.
func (l *signedLab) resume(op *statefile.OperationState) {
	l.push(fmt.Sprintf("resume-%s-%d", op.Name, op.Pause), "ichor-override@prod",
		fmt.Sprintf("  kind: resume\n  resume:\n    operation: %s\n    digest: %s\n    pause: %d\n", op.Name, op.Digest, op.Pause))
}

// TestAStuckDrainPausesAndAResumeGoesOn holds a pod for longer than a drain may take: the machine takes pods again, nothing is rebooted, and a
// resume begins with the drain.
func TestAStuckDrainPausesAndAResumeGoesOn(t *testing.T) {
	t.Parallel()
	l := newSignedLab(newLab(t, "127.0.79.61", 1, 2, 50))
	text := string(l.fleet.files["clusters/prod/cluster.yaml"].Data)
	const limit = 20 * time.Minute // however busy the host is
	l.fleet.write("clusters/prod/cluster.yaml", text+"  rollout: {drain: {timeout: "+limit.String()+"}}\n")
	l.source.push(l.fleet.files)
	require.True(t, allReady(l.run(l.config("bring-up"), allReady)))
	l.kubernetes = newFakeKubernetes(l.farm)
	l.kubernetes.held["w-1"] = "is held by the budget shop/web"
	l.push("reboot", "ichor-operation@prod", nodeBody("w-1", l.uuid("w-1"), "reboot"))
	turned := false
	report := l.run(l.config("agent-1"), func(r Report) bool {
		if state := stateOf(r); state != nil && !turned {
			if op := operationNamed(state, "reboot"); op != nil && strings.Contains(op.Message, "is held by the budget") {
				turned = true
				l.clock.ahead.Add(int64(limit))
			}
		}
		return inPhase("reboot", statefile.OperationPaused)(r)
	})
	op := operationNamed(report.Clusters[0].State, "reboot")
	require.Equal(t, statefile.OperationPaused, op.Phase, op.Message)
	require.Contains(t, op.FailureReason, "shop/web-0 is held by the budget shop/web")
	require.Empty(t, l.kubernetes.cordoned())
	require.Empty(t, l.accepted("Reboot"))

	l.kubernetes.release("w-1")
	l.resume(op)
	l.comes("reboot", statefile.OperationCompleted)
	require.Empty(t, l.kubernetes.cordoned())
	require.Equal(t, map[string]int{"w-1": 1}, l.accepted("Reboot"))
}

// TestARequestThatTalosDropsPausesAndIsNotMadeTwice lets Talos answer OK and drop the reboot, as it does while something else runs.
func TestARequestThatTalosDropsPausesAndIsNotMadeTwice(t *testing.T) {
	t.Parallel()
	l := newSignedLab(newLab(t, "127.0.79.81", 1, 2, 50))
	require.True(t, allReady(l.run(l.config("bring-up"), allReady)))
	remove := l.farm.Node("w-1").Inject(talossim.Fault{Method: "Reboot", Kind: talossim.DropEffect})
	defer remove()
	l.push("reboot", "ichor-operation@prod", nodeBody("w-1", l.uuid("w-1"), "reboot"))
	config, turned := l.config("agent-1"), false
	report := l.run(config, func(r Report) bool {
		if state := stateOf(r); state != nil && state.Intent != nil && state.Intent.Outcome == statefile.OutcomeOK && !turned {
			turned = true
			l.clock.ahead.Add(int64(config.Timing.Return))
		}
		return inPhase("reboot", statefile.OperationPaused)(r)
	})
	op := operationNamed(report.Clusters[0].State, "reboot")
	require.Equal(t, statefile.OperationPaused, op.Phase, op.Message)
	require.Contains(t, op.FailureReason, "w-1 did not reboot within "+config.Timing.Return.String())
	require.Empty(t, l.cordonedNodes())

	// Somebody cycles its power, and the resume finds that it is back. It is asked for nothing.
	require.NoError(t, l.farm.Node("w-1").PowerCycle())
	l.resume(op)
	l.comes("reboot", statefile.OperationCompleted)
	require.LessOrEqual(t, l.accepted("Reboot")["w-1"], 1)
	require.Empty(t, l.cordonedNodes())
}
