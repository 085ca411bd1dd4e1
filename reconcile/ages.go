package reconcile

import (
	"time"

	"ichor.maesh.dev/statefile"
)

// timeMark is a time that a state remembers, of what has been so since.
type timeMark struct {
	what string
	at   int64
}

func momentOf(what string, at time.Time) timeMark { return timeMark{what, at.UnixMilli()} }

// momentAge is for how long this process has known of a moment. Nobody sets that clock, as somebody may set the one by which the state's times are
// stamped. Before says that the moment stood in the state already when this process became the writer.
type momentAge struct {
	passed time.Duration
	before bool
}

// certainly is how long something has been so for certain: as long as this process has known of it. What an earlier one saw begins anew, since
// nobody can say how far that one's clock was set. So waits what must not be done too early.
func (in *Input) certainly(what string, at time.Time) time.Duration {
	if in.ages == nil {
		return in.Now.Sub(at)
	}
	return in.ages[momentOf(what, at)].passed
}

// passed is certainly for what people are told of, or waits without harm: what an earlier process saw counts by the clock that it went by.
func (in *Input) passed(what string, at time.Time) time.Duration {
	if in.ages == nil {
		return in.Now.Sub(at)
	}
	age := in.ages[momentOf(what, at)]
	if age.before {
		return max(age.passed, in.Now.Sub(at))
	}
	return age.passed
}

// The names of moments.
func joinMoment(key string) string                     { return "join " + key }
func mendMoment(join *statefile.JoinState) string      { return "mending " + join.Machine }
func silentMoment(op *statefile.OperationState) string { return "silence " + op.Digest }
func stepMoment(op *statefile.OperationState) string   { return "step " + op.Digest }
func callMoment(intent statefile.Intent) string        { return "call " + intent.Nonce }
func rolloutMoment(r *statefile.RolloutState) string   { return "rollout " + r.Machine }
func evacuationMoment(machine string, e *statefile.Evacuation) string {
	return "evacuation " + drainKey(machine, e)
}

// moments are those that a state remembers and that something waits by.
func moments(s *statefile.State) map[timeMark]bool {
	all := map[timeMark]bool{}
	add := func(what string, at time.Time) {
		if !at.IsZero() {
			all[momentOf(what, at)] = true
		}
	}
	for key, join := range s.Joins {
		add(joinMoment(key), join.FirstSeen)
		add(mendMoment(join), join.ActAt)
	}
	for _, op := range s.Operations {
		if op.Phase.Over() {
			continue
		}
		add(silentMoment(op), op.SilentSince)
		add(stepMoment(op), op.StepSince)
		if op.Evacuation != nil {
			add(evacuationMoment(op.Target, op.Evacuation), op.Evacuation.Since)
		}
	}
	if s.Intent != nil {
		add(callMoment(*s.Intent), s.Intent.At)
	}
	if r := s.Rollout; r != nil {
		add(rolloutMoment(r), r.Since)
		if r.Evacuation != nil {
			add(evacuationMoment(r.Machine, r.Evacuation), r.Evacuation.Since)
		}
	}
	return all
}

// knownMoments keeps since when this process has known of each moment of a cluster's state.
type knownMoments struct {
	since map[timeMark]knownSince
	// epoch is the writer under which it looked last.
	epoch uint64
}

type knownSince struct {
	at     statefile.Instant
	before bool
}

// note looks at a state, and says how old its moments are.
func (k *knownMoments) note(s *statefile.State, now statefile.Instant) map[timeMark]momentAge {
	tookOver := k.since == nil || k.epoch != s.Writer.Epoch
	k.epoch = s.Writer.Epoch
	since, ages := map[timeMark]knownSince{}, map[timeMark]momentAge{}
	for m := range moments(s) {
		known, is := k.since[m]
		if !is {
			known = knownSince{now, tookOver}
		}
		since[m], ages[m] = known, momentAge{now.Passed(known.at), known.before}
	}
	k.since = since
	return ages
}
