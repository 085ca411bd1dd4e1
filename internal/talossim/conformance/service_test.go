package conformance_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/cosi-project/runtime/pkg/state"
	"github.com/siderolabs/talos/pkg/machinery/client"
	"github.com/siderolabs/talos/pkg/machinery/resources/config"
	"github.com/siderolabs/talos/pkg/machinery/resources/v1alpha1"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
)

const serviceSource = "internal/app/machined/pkg/system/system.go"

// kubeletComesAndGoes wants the kubelet's Service resource destroyed and then running and healthy again.
func (e *env) kubeletComesAndGoes(t *testing.T, node string, act func()) {
	t.Helper()

	events := make(chan state.Event)
	ctx := within(t, 3*time.Minute)

	require.NoError(t, e.admin(t, node).COSI.Watch(ctx, metadata(v1alpha1.NamespaceName, v1alpha1.ServiceType, "kubelet"), events))
	require.Equal(t, state.Created, (<-events).Type)
	act()

	destroyed := false

	for {
		select {
		case ev := <-events:
			switch ev.Type {
			case state.Destroyed:
				destroyed = true
			case state.Created, state.Updated:
				if s := ev.Resource.(*v1alpha1.Service).TypedSpec(); destroyed && s.Running && s.Healthy {
					return
				}
			default:
				require.Fail(t, "the watch ended", "%v", ev.Error)
			}
		case <-ctx.Done():
			require.Fail(t, "the kubelet's resource didn't come back", "destroyed: %v", destroyed)
		}
	}
}

func serviceExpectations() []expectation {
	return []expectation{
		{"43b", "restarts and starts the kubelet for the API, refuses to stop it, and refuses the same of etcd and trustd with Unknown and a text", serviceSource, fromSource, changing, func(t *testing.T, e *env) {
			c := e.admin(t, e.cps[0])

			resp, err := c.ServiceRestart(within(t, time.Minute), "kubelet")
			require.NoError(t, err)
			require.Equal(t, `Service "kubelet" restarted`, resp.Messages[0].Resp)

			_, err = c.ServiceStart(within(t, short), "kubelet")
			require.NoError(t, err)
			_, err = c.ServiceStop(within(t, short), "kubelet")
			refused(t, err, codes.Unknown, `service "kubelet" doesn't support stop operation via API`)

			for _, id := range []string{"etcd", "trustd"} {
				_, err = c.ServiceRestart(within(t, short), id)
				refused(t, err, codes.Unknown, `service "`+id+`" doesn't support restart operation via API`)
			}

			e.serviceState(t, e.cps[0], "kubelet", "Running", "")
		}},
		{"43c", "knows no service that isn't there", serviceSource, fromSource, bootstrapped, func(t *testing.T, e *env) {
			_, err := e.admin(t, e.cps[0]).ServiceRestart(within(t, short), "nonesuch")
			refused(t, err, codes.Unknown, `service "nonesuch" not defined`)
		}},
		{"41b", "destroys the kubelet's Service resource and makes it anew when the kubelet restarts", "internal/app/machined/pkg/system/service_runner.go", fromSource, changing, func(t *testing.T, e *env) {
			e.kubeletComesAndGoes(t, e.workers[0], func() {
				_, err := e.admin(t, e.workers[0]).ServiceRestart(within(t, time.Minute), "kubelet")
				require.NoError(t, err)
			})
			e.ready(t, e.workers[0])
		}},
		{"41c", "does so too for a config change that concerns the kubelet", "pkg/rotate/pki/internal/helpers/helpers.go", fromSource, changing, func(t *testing.T, e *env) {
			node := e.workers[0]
			original := e.restore(t, node)

			for _, next := range [][]byte{patched(t, original, "machine:\n  kubelet:\n    extraArgs:\n      v: \"4\"\n"), original} {
				e.kubeletComesAndGoes(t, node, func() {
					_, err := e.apply(t, node, noReboot, next)
					require.NoError(t, err)
				})
			}

			e.ready(t, node)
		}},
		{"50b", "puts the node annotations of its config on its Node", "internal/app/machined/pkg/controllers/k8s/node_annotation_spec.go", fromSource, changing, func(t *testing.T, e *env) {
			node := e.workers[0]
			original := e.restore(t, node)

			_, err := e.apply(t, node, auto, patched(t, original, "machine:\n  nodeAnnotations:\n    conformance.example.org/x: \"1\"\n"))
			require.NoError(t, err)
			e.until(t, node, time.Minute, func(ctx context.Context, c *client.Client) error {
				status, err := nodeStatus(ctx, c)
				if err == nil && status.Annotations["conformance.example.org/x"] != "1" {
					err = errors.New("the annotation isn't there")
				}

				return err
			})

			_, err = e.apply(t, node, noReboot, original)
			require.NoError(t, err)
			e.waitConfig(t, node, config.ActiveID, original)
		}},
	}
}
