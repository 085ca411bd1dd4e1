package recovery

import "time"

// Timing is how long things wait. All are of real time.
type Timing struct {
	// Look is between two looks at the machines.
	Look time.Duration
	// Call bounds one call to a machine; an upload has, beside it, a second for each MiB.
	Call time.Duration
	// Fresh is how old an intent may be when its call is sent, and Settle how long a new driver waits before it believes that a call that
	// it finds begun can't arrive any more. Settle must be well above Fresh.
	Fresh, Settle time.Duration
	// Retry is between two tries of what a machine refused or what broke.
	Retry time.Duration
	// Config is how long a machine may take to leave maintenance mode after it took its config.
	Config time.Duration
	// Again is after how long a reset is asked for again on a boot that shows no effect of it.
	Again time.Duration
	// Trace is after how long a recovery that left no trace on its machine counts as one that never arrived.
	Trace time.Duration
	// Broken is how long data may be there without an etcd that answers.
	Broken time.Duration
	// Servers is how long the API servers of machines that left etcd are waited for where they aren't seen to end: the kubelet looks every
	// 20 s, and gives them 30.
	Servers time.Duration
	// Serves is how long the Kubernetes API may keep silent before what needs it is done without.
	Serves time.Duration
	// Learner and Nameless are how old a learner, or a member without a name, must be before it is removed: Talos promotes for ten minutes.
	Learner, Nameless time.Duration
	// Leave bounds the call with which a machine leaves etcd: Talos itself takes up to nine minutes.
	Leave time.Duration
	// Standing is how old an intent in the cluster's state must be before it is passed over.
	Standing time.Duration
	// Converge is for how long what lived through the restore may come no further before that is said and the restore ends.
	Converge time.Duration
	// Recover bounds a restore until the target has recovered, All the whole; each counts from its beginning or the last resume.
	Recover, All time.Duration
}

// DefaultTiming is what the command uses.
func DefaultTiming() Timing {
	return Timing{
		Look: 2 * time.Second, Call: 30 * time.Second, Fresh: 5 * time.Second, Settle: 15 * time.Second, Retry: 10 * time.Second,
		Config: 10 * time.Minute, Again: 10 * time.Minute, Trace: time.Minute, Broken: 5 * time.Minute, Standing: 10 * time.Minute,
		Servers: 2 * time.Minute, Serves: 10 * time.Minute, Leave: 9 * time.Minute, Converge: 10 * time.Minute,
		Learner: 12 * time.Minute, Nameless: 5 * time.Minute,
		Recover: time.Hour, All: 150 * time.Minute,
	}
}

// How often a thing is done again before a person must look.
const (
	maxConfigs    = 3
	maxResets     = 5
	maxBroken     = 2
	maxRecoveries = 5
	maxReboots    = 3
	maxLeaves     = 8
	maxRemovals   = 5
)

// Scaled divides what rests on the pace of machines by n, for those whose time runs n times as fast. What is real work, or protects from
// another process, stays.
func (t Timing) Scaled(n float64) Timing {
	if n <= 1 {
		return t
	}
	for _, s := range []struct {
		duration *time.Duration
		least    time.Duration
	}{{&t.Look, 50 * time.Millisecond}, {&t.Retry, 200 * time.Millisecond}, {&t.Config, time.Minute}, {&t.Again, time.Minute},
		{&t.Servers, 10 * time.Second}, {&t.Serves, 20 * time.Second}, {&t.Learner, time.Minute}, {&t.Nameless, time.Minute}, {&t.Converge, time.Minute}} {
		*s.duration = max(time.Duration(float64(*s.duration)/n), min(*s.duration, s.least))
	}
	return t
}
