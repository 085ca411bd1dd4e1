package machined

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/resources/block"
)

// Reset checks its request, answers, and resets then. Whether it may run is not part of the answer.
func (a *api) Reset(ctx context.Context, in *machine.ResetRequest) (*machine.ResetResponse, error) {
	m := a.m
	if err := m.checkUserDisks(in); err != nil {
		return nil, err
	}
	o := resetOptions{graceful: in.GetGraceful(), reboot: in.GetReboot()}
	parts := in.GetSystemPartitionsToWipe()
	if len(parts) > 0 && in.GetMode() == machine.ResetRequest_USER_DISKS {
		return nil, errors.New("reset failed: invalid input, wipe mode USER_DISKS doesn't support SystemPartitionsToWipe parameter")
	}
	for _, p := range parts {
		r, ok := get(ctx, m.st, block.NewVolumeStatus(block.NamespaceName, p.GetLabel()))
		if !ok {
			return nil, fmt.Errorf("failed to get volume status with label %q: resource VolumeStatuses.block.talos.dev(%s/%s@undefined) doesn't exist",
				p.GetLabel(), block.NamespaceName, p.GetLabel())
		}
		if r.TypedSpec().Location == "" {
			return nil, fmt.Errorf("failed to reset: volume %q is not located", p.GetLabel())
		}
		if p.GetWipe() {
			o.labels = append(o.labels, p.GetLabel())
		}
	}
	o.wholeDisk = len(parts) == 0 && in.GetMode() != machine.ResetRequest_USER_DISKS
	actor := uuid.NewString()
	if !m.cfg.Faults.dropped(ctx) {
		m.start(ctx, actor, seqReset, false, func() []phase { return m.resetPhases(o) })
	}
	return &machine.ResetResponse{Messages: []*machine.Reset{{ActorId: actor}}}, nil
}

func (m *Machine) checkUserDisks(in *machine.ResetRequest) error {
	if len(in.GetUserDisksToWipe()) == 0 {
		return nil
	}
	if in.GetMode() == machine.ResetRequest_SYSTEM_DISK {
		return errors.New("reset failed: invalid input, wipe mode SYSTEM_DISK doesn't support UserDisksToWipe parameter")
	}
	for _, name := range in.GetUserDisksToWipe() {
		disk, ok := m.disk(name)
		switch {
		case !ok:
			return fmt.Errorf("reset user disk failed: device %s wasn't found", name)
		case disk.Readonly:
			return fmt.Errorf("reset user disk failed: device %s is readonly", name)
		case name == m.cfg.Store.systemDisk():
			return fmt.Errorf("reset user disk failed: device %s is the system disk", name)
		}
	}
	return nil
}

func (m *Machine) disk(devPath string) (Disk, bool) {
	for _, d := range m.cfg.Disks {
		if d.DevPath == devPath {
			return d, true
		}
	}
	return Disk{}, false
}
