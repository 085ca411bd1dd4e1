package keeper

import (
	"time"

	"ichor.maesh.dev/backup"
	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/statefile"
)

// How often a destination is looked at: when all is well, while a restore's marker stands there, and after it could not be looked at.
const (
	lookEvery       = time.Hour
	lookAtMarker    = time.Minute
	lookAfterFailed = 5 * time.Minute
)

// order is what a TalosEtcdBackup asks for.
type order struct {
	Schedule  backup.Schedule
	Suspended bool
	Retention backup.Retention
	// Drill is nil where no drill is asked for.
	Drill *backup.Schedule
}

// readOrder reads a document.
func readOrder(b *schema.TalosEtcdBackup) (order, error) {
	var o order
	var err error
	if o.Schedule, err = backup.ParseSchedule(b.Spec.Cron()); err != nil {
		return o, err
	}
	if b.Spec.Drill != nil {
		drill, err := backup.ParseSchedule(b.Spec.Drill.Schedule)
		if err != nil {
			return o, err
		}
		o.Drill = &drill
	}
	o.Suspended = b.Spec.Suspend
	o.Retention.Last, o.Retention.Daily, o.Retention.Weekly = b.Spec.Kept()
	return o, nil
}

// step is one thing to do.
type step string

// The steps, in the order in which they come when several are due.
const (
	// stepFinish ends what a process that died left open.
	stepFinish step = "finish"
	// stepIgnore notes that a request is not acted on.
	stepIgnore step = "ignore"
	// stepLook looks at what the destination holds.
	stepLook step = "look"
	// stepAttempt takes a snapshot and stores it.
	stepAttempt step = "attempt"
	// stepPrune deletes what the retention lets go.
	stepPrune step = "prune"
	// stepDrill restores the newest snapshot into a throw-away etcd.
	stepDrill step = "drill"
)

// facts are what a decision rests on.
type facts struct {
	Order order
	// Held says that nothing may be done at the moment.
	Held bool
	// Memory is what the state remembers.
	Memory statefile.BackupState
	// Now is never behind the latest time in the state.
	Now time.Time
	// Looked is when this process last looked at the destination; zero: never. LookFailed says that it could not, Marker that a restore's
	// marker was there.
	Looked             time.Time
	LookFailed, Marker bool
	// FinishAt is when the destination may be asked again about what was left open.
	FinishAt time.Time
}

// decision is the step to do now; none: the time at which to decide again, zero if only a change can bring one.
type decision struct {
	Step step
	// Request says that an attempt is the one that was asked for.
	Request bool
	Next    time.Time
}

// decide says what is due.
func decide(f facts) decision {
	m := f.Memory
	open := m.Request != nil && m.Request.Started.IsZero() && m.Request.Done.IsZero()
	switch {
	case f.Held:
		return decision{}
	case m.Attempt != nil || m.Drilling != "":
		return f.at(f.FinishAt, stepFinish)
	case f.Order.Suspended && open:
		return decision{Step: stepIgnore}
	case f.Looked.IsZero():
		return decision{Step: stepLook}
	case f.Marker:
		return f.at(f.Looked.Add(lookAtMarker), stepLook)
	case open:
		return decision{Step: stepAttempt, Request: true}
	}
	look := f.at(f.nextLook(), stepLook)
	if f.Order.Suspended {
		return look
	}
	attempt := f.at(f.Order.Schedule.Due(backup.History{LastAttempt: m.LastAttempt, LastSuccess: m.LastSuccess, Failed: m.LastError != ""}), stepAttempt)
	all := []decision{attempt}
	if m.LastSuccess.After(m.LastPrune) && !f.LookFailed {
		all = append(all, decision{Step: stepPrune})
	}
	all = append(all, look)
	if f.Order.Drill != nil && drillable(m.Snapshots) && !f.LookFailed {
		all = append(all, f.at(f.Order.Drill.Due(backup.History{LastAttempt: m.LastDrillAttempt, Failed: m.DrillProblem != ""}), stepDrill))
	}
	return first(all, f.staleAt())
}

// at is a step that is due at a time.
func (f facts) at(due time.Time, step step) decision {
	if f.Now.Before(due) {
		return decision{Next: due}
	}
	return decision{Step: step}
}

func (f facts) nextLook() time.Time {
	if f.LookFailed {
		return f.Looked.Add(lookAfterFailed)
	}
	return f.Looked.Add(lookEvery)
}

// staleAt is when the newest success will be too old, if that is still to come: then there is something to say, though nothing to do.
func (f facts) staleAt() time.Time {
	if f.Memory.LastSuccess.IsZero() {
		return time.Time{}
	}
	if at := f.Order.Schedule.StaleAt(f.Memory.LastSuccess); f.Now.Before(at) {
		return at
	}
	return time.Time{}
}

// first gives the first step that is due, else the earliest time at which something will be.
func first(all []decision, also time.Time) decision {
	next := also
	for _, d := range all {
		if d.Step != "" {
			return d
		}
		if !d.Next.IsZero() && (next.IsZero() || d.Next.Before(next)) {
			next = d.Next
		}
	}
	return decision{Next: next}
}

// drillable says whether there is a snapshot that can be drilled.
func drillable(list []statefile.BackupSnapshot) bool {
	for _, s := range list {
		if !s.Missing && !s.Lost && !s.Deleting {
			return true
		}
	}
	return false
}
