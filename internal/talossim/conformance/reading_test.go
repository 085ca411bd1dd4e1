package conformance_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	clusterres "github.com/siderolabs/talos/pkg/machinery/resources/cluster"
	"github.com/siderolabs/talos/pkg/machinery/resources/config"
	"github.com/siderolabs/talos/pkg/machinery/resources/etcd"
	"github.com/siderolabs/talos/pkg/machinery/resources/k8s"
	"github.com/siderolabs/talos/pkg/machinery/resources/network"
	"github.com/siderolabs/talos/pkg/machinery/role"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/emptypb"
)

func readingExpectations() []expectation {
	return []expectation{
		{"10a", "has a boot ID that stays the same during a boot", "internal/app/machined/internal/server/v1alpha1/v1alpha1_monitoring.go", fromSource, bootstrapped, func(t *testing.T, e *env) {
			first := e.bootID(t, e.cps[0])
			require.Len(t, first, 36)
			require.Equal(t, first, e.bootID(t, e.cps[0]))

			stat, err := e.as(t, e.cps[0], role.Reader).MachineClient.SystemStat(within(t, short), &emptypb.Empty{})
			require.NoError(t, err)
			require.NotZero(t, stat.Messages[0].BootTime)
		}},
		{"44b", "answers Read of a missing file with NotFound, of a folder with Unknown", serverSource, fromSource, bootstrapped, func(t *testing.T, e *env) {
			c := e.admin(t, e.cps[0])

			_, err := read(within(t, short), c, "/no/such")
			refused(t, err, codes.NotFound, "no such file or directory")
			_, err = read(within(t, short), c, "/var")
			refused(t, err, codes.Unknown, "path must be a regular file")
		}},
		{"43a", "lists the services that it has, sorted; etcd and trustd on control planes only", "internal/app/machined/pkg/system/system.go", fromSource, bootstrapped, func(t *testing.T, e *env) {
			list := func(node string) []string {
				resp, err := e.admin(t, node).ServiceList(within(t, short))
				require.NoError(t, err)

				var ids []string
				for _, s := range resp.Messages[0].Services {
					ids = append(ids, s.Id)
				}

				require.True(t, slices.IsSorted(ids), "%v", ids)

				return ids
			}

			require.Subset(t, list(e.cps[0]), []string{"apid", "containerd", "cri", "etcd", "kubelet", "machined", "trustd"})

			worker := list(e.workers[0])
			require.Subset(t, worker, []string{"apid", "containerd", "cri", "kubelet", "machined"})
			require.NotContains(t, worker, "etcd")
			require.NotContains(t, worker, "trustd")
		}},
		{"40e", "shows its type, hostname, addresses and node name as resources", "pkg/machinery/resources", fromSource, bootstrapped, func(t *testing.T, e *env) {
			c := e.admin(t, e.workers[0])

			kind, err := safe.StateGet[*config.MachineType](within(t, short), c.COSI, metadata(config.NamespaceName, config.MachineTypeType, config.MachineTypeID))
			require.NoError(t, err)
			require.Equal(t, "worker", kind.MachineType().String())

			host, err := safe.StateGet[*network.HostnameStatus](within(t, short), c.COSI, metadata(network.NamespaceName, network.HostnameStatusType, network.HostnameID))
			require.NoError(t, err)

			node, err := safe.StateGet[*k8s.Nodename](within(t, short), c.COSI, metadata(k8s.NamespaceName, k8s.NodenameType, k8s.NodenameID))
			require.NoError(t, err)
			require.Equal(t, host.TypedSpec().Hostname, node.TypedSpec().Nodename)

			addresses, err := safe.StateGet[*network.NodeAddress](within(t, short), c.COSI, metadata(network.NamespaceName, network.NodeAddressType, network.NodeAddressDefaultID))
			require.NoError(t, err)
			require.NotEmpty(t, addresses.TypedSpec().Addresses)
		}},
		{"50a", "finds the others through discovery: each member with its addresses and type", "internal/app/machined/pkg/controllers/cluster/member.go", fromSource, bootstrapped, func(t *testing.T, e *env) {
			e.until(t, e.cps[0], time.Minute, func(ctx context.Context, c *client.Client) error {
				list, err := safe.StateListAll[*clusterres.Member](ctx, c.COSI)
				if err != nil {
					return err
				}

				if list.Len() < len(e.cps)+len(e.workers) {
					return fmt.Errorf("%d members are known", list.Len())
				}

				return nil
			})
		}},
		{"31a", "has an EtcdMember resource with its member's ID in hex while etcd is healthy", "internal/app/machined/pkg/controllers/etcd/member.go", fromSource, bootstrapped, func(t *testing.T, e *env) {
			e.until(t, e.cps[0], minute, func(ctx context.Context, c *client.Client) error {
				r, err := safe.StateGet[*etcd.Member](ctx, c.COSI, metadata(etcd.NamespaceName, etcd.MemberType, etcd.LocalMemberID))
				if err != nil {
					return err
				}

				require.Equal(t, etcd.FormatMemberID(memberID(t, c)), r.TypedSpec().MemberID)

				return nil
			})
		}},
		{"47a", "opens an event stream with an empty event, then the past ones that were asked for", "internal/app/machined/pkg/runtime/v1alpha1/v1alpha1_events.go", fromSource, bootstrapped, func(t *testing.T, e *env) {
			stream, err := e.admin(t, e.cps[0]).Events(within(t, short), client.WithTailEvents(-1), client.WithActorID(""))
			require.NoError(t, err)

			hello, err := stream.Recv()
			require.NoError(t, err)
			require.Empty(t, hello.GetData().GetTypeUrl())

			past, err := stream.Recv()
			require.NoError(t, err)
			require.Contains(t, past.GetData().GetTypeUrl(), "talos/runtime/machine.")
			require.NotEmpty(t, past.Id)
		}},
		{"47b", "refuses two kinds of tail at once with Unknown", "internal/app/machined/pkg/runtime/events.go", fromSource, bootstrapped, func(t *testing.T, e *env) {
			stream, err := e.admin(t, e.cps[0]).Events(within(t, short), client.WithTailEvents(1), client.WithTailDuration(time.Minute))
			require.NoError(t, err)

			_, err = stream.Recv()
			if err == nil {
				_, err = stream.Recv()
			}

			refused(t, err, codes.Unknown, "WithTailDuration can't be specified at the same time with WithTailEvents or WithTailID")
		}},
		{"42", "has the control plane's components and static pods as resources", "internal/app/machined/pkg/controllers/k8s/control_plane_static_pod.go", fromSource, bootstrapped, func(t *testing.T, e *env) {
			for _, id := range []string{"kube-apiserver", "kube-controller-manager", "kube-scheduler"} {
				e.until(t, e.cps[0], minute, func(ctx context.Context, c *client.Client) error {
					_, err := c.COSI.Get(ctx, metadata(k8s.NamespaceName, k8s.StaticPodType, id))

					return err
				})
			}
		}},
		{"11a", "tells a member's calls apart on workers: every etcd call is Unimplemented there", "internal/app/internal/machinehelper", fromSource, bootstrapped, func(t *testing.T, e *env) {
			c := e.admin(t, e.workers[0])
			ctx := within(t, short)

			_, list := members(ctx, c)
			_, status := c.EtcdStatus(ctx)
			_, alarms := c.EtcdAlarmList(ctx)
			_, defragment := c.EtcdDefragment(ctx)
			_, forfeit := c.EtcdForfeitLeadership(ctx, &machine.EtcdForfeitLeadershipRequest{})
			_, recover := c.EtcdRecover(ctx, emptyReader{})

			for what, err := range map[string]error{
				"member list": list, "etcd status": status, "etcd alarm list": alarms, "etcd defragment": defragment,
				"etcd forfeit leadership": forfeit, "etcd recover": recover,
				"etcd leave":         c.EtcdLeaveCluster(ctx, &machine.EtcdLeaveClusterRequest{}),
				"etcd remove member": c.EtcdRemoveMemberByID(ctx, &machine.EtcdRemoveMemberByIDRequest{MemberId: 1}),
			} {
				refused(t, err, codes.Unimplemented, what+" is only available on control plane nodes")
			}
		}},
	}
}
