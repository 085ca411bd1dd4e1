package reconcile

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/talos"
)

// aClock is set forward at will while what really passes is another thing.
type aClock struct {
	wall   time.Time
	passed time.Duration
}

func (c *aClock) turn(by time.Duration) { c.wall, c.passed = c.wall.Add(by), c.passed+by }

func (c *aClock) set(by time.Duration) { c.wall = c.wall.Add(by) }

func (c *aClock) Now() statefile.Instant {
	return statefile.Instant{Monotonic: c.passed, Boot: c.passed, Wall: c.wall}
}

// aged gives an input the time of a clock, and what its process knows of a state.
func (in *Input) aged(c *aClock, known *knownMoments, s *statefile.State) *Input {
	in.Now, in.State, in.ages = c.wall, s, known.note(s, c.Now())
	return in
}

// TestAClockThatIsSetForwardHasNothingDoneTooEarly: each wait protects a machine, and lasts as long as it says by the clock that nobody sets,
// in a process that saw its beginning and in one that found it in the state.
func TestAClockThatIsSetForwardHasNothingDoneTooEarly(t *testing.T) {
	timing := DefaultTiming()
	kubernetes := func(in *Input) { in.Kubernetes = &KubernetesView{} }
	for name, test := range map[string]struct {
		wait time.Duration
		// over says whether what is waited for is believed to be over.
		over func(in *Input, s *statefile.State, etcd etcdView) bool
		// begin puts the beginning into the state.
		begin func(s *statefile.State, at time.Time)
		spoil func(s *situation)
	}{
		"a machine that was shut down isn't believed off": {
			wait:  timing.Silent,
			begin: func(s *statefile.State, at time.Time) { s.Operations[0].SilentSince = at },
			spoil: func(s *situation) { s.silence("cp-3"); kubernetes(s.in) },
			over: func(in *Input, s *statefile.State, _ etcdView) bool {
				off, _ := goneSilent(in, s.Operations[0], "cp-3", timing.Silent)
				return off
			},
		},
		"a machine that wipes itself isn't believed off": {
			wait:  timing.Wiped,
			begin: func(s *statefile.State, at time.Time) { s.Operations[0].SilentSince = at },
			spoil: func(s *situation) { s.silence("cp-3"); kubernetes(s.in) },
			over: func(in *Input, s *statefile.State, _ etcdView) bool {
				off, _ := goneSilent(in, s.Operations[0], "cp-3", timing.Wiped)
				return off
			},
		},
		"a learner isn't taken out of etcd": {
			wait: timing.LearnerGrace,
			begin: func(s *statefile.State, at time.Time) {
				s.Joins = map[string]*statefile.JoinState{"3": {Machine: "cp-3", FirstSeen: at}}
			},
			spoil: func(s *situation) {
				for _, name := range []string{"cp-1", "cp-2", "cp-3"} {
					s.change(name, func(seen *Seen) {
						seen.Etcd.Members = []talos.EtcdMember{seen.Etcd.Members[0], seen.Etcd.Members[1], seen.Etcd.Members[2]}
						seen.Etcd.Members[2].Learner = true
					})
				}
			},
			over: func(in *Input, s *statefile.State, etcd etcdView) bool {
				return mendMembers(in, s, etcd, map[string]verdict{}, func(string) bool { return true }) != nil
			},
		},
		"a bootstrap without a trace isn't asked for again": {
			wait: timing.BootstrapQuiet,
			begin: func(s *statefile.State, at time.Time) {
				s.Bootstrap = &statefile.BootstrapRecord{Machine: "cp-3"}
				s.Intent = &statefile.Intent{Action: string(ActBootstrap), Machine: "cp-3", BootID: "boot", At: at, Nonce: "n", Writer: s.Writer, Outcome: statefile.OutcomeOK}
			},
			spoil: func(s *situation) {
				for _, name := range []string{"cp-1", "cp-2", "cp-3"} {
					s.change(name, func(seen *Seen) { seen.Etcd = talos.EtcdObservation{Data: talos.No, Service: "Preparing"} })
				}
			},
			over: func(in *Input, s *statefile.State, etcd etcdView) bool {
				result, _ := resolve(in, s, etcd)
				return result != resolveWait
			},
		},
		"a machine that was asked to wipe itself isn't asked again": {
			wait: timing.Return / 2,
			begin: func(s *statefile.State, at time.Time) {
				s.Intent = &statefile.Intent{Action: string(ActResetMachine), Machine: "cp-3", BootID: "boot", At: at, Nonce: "n", Writer: s.Writer, Outcome: statefile.OutcomeOK,
					Operation: "d1"}
			},
			over: func(in *Input, s *statefile.State, etcd etcdView) bool {
				result, _ := resolve(in, s, etcd)
				return result != resolveWait
			},
		},
		"etcd data that may be new after a mending isn't wiped again": {
			wait: timing.MendCap,
			begin: func(s *statefile.State, at time.Time) {
				s.Joins = map[string]*statefile.JoinState{"9": {Machine: "cp-3", FirstSeen: at, Step: stepReset, BootID: "before", ActAt: at, Acts: 2}}
				s.Intent = &statefile.Intent{Action: string(ActReset), Machine: "cp-3", Member: "9", BootID: "before", At: at, Nonce: "n", Writer: s.Writer, Outcome: statefile.OutcomeOK}
			},
			spoil: func(s *situation) { s.change("cp-3", func(seen *Seen) { seen.Etcd.MemberID = 0 }) },
			over: func(in *Input, s *statefile.State, etcd etcdView) bool {
				result, _ := resolve(in, s, etcd)
				return result != resolveWait
			},
		},
	} {
		for who, before := range map[string]bool{"that it saw begin": false, "that an earlier process saw begin": true} {
			t.Run(name+", "+who, func(t *testing.T) {
				s := restorable()
				if test.spoil != nil {
					test.spoil(&s)
				}
				clock, known := &aClock{wall: s.in.Now}, &knownMoments{}
				state := &statefile.State{Writer: statefile.Writer{ID: "me", Epoch: 2}, Machines: s.next.Machines,
					Operations: []*statefile.OperationState{{Digest: "d1", Name: "op", Phase: statefile.OperationRunning}}}
				if before {
					test.begin(state, clock.wall)
					if state.Intent != nil {
						state.Intent.Writer.Epoch = 1
					}
					clock.set(5 * time.Hour)
				} else {
					s.in.aged(clock, known, state)
					test.begin(state, clock.wall)
				}
				s.in.WriterAge = new(time.Duration)
				at := func() bool {
					*s.in.WriterAge = clock.passed
					in := s.in.aged(clock, known, state)
					return test.over(in, cloneState(state), viewEtcd(in))
				}
				require.False(t, at())
				clock.set(5 * time.Hour)
				clock.turn(test.wait - time.Second)
				require.False(t, at(), "the clock was set forward")
				clock.set(-20 * time.Hour)
				clock.turn(time.Second)
				require.True(t, at(), "so much has passed, whatever the clock says")
			})
		}
	}
}

// TestWhatPeopleAreToldOfLateIsLateByTheClockOfTheProcessThatSawItBegin: set forward, it doesn't pause what is under way; what another process saw begin
// is as old as the state says, so that nobody's limit begins anew with each agent.
func TestWhatPeopleAreToldOfLateIsLateByTheClockOfTheProcessThatSawItBegin(t *testing.T) {
	clock, known := &aClock{wall: time.Date(2026, 11, 30, 3, 0, 0, 0, time.UTC)}, &knownMoments{}
	in := &Input{Timing: DefaultTiming()}
	state := &statefile.State{Writer: statefile.Writer{Epoch: 1}}
	in.aged(clock, known, state)
	op := &statefile.OperationState{Digest: "d1", Phase: statefile.OperationRunning, Step: "reboot", StepSince: clock.wall}
	state.Operations = []*statefile.OperationState{op}
	s := func() situation { return situation{decision: &decision{in: in, next: state}, op: op} }
	in.aged(clock, known, state)
	clock.set(time.Hour)
	clock.turn(time.Minute)
	in.aged(clock, known, state)
	require.Equal(t, time.Minute, s().since())
	state.Writer.Epoch = 3 // another was the writer in between, and this process remembers all the same
	require.Equal(t, time.Minute, func() time.Duration { in.aged(clock, known, state); return s().since() }())
	in.aged(clock, &knownMoments{}, state)
	require.Equal(t, time.Hour+time.Minute, s().since())
}

// TestWhoTakesOverLateLooksForAsLongAsASilenceTakes: the limit of the call is over when it comes, and it has seen nothing of the silence itself.
func TestWhoTakesOverLateLooksForAsLongAsASilenceTakes(t *testing.T) {
	timing := DefaultTiming()
	for kind, silence := range map[ActionKind]time.Duration{ActShutdown: timing.Silent, ActResetMachine: timing.Wiped} {
		t.Run(string(kind), func(t *testing.T) {
			s := restorable()
			s.silence("cp-3")
			s.in.Kubernetes, s.in.WriterAge = &KubernetesView{}, new(time.Duration)
			clock, known := &aClock{wall: s.in.Now}, &knownMoments{}
			state := &statefile.State{Writer: statefile.Writer{ID: "me", Epoch: 2}, Machines: s.next.Machines,
				Operations: []*statefile.OperationState{{Digest: "d1", Name: "op", Phase: statefile.OperationRunning, SilentSince: clock.wall}},
				Intent: &statefile.Intent{Action: string(kind), Machine: "cp-3", BootID: "boot", At: clock.wall, Nonce: "n", Writer: statefile.Writer{Epoch: 1}, Operation: "d1",
					Outcome: statefile.OutcomeOK, Facts: map[string]string{"then": "powers off"}}}
			clock.set(time.Hour)
			at := func() resolution {
				*s.in.WriterAge = clock.passed
				in := s.in.aged(clock, known, state)
				result, _ := resolve(in, cloneState(state), viewEtcd(in))
				return result
			}
			require.Equal(t, resolveWait, at())
			clock.turn(silence - time.Second)
			require.Equal(t, resolveWait, at())
			clock.turn(time.Second)
			require.Equal(t, resolveDone, at())
			s.in.Kubernetes = &KubernetesView{Problem: "nobody can say whether it is off"}
			require.Equal(t, resolveWait, at())
			clock.turn(timing.Patience)
			require.Equal(t, resolveGiven, at())
		})
	}
}
