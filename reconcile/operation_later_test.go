package reconcile

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/talos"
)

// upWithTooMany is a cluster of four control planes and a worker, whose count is put to three once an operation on cp-1 has begun, at the
// moment at which the operation is so far.
func upWithTooMany(t *testing.T, action string, far func(*drive, *statefile.OperationState) bool) *drive {
	t.Helper()
	d := newDrive(newModel(4, 1), 4)
	for range 200 {
		_, err := d.pass()
		require.NoError(t, err)
		d.model.tick(2 * time.Second)
	}
	require.True(t, d.state.Ready.Status, "%+v", d.state.Ready)
	d.model.withKubernetes("3")
	d.operation(t, action, action, "cp-1", map[string]string{})
	for range 50 {
		if far(d, operationNamed(d.state, action)) {
			d.cluster.Object.Spec.ControlPlane.Count = 3
			return d
		}
		_, err := d.pass()
		require.NoError(t, err)
	}
	t.Fatalf("it never came so far: %+v", operationNamed(d.state, action))
	return nil
}

func TestAnOperationThatDidNothingYetWaitsWithoutTheLockForTheRemovalThatEndsItsWait(t *testing.T) {
	for _, action := range []string{"reboot", "shutdown"} {
		for far, when := range map[string]func(*drive, *statefile.OperationState) bool{
			"it just started":                     func(*drive, *statefile.OperationState) bool { return true },
			"it is noted as the one that runs it": func(d *drive, op *statefile.OperationState) bool { return d.begun[op.Digest] != "" },
		} {
			t.Run(action+", "+far, func(t *testing.T) {
				d := upWithTooMany(t, action, when)
				_, err := d.pass()
				require.NoError(t, err)
				op := operationNamed(d.state, action)
				require.Equal(t, statefile.OperationPending, op.Phase, op.Message)
				require.Nil(t, d.state.Lock)
				d.operation(t, "remove", "remove", "cp-4", map[string]string{"confirm": "cp-4"})
				for range 200 {
					_, err := d.pass()
					require.NoError(t, err)
					d.model.tick(5 * time.Second)
				}
				require.Equal(t, statefile.OperationCompleted, operationNamed(d.state, "remove").Phase, operationNamed(d.state, "remove").Message)
				require.False(t, d.model.nodes["cp-1"].kubernetes.Unschedulable)
			})
		}
	}
}

func TestAnOperationWhoseMachineIsBeingEmptiedPausesWhenEtcdKeepsTooManyMembers(t *testing.T) {
	d := upWithTooMany(t, "reboot", func(_ *drive, op *statefile.OperationState) bool {
		return op.Evacuation != nil && op.Evacuation.Cordoned
	})
	require.True(t, d.model.nodes["cp-1"].kubernetes.Unschedulable)
	_, err := d.pass()
	require.NoError(t, err)
	require.Equal(t, statefile.OperationRunning, operationNamed(d.state, "reboot").Phase, "a moment is waited")
	op := d.without(t, 10, "reboot")
	require.Equal(t, statefile.OperationPaused, op.Phase, op.Message)
	require.Contains(t, op.FailureReason, "etcd has 4 members and count is 3")
	require.Zero(t, op.Sent[string(ActReboot)])
	require.Nil(t, d.state.Lock)
	require.False(t, d.model.nodes["cp-1"].kubernetes.Unschedulable, "its cordon is lifted")
}

func TestARolledRebootThatDidNothingYetGivesTheLockBackWhileEtcdHasTooManyMembers(t *testing.T) {
	d := newDrive(newModel(3, 1), 3)
	for range 200 {
		_, err := d.pass()
		require.NoError(t, err)
		d.model.tick(2 * time.Second)
	}
	d.model.withKubernetes("1")
	d.overlay = map[string]func(*Seen){"cp-1": func(seen *Seen) {
		seen.Config.NeedsReboot, seen.Config.Why = seen.Config.Active != seen.Config.Wanted, "machine.files"
	}}
	d.wanted = "config-2"
	for range 50 {
		if plan := Decide(d.input()); plan.Next.Rollout != nil && plan.Next.Rollout.Phase == phaseDrain {
			d.state = plan.Next
			break
		}
		_, err := d.pass()
		require.NoError(t, err)
	}
	require.NotNil(t, d.state.Lock)
	require.Nil(t, d.state.Rollout.Evacuation, "Kubernetes wasn't looked at yet")
	d.cluster.Object.Spec.ControlPlane.Count = 1
	plan := Decide(d.input())
	require.Nil(t, plan.Next.Lock)
	require.Nil(t, plan.Next.Rollout)
	require.Empty(t, plan.Actions)
	require.Equal(t, "RebootRequired", plan.Next.Machines["cp-1"].Ready.Reason)
	require.Contains(t, plan.Next.Machines["cp-1"].Ready.Message, "it waits: etcd has 3 members and count is 1")
}

func TestARolledRebootThatCutsItsMachineOffStopsWithTheWayToItsConsole(t *testing.T) {
	d := newDrive(newModel(1, 1), 1)
	d.overlay = map[string]func(*Seen){"w-1": func(seen *Seen) { *seen = Seen{Observation: talos.Observation{Problem: "no route"}} }}
	in := d.input()
	next := cloneState(d.state)
	next.Rollout = &statefile.RolloutState{Machine: "w-1", Phase: phaseReboot}
	intent := statefile.Intent{Action: string(ActReboot), Machine: "w-1", BootID: "boot-2", Attempt: 1, Outcome: statefile.OutcomeOK, At: in.Now.Add(-in.Timing.Return)}
	resolveRolledReboot(&in, next, intent)
	require.Contains(t, next.Rollout.Stopped, "look at its console")
	require.NotContains(t, next.Rollout.Stopped, "run-op node reboot", "no call reaches it")
}
