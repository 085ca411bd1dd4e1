package backup

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// At reads a time, here and for the tests outside of the package.
func At(text string) time.Time {
	t, err := time.Parse("2006-01-02 15:04:05", text)
	if err != nil {
		panic(err)
	}
	return t
}

func TestAnAttemptIsDueOnce(t *testing.T) {
	for _, c := range []struct {
		name     string
		schedule string
		history  History
		want     time.Time
	}{
		{"never attempted: now", "0 * * * *", History{}, time.Time{}},
		{"after one at the hour: the next hour", "0 * * * *", History{LastAttempt: At("2026-11-29 10:00:03"), LastSuccess: At("2026-11-29 10:00:03")}, At("2026-11-29 11:00:00")},
		{"one exactly at the hour isn't repeated", "0 * * * *", History{LastAttempt: At("2026-11-29 10:00:00")}, At("2026-11-29 11:00:00")},
		{"one on request in between counts from itself", "0 2 * * *", History{LastAttempt: At("2026-11-29 01:59:00")}, At("2026-11-29 02:00:00")},
		{"after a gap of days: one, long since due", "0 * * * *", History{LastAttempt: At("2026-11-20 10:00:00")}, At("2026-11-20 11:00:00")},
		{"a failure is retried after 5 minutes", "0 * * * *", History{LastAttempt: At("2026-11-29 10:00:00"), Failed: true}, At("2026-11-29 10:05:00")},
		{"but not later than the schedule", "*/2 * * * *", History{LastAttempt: At("2026-11-29 10:00:00"), Failed: true}, At("2026-11-29 10:02:00")},
		{"summer time changes nothing, the schedule is in UTC", "30 2 * * *", History{LastAttempt: At("2026-03-29 00:00:00").In(time.FixedZone("CET", 3600))}, At("2026-03-29 02:30:00")},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, err := ParseSchedule(c.schedule)
			require.NoError(t, err)
			require.True(t, c.want.Equal(s.Due(c.history)), "%s", s.Due(c.history))
		})
	}
}

func TestASuccessIsStaleAfterTwoAndAHalfIntervals(t *testing.T) {
	for _, c := range []struct{ schedule, success, want string }{
		{"0 * * * *", "2026-11-29 10:00:05", "2026-11-29 12:30:00"},
		{"0 2 * * *", "2026-11-29 02:00:05", "2026-12-01 14:00:00"},
		{"0 2 * * 1-5", "2026-11-27 02:00:05", "2026-12-01 14:00:00"}, // a Friday: Monday, and half-way from Tuesday on
		{"*/10 * * * *", "2026-11-29 10:03:00", "2026-11-29 10:25:00"},
	} {
		s, err := ParseSchedule(c.schedule)
		require.NoError(t, err)
		require.Equal(t, At(c.want), s.StaleAt(At(c.success)), c.schedule)
	}
}

func TestASchedulePutsNoZoneOrShorthandThrough(t *testing.T) {
	for _, text := range []string{"", "* * * *", "* * * * * *", "@hourly", "@every 1h", "TZ=Asia/Tokyo * * * * *", "60 * * * *"} {
		_, err := ParseSchedule(text)
		require.Error(t, err, text)
	}
}
