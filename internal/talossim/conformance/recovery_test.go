package conformance_test

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// recoverInto uploads a snapshot and starts etcd from it.
func (e *cluster) recoverInto(t *testing.T, node string, snapshot []byte) {
	t.Helper()

	e.until(t, node, 5*time.Minute, func(ctx context.Context, c *client.Client) error {
		_, err := c.EtcdRecover(ctx, bytes.NewReader(snapshot))

		return err
	})

	lost := false // an answer

	e.until(t, node, 5*time.Minute, func(ctx context.Context, c *client.Client) error {
		err := c.Bootstrap(ctx, &machine.BootstrapRequest{RecoverEtcd: true})

		switch code := status.Code(err); {
		case code == codes.AlreadyExists && lost:
			return nil
		case code == codes.DeadlineExceeded || code == codes.Unavailable:
			lost = true
		}

		return err
	})
}

// loneExpectations need control planes of which each has a cluster of its own: the suite's, never a user's.
func loneExpectations() []expectation {
	return []expectation{
		{"20", "answers Bootstrap with OK beside another control plane that was bootstrapped: two clusters", serverSource, fromSource, power, func(t *testing.T, e *env) {
			twins := e.twins(t)

			// Neither may see the other's etcd first, or it would join: both are asked before either runs.
			errs := make(chan error)

			var clients []*client.Client

			for _, node := range twins.cps {
				c := twins.admin(t, node)
				_, err := c.Version(within(t, short)) // so that they are connected
				require.NoError(t, err)
				clients = append(clients, c)
			}

			for _, c := range clients {
				go func() { errs <- c.Bootstrap(context.WithoutCancel(t.Context()), &machine.BootstrapRequest{}) }()
			}

			for range twins.cps {
				require.NoError(t, <-errs)
			}

			for _, node := range twins.cps {
				twins.until(t, node, time.Minute, func(ctx context.Context, c *client.Client) error {
					resp, err := c.EtcdMemberList(ctx, &machine.EtcdMemberListRequest{QueryLocal: true})
					if err != nil {
						return err
					}

					require.Len(t, resp.Messages[0].Members, 1)
					require.NotNil(t, memberOf(resp.Messages[0].Members, node))

					return nil
				})
			}
		}},
		{"19a", "answers Bootstrap with recover_etcd before it restores: without an upload etcd ends Failed, and it may be asked again", etcdSvcSource, seen, power, func(t *testing.T, e *env) {
			solo := e.solo(t)

			for range 2 {
				require.NoError(t, solo.admin(t, solo.cps[0]).Bootstrap(within(t, short), &machine.BootstrapRequest{RecoverEtcd: true}))
				solo.serviceState(t, solo.cps[0], "etcd", "Failed", "stat /var/lib/etcd.snapshot: no such file or directory")
			}
		}},
		{"19b", "takes a damaged upload; only the restore finds it out, and leaves data behind that keeps the next Bootstrap out", etcdSvcSource, seen, power, func(t *testing.T, e *env) {
			solo := e.solo(t)
			node := solo.cps[0]
			damaged := e.snapshot(t, e.cps[0])
			damaged[len(damaged)/2] ^= 1

			solo.recoverInto(t, node, damaged)
			solo.serviceState(t, node, "etcd", "Failed", "expected sha256")

			_, err := solo.admin(t, node).EtcdRecover(within(t, time.Minute), bytes.NewReader(e.snapshot(t, e.cps[0])))
			require.NoError(t, err)
			refused(t, solo.admin(t, node).Bootstrap(within(t, short), &machine.BootstrapRequest{RecoverEtcd: true}), codes.AlreadyExists, "etcd data directory is not empty")
		}},
		{"31b", "restores a snapshot into an etcd of one member, after its EPHEMERAL partition was wiped", etcdSvcSource, seen, power, func(t *testing.T, e *env) {
			solo := e.solo(t)
			node := solo.cps[0]
			before := solo.bootID(t, node)

			require.NoError(t, solo.admin(t, node).ResetGeneric(within(t, short), wipeEphemeral()))
			solo.rebooted(t, node, before)
			solo.recoverInto(t, node, e.snapshot(t, e.cps[0]))
			solo.voters(t, node, 1)
			solo.ready(t, node)
		}},
		{"29c", "that is the only member can't leave etcd nor hand leadership over", etcdSource, seen, power, func(t *testing.T, e *env) {
			solo := e.solo(t)
			c := solo.admin(t, solo.cps[0])

			_, err := c.EtcdForfeitLeadership(within(t, time.Minute), &machine.EtcdForfeitLeadershipRequest{})
			refused(t, err, codes.Unknown, "failed to forfeit leadership: cannot forfeit leadership, only one member")
			refused(t, c.EtcdLeaveCluster(within(t, time.Minute), &machine.EtcdLeaveClusterRequest{}), codes.Unknown, "re-configuration failed due to not enough started members")
			solo.voters(t, solo.cps[0], 1)
		}},
		{"9", "that is the only member answers a graceful reset with OK, fails to leave etcd, and wipes nothing", tasksSource, fromSource, power, func(t *testing.T, e *env) {
			solo := e.solo(t)
			node := solo.cps[0]
			before := solo.bootID(t, node)
			member := memberID(t, solo.admin(t, node))
			events := solo.watch(t, solo.admin(t, node))
			goOn := e.holdGoingDown(t, node)
			req := wipeEphemeral()
			req.Graceful = true

			require.NoError(t, solo.admin(t, node).ResetGeneric(within(t, short), req))
			events.wait(t, "FATAL", func(ev client.Event) bool {
				s, ok := ev.Payload.(*machine.SequenceEvent)

				return ok && s.Action == machine.SequenceEvent_NOOP && s.GetError().GetCode().String() == "FATAL"
			})
			goOn()
			solo.rebooted(t, node, before)
			solo.until(t, node, 5*minute, func(ctx context.Context, c *client.Client) error {
				resp, err := c.EtcdStatus(ctx)
				if err == nil && resp.Messages[0].MemberStatus.MemberId != member {
					err = errors.New("the member is another one")
				}

				return err
			})
			solo.ready(t, node)
		}},
		{"8", "reboots by itself some seconds after a sequence failed for good", "internal/app/machined/main.go", fromSource, power, func(t *testing.T, e *env) {
			// The reboot of the expectation before: the events of that boot are gone, the boot that followed is there.
			solo := e.solo(t)
			events := solo.watch(t, solo.admin(t, solo.cps[0]), client.WithTailEvents(-1))
			events.wait(t, "the boot", sequence("boot", machine.SequenceEvent_STOP))
			require.False(t, events.find(sequence("reset", machine.SequenceEvent_START)))
		}},
		{"6b", "lets Shutdown take over a boot, and is off then", tableSource, fromSource, power, func(t *testing.T, e *env) {
			solo := e.solo(t)
			node := solo.cps[0]
			before := solo.bootID(t, node)

			_, err := solo.admin(t, node).RebootWithResponse(within(t, short))
			require.NoError(t, err)
			boot := solo.rebooted(t, node, before)

			_, err = solo.admin(t, node).ShutdownWithResponse(within(t, short), client.WithShutdownForce(true))
			require.NoError(t, err)
			e.off(t, node)
			e.powerOn(t, node)
			solo.rebooted(t, node, boot)
			solo.ready(t, node)
		}},
		{"2", "wipes the whole system disk and powers off for a Reset without anything said", "api/machine/machine.proto", fromSource, power, func(t *testing.T, e *env) {
			solo := e.solo(t)
			node := solo.cps[0]

			require.NoError(t, solo.admin(t, node).ResetGeneric(within(t, short), &machine.ResetRequest{}))
			e.off(t, node)
			e.powerOn(t, node)
			e.eventually(t, 10*minute, func(ctx context.Context) error {
				s, err := machineStatus(ctx, insecure(t, node))
				if err == nil && s.Stage != runtime.MachineStageMaintenance {
					err = errors.New("the stage is " + s.Stage.String())
				}

				return err
			})
		}},
		{"50c", "that vanished stays a member in the others' discovery for half an hour", "internal/app/machined/pkg/controllers/cluster/discovery_service.go", fromSource, power, func(t *testing.T, e *env) {
			node := e.workers[0]
			name := hostname(t, e.admin(t, node))

			e.powerOff(t, node)
			e.off(t, node)

			list, err := memberNames(within(t, short), e.admin(t, e.cps[0]))
			require.NoError(t, err)
			require.Contains(t, list, name)
			e.powerOn(t, node)
			e.ready(t, node)
		}},
	}
}

// recoveryExpectations are Talos's own disaster recovery (internal/integration/api/etcd-recover.go) and what follows it.
func recoveryExpectations() []expectation {
	const source = "internal/integration/api/etcd-recover.go"

	return []expectation{
		{"31c", "goes through Talos's disaster recovery: snapshot, all but one leave, all are wiped, one is recovered, the others join it as new members", source, seen, disruptive, func(t *testing.T, e *env) {
			snapshot := e.snapshot(t, e.cps[0])
			old := e.voters(t, e.cps[0], 3)

			for i, node := range e.cps[1:] {
				e.leave(t, node, append([]string{e.cps[0]}, e.cps[1+i:]...)...)
			}

			boots := map[string]string{}
			for _, node := range e.cps {
				boots[node] = e.bootID(t, node)
			}

			for _, node := range e.cps {
				require.NoError(t, e.admin(t, node).ResetGeneric(within(t, short), wipeEphemeral()))
			}

			for _, node := range e.cps {
				e.rebooted(t, node, boots[node])
				e.until(t, node, minute, func(ctx context.Context, c *client.Client) error {
					err := listMember(ctx, c)
					if status.Code(err) == codes.Unknown {
						return nil
					}

					return errors.Join(errors.New("the data isn't absent"), err)
				})
			}

			e.recoverInto(t, e.cps[1], snapshot)
			now := e.voters(t, e.cps[1], 3)

			for _, m := range now {
				for _, before := range old {
					if before.Id == m.Id {
						require.NotNil(t, memberOf([]*machine.EtcdMember{m}, e.cps[1]), "%s joined with the ID it had", m.Hostname)
					}
				}
			}

			e.ready(t, e.cps...)
		}},
		{"31d", "that was recovered twice from snapshots has the same member ID again", etcdSvcSource, seen, disruptive, func(t *testing.T, e *env) {
			snapshot := e.snapshot(t, e.cps[1])
			recovered := memberID(t, e.admin(t, e.cps[1]))

			e.leave(t, e.cps[0])
			e.leave(t, e.cps[2], e.cps[1], e.cps[2])

			boot := e.bootID(t, e.cps[1])
			require.NoError(t, e.admin(t, e.cps[1]).ResetGeneric(within(t, short), wipeEphemeral()))
			e.rebooted(t, e.cps[1], boot)
			e.recoverInto(t, e.cps[1], snapshot)
			e.voters(t, e.cps[1], 1)
			require.Equal(t, recovered, memberID(t, e.admin(t, e.cps[1])))

			for _, node := range []string{e.cps[0], e.cps[2]} {
				before := e.bootID(t, node)
				_, err := e.admin(t, node).RebootWithResponse(within(t, short))
				require.NoError(t, err)
				e.rebooted(t, node, before)
			}

			e.voters(t, e.cps[1], 3)
			e.ready(t, e.cps...)
		}},
	}
}
