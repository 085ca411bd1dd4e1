package machined

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"strings"
	"sync"
	"time"
)

// services are the machine's registered services.
type services struct {
	m *Machine

	mu      sync.Mutex
	running map[string]*service
	changed chan struct{}
}

// load registers a service; one that is registered stays as it is.
func (s *services) load(def serviceDef) *service {
	s.mu.Lock()
	defer s.mu.Unlock()
	if svc, ok := s.running[def.id]; ok {
		return svc
	}
	svc := newService(s.m, def)
	s.running[def.id] = svc
	return svc
}

// replace registers a service anew, with new flags. The old one must be stopped.
func (s *services) replace(def serviceDef) *service {
	s.mu.Lock()
	defer s.mu.Unlock()
	svc := newService(s.m, def)
	if old := s.running[def.id]; old != nil {
		svc.events = old.history()
	}
	s.running[def.id] = svc
	return svc
}

// history is what happened to the service so far.
func (s *service) history() []serviceEvent {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]serviceEvent(nil), s.events...)
}

func (s *services) get(id string) *service {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.running[id]
}

// ids returns the registered services' ids, sorted.
func (s *services) ids() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var ids []string
	for id := range s.running {
		ids = append(ids, id)
	}
	sort.Strings(ids)
	return ids
}

func (s *services) start(id string) error {
	svc := s.get(id)
	if svc == nil {
		return fmt.Errorf("service %q not defined", id)
	}
	svc.start()
	return nil
}

// stop stops the services named that there are, all at once.
func (s *services) stop(ctx context.Context, ids ...string) error {
	errs := make(chan error, len(ids))
	n := 0
	for _, id := range ids {
		if svc := s.get(id); svc != nil {
			n++
			go func() { errs <- svc.stop(ctx) }()
		}
	}
	var all []error
	for range n {
		all = append(all, <-errs)
	}
	return errors.Join(all...)
}

func (s *services) stateOf(id string) string {
	svc := s.get(id)
	if svc == nil {
		return ""
	}
	svc.mu.Lock()
	defer svc.mu.Unlock()
	return svc.state
}

func (s *services) isUp(id string) bool {
	svc := s.get(id)
	return svc != nil && svc.up()
}

func (s *services) wake() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.changed)
	s.changed = make(chan struct{})
}

// waitUp returns when all the services are up. A finished service that was faked so by Bootstrap is waited for in its new life.
func (s *services) waitUp(ctx context.Context, ids ...string) error {
	for {
		s.mu.Lock()
		changed := s.changed
		s.mu.Unlock()
		var missing []string
		for _, id := range ids {
			if !s.isUp(id) {
				missing = append(missing, id)
			}
		}
		if len(missing) == 0 {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("waiting for services %s: %w", strings.Join(missing, ", "), context.Cause(ctx))
		}
	}
}

// viaAPI is what a caller may do to a service: restart and start the kubelet, nothing else
// (extension services aside, of which a simulated machine has none).
func (s *services) viaAPI(ctx context.Context, id, operation string) error {
	svc := s.get(id)
	if svc == nil {
		return fmt.Errorf("service %q not defined", id)
	}
	if id != "kubelet" || operation == "stop" {
		return fmt.Errorf("service %q doesn't support %s operation via API", id, operation)
	}
	if operation == "restart" {
		if err := svc.stop(ctx); err != nil {
			return err
		}
	}
	svc.start()
	return nil
}

// serviceDef says what a service is made of.
func (m *Machine) serviceDef(id string) serviceDef {
	quick := func(delay time.Duration) serviceDef {
		return serviceDef{id: id, health: func(context.Context) error { return nil }, healthDelay: delay, healthEvery: 30 * time.Second, healthTimeout: 5 * time.Second}
	}
	switch id {
	case "machined", "apid", "containerd":
		return quick(500 * time.Millisecond)
	case "cri":
		def := quick(time.Second)
		def.deps = []string{"containerd"}
		def.waits = []condition{m.ephemeralMounted(), m.networkReady()}
		return def
	case "trustd":
		def := quick(500 * time.Millisecond)
		def.deps = []string{"containerd"}
		def.waits = []condition{m.timeSynced(), m.networkReady()}
		def.run = m.trustd
		return def
	case "kubelet":
		def := quick(2 * time.Second)
		def.deps = []string{"cri"}
		def.waits = []condition{m.ephemeralMounted(), m.timeSynced(), m.networkReady(), {"nodename", func() bool { return m.hostname() != "" }}}
		def.pre = func(ctx context.Context) error { return m.pace.Sleep(ctx, time.Second) } // the image
		return def
	case "etcd":
		return m.etcdDef(&etcdService{m: m})
	default: // udevd, auditd, syslogd, dashboard: they only last
		return serviceDef{id: id}
	}
}

func (m *Machine) ephemeralMounted() condition {
	return condition{"volumes /var/lib to be mounted", m.volumes.ephemeralMounted}
}

func (m *Machine) timeSynced() condition { return condition{"time sync", m.synced} }

func (m *Machine) networkReady() condition {
	return condition{"network", func() bool { return m.hostname() != "" }}
}
