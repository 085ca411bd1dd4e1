package recovery

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/talos"
)

// TestACallOfADriverWhoseClockWasAheadHoldsNothingUpForThatLong: this process has driven for longer than what is waited for, and every call of an
// earlier driver is older than that.
func TestACallOfADriverWhoseClockWasAheadHoldsNothingUpForThatLong(t *testing.T) {
	for name, test := range map[string]struct {
		phase Phase
		kind  ActionKind
		spoil func(in *input)
		want  ActionKind
		next  Phase
	}{
		"a reset of which nothing is seen is asked for again": {PhaseConfiguring, ActReset, func(in *input) { in.holds("cp-2", 2) }, ActReset, ""},
		"a recovery that left no trace is sent again": {PhaseRecovering, ActRecover, func(in *input) {
			in.Marker.Intents[0].Machine, in.Marker.Intents[0].Facts = "cp-1", map[string]string{factService: service(nil)}
		}, ActUpload, ""},
		"the API server of one that left is not waited for any more": {PhaseLeaving, ActLeave, func(in *input) {
			in.Marker.Holder, in.Marker.Machines = "cp-3", in.Marker.Machines[1:]
			in.Marker.Intents[0].OutcomeAt = in.Marker.Intents[0].At.Add(time.Minute)
			in.holds("cp-3", 3, talos.EtcdMember{ID: 3, Name: "cp-3"})
		}, "", PhaseConfiguring},
	} {
		t.Run(name, func(t *testing.T) {
			in := stopping(test.phase)
			in.Driven, in.Marker.Wipe = 11*time.Minute, []string{"cp-1", "cp-2", "cp-3"}
			in.begun(test.kind, "cp-2", 1, statefile.OutcomeOK, "")
			in.Marker.Intents[0].Driver, in.Marker.Intents[0].At = "before", in.Now.Add(5*time.Hour)
			test.spoil(in)
			step := decide(*in)
			require.Equal(t, test.next, step.Phase, "%+v", step)
			if test.want != "" {
				require.NotNil(t, step.Action, "%+v", step)
				require.Equal(t, test.want, step.Action.Kind)
			}
		})
	}
}

// TestAClockThatIsSetForwardHasNothingDoneTwice: seven minutes after a call whose effect can take ten nothing is sent again, whatever the clock of
// this process, or of the one before it, says.
func TestAClockThatIsSetForwardHasNothingDoneTwice(t *testing.T) {
	for name, test := range map[string]struct {
		phase Phase
		kind  ActionKind
		soon  time.Duration
		says  string
		spoil func(in *input)
	}{
		"a wipe": {PhaseConfiguring, ActReset, 7 * time.Minute, "was told to wipe", func(in *input) { in.holds("cp-2", 2) }},
		"a recovery": {PhaseRecovering, ActRecover, 50 * time.Second, "was told to recover", func(in *input) {
			in.Marker.Intents[0].Machine, in.Marker.Intents[0].Facts = "cp-1", map[string]string{factService: service(nil)}
		}},
		"a leave that is cancelled": {PhaseCancelling, ActLeave, 7 * time.Minute, "may still do it", func(in *input) {
			in.Marker.Holder, in.Marker.Wipe, in.Marker.Intents[0].Outcome, in.Marker.Intents[0].Machine = "cp-3", nil, "", "cp-1"
			in.holds("cp-1", 1)
			in.holds("cp-3", 3, talos.EtcdMember{ID: 1, Name: "cp-1"}, talos.EtcdMember{ID: 3, Name: "cp-3"})
		}},
	} {
		for who, whose := range map[string]func(in *input, passed time.Duration){
			"of its own": func(in *input, passed time.Duration) {
				in.Driven, in.Calls = time.Hour, map[string]callAges{"n": {passed, passed}}
			},
			"of a driver before": func(in *input, passed time.Duration) {
				in.Driven, in.Marker.Intents[0].Driver = passed, "before"
			},
		} {
			t.Run(name+" "+who, func(t *testing.T) {
				decided := func(passed time.Duration) nextStep {
					in := stopping(test.phase)
					in.Marker.Wipe = []string{"cp-1", "cp-2", "cp-3"}
					in.begun(test.kind, "cp-2", 1, statefile.OutcomeOK, "")
					in.Marker.Intents[0].Nonce = "n"
					test.spoil(in)
					in.Marker.Intents[0].At = in.Now.Add(-passed - 9*time.Minute) // the clock was set forward since
					whose(in, passed)
					return decide(*in)
				}
				require.Contains(t, decided(test.soon).Wait, test.says)
				require.NotContains(t, decided(11*time.Minute).Wait, test.says)
			})
		}
	}
}

// TestAResumeClearsWhatWasTriedBeforeItAndNothingAfterIt: whatever the clocks of the drivers before and after it said.
func TestAResumeClearsWhatWasTriedBeforeItAndNothingAfterIt(t *testing.T) {
	noon := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	m := &Marker{Began: noon.Add(-time.Hour), Drains: map[string]*statefile.Evacuation{"w-1": {Since: noon.Add(-time.Hour)}}}
	earlier := func(n int) bool { return (&decision{m: m}).earlier(&m.Intents[n]) }
	for n := range 3 {
		m.begin(Intent{Action: ActReset, Machine: "cp-1", Nonce: string(rune('a' + n)), Attempt: n + 1, At: noon.Add(5 * time.Hour)})
	}
	m.Resume(noon, 1)
	require.Equal(t, noon, m.Drains["w-1"].Since)
	for n := range 3 {
		require.True(t, earlier(n), "it was begun by a clock that was ahead, and before the resume")
	}
	m.begin(Intent{Action: ActReset, Machine: "cp-2", Nonce: "d", Attempt: 1, At: noon.Add(-time.Hour)})
	require.False(t, earlier(3), "it was begun by a clock that was behind, and after the resume")
	m.Resume(noon, 2)
	require.True(t, earlier(3))
	in := input{Marker: m, Now: noon, Driven: 3 * time.Minute}
	require.Equal(t, 3*time.Minute, in.spent(), "the limits count from then by the driver's own time")
}
