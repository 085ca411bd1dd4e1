package conformance_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"ichor.maesh.dev/internal/talossim"
)

const (
	serverSource   = "internal/app/machined/internal/server/v1alpha1/v1alpha1_server.go"
	etcdSvcSource  = "internal/app/machined/pkg/system/services/etcd.go"
	etcdSource     = "internal/pkg/etcd/etcd.go"
	sequenceSource = "internal/app/machined/pkg/runtime/v1alpha1/v1alpha1_sequencer.go"
)

// joiningExpectations take the suite's own machines from maintenance to a cluster; those of given nodes that wait in
// maintenance are left there.
func joiningExpectations() []expectation {
	return []expectation{
		{"36a", "that is a worker keeps its port shut after its config until a control plane's trustd has signed its certificate",
			"internal/app/machined/pkg/controllers/secrets/api.go", fromSource, unplugged, func(t *testing.T, e *env) {
				worker := e.workers[0]
				e.give(t, worker, e.generate(t, roleWorker))
				e.eventually(t, time.Minute, func(ctx context.Context) error {
					conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", worker+":50000")
					if err == nil {
						return errors.Join(errors.New("the port is open"), conn.Close())
					}

					return nil
				})
			}},
		{"35a", "leaves maintenance with its config: the listener restarts, then only certificates of its CA are let in, and a client without one is Unavailable",
			"internal/app/apid/service.go", fromSource, unplugged, func(t *testing.T, e *env) {
				e.give(t, e.cps[0], e.generate(t, roleControlPlane))
				e.until(t, e.cps[0], 5*time.Minute, func(ctx context.Context, c *client.Client) error {
					_, err := c.Version(ctx)

					return err
				})

				_, err := insecure(t, e.cps[0]).Version(within(t, short))
				require.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
			}},
		{"35b", "that is metal and not installed installs itself and reboots into the installed system", sequenceSource, fromSource, unplugged, func(t *testing.T, e *env) {
			events := e.watch(t, insecure(t, e.cps[1]))
			e.give(t, e.cps[1], e.generate(t, roleControlPlane))

			events.wait(t, "the installation", func(ev client.Event) bool {
				p, ok := ev.Payload.(*machine.PhaseEvent)

				return ok && p.Phase == "install" && p.Action == machine.PhaseEvent_START
			})
			e.stage(t, e.cps[1], runtime.MachineStageBooting)

			disk, err := e.admin(t, e.cps[1]).COSI.List(within(t, short), metadata("runtime", "SystemDisks.block.talos.dev", ""))
			require.NoError(t, err)
			require.Len(t, disk.Items, 1)
		}},
		{"36b", "that is a worker opens its port once a control plane is there, and is a worker", "internal/app/trustd/internal/reg/reg.go", fromSource, configured, func(t *testing.T, e *env) {
			e.until(t, e.workers[0], 5*time.Minute, func(ctx context.Context, c *client.Client) error {
				_, err := c.Version(ctx)

				return err
			})
		}},
		{"48a", "that waits for its bootstrap is booting and not ready, with the unmet conditions named", "internal/app/machined/pkg/controllers/runtime/machine_status.go", fromSource, configured, func(t *testing.T, e *env) {
			e.until(t, e.cps[0], 5*time.Minute, func(ctx context.Context, c *client.Client) error {
				s, err := machineStatus(ctx, c)
				if err != nil {
					return err
				}

				if s.Stage != runtime.MachineStageBooting || s.Status.Ready || len(s.Status.UnmetConditions) == 0 {
					return fmt.Errorf("%s, ready %v, unmet %v", s.Stage, s.Status.Ready, s.Status.UnmetConditions)
				}

				return nil
			})
		}},
		{"25a", "without etcd data tries to join, its etcd in state Preparing, and stays there", etcdSvcSource, seen, configured, func(t *testing.T, e *env) {
			for _, node := range e.cps {
				e.serviceState(t, node, "etcd", "Preparing", "")
			}
		}},
		{"44a", "answers List of a missing folder with Unknown on the first receive", "pkg/archiver/walker.go", seen, configured, func(t *testing.T, e *env) {
			refused(t, listMember(within(t, short), e.admin(t, e.cps[0])), codes.Unknown, "lstat /var/lib/etcd/member: no such file or directory")
		}},
		{"23", "lets etcd's calls hang until their deadline while etcd doesn't answer: status, members, alarms, snapshot", "internal/pkg/etcd/etcd.go", seen, configured, func(t *testing.T, e *env) {
			c := e.admin(t, e.cps[0])

			for name, call := range map[string]func(context.Context) error{
				"EtcdStatus":     func(ctx context.Context) error { _, err := c.EtcdStatus(ctx); return err },
				"EtcdAlarmList":  func(ctx context.Context) error { _, err := c.EtcdAlarmList(ctx); return err },
				"EtcdMemberList": func(ctx context.Context) error { _, err := members(ctx, c); return err },
				"EtcdSnapshot": func(ctx context.Context) error {
					stream, err := c.MachineClient.EtcdSnapshot(ctx, &machine.EtcdSnapshotRequest{})
					if err == nil {
						_, err = stream.Recv()
					}

					return err
				},
			} {
				began := time.Now()
				err := call(within(t, 1500*time.Millisecond))
				require.Contains(t, []codes.Code{codes.DeadlineExceeded, codes.Canceled}, status.Code(err), "%s: %v", name, err)
				require.GreaterOrEqual(t, time.Since(began), 1400*time.Millisecond, "%s answered before its deadline", name)
			}
		}},
		{"18a", "that is a worker answers Bootstrap with Unimplemented", serverSource, seen, configured, func(t *testing.T, e *env) {
			refused(t, e.admin(t, e.workers[0]).Bootstrap(within(t, short), &machine.BootstrapRequest{}), codes.Unimplemented,
				"bootstrap is only available on control plane nodes")
		}},
		{"18b", "answers Bootstrap at once, before etcd runs, and then has etcd data", serverSource, seen, configured, func(t *testing.T, e *env) {
			node := e.cps[0]

			for _, other := range e.cps[1:] {
				e.learners = append(e.learners, e.hold(t, other, talossim.BeforePromotion)) // until one was seen
			}

			require.NoError(t, e.admin(t, node).Bootstrap(within(t, short), &machine.BootstrapRequest{}))
			e.until(t, node, time.Minute, func(ctx context.Context, c *client.Client) error { return listMember(ctx, c) })
			e.until(t, node, time.Minute, func(ctx context.Context, c *client.Client) error {
				_, err := c.EtcdStatus(ctx)

				return err
			})
		}},
		{"26", "lets the others join by themselves, as learners, never two at once, and promotes each", etcdSvcSource, seen, configured, func(t *testing.T, e *env) {
			learned := false

			e.until(t, e.cps[0], 10*time.Minute, func(ctx context.Context, c *client.Client) error {
				list, err := members(ctx, c)
				if err != nil {
					return err
				}

				learners := 0

				for _, m := range list {
					if m.IsLearner {
						learners, learned = learners+1, true
					}
				}

				require.LessOrEqual(t, learners, 1, "two learners at once")

				if learned {
					for _, goOn := range e.learners {
						goOn()
					}
				}

				if len(list) != len(e.cps) || learners > 0 {
					return fmt.Errorf("%d members, %d of them learners", len(list), learners)
				}

				return nil
			})
			require.True(t, learned, "no member was ever a learner")
		}},
		{"48b", "is running and ready once everything it waits for is there", "internal/app/machined/pkg/controllers/runtime/machine_status.go", fromSource, configured, func(t *testing.T, e *env) {
			e.ready(t, append(append([]string{}, e.cps...), e.workers...)...)
		}},
		{"18c", "answers Bootstrap with AlreadyExists once its etcd folder isn't empty, also when it joined", serverSource, seen, bootstrapped, func(t *testing.T, e *env) {
			for _, node := range e.cps {
				refused(t, e.admin(t, node).Bootstrap(within(t, short), &machine.BootstrapRequest{}), codes.AlreadyExists, "etcd data directory is not empty")
			}
		}},
	}
}
