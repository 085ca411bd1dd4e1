package machined

import (
	"context"
	"time"

	"k8s.io/utils/clock"
)

// Pace is how fast time goes for a machine: Talos's durations divided by Scale, measured on Clock.
type Pace struct {
	Clock clock.WithTicker
	Scale float64
	// Impatient lets machines give up waiting for others at this pace too.
	Impatient bool
}

// workFloor is the least that a bound on real work (a call to a real etcd) is shortened to: the machine it runs on doesn't
// get faster with the scale.
const workFloor = 5 * time.Second

// pollFloor and askFloor are the least that the pauses between two looks at something, and between two real calls, are shortened to.
const (
	pollFloor = 10 * time.Millisecond
	askFloor  = 200 * time.Millisecond
)

// waitLimit is the same for what waits for others: for somebody who bootstraps, and for a real etcd to start, to catch up and to be
// elected, none of which is faster for the scale. A machine that gives up on them, as Talos does after 10, 30 and 70 minutes, leaves a
// learner behind that nobody promotes any more, or reboots under whoever was about to bootstrap it.
const waitLimit = 10 * time.Minute

// Of returns a duration at this pace.
func (p Pace) Of(d time.Duration) time.Duration {
	return time.Duration(float64(d) / p.Scale)
}

// Sleep waits for a duration at this pace.
func (p Pace) Sleep(ctx context.Context, d time.Duration) error {
	return p.wait(ctx, p.Of(d))
}

func (p Pace) wait(ctx context.Context, d time.Duration) error {
	timer := p.Clock.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C():
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Within bounds work that is really done to a duration at this pace, never less than workFloor.
func (p Pace) Within(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	return p.after(ctx, max(p.Of(d), min(d, workFloor)))
}

// Waiting bounds a wait for others to a duration at this pace, never less than waitLimit; where machines are impatient that holds
// only if busy says, when the time is over, that a real etcd is at work.
func (p Pace) Waiting(ctx context.Context, d time.Duration, busy func() bool) (context.Context, context.CancelFunc) {
	short, long := p.Of(d), max(p.Of(d), min(d, waitLimit))
	if !p.Impatient || short == long {
		return p.after(ctx, long)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	timer := p.Clock.NewTimer(max(short, min(d, workFloor)))
	go func() {
		select {
		case <-timer.C():
		case <-ctx.Done():
			timer.Stop()
			return
		}
		if busy() {
			timer.Reset(long - short)
			defer timer.Stop()
			select {
			case <-timer.C():
			case <-ctx.Done():
				return
			}
		}
		cancel(context.DeadlineExceeded)
	}()
	return ctx, func() { cancel(context.Canceled) }
}

func (p Pace) after(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	timer := p.Clock.NewTimer(d)
	go func() {
		defer timer.Stop()
		select {
		case <-timer.C():
			cancel(context.DeadlineExceeded)
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(context.Canceled) }
}

// Poll calls f at once and then once a period until it returns true, and says whether it did.
func (p Pace) Poll(ctx context.Context, period time.Duration, f func() bool) bool {
	return p.poll(ctx, max(p.Of(period), min(period, pollFloor)), f)
}

// ask is a Poll whose f makes a real call: the pause between two isn't shortened so far that asking is all that a busy host gets to.
func (p Pace) ask(ctx context.Context, period time.Duration, f func() bool) bool {
	return p.poll(ctx, max(p.Of(period), min(period, askFloor)), f)
}

func (p Pace) poll(ctx context.Context, pause time.Duration, f func() bool) bool {
	for {
		if f() {
			return true
		}
		if p.wait(ctx, pause) != nil {
			return false
		}
	}
}
