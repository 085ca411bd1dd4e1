package conformance_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
)

const modeSource = "internal/app/machined/pkg/runtime/mode.go"

// clockExpectations wait for what takes Talos half an hour and more.
func clockExpectations() []expectation {
	return []expectation{
		{"28", "gives up joining after 30 minutes: etcd is Failed and stays so, Bootstrap is still accepted; after 70 minutes of boot it reboots", "pkg/machinery/constants/constants.go", fromSource, power, func(t *testing.T, e *env) {
			fast := e.fast(t)
			node := fast.cps[0]
			before := fast.bootID(t, node)

			fast.serviceState(t, node, "etcd", "Failed", "Failed to run pre stage: failed to build initial etcd cluster: failed to build cluster arguments")
			fast.rebooted(t, node, before)
			fast.until(t, node, 70*minute, func(ctx context.Context, c *client.Client) error {
				svc, err := service(ctx, c, "etcd")
				if err != nil {
					return err
				}

				if svc.GetState() != "Failed" {
					return fmt.Errorf("etcd is %s", svc.GetState())
				}

				return c.Bootstrap(ctx, &machine.BootstrapRequest{})
			})
			fast.ready(t, node)
		}},
		{"46", "refuses the older Upgrade when its installer can't be had, with Unknown", serverSource, fromSource, disruptive, func(t *testing.T, e *env) {
			//lint:ignore SA1019 nodes of 1.13 answer it
			_, err := e.admin(t, e.workers[0]).UpgradeWithOptions(within(t, 5*minute), client.WithUpgradeImage("127.0.0.1:1/no/such:v0"))
			refused(t, err, codes.Unknown, `error validating installer image "127.0.0.1:1/no/such:v0"`)
		}},
		{"45", "refuses the newer Upgrade without an image with InvalidArgument, and with one that wasn't pulled with Internal", "internal/app/lifecycle/lifecycle.go", fromSource, bootstrapped, func(t *testing.T, e *env) {
			for image, want := range map[string]codes.Code{"": codes.InvalidArgument, "127.0.0.1:1/no/such:v0": codes.Internal} {
				stream, err := e.admin(t, e.workers[0]).LifecycleClient.Upgrade(within(t, short), &machine.LifecycleServiceUpgradeRequest{
					Source: &machine.InstallArtifactsSource{ImageName: image},
				})
				require.NoError(t, err)

				for err == nil {
					_, err = stream.Recv()
				}

				refused(t, err, want, "")
			}
		}},
	}
}

func containerExpectations() []expectation {
	return []expectation{
		{"49a", "in a container refuses Reboot, Shutdown, Upgrade, Rollback and META writes with FailedPrecondition", modeSource, fromSource, container, func(t *testing.T, e *env) {
			c := e.containers(t).admin(t, e.containers(t).cps[0])
			ctx := within(t, short)

			_, reboot := c.RebootWithResponse(ctx)
			_, shutdown := c.ShutdownWithResponse(ctx)
			//lint:ignore SA1019 nodes of 1.13 answer it
			_, upgrade := c.UpgradeWithOptions(ctx, client.WithUpgradeImage("example.org/installer:v1"))

			for _, err := range []error{reboot, shutdown, upgrade, c.Rollback(ctx), c.MetaWrite(ctx, 10, []byte("x"))} {
				refused(t, err, codes.FailedPrecondition, "method is not supported in container mode")
			}
		}},
		{"49b", "in a container has STATE and EPHEMERAL as folders, which can't be wiped", serverSource, fromSource, container, func(t *testing.T, e *env) {
			box := e.containers(t)
			refusedUnknown(t, box.admin(t, box.cps[0]).ResetGeneric(within(t, short), wipeEphemeral()), `volume "EPHEMERAL" is not located`)
		}},
		{"49c", "in a container stops for a Reset that names nothing, and wipes nothing", sequenceSource, fromSource, container, func(t *testing.T, e *env) {
			if !e.simulated() {
				t.Skip("the container would not be started again")
			}

			box := e.containers(t)
			node := box.cps[0]
			before := box.bootID(t, node)

			require.NoError(t, box.admin(t, node).ResetGeneric(within(t, short), &machine.ResetRequest{}))
			e.off(t, node)
			e.powerOn(t, node)
			box.until(t, node, 5*minute, func(ctx context.Context, c *client.Client) error {
				id, err := read(ctx, c, bootIDPath)
				if err == nil && id != before {
					err = errors.New("the boot ID isn't the host's")
				}

				return err
			})
		}},
	}
}
