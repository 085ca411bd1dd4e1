package machined

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Bootstrap looks at this machine only: a second empty control plane becomes a second cluster.
func (a *api) Bootstrap(ctx context.Context, in *machine.BootstrapRequest) (*machine.BootstrapResponse, error) {
	m := a.m
	if !m.within(ctx, time.Second, func() bool { return m.services.isUp("cri") }) {
		return nil, status.Error(codes.FailedPrecondition, "bootstrap is not available yet")
	}
	if err := m.controlPlaneOnly("bootstrap"); err != nil {
		return nil, err
	}
	if !m.within(ctx, 5*time.Second, m.synced) {
		return nil, status.Error(codes.FailedPrecondition, "time is not in sync yet")
	}
	if m.volumes.notEmpty(etcdDataPath) {
		return nil, status.Error(codes.AlreadyExists, "etcd data directory is not empty")
	}
	if m.cfg.Faults.dropped(ctx) {
		return &machine.BootstrapResponse{Messages: []*machine.Bootstrap{{}}}, nil
	}
	if err := m.bootstrapEtcd(ctx, in); err != nil {
		return nil, err
	}
	return &machine.BootstrapResponse{Messages: []*machine.Bootstrap{{}}}, nil
}

// within polls a condition for a time at the machine's pace.
func (m *Machine) within(ctx context.Context, d time.Duration, f func() bool) bool {
	ctx, cancel := m.pace.after(ctx, m.pace.Of(d))
	defer cancel()
	return m.pace.Poll(ctx, 100*time.Millisecond, f)
}

func (m *Machine) bootstrapEtcd(ctx context.Context, in *machine.BootstrapRequest) error {
	if err := m.services.stop(ctx, "etcd"); err != nil {
		return fmt.Errorf("failed to stop etcd: %w", err)
	}
	if svc := m.services.get("etcd"); svc != nil {
		svc.update(stateFinished, "Bootstrap requested")
	}
	if m.volumes.notEmpty(etcdDataPath) {
		return errors.New("etcd data directory is not empty")
	}
	// After LeaveCluster the directory itself is gone; the service's volume brings it back.
	if err := m.volumes.mkdir(etcdDataPath); err != nil {
		return err
	}
	m.etcd.meet() // from here on there is an etcd to wait for, however soon a boot would be given up
	e := &etcdService{m: m, bootstrap: true, recover: in.GetRecoverEtcd(), skipSum: in.GetRecoverSkipHashCheck()}
	m.services.replace(m.etcdDef(e))
	return m.services.start("etcd")
}
