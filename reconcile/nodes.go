package reconcile

import (
	"context"
	"errors"
	"io"
	"time"

	"ichor.maesh.dev/backup"
	"ichor.maesh.dev/recovery"
	"ichor.maesh.dev/talos"
)

// TalosNodes gives the machines of one cluster by the Talos API.
func TalosNodes(client *talos.Client) Nodes {
	return talosNodes{talos.MachinesOf(client, func(s *talos.Session) Session { return s }), client}
}

type talosNodes struct {
	talos.Machines[Session]
	client *talos.Client
}

// snapshotLimit bounds a whole stream; one that brings nothing is given up long before.
const snapshotLimit = 6 * time.Hour

func (n talosNodes) Member(target talos.Target) backup.Node { return etcdMember{n.client, target} }

func (n talosNodes) Recovery() recovery.Nodes { return recovery.TalosNodes(n.client) }

// etcdMember asks with the least role that may: Talos lets a reader see the status, and not take a snapshot.
type etcdMember struct {
	client *talos.Client
	target talos.Target
}

func (m etcdMember) Name() string { return m.target.Name }

func (m etcdMember) EtcdStatus(ctx context.Context) (backup.EtcdStatus, error) {
	session, err := m.client.Dial(ctx, m.target, talos.RoleReader)
	if err != nil {
		return backup.EtcdStatus{}, err
	}
	defer session.Close()
	seen, err := session.EtcdStatus(ctx)
	if err != nil {
		return backup.EtcdStatus{}, err
	}
	return backup.EtcdStatus{MemberID: seen.MemberID, Leader: seen.Leader, Learner: seen.Learner, Errors: seen.Errors, DBSize: seen.DBSize,
		RaftIndex: seen.RaftIndex, RaftApplied: seen.RaftApplied}, nil
}

func (m etcdMember) EtcdSnapshot(ctx context.Context) (io.ReadCloser, error) {
	session, err := m.client.Dial(ctx, m.target, talos.RoleEtcdBackup)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, snapshotLimit)
	stream, err := session.EtcdSnapshot(ctx)
	if err != nil {
		cancel()
		return nil, errors.Join(err, session.Close())
	}
	return &memberStream{ReadCloser: stream, cancel: cancel, session: session}, nil
}

type memberStream struct {
	io.ReadCloser
	cancel  context.CancelFunc
	session *talos.Session
}

func (s *memberStream) Close() error {
	err := s.ReadCloser.Close()
	s.cancel()
	return errors.Join(err, s.session.Close())
}

func (n talosNodes) Close() error { return n.client.Close() }
