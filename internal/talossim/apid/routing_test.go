package apid_test

import (
	"testing"
	"time"

	cosi "github.com/cosi-project/runtime/api/v1alpha1"
	"github.com/siderolabs/talos/pkg/machinery/api/common"
	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	"github.com/siderolabs/talos/pkg/machinery/role"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
)

func TestRouting(t *testing.T) {
	a := newAuthority(t)
	one := startNode(t, a, "127.0.30.221", "cp-1", nodeOptions{})
	two := startNode(t, a, "127.0.30.222", "cp-2", nodeOptions{})
	worker := startNode(t, a, "127.0.30.223", "worker-1", nodeOptions{worker: true})
	admin := a.client(t, role.Admin)
	c := one.dial(t, a, admin)
	w := worker.dial(t, a, admin)

	t.Run("without routing the local node answers and Metadata is nil", func(t *testing.T) {
		resp, err := c.MachineClient.Hostname(within(t, soon), &emptypb.Empty{})
		require.NoError(t, err)
		require.Equal(t, "cp-1", resp.Messages[0].Hostname)
		require.Nil(t, resp.Messages[0].Metadata)
	})
	t.Run("node asks that node, one to one, and Metadata stays nil", func(t *testing.T) {
		resp, err := c.MachineClient.Hostname(client.WithNode(within(t, soon), two.address), &emptypb.Empty{})
		require.NoError(t, err)
		require.Equal(t, "cp-2", resp.Messages[0].Hostname)
		require.Nil(t, resp.Messages[0].Metadata)
	})
	t.Run("node returns the remote status unchanged", func(t *testing.T) {
		_, err := c.MachineClient.EtcdStatus(client.WithNode(within(t, soon), two.address), &emptypb.Empty{})
		require.Equal(t, codes.Unimplemented, status.Code(err))
		require.Equal(t, "etcd status is only available on control plane nodes", status.Convert(err).Message())
	})
	t.Run("node must be single-valued", func(t *testing.T) {
		ctx := metadata.AppendToOutgoingContext(within(t, soon), "node", one.address, "node", two.address)

		_, err := c.MachineClient.Hostname(ctx, &emptypb.Empty{})
		require.Equal(t, codes.InvalidArgument, status.Code(err))
		require.Equal(t, "node metadata must be single-valued", status.Convert(err).Message())
	})
	t.Run("nodes answers for each with the target as it was written", func(t *testing.T) {
		resp, err := c.MachineClient.Hostname(client.WithNodes(within(t, soon), one.address, two.address), &emptypb.Empty{})
		require.NoError(t, err)
		require.Len(t, resp.Messages, 2)

		got := map[string]string{}
		for _, m := range resp.Messages {
			got[m.Metadata.GetHostname()] = m.Hostname
		}

		require.Equal(t, map[string]string{one.address: "cp-1", two.address: "cp-2"}, got)
	})
	t.Run("nodes is OK with the error inside the message, even for one node", func(t *testing.T) {
		resp, err := c.MachineClient.EtcdStatus(client.WithNodes(within(t, soon), two.address), &emptypb.Empty{})
		require.NoError(t, err)
		require.Len(t, resp.Messages, 1)
		require.Equal(t, two.address, resp.Messages[0].Metadata.GetHostname())
		require.Contains(t, resp.Messages[0].Metadata.GetError(), "only available on control plane nodes")
		require.Equal(t, int32(codes.Unimplemented), resp.Messages[0].Metadata.GetStatus().GetCode())
	})
	t.Run("nodes puts a stream's error into a message", func(t *testing.T) {
		stream, err := c.MachineClient.List(client.WithNodes(within(t, soon), two.address), &machine.ListRequest{Root: "/var/lib/etcd/member"})
		require.NoError(t, err)

		info, err := stream.Recv()
		require.NoError(t, err)
		require.Contains(t, info.Metadata.GetError(), "no such file or directory")
		require.Equal(t, int32(codes.Unknown), info.Metadata.GetStatus().GetCode())
	})
	t.Run("nodes reports an unreachable node beside the others", func(t *testing.T) {
		resp, err := c.MachineClient.Hostname(client.WithNodes(within(t, soon), two.address, "127.0.30.249"), &emptypb.Empty{})
		require.NoError(t, err)
		require.Len(t, resp.Messages, 2)

		for _, m := range resp.Messages {
			if m.Metadata.GetHostname() == two.address {
				assert.Equal(t, "cp-2", m.Hostname)
			} else {
				assert.Equal(t, int32(codes.Unavailable), m.Metadata.GetStatus().GetCode())
			}
		}
	})
	t.Run("node reports an unreachable node as Unavailable", func(t *testing.T) {
		_, err := c.MachineClient.Hostname(client.WithNode(within(t, soon), "127.0.30.249"), &emptypb.Empty{})
		require.Equal(t, codes.Unavailable, status.Code(err))
	})
	t.Run("resources and lifecycle refuse nodes", func(t *testing.T) {
		ctx := client.WithNodes(within(t, soon), one.address)

		_, err := cosi.NewStateClient(c.Conn()).Get(ctx, &cosi.GetRequest{})
		require.Equal(t, codes.InvalidArgument, status.Code(err))
		require.Equal(t, "one-2-many proxying is not supported for method /cosi.resource.State/Get", status.Convert(err).Message())

		stream, err := c.LifecycleClient.Upgrade(ctx, &machine.LifecycleServiceUpgradeRequest{})
		require.NoError(t, err)

		_, err = stream.Recv()
		require.Equal(t, codes.InvalidArgument, status.Code(err))
	})
	t.Run("a target with a port is refused", func(t *testing.T) {
		_, err := c.MachineClient.Hostname(client.WithNode(within(t, soon), two.address+":50000"), &emptypb.Empty{})
		require.Equal(t, codes.Internal, status.Code(err))
		require.ErrorContains(t, err, "invalid target")
	})
	t.Run("a forwarded call is served locally", func(t *testing.T) {
		ctx := metadata.AppendToOutgoingContext(within(t, soon), "proxyfrom", "elsewhere", "node", two.address)

		resp, err := c.MachineClient.Hostname(ctx, &emptypb.Empty{})
		require.NoError(t, err)
		require.Equal(t, "cp-1", resp.Messages[0].Hostname)
	})
	t.Run("a worker forwards nothing", func(t *testing.T) {
		for _, ctx := range []func() error{
			func() error {
				_, err := w.MachineClient.Hostname(client.WithNode(within(t, soon), one.address), &emptypb.Empty{})

				return err
			},
			func() error {
				_, err := w.MachineClient.Hostname(client.WithNodes(within(t, soon), worker.address, one.address), &emptypb.Empty{})

				return err
			},
		} {
			err := ctx()
			require.Equal(t, codes.PermissionDenied, status.Code(err))
			require.Equal(t, "no request forwarding", status.Convert(err).Message())
		}
	})
	t.Run("a worker answers for itself by address and hostname", func(t *testing.T) {
		for _, target := range []string{worker.address, "worker-1"} {
			resp, err := w.MachineClient.Hostname(client.WithNode(within(t, soon), target), &emptypb.Empty{})
			require.NoError(t, err)
			require.Equal(t, "worker-1", resp.Messages[0].Hostname)

			resp, err = w.MachineClient.Hostname(client.WithNodes(within(t, soon), target), &emptypb.Empty{})
			require.NoError(t, err)
			require.Nil(t, resp.Messages[0].Metadata)
		}
	})
	t.Run("the roles of the first caller arrive at the second node", func(t *testing.T) {
		ctx := client.WithNode(within(t, soon), two.address)

		resp, err := one.dial(t, a, a.client(t, role.Reader)).MachineClient.Version(ctx, &emptypb.Empty{})
		require.NoError(t, err)
		require.Equal(t, "os:reader ", resp.Messages[0].Version.Tag)
	})
	t.Run("a node behind a broken cable runs into the caller's deadline", func(t *testing.T) {
		two.link.Partition()
		defer two.link.Heal()

		_, err := c.MachineClient.Hostname(client.WithNode(within(t, 300*time.Millisecond), two.address), &emptypb.Empty{})
		require.Equal(t, codes.DeadlineExceeded, status.Code(err))
	})
}

func TestAuthorization(t *testing.T) {
	a := newAuthority(t)
	n := startNode(t, a, "127.0.30.224", "cp-1", nodeOptions{})

	denied := func(t *testing.T, err error) bool {
		if status.Code(err) != codes.PermissionDenied {
			return false
		}

		require.Equal(t, "not authorized", status.Convert(err).Message())

		return true
	}

	calls := map[string]func(*testing.T, *client.Client) error{
		"Version": func(t *testing.T, c *client.Client) error { _, err := c.Version(within(t, soon)); return err },
		"Reset": func(t *testing.T, c *client.Client) error {
			return c.ResetGeneric(within(t, soon), &machine.ResetRequest{})
		},
		"Reboot": func(t *testing.T, c *client.Client) error {
			_, err := c.MachineClient.Reboot(within(t, soon), &machine.RebootRequest{})
			return err
		},
		"EtcdSnapshot": func(t *testing.T, c *client.Client) error {
			stream, err := c.MachineClient.EtcdSnapshot(within(t, soon), &machine.EtcdSnapshotRequest{})
			require.NoError(t, err)
			_, err = stream.Recv()
			return err
		},
		"EtcdStatus": func(t *testing.T, c *client.Client) error { _, err := c.EtcdStatus(within(t, soon)); return err },
		"MetaWrite":  func(t *testing.T, c *client.Client) error { return c.MetaWrite(within(t, soon), 10, nil) },
		"ApplyConfiguration": func(t *testing.T, c *client.Client) error {
			_, err := c.ApplyConfiguration(within(t, soon), &machine.ApplyConfigurationRequest{})
			return err
		},
		"EtcdRecover": func(t *testing.T, c *client.Client) error {
			stream, err := c.MachineClient.EtcdRecover(within(t, soon))
			require.NoError(t, err)
			_, err = stream.CloseAndRecv()
			return err
		},
	}

	may := map[role.Role][]string{
		role.Admin:      {"Version", "Reset", "Reboot", "EtcdSnapshot", "EtcdStatus", "MetaWrite", "ApplyConfiguration", "EtcdRecover"},
		role.Operator:   {"Version", "Reboot", "EtcdSnapshot", "EtcdStatus"},
		role.Reader:     {"Version", "EtcdStatus", "ApplyConfiguration"}, // the last is refused by the handler
		role.EtcdBackup: {"EtcdSnapshot", "EtcdStatus"},
		role.MetaWriter: {"MetaWrite"},
		"os:unheard-of": {},
	}

	for who, allowed := range may {
		t.Run(string(who)+" may call what the table says", func(t *testing.T) {
			c := n.dial(t, a, a.client(t, who))

			var got []string

			for name, call := range calls {
				if !denied(t, call(t, c)) {
					got = append(got, name)
				}
			}

			require.ElementsMatch(t, allowed, got)
		})
	}
}

func TestAnswersOfHandlers(t *testing.T) {
	a := newAuthority(t)
	n := startNode(t, a, "127.0.30.225", "cp-1", nodeOptions{})
	c := n.dial(t, a, a.client(t, role.Admin))

	t.Run("a plain error is Unknown with its text", func(t *testing.T) {
		_, err := c.MachineClient.LoadAvg(within(t, soon), &emptypb.Empty{})
		require.Equal(t, codes.Unknown, status.Code(err))
		require.Equal(t, "a plain error", status.Convert(err).Message())
	})
	t.Run("a panic is Internal", func(t *testing.T) {
		_, err := c.MachineClient.SystemStat(within(t, soon), &emptypb.Empty{})
		require.Equal(t, codes.Internal, status.Code(err))
	})
	t.Run("a method nobody registered is Unimplemented", func(t *testing.T) {
		_, err := c.TimeClient.Time(within(t, soon), &emptypb.Empty{})
		require.Equal(t, codes.Unimplemented, status.Code(err))
	})
}

func TestJournal(t *testing.T) {
	a := newAuthority(t)
	one := startNode(t, a, "127.0.30.226", "cp-1", nodeOptions{})
	two := startNode(t, a, "127.0.30.227", "cp-2", nodeOptions{})
	admin := a.client(t, role.Admin)
	c := one.dial(t, a, admin)

	require.NoError(t, c.ResetGeneric(client.WithNode(within(t, soon), two.address), &machine.ResetRequest{
		Reboot: true, SystemPartitionsToWipe: []*machine.ResetPartitionSpec{{Label: "EPHEMERAL", Wipe: true}},
	}))
	require.NoError(t, c.ResetGeneric(within(t, soon), &machine.ResetRequest{Graceful: true}))

	_, err := c.ApplyConfiguration(within(t, soon), &machine.ApplyConfigurationRequest{Data: []byte("token: canary-secret")})
	require.Error(t, err)

	stream, err := c.MachineClient.EtcdRecover(within(t, soon))
	require.NoError(t, err)
	require.NoError(t, stream.Send(&common.Data{Bytes: []byte("canary-secret")}))

	_, err = stream.CloseAndRecv()
	require.NoError(t, err)

	t.Run("a call is journaled where it was executed, with the first caller", func(t *testing.T) {
		got := two.journal.Accepted("Reset")
		require.Len(t, got, 1)
		require.Equal(t, []string{"os:admin"}, got[0].Caller.Organization)
		require.NotEmpty(t, got[0].Caller.Serial)
		require.True(t, got[0].Proxied)
		require.Equal(t, "node", got[0].Route)
		require.Equal(t, "boot-1", got[0].BootID)
		require.Equal(t, true, got[0].Request["reboot"])
		require.Equal(t, false, got[0].Request["graceful"])
	})
	t.Run("the node that forwarded it says so and accepted nothing", func(t *testing.T) {
		require.Empty(t, one.journal.Accepted("Reset"))
		require.Equal(t, []string{two.address}, one.journal.Entries()[0].Forwarded)
	})
	t.Run("OK that was dropped is not accepted", func(t *testing.T) {
		e := one.journal.Entries()[1]
		require.Equal(t, "OK", e.Code)
		require.False(t, e.Accepted)
		require.Equal(t, "sequence not started: locked", e.Note)
	})
	t.Run("an upload is journaled by size", func(t *testing.T) {
		got := one.journal.Accepted("EtcdRecover")
		require.Len(t, got, 1)
		require.EqualValues(t, 13, got[0].Request["bytes"])
	})
	t.Run("no config and no secret is in it", func(t *testing.T) {
		for _, e := range one.journal.Entries() {
			require.NotContains(t, e.Text, "canary")
			require.NotContains(t, e.Request, "canary")
		}
	})
}
