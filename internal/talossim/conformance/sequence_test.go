package conformance_test

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"github.com/stretchr/testify/require"
)

const (
	minute = time.Minute

	lockSource   = "internal/app/machined/pkg/runtime/v1alpha1/v1alpha1_priority_lock.go"
	tableSource  = "internal/app/machined/pkg/runtime/sequencer.go"
	eventsSource = "internal/app/machined/pkg/runtime/v1alpha1/v1alpha1_events.go"
	tasksSource  = "internal/app/machined/pkg/runtime/v1alpha1/v1alpha1_sequencer_tasks.go"
)

func sequenceExpectations() []expectation {
	return []expectation{
		{"4", "answers Reboot with OK and an actor before it acts, then tells of the sequence under that actor", serverSource, fromSource, disruptive, func(t *testing.T, e *env) {
			node := e.workers[0]
			before := e.bootID(t, node)
			events := e.watch(t, e.admin(t, node))
			goOn := e.holdGoingDown(t, node)

			resp, err := e.admin(t, node).RebootWithResponse(within(t, short))
			require.NoError(t, err)

			actor := resp.Messages[0].ActorId
			require.Len(t, actor, 36)
			events.wait(t, "the reboot's start", func(ev client.Event) bool {
				return sequence("reboot", machine.SequenceEvent_START)(ev) && ev.ActorID == actor
			})
			events.wait(t, "a phase", func(ev client.Event) bool {
				p, ok := ev.Payload.(*machine.PhaseEvent)

				return ok && p.Phase == "cleanup" && p.Action == machine.PhaseEvent_START
			})
			events.wait(t, "the stage rebooting", func(ev client.Event) bool {
				s, ok := ev.Payload.(*machine.MachineStatusEvent)

				return ok && s.Stage == machine.MachineStatusEvent_REBOOTING
			})
			goOn()
			e.rebooted(t, node, before)
		}},
		{"11", "cuts calls under way when it goes away: Unavailable, a reset or a refused connection, then a new boot", "internal/app/apid/service.go", seen, disruptive, func(t *testing.T, e *env) {
			node := e.workers[0]
			e.ready(t, node)
			before := e.bootID(t, node)
			c := e.admin(t, node)

			_, err := c.RebootWithResponse(within(t, short))
			require.NoError(t, err)

			var cut error

			e.eventually(t, 5*minute, func(ctx context.Context) error {
				if _, cut = c.Version(ctx); cut == nil {
					return errors.New("it still answers")
				}

				return nil
			})
			gone(t, cut)
			require.NotEqual(t, before, e.rebooted(t, node, before))
		}},
		{"10b", "has another boot ID after each reboot, and counts resource versions anew", "internal/app/machined/pkg/runtime/v1alpha2", fromSource, disruptive, func(t *testing.T, e *env) {
			node := e.workers[0]
			e.ready(t, node)

			seen := map[string]bool{e.bootID(t, node): true}

			for range 2 {
				last := e.bootID(t, node)
				_, err := e.admin(t, node).RebootWithResponse(within(t, short))
				require.NoError(t, err)

				id := e.rebooted(t, node, last)
				require.False(t, seen[id])

				seen[id] = true

				e.ready(t, node)
			}
		}},
		{"47c", "loses its events at a reboot and ends the streams", eventsSource, fromSource, disruptive, func(t *testing.T, e *env) {
			node := e.workers[0]
			before := e.bootID(t, node)
			events := e.watch(t, e.admin(t, node))

			resp, err := e.admin(t, node).RebootWithResponse(within(t, short))
			require.NoError(t, err)

			if end := events.streamEnd(t); !errors.Is(end, io.EOF) {
				gone(t, end)
			}

			e.rebooted(t, node, before)
			e.ready(t, node)

			again := e.watch(t, e.admin(t, node), client.WithTailEvents(-1))
			again.wait(t, "the boot", sequence("boot", machine.SequenceEvent_STOP))
			require.False(t, again.find(func(ev client.Event) bool { return ev.ActorID == resp.Messages[0].ActorId }))
		}},
		{"5", "answers a Reset that may not start with OK and an actor, and drops it: one event LOCKED without an actor", lockSource, fromSource, disruptive, func(t *testing.T, e *env) {
			node := e.workers[0]
			before := e.bootID(t, node)
			events := e.watch(t, e.admin(t, node))
			goOn := e.holdGoingDown(t, node)

			_, err := e.admin(t, node).RebootWithResponse(within(t, short))
			require.NoError(t, err)
			events.wait(t, "the reboot's start", sequence("reboot", machine.SequenceEvent_START))

			resp, err := e.admin(t, node).ResetGenericWithResponse(within(t, short), wipeEphemeral())
			require.NoError(t, err)
			require.NotEmpty(t, resp.Messages[0].ActorId)
			events.wait(t, "LOCKED", func(ev client.Event) bool {
				s, ok := ev.Payload.(*machine.SequenceEvent)

				return ok && s.Action == machine.SequenceEvent_NOOP && s.GetError().GetCode().String() == "LOCKED" &&
					s.GetError().GetMessage() == "sequence not started: locked" && ev.ActorID == ""
			})
			goOn()
			e.rebooted(t, node, before)
			e.ready(t, node)
		}},
		{"6a", "lets a Reset take over a boot, after which the boot is seen to stop without an error", tableSource, fromSource, disruptive, func(t *testing.T, e *env) {
			node := e.workers[0]
			before := e.bootID(t, node)

			_, err := e.admin(t, node).RebootWithResponse(within(t, short))
			require.NoError(t, err)

			boot := e.rebooted(t, node, before)
			e.stage(t, node, runtime.MachineStageBooting, runtime.MachineStageRunning)

			resp, err := e.admin(t, node).ResetGenericWithResponse(within(t, short), wipeEphemeral())
			require.NoError(t, err)
			require.NotEmpty(t, resp.Messages[0].ActorId)
			e.rebooted(t, node, boot)
			e.ready(t, node)
		}},
		{"7", "tells each sequence by START and STOP, STOP without an error also when it was cancelled", eventsSource, fromSource, disruptive, func(t *testing.T, e *env) {
			events := e.watch(t, e.admin(t, e.workers[0]), client.WithTailEvents(-1))

			events.wait(t, "the boot's start", sequence("boot", machine.SequenceEvent_START))
			events.wait(t, "the boot's stop", func(ev client.Event) bool {
				s, ok := ev.Payload.(*machine.SequenceEvent)

				return ok && s.Sequence == "boot" && s.Action == machine.SequenceEvent_STOP && s.Error == nil
			})
		}},
	}
}

func resetExpectations() []expectation {
	const volumeSource = serverSource

	return []expectation{
		{"33", "refuses to wipe what isn't a partition or doesn't exist with Unknown: ETCD is not located, an unknown label has no volume", volumeSource, fromSource, disruptive, func(t *testing.T, e *env) {
			c := e.admin(t, e.cps[0])

			reset := func(label string) error {
				return c.ResetGeneric(within(t, short), &machine.ResetRequest{
					Reboot: true, SystemPartitionsToWipe: []*machine.ResetPartitionSpec{{Label: label, Wipe: true}},
				})
			}

			refusedUnknown(t, reset("ETCD"), `volume "ETCD" is not located`)
			refusedUnknown(t, reset("NONESUCH"), `failed to get volume status with label "NONESUCH"`)
		}},
		{"33b", "refuses a mode that contradicts what is to be wiped, and disks that it can't wipe", volumeSource, fromSource, disruptive, func(t *testing.T, e *env) {
			c := e.admin(t, e.workers[0])

			refusedUnknown(t, c.ResetGeneric(within(t, short), &machine.ResetRequest{Mode: machine.ResetRequest_SYSTEM_DISK, UserDisksToWipe: []string{"/dev/sdz"}}),
				"reset failed: invalid input, wipe mode SYSTEM_DISK doesn't support UserDisksToWipe parameter")
			refusedUnknown(t, c.ResetGeneric(within(t, short), &machine.ResetRequest{
				Mode: machine.ResetRequest_USER_DISKS, SystemPartitionsToWipe: []*machine.ResetPartitionSpec{{Label: "STATE", Wipe: true}},
			}), "reset failed: invalid input, wipe mode USER_DISKS doesn't support SystemPartitionsToWipe parameter")
			refusedUnknown(t, c.ResetGeneric(within(t, short), &machine.ResetRequest{Mode: machine.ResetRequest_USER_DISKS, UserDisksToWipe: []string{"/dev/sdz"}}),
				"/dev/sdz wasn't found")
		}},
		{"3", "checks entries that aren't to be wiped and wipes none of them, but reboots", volumeSource, fromSource, disruptive, func(t *testing.T, e *env) {
			node := e.cps[2]
			before := e.bootID(t, node)
			member := memberID(t, e.admin(t, node))

			require.NoError(t, e.admin(t, node).ResetGeneric(within(t, short), &machine.ResetRequest{
				Reboot: true, SystemPartitionsToWipe: []*machine.ResetPartitionSpec{{Label: "EPHEMERAL"}, {Label: "STATE"}},
			}))
			e.rebooted(t, node, before)
			e.voters(t, e.cps[0], len(e.cps))
			e.until(t, node, 5*minute, func(ctx context.Context, c *client.Client) error {
				resp, err := c.EtcdStatus(ctx)
				if err == nil && resp.Messages[0].MemberStatus.MemberId != member {
					err = errors.New("the member is another one")
				}

				return err
			})
			e.ready(t, node)
		}},
		{"32a", "keeps its config, hostname and identity when EPHEMERAL is wiped, and has an empty /var", "internal/pkg/partition/wipe.go", fromSource, disruptive, func(t *testing.T, e *env) {
			node := e.workers[0]
			before := e.bootID(t, node)
			data := e.restore(t, node)
			name := hostname(t, e.admin(t, node))
			id := identity(t, e.admin(t, node))

			require.NoError(t, e.admin(t, node).ResetGeneric(within(t, short), wipeEphemeral()))
			e.rebooted(t, node, before)
			e.ready(t, node)
			require.Equal(t, string(data), string(e.restore(t, node)))
			require.Equal(t, name, hostname(t, e.admin(t, node)))
			require.Equal(t, id, identity(t, e.admin(t, node)))
		}},
	}
}

func refusedUnknown(t *testing.T, err error, text string) {
	t.Helper()

	refused(t, err, 2, text)
}
