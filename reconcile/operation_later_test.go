package reconcile

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/statefile"
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
	in := d.input()
	in.Cluster.Object.Spec.ControlPlane.Count = 1
	in.State = cloneState(d.state)
	seen, _ := in.see("cp-1")
	in.State.Rollout = &statefile.RolloutState{Machine: "cp-1", Digest: seen.Config.Wanted, Phase: phaseDrain, Since: stamp(in.Now), BootID: seen.BootID, From: seen.Config.Active}
	in.State.Lock = &statefile.Lock{Holder: lockRollout, Since: stamp(in.Now)}
	staged := in.Seen["cp-1"]
	staged.Config.Active, staged.Config.Persistent, staged.Config.Wanted = "old", seen.Config.Wanted, seen.Config.Wanted
	in.Seen["cp-1"] = staged
	plan := Decide(in)
	require.Nil(t, plan.Next.Lock)
	require.Nil(t, plan.Next.Rollout)
	require.Empty(t, plan.Actions)
	require.Equal(t, "RebootRequired", plan.Next.Machines["cp-1"].Ready.Reason)
	require.Contains(t, plan.Next.Machines["cp-1"].Ready.Message, "it waits: etcd has 3 members and count is 1")
}
