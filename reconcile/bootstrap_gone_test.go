package reconcile

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/internal/talossim"
	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/talos"
)

// TestTheWayOutOfABootstrapWhoseMachineIsGoneForGood plays docs/operations/bootstrap.md to its end: cp-1 dies between its answer and its etcd.
func TestTheWayOutOfABootstrapWhoseMachineIsGoneForGood(t *testing.T) {
	t.Parallel()
	l := newSignedLab(newLab(t, "127.0.79.181", 3, 0, 50))
	l.watchPromises()
	l.farm.Node("cp-1").Inject(talossim.Fault{Method: "Bootstrap", Kind: talossim.DropEffect})
	off := false
	report := l.run(l.config("agent-1"), func(r Report) bool {
		if state := stateOf(r); state != nil && state.Intent != nil && state.Intent.Action == string(ActBootstrap) && state.Intent.Outcome == statefile.OutcomeOK && !off {
			off = true
			require.NoError(t, l.farm.Node("cp-1").PowerOff())
		}
		return off && strings.Contains(strings.Join(r.Problems(), "\n"), "docs/operations/bootstrap.md")
	})
	require.Contains(t, strings.Join(report.Problems(), "\n"), "no other machine is bootstrapped")

	// Taken out of Git alone it goes no further, and nobody is bootstrapped beside it.
	delete(l.fleet.files, "clusters/prod/machines/cp-1.yaml")
	l.source.push(l.fleet.files)
	require.NoError(t, l.store.Delete(context.Background(), "prod/state.json"))
	report = l.run(l.config("agent-2"), reasonIs("NotBootstrapped"))
	require.True(t, reasonIs("NotBootstrapped")(report), "%v", report.Problems())
	require.Empty(t, l.accepted("Bootstrap"), "that of cp-1 was dropped")

	l.push("begin", "ichor-override@prod", bootstrapBody("cp-2", l.uuid("cp-2"), "prod"))
	report = l.run(l.config("agent-3"), inPhase("begin", statefile.OperationPaused))
	op := operationNamed(report.Clusters[0].State, "begin")
	require.Contains(t, op.FailureReason, "wait 30 minutes for discovery to forget it")
	client := talos.NewClient(l.fleet.bundle, talos.ClientOptions{})
	t.Cleanup(func() { _ = client.Close() })
	l.run(l.config("agent-4"), func(Report) bool {
		for _, name := range []string{"cp-2", "cp-3"} {
			seen := client.Observe(t.Context(), talos.Target{Name: name, Endpoint: l.farm.Node(name).Address(), ControlPlane: true})
			if seen.Discovery == nil || slices.ContainsFunc(seen.Discovery, func(m talos.DiscoveredMember) bool { return m.Name == "cp-1" }) {
				return false
			}
		}
		return true
	})
	l.resume(op)
	patient := l.config("agent-5")
	patient.Timing.Patience = ample
	report = l.run(patient, func(r Report) bool {
		return inPhase("begin", statefile.OperationCompleted)(r) || inPhase("begin", statefile.OperationPaused)(r) && op.Pause < operationNamed(stateOf(r), "begin").Pause
	})
	op = operationNamed(report.Clusters[0].State, "begin")
	require.Equal(t, statefile.OperationCompleted, op.Phase, op.Message)
	require.Equal(t, map[string]int{"cp-2": 1}, l.accepted("Bootstrap"))
}
