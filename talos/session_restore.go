package talos

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/server/v3/etcdserver/api/membership"

	"github.com/siderolabs/talos/pkg/machinery/api/common"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
)

const (
	// uploadPiece is how many bytes of a snapshot go into one message.
	uploadPiece = 64 << 10
	// leaveLimit is how long a member may take to leave: Talos looks for its own member for 3 minutes, and asks for its removal for 5.
	leaveLimit = 9 * time.Minute
)

// UploadSnapshot streams a snapshot, the database and its SHA-256 trailer, to a control plane without etcd data, where [Session.RecoverEtcd]
// finds it. Talos takes anything, also by a machine that is about to forget it: only what RecoverEtcd leads to says whether it was good.
// What can't be read to its end breaks the call off, so that a part of it is never taken for the whole. Memory doesn't grow with the size.
func (s *Session) UploadSnapshot(ctx context.Context, snapshot io.Reader) error {
	const doing = "uploading a snapshot of etcd"
	if err := s.configuredOnly(); err != nil {
		return s.failed(doing, err)
	}
	// Whatever goes wrong from here on must end the stream without an end of its own.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := s.machine.EtcdRecover(ctx)
	if err != nil {
		return s.failed(doing, err)
	}
	piece := make([]byte, uploadPiece)
	for ended := false; !ended; {
		n, err := io.ReadFull(snapshot, piece)
		ended = errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
		if err != nil && !ended {
			return fmt.Errorf("%s: %s: reading it here: %w", s.target.Name, doing, err)
		}
		if n == 0 {
			break
		}
		if err := stream.Send(&common.Data{Bytes: piece[:n]}); err != nil {
			if errors.Is(err, io.EOF) { // why it ended is in the answer
				break
			}
			return s.failed(doing, err)
		}
	}
	reply, err := stream.CloseAndRecv()
	_, err = single(reply.GetMessages(), err)
	return s.failed(doing, err)
}

// RecoverEtcd starts an etcd of one member from the snapshot that was uploaded, its hash checked. OK says that the machine begins, not
// that it succeeds: what becomes of it stands in the state and message of its etcd service. It is the caller's to know that this is the
// one machine of the cluster that recovers.
func (s *Session) RecoverEtcd(ctx context.Context) error {
	const doing = "recovering etcd from the uploaded snapshot"
	if err := s.configuredOnly(); err != nil {
		return s.failed(doing, err)
	}
	reply, err := s.machine.Bootstrap(ctx, &machineapi.BootstrapRequest{RecoverEtcd: true})
	_, err = single(reply.GetMessages(), err)
	return s.failed(doing, err)
}

// LeaveEtcd takes the machine's own member out of etcd and stops it; its data is gone then. It takes 9 minutes at most. An error doesn't
// say that it is still a member: another member's list does.
func (s *Session) LeaveEtcd(ctx context.Context) error {
	const doing = "leaving etcd"
	if err := s.configuredOnly(); err != nil {
		return s.failed(doing, err)
	}
	ctx, cancel := context.WithTimeout(ctx, leaveLimit)
	defer cancel()
	reply, err := s.machine.EtcdLeaveCluster(ctx, &machineapi.EtcdLeaveClusterRequest{})
	_, err = single(reply.GetMessages(), err)
	return s.failed(doing, err)
}

// RestoredMemberID is the ID of the member that a restore of Talos makes on the machine with these peer URLs: a hash of them and of the
// empty token. One that was bootstrapped or that joined has another, so this ID tells the restored etcd from every other. It is the same
// at each restore on the same machine.
func RestoredMemberID(peerURLs []string) (uint64, error) {
	urls, err := types.NewURLs(peerURLs)
	if err != nil {
		return 0, fmt.Errorf("the peer URLs %q: %w", peerURLs, err)
	}
	return uint64(membership.NewMember("", urls, "", nil).ID), nil
}

// Restored says whether a member is the one that a restore made on its machine.
func (m EtcdMember) Restored() bool {
	id, err := RestoredMemberID(m.PeerURLs)
	return err == nil && id == m.ID && !m.Learner
}
