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
func TalosNodes(client *talos.Client) Nodes { return talosNodes{client} }

type talosNodes struct{ client *talos.Client }

func (n talosNodes) Observe(ctx context.Context, target talos.Target) talos.Observation {
	return n.client.Observe(ctx, target)
}

// Dial uses the role os:admin: the gate reads the boot ID, which Talos shows to no lesser role.
func (n talosNodes) Dial(ctx context.Context, target talos.Target) (Session, error) {
	return opened(n.client.Dial(ctx, target, talos.RoleAdmin))
}

func (n talosNodes) DialMaintenance(ctx context.Context, target talos.Target, fingerprint string) (Session, error) {
	return opened(n.client.DialMaintenance(ctx, target, fingerprint))
}

// opened gives a session that came to be; none is no session at all, and not one that is nil.
func opened(session *talos.Session, err error) (Session, error) {
	if err != nil {
		return nil, err
	}
	return session, nil
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
