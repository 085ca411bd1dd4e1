package recovery

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestALimitIsReachedToTheMinute lets each part of a restore wait for ever: until the target has recovered that is an hour at most, in all two
// and a half.
func TestALimitIsReachedToTheMinute(t *testing.T) {
	empty := func(t *testing.T) *stage { return newStage(t, newWorld("cp-1", "cp-2", "cp-3")) }
	for name, test := range map[string]struct {
		begin func(t *testing.T) *stage
		spoil func(s *stage)
		limit time.Duration
		phase Phase
	}{
		"one that never leaves the holder":          {working, func(s *stage) { s.machines["cp-2"].off = true }, time.Hour, PhaseLeaving},
		"a machine that never comes back":           {empty, func(s *stage) { s.machines["cp-3"].off = true }, time.Hour, PhaseConfiguring},
		"a control plane that never joins":          {empty, func(s *stage) { s.machines["cp-3"].stuck = true }, 150 * time.Minute, PhaseJoining},
		"a holder that never joins, once recovered": {working, func(s *stage) { s.machines["cp-3"].stuck = true }, 150 * time.Minute, PhaseJoining},
	} {
		t.Run(name, func(t *testing.T) {
			s := test.begin(t)
			test.spoil(s)
			began := s.clock.Now()
			m, _, err := s.run(0)
			var stopped *StoppedError
			require.ErrorAs(t, err, &stopped, s.said)
			require.Equal(t, test.phase, m.Phase, s.said)
			took := s.clock.Now().Sub(began)
			require.Greater(t, took, test.limit)
			require.Less(t, took, test.limit+time.Minute)
			require.ErrorContains(t, err, fmt.Sprintf("it still waits (%s is its limit)", test.limit))
			require.Equal(t, stopped.Why, m.Problem, "the marker keeps it")
		})
	}
}
