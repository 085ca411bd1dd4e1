package machined

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/config/configdiff"
	"github.com/siderolabs/talos/pkg/machinery/config/configloader"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"ichor.maesh.dev/internal/talossim/apid"
)

// tryTimeout is constants.ConfigTryTimeout.
const tryTimeout = time.Minute

// tryFloor is the least that it is shortened to: who tries a config takes a while to look and to confirm, whatever the scale. A time
// that the caller gives is taken as it is.
const tryFloor = 30 * time.Second

// applyState is what ApplyConfiguration remembers until the process ends.
type applyState struct {
	busy     sync.Mutex
	rebooted atomic.Bool
}

// runtimeMode is how configs are validated on this machine.
type runtimeMode struct{ container, installed bool }

func (r runtimeMode) String() string {
	if r.container {
		return "container"
	}
	return "metal"
}

func (r runtimeMode) RequiresInstall() bool { return !r.container && !r.installed }

func (r runtimeMode) InContainer() bool { return r.container }

// ApplyConfiguration checks in Talos's order (internal/app/machined/internal/server/v1alpha1/v1alpha1_server.go).
func (a *api) ApplyConfiguration(ctx context.Context, in *machine.ApplyConfigurationRequest) (*machine.ApplyConfigurationResponse, error) {
	m := a.m
	if !m.apply.busy.TryLock() {
		return nil, status.Error(codes.FailedPrecondition, "another apply configuration is already in progress")
	}
	defer m.apply.busy.Unlock()
	if m.apply.rebooted.Load() {
		return nil, status.Error(codes.FailedPrecondition,
			"configuration was already applied and node is rebooting, cannot apply more configuration changes until next reboot")
	}
	maintenance := !m.conf.configured()
	if !maintenance && !apid.IsAdmin(ctx) {
		return nil, apid.NotAuthorized()
	}
	if in.GetMode() != machine.ApplyConfigurationRequest_TRY {
		m.conf.cancelRollback() // for a dry run and for a request that fails, too
	}
	p, warnings, err := m.checkConfig(ctx, in.GetData(), maintenance)
	if err != nil {
		return nil, err
	}
	mode, details, reason, err := m.resolveMode(in.GetMode(), p, maintenance)
	if err != nil {
		return nil, err
	}
	if in.GetDryRun() {
		diff, err := m.diff(p)
		if err != nil {
			return nil, err
		}
		return applied(mode, fmt.Sprintf("Dry run summary:\n%s (skipped in dry-run).\n%s", details, diff), nil), nil
	}
	if !m.cfg.Faults.dropped(ctx) {
		if details, err = m.applyConfig(ctx, mode, details, p, in); err != nil {
			return nil, err
		}
	}
	return applied(mode, details+reason, warnings), nil
}

func applied(mode machine.ApplyConfigurationRequest_Mode, details string, warnings []string) *machine.ApplyConfigurationResponse {
	return &machine.ApplyConfigurationResponse{Messages: []*machine.ApplyConfiguration{{Mode: mode, ModeDetails: details, Warnings: warnings}}}
}

func (m *Machine) checkConfig(ctx context.Context, data []byte, maintenance bool) (config.Provider, []string, error) {
	p, err := configloader.NewFromBytes(data)
	if err != nil {
		return nil, nil, status.Error(codes.InvalidArgument, err.Error())
	}
	if !maintenance && p.RawV1Alpha1() == nil {
		return nil, nil, status.Error(codes.InvalidArgument,
			"the applied machine configuration doesn't contain v1alpha1 config, did you mean to patch the machine config instead?")
	}
	mode := runtimeMode{container: m.cfg.Container, installed: m.cfg.Store.Installed()}
	warnings, err := p.Validate(mode)
	if err != nil {
		return nil, nil, status.Error(codes.InvalidArgument, err.Error())
	}
	more, err := p.RuntimeValidate(ctx, m.st, mode)
	if err != nil {
		return nil, nil, status.Error(codes.InvalidArgument, err.Error())
	}
	return p, slices.Concat(warnings, more), nil
}

// resolveMode decides what will be done; reason is why AUTO became a reboot.
func (m *Machine) resolveMode(asked machine.ApplyConfigurationRequest_Mode, p config.Provider, maintenance bool) (
	mode machine.ApplyConfigurationRequest_Mode, details, reason string, err error,
) {
	mode, details = asked, "Applied configuration with a reboot"
	if maintenance && mode == machine.ApplyConfigurationRequest_REBOOT {
		mode = machine.ApplyConfigurationRequest_NO_REBOOT
	}
	switch mode {
	case machine.ApplyConfigurationRequest_TRY, machine.ApplyConfigurationRequest_NO_REBOOT:
		if err := canApplyImmediate(m.conf.current(), p); err != nil && !maintenance {
			return mode, "", "", status.Error(codes.InvalidArgument, err.Error())
		}
		details = "Applied configuration without a reboot"
	case machine.ApplyConfigurationRequest_STAGED:
		details = "Staged configuration to be applied after the next reboot"
	case machine.ApplyConfigurationRequest_AUTO:
		if err := canApplyImmediate(m.conf.current(), p); err != nil && !maintenance {
			return machine.ApplyConfigurationRequest_REBOOT, details, ": " + err.Error(), nil
		}
		return machine.ApplyConfigurationRequest_NO_REBOOT, "Applied configuration without a reboot", "", nil
	}
	return mode, details, "", nil
}

func (m *Machine) diff(p config.Provider) (string, error) {
	text, err := configdiff.DiffConfigs(m.conf.current(), p)
	if err != nil {
		return "", fmt.Errorf("failed to generate diff: %w", err)
	}
	if text == "" {
		text = "No changes."
	}
	return "Config diff:\n\n" + text, nil
}

func (m *Machine) applyConfig(ctx context.Context, mode machine.ApplyConfigurationRequest_Mode, details string, p config.Provider,
	in *machine.ApplyConfigurationRequest,
) (string, error) {
	switch mode {
	case machine.ApplyConfigurationRequest_TRY:
		timeout, least := tryTimeout, tryFloor
		if in.GetTryModeTimeout() != nil {
			timeout, least = in.GetTryModeTimeout().AsDuration(), 0
		}
		details += fmt.Sprintf("\nThe config is applied in 'try' mode and will be automatically reverted back in %s", timeout)
		m.conf.rollbackAfter(max(m.pace.Of(timeout), min(timeout, least)))
		m.conf.setActive(p)
	case machine.ApplyConfigurationRequest_NO_REBOOT:
		if err := m.conf.setPersistent(p); err != nil {
			return "", err
		}
		m.conf.setActive(p)
	case machine.ApplyConfigurationRequest_STAGED:
		if err := m.conf.setPersistent(p); err != nil {
			return "", err
		}
	case machine.ApplyConfigurationRequest_REBOOT:
		if err := m.conf.setPersistent(p); err != nil {
			return "", err
		}
		m.apply.rebooted.Store(true)
		m.start(ctx, uuid.NewString(), seqReboot, true, func() []phase { return m.rebootPhases(machine.RebootRequest_DEFAULT) })
	default:
		return "", fmt.Errorf("incorrect mode '%s' specified for the apply config call", mode)
	}
	return details, nil
}
