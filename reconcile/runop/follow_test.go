package runop_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clocktesting "k8s.io/utils/clock/testing"

	"ichor.maesh.dev/operation"
	"ichor.maesh.dev/reconcile"
	"ichor.maesh.dev/reconcile/runop"
	"ichor.maesh.dev/statefile"
)

// follow shows one look after the other, and gives what was said.
func follow(t *testing.T, looks ...any) (said []string, end *reconcile.OperationStatus, err error) {
	t.Helper()
	clk := clocktesting.NewFakeClock(now)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	n := 0
	follower := runop.Follower{Clock: clk, Say: func(at time.Time, text string) { said = append(said, at.Format("15:04:05 ")+text) },
		Look: func(context.Context) (*reconcile.ClusterStatus, error) {
			if n == len(looks) {
				cancel()
				return nil, ctx.Err()
			}
			look := looks[n]
			n++
			clk.Step(2 * time.Second)
			if err, is := look.(error); is {
				return nil, err
			}
			return look.(*reconcile.ClusterStatus), nil
		}}
	end, err = follower.Follow(ctx, "d1")
	return said, end, err
}

func looked(op *reconcile.OperationStatus) *reconcile.ClusterStatus {
	status := &reconcile.ClusterStatus{Name: "prod", Operations: []reconcile.OperationStatus{{Name: "other", Digest: "d2", Phase: "Paused"}}}
	if op != nil {
		op.Digest = "d1"
		status.Operations = append(status.Operations, *op)
	}
	return status
}

func steps(names ...string) (all []reconcile.OperationStepStatus) {
	for n, name := range names {
		all = append(all, reconcile.OperationStepStatus{Name: name, At: now.Add(time.Duration(n) * time.Minute).Format(time.RFC3339)})
	}
	return all
}

func TestFollowingSaysEachStepOnceAndEndsWithTheOperation(t *testing.T) {
	none := looked(nil)
	none.Revision.Observed = "0123456789abcdef"
	said, end, err := follow(t,
		none, none, errors.New("the store can't be reached"), errors.New("the store can't be reached"),
		looked(&reconcile.OperationStatus{Phase: "Pending", Message: "it is accepted, and waits for its turn"}),
		looked(&reconcile.OperationStatus{Phase: "Running", Step: "evacuate", Message: "3 pods are left on w-1", Steps: steps("evacuate")}),
		looked(&reconcile.OperationStatus{Phase: "Running", Step: "evacuate", Message: "3 pods are left on w-1", Steps: steps("evacuate")}),
		looked(&reconcile.OperationStatus{Phase: "Running", Step: "evacuate", Message: "1 pod is left on w-1", Steps: steps("evacuate")}),
		looked(&reconcile.OperationStatus{Phase: "Running", Step: "back", Message: "w-1 is booting", Steps: steps("evacuate", "reboot", "back")}),
		looked(&reconcile.OperationStatus{Phase: "Completed", Step: "back", Message: "w-1 is back", Steps: steps("evacuate", "reboot", "back")}),
	)
	require.NoError(t, err)
	require.Equal(t, "Completed", end.Phase)
	require.Equal(t, []string{
		"10:00:02 no agent has seen the operation yet; the newest commit that one saw is 0123456789ab",
		"10:00:06 the store can't be reached",
		"10:00:10 Pending: it is accepted, and waits for its turn",
		"10:00:00 Running (evacuate): 3 pods are left on w-1",
		"10:00:16 Running (evacuate): 1 pod is left on w-1",
		"10:01:00 step: reboot",
		"10:02:00 Running (back): w-1 is booting",
		"10:00:20 Completed: w-1 is back",
	}, said)
}

func TestWhatWentFasterThanItWasLookedAtIsSaidToo(t *testing.T) {
	said, _, err := follow(t, looked(&reconcile.OperationStatus{Phase: "Completed", Step: "reboot", Message: "w-1 is back", Steps: steps("evacuate", "reboot")}))
	require.NoError(t, err)
	require.Equal(t, []string{"10:00:00 step: evacuate", "10:01:00 step: reboot", "10:00:02 Completed: w-1 is back"}, said)
}

func TestFollowingEndsWhereNothingHappensByItself(t *testing.T) {
	for phase, want := range map[string]string{
		"Paused":    "10:00:02 Paused (evacuate): the budget shop/cart allows 0 disruptions",
		"ShutDown":  "10:00:02 ShutDown (evacuate): the budget shop/cart allows 0 disruptions",
		"Cancelled": "10:00:02 Cancelled: the budget shop/cart allows 0 disruptions",
	} {
		t.Run(phase, func(t *testing.T) {
			said, end, err := follow(t, looked(&reconcile.OperationStatus{Phase: phase, Step: "evacuate", Message: "m", FailureReason: "the budget shop/cart allows 0 disruptions"}))
			require.NoError(t, err)
			require.Equal(t, phase, end.Phase)
			require.Equal(t, []string{want}, said)
		})
	}
	said, _, err := follow(t, looked(&reconcile.OperationStatus{Phase: "Refused", FailureReason: "KeyUnknown", Message: "no line holds the key"}))
	require.NoError(t, err)
	require.Equal(t, []string{"10:00:02 Refused: KeyUnknown: no line holds the key"}, said)
	problem := looked(nil)
	problem.Revision.Problem = "the server refuses the token"
	said, end, err := follow(t, problem)
	require.ErrorIs(t, err, context.Canceled)
	require.Nil(t, end)
	require.Equal(t, []string{"10:00:02 no agent has seen the operation yet: the repository can't be read: the server refuses the token"}, said)
}

func TestAListHoldsWhatTheStateKnowsAndTheFilesThatItDoesNot(t *testing.T) {
	tree := files()
	seen, err := write(load(t, tree), node("reboot", "cp-1"))
	require.NoError(t, err)
	withOperation(t, tree, seen)
	unseen, err := write(load(t, tree), node("reboot", "cp-2"))
	require.NoError(t, err)
	fleet := withOperation(t, tree, unseen)
	status := reconcile.ClusterStatus{Name: "prod", Operations: []reconcile.OperationStatus{
		{Name: "older", Digest: "d0", Phase: "Completed"},
		{Name: seen.Operation.Metadata.Name, Digest: operation.Digest(seen.Data), Phase: "Paused", Pause: 2, Kind: "node", Action: "reboot", Target: "cp-1"}}}
	entries := runop.List(fleet, []reconcile.ClusterStatus{status}, now, false)
	var got []string
	for _, e := range entries {
		got = append(got, fmt.Sprintf("%s %s seen=%t phase=%s file=%s", e.Cluster, e.Name, e.Seen, e.Phase, e.File))
	}
	require.Equal(t, []string{"prod older seen=true phase=Completed file=", "prod 20261130-reboot-cp-1 seen=true phase=Paused file=",
		"prod 20261130-reboot-cp-2 seen=false phase= file=operations/20261130-reboot-cp-2.yaml"}, got)
	require.Contains(t, entries[1].Does, "reboots cp-1")
	require.Len(t, runop.List(fleet, []reconcile.ClusterStatus{status}, now.Add(48*time.Hour), false), 2, "what is over and was never seen is no news")
	require.Len(t, runop.List(fleet, []reconcile.ClusterStatus{status}, now.Add(48*time.Hour), true), 3)
	require.Len(t, runop.List(nil, []reconcile.ClusterStatus{status}, now, true), 2)

	digest := entries[1].Digest
	status.Lock = &statefile.Lock{Holder: "operation-" + digest[:12]}
	status.Waiting = &reconcile.IntentStatus{Action: "reboot", Machine: "cp-1"}
	detail := runop.Describe(entries[1], &status, []statefile.Event{{Operation: digest, Action: "OperationAccepted"}, {Operation: "another", Action: "OperationAccepted"}})
	require.Len(t, detail.Events, 1)
	require.Equal(t, "cp-1", detail.Intent.Machine)
	require.Equal(t, []string{"ichor run-op resume 20261130-reboot-cp-1 --cluster prod --digest " + digest + " --pause 2",
		"ichor run-op cancel 20261130-reboot-cp-1 --cluster prod --digest " + digest}, detail.Next)
	require.Nil(t, runop.Describe(entries[0], &status, nil).Intent)
	for _, name := range []string{"x; touch /tmp/y", "$(id)", "", "X", "a\nb"} {
		require.Empty(t, runop.Next("prod", reconcile.OperationStatus{Name: name, Digest: digest, Phase: "Paused"}), name)
		require.Empty(t, runop.Next(name, reconcile.OperationStatus{Name: "a", Digest: digest, Phase: "Paused"}), name)
		require.Empty(t, runop.Next("prod", reconcile.OperationStatus{Name: "a", Digest: name, Phase: "Paused"}), name)
	}
}
