package talossim_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/siderolabs/talos/pkg/machinery/api/common"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	"github.com/siderolabs/talos/pkg/machinery/resources/network"
	runtimeres "github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"ichor.maesh.dev/internal/talossim"
)

func (b *bench) hostname(ctx context.Context, n *talossim.Node) (string, error) {
	r, err := safe.StateGetByID[*network.HostnameStatus](ctx, b.admin(n).COSI, network.HostnameID)
	if err != nil {
		return "", err
	}
	return r.TypedSpec().Hostname, nil
}

func (b *bench) rebooted(n *talossim.Node, before string) {
	b.t.Helper()
	b.eventually(n.Name()+" is in another boot", func(ctx context.Context) error {
		now, err := b.bootID(ctx, n)
		if err != nil {
			return err
		}
		if now == before {
			return errors.New("still the same boot")
		}
		return nil
	})
}

func (b *bench) currentBoot(n *talossim.Node) string {
	b.t.Helper()
	var id string
	b.eventually(n.Name()+"'s boot ID", func(ctx context.Context) (err error) {
		id, err = b.bootID(ctx, n)
		return err
	})
	return id
}

func (b *bench) reset(n *talossim.Node, in *machineapi.ResetRequest) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), 5*time.Minute)
	defer cancel()
	resp, err := b.admin(n).ResetGenericWithResponse(ctx, in)
	require.NoError(b.t, err)
	require.NotEmpty(b.t, resp.GetMessages()[0].GetActorId())
}

func wipe(labels ...string) *machineapi.ResetRequest {
	in := &machineapi.ResetRequest{Reboot: true, Mode: machineapi.ResetRequest_SYSTEM_DISK}
	for _, l := range labels {
		in.SystemPartitionsToWipe = append(in.SystemPartitionsToWipe, &machineapi.ResetPartitionSpec{Label: l, Wipe: true})
	}
	return in
}

// TestAClusterLivesThroughWhatItsOperatorDoes follows one cluster of three through the things that change its etcd.
func TestAClusterLivesThroughWhatItsOperatorDoes(t *testing.T) {
	b := newBench(t, talossim.Options{First: "127.0.20.21", ControlPlanes: 3})
	nodes := b.farm.Nodes()
	b.configure(nodes...)
	b.bootstrap(nodes[0])
	members := b.voters(nodes[0], 3)
	b.ready(nodes...)
	idOf := func(n *talossim.Node) uint64 {
		var id uint64
		b.eventually("the member of "+n.Name(), func(ctx context.Context) error {
			members, err := b.members(ctx, nodes[0])
			if err != nil {
				return err
			}
			for _, m := range members {
				if bytes.Contains([]byte(m.GetPeerUrls()[0]), []byte(n.Address()+":")) {
					id = m.GetId()
					return nil
				}
			}
			return errors.New("no member")
		})
		return id
	}
	require.Len(t, members, 3)

	t.Run("a reboot answers first, keeps the member and changes the boot ID", func(t *testing.T) {
		before, id := b.currentBoot(nodes[1]), idOf(nodes[1])
		goOn := b.holdGoingDown(nodes[1])
		require.NoError(t, b.admin(nodes[1]).Reboot(t.Context()))
		_, err := b.bootID(t.Context(), nodes[1])
		require.NoError(t, err, "the API is still there after the answer")
		goOn()
		b.rebooted(nodes[1], before)
		b.voters(nodes[1], 3)
		b.ready(nodes[1])
		require.Equal(t, id, idOf(nodes[1]))
	})

	t.Run("a power cut takes connections without a word and the member comes back", func(t *testing.T) {
		before := b.currentBoot(nodes[2])
		require.NoError(t, nodes[2].PowerCycle())
		b.rebooted(nodes[2], before)
		b.voters(nodes[2], 3)
		b.ready(nodes[2])
	})

	t.Run("a wiped EPHEMERAL rejoins by itself under its old name and a new member ID", func(t *testing.T) {
		before, id := b.currentBoot(nodes[2]), idOf(nodes[2])
		name, err := b.hostname(t.Context(), nodes[2])
		require.NoError(t, err)
		b.reset(nodes[2], wipe("EPHEMERAL"))
		b.rebooted(nodes[2], before)
		b.eventually("a new member", func(context.Context) error {
			if idOf(nodes[2]) == id {
				return errors.New("the old member")
			}
			return nil
		})
		b.voters(nodes[0], 3)
		again, err := b.hostname(t.Context(), nodes[2])
		require.NoError(t, err)
		require.Equal(t, name, again)
		b.ready(nodes[2])
	})

	t.Run("a node that left runs no etcd until it reboots, and rejoins then", func(t *testing.T) {
		n := nodes[2]
		// What is proposed to an etcd without a leader is lost: the one that leaves doesn't lead.
		b.eventually("another one leads", func(ctx context.Context) error {
			resp, err := b.admin(n).EtcdForfeitLeadership(ctx, &machineapi.EtcdForfeitLeadershipRequest{})
			if err == nil && resp.GetMessages()[0].GetMember() != "" {
				err = errors.New("it led")
			}
			return err
		})
		require.NoError(t, b.admin(n).EtcdLeaveCluster(t.Context(), &machineapi.EtcdLeaveClusterRequest{}))
		b.voters(nodes[0], 2)
		svc, err := b.service(t.Context(), n, "etcd")
		require.NoError(t, err)
		require.Equal(t, "Finished", svc.GetState())
		b.eventually("no data", func(ctx context.Context) error { return b.noData(ctx, n) })
		before := b.currentBoot(n)
		require.NoError(t, b.admin(n).Reboot(t.Context()))
		b.rebooted(n, before)
		b.voters(nodes[0], 3)
		b.ready(n)
	})

	t.Run("a member removed from afar keeps crashing until its EPHEMERAL is wiped", func(t *testing.T) {
		n := nodes[1]
		b.remove(nodes[0], idOf(n))
		b.voters(nodes[0], 2)
		b.eventually("etcd is unhealthy", func(ctx context.Context) error {
			svc, err := b.service(ctx, n, "etcd")
			if err != nil {
				return err
			}
			if svc.GetHealth().GetHealthy() {
				return errors.New("still healthy")
			}
			return nil
		})
		before := b.currentBoot(n)
		b.reset(n, wipe("EPHEMERAL"))
		b.rebooted(n, before)
		b.voters(nodes[0], 3)
	})

	t.Run("a wiped STATE waits in maintenance under a new name, which its old member then blocks", func(t *testing.T) {
		n := nodes[2]
		b.ready(n)
		id := idOf(n)
		name, err := b.hostname(t.Context(), n)
		require.NoError(t, err)
		b.reset(n, wipe("STATE", "EPHEMERAL"))
		b.eventually("maintenance", func(ctx context.Context) error {
			r, err := safe.StateGetByID[*runtimeres.MachineStatus](ctx, b.insecure(n).COSI, runtimeres.MachineStatusID)
			if err != nil {
				return err
			}
			if r.TypedSpec().Stage != runtimeres.MachineStageMaintenance || !r.TypedSpec().Status.Ready {
				return fmt.Errorf("%v", r.TypedSpec())
			}
			return nil
		})
		boots := n.Boots()
		b.configure(n)
		b.eventually("etcd waits to join", func(ctx context.Context) error {
			svc, err := b.service(ctx, n, "etcd")
			if err != nil {
				return err
			}
			if svc.GetState() != "Preparing" {
				return fmt.Errorf("etcd is %s", svc.GetState())
			}
			return nil
		})
		require.Equal(t, boots, n.Boots(), "META was kept: no installation, no reboot")
		again, err := b.hostname(t.Context(), n)
		require.NoError(t, err)
		require.NotEqual(t, name, again)
		require.Equal(t, id, idOf(n), "the stale member stands in the way")
		b.remove(nodes[0], id)
		b.voters(nodes[0], 3)
	})
}

// remove removes a member. etcd refuses while its members haven't been connected for five seconds.
func (b *bench) remove(via *talossim.Node, id uint64) {
	b.t.Helper()
	b.eventually("the removal", func(ctx context.Context) error {
		err := b.admin(via).EtcdRemoveMemberByID(ctx, &machineapi.EtcdRemoveMemberByIDRequest{MemberId: id})
		if client.StatusCode(err) == codes.NotFound {
			return nil
		}
		return err
	})
}

func (b *bench) noData(ctx context.Context, n *talossim.Node) error {
	stream, err := b.admin(n).MachineClient.List(ctx, &machineapi.ListRequest{Root: "/var/lib/etcd/member"})
	if err != nil {
		return err
	}
	_, err = stream.Recv()
	if client.StatusCode(err) != codes.Unknown || !bytes.Contains([]byte(err.Error()), []byte("lstat /var/lib/etcd/member: no such file or directory")) {
		return fmt.Errorf("data: %w", err)
	}
	return nil
}

func TestASnapshotBringsAClusterBack(t *testing.T) {
	b := newBench(t, talossim.Options{First: "127.0.20.31", ControlPlanes: 1})
	n := b.farm.Nodes()[0]
	b.configure(n)
	b.bootstrap(n)
	old := b.voters(n, 1)
	b.ready(n)

	stream, err := b.admin(n).EtcdSnapshot(t.Context(), &machineapi.EtcdSnapshotRequest{})
	require.NoError(t, err)
	snapshot, err := io.ReadAll(stream)
	require.NoError(t, err)
	require.Equal(t, 32, len(snapshot)%512)
	sum := sha256.Sum256(snapshot[:len(snapshot)-32])
	require.Equal(t, sum[:], snapshot[len(snapshot)-32:])

	t.Run("the last member can't be reset gracefully: the machine reboots with nothing wiped", func(t *testing.T) {
		before := b.currentBoot(n)
		in := wipe("EPHEMERAL")
		in.Graceful = true
		b.reset(n, in)
		b.rebooted(n, before)
		require.Equal(t, old[0].GetId(), b.voters(n, 1)[0].GetId())
		b.ready(n)
	})

	recoverWith := func(data []byte) {
		b.eventually("the upload", func(ctx context.Context) error {
			_, err := b.admin(n).EtcdRecover(ctx, bytes.NewReader(data))
			return err
		})
		b.eventually("the recovery's start", func(ctx context.Context) error {
			return b.admin(n).Bootstrap(ctx, &machineapi.BootstrapRequest{RecoverEtcd: true})
		})
	}
	wipeAgain := func() {
		before := b.currentBoot(n)
		b.reset(n, wipe("EPHEMERAL"))
		b.rebooted(n, before)
		b.eventually("no data", func(ctx context.Context) error { return b.noData(ctx, n) })
	}
	failed := func(text string) {
		b.eventually("a failed etcd", func(ctx context.Context) error {
			svc, err := b.service(ctx, n, "etcd")
			if err != nil {
				return err
			}
			events := svc.GetEvents().GetEvents()
			last := events[len(events)-1].GetMsg()
			if svc.GetState() != "Failed" || !bytes.Contains([]byte(last), []byte(text)) {
				return fmt.Errorf("etcd is %s: %s", svc.GetState(), last)
			}
			return nil
		})
	}

	t.Run("a recovery without an upload is answered OK and fails in the background", func(t *testing.T) {
		wipeAgain()
		b.eventually("the recovery's start", func(ctx context.Context) error {
			return b.admin(n).Bootstrap(ctx, &machineapi.BootstrapRequest{RecoverEtcd: true})
		})
		failed("stat /var/lib/etcd.snapshot: no such file or directory")
	})

	t.Run("a flipped byte is found in the background and what it leaves blocks the next try", func(t *testing.T) {
		bad := bytes.Clone(snapshot)
		bad[len(bad)/2] ^= 1
		recoverWith(bad)
		failed("Failed to run pre stage: error recovering from the snapshot: expected sha256")
		_, err := b.admin(n).EtcdRecover(t.Context(), bytes.NewReader(snapshot))
		require.NoError(t, err)
		err = b.admin(n).Bootstrap(t.Context(), &machineapi.BootstrapRequest{RecoverEtcd: true})
		require.Equal(t, codes.AlreadyExists, client.StatusCode(err))
	})

	t.Run("a good snapshot brings back a cluster of one, with another member ID", func(t *testing.T) {
		wipeAgain()
		recoverWith(snapshot)
		now := b.voters(n, 1)
		require.NotEqual(t, old[0].GetId(), now[0].GetId())
		b.ready(n)
		err := b.admin(n).Bootstrap(t.Context(), &machineapi.BootstrapRequest{})
		require.Equal(t, codes.AlreadyExists, client.StatusCode(err))
	})
}

func TestASecondSequenceIsAnsweredOKAndDropped(t *testing.T) {
	b := newBench(t, talossim.Options{First: "127.0.20.41", ControlPlanes: 1})
	n := b.farm.Nodes()[0]
	b.configure(n)
	b.bootstrap(n)
	b.ready(n)
	c := b.admin(n)
	events, err := c.MachineClient.Events(t.Context(), &machineapi.EventsRequest{})
	require.NoError(t, err)
	hello, err := events.Recv()
	require.NoError(t, err)
	require.Empty(t, hello.GetData().GetTypeUrl())
	until := func(wanted func(*machineapi.SequenceEvent) bool) (*machineapi.SequenceEvent, string) {
		for {
			e, err := events.Recv()
			require.NoError(t, err)
			if e.GetData().GetTypeUrl() != "talos/runtime/machine.SequenceEvent" {
				continue
			}
			seq := &machineapi.SequenceEvent{}
			require.NoError(t, e.GetData().UnmarshalTo(seq))
			if wanted(seq) {
				return seq, e.GetActorId()
			}
		}
	}
	defer b.holdGoingDown(n)()
	require.NoError(t, c.Reboot(t.Context()))
	until(func(s *machineapi.SequenceEvent) bool {
		return s.GetSequence() == "reboot" && s.GetAction() == machineapi.SequenceEvent_START
	})
	b.reset(n, wipe("EPHEMERAL"))
	seq, actor := until(func(s *machineapi.SequenceEvent) bool { return s.GetError().GetCode() == common.Code_LOCKED })
	require.Empty(t, actor)
	require.Equal(t, "reset", seq.GetSequence())
	require.Empty(t, n.Accepted("Reset"))
	require.Len(t, n.Accepted("Reboot"), 1)
	require.Len(t, n.Accepted("Bootstrap"), 1)
}
