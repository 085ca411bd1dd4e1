package machined

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/siderolabs/talos/pkg/machinery/api/common"
	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// chunkSize is that of Talos's chunker (pkg/chunker/stream).
const chunkSize = 1024

// EtcdSnapshot streams the own member's snapshot. A read that fails on the way ends the stream as if it were complete.
func (a *api) EtcdSnapshot(_ *machine.EtcdSnapshotRequest, srv grpc.ServerStreamingServer[common.Data]) error {
	return a.withLocal("etcd snapshot", func(c *clientv3.Client) error {
		rd, err := c.Snapshot(srv.Context())
		if err != nil {
			return fmt.Errorf("failed reading etcd snapshot: %w", err)
		}
		defer rd.Close() //nolint:errcheck // only read from
		return sendChunks(rd, srv)
	})
}

// sendChunks swallows read errors, as Talos's chunker does.
func sendChunks(r io.Reader, srv grpc.ServerStreamingServer[common.Data]) error {
	buf := make([]byte, chunkSize)
	for {
		n, err := io.ReadFull(r, buf)
		if n > 0 {
			if serr := srv.Send(&common.Data{Bytes: append([]byte(nil), buf[:n]...)}); serr != nil {
				return serr
			}
		}
		if err != nil {
			return nil
		}
	}
}

// EtcdRecover takes whatever is uploaded, on any control plane with a /var/lib; an upload that breaks leaves no file, not
// even one that was complete before.
func (a *api) EtcdRecover(srv grpc.ClientStreamingServer[common.Data, machine.EtcdRecoverResponse]) error {
	m := a.m
	if !m.volumes.exists("/var/lib") {
		return status.Error(codes.FailedPrecondition, "etcd service is not ready for recovery yet")
	}
	if err := m.controlPlaneOnly("etcd recover"); err != nil {
		return err
	}
	path := m.volumes.path(etcdSnapshotPath)
	if m.cfg.Faults.dropped(srv.Context()) {
		path = os.DevNull
	}
	if err := receiveFile(path, srv); err != nil {
		_ = os.Remove(m.volumes.path(etcdSnapshotPath)) // what broke must not be found
		return m.volumes.keepStatus(err)
	}
	return srv.SendAndClose(&machine.EtcdRecoverResponse{Messages: []*machine.EtcdRecover{{}}})
}

func receiveFile(path string, srv grpc.ClientStreamingServer[common.Data, machine.EtcdRecoverResponse]) (err error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o700)
	if err != nil {
		return fmt.Errorf("error creating etcd recovery snapshot: %w", err)
	}
	defer func() {
		if cerr := file.Close(); err == nil && cerr != nil {
			err = fmt.Errorf("error closing snapshot: %w", cerr)
		}
	}()
	for {
		msg, err := srv.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if _, err := file.Write(msg.GetBytes()); err != nil {
			return fmt.Errorf("error writing snapshot: %w", err)
		}
	}
}
