package keeper

import (
	"fmt"
	"strings"
	"time"

	"ichor.maesh.dev/statefile"
)

// behind is how far this machine's clock may run behind the latest time in the state before that is said.
const behind = 5 * time.Minute

// situation is what a verdict rests on.
type situation struct {
	Order order
	// Hold is why nothing is done at the moment; its reason is empty when it isn't so.
	Hold Verdict
	// Memory is what the state remembers, with the verdict before.
	Memory statefile.BackupState
	// Now is never behind Latest, the latest time in the state; Clock is what this machine's clock says.
	Now, Latest, Clock time.Time
	Seen               Seen
}

// Seen is what this process saw at the destination when it last looked.
type Seen struct {
	// Looked is when; zero: never.
	Looked time.Time
	// Problem is why it could not; its reason is empty when it could.
	Problem           Verdict
	Marker            bool
	Foreign, Unlisted []string
	// NoDelete says that the keys may not delete, so that nothing is pruned.
	NoDelete bool
}

// Verdict is a reason and a sentence.
type Verdict struct{ Reason, Message string }

// judge says how a backup stands.
func judge(s situation) statefile.Condition {
	before := s.Memory.Ready
	ready, v := s.verdict()
	if s.Seen.Looked.IsZero() && seenThere(before.Reason) && s.Hold.Reason == "" && !s.Order.Suspended {
		return before // until it was looked at again
	}
	c := statefile.Condition{Type: "Ready", Status: ready, Reason: v.Reason, Message: v.Message, Since: before.Since}
	if before.Reason != c.Reason || before.Status != c.Status || c.Since.IsZero() {
		c.Since = s.Now
	}
	return c
}

// seenThere says whether a reason is about what was seen at the destination, and stands nowhere else in the state.
func seenThere(reason string) bool {
	switch reason {
	case "CredentialsUnreadable", "DestinationUnusable", "IndexForged", "RestoreInProgress", "ForeignSnapshots":
		return true
	}
	return false
}

func (s situation) verdict() (bool, Verdict) {
	m := s.Memory
	missing, lost := marked(m.Snapshots)
	switch {
	case s.Order.Suspended:
		return false, Verdict{"Suspended", "it is suspended in Git: no snapshot is taken, drilled or pruned" + s.newest()}
	case s.Hold.Reason != "":
		return false, s.Hold
	case s.Seen.Problem.Reason != "":
		return false, s.Seen.Problem
	case s.Seen.Marker:
		return false, Verdict{"RestoreInProgress", "a restore's marker stands beside the snapshots: nothing is taken, drilled or pruned until the restore has ended"}
	case len(s.Seen.Foreign) > 0:
		return false, Verdict{"ForeignSnapshots", fmt.Sprintf("%d snapshots under the prefix are not this cluster's, first %s: snapshots are taken and "+
			"none is pruned; move them away, or give this backup a prefix of its own", len(s.Seen.Foreign), s.Seen.Foreign[0])}
	case len(lost) > 0:
		return false, Verdict{"SnapshotsMissing", fmt.Sprintf("the index no longer lists %d snapshots that were stored, first %s, and nothing pruned them: "+
			"an older index was put in its place; find out who can write the bucket, and put the newest version of the index back", len(lost), lost[0])}
	case len(missing) > 0:
		return false, Verdict{"SnapshotsMissing", fmt.Sprintf("%d snapshots that were stored are gone from the bucket or were replaced, first %s: find out "+
			"who can write there; what is missing is forgotten once the retention would let it go", len(missing), missing[0])}
	case s.Clock.Add(behind).Before(s.Latest):
		return false, Verdict{"ClockBehind", fmt.Sprintf("this machine's clock says %s and the state has seen %s: nothing is due until it has caught up; "+
			"set it right, or if that of an earlier agent was wrong, wait", stamped(s.Clock), stamped(s.Latest))}
	case s.stale():
		return false, Verdict{"Stale", s.staleness()}
	case m.LastError != "":
		return false, Verdict{m.LastReason, m.LastError + s.newest()}
	case m.Drill != nil && !m.Drill.Passed:
		return false, Verdict{"DrillFailed", fmt.Sprintf("the snapshot %s could not be restored: %s; drill an older one (ichor backup drill), and find out "+
			"what is wrong before one is needed", m.Drill.Snapshot, m.Drill.Problem)}
	case m.LastSuccess.IsZero():
		return false, Verdict{"Pending", "no snapshot has been stored yet; the first is being taken"}
	}
	return true, Verdict{"Succeeded", s.wellDone()}
}

func (s situation) stale() bool {
	if s.Memory.LastSuccess.IsZero() {
		return false
	}
	at := s.Order.Schedule.StaleAt(s.Memory.LastSuccess)
	return !at.IsZero() && !s.Now.Before(at)
}

func (s situation) staleness() string {
	text := "the newest snapshot is older than 2.5 intervals" + s.newest()
	if s.Memory.LastError != "" {
		return text + "; the last attempt failed: " + s.Memory.LastError
	}
	return text
}

// newest says of when the newest snapshot is.
func (s situation) newest() string {
	if s.Memory.LastSuccess.IsZero() {
		return "; there is no snapshot yet"
	}
	return "; the newest snapshot is of " + stamped(s.Memory.LastSuccess)
}

func (s situation) wellDone() string {
	m := s.Memory
	parts := []string{"the newest snapshot is of " + stamped(m.LastSuccess)}
	switch {
	case m.Drill != nil:
		parts = append(parts, fmt.Sprintf("a drill proved %s (%d keys)", m.Drill.Snapshot, m.Drill.Keys))
	case s.Order.Drill == nil:
		parts = append(parts, "none was drilled")
	}
	if m.DrillProblem != "" {
		parts = append(parts, "the last drill could not be made: "+m.DrillProblem)
	}
	if m.PruneProblem != "" {
		parts = append(parts, "not all could be pruned: "+m.PruneProblem)
	}
	if s.Seen.NoDelete {
		parts = append(parts, "the keys may not delete, so nothing is pruned")
	}
	if n := len(s.Seen.Unlisted); n > 0 {
		parts = append(parts, fmt.Sprintf("%d objects say that they are this cluster's and are not in the index, first %s: they are left alone", n, s.Seen.Unlisted[0]))
	}
	return strings.Join(parts, "; ")
}

// marked gives the names of the snapshots that the bucket lost, and of those that the index lost.
func marked(list []statefile.BackupSnapshot) (missing, lost []string) {
	for _, s := range list {
		switch {
		case s.Deleting:
		case s.Lost:
			lost = append(lost, s.Name)
		case s.Missing:
			missing = append(missing, s.Name)
		}
	}
	return missing, lost
}

func stamped(t time.Time) string { return t.UTC().Format(time.RFC3339) }
