package recovery

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestAResumeTriesAnew: what was tried too often before a pause was looked at by a person, and counts against nothing after their resume.
func TestAResumeTriesAnew(t *testing.T) {
	leaves := func(t *testing.T) *stage { return working(t) }
	wiped := func(t *testing.T) *stage { return newStage(t, lost(), "cp-3") }
	for name, test := range map[string]struct {
		begin        func(t *testing.T) *stage
		spoil, mend  func(s *stage)
		says, counts string
	}{
		"a snapshot that never comes whole": {wiped, func(s *stage) { s.machines["cp-1"].damageUploads = 99 }, func(s *stage) { s.machines["cp-1"].damageUploads = 0 },
			"came to nothing 3 times", "recover"},
		"a target that never keeps an upload": {wiped, func(s *stage) { s.machines["cp-1"].tearUploads = 99 }, func(s *stage) { s.machines["cp-1"].tearUploads = 0 },
			"no such file or directory", "recover"},
		"recoveries that never arrive": {wiped, func(s *stage) { s.machines["cp-1"].dropRecoveries = 99 }, func(s *stage) { s.machines["cp-1"].dropRecoveries = 0 },
			"was told to recover 5 times", "recover"},
		"resets that never have an effect": {wiped, func(s *stage) { s.machines["cp-3"].dropResets = 99 }, func(s *stage) { s.machines["cp-3"].dropResets = 0 },
			"cp-3 was reset 5 times", "reset"},
		"leaves that never have an effect": {leaves, func(s *stage) { s.machines["cp-2"].dropLeaves = 99 }, func(s *stage) { s.machines["cp-2"].dropLeaves = 0 },
			"", "leave"},
	} {
		t.Run(name, func(t *testing.T) {
			s := test.begin(t)
			test.spoil(s)
			_, _, err := s.run(0)
			var stopped *StoppedError
			require.ErrorAs(t, err, &stopped, s.said)
			require.ErrorContains(t, err, test.says)
			// Another process alone wins nothing.
			_, _, err = s.run(0)
			require.ErrorAs(t, err, &stopped, s.said)

			test.mend(s)
			before := s.count(test.counts)
			r, _, ctx := s.process(0)
			content, err := r.Marker.Read(ctx)
			require.NoError(t, err)
			m, err := DecodeMarker(content)
			require.NoError(t, err)
			m.Resume(s.clock.Now(), 1)
			require.NoError(t, r.Begin(ctx, m))
			ended, err := r.Go(ctx)
			require.NoError(t, err, s.said)
			s.requireWhole(ended)
			require.LessOrEqual(t, s.count(test.counts), before+2)
		})
	}
}
