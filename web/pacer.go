package web

import (
	"context"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

const (
	// hookGap is the least time between two pulls that webhooks asked for.
	hookGap = 5 * time.Second
	// saidGap is the least time between two lines of the log on the same: that something keeps everybody out, or that a webhook was refused.
	saidGap = time.Minute
)

// pacer hands requests on, the first at once, those that come within the gap after it as one when the gap ends: none is lost,
// and a flood becomes one in a gap.
type pacer struct {
	clock clock.WithTicker
	gap   time.Duration
	do    func()
	asks  chan struct{}
}

func newPacer(clock clock.WithTicker, gap time.Duration, do func()) *pacer {
	return &pacer{clock: clock, gap: gap, do: do, asks: make(chan struct{}, 1)}
}

// ask never waits.
func (p *pacer) ask() {
	select {
	case p.asks <- struct{}{}:
	default:
	}
}

// run hands on until ctx ends.
func (p *pacer) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.asks:
		}
		p.do()
		timer := p.clock.NewTimer(p.gap)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C():
		}
	}
}

// throttle lets something be said at most once in a while, and counts what was not said.
type throttle struct {
	clock clock.PassiveClock
	gap   time.Duration

	mu      sync.Mutex
	last    time.Time
	skipped int
}

func newThrottle(clock clock.PassiveClock, gap time.Duration) *throttle {
	return &throttle{clock: clock, gap: gap}
}

// say calls what says it with how often it was not said since, or counts.
func (t *throttle) say(it func(skipped int)) {
	t.mu.Lock()
	now := t.clock.Now()
	if age := now.Sub(t.last); !t.last.IsZero() && age >= 0 && age < t.gap {
		t.skipped++
		t.mu.Unlock()
		return
	}
	skipped := t.skipped
	t.last, t.skipped = now, 0
	t.mu.Unlock()
	it(skipped)
}
