package conformance_test

import (
	"testing"

	"github.com/siderolabs/talos/pkg/machinery/api/common"
	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	grpcmetadata "google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/emptypb"
)

const directorSource = "internal/app/apid/pkg/director/director.go"

func routingExpectations() []expectation {
	return []expectation{
		{"37a", "answers a call without routing itself, Metadata empty", directorSource, fromSource, bootstrapped, func(t *testing.T, e *env) {
			v, err := e.admin(t, e.cps[0]).MachineClient.Version(within(t, short), &emptypb.Empty{})
			require.NoError(t, err)
			require.Len(t, v.Messages, 1)
			require.Nil(t, v.Messages[0].Metadata)
		}},
		{"37b", "that is a control plane passes a call on by node, one to one, and returns that node's status unchanged", directorSource, fromSource, bootstrapped, func(t *testing.T, e *env) {
			c := e.admin(t, e.cps[0])

			h, err := c.MachineClient.Hostname(client.WithNode(within(t, short), e.workers[0]), &emptypb.Empty{})
			require.NoError(t, err)
			require.Nil(t, h.Messages[0].Metadata)

			own, err := e.admin(t, e.workers[0]).MachineClient.Hostname(within(t, short), &emptypb.Empty{})
			require.NoError(t, err)
			require.Equal(t, own.Messages[0].Hostname, h.Messages[0].Hostname)

			_, err = c.EtcdStatus(client.WithNode(within(t, short), e.workers[0]))
			refused(t, err, codes.Unimplemented, "etcd status is only available on control plane nodes")
		}},
		{"37c", "answers nodes, even a single one, with OK and puts each failure into its message with the target as it was written", "internal/app/apid/pkg/backend/apid.go", fromSource, bootstrapped, func(t *testing.T, e *env) {
			c := e.admin(t, e.cps[0])

			resp, err := c.MachineClient.EtcdStatus(client.WithNodes(within(t, short), e.cps[1], e.workers[0]), &emptypb.Empty{})
			require.NoError(t, err)
			require.Len(t, resp.Messages, 2)

			got := map[string]*common.Metadata{}
			for _, m := range resp.Messages {
				got[m.Metadata.GetHostname()] = m.Metadata
			}

			require.Empty(t, got[e.cps[1]].GetError())
			require.Contains(t, got[e.workers[0]].GetError(), "only available on control plane nodes")
			require.EqualValues(t, codes.Unimplemented, got[e.workers[0]].GetStatus().GetCode())

			single, err := c.MachineClient.EtcdStatus(client.WithNodes(within(t, short), e.workers[0]), &emptypb.Empty{})
			require.NoError(t, err)
			require.Len(t, single.Messages, 1)
			require.NotEmpty(t, single.Messages[0].Metadata.GetError())
		}},
		{"37d", "puts a stream's failure into a message when it came by nodes", "internal/app/apid/pkg/backend/apid.go", fromSource, bootstrapped, func(t *testing.T, e *env) {
			stream, err := e.admin(t, e.cps[0]).MachineClient.List(client.WithNodes(within(t, short), e.cps[1]), &machine.ListRequest{Root: "/no/such"})
			require.NoError(t, err)

			info, err := stream.Recv()
			require.NoError(t, err)
			require.Contains(t, info.Metadata.GetError(), "no such file or directory")
		}},
		{"37e", "refuses nodes for resources and for the newer services with InvalidArgument", directorSource, fromSource, bootstrapped, func(t *testing.T, e *env) {
			c := e.admin(t, e.cps[0])
			ctx := client.WithNodes(within(t, short), e.cps[0])

			_, err := c.COSI.Get(ctx, metadata(runtime.NamespaceName, runtime.MachineStatusType, runtime.MachineStatusID))
			refused(t, err, codes.InvalidArgument, "one-2-many proxying is not supported for method /cosi.resource.State/Get")

			stream, err := c.LifecycleClient.Upgrade(ctx, &machine.LifecycleServiceUpgradeRequest{})
			require.NoError(t, err)

			_, err = stream.Recv()
			refused(t, err, codes.InvalidArgument, "one-2-many proxying is not supported")
		}},
		{"37f", "refuses node with two values with InvalidArgument", directorSource, fromSource, bootstrapped, func(t *testing.T, e *env) {
			ctx := grpcmetadata.AppendToOutgoingContext(within(t, short), "node", e.cps[0], "node", e.cps[1])

			_, err := e.admin(t, e.cps[0]).MachineClient.Version(ctx, &emptypb.Empty{})
			refused(t, err, codes.InvalidArgument, "node metadata must be single-valued")
		}},
		{"36c", "that is a worker passes nothing on, and answers for itself by its address", directorSource, fromSource, bootstrapped, func(t *testing.T, e *env) {
			c := e.admin(t, e.workers[0])

			_, err := c.MachineClient.Version(client.WithNode(within(t, short), e.cps[0]), &emptypb.Empty{})
			refused(t, err, codes.PermissionDenied, "no request forwarding")
			_, err = c.MachineClient.Version(client.WithNodes(within(t, short), e.cps[0], e.workers[0]), &emptypb.Empty{})
			refused(t, err, codes.PermissionDenied, "no request forwarding")

			_, err = c.MachineClient.Version(client.WithNode(within(t, short), e.workers[0]), &emptypb.Empty{})
			require.NoError(t, err)
		}},
		{"37g", "reports a target that doesn't answer as Unavailable or the caller's deadline by node, inside the message by nodes", "internal/app/apid/pkg/backend/apid.go", fromSource, bootstrapped, func(t *testing.T, e *env) {
			const nobody = "127.0.30.254"

			c := e.admin(t, e.cps[0])

			_, err := c.MachineClient.Version(client.WithNode(within(t, short), nobody), &emptypb.Empty{})
			gone(t, err)

			v, err := c.MachineClient.Version(client.WithNodes(within(t, short), nobody), &emptypb.Empty{})
			if err == nil {
				require.NotEmpty(t, v.Messages[0].Metadata.GetError())
			} else {
				require.Equal(t, codes.DeadlineExceeded, client.StatusCode(err))
			}
		}},
	}
}
