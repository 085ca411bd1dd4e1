package machined

import (
	"context"
	"fmt"

	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Simulated machines reach no registry, so that both ways to upgrade get as far as their image and fail there as Talos does
// when an image can't be had.

// Upgrade is the older way (Talos: Upgrade in internal/app/machined/internal/server/v1alpha1/v1alpha1_server.go).
func (a *api) Upgrade(_ context.Context, in *machine.UpgradeRequest) (*machine.UpgradeResponse, error) {
	if err := a.m.notInContainer(); err != nil {
		return nil, err
	}
	if !a.m.cfg.Store.Installed() {
		return nil, status.Error(codes.FailedPrecondition, "Talos is not installed")
	}
	image := in.GetImage() //nolint:staticcheck // the wire of 1.13
	return nil, fmt.Errorf("error validating installer image %q: failed to pull image %q: no registry can be reached", image, image)
}

type lifecycleAPI struct {
	machine.UnimplementedLifecycleServiceServer
	m *Machine
}

// Upgrade is the newer way (Talos: internal/app/lifecycle/lifecycle.go): the image must have been pulled before.
func (l *lifecycleAPI) Upgrade(in *machine.LifecycleServiceUpgradeRequest, _ grpc.ServerStreamingServer[machine.LifecycleServiceUpgradeResponse]) error {
	if err := l.m.notInContainer(); err != nil {
		return err
	}
	if !l.m.cfg.Store.Installed() {
		return status.Error(codes.FailedPrecondition, "machine is not installed")
	}
	image := in.GetSource().GetImageName()
	if image == "" {
		return status.Error(codes.InvalidArgument, "installer image name is required")
	}
	return status.Errorf(codes.Internal, "upgrade failed: failed to get image %q: not found", image)
}
