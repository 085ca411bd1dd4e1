package machined

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/api/common"
	"github.com/siderolabs/talos/pkg/machinery/api/machine"

	"ichor.maesh.dev/internal/talossim/apid"
)

// The sequences, named as SequenceEvents name them.
const (
	seqInitialize         = "initialize"
	seqInstall            = "install"
	seqBoot               = "boot"
	seqReboot             = "reboot"
	seqShutdown           = "shutdown"
	seqReset              = "reset"
	seqUpgrade            = "upgrade"
	seqStageUpgrade       = "stageUpgrade"
	seqMaintenanceUpgrade = "maintenanceUpgrade"
	seqVolumeCleanup      = "emergencyVolumeCleanup"
)

var errLocked = errors.New("locked")

// errRebooting ends a sequence that ended the boot; it is no failure.
var errRebooting = errors.New("the machine goes down")

// mayTakeOver is Talos's table of which sequence may interrupt which
// (internal/app/machined/pkg/runtime/sequencer.go).
func mayTakeOver(newcomer, running string) bool {
	switch running {
	case "":
		return true
	case seqInitialize:
		return slices.Contains([]string{seqMaintenanceUpgrade, seqReboot, seqVolumeCleanup}, newcomer)
	case seqBoot:
		return slices.Contains([]string{seqReboot, seqReset, seqUpgrade, seqVolumeCleanup}, newcomer)
	case seqReboot, seqReset:
		return newcomer == seqReboot
	default:
		return false
	}
}

// sequenceLock lets one sequence run at a time.
type sequenceLock struct {
	pace    Pace
	running chan struct{} // holds a token while nothing runs
	entry   chan struct{} // one newcomer at a time

	mu     sync.Mutex
	name   string
	cancel context.CancelCauseFunc
}

func newSequenceLock(pace Pace) *sequenceLock {
	l := &sequenceLock{pace: pace, running: make(chan struct{}, 1), entry: make(chan struct{}, 1)}
	l.running <- struct{}{}
	return l
}

// acquire waits for at most a minute for a running sequence to let go.
func (l *sequenceLock) acquire(ctx context.Context, name string, always bool) (context.Context, error) {
	timer := l.pace.Clock.NewTimer(max(l.pace.Of(time.Minute), workFloor))
	defer timer.Stop()
	select {
	case l.entry <- struct{}{}:
	case <-timer.C():
		return nil, errors.New("failed to acquire lock: timeout")
	}
	defer func() { <-l.entry }()

	l.mu.Lock()
	running, cancel := l.name, l.cancel
	l.mu.Unlock()
	if !mayTakeOver(name, running) && !always {
		return nil, errLocked
	}
	if cancel != nil {
		cancel(context.Canceled)
	}
	select {
	case <-l.running:
		ctx, cancel := context.WithCancelCause(ctx)
		l.mu.Lock()
		l.name, l.cancel = name, cancel
		l.mu.Unlock()
		return ctx, nil
	case <-timer.C():
		return nil, errors.New("failed to acquire lock: timeout")
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func (l *sequenceLock) release() {
	l.mu.Lock()
	if l.cancel != nil {
		l.cancel(context.Canceled)
	}
	l.name, l.cancel = "", nil
	l.mu.Unlock()
	l.running <- struct{}{}
}

// task is one step of a phase.
type task struct {
	name string
	run  func(context.Context) error
}

// phase is a named group of tasks that run at the same time. Its errors end the sequence unless logged is set.
type phase struct {
	name   string
	tasks  []task
	logged bool
}

func one(name, taskName string, run func(context.Context) error) phase {
	return phase{name: name, tasks: []task{{taskName, run}}}
}

// runSequence runs a sequence under the lock. A loser is told by one event without an actor, as Talos tells it. phases is
// asked once the lock is held.
func (m *Machine) runSequence(ctx context.Context, name string, always bool, phases func() []phase) error {
	call := apid.CallFrom(ctx)
	ctx, err := m.lock.acquire(ctx, name, always)
	if err != nil {
		if errors.Is(err, errLocked) {
			// Whoever hears of it finds the call dropped.
			call.SetAccepted(false, "answered OK and dropped: another sequence holds the lock")
			m.events.publish(context.Background(), &machine.SequenceEvent{
				Sequence: name,
				Action:   machine.SequenceEvent_NOOP,
				Error:    &common.Error{Code: common.Code_LOCKED, Message: "sequence not started: locked"},
			})
		}
		return err
	}
	defer m.lock.release()
	err = m.runPhases(ctx, name, phases())
	if err == nil || errors.Is(err, errRebooting) || m.ctx.Err() != nil {
		return err
	}
	code := common.Code_FATAL
	if errors.Is(err, context.Canceled) {
		code = common.Code_CANCELED
	}
	m.events.publish(ctx, &machine.SequenceEvent{
		Sequence: name,
		Action:   machine.SequenceEvent_NOOP,
		Error:    &common.Error{Code: code, Message: "sequence failed: " + err.Error()},
	})
	return err
}

func (m *Machine) runPhases(ctx context.Context, name string, phases []phase) error {
	m.log.Info("sequence starts", "sequence", name, "phases", len(phases))
	m.events.publish(ctx, &machine.SequenceEvent{Sequence: name, Action: machine.SequenceEvent_START})
	defer m.events.publish(ctx, &machine.SequenceEvent{Sequence: name, Action: machine.SequenceEvent_STOP})
	for i, p := range phases {
		err := m.runPhase(ctx, p)
		if err != nil && p.logged && ctx.Err() == nil && !errors.Is(err, errRebooting) {
			m.log.Warn("phase failed, going on", "sequence", name, "phase", p.name, "err", err)
			err = nil
		}
		if err != nil {
			m.log.Info("sequence ends", "sequence", name, "phase", p.name, "err", err)
			return fmt.Errorf("error running phase %d in %s sequence: %w", i+1, name, err)
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	m.log.Info("sequence done", "sequence", name)
	return nil
}

func (m *Machine) runPhase(ctx context.Context, p phase) error {
	m.events.publish(ctx, phaseEvent(p.name, machine.PhaseEvent_START))
	defer m.events.publish(ctx, phaseEvent(p.name, machine.PhaseEvent_STOP))
	errs := make(chan error, len(p.tasks))
	for i, t := range p.tasks {
		go func() {
			m.events.publish(ctx, &machine.TaskEvent{Task: t.name, Action: machine.TaskEvent_START})
			err := t.run(ctx)
			m.events.publish(ctx, &machine.TaskEvent{Task: t.name, Action: machine.TaskEvent_STOP})
			if err != nil {
				err = fmt.Errorf("task %d/%d: failed, %w", i+1, len(p.tasks), err)
			}
			errs <- err
		}()
	}
	var first error
	for range p.tasks {
		if err := <-errs; err != nil && first == nil {
			first = err
		}
	}
	return first
}
