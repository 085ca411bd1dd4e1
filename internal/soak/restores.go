package soak

import (
	"bytes"
	"context"
	"errors"
	"io"
	"time"

	"google.golang.org/grpc/codes"

	"ichor.maesh.dev/backup"
	"ichor.maesh.dev/recovery"
	"ichor.maesh.dev/talos"
)

// Member implements reconcile.Nodes.
func (n agentNodes) Member(target talos.Target) backup.Node {
	return agentMember{nodes: n, target: target}
}

// Recovery implements reconcile.Nodes.
func (n agentNodes) Recovery() recovery.Nodes { return recoveryNodes{n} }

// Close implements reconcile.Nodes.
func (n agentNodes) Close() error { return nil }

// agentMember is one process's way to a control plane's etcd.
type agentMember struct {
	nodes  agentNodes
	target talos.Target
}

// Name implements backup.Node.
func (m agentMember) Name() string { return m.target.Name }

// EtcdStatus implements backup.Node.
func (m agentMember) EtcdStatus(ctx context.Context) (backup.EtcdStatus, error) {
	s, err := m.nodes.dial(ctx, m.target, false, "")
	if err != nil {
		return backup.EtcdStatus{}, err
	}
	o, err := s.etcd(ctx, "reading etcd's status")
	return backup.EtcdStatus{MemberID: o.MemberID, Leader: o.Leader, Learner: o.Learner, DBSize: o.DBSize}, err
}

// EtcdSnapshot implements backup.Node.
func (m agentMember) EtcdSnapshot(ctx context.Context) (io.ReadCloser, error) {
	s, err := m.nodes.dial(ctx, m.target, false, "")
	if err != nil {
		return nil, err
	}
	return s.EtcdSnapshot(ctx)
}

// recoveryNodes are the machines as a restore of a process reaches them.
type recoveryNodes struct{ agentNodes }

// Dial implements recovery.Nodes.
func (n recoveryNodes) Dial(ctx context.Context, target talos.Target) (recovery.Session, error) {
	return restoring(n.dial(ctx, target, false, ""))
}

// DialMaintenance implements recovery.Nodes.
func (n recoveryNodes) DialMaintenance(ctx context.Context, target talos.Target, fingerprint string) (recovery.Session, error) {
	return restoring(n.dial(ctx, target, true, fingerprint))
}

func restoring(s *session, err error) (recovery.Session, error) {
	if err != nil {
		return nil, err
	}
	s.restore = true
	return s, nil
}

// EtcdSnapshot implements recovery.Session.
func (s *session) EtcdSnapshot(ctx context.Context) (io.ReadCloser, error) {
	var data []byte
	err := s.call(ctx, "streaming a snapshot", func(now time.Time) error {
		if s.m.etcd == nil || s.m.service != "Running" || !s.m.etcd.has(s.m.member) {
			return &talos.CallError{Machine: s.name, Doing: "streaming a snapshot", Code: codes.Unavailable, Message: "etcd does not answer"}
		}
		data = s.m.etcd.snapshot(s.nodes.p.w.keys, now)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return io.NopCloser(bytes.NewReader(data)), nil
}

// APIServer implements recovery.Session.
func (s *session) APIServer(ctx context.Context) (server talos.Fact, err error) {
	err = s.call(ctx, "looking for its API server", func(now time.Time) error {
		if server = talos.No; s.m.etcd != nil && s.m.stage == stageRunning || now.Before(s.m.servesUntil) {
			server = talos.Yes
		}
		return nil
	})
	return server, err
}

// UploadSnapshot implements recovery.Session.
func (s *session) UploadSnapshot(ctx context.Context, snapshot io.Reader) error {
	data, err := io.ReadAll(snapshot)
	if err != nil {
		return err
	}
	return s.change(ctx, taken{method: "EtcdRecover", action: string(recovery.ActUpload), upload: data}, "uploading the snapshot", func(now time.Time) (func(), error) {
		if !s.m.mounted(now) {
			return nil, refusal(s.m, "uploading the snapshot", "EPHEMERAL is not mounted")
		}
		return func() { s.m.upload = data }, nil
	})
}

// RecoverEtcd implements recovery.Session.
func (s *session) RecoverEtcd(ctx context.Context) error {
	const doing = "recovering etcd"
	return s.change(ctx, taken{method: "Bootstrap", action: string(recovery.ActRecover), upload: s.uploaded()}, doing, func(now time.Time) (func(), error) {
		switch {
		case s.m.etcd != nil:
			return nil, &talos.CallError{Machine: s.name, Doing: doing, Code: codes.AlreadyExists, Message: "etcd data directory is not empty"}
		case s.m.service != "Preparing" && s.m.service != "Finished" && s.m.service != "Failed":
			return nil, refusal(s.m, doing, "bootstrap is not available yet")
		}
		return s.m.recover, nil
	})
}

func (s *session) uploaded() []byte {
	s.nodes.p.w.mu.Lock()
	defer s.nodes.p.w.mu.Unlock()
	return s.m.upload
}

// recover starts an etcd from what was uploaded, with the ID that a restore gives.
func (m *machine) recover() {
	if m.upload == nil {
		m.serve("Failed", "stat /var/lib/etcd.snapshot: no such file or directory")
		return
	}
	id, err := talos.RestoredMemberID([]string{m.peer()})
	counts, bad := countSnapshot(m.upload)
	if err = errors.Join(err, bad); err != nil {
		m.serve("Failed", err.Error())
		return
	}
	m.begin(&etcd{members: []talos.EtcdMember{{ID: id, Name: m.hostname, PeerURLs: []string{m.peer()}}}, leader: id, began: time.Now(), data: m.upload, raised: counts.Revision})
	m.upload = nil
}

// LeaveEtcd implements recovery.Session.
func (s *session) LeaveEtcd(ctx context.Context) error {
	const doing = "leaving etcd"
	hangs := false
	failed := func(code codes.Code, message string) error {
		return &talos.CallError{Machine: s.name, Doing: doing, Code: code, Message: message}
	}
	err := s.change(ctx, taken{method: "EtcdLeaveCluster", action: string(recovery.ActLeave)}, doing, func(now time.Time) (func(), error) {
		e := s.m.etcd
		switch {
		case e == nil:
			return nil, failed(codes.Unknown, "etcd does not run")
		case s.m.etcdObservation(now).Members == nil:
			hangs = true
			return nil, late(s.name, doing)
		case len(e.members) == 1:
			return nil, failed(codes.Unknown, "etcdserver: re-configuration failed due to not enough started members")
		}
		for _, member := range e.members {
			if member.ID == s.m.member && e.blocked(s.m.c, member) {
				return nil, failed(codes.Unknown, "etcdserver: unhealthy cluster")
			}
		}
		return s.m.leave, nil
	})
	if hangs {
		<-ctx.Done()
	}
	return err
}

// leave takes the machine out of its etcd: it runs none until it reboots, and its API server ends a while later.
func (m *machine) leave() {
	m.etcd.drop(m.member)
	m.forget()
	m.serve("Finished", "Service finished successfully")
	m.servesUntil = time.Now().Add(m.lasts("API server ends", 20*time.Second, 50*time.Second))
}
