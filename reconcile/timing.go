package reconcile

import "time"

// Timing holds every duration that a decision or the gate rests on. Talos's own constants are behind most of them: it
// promotes learners for 10 minutes, loops 30 minutes to join, and gives a try 1 minute. docs/decisions.md explains each.
type Timing struct {
	// LearnerGrace is how long a learner may wait for its promotion; Talos gives up after 10 minutes.
	LearnerGrace time.Duration
	// NamelessGrace is how long a member may stay without a name, which it gets when it starts.
	NamelessGrace time.Duration
	// MendCap is after how long a mending act that shows no effect makes its machine not Ready.
	MendCap time.Duration
	// WriterQuiet is how long a new writer waits before it believes that an intent it found can't be sent any more.
	WriterQuiet time.Duration
	// BootstrapQuiet is how long a target must stay without data before its bootstrap may be asked for again.
	BootstrapQuiet time.Duration
	// TryTimeout is how long a tried config lives before the node reverts it.
	TryTimeout time.Duration
	// ComeBack is how long a machine may take to be Ready again after a change.
	ComeBack time.Duration
	// Return is how long a machine may take to come back from what a signed operation asked of it.
	Return time.Duration
	// Silent is how long the API of a machine that was shut down must give no answer before it may count as off.
	Silent time.Duration
	// Wiped is after how long without an answer a machine counts as powered off after a reset: what it wiped is not seen then.
	Wiped time.Duration
	// Patience is how long an operation waits for what should be so already, before it pauses.
	Patience time.Duration
	// ServiceQuiet is how soon after the restart of a service a machine may count as Ready: its Node says so for a while whatever happens.
	ServiceQuiet time.Duration
	// Retry is the pause after a call that was refused.
	Retry time.Duration
	// Busy and Steady are the pauses between two passes: while something is under way, and when nothing is. A cluster with
	// held machines is never looked at less often than Held.
	Busy, Steady, Held time.Duration
	// Inbox is how often operations that are given without Git are looked for: who puts one there says so in one place for all clusters.
	// InboxList is how often the inbox itself is listed where nobody says so.
	Inbox, InboxList time.Duration
	// Reread is how old what is known of a state may be for a pass that then finds nothing to do. Whatever is done rests on what
	// the store says at that moment.
	Reread time.Duration
	// Observe bounds one look at one machine; Call one mutating call, Defragment that of a defragmentation.
	Observe, Call, Defragment time.Duration
}

// DefaultTiming is what agents use.
func DefaultTiming() Timing {
	return Timing{
		LearnerGrace:   12 * time.Minute,
		NamelessGrace:  5 * time.Minute,
		MendCap:        20 * time.Minute,
		WriterQuiet:    15 * time.Second,
		BootstrapQuiet: 60 * time.Second,
		TryTimeout:     time.Minute,
		ComeBack:       10 * time.Minute,
		Return:         20 * time.Minute,
		Silent:         2 * time.Minute,
		Wiped:          15 * time.Minute,
		Patience:       2 * time.Minute,
		ServiceQuiet:   15 * time.Second,
		Retry:          5 * time.Second,
		Busy:           2 * time.Second,
		Steady:         15 * time.Second,
		Held:           15 * time.Second,
		Inbox:          time.Minute,
		InboxList:      time.Hour,
		Reread:         time.Minute,
		Observe:        25 * time.Second,
		Call:           20 * time.Second,
		Defragment:     10 * time.Minute,
	}
}

// Scaled divides what rests on Talos's own constants by n, for nodes whose time runs n times as fast. The bounds of single
// calls stay as they are, for a network is no faster, and so does what protects from another agent, which isn't either. What
// comes down to real work, such as the start of an etcd, is never shortened below what that takes on a busy host.
func (t Timing) Scaled(n float64) Timing {
	if n <= 1 {
		return t
	}
	for _, s := range []struct {
		duration *time.Duration
		least    time.Duration
	}{
		{&t.LearnerGrace, 4 * time.Minute}, {&t.NamelessGrace, time.Minute}, {&t.MendCap, 4 * time.Minute}, {&t.ComeBack, 2 * time.Minute},
		{&t.Return, 4 * time.Minute}, {&t.Silent, 5 * time.Second}, {&t.Wiped, 10 * time.Second}, {&t.Patience, 30 * time.Second}, {&t.ServiceQuiet, time.Second},
		{&t.TryTimeout, 30 * time.Second}, {&t.BootstrapQuiet, 5 * time.Second},
		{&t.Retry, 0}, {&t.Busy, 0}, {&t.Steady, 0}, {&t.Held, 0}, {&t.Inbox, 0}, {&t.InboxList, 0}, {&t.Reread, 0},
	} {
		*s.duration = max(time.Duration(float64(*s.duration)/n), min(*s.duration, s.least))
	}
	return t
}
