package soak

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"

	"ichor.maesh.dev/kube"
	"ichor.maesh.dev/reconcile"
	"ichor.maesh.dev/recovery"
	"ichor.maesh.dev/talos"
)

// observeLimit is how long the client looks at a machine that gives no answer.
const observeLimit = 15 * time.Second

// agentNodes is one process's way to the machines of a cluster.
type agentNodes struct {
	p *process
	c *cluster
}

func refusal(m *machine, doing, message string) error {
	return &talos.CallError{Machine: m.name, Doing: doing, Code: codes.FailedPrecondition, Message: message}
}

func broken(machine, doing string) error {
	return &talos.CallError{Machine: machine, Doing: doing, Code: codes.Unavailable, Message: "the connection broke"}
}

func late(machine, doing string) error {
	return &talos.CallError{Machine: machine, Doing: doing, Code: codes.DeadlineExceeded, Message: "no answer in time"}
}

// reach waits for what the network does to a call; hangs says that no answer will come.
func (n agentNodes) reach(ctx context.Context, name, endpoint, what string) (m *machine, hangs bool, err error) {
	if err := n.p.point(ctx, name, what); err != nil {
		return nil, false, err
	}
	ip := endpoint
	if host, _, err := net.SplitHostPort(endpoint); err == nil {
		ip = host
	}
	w := n.p.w
	w.mu.Lock()
	m = w.byIP[ip]
	mode := n.p.host.link(ip).mode
	if m != nil && m.lockedOut() {
		mode = "hangs"
	}
	w.mu.Unlock()
	switch mode {
	case "refused":
		w.befell("agent and machine parted")
		return nil, false, errors.New("there is no route to it")
	case "hangs":
		w.befell("machine hangs")
		return m, true, nil
	case "slow":
		w.befell("machine slow")
		time.Sleep(w.span(time.Second, 4*time.Second, "slow", n.p.id, name, what, time.Now().UnixNano()))
	}
	if m == nil {
		return nil, false, errors.New("nobody is there")
	}
	return m, false, nil
}

// Observe implements reconcile.Nodes.
func (n agentNodes) Observe(ctx context.Context, target talos.Target) talos.Observation {
	m, hangs, err := n.reach(ctx, target.Name, target.Endpoint, "observe")
	if hangs {
		select {
		case <-ctx.Done():
		case <-time.After(observeLimit):
		}
		err = errors.New("no answer in time")
	}
	now := hostClock{h: n.p.host}.Now()
	if err != nil {
		return talos.Observation{At: now, Problem: fmt.Sprintf("%s can't be reached: %v", target.Name, err)}
	}
	n.p.w.mu.Lock()
	defer n.p.w.mu.Unlock()
	o := m.observe(time.Now())
	o.At = now
	if m.c != n.c && o.Mode == talos.ModeConfigured {
		return talos.Observation{At: now, Problem: target.Name + ": its certificate is of another authority than this cluster's bundle"}
	}
	return o
}

// observe is what a look at the machine shows.
func (m *machine) observe(now time.Time) talos.Observation {
	if !m.answers() {
		return talos.Observation{Problem: m.name + " can't be reached: it refuses the connection"}
	}
	o := talos.Observation{UUID: m.uuid, Stage: m.stage, Hostname: m.hostname, Addresses: []string{m.ip}, TalosVersion: "v1.13.6",
		Disks: []talos.Disk{{Path: "/dev/sda", Size: 100 << 30}}}
	if m.stage == stageMaintenance {
		o.Mode, o.Fingerprint, o.Ready = talos.ModeMaintenance, m.fingerprint(), true
		return o
	}
	o.Mode, o.BootID, o.MachineType = talos.ModeConfigured, m.bootID(), string(m.role)
	o.Active, o.ActiveDigest = m.active.provider, m.active.digest
	if m.shown {
		o.Persistent, o.PersistentDigest = m.persistent.provider, m.persistent.digest
	}
	o.Discovery, o.EphemeralMounted = m.discovery(), talos.No
	if m.mounted(now) {
		o.EphemeralMounted = talos.Yes
	}
	o.Services = m.services(now)
	if m.node != nil && m.c.served() {
		o.NodeReady, o.Unschedulable = talos.No, talos.No
		if m.node.Ready == kube.Yes {
			o.NodeReady = talos.Yes
		}
		if m.node.Unschedulable {
			o.Unschedulable = talos.Yes
		}
	}
	if m.controlPlane() {
		o.Etcd = m.etcdObservation(now)
	}
	o.Ready = m.stage == stageRunning && (!m.controlPlane() || o.Etcd.ServiceHealthy == talos.Yes)
	if !o.Ready {
		o.Unmet = []string{"services: not all are healthy"}
	}
	return o
}

// discovery is what it knows of the other control planes that were configured.
func (m *machine) discovery() []talos.DiscoveredMember {
	found := []talos.DiscoveredMember{}
	for _, other := range m.c.machines {
		if other.configured() {
			found = append(found, talos.DiscoveredMember{Name: other.hostname, Addresses: []string{other.ip}, MachineType: string(other.role)})
		}
	}
	return found
}

func (m *machine) services(now time.Time) []talos.Service {
	var services []talos.Service
	if m.goingDown() {
		return services
	}
	for _, id := range []string{"apid", "containerd", "cri"} {
		services = append(services, talos.Service{ID: id, State: "Running", Healthy: talos.Yes, Started: m.since})
	}
	if !m.kubeletStarted.IsZero() {
		healthy := talos.No
		if now.Sub(m.kubeletStarted) >= 5*time.Second {
			healthy = talos.Yes
		}
		services = append(services, talos.Service{ID: "kubelet", State: "Running", Healthy: healthy, Started: m.kubeletStarted})
	}
	if m.service != "" {
		services = append(services, talos.Service{ID: "etcd", State: m.service, Message: m.serviceMessage, Changed: m.serviceChanged, Started: m.since})
	}
	return services
}

func (m *machine) etcdObservation(now time.Time) talos.EtcdObservation {
	e := talos.EtcdObservation{Service: m.service, ServiceMessage: m.serviceMessage}
	switch {
	case !m.mounted(now):
		e.MembersProblem = "its etcd doesn't run"
		return e
	case m.etcd == nil:
		e.Data, e.MembersProblem = talos.No, "its etcd doesn't run"
		return e
	}
	e.Data, e.ServiceHealthy = talos.Yes, talos.No
	if m.service != "Running" {
		e.MembersProblem = "its etcd doesn't run"
		return e
	}
	if !m.etcd.has(m.member) {
		e.MembersProblem = "no answer in time"
		return e
	}
	e.MemberID, e.Learner = m.member, m.learner
	if m.learner {
		e.MembersProblem = "rpc not supported for learner"
		return e
	}
	if !m.etcd.quorumFor(m) {
		e.MembersProblem = "no answer in time"
		return e
	}
	e.ServiceHealthy, e.Leader, e.DBSize, e.DBSizeInUse = talos.Yes, m.etcd.leader, 64<<20, 16<<20
	e.Members = slices.Clone(m.etcd.members)
	return e
}

// Dial implements reconcile.Nodes.
func (n agentNodes) Dial(ctx context.Context, target talos.Target) (reconcile.Session, error) {
	return sessionOf(n.dial(ctx, target, false, ""))
}

// DialMaintenance implements reconcile.Nodes.
func (n agentNodes) DialMaintenance(ctx context.Context, target talos.Target, fingerprint string) (reconcile.Session, error) {
	return sessionOf(n.dial(ctx, target, true, fingerprint))
}

func sessionOf(s *session, err error) (reconcile.Session, error) {
	if err != nil {
		return nil, err
	}
	return s, nil
}

func (n agentNodes) dial(ctx context.Context, target talos.Target, maintenance bool, fingerprint string) (*session, error) {
	m, hangs, err := n.reach(ctx, target.Name, target.Endpoint, "dial")
	if hangs {
		<-waitFor(ctx, 4*time.Second)
		err = errors.New("no answer in time")
	}
	if err != nil {
		return nil, fmt.Errorf("%s can't be reached at %s: %w: %w", target.Name, target.Endpoint, err, talos.ErrNotSent)
	}
	n.p.w.mu.Lock()
	defer n.p.w.mu.Unlock()
	switch {
	case !m.answers():
		return nil, fmt.Errorf("%s refuses the connection: %w", target.Name, talos.ErrNotSent)
	case maintenance != (m.stage == stageMaintenance) || maintenance && m.fingerprint() != fingerprint || !maintenance && m.c != n.c:
		return nil, fmt.Errorf("%s shows another certificate: %w", target.Name, talos.ErrNotSent)
	}
	return &session{nodes: n, m: m, name: target.Name, endpoint: target.Endpoint, boot: m.boot, maintenance: maintenance}, nil
}

func waitFor(ctx context.Context, d time.Duration) <-chan struct{} {
	done := make(chan struct{})
	go func() {
		defer close(done)
		select {
		case <-ctx.Done():
		case <-time.After(d):
		}
	}()
	return done
}

// session is a connection to one boot of a machine.
type session struct {
	nodes          agentNodes
	m              *machine
	name, endpoint string
	boot           int
	maintenance    bool
	// restore says that a restore makes its calls.
	restore bool
}

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
	if s.m.boot != s.boot || !s.m.answers() || s.maintenance != (s.m.stage == stageMaintenance) {
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
	err = s.call(ctx, "reading its UUID", func(time.Time) error { uuid = s.m.uuid; return nil })
	return uuid, err
}

// BootID implements reconcile.Session.
func (s *session) BootID(ctx context.Context) (id string, err error) {
	err = s.call(ctx, "reading its boot ID", func(time.Time) error { id = s.m.bootID(); return nil })
	return id, err
}

// EtcdData implements reconcile.Session.
func (s *session) EtcdData(ctx context.Context) (data talos.Fact, err error) {
	err = s.call(ctx, "looking for etcd's data", func(now time.Time) error { data = s.m.etcdObservation(now).Data; return nil })
	return data, err
}

// etcd reads something of the machine's own etcd, which gives no answer without a quorum.
func (s *session) etcd(ctx context.Context, doing string) (o talos.EtcdObservation, err error) {
	err = s.call(ctx, doing, func(now time.Time) error { o = s.m.etcdObservation(now); return nil })
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
		active = s.m.active.digest
		if s.m.shown {
			persistent = s.m.persistent.digest
		}
		return nil
	})
	return active, persistent, err
}

// Services implements reconcile.Session.
func (s *session) Services(ctx context.Context) (services []talos.Service, err error) {
	err = s.call(ctx, "reading its services", func(now time.Time) error { services = s.m.services(now); return nil })
	return services, err
}

// change makes a call that changes something: the monitor sees it where the machine accepts it. An answer may be lost.
// do says why the machine doesn't accept it, or gives what becomes of it then.
func (s *session) change(ctx context.Context, t taken, doing string, do func(now time.Time) (func(), error)) error {
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
