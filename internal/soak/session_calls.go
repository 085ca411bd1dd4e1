package soak

import (
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc/codes"

	"ichor.maesh.dev/talos"
)

// ApplyConfig implements reconcile.Session.
func (s *session) ApplyConfig(ctx context.Context, request talos.ApplyRequest) error {
	action := map[talos.ApplyMode]string{talos.ApplyTry: "config-try", talos.ApplyStaged: "config-stage", talos.ApplyNoReboot: "config-confirm"}[request.Mode]
	if s.maintenance {
		action = "first-config"
	}
	return s.change(ctx, taken{method: "ApplyConfiguration", action: action, note: action}, "applying the config", func(now time.Time) (func(), error) {
		return func() {}, s.m.apply(now, request)
	})
}

// Bootstrap implements reconcile.Session.
func (s *session) Bootstrap(ctx context.Context) error {
	return s.change(ctx, taken{method: "Bootstrap", action: "bootstrap"}, "bootstrapping etcd", func(time.Time) (func(), error) {
		switch {
		case !s.m.controlPlane():
			return nil, &talos.CallError{Machine: s.name, Doing: "bootstrapping etcd", Code: codes.Unimplemented, Message: "bootstrap is only available on control plane nodes"}
		case s.m.etcd != nil:
			return nil, &talos.CallError{Machine: s.name, Doing: "bootstrapping etcd", Code: codes.AlreadyExists, Message: "etcd data directory is not empty"}
		case s.m.service != "Preparing":
			return nil, refusal(s.m, "bootstrapping etcd", "bootstrap is not available yet")
		}
		return s.m.bootstrap, nil
	})
}

// RemoveMember implements reconcile.Session.
func (s *session) RemoveMember(ctx context.Context, id uint64) error {
	const doing = "removing an etcd member"
	hangs := false
	err := s.change(ctx, taken{method: "EtcdRemoveMemberByID", action: "remove-member", member: id}, doing, func(now time.Time) (func(), error) {
		e := s.m.etcd
		switch {
		case s.m.etcdObservation(now).Members == nil:
			hangs = true
			return nil, late(s.name, doing)
		case !e.has(id):
			return nil, &talos.CallError{Machine: s.name, Doing: doing, Code: codes.NotFound, Message: "etcdserver: member not found"}
		}
		for _, member := range e.members {
			if member.ID == id && e.blocked(s.m.c, member) {
				return nil, &talos.CallError{Machine: s.name, Doing: doing, Code: codes.Unavailable, Message: "etcdserver: unhealthy cluster"}
			}
		}
		return func() { e.drop(id) }, nil
	})
	if hangs {
		<-ctx.Done()
	}
	return err
}

// down is a call that takes the machine down. One that is busy with another answers OK and drops it.
func (s *session) down(ctx context.Context, t taken, doing, stage string, done func(time.Time)) error {
	return s.change(ctx, t, doing, func(now time.Time) (func(), error) {
		return func() {
			switch {
			case s.m.goingDown():
			case s.m.drops:
				s.m.drops = false
				s.nodes.p.w.faults["machine: call taken and dropped"]++
				s.nodes.p.w.sayLocked("%s drops it", s.m.name)
			default:
				s.m.byUs = t.action
				s.m.goDown(now, stage, done)
			}
		}, nil
	})
}

// Reset implements reconcile.Session.
func (s *session) Reset(ctx context.Context, request talos.ResetRequest) error {
	m := s.m
	if !slices.Contains(request.Partitions, "STATE") {
		return s.down(ctx, taken{method: "Reset", action: "reset-ephemeral", note: "EPHEMERAL"}, "resetting", stageResetting, func(now time.Time) {
			m.forget()
			m.bootUp(now)
		})
	}
	return s.down(ctx, taken{method: "Reset", action: "reset-machine", note: "STATE EPHEMERAL"}, "resetting", stageResetting, func(now time.Time) {
		m.forget()
		m.persistent, m.active = nil, nil
		m.wiped++
		m.bootUp(now)
		if !request.Reboot {
			m.off()
		}
	})
}

// Reboot implements reconcile.Session.
func (s *session) Reboot(ctx context.Context, _ talos.RebootMode) error {
	return s.down(ctx, taken{method: "Reboot", action: "reboot"}, "rebooting", stageRebooting, s.m.bootUp)
}

// Shutdown implements reconcile.Session.
func (s *session) Shutdown(ctx context.Context, _ bool) error {
	return s.down(ctx, taken{method: "Shutdown", action: "shutdown"}, "shutting down", stageStopping, func(time.Time) { s.m.off() })
}

// RestartService implements reconcile.Session.
func (s *session) RestartService(ctx context.Context, id string) error {
	return s.change(ctx, taken{method: "ServiceRestart", action: "restart-service", note: id}, "restarting "+id, func(now time.Time) (func(), error) {
		if id != "kubelet" {
			return nil, &talos.CallError{Machine: s.name, Doing: "restarting " + id, Code: codes.Unknown, Message: fmt.Sprintf("service %q doesn't support restart operation via API", id)}
		}
		return func() { s.m.kubeletStarted, s.m.restarted = now, s.m.restarted+1 }, nil
	})
}

// Defragment implements reconcile.Session.
func (s *session) Defragment(ctx context.Context) error {
	return s.change(ctx, taken{method: "EtcdDefragment", action: "defragment"}, "defragmenting etcd", func(time.Time) (func(), error) {
		if s.m.etcd == nil || s.m.service != "Running" {
			return nil, late(s.name, "defragmenting etcd")
		}
		return func() { s.m.defragmented++ }, nil
	})
}

// ForfeitLeadership implements reconcile.Session.
func (s *session) ForfeitLeadership(ctx context.Context) error {
	return s.change(ctx, taken{method: "EtcdForfeitLeadership", action: "forfeit-leadership"}, "forfeiting etcd's leadership", func(time.Time) (func(), error) {
		e := s.m.etcd
		if e == nil || !e.quorumFor(s.m) {
			return nil, late(s.name, "forfeiting etcd's leadership")
		}
		return func() {
			s.m.forfeited++
			if e.leader == s.m.member {
				e.moveLeader(s.m)
			}
		}, nil
	})
}
