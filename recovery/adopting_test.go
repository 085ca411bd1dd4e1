package recovery

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/statefile/storetest"
)

// TestTheCommandGoesOnWithAnAgentsUnfinishedRestore ends an agent's restore of an etcd that works on the way into each phase. The command takes
// the state's lock over from the agent's operation and brings the marker, which stays the operation's, to its end; the agent, should it wake
// up again, does nothing more.
func TestTheCommandGoesOnWithAnAgentsUnfinishedRestore(t *testing.T) {
	for _, own := range []string{"", "cp-1"} {
		for _, phase := range []Phase{PhaseLeaving, PhaseConfiguring, PhaseRecovering, PhaseJoining, PhaseReconciling, PhaseCancelling} {
			for _, steps := range []int{0, 1} {
				t.Run(string(phase)+map[int]string{0: ", just begun", 1: ", a step on"}[steps]+map[string]string{"": ", agent outside", "cp-1": ", agent on the target"}[own], func(t *testing.T) {
					adopt(t, own, phase, steps)
				})
			}
		}
	}
}

func adopt(t *testing.T, own string, phase Phase, steps int) {
	t.Helper()
	s := working(t)
	s.own = own
	withKubernetes(s)
	states := storetest.NewMemory()
	oldState := agent(t, states, &statefile.Lock{Holder: "operation:0123"})

	sleeper, _, asleep := s.process(0)
	m := s.marker()
	m.Operation, m.Pinned = "0123", "etcd-restore.0123.snapshot.age"
	_, err := sleeper.Marker.Read(asleep)
	require.NoError(t, err)
	require.NoError(t, sleeper.Begin(asleep, m))
	for sleeper.marker.Phase != phase {
		sleeper.Cancel = phase == PhaseCancelling && s.count("leave") > 0
		require.NotEqual(t, PhaseDone, sleeper.marker.Phase)
		require.NoError(t, sleeper.step(asleep))
	}
	for range steps {
		require.NoError(t, sleeper.step(asleep))
	}
	require.Equal(t, phase, sleeper.marker.Phase, s.said)

	s.clock.Step(3 * time.Hour) // nobody was there, and the machines lived on: the limits count from when the command was typed
	for range 3 {
		LookAt(t.Context(), mortalNodes{s.world, &mortal{}}, m.Machines, nil)
	}
	command, _, ctx := s.process(0)
	content, err := command.Marker.Read(ctx)
	require.NoError(t, err)
	found, err := DecodeMarker(content)
	require.NoError(t, err)
	fence := &StateFence{State: handle(t, states), ID: found.ID}
	require.NoError(t, fence.Take(t.Context(), identity, s.clock.Now()))
	require.ErrorIs(t, oldState.Swap(t.Context(), func(s *statefile.State) error { s.RefusedMore++; return nil }), statefile.ErrOtherWriter)
	command.Fence = fence
	found.Resume(s.clock.Now(), found.Pause)
	require.NoError(t, command.Begin(ctx, found))
	ended, err := command.Go(ctx)
	require.NoError(t, err, s.said)

	if phase == PhaseCancelling {
		s.requireOld(ended)
		require.Nil(t, ended.Restored(), "nothing was restored, and no record says so")
	} else {
		s.requireWhole(ended)
		require.Equal(t, 1, s.count("recover"), s.accepted)
		require.Equal(t, 1, s.count("reset"), s.accepted)
	}
	require.Equal(t, "0123", ended.Operation, "the agent finds its own restore at its end")
	require.Equal(t, m.Pinned, ended.Pinned)
	require.NoError(t, fence.Release(t.Context(), "it ended", ended.Restored()))
	state, err := oldState.Load(t.Context())
	require.NoError(t, err)
	require.Nil(t, state.Lock)

	accepted := len(s.accepted)
	for range 50 { // it may wait for something first
		if err = sleeper.step(asleep); err != nil {
			break
		}
	}
	require.ErrorIs(t, err, ErrOtherDriver)
	require.ErrorIs(t, sleeper.step(asleep), ErrOtherDriver, "once is for ever")
	require.Len(t, s.accepted, accepted, "the agent that woke up did something")
	last, err := s.read()
	require.NoError(t, err)
	require.Equal(t, ended, last)
}
