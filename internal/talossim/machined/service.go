package machined

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/resources/v1alpha1"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// The states of a service, spelled as ServiceList spells them.
const (
	stateInitialized = "Initialized"
	stateStarting    = "Starting"
	stateWaiting     = "Waiting"
	statePreparing   = "Preparing"
	stateRunning     = "Running"
	stateStopping    = "Stopping"
	stateFinished    = "Finished"
	stateFailed      = "Failed"
)

// serviceEvents is how many events of a service ServiceList shows.
const serviceEvents = 64

// serviceDef is what a service is made of. Every part may be nil.
type serviceDef struct {
	id string
	// deps are services that must be up first.
	deps []string
	// waits are further conditions.
	waits []condition
	// pre is the pre stage; its failure is final.
	pre func(context.Context) error
	// run runs until its context ends; nil is a service that only lasts.
	run func(context.Context) error
	// after is called when run has ended.
	after func()
	// health is the check of a service that has one.
	health                   func(context.Context) error
	healthDelay, healthEvery time.Duration
	healthTimeout            time.Duration
	// onHealth hears every change of health, and the end as unhealthy.
	onHealth func(healthy bool)
}

// condition is something that a service waits for.
type condition struct {
	text string
	met  func() bool
}

type serviceEvent struct {
	state, message string
	at             time.Time
}

// service is one registered service of the machine.
type service struct {
	m   *Machine
	def serviceDef

	mu      sync.Mutex
	state   string
	events  []serviceEvent
	unknown bool
	healthy bool
	lastMsg string
	lastAt  time.Time
	cancel  context.CancelFunc
	done    chan struct{}
}

func newService(m *Machine, def serviceDef) *service {
	return &service{m: m, def: def, state: stateInitialized, unknown: true}
}

// update is a change of state: an event in the list and on the stream, and the Service resource, which exists only while
// the service runs.
func (s *service) update(state, format string, args ...any) {
	message := fmt.Sprintf(format, args...)
	s.mu.Lock()
	s.state = state
	s.events = append(s.events, serviceEvent{state, message, s.m.pace.Clock.Now()})
	if over := len(s.events) - serviceEvents; over > 0 {
		s.events = append([]serviceEvent(nil), s.events[over:]...)
	}
	if state == stateStarting {
		s.unknown, s.healthy, s.lastMsg = true, false, ""
	}
	s.mu.Unlock()
	s.m.log.Debug("service", "service", s.def.id, "state", state, "message", message)
	s.announce(message)
}

func (s *service) setHealth(healthy bool, message string) {
	s.mu.Lock()
	changed := s.unknown || s.healthy != healthy
	s.unknown, s.healthy, s.lastMsg = false, healthy, message
	if changed {
		s.lastAt = s.m.pace.Clock.Now()
	}
	state := s.state
	if changed && state == stateRunning {
		s.events = append(s.events, serviceEvent{state, message, s.lastAt})
	}
	s.mu.Unlock()
	if changed {
		if s.def.onHealth != nil {
			s.def.onHealth(healthy)
		}
		s.announce(message)
	}
}

func (s *service) announce(message string) {
	info := s.info()
	action, _ := map[string]machine.ServiceStateEvent_Action{
		stateInitialized: machine.ServiceStateEvent_INITIALIZED, stateStarting: machine.ServiceStateEvent_STARTING,
		stateWaiting: machine.ServiceStateEvent_WAITING, statePreparing: machine.ServiceStateEvent_PREPARING,
		stateRunning: machine.ServiceStateEvent_RUNNING, stateStopping: machine.ServiceStateEvent_STOPPING,
		stateFinished: machine.ServiceStateEvent_FINISHED, stateFailed: machine.ServiceStateEvent_FAILED,
	}[info.State]
	s.m.events.publish(context.Background(), &machine.ServiceStateEvent{
		Service: s.def.id, Action: action, Message: message, Health: info.Health,
	})
	r := v1alpha1.NewService(s.def.id)
	if info.State == stateRunning {
		spec := r.TypedSpec()
		spec.Running, spec.Healthy, spec.Unknown = true, info.Health.Healthy, info.Health.Unknown
		s.m.put(r)
	} else {
		s.m.drop(r)
	}
	s.m.services.wake()
}

// info is the service as ServiceList shows it.
func (s *service) info() *machine.ServiceInfo {
	s.mu.Lock()
	defer s.mu.Unlock()
	info := &machine.ServiceInfo{
		Id: s.def.id, State: s.state, Events: &machine.ServiceEvents{},
		Health: &machine.ServiceHealth{Unknown: s.unknown, Healthy: s.healthy, LastMessage: s.lastMsg, LastChange: timestamppb.New(s.lastAt)},
	}
	for _, e := range s.events {
		info.Events.Events = append(info.Events.Events, &machine.ServiceEvent{State: e.state, Msg: e.message, Ts: timestamppb.New(e.at)})
	}
	return info
}

// up says whether the service runs and is healthy, if it has a check.
func (s *service) up() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state == stateRunning && (s.def.health == nil || !s.unknown && s.healthy)
}

// start runs the service in the background; a running one is left alone.
func (s *service) start() {
	s.mu.Lock()
	if s.done != nil {
		select {
		case <-s.done:
		default:
			s.mu.Unlock()
			return
		}
	}
	ctx, cancel := context.WithCancel(s.m.ctx)
	s.cancel, s.done = cancel, make(chan struct{})
	done := s.done
	s.mu.Unlock()
	s.update(stateStarting, "Starting service")
	s.m.spawn(func(context.Context) {
		defer close(done)
		defer cancel()
		s.live(ctx)
	})
}

// stop ends the service and waits until it has ended.
func (s *service) stop(ctx context.Context) error {
	s.mu.Lock()
	cancel, done, state := s.cancel, s.done, s.state
	s.mu.Unlock()
	if done == nil {
		return nil
	}
	if state == stateRunning {
		s.update(stateStopping, "Sending SIGTERM to task %s", s.def.id)
	}
	cancel()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("stopping service %q: %w", s.def.id, context.Cause(ctx))
	}
}

func (s *service) live(ctx context.Context) {
	if !s.await(ctx) {
		s.update(stateFinished, "Service finished successfully")
		return
	}
	s.update(statePreparing, "Running pre state")
	if s.def.pre != nil {
		if err := s.def.pre(ctx); err != nil {
			if ctx.Err() != nil {
				s.update(stateFinished, "Service finished successfully")
				return
			}
			s.update(stateFailed, "Failed to run pre stage: %s", err)
			return
		}
	}
	s.update(statePreparing, "Creating service runner")
	if s.m.pace.Sleep(ctx, phaseTime) != nil {
		s.update(stateFinished, "Service finished successfully")
		return
	}
	s.update(stateRunning, "Started task %s", s.def.id)
	healthDone := make(chan struct{})
	healthCtx, stopHealth := context.WithCancel(ctx)
	go func() {
		defer close(healthDone)
		s.probe(healthCtx)
	}()
	var err error
	if s.def.run != nil {
		err = s.def.run(ctx)
	} else {
		<-ctx.Done()
	}
	stopHealth()
	<-healthDone
	if s.def.onHealth != nil {
		s.def.onHealth(false)
	}
	if s.def.after != nil {
		s.def.after()
	}
	if err != nil && ctx.Err() == nil {
		s.update(stateFailed, "Failed running service: %s", err)
		return
	}
	s.update(stateFinished, "Service finished successfully")
}

// await waits for the service's conditions, showing what it waits for.
func (s *service) await(ctx context.Context) bool {
	shown := ""
	return s.m.pace.Poll(ctx, 200*time.Millisecond, func() bool {
		var missing []string
		for _, id := range s.def.deps {
			if !s.m.services.isUp(id) {
				missing = append(missing, fmt.Sprintf("service %q to be \"up\"", id))
			}
		}
		for _, c := range s.def.waits {
			if !c.met() {
				missing = append(missing, c.text)
			}
		}
		if len(missing) == 0 {
			return true
		}
		text := "Waiting for " + join(missing)
		if text != shown {
			shown = text
			s.update(stateWaiting, "%s", text)
		}
		return false
	})
}

func join(parts []string) string {
	text := ""
	for i, p := range parts {
		if i > 0 {
			text += ", "
		}
		text += p
	}
	return text
}

func (s *service) probe(ctx context.Context) {
	if s.def.health == nil || s.m.pace.Sleep(ctx, s.def.healthDelay) != nil {
		return
	}
	for {
		// It asks a real process, which a busy host lets wait, and the API server falls with it: so it has all its time, whatever the scale.
		checkCtx, cancel := s.m.pace.after(ctx, s.def.healthTimeout)
		err := s.def.health(checkCtx)
		cancel()
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			s.setHealth(false, "Health check failed: "+err.Error())
		default:
			s.setHealth(true, "Health check successful")
		}
		if s.m.pace.Sleep(ctx, s.def.healthEvery) != nil {
			return
		}
	}
}
