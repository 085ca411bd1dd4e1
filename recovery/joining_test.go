package recovery

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/talos"
)

func TestWhatKeepsOthersFromJoiningIsRemovedByItsID(t *testing.T) {
	for name, test := range map[string]struct {
		spoil  func(b *box)
		grace  time.Duration
		resets int
	}{
		"a learner that nobody promotes": {func(b *box) { b.learner = 1 }, DefaultTiming().Learner, 1},
		"a member that never got a name": {func(b *box) { b.nameless = 1 }, DefaultTiming().Nameless, 0},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld("cp-1", "cp-2", "cp-3")
			test.spoil(w.machines["cp-2"])
			s := newStage(t, w)
			m, _, err := s.run(0)
			require.NoError(t, err, s.said)
			s.requireWhole(m)
			require.Equal(t, 1, s.count("remove-member cp-1"), "over the one that recovered")
			require.Equal(t, test.resets, s.count("reset cp-2"))
			require.Equal(t, test.resets, s.count("reset"))
			removed := m.last(ActRemoveMember, "cp-1")
			require.Equal(t, "cp-2", removed.Facts[factOf])
			require.GreaterOrEqual(t, removed.At.Sub(m.Recovered.At), test.grace)
			require.Less(t, removed.At.Sub(m.Recovered.At), test.grace+time.Minute)
		})
	}
}

func TestALearnerThatWasPromotedMeanwhileIsNotRemoved(t *testing.T) {
	w := newWorld("cp-1", "cp-2", "cp-3")
	w.machines["cp-2"].learner = 1
	s := newStage(t, w)
	r, _, ctx := s.process(0)
	require.NoError(t, s.begin(ctx, r))
	r.Fence = fenceFunc(func(i Intent) {
		if i.Action == ActRemoveMember {
			t.Error("it is a voter by now")
		}
	})
	var due *action
	for due == nil {
		r.look(ctx)
		step := decide(input{Marker: r.marker, Seen: r.seen, Now: r.now(), Timing: r.Timing, Unjoined: ages(r.unjoined, r.passed())})
		if step.Action != nil && step.Action.Kind == ActRemoveMember {
			due = step.Action
			continue
		}
		require.NoError(t, r.step(ctx))
	}
	w.machines["cp-2"].learner = 0
	w.promote(w.machines["cp-2"])
	require.ErrorIs(t, r.do(ctx, due), errMoved)
	require.Zero(t, s.count("remove-member"))
	m, err := r.Go(ctx)
	require.NoError(t, err, s.said)
	s.requireWhole(m)
	require.Zero(t, s.count("remove-member")+s.count("reset"))
}

func TestAStragglerIsWipedAgainAtMostEveryTenMinutes(t *testing.T) {
	w := newWorld("cp-1", "cp-2", "cp-3")
	s := newStage(t, w, "cp-1", "cp-2", "cp-3")
	r, _, ctx := s.process(0)
	require.NoError(t, s.begin(ctx, r))
	for r.marker.Phase != PhaseJoining {
		require.NoError(t, r.step(ctx))
	}
	// Somebody's old etcd takes cp-3 in, twice.
	old := func() {
		b := w.machines["cp-3"]
		if b.of != nil {
			b.of.remove(b.member)
		}
		b.of, b.member = w.old, 9
		b.serve(w, "Running", "started")
	}
	old()
	for s.count("reset") < 1 {
		require.NoError(t, r.step(ctx))
	}
	first := r.marker.last(ActReset, "cp-3").At
	for w.machines["cp-3"].of == w.old {
		require.NoError(t, r.step(ctx))
	}
	old()
	// Another process goes on, which knows of the first time from the marker.
	r, _, ctx = s.process(0)
	require.NoError(t, s.begin(ctx, r))
	m, err := r.Go(ctx)
	require.NoError(t, err, s.said)
	s.requireWhole(m)
	require.Equal(t, 2, s.count("reset cp-3"))
	require.Equal(t, 2, s.count("reset"))
	require.GreaterOrEqual(t, m.last(ActReset, "cp-3").At.Sub(first), DefaultTiming().Again)
}

func TestNothingRecoversBesideTheAgentsOwnEtcdWhileThatAnswers(t *testing.T) {
	w := newWorld("cp-1", "cp-2", "cp-3")
	w.runOld("cp-1") // it lives without the others
	for _, name := range []string{"cp-2", "cp-3"} {
		w.machines[name].stuck = true
	}
	s := newStage(t, w, "cp-1", "cp-2", "cp-3")
	s.own, s.target = "cp-1", "cp-2"
	m, _, err := s.run(0)
	var stopped *StoppedError
	require.ErrorAs(t, err, &stopped)
	require.ErrorContains(t, err, "the old etcd on cp-1 answers still, and nothing is recovered beside it")
	require.Equal(t, PhaseRecovering, m.Phase)
	require.Zero(t, s.count("recover")+s.count("upload"))
	require.Empty(t, s.wrong)
}

func TestTheAgentsOwnMachineIsWipedLast(t *testing.T) {
	w := newWorld("cp-1", "cp-2", "cp-3")
	w.runOld("cp-1", "cp-2", "cp-3", "gone-1", "gone-2", "gone-3", "gone-4")
	s := newStage(t, w, "cp-1", "cp-2", "cp-3")
	s.own, s.target = "cp-1", "cp-2"
	m, _, err := s.run(0)
	require.NoError(t, err, s.said)
	s.requireWhole(m)
	require.Equal(t, []string{"reset cp-2", "reset cp-3", "upload cp-2", "recover cp-2", "reset cp-1"}, s.accepted)
	require.True(t, w.machines["cp-1"].runs(w.recovered))
	require.Equal(t, talos.Yes, s.Observe(t.Context(), talos.Target{Name: "cp-3"}).Etcd.ServiceHealthy)
}

// TestNothingRecoversBesideAnOldEtcdOfWhichNothingIsKnown: only a service that is seen to be unwell, or to have ended, is quiet.
func TestNothingRecoversBesideAnOldEtcdOfWhichNothingIsKnown(t *testing.T) {
	for name, test := range map[string]struct {
		service string
		health  talos.Fact
		waits   string
	}{
		"it is unwell":                     {"Running", talos.No, ""},
		"it answers":                       {"Running", talos.Yes, "answers still"},
		"it runs and says nothing yet":     {"Running", talos.Unknown, "whether the old etcd on cp-2 answers still is not known (its service is Running)"},
		"it waits to be started":           {"Waiting", talos.Unknown, "is not known (its service is Waiting)"},
		"its services could not be read":   {"", talos.Unknown, "is not known (its service is not seen)"},
		"it failed before it came to run":  {"Failed", talos.Unknown, ""},
		"it was ended and says no health":  {"Finished", talos.Unknown, ""},
		"it failed, and was seen unwell":   {"Failed", talos.No, ""},
		"it is about to start, and unwell": {"Preparing", talos.No, ""},
	} {
		t.Run(name, func(t *testing.T) {
			in := stopping(PhaseRecovering)
			in.Marker.Own = "cp-2"
			in.see("cp-2", func(o *talos.Observation) {
				o.Etcd.Data, o.Etcd.Service, o.Etcd.ServiceHealthy = talos.Yes, test.service, test.health
			})
			step := decide(*in)
			if test.waits != "" {
				require.Nil(t, step.Action)
				require.Contains(t, step.Wait, test.waits)
				return
			}
			require.NotNil(t, step.Action, "%+v", step)
			require.Equal(t, ActUpload, step.Action.Kind)
		})
	}
}
