package machined

import (
	"context"

	cosiv1alpha1 "github.com/cosi-project/runtime/api/v1alpha1"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/cosi-project/runtime/pkg/state/protobuf/server"
	"github.com/google/uuid"
	clusterapi "github.com/siderolabs/talos/pkg/machinery/api/cluster"
	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	storageapi "github.com/siderolabs/talos/pkg/machinery/api/storage"
	timeapi "github.com/siderolabs/talos/pkg/machinery/api/time"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
)

// api is the machine's gRPC services. What Talos has and no simulated machine needs answers Unimplemented.
type api struct {
	machine.UnimplementedMachineServiceServer
	clusterapi.UnimplementedClusterServiceServer

	m *Machine
}

func (m *Machine) register(s *grpc.Server) {
	a := &api{m: m}
	machine.RegisterMachineServiceServer(s, a)
	clusterapi.RegisterClusterServiceServer(s, a)
	machine.RegisterImageServiceServer(s, &imageAPI{m: m})
	machine.RegisterLifecycleServiceServer(s, &lifecycleAPI{m: m})
	storageapi.RegisterStorageServiceServer(s, &storageAPI{m: m})
	timeapi.RegisterTimeServiceServer(s, &timeAPI{m: m})
	filtered := state.WrapCore(state.Filter(m.st, accessPolicy(m.st)))
	cosiv1alpha1.RegisterStateServer(s, server.NewState(filtered))
}

// controlPlaneOnly refuses a call on anything but a control plane.
func (m *Machine) controlPlaneOnly(what string) error {
	if !m.conf.machineType().IsControlPlane() {
		return status.Errorf(codes.Unimplemented, "%s is only available on control plane nodes", what)
	}
	return nil
}

// notInContainer refuses what the container platform can't do.
func (m *Machine) notInContainer() error {
	if m.cfg.Container {
		return status.Error(codes.FailedPrecondition, "method is not supported in container mode")
	}
	return nil
}

// Reboot answers first and acts then, like every call that starts a sequence.
func (a *api) Reboot(ctx context.Context, in *machine.RebootRequest) (*machine.RebootResponse, error) {
	if err := a.m.notInContainer(); err != nil {
		return nil, err
	}
	actor := uuid.NewString()
	if !a.m.cfg.Faults.dropped(ctx) {
		a.m.start(ctx, actor, seqReboot, false, func() []phase { return a.m.rebootPhases(in.GetMode()) })
	}
	return &machine.RebootResponse{Messages: []*machine.Reboot{{ActorId: actor}}}, nil
}

// Shutdown takes over whatever runs.
func (a *api) Shutdown(ctx context.Context, in *machine.ShutdownRequest) (*machine.ShutdownResponse, error) {
	if err := a.m.notInContainer(); err != nil {
		return nil, err
	}
	actor := uuid.NewString()
	if !a.m.cfg.Faults.dropped(ctx) {
		a.m.start(ctx, actor, seqShutdown, true, func() []phase { return a.m.shutdownPhases(in.GetForce()) })
	}
	return &machine.ShutdownResponse{Messages: []*machine.Shutdown{{ActorId: actor}}}, nil
}

// Rollback flips the boot entry, which here has no other system behind it, and reboots. Its reply names no actor.
func (a *api) Rollback(ctx context.Context, _ *machine.RollbackRequest) (*machine.RollbackResponse, error) {
	if err := a.m.notInContainer(); err != nil {
		return nil, err
	}
	if a.m.cfg.Store.systemDisk() == "" {
		return nil, status.Error(codes.FailedPrecondition, "system disk not found")
	}
	if !a.m.cfg.Faults.dropped(ctx) {
		a.m.start(ctx, "", seqReboot, true, func() []phase { return a.m.rebootPhases(machine.RebootRequest_POWERCYCLE) })
	}
	return &machine.RollbackResponse{Messages: []*machine.Rollback{{}}}, nil
}

// ServiceList shows the registered services, by id.
func (a *api) ServiceList(context.Context, *emptypb.Empty) (*machine.ServiceListResponse, error) {
	list := &machine.ServiceList{}
	for _, id := range a.m.services.ids() {
		list.Services = append(list.Services, a.m.services.get(id).info())
	}
	return &machine.ServiceListResponse{Messages: []*machine.ServiceList{list}}, nil
}

func (a *api) ServiceStart(ctx context.Context, in *machine.ServiceStartRequest) (*machine.ServiceStartResponse, error) {
	if err := a.m.services.viaAPI(ctx, in.GetId(), "start"); err != nil {
		return nil, err
	}
	return &machine.ServiceStartResponse{Messages: []*machine.ServiceStart{{Resp: `Service "` + in.GetId() + `" started`}}}, nil
}

func (a *api) ServiceStop(ctx context.Context, in *machine.ServiceStopRequest) (*machine.ServiceStopResponse, error) {
	if err := a.m.services.viaAPI(ctx, in.GetId(), "stop"); err != nil {
		return nil, err
	}
	return &machine.ServiceStopResponse{Messages: []*machine.ServiceStop{{Resp: `Service "` + in.GetId() + `" stopped`}}}, nil
}

func (a *api) ServiceRestart(ctx context.Context, in *machine.ServiceRestartRequest) (*machine.ServiceRestartResponse, error) {
	if err := a.m.services.viaAPI(ctx, in.GetId(), "restart"); err != nil {
		return nil, err
	}
	return &machine.ServiceRestartResponse{Messages: []*machine.ServiceRestart{{Resp: `Service "` + in.GetId() + `" restarted`}}}, nil
}
