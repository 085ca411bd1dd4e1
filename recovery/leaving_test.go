package recovery

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/internal/crashmatrix"
	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/talos"
)

// working gives three control planes whose etcd works, of which cp-3 is the last to keep it.
func working(t *testing.T) *stage {
	t.Helper()
	w := newWorld("cp-1", "cp-2", "cp-3")
	w.runOld("cp-1", "cp-2", "cp-3")
	s := newStage(t, w, "cp-1", "cp-2", "cp-3")
	s.holder = "cp-3"
	return s
}

func TestOfAnEtcdThatWorksOneMachineIsWipedAndTheOthersLeave(t *testing.T) {
	s := working(t)
	withKubernetes(s)
	m, _, err := s.run(0)
	require.NoError(t, err, s.said)
	s.requireWhole(m)
	require.Equal(t, []string{"leave cp-1", "leave cp-2", "reset cp-3", "upload cp-1", "recover cp-1", "cordon cp-2", "evict cp-2", "evict cp-2", "reboot cp-2",
		"uncordon cp-2"}, s.accepted[:10])
	left, reset := m.last(ActLeave, "cp-2"), m.last(ActReset, "cp-3")
	require.GreaterOrEqual(t, reset.At.Sub(left.OutcomeAt), 40*time.Second, "the API servers were seen gone")
	require.Less(t, reset.At.Sub(left.OutcomeAt), time.Minute, "and no longer was waited")
}

func TestAnAPIServerThatIsNotSeenToEndIsWaitedForTwoMinutesAndSaid(t *testing.T) {
	for name, spoil := range map[string]func(b *box, now time.Time){
		"it can't be asked":  func(b *box, _ time.Time) { b.mute = true },
		"it lives on and on": func(b *box, now time.Time) { b.server = now.Add(time.Hour) },
	} {
		t.Run(name, func(t *testing.T) {
			s := working(t)
			r, _, ctx := s.process(0)
			require.NoError(t, s.begin(ctx, r))
			for s.count("leave") < 2 {
				require.NoError(t, r.step(ctx))
			}
			spoil(s.machines["cp-2"], s.clock.Now())
			m, err := r.Go(ctx)
			require.NoError(t, err, s.said)
			s.requireWhole(m)
			require.InDelta(t, DefaultTiming().Servers, m.last(ActReset, "cp-3").At.Sub(m.last(ActLeave, "cp-2").OutcomeAt), float64(10*time.Second))
			require.Contains(t, m.Notes[0], "the API servers of cp-2 were not seen to end within 2m0s")
		})
	}
}

// doors opens a connection at once, whoever asks.
type doors struct{ Nodes }

func (doors) Dial(context.Context, talos.Target) (Session, error) { return answering{}, nil }

type answering struct{ Session }

func (answering) APIServer(context.Context) (talos.Fact, error) { return talos.No, nil }
func (answering) Close() error                                  { return nil }

func TestThoseThatLeftAreAskedSideBySideForTheirAPIServers(t *testing.T) {
	const machines = 20000 // so many that some have answered before the last is asked
	r := &Run{Nodes: doors{}, marker: &Marker{Phase: PhaseLeaving}, seen: map[string]Seen{}, Timing: DefaultTiming()}
	for n := range machines {
		m := Machine{Name: fmt.Sprint("cp-", n)}
		r.marker.Machines = append(r.marker.Machines, m)
		r.seen[m.Name] = Seen{Observation: talos.Observation{Mode: talos.ModeConfigured, Etcd: talos.EtcdObservation{Data: talos.No}}}
	}
	r.askServers(t.Context())
	for name, seen := range r.seen {
		require.Equal(t, talos.No, seen.APIServer, name)
	}
}

func TestOneThatLeftIsRebootedWithItsPodsWhereNobodyCanMoveThem(t *testing.T) {
	for name, test := range map[string]struct {
		spoil func(s *stage)
		after time.Duration
		says  string
	}{
		"the Kubernetes API doesn't answer": {func(s *stage) { s.kubernetes.down = "no route to host" }, 10 * time.Minute, "has not answered for 10m0s (no route to host)"},
		"no way to it is known":             {func(s *stage) { s.kubernetes = nil }, 0, "no way to the Kubernetes API is known here"},
		"a budget holds one":                {func(s *stage) { s.machines["cp-2"].held = "is held by the budget shop/web" }, 15 * time.Minute, "shop/web-0 is held by the budget"},
	} {
		t.Run(name, func(t *testing.T) {
			s := working(t)
			withKubernetes(s)
			test.spoil(s)
			back(s, 30*time.Minute)
			m, _, err := s.run(0)
			require.NoError(t, err, s.said)
			s.requireWhole(m)
			require.Equal(t, 1, s.count("reboot"))
			require.Equal(t, 2, s.machines["cp-2"].pods)
			require.Contains(t, m.Notes[0], "cp-2 was rebooted with its pods on it: ")
			require.Contains(t, m.Notes[0], test.says)
			require.GreaterOrEqual(t, m.last(ActReboot, "cp-2").At.Sub(m.Recovered.At), test.after)
		})
	}
}

func TestACordonThatCanNotBeLiftedIsLeftToBeLiftedLater(t *testing.T) {
	s := working(t)
	withKubernetes(s)
	r, _, ctx := s.process(0)
	require.NoError(t, s.begin(ctx, r))
	for s.count("reboot") == 0 {
		require.NoError(t, r.step(ctx))
	}
	require.Equal(t, m0(r).ID, s.cordons["cp-2"])
	s.kubernetes.down = "gone"
	for r.marker.Phase == PhaseJoining {
		require.NoError(t, r.step(ctx))
	}
	m := r.marker
	left := m.LeftCordons()
	require.Len(t, left, 1)
	require.Equal(t, "uid-of-cp-2", left["cp-2"].NodeUID)
	require.Equal(t, m.ID, left["cp-2"].Owner)
}

// back has the Kubernetes API answer again after a while.
func back(s *stage, after time.Duration) {
	if c := s.kubernetes; c != nil && c.down != "" {
		c.backAt = s.clock.Now().Add(after)
	}
}

func m0(r *Run) *Marker { return r.marker }

func TestSomebodyElsesCordonStays(t *testing.T) {
	s := working(t)
	withKubernetes(s)
	s.cordons["cp-2"] = "somebody"
	m, _, err := s.run(0)
	require.NoError(t, err, s.said)
	require.Equal(t, "somebody", s.cordons["cp-2"])
	require.Zero(t, s.machines["cp-2"].pods, "its pods are moved all the same")
	require.Empty(t, m.LeftCordons())
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
		"a stranger is a member": func(w *world) {
			w.old.members = append(w.old.members, talos.EtcdMember{ID: 5, Name: "stranger"})
		},
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

func TestAHolderThatIsLeftAloneWithoutAQuorumIsWipedAllTheSame(t *testing.T) {
	now, timing := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC), DefaultTiming()
	long := now.Add(-timing.Broken - time.Second)
	for name, test := range map[string]struct {
		change func(m *Marker, seen map[string]Seen)
		goesOn bool
	}{
		"all others left long ago and hold nothing": {func(*Marker, map[string]Seen) {}, true},
		"the last one left a moment ago":            {func(m *Marker, _ map[string]Seen) { m.Intents[1].OutcomeAt = now.Add(-timing.Broken) }, false},
		"there may be a member that nobody knows":   {func(m *Marker, _ map[string]Seen) { m.Intents[1].Facts = nil }, false},
		"one was never told to leave":               {func(m *Marker, _ map[string]Seen) { m.Intents = m.Intents[1:] }, false},
		"one holds data":                            {func(_ *Marker, seen map[string]Seen) { with(seen, "cp-3", talos.ModeConfigured, talos.Yes) }, false},
		"nobody knows whether one holds data":       {func(_ *Marker, seen map[string]Seen) { with(seen, "cp-3", talos.ModeConfigured, talos.Unknown) }, false},
		"one doesn't answer":                        {func(_ *Marker, seen map[string]Seen) { with(seen, "cp-3", talos.ModeUnknown, talos.No) }, false},
		"the holder doesn't answer":                 {func(_ *Marker, seen map[string]Seen) { with(seen, "cp-2", talos.ModeUnknown, talos.Yes) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			m := &Marker{Phase: PhaseLeaving, Began: now.Add(-10 * time.Minute), Holder: "cp-2", Target: "cp-1",
				Machines: []Machine{{Name: "cp-1"}, {Name: "cp-2"}, {Name: "cp-3"}}}
			seen := map[string]Seen{}
			with(seen, "cp-2", talos.ModeConfigured, talos.Yes)
			for _, left := range []string{"cp-1", "cp-3"} {
				m.Intents = append(m.Intents, Intent{Action: ActLeave, Machine: left, Outcome: statefile.OutcomeOK, At: long, OutcomeAt: long})
				with(seen, left, talos.ModeConfigured, talos.No)
			}
			m.Intents[1].Facts = map[string]string{factLast: "yes"}
			test.change(m, seen)
			step := decide(input{Marker: m, Seen: seen, Now: now, Timing: timing})
			if !test.goesOn {
				require.Contains(t, step.Wait, "the etcd on cp-2, which the others leave, doesn't answer")
				return
			}
			require.Equal(t, PhaseConfiguring, step.Phase, step.Wait)
			require.Equal(t, "the etcd on cp-2 did not answer any more once all others had left it", step.Note)
		})
	}
}

func TestALeaveSaysWhetherItIsTheLastOne(t *testing.T) {
	for name, test := range map[string]struct {
		more []talos.EtcdMember
		last string
	}{
		"the holder and it are the members": {nil, "yes"},
		"another one is a member":           {[]talos.EtcdMember{{ID: 3}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			seen := map[string]Seen{}
			for n, on := range []string{"cp-1", "cp-2"} {
				with(seen, on, talos.ModeConfigured, talos.Yes)
				s := seen[on]
				s.Etcd.MemberID = uint64(n + 1)
				s.Etcd.Members = append([]talos.EtcdMember{{ID: 1}, {ID: 2}}, test.more...)
				seen[on] = s
			}
			now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
			step := decide(input{Marker: &Marker{Phase: PhaseLeaving, Began: now, Holder: "cp-2", Target: "cp-1", Machines: []Machine{{Name: "cp-1"}, {Name: "cp-2"}}},
				Seen: seen, Now: now, Timing: DefaultTiming()})
			require.NotNil(t, step.Action)
			require.Equal(t, ActLeave, step.Action.Kind)
			require.Equal(t, test.last, step.Action.Facts[factLast])
		})
	}
}

// with has a machine be seen so; its etcd, where it has one, gives no list of members.
func with(seen map[string]Seen, name string, mode talos.Mode, data talos.Fact) {
	var s Seen
	s.Mode, s.Stage, s.Etcd.Data, s.APIServer = mode, "running", data, talos.No
	seen[name] = s
}
