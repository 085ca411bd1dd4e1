package main

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"
)

func TestAProcessThatEndsByItselfIsSaidWithTheEndOfItsLog(t *testing.T) {
	p, err := start(t.TempDir(), "teller", "sh", "-c", "echo first; echo the last word; exit 3")
	if err != nil {
		t.Fatal(err)
	}
	<-p.exited
	if err := p.alive(); err == nil || !strings.Contains(err.Error(), "the last word") || !strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("alive: %v", err)
	}
}

func TestAProcessStopsWhenItIsAskedTo(t *testing.T) {
	p, err := start(t.TempDir(), "sleeper", "sh", "-c", "trap 'exit 0' TERM; echo up; while :; do sleep 0.1; done")
	if err != nil {
		t.Fatal(err)
	}
	err = waitFor(t.Context(), 3*time.Minute, "the sleeper up", p.alive, func(context.Context) error {
		if !strings.Contains(p.tail(1), "up") {
			return errors.New("not yet")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.stop(); err != nil {
		t.Error(err)
	}
}

func TestWhatIsNotSeenInTimeIsSaidWithTheLastAnswer(t *testing.T) {
	err := waitFor(t.Context(), time.Millisecond, "a miracle", func() error { return nil }, func(context.Context) error {
		return errors.New("still nothing")
	})
	if err == nil || !strings.Contains(err.Error(), "a miracle was not seen within 1ms") || !strings.Contains(err.Error(), "still nothing") {
		t.Errorf("waitFor: %v", err)
	}
}

func TestAnAnswerThatTheLimitCutOffIsNotTheLastOne(t *testing.T) {
	asked := 0
	err := waitFor(t.Context(), time.Second, "a miracle", func() error { return nil }, func(ctx context.Context) error {
		if asked++; asked == 1 {
			return errors.New("still nothing")
		}
		<-ctx.Done()
		return errors.New("killed")
	})
	if err == nil || !strings.Contains(err.Error(), "still nothing") || strings.Contains(err.Error(), "killed") {
		t.Errorf("waitFor: %v", err)
	}
}
