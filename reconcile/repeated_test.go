package reconcile

import (
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/statefile"
)

func TestACallThatMayBeRepeatedIsGivenUpForItsTimeAndNeverForItsNumberAlone(t *testing.T) {
	const limit = 20 * time.Minute
	for name, test := range map[string]struct {
		asked int
		since time.Duration
		due   time.Duration
		over  bool
	}{
		"the first goes out at once":                   {0, 0, 0, false},
		"so do the second and the third":               {2, time.Second, 0, false},
		"two that took all its time are not enough":    {2, time.Hour, 0, false},
		"the fourth has a pause":                       {3, time.Second, 30 * time.Second, false},
		"the fifth has a longer one":                   {4, time.Minute, 90 * time.Second, false},
		"so has the sixth":                             {5, 2 * time.Minute, 3 * time.Minute, false},
		"many within a short time are not given up":    {50, limit - time.Second, limit / 40 * 48 * 49 / 2, false},
		"three are given up once the time is used up":  {3, limit, 30 * time.Second, true},
		"so are more, whenever the next would be due":  {9, limit, 14 * time.Minute, true},
		"the last that fits into the time is the 11th": {10, limit - time.Second, 18 * time.Minute, false},
		"a 12th would come too late":                   {11, limit - time.Second, 22*time.Minute + 30*time.Second, false},
	} {
		t.Run(name, func(t *testing.T) {
			due, over := repeated(test.asked, test.since, limit)
			require.Equal(t, test.due, due)
			require.Equal(t, test.over, over)
		})
	}
}

// leaving is a cluster of four control planes of which the last is being removed.
func leaving(t *testing.T) *drive {
	t.Helper()
	d := newDrive(newModel(4, 0), 4)
	for range 300 {
		_, err := d.pass()
		require.NoError(t, err)
		d.model.tick(2 * time.Second)
	}
	require.True(t, d.state.Ready.Status, "%+v", d.state.Ready)
	d.cluster.Object.Spec.ControlPlane.Count = 3
	d.model.withKubernetes("0")
	d.operation(t, "remove-cp-4", "remove", "cp-4", map[string]string{"confirm": "cp-4", "then": "reboot"})
	return d
}

// passes passes for so long, a pass every two seconds, and gives the operation and how many passes changed the state.
func (d *drive) passes(t *testing.T, long time.Duration) (op *statefile.OperationState, writes int) {
	t.Helper()
	for until := d.model.now.Add(long); d.model.now.Before(until); {
		before := cloneState(d.state)
		_, err := d.pass()
		require.NoError(t, err)
		after := cloneState(d.state)
		before.Latest, after.Latest = time.Time{}, time.Time{}
		if !reflect.DeepEqual(before, after) {
			writes++
		}
		d.model.tick(2 * time.Second)
	}
	return operationNamed(d.state, "remove-cp-4"), writes
}

func TestARemovalThatEtcdRefusesForMinutesIsAskedForUntilItIsDone(t *testing.T) {
	d := leaving(t)
	d.model.unhealthy = d.model.now.Add(10 * time.Minute)
	op, writes := d.passes(t, 9*time.Minute)
	require.Equal(t, statefile.OperationRunning, op.Phase, op.Message)
	require.Contains(t, op.Message, "etcdserver: unhealthy cluster; it is asked again at ")
	require.Equal(t, "etcdserver: unhealthy cluster", op.Answer)
	require.Less(t, writes, 60, "not each of the 270 passes writes the state")
	op, _ = d.passes(t, 15*time.Minute)
	require.Equal(t, statefile.OperationCompleted, op.Phase, op.Message)
	require.Empty(t, op.Answer)
}

func TestARemovalThatEtcdRefusesForTooLongPausesWithItsLastWord(t *testing.T) {
	d := leaving(t)
	d.model.unhealthy = d.model.now.Add(24 * time.Hour)
	op, _ := d.passes(t, 19*time.Minute)
	require.Equal(t, statefile.OperationRunning, op.Phase, op.Message)
	op, _ = d.passes(t, 3*time.Minute)
	require.Equal(t, statefile.OperationPaused, op.Phase, op.Message)
	require.Regexp(t, `etcd did not take member [0-9a-f]+ \(cp-4\) out within 20m0s and 1[01] requests: etcdserver: unhealthy cluster; look at etcd, and resume this operation`, op.FailureReason)
	require.Zero(t, d.model.accepted["reset-machine cp-4"])

	d.resume(t, "remove-cp-4")
	op, _ = d.passes(t, 10*time.Minute)
	require.Equal(t, statefile.OperationRunning, op.Phase, "a resume has all its time again: %s", op.Message)
}

func TestANodeThatCannotBeDeletedIsAskedForUntilItsTimeIsUp(t *testing.T) {
	d := leaving(t)
	d.model.kept = "the server is currently unable to handle the request"
	op, _ := d.passes(t, 8*time.Minute)
	require.Equal(t, statefile.OperationRunning, op.Phase, op.Message)
	require.Equal(t, stepDelete, op.Step)
	op, _ = d.passes(t, 12*time.Minute)
	require.Equal(t, statefile.OperationPaused, op.Phase, op.Message)
	require.Contains(t, op.FailureReason, "the Node of cp-4 could not be deleted within 10m0s")
	require.Contains(t, op.FailureReason, d.model.kept)
	d.model.kept = ""
	d.resume(t, "remove-cp-4")
	op, _ = d.passes(t, 2*time.Minute)
	require.Equal(t, statefile.OperationCompleted, op.Phase, op.Message)
}
