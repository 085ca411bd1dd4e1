package conformance_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	"github.com/siderolabs/talos/pkg/machinery/role"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// snapshot takes one with a backup role and checks its chunks and trailer.
func (e *cluster) snapshot(t *testing.T, node string) []byte {
	t.Helper()

	stream, err := e.as(t, node, role.EtcdBackup).MachineClient.EtcdSnapshot(within(t, time.Minute), &machine.EtcdSnapshotRequest{})
	require.NoError(t, err)

	var all bytes.Buffer

	for {
		data, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}

		require.NoError(t, err)
		require.LessOrEqual(t, len(data.Bytes), 1024)
		all.Write(data.Bytes)
	}

	raw := all.Bytes()
	require.Equal(t, sha256.Size, len(raw)%512, "a database and its SHA-256")

	body := raw[:len(raw)-sha256.Size]
	sum := sha256.Sum256(body)
	require.Equal(t, raw[len(body):], sum[:])

	return raw
}

// leader finds the node whose member leads, among all control planes or those given.
func (e *cluster) leader(t *testing.T, among ...string) (leader string, followers []string) {
	t.Helper()

	if len(among) == 0 {
		among = e.cps
	}

	e.eventually(t, time.Minute, func(ctx context.Context) error {
		leader, followers = "", nil

		for _, node := range among {
			c := e.admin(t, node)
			resp, err := c.EtcdStatus(ctx)

			_ = c.Close() // a slow host asks many times

			if err != nil {
				return err
			}

			if s := resp.Messages[0].MemberStatus; s.Leader == s.MemberId {
				leader = node
			} else {
				followers = append(followers, node)
			}
		}

		if leader == "" {
			return errors.New("no member leads")
		}

		return nil
	})

	return leader, followers
}

// remove takes a member out; etcd refuses for some seconds after a change of its members.
func (e *cluster) remove(t *testing.T, through string, id uint64) {
	t.Helper()

	e.until(t, through, time.Minute, func(ctx context.Context, c *client.Client) error {
		err := c.EtcdRemoveMemberByID(ctx, &machine.EtcdRemoveMemberByIDRequest{MemberId: id})
		if status.Code(err) == codes.NotFound {
			return nil // an attempt whose answer didn't come had its effect
		}

		return err
	})
}

// leave takes a node's own member out as Talos's disaster recovery does: leadership first, since what is proposed to an etcd
// without a leader is lost, and the caller waits for all of its time. members are the nodes that are still in.
func (e *cluster) leave(t *testing.T, node string, members ...string) {
	t.Helper()

	e.until(t, node, time.Minute, func(ctx context.Context, c *client.Client) error {
		if leader, _ := e.leader(t, members...); leader != node {
			return nil
		}

		_, err := c.EtcdForfeitLeadership(ctx, &machine.EtcdForfeitLeadershipRequest{})

		return errors.Join(errors.New("it leads"), err)
	})

	require.NoError(t, e.admin(t, node).EtcdLeaveCluster(within(t, 9*time.Minute), &machine.EtcdLeaveClusterRequest{}))
}

func etcdExpectations() []expectation {
	return []expectation{
		{"24", "answers a member list for the whole cluster whichever control plane is asked", "internal/pkg/etcd/endpoints.go", fromSource, bootstrapped, func(t *testing.T, e *env) {
			var first []*machine.EtcdMember

			for _, node := range e.cps {
				list, err := members(within(t, short), e.admin(t, node))
				require.NoError(t, err)
				require.Len(t, list, len(e.cps))

				if first == nil {
					first = list
				}

				for i := range list {
					require.Equal(t, first[i].Id, list[i].Id)
					require.NotEmpty(t, list[i].Hostname)
					require.NotEmpty(t, list[i].PeerUrls)
				}

				local, err := e.admin(t, node).EtcdMemberList(within(t, short), &machine.EtcdMemberListRequest{QueryLocal: true})
				require.NoError(t, err)
				require.Len(t, local.Messages[0].Members, len(e.cps))
			}
		}},
		{"24b", "answers etcd's status of its own member: ID, leader, size, revision index, versions", serverSource, fromSource, bootstrapped, func(t *testing.T, e *env) {
			for _, node := range e.cps {
				list, err := members(within(t, short), e.admin(t, node))
				require.NoError(t, err)
				e.until(t, node, minute, func(ctx context.Context, c *client.Client) error {
					resp, err := c.EtcdStatus(ctx)
					if err != nil {
						return err
					}

					s := resp.Messages[0].MemberStatus
					require.Equal(t, memberOf(list, node).Id, s.MemberId)
					require.NotZero(t, s.DbSize)
					require.NotZero(t, s.RaftIndex)
					require.NotEmpty(t, s.ProtocolVersion)
					require.False(t, s.IsLearner)

					if s.Leader == 0 {
						return errors.New("it names no leader")
					}

					return nil
				})
			}
		}},
		{"22", "streams a snapshot in chunks of at most 1024 bytes that end in the SHA-256 of all before; a worker has none", serverSource, fromSource, bootstrapped, func(t *testing.T, e *env) {
			require.NotEmpty(t, e.snapshot(t, e.cps[0]))

			stream, err := e.admin(t, e.workers[0]).MachineClient.EtcdSnapshot(within(t, short), &machine.EtcdSnapshotRequest{})
			require.NoError(t, err)

			_, err = stream.Recv()
			refused(t, err, codes.Unimplemented, "etcd snapshot is only available on control plane nodes")
		}},
		{"24c", "lists no alarms, defragments its member, and disarms alarms", serverSource, fromSource, changing, func(t *testing.T, e *env) {
			_, followers := e.leader(t)
			c := e.admin(t, followers[0])

			_, err := c.EtcdAlarmList(within(t, short))
			require.NoError(t, err)
			_, err = c.EtcdDefragment(within(t, time.Minute))
			require.NoError(t, err)
			_, err = c.EtcdAlarmDisarm(within(t, short))
			require.NoError(t, err)
		}},
		{"24d", "hands leadership over when it leads and names the new leader; a follower answers OK and names nobody", etcdSource, fromSource, changing, func(t *testing.T, e *env) {
			// On a busy host another may lead by the time that one is asked: then it is looked for again.
			forfeit := func(ctx context.Context, node string, names bool) error {
				resp, err := e.admin(t, node).EtcdForfeitLeadership(ctx, &machine.EtcdForfeitLeadershipRequest{})
				if err == nil && names != (resp.Messages[0].Member != "") {
					err = fmt.Errorf("it names %q", resp.Messages[0].Member)
				}

				return err
			}

			e.eventually(t, time.Minute, func(ctx context.Context) error {
				_, followers := e.leader(t)

				return forfeit(ctx, followers[0], false)
			})

			var leader string

			e.eventually(t, time.Minute, func(ctx context.Context) error {
				leader, _ = e.leader(t)

				return forfeit(ctx, leader, true)
			})
			e.eventually(t, time.Minute, func(context.Context) error {
				if now, _ := e.leader(t); now == leader {
					return errors.New("the leader is the old one")
				}

				return nil
			})
		}},
		{"30a", "answers the removal of an unknown member with NotFound", serverSource, fromSource, bootstrapped, func(t *testing.T, e *env) {
			err := e.admin(t, e.cps[0]).EtcdRemoveMemberByID(within(t, short), &machine.EtcdRemoveMemberByIDRequest{MemberId: 42})
			refused(t, err, codes.NotFound, "member not found")
		}},
		{"21", "takes an EtcdRecover upload also when its etcd is healthy, and only the Bootstrap after it is refused", serverSource, seen, changing, func(t *testing.T, e *env) {
			c := e.admin(t, e.cps[0])

			_, err := c.EtcdRecover(within(t, time.Minute), bytes.NewReader([]byte("not even a snapshot")))
			require.NoError(t, err)
			refused(t, c.Bootstrap(within(t, short), &machine.BootstrapRequest{RecoverEtcd: true}), codes.AlreadyExists, "etcd data directory is not empty")
		}},
	}
}

// membershipExpectations take members out of etcd and back in. Each leaves three voters.
func membershipExpectations() []expectation {
	return []expectation{
		{"29a", "leaves etcd when asked: its member and its data are gone, its etcd is Finished and can't be started", serverSource, seen, disruptive, func(t *testing.T, e *env) {
			node := e.cps[2]

			e.leave(t, node)
			e.voters(t, e.cps[0], 2)
			e.serviceState(t, node, "etcd", "Finished", "")
			refused(t, listMember(within(t, short), e.admin(t, node)), codes.Unknown, "no such file or directory")

			_, err := e.admin(t, node).ServiceStart(within(t, short), "etcd")
			refused(t, err, codes.Unknown, `service "etcd" doesn't support start operation via API`)
		}},
		{"29b", "that left etcd and reboots joins it again by itself, as a new member", etcdSvcSource, fromSource, disruptive, func(t *testing.T, e *env) {
			node := e.cps[2]
			before := e.bootID(t, node)

			_, err := e.admin(t, node).RebootWithResponse(within(t, short))
			require.NoError(t, err)
			e.rebooted(t, node, before)
			e.voters(t, e.cps[0], 3)
			e.ready(t, node)
		}},
		{"30", "whose member was removed from afar keeps starting its etcd in vain until its EPHEMERAL partition is wiped", etcdSvcSource, fromSource, disruptive, func(t *testing.T, e *env) {
			node := e.cps[2]
			list := e.voters(t, e.cps[0], 3)
			old := memberOf(list, node).Id

			e.remove(t, e.cps[0], old)
			e.voters(t, e.cps[0], 2)
			e.until(t, node, time.Minute, func(ctx context.Context, c *client.Client) error {
				s, err := service(ctx, c, "etcd")
				if err == nil && s.State == "Running" && s.GetHealth().GetHealthy() {
					err = errors.New("etcd runs and is healthy")
				}

				return err
			})
			require.NoError(t, listMember(within(t, short), e.admin(t, node)), "the data stays")

			before := e.bootID(t, node)
			require.NoError(t, e.admin(t, node).ResetGeneric(within(t, short), wipeEphemeral()))
			e.rebooted(t, node, before)

			list = e.voters(t, e.cps[0], 3)
			require.NotEqual(t, old, memberOf(list, node).Id, "a member that joins has a new ID")
			e.ready(t, node)
		}},
		{"27a", "that lost its data and kept its name joins again and takes its old member away", etcdSvcSource, seen, disruptive, func(t *testing.T, e *env) {
			node := e.cps[2]
			old := memberOf(e.voters(t, e.cps[0], 3), node)
			before := e.bootID(t, node)

			require.NoError(t, e.admin(t, node).ResetGeneric(within(t, short), wipeEphemeral()))
			e.rebooted(t, node, before)

			e.until(t, e.cps[0], 10*time.Minute, func(ctx context.Context, c *client.Client) error {
				list, err := members(ctx, c)
				if err != nil {
					return err
				}

				now := memberOf(list, node)
				if now == nil || now.Id == old.Id || now.IsLearner {
					return fmt.Errorf("the member is %v", now)
				}

				require.Len(t, list, 3)
				require.Equal(t, old.Hostname, now.Hostname)

				return nil
			})
			e.ready(t, node)
		}},
	}
}

func renamedExpectations() []expectation {
	return []expectation{
		{"32b", "boots into maintenance when STATE is wiped, and starts without another installation once it has a config: META was kept", "internal/app/machined/pkg/controllers/config/acquire.go", fromSource, disruptive, func(t *testing.T, e *env) {
			node := e.cps[2]
			data := e.restore(t, node)
			name := hostname(t, e.admin(t, node))
			id := identity(t, e.admin(t, node))

			require.NoError(t, e.admin(t, node).ResetGeneric(within(t, short), &machine.ResetRequest{
				Reboot: true, SystemPartitionsToWipe: []*machine.ResetPartitionSpec{{Label: "STATE", Wipe: true}, {Label: "EPHEMERAL", Wipe: true}},
			}))
			e.eventually(t, 10*time.Minute, func(ctx context.Context) error {
				_, err := insecure(t, node).Version(ctx)

				return err
			})

			events := e.watch(t, insecure(t, node), client.WithTailEvents(-1))
			e.give(t, node, data)
			events.wait(t, "the boot", sequence("boot", machine.SequenceEvent_START))
			require.False(t, events.find(func(ev client.Event) bool {
				p, ok := ev.Payload.(*machine.PhaseEvent)

				return ok && p.Phase == "install"
			}))

			e.until(t, node, 5*time.Minute, func(ctx context.Context, c *client.Client) error {
				_, err := c.Version(ctx)

				return err
			})
			require.NotEqual(t, name, hostname(t, e.admin(t, node)), "the stable hostname comes from the identity")
			require.NotEqual(t, id, identity(t, e.admin(t, node)))
		}},
		{"27b", "that came back under another name can't join while its old member holds its address, until that is removed", etcdSvcSource, fromSource, disruptive, func(t *testing.T, e *env) {
			node := e.cps[2]
			list, err := members(within(t, short), e.admin(t, e.cps[0]))
			require.NoError(t, err)

			stale := memberOf(list, node)
			require.NotNil(t, stale)

			e.serviceState(t, node, "etcd", "Preparing", "")
			e.stays(t, time.Second, func(ctx context.Context, c *client.Client) error {
				s, err := service(ctx, c, "etcd")
				if err == nil && s.State != "Preparing" {
					err = fmt.Errorf("etcd is %s", s.State)
				}

				return err
			}, node)

			e.remove(t, e.cps[0], stale.Id)

			now := memberOf(e.voters(t, e.cps[0], 3), node)
			require.NotEqual(t, stale.Hostname, now.Hostname)
			e.ready(t, node)
		}},
	}
}
