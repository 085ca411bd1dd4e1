package recovery

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// cancelled runs a gentle restore until so many machines have left, and then its cancel.
func cancelled(t *testing.T, s *stage, left int) (*Marker, error) {
	t.Helper()
	r, _, ctx := s.process(0)
	require.NoError(t, s.begin(ctx, r))
	for s.count("leave") < left {
		require.NoError(t, r.step(ctx))
	}
	r.Cancel = true
	return r.Go(ctx)
}

func TestACancelledRestoreLeavesTheOldClusterWhole(t *testing.T) {
	for left := range 3 {
		t.Run(fmt.Sprint(left, " have left"), func(t *testing.T) {
			s := working(t)
			withKubernetes(s)
			m, err := cancelled(t, s, left)
			require.NoError(t, err, s.said)
			s.requireOld(m)
			require.Equal(t, left, s.count("reboot"))
			require.Equal(t, left, s.count("cordon"))
			require.Contains(t, m.Notes[0], "every control plane is a member of the old etcd, of which cp-3 was the last")
		})
	}
}

func TestThoseThatLeftAreRebootedOneAtATime(t *testing.T) {
	s := working(t)
	withKubernetes(s)
	_, err := cancelled(t, s, 2)
	require.NoError(t, err)
	require.Equal(t, []string{"leave cp-1", "leave cp-2", "cordon cp-1", "evict cp-1", "evict cp-1", "reboot cp-1", "uncordon cp-1",
		"cordon cp-2", "evict cp-2", "evict cp-2", "reboot cp-2", "uncordon cp-2"}, s.accepted)
}

func TestTheAgentsOwnOneIsRebootedLast(t *testing.T) {
	s := working(t)
	withKubernetes(s)
	s.own, s.target = "cp-1", "cp-1"
	m, err := cancelled(t, s, 2)
	require.NoError(t, err)
	s.requireOld(m)
	require.Equal(t, "reboot cp-1", s.accepted[len(s.accepted)-2])
}

func TestALeaveThatMayStillHappenIsWaitedForBeforeTheOldClusterIsCalledWhole(t *testing.T) {
	s := working(t)
	withKubernetes(s)
	s.machines["cp-1"].dropLeaves = 1 // it says nothing of what becomes of it
	r, _, ctx := s.process(0)
	require.NoError(t, s.begin(ctx, r))
	for s.count("leave") < 1 {
		require.NoError(t, r.step(ctx))
	}
	at := s.clock.Now()
	r.Cancel = true
	m, err := r.Go(ctx)
	require.NoError(t, err, s.said)
	s.requireOld(m)
	require.GreaterOrEqual(t, m.Ended.Sub(at), DefaultTiming().Again-time.Second)
	require.Zero(t, s.count("reboot"))
}

func TestACancelWipesNobodyWhileNobodySaysWhichMemberItIs(t *testing.T) {
	s := working(t)
	withKubernetes(s)
	r, _, ctx := s.process(0)
	require.NoError(t, s.begin(ctx, r))
	for s.count("leave") < 1 {
		require.NoError(t, r.step(ctx))
	}
	r.Cancel = true
	s.machines["cp-2"].unsaid, s.machines["cp-3"].unsaid = true, true
	for range 20 {
		require.NoError(t, r.step(ctx))
	}
	require.Zero(t, s.count("reset"), s.accepted)
	s.machines["cp-2"].unsaid, s.machines["cp-3"].unsaid = false, false
	m, err := r.Go(ctx)
	require.NoError(t, err, s.said)
	s.requireOld(m)
	require.Zero(t, s.count("reset"))
}

func TestAfterTheFirstWipeWasBegunThereIsNothingToGoBackTo(t *testing.T) {
	s := working(t)
	withKubernetes(s)
	r, _, ctx := s.process(0)
	require.NoError(t, s.begin(ctx, r))
	for s.count("reset") == 0 {
		require.NoError(t, r.step(ctx))
	}
	require.Equal(t, UndoNothing, r.marker.Undo())
	r.Cancel = true
	err := r.step(ctx)
	var stopped *StoppedError
	require.ErrorAs(t, err, &stopped)
	require.ErrorContains(t, err, "it can't be cancelled any more: the wipe of cp-3 was begun, and etcd has not recovered yet")
	r.Cancel = false
	for r.marker.Phase != PhaseJoining {
		require.NoError(t, r.step(ctx))
	}
	require.Equal(t, UndoEnd, r.marker.Undo())
	r.Cancel = true
	m, err := r.Go(ctx)
	require.NoError(t, err)
	require.True(t, m.Cancelled)
	require.Equal(t, PhaseDone, m.Phase)
	require.Contains(t, m.Notes[0], "what has not joined yet is left to the agent")
}

func TestACancelThatIsKilledAnywhereGoesOn(t *testing.T) {
	begun := func(s *stage) {
		r, _, ctx := s.process(0)
		require.NoError(t, s.begin(ctx, r))
		for s.count("leave") < 2 {
			require.NoError(t, r.step(ctx))
		}
		s.cancel = true
	}
	s := working(t)
	withKubernetes(s)
	begun(s)
	_, points, err := s.run(0)
	require.NoError(t, err)
	require.Greater(t, points, 20)
	for at := 1; at <= points; at++ {
		t.Run(fmt.Sprint("point ", at), func(t *testing.T) {
			s := working(t)
			withKubernetes(s)
			begun(s)
			_, _, _ = s.run(at)
			s.cancel = at%2 == 0 // the marker says it: the next process needs not be told
			if m, err := s.read(); err != nil || m.Phase != PhaseCancelling {
				s.cancel = true
			}
			m, _, err := s.run(0)
			require.NoError(t, err, s.said)
			s.requireOld(m)
			require.Equal(t, 2, s.count("reboot"), s.accepted)
		})
	}
}
