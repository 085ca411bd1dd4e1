package keeper

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/backup"
	"ichor.maesh.dev/statefile"
)

func at(text string) time.Time {
	if text == "" {
		return time.Time{}
	}
	t, err := time.Parse("2006-01-02 15:04:05", "2026-11-29 "+text)
	if err != nil {
		panic(err)
	}
	return t
}

func schedule(text string) backup.Schedule {
	s, err := backup.ParseSchedule(text)
	if err != nil {
		panic(err)
	}
	return s
}

func hourly() order {
	return order{Schedule: schedule("0 * * * *"), Retention: backup.Retention{Last: 24}}
}

func drilled(o order, text string) order {
	s := schedule(text)
	o.Drill = &s
	return o
}

func suspended(o order) order {
	o.Suspended = true
	return o
}

// taken is the memory of a backup whose last attempt, at a time, succeeded and was pruned after.
func taken(when string) statefile.BackupState {
	return statefile.BackupState{LastAttempt: at(when), LastSuccess: at(when), LastPrune: at(when).Add(time.Second),
		Snapshots: []statefile.BackupSnapshot{{Name: backup.ObjectName(at(when)), Time: at(when)}}}
}

func with(m statefile.BackupState, change func(*statefile.BackupState)) statefile.BackupState {
	change(&m)
	return m
}

func TestWhatIsDueFollowsFromWhatIsRemembered(t *testing.T) {
	asked := func(m *statefile.BackupState) { m.Request = &statefile.BackupRequest{Digest: "d", At: at("10:20:00")} }
	for _, c := range []struct {
		name  string
		facts facts
		want  string
	}{
		{"a new process looks first", facts{Order: hourly(), Memory: taken("10:00:00"), Now: at("10:30:00")}, "look"},
		{"the first snapshot doesn't wait for the schedule", facts{Order: hourly(), Now: at("10:30:00"), Looked: at("10:30:00")}, "attempt"},
		{"a restart within the hour doubles nothing", facts{Order: hourly(), Memory: taken("10:00:00"), Now: at("10:30:00"), Looked: at("10:29:00")}, "wait until 11:00:00"},
		{"after a gap of hours there is one", facts{Order: hourly(), Memory: taken("02:00:00"), Now: at("10:30:00"), Looked: at("10:29:00")}, "attempt"},
		{"and none when that one is done", facts{Order: hourly(), Memory: taken("10:30:00"), Now: at("10:31:00"), Looked: at("10:31:00")}, "wait until 11:00:00"},
		{"a failure is tried again after five minutes", facts{Order: hourly(), Memory: with(taken("09:00:00"), func(m *statefile.BackupState) {
			m.LastAttempt, m.LastError = at("10:00:00"), "store: no"
		}), Now: at("10:01:00"), Looked: at("10:00:00")}, "wait until 10:05:00"},
		{"and then it is due", facts{Order: hourly(), Memory: with(taken("09:00:00"), func(m *statefile.BackupState) {
			m.LastAttempt, m.LastError = at("10:00:00"), "store: no"
		}), Now: at("10:05:00"), Looked: at("10:00:00")}, "attempt"},
		{"what a dead process left is ended before anything else", facts{Order: hourly(), Memory: statefile.BackupState{Attempt: &statefile.BackupAttempt{}},
			Now: at("10:00:00")}, "finish"},
		{"also while it is suspended", facts{Order: suspended(hourly()), Memory: statefile.BackupState{Attempt: &statefile.BackupAttempt{}}, Now: at("10:00:00")}, "finish"},
		{"and a drill that was broken off", facts{Order: hourly(), Memory: statefile.BackupState{Drilling: "x"}, Now: at("10:00:00")}, "finish"},
		{"where the store doesn't answer it is asked again later", facts{Order: hourly(), Memory: statefile.BackupState{Attempt: &statefile.BackupAttempt{}},
			Now: at("10:00:00"), FinishAt: at("10:01:00")}, "wait until 10:01:00"},
		{"nothing is done while the cluster is held", facts{Order: hourly(), Held: true, Memory: statefile.BackupState{Attempt: &statefile.BackupAttempt{}},
			Now: at("10:00:00")}, "wait"},
		{"a request is acted on at once", facts{Order: hourly(), Memory: with(taken("10:00:00"), asked), Now: at("10:20:00"), Looked: at("10:00:00")}, "attempt on request"},
		{"once", facts{Order: hourly(), Memory: with(with(taken("10:20:00"), asked), func(m *statefile.BackupState) { m.Request.Started = at("10:20:00") }),
			Now: at("10:21:00"), Looked: at("10:20:00")}, "wait until 11:00:00"},
		{"also when it failed", facts{Order: hourly(), Memory: with(with(taken("10:20:00"), asked), func(m *statefile.BackupState) {
			m.Request.Started, m.Request.Done, m.LastError = at("10:20:00"), at("10:20:05"), "no"
		}), Now: at("10:21:00"), Looked: at("10:20:00")}, "wait until 10:25:00"},
		{"a suspended backup ignores a request", facts{Order: suspended(hourly()), Memory: with(taken("10:00:00"), asked), Now: at("10:20:00"), Looked: at("10:00:00")}, "ignore"},
		{"and takes, prunes and drills nothing", facts{Order: suspended(drilled(hourly(), "0 * * * *")), Memory: with(taken("02:00:00"),
			func(m *statefile.BackupState) { m.LastPrune = time.Time{} }), Now: at("10:20:00"), Looked: at("10:00:00")}, "wait until 11:00:00"},
		{"while a restore's marker stands there is nothing but looking", facts{Order: drilled(hourly(), "0 * * * *"), Memory: with(taken("02:00:00"), asked),
			Now: at("10:20:30"), Looked: at("10:20:00"), Marker: true}, "wait until 10:21:00"},
		{"once a minute", facts{Order: hourly(), Memory: with(taken("02:00:00"), asked), Now: at("10:21:00"), Looked: at("10:20:00"), Marker: true}, "look"},
		{"pruning comes after a success", facts{Order: hourly(), Memory: with(taken("10:00:00"), func(m *statefile.BackupState) { m.LastPrune = at("09:00:00") }),
			Now: at("10:00:10"), Looked: at("10:00:10")}, "prune"},
		{"and not where the destination can't be seen", facts{Order: hourly(), Memory: with(taken("10:00:00"), func(m *statefile.BackupState) { m.LastPrune = at("09:00:00") }),
			Now: at("10:00:10"), Looked: at("10:00:10"), LookFailed: true}, "wait until 10:05:10"},
		{"it is looked at hourly", facts{Order: order{Schedule: schedule("0 0 * * *")}, Memory: taken("00:00:00"), Now: at("10:00:00"), Looked: at("09:00:00")}, "look"},
		{"the first drill comes with the first snapshot", facts{Order: drilled(hourly(), "30 4 * * *"), Memory: taken("10:00:00"), Now: at("10:01:00"), Looked: at("10:00:30")}, "drill"},
		{"the next with its schedule", facts{Order: drilled(hourly(), "30 10 * * *"), Memory: with(taken("10:00:00"), func(m *statefile.BackupState) { m.LastDrillAttempt = at("10:00:30") }),
			Now: at("10:01:00"), Looked: at("10:00:30")}, "wait until 10:30:00"},
		{"one that could not be made again after five minutes", facts{Order: drilled(hourly(), "30 10 * * *"), Memory: with(taken("10:00:00"), func(m *statefile.BackupState) {
			m.LastDrillAttempt, m.DrillProblem = at("10:00:30"), "no room"
		}), Now: at("10:01:00"), Looked: at("10:00:30")}, "wait until 10:05:30"},
		{"none without a snapshot", facts{Order: drilled(hourly(), "30 4 * * *"), Memory: with(taken("10:00:00"), func(m *statefile.BackupState) { m.Snapshots[0].Missing = true }),
			Now: at("10:01:00"), Looked: at("10:00:30")}, "wait until 11:00:00"},
		{"a backup that becomes stale is woken for that", facts{Order: hourly(), Memory: with(taken("10:00:00"), func(m *statefile.BackupState) {
			m.LastAttempt, m.LastError = at("12:29:00"), "no"
		}), Now: at("12:29:30"), Looked: at("12:29:00")}, "wait until 12:30:00"},
	} {
		t.Run(c.name, func(t *testing.T) { require.Equal(t, c.want, sentence(decide(c.facts))) })
	}
}

func sentence(d decision) string {
	switch {
	case d.Request:
		return string(d.Step) + " on request"
	case d.Step != "":
		return string(d.Step)
	case d.Next.IsZero():
		return "wait"
	}
	return "wait until " + d.Next.Format(time.TimeOnly)
}

// A day of agents that come and go at any moment makes as many attempts as the schedule asks for, and one for each gap.
func TestADayOfRestartsNeitherSkipsNorDoubles(t *testing.T) {
	memory, attempts := statefile.BackupState{}, []string{}
	looked := time.Time{}
	for now := at("00:00:00"); now.Before(at("23:59:00")); now = now.Add(7 * time.Minute) {
		if now.Minute()%3 == 0 {
			looked = time.Time{} // a new process
		}
		if now.Hour() >= 5 && now.Hour() < 9 {
			continue // none runs
		}
		for range 5 {
			d := decide(facts{Order: hourly(), Memory: memory, Now: now, Looked: looked})
			switch d.Step {
			case stepLook:
				looked = now
			case stepAttempt:
				attempts = append(attempts, now.Format("15:04"))
				memory.LastAttempt, memory.LastSuccess, memory.LastPrune = now, now, now
			}
		}
	}
	require.Len(t, attempts, 20, "one for each hour that had an agent: %v", attempts)
	hours := map[string]bool{}
	for _, a := range attempts[1:] {
		require.False(t, hours[a[:2]], "two in one hour: %v", attempts)
		hours[a[:2]] = true
	}
}

func TestTheVerdictNamesWhatIsWrongAndTheWayOut(t *testing.T) {
	good := taken("10:00:00")
	for _, c := range []struct {
		name      string
		situation situation
		want      string
		says      []string
	}{
		{"all is well", situation{Memory: good}, "Succeeded", []string{"the newest snapshot is of 2026-11-29T10:00:00Z", "none was drilled"}},
		{"well but for what can't be deleted", situation{Memory: with(good, func(m *statefile.BackupState) { m.PruneProblem = "x is locked" }),
			Seen: Seen{NoDelete: true, Unlisted: []string{"u"}}}, "Succeeded", []string{"not all could be pruned: x is locked", "the keys may not delete", "first u"}},
		{"nothing yet", situation{}, "Pending", nil},
		{"suspended", situation{Order: suspended(hourly()), Memory: good}, "Suspended", []string{"of 2026-11-29T10:00:00Z"}},
		{"held", situation{Hold: Verdict{"Paused", "the cluster is paused"}, Memory: good}, "Paused", nil},
		{"failed", situation{Memory: with(good, func(m *statefile.BackupState) { m.LastReason, m.LastError = "Failed", "member: torn" })}, "Failed", []string{"member: torn"}},
		{"stale, and why", situation{Now: at("12:30:00"), Memory: with(good, func(m *statefile.BackupState) { m.LastReason, m.LastError = "Failed", "member: torn" })},
			"Stale", []string{"2.5 intervals", "member: torn"}},
		{"a failed drill", situation{Memory: with(good, func(m *statefile.BackupState) {
			m.Drill = &statefile.BackupDrill{Snapshot: "s", Problem: "bad page"}
		})}, "DrillFailed", []string{"s could not be restored: bad page"}},
		{"a snapshot that is gone", situation{Memory: with(good, func(m *statefile.BackupState) { m.Snapshots = []statefile.BackupSnapshot{{Name: "g", Missing: true}} })},
			"SnapshotsMissing", []string{"first g"}},
		{"an index of old", situation{Memory: with(good, func(m *statefile.BackupState) { m.Snapshots = []statefile.BackupSnapshot{{Name: "g", Lost: true}} })},
			"SnapshotsMissing", []string{"no longer lists 1 snapshots", "first g"}},
		{"one that is being pruned is no loss", situation{Memory: with(good, func(m *statefile.BackupState) {
			m.Snapshots = []statefile.BackupSnapshot{{Name: "g", Missing: true, Deleting: true}}
		})}, "Succeeded", nil},
		{"another cluster's", situation{Memory: good, Seen: Seen{Foreign: []string{"f"}}}, "ForeignSnapshots", []string{"first f", "prefix of its own"}},
		{"a restore", situation{Memory: good, Seen: Seen{Marker: true}}, "RestoreInProgress", nil},
		{"a destination that can't be used", situation{Memory: good, Seen: Seen{Problem: Verdict{"DestinationUnusable", "store: refuses to list"}}}, "DestinationUnusable",
			[]string{"refuses to list"}},
		{"a clock behind", situation{Memory: good, Clock: at("09:00:00")}, "ClockBehind", []string{"2026-11-29T09:00:00Z"}},
		{"before the first look nothing that was seen there is forgotten", situation{Memory: with(good, func(m *statefile.BackupState) {
			m.Ready = statefile.Condition{Reason: "ForeignSnapshots", Message: "as before"}
		}), Seen: Seen{Looked: time.Unix(0, 0)}}, "ForeignSnapshots", []string{"as before"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := c.situation
			if s.Order == (order{}) {
				s.Order = hourly()
			}
			if s.Now.IsZero() {
				s.Now = at("10:10:00")
			}
			s.Latest = s.Now
			if s.Clock.IsZero() {
				s.Clock = s.Now
			}
			if s.Seen.Looked.IsZero() {
				s.Seen.Looked = s.Now
			} else {
				s.Seen.Looked = time.Time{}
			}
			got := judge(s)
			require.Equal(t, c.want, got.Reason, got.Message)
			require.Equal(t, c.want == "Succeeded", got.Status)
			for _, text := range c.says {
				require.Contains(t, got.Message, text)
			}
		})
	}
}

// A snapshot in the state that the index lost is named until the retention would have let it go, and one that was pruned is not.
func TestAnOlderIndexInThePlaceOfTheNewestIsNoticed(t *testing.T) {
	var all []backup.Snapshot
	for hour := range 5 {
		when := at(fmt.Sprintf("%02d:00:00", hour))
		all = append([]backup.Snapshot{{Name: backup.ObjectName(when), Time: when}}, all...)
	}
	keep := backup.Retention{Last: 3}
	m := &statefile.BackupState{}
	remember(m, "here", backup.Contents{Snapshots: all[:3]}, keep, backup.Guard{})
	require.Len(t, m.Snapshots, 3)
	older := backup.Contents{Snapshots: all[1:3]}
	remember(m, "here", older, keep, backup.Guard{})
	require.Equal(t, []string{all[0].Name}, lostOf(m))
	remember(m, "here", older, keep, backup.Guard{})
	require.Equal(t, []string{all[0].Name}, lostOf(m), "it stays named")
	remember(m, "here", backup.Contents{Snapshots: all[:3]}, keep, backup.Guard{})
	require.Empty(t, lostOf(m), "the newest index is back")

	deleting(m, []string{all[2].Name}, true)
	remember(m, "here", backup.Contents{Snapshots: all[:2]}, keep, backup.Guard{})
	require.Empty(t, lostOf(m), "it was pruned")
	require.Len(t, m.Snapshots, 2)

	m = &statefile.BackupState{}
	remember(m, "here", backup.Contents{Snapshots: all[3:]}, keep, backup.Guard{})
	remember(m, "here", backup.Contents{Snapshots: all[:3]}, keep, backup.Guard{})
	require.Empty(t, lostOf(m), "the retention would have let them go by now")
	remember(m, "elsewhere", backup.Contents{}, keep, backup.Guard{})
	require.Empty(t, m.Snapshots, "another destination has another past")
}

func lostOf(m *statefile.BackupState) []string {
	_, lost := marked(m.Snapshots)
	return lost
}

func TestADestinationIsNeverWhereTheStateIs(t *testing.T) {
	for _, c := range []struct {
		location, state string
		want            bool
	}{
		{"s3://h/b/state", "s3://h/b/state", true},
		{"s3://h/b/state/backups", "s3://h/b/state", true},
		{"s3://h/b/statements", "s3://h/b/state", false},
		{"s3://h/b/", "s3://h/b/state", false},
		{"s3://h/b/x", "s3://h/b/", true},
		{"s3://h/other/state", "s3://h/b/state", false},
	} {
		require.Equal(t, c.want, Within(c.location, c.state), strings.Join([]string{c.location, c.state}, " "))
	}
}
