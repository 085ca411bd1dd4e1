package conformance_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cosi-project/runtime/pkg/state"
	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	"github.com/siderolabs/talos/pkg/machinery/config/configpatcher"
	"github.com/siderolabs/talos/pkg/machinery/resources/config"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"
)

const (
	runtimeSource = "internal/app/machined/pkg/runtime/v1alpha1/v1alpha1_runtime.go"

	liveChange   = "machine:\n  sysctls:\n    kernel.panic: \"17\"\n"
	rebootChange = "machine:\n  env:\n    CONFORMANCE: \"1\"\n"
)

// current is a node's config as it runs, byte for byte.
func (e *cluster) current(t *testing.T, node, id string) (data []byte, version string) {
	t.Helper()

	r, err := machineConfig(within(t, short), e.admin(t, node), id)
	require.NoError(t, err)

	data, err = r.Container().Bytes()
	require.NoError(t, err)

	return data, r.Metadata().Version().String()
}

func patched(t *testing.T, data []byte, patch string) []byte {
	t.Helper()

	p, err := configpatcher.LoadPatch([]byte(patch))
	require.NoError(t, err)

	out, err := configpatcher.Apply(configpatcher.WithBytes(data), []configpatcher.Patch{p})
	require.NoError(t, err)

	raw, err := out.Bytes()
	require.NoError(t, err)

	return raw
}

func (e *cluster) apply(t *testing.T, node string, mode machine.ApplyConfigurationRequest_Mode, data []byte, more ...func(*machine.ApplyConfigurationRequest),
) (*machine.ApplyConfiguration, error) {
	t.Helper()

	req := &machine.ApplyConfigurationRequest{Data: data, Mode: mode}
	for _, m := range more {
		m(req)
	}

	resp, err := e.admin(t, node).ApplyConfiguration(within(t, short), req)
	if err != nil {
		return nil, err
	}

	return resp.Messages[0], nil
}

func dry(req *machine.ApplyConfigurationRequest) { req.DryRun = true }

func tryFor(d time.Duration) func(*machine.ApplyConfigurationRequest) {
	return func(req *machine.ApplyConfigurationRequest) { req.TryModeTimeout = durationpb.New(d) }
}

// restore gives a node its config back at the end of a test.
func (e *cluster) restore(t *testing.T, node string) []byte {
	t.Helper()

	data, _ := e.current(t, node, config.ActiveID)

	return data
}

func (e *cluster) waitConfig(t *testing.T, node, id string, want []byte) {
	t.Helper()

	e.until(t, node, time.Minute, func(ctx context.Context, c *client.Client) error {
		r, err := machineConfig(ctx, c, id)
		if err != nil {
			return err
		}

		got, err := r.Container().Bytes()
		if err == nil && string(got) != string(want) {
			err = fmt.Errorf("the %s config is another one", id)
		}

		return err
	})
}

// watchActive follows a node's active config: each call of the returned function waits for the next one. The one that is active
// now isn't told.
func (e *cluster) watchActive(t *testing.T, node string) (next func() string) {
	t.Helper()

	events := make(chan state.Event)
	ctx := within(t, 10*time.Minute)

	require.NoError(t, e.admin(t, node).COSI.Watch(ctx, metadata(config.NamespaceName, config.MachineConfigType, config.ActiveID), events))

	next = func() string {
		t.Helper()

		select {
		case event := <-events:
			require.NoError(t, event.Error)

			data, err := event.Resource.(*config.MachineConfig).Container().Bytes()
			require.NoError(t, err)

			return string(data)
		case <-ctx.Done():
			require.Fail(t, "the active config didn't change")

			return ""
		}
	}
	next()

	return next
}

const (
	auto     = machine.ApplyConfigurationRequest_AUTO
	noReboot = machine.ApplyConfigurationRequest_NO_REBOOT
	staged   = machine.ApplyConfigurationRequest_STAGED
	reboot   = machine.ApplyConfigurationRequest_REBOOT
	try      = machine.ApplyConfigurationRequest_TRY
)

func configExpectations() []expectation {
	return []expectation{
		{"15a", "answers a dry run with mode, summary and diff, without warnings, and changes nothing", serverSource, seen, bootstrapped, func(t *testing.T, e *env) {
			node := e.workers[0]
			before, version := e.current(t, node, config.ActiveID)

			same, err := e.apply(t, node, auto, before, dry)
			require.NoError(t, err)
			require.Equal(t, noReboot, same.Mode)
			require.Contains(t, same.ModeDetails, "Dry run summary:\nApplied configuration without a reboot (skipped in dry-run).")
			require.Contains(t, same.ModeDetails, "No changes.")

			live, err := e.apply(t, node, auto, patched(t, before, liveChange), dry)
			require.NoError(t, err)
			require.Contains(t, live.ModeDetails, "kernel.panic")
			require.Empty(t, live.Warnings)

			boot, err := e.apply(t, node, auto, patched(t, before, rebootChange), dry)
			require.NoError(t, err)
			require.Equal(t, reboot, boot.Mode)
			require.Contains(t, boot.ModeDetails, "Applied configuration with a reboot")

			after, still := e.current(t, node, config.ActiveID)
			require.Equal(t, string(before), string(after))
			require.Equal(t, version, still)
		}},
		{"14a", "refuses a change that needs a reboot in the modes NO_REBOOT and TRY with InvalidArgument and the diff", runtimeSource, seen, bootstrapped, func(t *testing.T, e *env) {
			node := e.workers[0]
			before, _ := e.current(t, node, config.ActiveID)

			for _, mode := range []machine.ApplyConfigurationRequest_Mode{noReboot, try} {
				_, err := e.apply(t, node, mode, patched(t, before, rebootChange), dry)
				refused(t, err, codes.InvalidArgument, "this config change can't be applied in immediate mode\ndiff:")
			}
		}},
		{"14b", "refuses a config without the main document, and one that isn't valid, with InvalidArgument", serverSource, fromSource, bootstrapped, func(t *testing.T, e *env) {
			node := e.workers[0]

			_, err := e.apply(t, node, noReboot, []byte("apiVersion: v1alpha1\nkind: KmsgLogConfig\nname: x\nurl: tcp://192.0.2.1:5140\n"), dry)
			refused(t, err, codes.InvalidArgument, "the applied machine configuration doesn't contain v1alpha1 config")
			_, err = e.apply(t, node, noReboot, nil, dry)
			refused(t, err, codes.InvalidArgument, "")

			before, _ := e.current(t, node, config.ActiveID)
			_, err = e.apply(t, node, noReboot, patched(t, before, "cluster:\n  network:\n    dnsDomain: \"\"\nmachine:\n  network:\n    hostname: legacy\n"), dry)
			refused(t, err, codes.InvalidArgument, "static hostname is already set in v1alpha1 config")
		}},
		{"17", "keeps a config byte for byte, comments too, and bumps the version of an identical one without a reboot", runtimeSource, fromSource, changing, func(t *testing.T, e *env) {
			node := e.workers[0]
			original := e.restore(t, node)
			boot := e.bootID(t, node)
			commented := append([]byte("# kept as it was written\n"), original...)

			got, err := e.apply(t, node, noReboot, commented)
			require.NoError(t, err)
			require.Equal(t, "Applied configuration without a reboot", got.ModeDetails)
			e.waitConfig(t, node, config.ActiveID, commented)
			e.waitConfig(t, node, config.PersistentID, commented)

			_, version := e.current(t, node, config.ActiveID)

			_, err = e.apply(t, node, auto, commented)
			require.NoError(t, err)
			e.until(t, node, time.Minute, func(ctx context.Context, c *client.Client) error {
				r, err := machineConfig(ctx, c, config.ActiveID)
				if err == nil && r.Metadata().Version().String() == version {
					err = errors.New("the version is the same")
				}

				return err
			})

			_, err = e.apply(t, node, noReboot, original)
			require.NoError(t, err)
			e.waitConfig(t, node, config.ActiveID, original)
			require.Equal(t, boot, e.bootID(t, node))
		}},
		{"14c", "applies documents other than the main one without a reboot", runtimeSource, seen, changing, func(t *testing.T, e *env) {
			node := e.workers[0]
			original := e.restore(t, node)
			more := patched(t, original, "apiVersion: v1alpha1\nkind: KmsgLogConfig\nname: conformance\nurl: tcp://192.0.2.1:5140\n")

			got, err := e.apply(t, node, auto, more)
			require.NoError(t, err)
			require.Equal(t, noReboot, got.Mode)

			_, err = e.apply(t, node, auto, original)
			require.NoError(t, err)
			e.waitConfig(t, node, config.ActiveID, original)
		}},
		{"16a", "stages a config: only the persistent one changes", runtimeSource, fromSource, changing, func(t *testing.T, e *env) {
			node := e.workers[0]
			original := e.restore(t, node)
			change := patched(t, original, rebootChange)

			got, err := e.apply(t, node, staged, change)
			require.NoError(t, err)
			require.Equal(t, "Staged configuration to be applied after the next reboot", got.ModeDetails)
			e.waitConfig(t, node, config.PersistentID, change)
			e.waitConfig(t, node, config.ActiveID, original)

			_, err = e.apply(t, node, staged, original)
			require.NoError(t, err)
			e.waitConfig(t, node, config.PersistentID, original)
		}},
		{"16b", "tries a config: only the active one changes, and it goes back by itself after the time given", runtimeSource, fromSource, changing, func(t *testing.T, e *env) {
			node := e.workers[0]
			original := e.restore(t, node)
			change := patched(t, original, liveChange)

			actives := e.watchActive(t, node)
			got, err := e.apply(t, node, try, change, tryFor(e.stretched(8*time.Second)))
			require.NoError(t, err)
			require.Equal(t, try, got.Mode)
			require.Contains(t, got.ModeDetails, "The config is applied in 'try' mode and will be automatically reverted back in")
			require.Equal(t, string(change), actives())
			require.Equal(t, string(original), actives())
			e.waitConfig(t, node, config.PersistentID, original)
		}},
		{"15b", "cancels a pending try by a dry run in another mode: the tried config stays", serverSource, seen, changing, func(t *testing.T, e *env) {
			node := e.workers[0]
			original := e.restore(t, node)
			change := patched(t, original, liveChange)

			wait := 5 * time.Second

			// Whoever is too slow to cancel it in time begins again, with more time.
			for began := time.Now(); ; began, wait = time.Now(), 2*wait {
				_, err := e.apply(t, node, try, change, tryFor(e.stretched(wait)))
				require.NoError(t, err)
				_, err = e.apply(t, node, auto, original, dry)
				require.NoError(t, err)

				if time.Since(began) < wait {
					break
				}
			}

			e.stays(t, wait+time.Second, func(ctx context.Context, c *client.Client) error {
				r, err := machineConfig(ctx, c, config.ActiveID)
				if err != nil {
					return err
				}

				got, err := r.Container().Bytes()
				if err == nil && !strings.Contains(string(got), "kernel.panic") {
					err = errors.New("the tried config went back")
				}

				return err
			}, node)

			_, err := e.apply(t, node, noReboot, original)
			require.NoError(t, err)
			e.waitConfig(t, node, config.ActiveID, original)
		}},
		{"13", "takes one config at a time: of two at once, one is applied or refused with FailedPrecondition, never queued", serverSource, fromSource, changing, func(t *testing.T, e *env) {
			node := e.workers[0]
			original := e.restore(t, node)
			c := e.admin(t, node)
			results := make(chan error)

			const callers = 12

			for range callers {
				go func() {
					_, err := c.ApplyConfiguration(context.WithoutCancel(t.Context()), &machine.ApplyConfigurationRequest{Data: original, Mode: noReboot})
					results <- err
				}()
			}

			applied := 0

			for range callers {
				if err := <-results; err != nil {
					refused(t, err, codes.FailedPrecondition, "another apply configuration is already in progress")
				} else {
					applied++
				}
			}

			require.Positive(t, applied)
		}},
		{"1", "reboots for a config that was sent without a mode, since the zero value is REBOOT", "api/machine/machine.proto", fromSource, disruptive, func(t *testing.T, e *env) {
			node := e.workers[0]
			original := e.restore(t, node)
			before := e.bootID(t, node)

			resp, err := e.admin(t, node).ApplyConfiguration(within(t, short), &machine.ApplyConfigurationRequest{Data: original})
			require.NoError(t, err)
			require.Equal(t, reboot, resp.Messages[0].Mode)
			require.Equal(t, "Applied configuration with a reboot", resp.Messages[0].ModeDetails)
			e.rebooted(t, node, before)
			e.ready(t, node)
		}},
		{"12", "takes no further config on a boot once one chose to reboot", serverSource, fromSource, disruptive, func(t *testing.T, e *env) {
			node := e.workers[0]
			original := e.restore(t, node)
			before := e.bootID(t, node)

			goOn := e.holdGoingDown(t, node)
			got, err := e.apply(t, node, auto, patched(t, original, rebootChange))
			require.NoError(t, err)
			require.Equal(t, reboot, got.Mode)
			require.Contains(t, got.ModeDetails, "Applied configuration with a reboot: ")

			_, err = e.apply(t, node, auto, original)
			refused(t, err, codes.FailedPrecondition, "configuration was already applied and node is rebooting, cannot apply more configuration changes until next reboot")
			goOn()
			e.rebooted(t, node, before)
			e.ready(t, node)

			before = e.bootID(t, node)
			_, err = e.apply(t, node, auto, original)
			require.NoError(t, err)
			e.rebooted(t, node, before)
			e.ready(t, node)
		}},
		{"16c", "boots with the staged config", runtimeSource, fromSource, disruptive, func(t *testing.T, e *env) {
			node := e.workers[0]
			original := e.restore(t, node)
			change := patched(t, original, rebootChange)
			before := e.bootID(t, node)

			_, err := e.apply(t, node, staged, change)
			require.NoError(t, err)
			_, err = e.admin(t, node).RebootWithResponse(within(t, short))
			require.NoError(t, err)
			before = e.rebooted(t, node, before)
			e.waitConfig(t, node, config.ActiveID, change)
			e.ready(t, node)

			_, err = e.apply(t, node, reboot, original)
			require.NoError(t, err)
			e.rebooted(t, node, before)
			e.ready(t, node)
		}},
		{"34l", "that runs denies a config from a reader, which the role table alone would let pass", serverSource, fromSource, bootstrapped, func(t *testing.T, e *env) {
			data, _ := e.current(t, e.workers[0], config.ActiveID)

			_, err := e.as(t, e.workers[0], "os:reader").ApplyConfiguration(within(t, short), &machine.ApplyConfigurationRequest{Data: data, Mode: auto, DryRun: true})
			refused(t, err, codes.PermissionDenied, "not authorized")
		}},
		{"48c", "keeps running and ready meaningful together: both are read from one resource", "internal/app/machined/pkg/controllers/runtime/machine_status.go", fromSource, bootstrapped, func(t *testing.T, e *env) {
			e.until(t, e.workers[0], time.Minute, func(ctx context.Context, c *client.Client) error {
				s, err := machineStatus(ctx, c)
				if err != nil {
					return err
				}

				require.Equal(t, runtime.MachineStageRunning, s.Stage)
				require.Equal(t, s.Status.Ready, len(s.Status.UnmetConditions) == 0)

				if !s.Status.Ready {
					return fmt.Errorf("unmet: %v", s.Status.UnmetConditions)
				}

				return nil
			})
		}},
	}
}

// stretched is what a caller must name for a node to take d: simulated nodes divide it.
func (e *cluster) stretched(d time.Duration) time.Duration {
	if e.simulated() {
		return time.Duration(float64(d) * e.scale)
	}

	return d
}
