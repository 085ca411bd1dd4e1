package talos

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/emptypb"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
)

// ApplyRequest is a config to be applied.
type ApplyRequest struct {
	Config []byte
	Mode   ApplyMode
	// TryFor is how long the machine waits for the confirmation in ApplyTry; it takes its own default (1 minute) when zero.
	TryFor time.Duration
}

// ApplyConfig sends a config. A machine in maintenance mode takes ApplyNoReboot only.
func (s *Session) ApplyConfig(ctx context.Context, request ApplyRequest) error {
	const doing = "applying the config"
	message := &machineapi.ApplyConfigurationRequest{Data: request.Config}
	switch request.Mode {
	case ApplyNoReboot:
		message.Mode = machineapi.ApplyConfigurationRequest_NO_REBOOT
	case ApplyStaged:
		message.Mode = machineapi.ApplyConfigurationRequest_STAGED
	case ApplyTry:
		message.Mode = machineapi.ApplyConfigurationRequest_TRY
		if request.TryFor > 0 {
			message.TryModeTimeout = durationpb.New(request.TryFor)
		}
	default:
		return s.failed(doing, fmt.Errorf("mode %q is never sent; want NO_REBOOT, STAGED or TRY: %w", request.Mode, ErrNotSent))
	}
	if s.maintenance && request.Mode != ApplyNoReboot {
		return s.failed(doing, fmt.Errorf("a machine in maintenance mode has no config to stage or try against: %w", ErrNotSent))
	}
	if len(request.Config) == 0 {
		return s.failed(doing, fmt.Errorf("the config is empty: %w", ErrNotSent))
	}
	reply, err := s.machine.ApplyConfiguration(ctx, message)
	answer, err := single(reply.GetMessages(), err)
	if err == nil && answer.GetMode() != message.GetMode() {
		// What the machine did is then to be read from the machine.
		err = fmt.Errorf("the machine answered with mode %s to %s", answer.GetMode(), message.GetMode())
	}
	return s.failed(doing, err)
}

// DryRun asks the machine whether it would take a config, without it taking it: ErrNotSent for modes other than ApplyTry and
// ApplyStaged. Talos takes a tried config back at a dry run in any mode but ApplyTry, so a staged one may be asked about only where
// nothing is tried. The machine's own words about the change are dropped, because they hold the whole config.
func (s *Session) DryRun(ctx context.Context, request ApplyRequest) error {
	const doing = "asking what it would say to the config"
	message := &machineapi.ApplyConfigurationRequest{Data: request.Config, DryRun: true}
	switch request.Mode {
	case ApplyStaged:
		message.Mode = machineapi.ApplyConfigurationRequest_STAGED
	case ApplyTry:
		message.Mode = machineapi.ApplyConfigurationRequest_TRY
	default:
		return s.failed(doing, fmt.Errorf("mode %q is never sent for a dry run; want TRY or STAGED: %w", request.Mode, ErrNotSent))
	}
	if err := s.configuredOnly(); err != nil {
		return s.failed(doing, err)
	}
	reply, err := s.machine.ApplyConfiguration(ctx, message)
	_, err = single(reply.GetMessages(), err)
	return s.failed(doing, err)
}

// Bootstrap starts a new etcd on the machine. It is the caller's to know that this is the one bootstrap of the cluster's
// life: Talos itself looks at this machine alone.
func (s *Session) Bootstrap(ctx context.Context) error {
	const doing = "bootstrapping etcd"
	if err := s.configuredOnly(); err != nil {
		return s.failed(doing, err)
	}
	reply, err := s.machine.Bootstrap(ctx, &machineapi.BootstrapRequest{})
	_, err = single(reply.GetMessages(), err)
	return s.failed(doing, err)
}

// RemoveMember takes a member out of the machine's etcd. NotFound means that it was not in it.
func (s *Session) RemoveMember(ctx context.Context, id uint64) error {
	doing := fmt.Sprintf("removing etcd member %016x", id)
	if id == 0 {
		return s.failed(doing, fmt.Errorf("zero is no member: %w", ErrNotSent))
	}
	if err := s.configuredOnly(); err != nil {
		return s.failed(doing, err)
	}
	reply, err := s.machine.EtcdRemoveMemberByID(ctx, &machineapi.EtcdRemoveMemberByIDRequest{MemberId: id})
	_, err = single(reply.GetMessages(), err)
	return s.failed(doing, err)
}

// Reset wipes partitions, and with EPHEMERAL etcd's data wherever that is: Talos lets it have a partition of its own, which a wipe of EPHEMERAL
// leaves there. OK proves nothing: the machine answers before it begins, and drops the request when another sequence runs.
func (s *Session) Reset(ctx context.Context, request ResetRequest) error {
	const doing = "resetting"
	if err := errors.Join(request.check(), s.configuredOnly()); err != nil {
		return s.failed(doing, err)
	}
	message := &machineapi.ResetRequest{
		Graceful: request.Graceful, Reboot: request.Reboot, Mode: machineapi.ResetRequest_SYSTEM_DISK,
	}
	labels := request.Partitions
	if slices.Contains(labels, "EPHEMERAL") {
		apart, err := s.etcdApart(ctx)
		switch {
		case err != nil:
			return s.failed(doing, fmt.Errorf("whether etcd's data has a partition of its own could not be read: %w: %w", err, ErrNotSent))
		case apart: // first: Talos ends at the first that it can't wipe
			labels = append([]string{etcdVolume}, labels...)
		}
	}
	for _, label := range labels {
		message.SystemPartitionsToWipe = append(message.SystemPartitionsToWipe, &machineapi.ResetPartitionSpec{Label: label, Wipe: true})
	}
	reply, err := s.machine.Reset(ctx, message)
	_, err = single(reply.GetMessages(), err)
	return s.failed(doing, err)
}

// Reboot reboots the machine. OK proves nothing, as with Reset.
func (s *Session) Reboot(ctx context.Context, mode RebootMode) error {
	const doing = "rebooting"
	if mode != RebootDefault {
		return s.failed(doing, fmt.Errorf("mode %q is never sent; want DEFAULT: %w", mode, ErrNotSent))
	}
	if err := s.configuredOnly(); err != nil {
		return s.failed(doing, err)
	}
	reply, err := s.machine.Reboot(ctx, &machineapi.RebootRequest{Mode: machineapi.RebootRequest_DEFAULT})
	_, err = single(reply.GetMessages(), err)
	return s.failed(doing, err)
}

// Shutdown powers the machine off, taking over whatever it is doing. It drains its own Kubernetes Node first unless force says
// that there is nobody left to ask; a drain that fails fails the shutdown. OK proves nothing, as with Reset.
func (s *Session) Shutdown(ctx context.Context, force bool) error {
	const doing = "shutting down"
	if err := s.configuredOnly(); err != nil {
		return s.failed(doing, err)
	}
	reply, err := s.machine.Shutdown(ctx, &machineapi.ShutdownRequest{Force: force})
	_, err = single(reply.GetMessages(), err)
	return s.failed(doing, err)
}

// RestartService restarts one of Talos's own services. Talos 1.13 itself takes the kubelet and extension services only, and
// says so in the error.
func (s *Session) RestartService(ctx context.Context, id string) error {
	doing := "restarting " + id
	if err := s.configuredOnly(); err != nil {
		return s.failed(doing, err)
	}
	reply, err := s.machine.ServiceRestart(ctx, &machineapi.ServiceRestartRequest{Id: id})
	_, err = single(reply.GetMessages(), err)
	return s.failed(doing, err)
}

// Defragment rewrites the database of the machine's own etcd member, which answers nobody meanwhile: seconds to minutes.
func (s *Session) Defragment(ctx context.Context) error {
	const doing = "defragmenting etcd"
	if err := s.configuredOnly(); err != nil {
		return s.failed(doing, err)
	}
	reply, err := s.machine.EtcdDefragment(ctx, &emptypb.Empty{})
	_, err = single(reply.GetMessages(), err)
	return s.failed(doing, err)
}

// ForfeitLeadership lets the machine's etcd member hand the leadership to another. A member that doesn't lead answers OK too:
// who leads then is to be read from the machine.
func (s *Session) ForfeitLeadership(ctx context.Context) error {
	const doing = "forfeiting etcd's leadership"
	if err := s.configuredOnly(); err != nil {
		return s.failed(doing, err)
	}
	reply, err := s.machine.EtcdForfeitLeadership(ctx, &machineapi.EtcdForfeitLeadershipRequest{})
	_, err = single(reply.GetMessages(), err)
	return s.failed(doing, err)
}

func (s *Session) configuredOnly() error {
	if s.maintenance {
		return fmt.Errorf("the machine is in maintenance mode: %w", ErrNotSent)
	}
	return nil
}
