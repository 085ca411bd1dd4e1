package keeper

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"ichor.maesh.dev/backup"
	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/statefile"
)

const (
	// breath is the pause after a step that could not be written down, or for which there was no place.
	breath = 5 * time.Second
	// idle is the longest pause: what is due is decided anew at least so often.
	idle = 10 * time.Minute
	// roundLimit bounds the steps of a single round.
	roundLimit = 12
)

// tender keeps one TalosEtcdBackup.
type tender struct {
	keeper *Keeper
	name   string
	log    *slog.Logger
	wake   chan struct{}
	// loop is done when the loop of this tender has ended; nil: there was none yet. halt ends it.
	loop chan struct{}
	halt context.CancelFunc

	mu     sync.Mutex
	object *schema.TalosEtcdBackup

	// The rest belongs to the loop.
	seen     Seen
	looked   *schema.TalosEtcdBackup // what was looked at
	proved   string                  // the key of the place that was tried with a throw-away object
	finishAt time.Time
	unpinned map[string]bool // the digests of restores that never began, whose copies are gone
	// told and complained are what was logged last.
	told, complained string
}

func newTender(k *Keeper, name string) *tender {
	return &tender{keeper: k, name: name, log: k.options.Log.With("backup", name), wake: make(chan struct{}, 1), unpinned: map[string]bool{}}
}

func (t *tender) set(b *schema.TalosEtcdBackup) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.object = b
}

func (t *tender) document() *schema.TalosEtcdBackup {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.object
}

func (t *tender) poke() {
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

func (t *tender) end() {
	if t.halt != nil {
		t.halt()
	}
}

// gone waits until the loop has ended.
func (t *tender) gone() {
	if t.loop != nil {
		<-t.loop
	}
}

// begin starts the loop. The keeper's lock is held.
func (t *tender) begin(ctx context.Context) {
	ctx, t.halt = context.WithCancel(ctx)
	t.loop = make(chan struct{})
	t.keeper.running.Go(func() {
		defer close(t.loop)
		t.run(ctx)
	})
}

// run does what is due until ctx ends or another process is the writer.
func (t *tender) run(ctx context.Context) {
	for ctx.Err() == nil {
		wait, err := t.round(ctx)
		if errors.Is(err, statefile.ErrOtherWriter) || errors.Is(err, statefile.ErrNotWriter) {
			return
		}
		timer := t.clock().NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-timer.C():
		case <-t.wake:
		}
		timer.Stop()
	}
}

// once does what is due now.
func (t *tender) once(ctx context.Context) { _, _ = t.round(ctx) }

// round does steps until none is due, and says for how long there is nothing to do. An error is one of writing down; it ends the round.
func (t *tender) round(ctx context.Context) (wait time.Duration, err error) {
	wait = breath
	defer t.keeper.options.Scrubber.Recover(func(text string) { t.log.Error("keeping the backup failed", "panic", text) })
	for range roundLimit {
		if ctx.Err() != nil {
			return wait, ctx.Err()
		}
		state := t.known()
		if state == nil {
			return wait, nil
		}
		order, err := readOrder(t.document())
		if err != nil {
			return idle, t.write(ctx, nil) // the schema has refused it before
		}
		d := decide(t.facts(state, order))
		if d.Step == "" {
			return t.until(d.Next, state), t.write(ctx, nil)
		}
		if again, err := t.do(ctx, d, order, state); err != nil || !again {
			t.complain(ctx, err)
			return wait, err
		}
	}
	return wait, nil
}

// complain logs why a round ended early.
func (t *tender) complain(ctx context.Context, err error) {
	if err != nil && ctx.Err() == nil && err.Error() != t.complained {
		t.complained = err.Error()
		t.log.Warn("what is done for the backup could not be written down; it waits", "error", err)
	}
}

func (t *tender) until(next time.Time, state *statefile.State) time.Duration {
	if next.IsZero() {
		return idle
	}
	least := 10 * time.Millisecond
	if now := t.now(state); stamp(t.clock().Now()).Before(now) {
		least = breath // this clock was set back, and what is compared with stands still until it is there again
	}
	return max(min(next.Sub(t.now(state)), idle), least)
}

func (t *tender) facts(state *statefile.State, order order) facts {
	f := facts{Order: order, Held: t.keeper.wanted().Hold.Reason != "", Now: t.now(state), Looked: t.seen.Looked,
		LookFailed: t.seen.Problem.Reason != "", Marker: t.seen.Marker, FinishAt: t.finishAt}
	if !same(t.looked, t.document()) {
		f.Looked = time.Time{}
	}
	if m := state.Backups[t.name]; m != nil {
		f.Memory = *m
	}
	return f
}

// do does one step; again says that the next may follow at once.
func (t *tender) do(ctx context.Context, d decision, order order, state *statefile.State) (again bool, err error) {
	switch d.Step {
	case stepFinish:
		return true, t.finish(ctx)
	case stepIgnore:
		return true, t.ignore(ctx)
	case stepLook:
		return true, t.look(ctx, order)
	case stepAttempt:
		return t.attempt(ctx, d.Request)
	case stepPrune:
		return true, t.prune(ctx, order)
	case stepDrill:
		return t.drill(ctx)
	}
	return false, nil
}

// write changes what the state remembers of this backup, and the verdict with it. Nothing is sent when nothing changes.
func (t *tender) write(ctx context.Context, change func(*statefile.State, *statefile.BackupState), events ...statefile.Event) error {
	err := t.keeper.options.State.Swap(ctx, func(s *statefile.State) error {
		m := s.Backups[t.name]
		if m == nil {
			if s.Backups == nil {
				s.Backups = map[string]*statefile.BackupState{}
			}
			m = &statefile.BackupState{}
			s.Backups[t.name] = m
		}
		if change != nil {
			change(s, m)
		}
		m.Ready = t.judge(s, m)
		return nil
	}, events...)
	if err == nil {
		t.complained = ""
		t.tell()
	}
	return err
}

func (t *tender) judge(s *statefile.State, m *statefile.BackupState) statefile.Condition {
	order, err := readOrder(t.document())
	if err != nil {
		return statefile.Condition{Type: "Ready", Reason: "Failed", Message: err.Error(), Since: m.Ready.Since}
	}
	seen := t.seen
	if !same(t.looked, t.document()) {
		seen = Seen{}
	}
	return judge(situation{Order: order, Hold: t.keeper.wanted().Hold, Memory: *m, Now: t.now(s), Latest: s.Latest, Clock: stamp(t.clock().Now()), Seen: seen})
}

// tell logs the verdict when it changed.
func (t *tender) tell() {
	s := t.known()
	if s == nil || s.Backups[t.name] == nil {
		return
	}
	c := s.Backups[t.name].Ready
	if text := c.Reason + c.Message; text != t.told {
		t.told = text
		t.log.Info("backup", "ready", c.Status, "reason", c.Reason, "message", c.Message)
	}
}

func (t *tender) known() *statefile.State {
	s, _ := t.keeper.options.State.Known()
	return s
}

func (t *tender) memory() statefile.BackupState {
	if s := t.known(); s != nil && s.Backups[t.name] != nil {
		return *s.Backups[t.name]
	}
	return statefile.BackupState{}
}

func (t *tender) clock() clock.WithTickerAndDelayedExecution { return t.keeper.options.Clock }

// time is now for what is not decided inside of a write.
func (t *tender) time() time.Time {
	if s := t.known(); s != nil {
		return t.now(s)
	}
	return stamp(t.clock().Now())
}

// now is never behind the latest time in the state.
func (t *tender) now(s *statefile.State) time.Time { return s.Time(stamp(t.clock().Now())) }

// stamp is a time in the form in which the state keeps it.
func stamp(at time.Time) time.Time { return at.UTC().Round(0).Truncate(time.Millisecond) }

// forward is a clock that never runs behind the latest time in the state.
type forward struct {
	clock.WithTickerAndDelayedExecution
	latest time.Time
}

func (f forward) Now() time.Time {
	if now := f.WithTickerAndDelayedExecution.Now(); now.After(f.latest) {
		return now
	}
	return f.latest
}

func (t *tender) guard() backup.Guard {
	if s := t.known(); s != nil {
		return t.guards(s)
	}
	return backup.Guard{Past: t.time()} // nothing goes
}

// guards is what retention may not reach, by a state and by what restores name.
func (t *tender) guards(s *statefile.State) backup.Guard {
	g := guard(s)
	g.Named = t.keeper.wanted().Named[t.name]
	return g
}

// guard is what retention may not reach, by a state.
func guard(s *statefile.State) backup.Guard {
	var past time.Time
	if b := s.Bootstrap; b != nil {
		if past = b.Done; past.IsZero() {
			past = b.At
		}
	}
	if r := s.LastRestore; r != nil && r.At.After(past) {
		past = r.At
	}
	return backup.Guard{Past: past}
}
