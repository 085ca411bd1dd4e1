package backup

import (
	"fmt"
	"time"

	"github.com/robfig/cron/v3"

	"ichor.maesh.dev/schema"
)

// retryAfter is how long after a failed attempt the next one is made, unless the schedule comes first.
const retryAfter = 5 * time.Minute

// never is when a schedule is due that doesn't come round again.
var never = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)

// Schedule is a five-field cron expression in UTC.
type Schedule struct{ schedule cron.Schedule }

// ParseSchedule reads a schedule.
func ParseSchedule(text string) (Schedule, error) {
	schedule, err := schema.ParseCron(text)
	if err != nil {
		return Schedule{}, fmt.Errorf("the schedule %.60q is not five cron fields: %w", text, err)
	}
	return Schedule{schedule}, nil
}

// Next is the first time after t at which the schedule comes round; the zero time if it never does.
func (s Schedule) Next(t time.Time) time.Time { return s.schedule.Next(t.UTC()) }

// History is what is remembered of attempts. Zero times: never.
type History struct {
	LastAttempt, LastSuccess time.Time
	// Failed says that the last attempt failed, or that nobody knows how it ended.
	Failed bool
}

// Due says when the next attempt is to be made: a time in the past is now. After a gap, however long, one attempt catches up. What was
// attempted on request counts like what the schedule asked for.
func (s Schedule) Due(h History) time.Time {
	if h.LastAttempt.IsZero() {
		return time.Time{} // a cluster without a backup doesn't wait for one
	}
	due := s.Next(h.LastAttempt)
	if due.IsZero() {
		due = never
	}
	if retry := h.LastAttempt.Add(retryAfter); h.Failed && retry.Before(due) {
		due = retry
	}
	return due
}

// StaleAt is when a newest success is too old: 2.5 intervals after it, as the schedule counts them, which is half-way between the second
// and the third time that it comes round. Zero: never.
func (s Schedule) StaleAt(success time.Time) time.Time {
	second := s.Next(s.Next(success))
	third := s.Next(second)
	if second.IsZero() || third.IsZero() {
		return time.Time{}
	}
	return second.Add(third.Sub(second) / 2)
}
