package conformance_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/siderolabs/crypto/x509"
	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"github.com/siderolabs/talos/pkg/machinery/resources/config"
	"github.com/siderolabs/talos/pkg/machinery/resources/hardware"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/emptypb"
)

const (
	maintenanceSource = "internal/app/machined/pkg/controllers/runtime/maintenance_config.go"
	authzSource       = "pkg/grpc/middleware/authz/injector.go"
	rulesSource       = "internal/app/machined/pkg/system/services/machined.go"
)

// certificate is the leaf that a node shows, whatever its mode.
func certificate(ctx context.Context, node string) (*tls.ConnectionState, error) {
	d := &tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}}} //nolint:gosec // to look at it

	conn, err := d.DialContext(ctx, "tcp", net.JoinHostPort(node, "50000"))
	if err != nil {
		return nil, err
	}

	defer conn.Close() //nolint:errcheck // nothing depends on it

	state := conn.(*tls.Conn).ConnectionState()

	return &state, nil
}

func fingerprint(t *testing.T, node string) string {
	t.Helper()

	state, err := certificate(within(t, short), node)
	require.NoError(t, err)

	return x509.SPKIFingerprint(state.PeerCertificates[0]).String()
}

func maintenanceExpectations() []expectation {
	return []expectation{
		{"34a", "in maintenance answers anyone without a certificate, as to a reader", authzSource, fromSource, maintenance, func(t *testing.T, e *env) {
			c := insecure(t, e.waiting(t))

			v, err := c.Version(within(t, short))
			require.NoError(t, err)
			require.NotEmpty(t, v.Messages[0].Version.Tag)
			require.NotEmpty(t, v.Messages[0].GetPlatform().GetName())
			require.False(t, v.Messages[0].GetFeatures().GetRbac(), "RBAC is a feature of a config")

			_, err = c.MachineClient.SystemStat(within(t, short), &emptypb.Empty{})
			require.NoError(t, err)
		}},
		{"34b", "in maintenance denies what needs more than a reader: Read, Reset, Reboot, Shutdown, Upgrade, Bootstrap, Kubeconfig, MetaWrite, EtcdRecover",
			rulesSource, fromSource, maintenance, deniesInMaintenance},
		{"34c", "in maintenance has stage maintenance and is ready, which means nothing there", "internal/app/machined/pkg/controllers/runtime/machine_status.go", fromSource, maintenance, func(t *testing.T, e *env) {
			s, err := machineStatus(within(t, short), insecure(t, e.waiting(t)))
			require.NoError(t, err)
			require.Equal(t, runtime.MachineStageMaintenance, s.Stage)
			require.True(t, s.Status.Ready)
			require.Empty(t, s.Status.UnmetConditions)
		}},
		{"34d", "in maintenance has machine type unknown, so that etcd's calls are Unimplemented", "internal/app/machined/pkg/controllers/config/machine_type.go", fromSource, maintenance, func(t *testing.T, e *env) {
			c := insecure(t, e.waiting(t))

			r, err := safe.StateGet[*config.MachineType](within(t, short), c.COSI,
				resource.NewMetadata(config.NamespaceName, config.MachineTypeType, config.MachineTypeID, resource.VersionUndefined))
			require.NoError(t, err)
			require.Equal(t, "unknown", r.MachineType().String())

			_, err = c.EtcdMemberList(within(t, short), &machine.EtcdMemberListRequest{})
			refused(t, err, codes.Unimplemented, "member list is only available on control plane nodes")
			_, err = c.EtcdStatus(within(t, short))
			refused(t, err, codes.Unimplemented, "etcd status is only available on control plane nodes")
		}},
		{"34e", "in maintenance denies sensitive resources and shows the others: system information with the UUID, disks, addresses",
			"internal/app/resources/access.go", fromSource, maintenance, func(t *testing.T, e *env) {
				c := insecure(t, e.waiting(t))

				_, err := machineConfig(within(t, short), c, config.ActiveID)
				refused(t, err, codes.PermissionDenied, "not authorized")

				r, err := safe.StateGet[*hardware.SystemInformation](within(t, short), c.COSI,
					resource.NewMetadata(hardware.NamespaceName, hardware.SystemInformationType, hardware.SystemInformationID, resource.VersionUndefined))
				require.NoError(t, err)
				require.Len(t, r.TypedSpec().UUID, 36)

				disks, err := c.COSI.List(within(t, short), resource.NewMetadata("runtime", "Disks.block.talos.dev", "", resource.VersionUndefined))
				require.NoError(t, err)
				require.NotEmpty(t, disks.Items)
			}},
		{"34f", "in maintenance shows the same certificate to everyone, of a CA that nobody knows, named maintenance-service.talos.dev, with its address",
			"internal/app/machined/pkg/controllers/secrets/maintenance_root.go", fromSource, maintenance, func(t *testing.T, e *env) {
				node := e.waiting(t)

				state, err := certificate(within(t, short), node)
				require.NoError(t, err)

				leaf := state.PeerCertificates[0]
				require.Equal(t, constants.MaintenanceServiceCommonName, leaf.Subject.CommonName)
				require.NoError(t, leaf.VerifyHostname(node))
				require.NoError(t, leaf.VerifyHostname("127.0.0.1"))
				require.Equal(t, fingerprint(t, node), fingerprint(t, node))

				_, err = e.admin(t, node).Version(within(t, short))
				refused(t, err, codes.Unavailable, "x509")
			}},
		{"34g", "in maintenance runs machined, apid, containerd, udevd, syslogd, auditd and dashboard", "internal/app/machined/pkg/runtime/v1alpha1/v1alpha1_sequencer.go", fromSource, maintenance, func(t *testing.T, e *env) {
			resp, err := insecure(t, e.waiting(t)).ServiceList(within(t, short))
			require.NoError(t, err)

			var ids []string
			for _, s := range resp.Messages[0].Services {
				ids = append(ids, s.Id)
			}

			require.True(t, slices.IsSorted(ids), "%v", ids)
			require.Equal(t, []string{"apid", "auditd", "containerd", "dashboard", "machined", "syslogd", "udevd"}, ids)
		}},
		{"34h", "in maintenance ignores routing metadata and answers itself", "internal/app/apid/pkg/director/director.go", fromSource, maintenance, func(t *testing.T, e *env) {
			c := insecure(t, e.waiting(t))

			for _, ctx := range []context.Context{client.WithNode(within(t, short), "192.0.2.1"), client.WithNodes(within(t, short), "192.0.2.1", "192.0.2.2")} {
				v, err := c.MachineClient.Version(ctx, &emptypb.Empty{})
				require.NoError(t, err)
				require.Len(t, v.Messages, 1)
				require.Nil(t, v.Messages[0].Metadata)
			}
		}},
		{"34i", "in maintenance refuses a config that isn't one, or that lacks an install disk, with InvalidArgument, and stays as it is",
			"internal/app/machined/internal/server/v1alpha1/v1alpha1_server.go", fromSource, maintenance, func(t *testing.T, e *env) {
				c := insecure(t, e.waiting(t))

				for text, data := range map[string]string{
					"":        "",
					"unknown": "machine:\n  nosuchkey: 1\n",
					"either install disk or diskSelector should be defined": string(e.generate(t, roleControlPlane, withoutDisk)),
				} {
					_, err := c.ApplyConfiguration(within(t, short), &machine.ApplyConfigurationRequest{Data: []byte(data)})
					refused(t, err, codes.InvalidArgument, text)
				}

				s, err := machineStatus(within(t, short), c)
				require.NoError(t, err)
				require.Equal(t, runtime.MachineStageMaintenance, s.Stage)
			}},
		{"34j", "in maintenance answers a dry run and stays as it is", "internal/app/machined/internal/server/v1alpha1/v1alpha1_server.go", fromSource, maintenance, func(t *testing.T, e *env) {
			c := insecure(t, e.waiting(t))

			resp, err := c.ApplyConfiguration(within(t, short), &machine.ApplyConfigurationRequest{
				Data: e.generate(t, roleControlPlane), DryRun: true, Mode: machine.ApplyConfigurationRequest_REBOOT,
			})
			require.NoError(t, err)
			require.Equal(t, machine.ApplyConfigurationRequest_NO_REBOOT, resp.Messages[0].Mode, "a reboot in maintenance is none")
			require.Contains(t, resp.Messages[0].ModeDetails, "Dry run summary:")

			s, err := machineStatus(within(t, short), c)
			require.NoError(t, err)
			require.Equal(t, runtime.MachineStageMaintenance, s.Stage)
		}},
		{"34k", "makes itself a new certificate at each boot in maintenance", "internal/app/machined/pkg/controllers/secrets/maintenance_root.go", fromSource, unplugged, func(t *testing.T, e *env) {
			node := e.idle(t)
			before := fingerprint(t, node)

			e.powerCycle(t, node)
			e.eventually(t, 2*time.Minute, func(ctx context.Context) error {
				state, err := certificate(ctx, node)
				if err != nil {
					return err
				}

				if x509.SPKIFingerprint(state.PeerCertificates[0]).String() == before {
					return errors.New("the certificate is the old one")
				}

				return nil
			})
		}},
	}
}

func deniesInMaintenance(t *testing.T, e *env) {
	c := insecure(t, e.waiting(t))
	ctx := within(t, short)

	_, reboot := c.RebootWithResponse(ctx)
	_, shutdown := c.ShutdownWithResponse(ctx)
	//lint:ignore SA1019 nodes of 1.13 answer it
	_, upgrade := c.UpgradeWithOptions(ctx, client.WithUpgradeImage("example.org/installer:v1"))
	_, bootID := read(ctx, c, bootIDPath)
	_, kubeconfig := c.Kubeconfig(ctx)
	_, leave := c.EtcdRecover(ctx, emptyReader{})

	for name, err := range map[string]error{
		"Reboot": reboot, "Shutdown": shutdown, "Upgrade": upgrade, "Read": bootID, "Kubeconfig": kubeconfig, "EtcdRecover": leave,
		"Reset":     c.ResetGeneric(ctx, wipeEphemeral()),
		"Bootstrap": c.Bootstrap(ctx, &machine.BootstrapRequest{}),
		"MetaWrite": c.MetaWrite(ctx, 10, []byte("x")),
	} {
		require.Error(t, err, name)
		refused(t, fmt.Errorf("%s: %w", name, err), codes.PermissionDenied, "not authorized")
	}
}
