package soak

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc/codes"

	"ichor.maesh.dev/kube"
	"ichor.maesh.dev/recovery"
	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/talos"
)

// hands is a sabotage of the calls that change something.
type hands = func(ctx context.Context, s *session, t taken, send func(context.Context) error) error

// to is the sabotage of the calls of one action; all others are sent as they are.
func to(action string, hand hands) sabotage {
	return sabotage{hand: func(ctx context.Context, s *session, t taken, send func(context.Context) error) error {
		if t.action != action {
			return send(ctx)
		}
		return hand(ctx, s, t, send)
	}}
}

// twice sends a call again whatever the answer was.
func twice(ctx context.Context, _ *session, _ taken, send func(context.Context) error) error {
	return errors.Join(send(ctx), send(ctx))
}

// another is the same connection to another control plane of the cluster, nil where there is none.
func (s *session) another(which func(*machine) bool) *session {
	w := s.nodes.p.w
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, m := range s.m.c.machines {
		if m != s.m && m.controlPlane() && m.answers() && which(m) {
			other := *s
			other.handed = true
			other.m, other.name, other.endpoint, other.boot, other.maintenance = m, m.name, m.ip, m.boot, m.stage == stageMaintenance
			return &other
		}
	}
	return nil
}

func brokenCalls() []faulty {
	return []faulty{
		{name: "a call is sent twice", reports: "was accepted twice for one intent", sabotage: sabotage{hand: twice}},
		{name: "a call has no deadline", reports: "made a call without a deadline",
			sabotage: sabotage{hand: func(ctx context.Context, _ *session, _ taken, send func(context.Context) error) error {
				return send(context.WithoutCancel(ctx))
			}}},
		{name: "a call is sent when its answer was given already", reports: "has an outcome already",
			sabotage: to("config-try", func(ctx context.Context, s *session, _ taken, send func(context.Context) error) error {
				if s.nodes.p.isDead() {
					return errDead
				}
				go func() {
					ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
					defer cancel()
					time.Sleep(20 * time.Second)
					_ = send(ctx)
				}()
				return nil
			}), events: []event{saying((*run).pushLive)}},
		{name: "a call goes to another machine", reports: "without an intent that explains it",
			sabotage: to("reboot", func(ctx context.Context, s *session, _ taken, send func(context.Context) error) error {
				if other := s.another(func(*machine) bool { return true }); other != nil {
					return other.Reboot(ctx, "")
				}
				return send(ctx)
			}), events: []event{saying((*run).signReboot)}},
		{name: "a bootstrap that lost its data is made again", reports: "a second bootstrap",
			sabotage: to("bootstrap", func(ctx context.Context, s *session, _ taken, send func(context.Context) error) error {
				if err := send(ctx); err != nil {
					return err
				}
				s.nodes.p.w.mu.Lock()
				s.m.forget()
				s.m.serve("Preparing", "running pre state")
				s.nodes.p.w.mu.Unlock()
				return send(ctx)
			})},
		{name: "a reboot that was taken is said to be refused", reports: "was accepted before on that boot",
			sabotage: to("reboot", func(ctx context.Context, s *session, _ taken, send func(context.Context) error) error {
				s.nodes.p.w.mu.Lock()
				s.m.drops = true
				s.nodes.p.w.mu.Unlock()
				if err := send(ctx); err != nil {
					return err
				}
				return &talos.CallError{Machine: s.name, Doing: "rebooting", Code: codes.FailedPrecondition, Message: "not now"}
			}), events: []event{saying((*run).signReboot), saying((*run).signControl)}},
		{name: "what is answered with OK is not sent", stays: "a rollout is at", sabotage: to("config-confirm",
			func(context.Context, *session, taken, func(context.Context) error) error { return nil }), events: []event{saying((*run).pushLive)}, from: 101},
	}
}

// rebooted is an operation's end that no machine has seen: the reboot isn't sent, and the machine is looked at as if it had booted since.
func rebooted() sabotage {
	said := map[*machine]bool{}
	s := to("reboot", func(_ context.Context, s *session, _ taken, _ func(context.Context) error) error {
		s.nodes.p.w.mu.Lock()
		defer s.nodes.p.w.mu.Unlock()
		said[s.m] = true
		return nil
	})
	s.look = func(m *machine) *machine {
		if !said[m] {
			return m
		}
		shown := *m
		shown.boot++
		return shown.withNode()
	}
	return s
}

// seeming is a machine as it will be when it runs.
func seeming(m *machine) *machine {
	if m.persistent == nil || m.power && m.stage == stageRunning {
		return m
	}
	shown := *m
	if shown.goingDown() || shown.stage == stageAway && shown.power {
		shown.boot++
	}
	shown.power, shown.stage, shown.since, shown.active = true, stageRunning, time.Now().Add(-time.Minute), m.persistent
	if shown.kubeletStarted.IsZero() {
		shown.kubeletStarted = shown.since
	}
	if shown.etcd != nil {
		shown.service = "Running"
	}
	return shown.withNode()
}

// withNode is the machine with a Node that agrees with it.
func (m machine) withNode() *machine {
	if m.node != nil {
		node := *m.node
		node.BootID, node.Ready, node.ReadyReason, node.Heartbeat = m.bootID(), kube.Yes, "", time.Now()
		m.node = &node
	}
	return &m
}

// rebootWorkers has every worker of a cluster rebooted.
func (r *run) rebootWorkers() bool {
	c := r.aCluster()
	for _, name := range c.approved(schema.RoleWorker) {
		r.sign(c.c, nodeBody(c.machines[name].m, "reboot", ""), false, time.Hour)
	}
	r.push("every worker reboots")
	return true
}

func brokenLooks() []faulty {
	return []faulty{
		{name: "an operation is completed and its call was never sent", reports: "and took 0 calls for it", sabotage: rebooted(), events: []event{saying((*run).signReboot)}},
		{name: "a control plane that is off is taken for one that runs", reports: "members, and", sabotage: sabotage{look: func(m *machine) *machine {
			if m.power || !m.controlPlane() {
				return m
			}
			return seeming(m)
		}}, events: []event{saying((*run).powerOff), saying((*run).signReboot)}, from: 105},
		{name: "a worker that is down is taken for one that runs", reports: "was accepted while", sabotage: sabotage{look: func(m *machine) *machine {
			if m.controlPlane() {
				return m
			}
			return seeming(m)
		}}, events: []event{saying((*run).rebootWorkers)}, from: 105},
		{name: "a machine that boots is taken for one that runs", reports: "is Ready, and it is", sabotage: sabotage{look: seeming}, events: []event{saying((*run).powerOff), saying((*run).pushReboot)}},
	}
}

func brokenRestores() []faulty {
	signed := []event{saying((*run).signRestore), saying((*run).idle)}
	upload := func(ctx context.Context, s *session, _ taken, send func(context.Context) error) error {
		if err := send(ctx); err != nil {
			return err
		}
		s.nodes.p.w.mu.Lock()
		defer s.nodes.p.w.mu.Unlock()
		for _, snapshot := range s.nodes.p.w.keys.snapshots {
			if counts, err := countSnapshot(snapshot); err == nil && counts.Keys != keysOf(s.m.upload) {
				s.m.upload = snapshot
			}
		}
		return nil
	}
	return []faulty{
		{name: "a call of a restore goes to another machine", reports: "without an intent in the marker that explains it", options: Options{Restores: true}, events: signed,
			sabotage: to(string(recovery.ActLeave), func(ctx context.Context, s *session, _ taken, send func(context.Context) error) error {
				if other := s.another(func(m *machine) bool { return m.etcd == s.m.etcd }); other != nil {
					return other.LeaveEtcd(ctx)
				}
				return send(ctx)
			})},
		{name: "another snapshot is uploaded than the one that was signed", reports: "recovers from a snapshot of", options: Options{Restores: true}, events: signed,
			sabotage: to(string(recovery.ActUpload), upload)},
		{name: "a machine is wiped twice", reports: "that boot was wiped a moment ago", options: Options{Restores: true}, events: signed,
			sabotage: to("reset-ephemeral", func(ctx context.Context, s *session, t taken, send func(context.Context) error) error {
				return twice(ctx, s, t, send)
			})},
		{name: "two control planes recover", reports: "recovers beside an etcd that answers", options: Options{Restores: true}, events: signed, sabotage: to(string(recovery.ActRecover), recoverTwo)},
		{name: "two control planes recover, and both live", reports: "2 etcds of prod answer", options: Options{Restores: true}, events: signed, sabotage: to(string(recovery.ActRecover), recoverTwo)},
		{name: "one restore recovers a second time", reports: "is a second recovery of one restore", options: Options{Restores: true}, events: signed, sabotage: to(string(recovery.ActRecover), recoverTwo)},
	}
}

func keysOf(snapshot []byte) int64 {
	counts, _ := countSnapshot(snapshot)
	return counts.Keys
}

// recoverTwo has another control plane recover besides.
func recoverTwo(ctx context.Context, s *session, _ taken, send func(context.Context) error) error {
	if err := send(ctx); err != nil {
		return err
	}
	other := s.another(func(m *machine) bool { return m.configured() })
	if other == nil {
		return nil
	}
	w := s.nodes.p.w
	w.mu.Lock()
	other.m.forget()
	other.m.serve("Preparing", "running pre state")
	other.m.upload = w.keys.snapshots[0]
	w.mu.Unlock()
	return errors.Join(other.RecoverEtcd(ctx))
}
