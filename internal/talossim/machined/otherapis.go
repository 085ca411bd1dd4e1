package machined

import (
	"context"
	"fmt"
	"path"
	"time"

	clusterapi "github.com/siderolabs/talos/pkg/machinery/api/cluster"
	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	storageapi "github.com/siderolabs/talos/pkg/machinery/api/storage"
	timeapi "github.com/siderolabs/talos/pkg/machinery/api/time"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"ichor.maesh.dev/internal/talossim/apid"
)

type storageAPI struct {
	storageapi.UnimplementedStorageServiceServer
	m *Machine
}

// Disks are the machine's disks, the one with Talos marked.
func (s *storageAPI) Disks(context.Context, *emptypb.Empty) (*storageapi.DisksResponse, error) {
	disks := &storageapi.Disks{}
	if !s.m.cfg.Container {
		for _, d := range s.m.cfg.Disks {
			disks.Disks = append(disks.Disks, &storageapi.Disk{
				DeviceName: d.DevPath, Size: d.Size, Model: d.Model, Serial: d.Serial, Readonly: d.Readonly,
				SystemDisk: d.DevPath == s.m.cfg.Store.systemDisk(), BusPath: "/simulated/" + path.Base(d.DevPath),
			})
		}
	}
	return &storageapi.DisksResponse{Messages: []*storageapi.Disks{disks}}, nil
}

// BlockDeviceWipe refuses what is in use. The role table lets readers through for maintenance mode only.
func (s *storageAPI) BlockDeviceWipe(ctx context.Context, in *storageapi.BlockDeviceWipeRequest) (*storageapi.BlockDeviceWipeResponse, error) {
	if s.m.conf.configured() && !apid.IsAdmin(ctx) {
		return nil, apid.NotAuthorized()
	}
	for _, d := range in.GetDevices() {
		if _, ok := storageapi.BlockDeviceWipeDescriptor_Method_name[int32(d.GetMethod())]; !ok {
			return nil, status.Errorf(codes.InvalidArgument, "unsupported wipe method %s", d.GetMethod())
		}
		disk, ok := s.m.disk("/dev/" + d.GetDevice())
		switch {
		case !ok:
			return nil, status.Errorf(codes.NotFound, "blockdevice %q not found", d.GetDevice())
		case disk.Readonly:
			return nil, status.Errorf(codes.FailedPrecondition, "blockdevice %q is read-only", d.GetDevice())
		case disk.DevPath == s.m.cfg.Store.systemDisk():
			return nil, status.Errorf(codes.FailedPrecondition, "blockdevice %q is in use by disk %q", d.GetDevice(), path.Base(disk.DevPath))
		}
	}
	if !s.m.cfg.Faults.dropped(ctx) {
		for _, d := range in.GetDevices() {
			if err := s.m.wipeDisk("/dev/" + d.GetDevice()); err != nil {
				return nil, err
			}
		}
	}
	return &storageapi.BlockDeviceWipeResponse{Messages: []*storageapi.BlockDeviceWipe{{}}}, nil
}

type timeAPI struct {
	timeapi.UnimplementedTimeServiceServer
	m *Machine
}

func (t *timeAPI) answer(server string) *timeapi.TimeResponse {
	now := timestamppb.New(time.Now())
	return &timeapi.TimeResponse{Messages: []*timeapi.Time{{Server: server, Localtime: now, Remotetime: now}}}
}

// Time asks the machine's time server, which here agrees with the machine.
func (t *timeAPI) Time(context.Context, *emptypb.Empty) (*timeapi.TimeResponse, error) {
	return t.answer("time.cloudflare.com"), nil
}

func (t *timeAPI) TimeCheck(_ context.Context, in *timeapi.TimeRequest) (*timeapi.TimeResponse, error) {
	return t.answer(in.GetServer()), nil
}

// HealthCheck tells what it waits for and ends in an error when that doesn't come within the caller's time.
func (a *api) HealthCheck(in *clusterapi.HealthCheckRequest, srv grpc.ServerStreamingServer[clusterapi.HealthCheckProgress]) error {
	if err := a.m.controlPlaneOnly("cluster health check"); err != nil {
		return err
	}
	ctx := srv.Context()
	if d := in.GetWaitTimeout().AsDuration(); d > 0 {
		var cancel context.CancelFunc
		ctx, cancel = a.m.pace.after(ctx, d)
		defer cancel()
	}
	for _, check := range a.m.healthChecks() {
		shown := ""
		ok := a.m.pace.Poll(ctx, 5*time.Second, func() bool {
			text := "waiting for " + check.name + ": OK"
			problem := check.problem()
			if problem != "" {
				text = "waiting for " + check.name + ": " + problem
			}
			if text != shown {
				shown = text
				_ = srv.Send(&clusterapi.HealthCheckProgress{Message: text}) // a broken stream ends the poll by its context
			}
			return problem == ""
		})
		if !ok {
			return fmt.Errorf("waiting for %s: %w", check.name, context.Cause(ctx))
		}
	}
	return nil
}

type imageAPI struct {
	machine.UnimplementedImageServiceServer
	m *Machine
}
