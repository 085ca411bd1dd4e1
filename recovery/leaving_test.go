package recovery

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/internal/crashmatrix"
	"ichor.maesh.dev/talos"
)

// working gives three control planes whose etcd works, of which cp-3 is the last to keep it.
func working(t *testing.T) *stage {
	t.Helper()
	w := newWorld("cp-1", "cp-2", "cp-3")
	for n, name := range []string{"cp-1", "cp-2", "cp-3"} {
		b := w.machines[name]
		b.data = true
		b.serve(w, "Running", "Health check successful")
		b.service.Healthy = talos.Yes
		w.old[name] = talos.EtcdMember{ID: uint64(70 + n), Name: name, PeerURLs: []string{b.url()}}
	}
	s := newStage(t, w, "cp-1", "cp-2", "cp-3")
	s.holder = "cp-3"
	return s
}

func TestOfAnEtcdThatWorksOneMachineIsWipedAndTheOthersLeave(t *testing.T) {
	s := working(t)
	m, _, err := s.run(0)
	require.NoError(t, err, s.said)
	s.requireWhole(m)
	require.Equal(t, []string{"leave cp-1", "leave cp-2", "reset cp-3", "upload cp-1", "recover cp-1", "reboot cp-2"}, s.accepted)
	left, reset := m.last(ActLeave, "cp-2"), m.last(ActReset, "cp-3")
	require.GreaterOrEqual(t, reset.At.Sub(left.OutcomeAt), DefaultTiming().Servers, "the API servers had time to end")
}

func TestALeaveThatFailsIsAskedForAgain(t *testing.T) {
	s := working(t)
	s.machines["cp-2"].dropLeaves = maxLeaves - 1
	began := s.clock.Now()
	m, _, err := s.run(0)
	require.NoError(t, err, s.said)
	s.requireWhole(m)
	require.Equal(t, maxLeaves+1, s.count("leave"))
	require.Equal(t, 1, s.count("reset"))
	require.Greater(t, s.clock.Now().Sub(began), 20*time.Minute, "etcd has its time to become healthy")
}

func TestNothingIsWipedWhileAMachineDoesNotLeave(t *testing.T) {
	for name, spoil := range map[string]func(w *world){
		"one refuses to leave":      func(w *world) { w.machines["cp-2"].dropLeaves = 99 },
		"one doesn't answer":        func(w *world) { w.machines["cp-2"].off = true },
		"the holder doesn't answer": func(w *world) { w.machines["cp-3"].off = true },
		"a stranger is a member":    func(w *world) { w.old["stranger"] = talos.EtcdMember{ID: 5, Name: "stranger"} },
	} {
		t.Run(name, func(t *testing.T) {
			s := working(t)
			spoil(s.world)
			m, _, err := s.run(0)
			var stopped *StoppedError
			require.ErrorAs(t, err, &stopped, s.said)
			require.Equal(t, PhaseLeaving, m.Phase)
			require.Zero(t, s.count("reset")+s.count("upload")+s.count("recover"))
		})
	}
}

func TestKilledAtAnyPointOfAGentleRestoreTheNextRunEndsItRight(t *testing.T) {
	_, points, err := working(t).run(0)
	require.NoError(t, err)
	require.Greater(t, points, 30)
	crashmatrix.Of(t, "restore of an etcd that works, one machine wiped", crashmatrix.Modelled).Each(t, points, points, 0, nil, func(t *testing.T, n int) {
		s := working(t)
		_, _, _ = s.run(n + 1)
		m, _, err := s.run(0)
		require.NoError(t, err, s.said)
		s.requireWhole(m)
		require.Equal(t, 1, s.count("recover"), s.accepted)
		require.Equal(t, 1, s.count("reset"), s.accepted)
		require.Equal(t, 2, s.count("leave"), s.accepted)
		require.Less(t, slices.Index(s.accepted, "leave cp-2"), slices.Index(s.accepted, "reset cp-3"))
	})
}
