package reconcile

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/statefile"
)

func TestThreeControlPlanesAndAWorkerComeUpFromNothing(t *testing.T) {
	m := newModel(3, 1)
	d := newDrive(m, 3)
	for range 200 {
		_, err := d.pass()
		require.NoError(t, err)
		m.tick(2 * time.Second)
		if d.state.Ready.Status {
			break
		}
	}
	require.True(t, d.state.Ready.Status, "%+v\n%v", d.state.Ready, d.log)
	require.Equal(t, 1, m.bootstraps)
	require.Len(t, m.etcds[0].members, 3)
	require.Equal(t, statefile.OriginNew, d.state.Origin)
	require.Equal(t, []string{
		"first-config cp-1 where mode=maintenance", "first-config cp-2 where mode=maintenance", "first-config cp-3 where mode=maintenance",
		"first-config w-1 where mode=maintenance", "bootstrap cp-1 where data=absent",
	}, d.log)

	before := d.state
	_, err := d.pass()
	require.NoError(t, err)
	require.True(t, sameState(before, d.state), "a pass that finds nothing new leaves the state as it is")
}

func TestARemovedMachineThatRunsAgainIsSaidAndNotTouched(t *testing.T) {
	m := newModel(1, 1)
	d := newDrive(m, 1)
	for range 200 {
		_, err := d.pass()
		require.NoError(t, err)
		m.tick(2 * time.Second)
		if d.state.Ready.Status {
			break
		}
	}
	require.True(t, d.state.Ready.Status, "%+v\n%v", d.state.Ready, d.log)
	done := len(d.log)
	d.state = cloneState(d.state)
	d.state.Machines["w-1"].Removed = true
	for range 20 {
		_, err := d.pass()
		require.NoError(t, err)
		m.tick(2 * time.Second)
	}
	require.Equal(t, "RemovedAndBack", d.state.Machines["w-1"].Ready.Reason, "%+v", d.state.Machines["w-1"].Ready)
	require.Contains(t, d.state.Machines["w-1"].Ready.Message, "talosctl reset -n ")
	require.Len(t, d.log, done, "nothing is done to it: %v", d.log)
}
