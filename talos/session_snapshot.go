package talos

import (
	"context"
	"errors"
	"io"

	"google.golang.org/grpc"

	"github.com/siderolabs/talos/pkg/machinery/api/common"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
)

// EtcdSnapshot streams a snapshot of the local member's data: the database and its SHA-256 trailer. It needs [RoleEtcdBackup].
//
// A clean end of the stream proves nothing, since Talos ends it so when its own reading broke off: the trailer tells. A stream
// that breaks, or is ended by ctx, gives that error, never the end. Closing it doesn't close the session.
func (s *Session) EtcdSnapshot(ctx context.Context) (io.ReadCloser, error) {
	ctx, cancel := context.WithCancel(ctx)
	stream, err := s.machine.EtcdSnapshot(ctx, &machineapi.EtcdSnapshotRequest{})
	if err != nil {
		cancel()
		return nil, s.failed("asking for a snapshot of etcd", err)
	}
	return &snapshotStream{session: s, stream: stream, cancel: cancel}, nil
}

type snapshotStream struct {
	session *Session
	stream  grpc.ServerStreamingClient[common.Data]
	cancel  context.CancelFunc
	// message is used for every message of the stream: Talos sends millions, of 1 KiB each.
	message common.Data
	left    []byte
	err     error
}

func (s *snapshotStream) Read(p []byte) (int, error) {
	for len(s.left) == 0 {
		if s.err != nil {
			return 0, s.err
		}
		err := s.stream.RecvMsg(&s.message)
		if err == nil {
			err = inMessage(s.message.GetMetadata())
		}
		switch {
		case errors.Is(err, io.EOF):
			s.err = io.EOF
		case err != nil:
			s.err = s.session.failed("streaming a snapshot of etcd", err)
		default:
			s.left = s.message.GetBytes()
		}
	}
	n := copy(p, s.left)
	s.left = s.left[n:]
	return n, nil
}

func (s *snapshotStream) Close() error {
	s.cancel()
	return nil
}
