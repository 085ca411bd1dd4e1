package soak

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"ichor.maesh.dev/recovery"
	"ichor.maesh.dev/talos"
)

// session is a connection to one boot of a machine.
type session struct {
	nodes          agentNodes
	m              *machine
	name, endpoint string
	boot           int
	maintenance    bool
	// restore says that a restore makes its calls.
	restore bool
	// handed says that a sabotage had its calls in its hand already.
	handed bool
}

// seen is the machine as this connection shows it. The world's lock is held.
func (s *session) seen() *machine { return s.nodes.p.w.see(s.m) }

// call does something on the machine over this connection, while it stands.
func (s *session) call(ctx context.Context, doing string, do func(now time.Time) error) error {
	_, hangs, err := s.nodes.reach(ctx, s.name, s.endpoint, doing)
	switch {
	case errors.Is(err, errDead):
		return err
	case hangs:
		<-ctx.Done()
		return late(s.name, doing)
	case err != nil:
		return broken(s.name, doing)
	case ctx.Err() != nil:
		return late(s.name, doing)
	}
	s.nodes.p.w.mu.Lock()
	defer s.nodes.p.w.mu.Unlock()
	if seen := s.seen(); seen.boot != s.boot || !seen.answers() || s.maintenance != (seen.stage == stageMaintenance) {
		return broken(s.name, doing)
	}
	return do(time.Now())
}

// Maintenance implements reconcile.Session.
func (s *session) Maintenance() bool { return s.maintenance }

// Fingerprint implements reconcile.Session.
func (s *session) Fingerprint() string {
	return fmt.Sprintf("%s-%s-print-%d", s.m.c.name, s.m.name, s.boot)
}

// Close implements reconcile.Session.
func (s *session) Close() error { return nil }

// UUID implements reconcile.Session.
func (s *session) UUID(ctx context.Context) (uuid string, err error) {
	err = s.call(ctx, "reading its UUID", func(time.Time) error { uuid = s.seen().uuid; return nil })
	return uuid, err
}

// BootID implements reconcile.Session.
func (s *session) BootID(ctx context.Context) (id string, err error) {
	err = s.call(ctx, "reading its boot ID", func(time.Time) error { id = s.seen().bootID(); return nil })
	return id, err
}

// EtcdData implements reconcile.Session.
func (s *session) EtcdData(ctx context.Context) (data talos.Fact, err error) {
	err = s.call(ctx, "looking for etcd's data", func(now time.Time) error { data = s.seen().etcdObservation(now).Data; return nil })
	return data, err
}

// etcd reads something of the machine's own etcd, which gives no answer without a quorum.
func (s *session) etcd(ctx context.Context, doing string) (o talos.EtcdObservation, err error) {
	err = s.call(ctx, doing, func(now time.Time) error { o = s.seen().etcdObservation(now); return nil })
	if err == nil && o.Members == nil {
		<-ctx.Done()
		err = late(s.name, doing)
	}
	return o, err
}

// Members implements reconcile.Session.
func (s *session) Members(ctx context.Context) ([]talos.EtcdMember, error) {
	o, err := s.etcd(ctx, "reading etcd's members")
	return o.Members, err
}

// EtcdStatus implements reconcile.Session.
func (s *session) EtcdStatus(ctx context.Context) (talos.EtcdObservation, error) {
	return s.etcd(ctx, "reading etcd's status")
}

// ConfigDigests implements reconcile.Session.
func (s *session) ConfigDigests(ctx context.Context) (active, persistent string, err error) {
	err = s.call(ctx, "reading its config", func(time.Time) error {
		active = s.seen().active.digest
		if s.seen().shown {
			persistent = s.seen().persistent.digest
		}
		return nil
	})
	return active, persistent, err
}

// Services implements reconcile.Session.
func (s *session) Services(ctx context.Context) (services []talos.Service, err error) {
	err = s.call(ctx, "reading its services", func(now time.Time) error { services = s.seen().services(now); return nil })
	return services, err
}

// change makes a call that changes something: the monitor sees it where the machine accepts it. An answer may be lost.
// do says why the machine doesn't accept it, or gives what becomes of it then.
func (s *session) change(ctx context.Context, t taken, doing string, do func(now time.Time) (func(), error)) error {
	if hand := s.nodes.p.w.hand; hand != nil && !s.handed {
		return hand(ctx, s, t, func(ctx context.Context) error { return s.send(ctx, t, doing, do) })
	}
	return s.send(ctx, t, doing, do)
}

func (s *session) send(ctx context.Context, t taken, doing string, do func(now time.Time) (func(), error)) error {
	p, w := s.nodes.p, s.nodes.p.w
	if _, bounded := ctx.Deadline(); !bounded {
		w.mu.Lock()
		w.monitor.breach("%s made a call without a deadline: %s on %s", p.id, doing, s.name)
		w.mu.Unlock()
	}
	t.m, t.restore = s.m, s.restore
	lost := false
	err := s.call(ctx, doing, func(now time.Time) error {
		effect, err := do(now)
		if l := p.host.link(s.m.ip); l.lose > 0 {
			l.lose--
			lost = true
			w.faults["machine: answer lost"]++
		}
		if err != nil {
			return err
		}
		w.monitor.accepted(p, t)
		effect()
		if t.action == string(recovery.ActRecover) {
			w.monitor.restored(s.m.c, s.m.etcd)
		}
		w.calls[t.method]++
		w.sayLocked("%s took %s from %s", s.m.name, strings.TrimSpace(t.method+" "+t.note), p.id)
		return nil
	})
	if errors.Is(err, errDead) {
		return err
	}
	if dead := p.point(ctx, s.name, "after "+t.method); dead != nil {
		return dead
	}
	if lost {
		return late(s.name, doing)
	}
	return err
}
