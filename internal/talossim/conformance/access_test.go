package conformance_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"math/big"
	"testing"
	"time"

	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	"github.com/siderolabs/talos/pkg/machinery/resources/config"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"github.com/siderolabs/talos/pkg/machinery/resources/v1alpha1"
	"github.com/siderolabs/talos/pkg/machinery/role"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
)

const accessSource = "internal/app/resources/access.go"

func accessExpectations() []expectation {
	return []expectation{
		{"38a", "shows a server certificate of at most 24 hours, not back-dated, for its own addresses and 127.0.0.1", "internal/app/machined/pkg/controllers/secrets/api.go", fromSource, bootstrapped, func(t *testing.T, e *env) {
			for _, node := range append(append([]string{}, e.cps...), e.workers...) {
				state, err := certificate(within(t, short), node)
				require.NoError(t, err)

				leaf := state.PeerCertificates[0]
				require.LessOrEqual(t, leaf.NotAfter.Sub(leaf.NotBefore), 24*time.Hour)
				require.Equal(t, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, leaf.ExtKeyUsage)
				require.NoError(t, leaf.VerifyHostname(node))
				require.NoError(t, leaf.VerifyHostname("127.0.0.1"))
				require.Error(t, leaf.VerifyHostname("load-balancer.example.org"), "only certSANs would name it")
				require.EqualValues(t, tls.VersionTLS13, state.Version)
			}
		}},
		{"38b", "answers a client without a certificate, or with one of another CA, with a TLS failure: Unavailable", "internal/app/apid/pkg/provider/provider.go", fromSource, bootstrapped, func(t *testing.T, e *env) {
			_, err := insecure(t, e.cps[0]).Version(within(t, short))
			require.Equal(t, codes.Unavailable, status.Code(err), "%v", err)

			stranger := tlsOf(t, e.config)
			stranger.Certificates = []tls.Certificate{strangersCertificate(t)}

			_, err = dial(t, e.cps[0], stranger).Version(within(t, short))
			require.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
		}},
		{"39a", "gives each role what the table says and answers the rest with PermissionDenied; a reader may not take snapshots, a backup role may", rulesSource, fromSource, bootstrapped, roleTable},
		{"39b", "that is a worker mints no client certificates, and none for no time", serverSource, fromSource, bootstrapped, func(t *testing.T, e *env) {
			_, err := e.admin(t, e.workers[0]).GenerateClientConfiguration(within(t, short), &machine.GenerateClientConfigurationRequest{CrtTtl: durationpb.New(time.Hour)})
			refused(t, err, codes.Unimplemented, "generate client configuration is only available on control plane nodes")
			_, err = e.admin(t, e.cps[0]).GenerateClientConfiguration(within(t, short), &machine.GenerateClientConfigurationRequest{})
			refused(t, err, codes.InvalidArgument, "crt_ttl should be positive")
		}},
		{"40a", "refuses every write of a resource, an admin's too", accessSource, fromSource, bootstrapped, func(t *testing.T, e *env) {
			err := e.admin(t, e.cps[0]).COSI.Create(within(t, short), runtime.NewMachineStatus())
			require.ErrorContains(t, err, "code = PermissionDenied desc = write access is not allowed") // the client hides the status
		}},
		{"40b", "denies unknown types and namespaces, and has NotFound for a missing resource", accessSource, fromSource, bootstrapped, func(t *testing.T, e *env) {
			c := e.admin(t, e.cps[0])

			_, err := c.COSI.Get(within(t, short), metadata("runtime", "Nonesuches.talos.dev", "x"))
			refused(t, err, codes.PermissionDenied, `resource type "Nonesuches.talos.dev" is not supported`)
			_, err = c.COSI.Get(within(t, short), metadata("nowhere", runtime.MachineStatusType, "x"))
			refused(t, err, codes.PermissionDenied, `namespace "nowhere" is not supported`)
			_, err = c.COSI.Get(within(t, short), metadata(runtime.NamespaceName, runtime.MachineStatusType, "nonesuch"))
			require.True(t, state.IsNotFoundError(err), "%v", err)
		}},
		{"40c", "shows sensitive resources to admins only", accessSource, fromSource, bootstrapped, func(t *testing.T, e *env) {
			_, err := machineConfig(within(t, short), e.as(t, e.cps[0], role.Operator), config.ActiveID)
			refused(t, err, codes.PermissionDenied, "not authorized")

			_, err = machineConfig(within(t, short), e.admin(t, e.cps[0]), config.ActiveID)
			require.NoError(t, err)
		}},
		{"40d", "begins a watch with the resource as created, and a watch of a kind with all of them and a mark", "github.com/cosi-project/runtime: pkg/state/protobuf/server", fromSource, bootstrapped, func(t *testing.T, e *env) {
			c := e.admin(t, e.cps[0])
			ctx := within(t, short)
			events := make(chan state.Event)

			require.NoError(t, c.COSI.Watch(ctx, metadata(runtime.NamespaceName, runtime.MachineStatusType, runtime.MachineStatusID), events))

			first := <-events
			require.Equal(t, state.Created, first.Type, "%v", first.Error)

			all := make(chan state.Event) // of its own: the resource of the first watch may change meanwhile

			require.NoError(t, c.COSI.WatchKind(ctx, metadata(v1alpha1.NamespaceName, v1alpha1.ServiceType, ""), all, state.WithBootstrapContents(true)))

			for ev := range all {
				if ev.Type == state.Bootstrapped {
					break
				}

				require.Equal(t, state.Created, ev.Type, "%v", ev.Error)
			}
		}},
		{"41a", "has a Service resource for running services only", "internal/app/machined/pkg/system/service_runner.go", fromSource, bootstrapped, func(t *testing.T, e *env) {
			c := e.admin(t, e.cps[0])

			list, err := safe.StateListAll[*v1alpha1.Service](within(t, short), c.COSI)
			require.NoError(t, err)

			resp, err := c.ServiceList(within(t, short))
			require.NoError(t, err)

			running := map[string]bool{}
			for _, s := range resp.Messages[0].Services {
				running[s.Id] = s.State == "Running"
			}

			for r := range list.All() {
				require.True(t, running[r.Metadata().ID()], "%s has a resource and doesn't run", r.Metadata().ID())
			}

			require.Positive(t, list.Len())
		}},
	}
}

func strangersCertificate(t *testing.T) tls.Certificate {
	t.Helper()

	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)

	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{Organization: []string{string(role.Admin)}},
		NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)

	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// roleTable asks a worker, where every etcd call is answered Unimplemented when it is let through, and nothing is changed.
func roleTable(t *testing.T, e *env) {
	calls := map[string]func(context.Context, *client.Client) error{
		"Version":    func(ctx context.Context, c *client.Client) error { _, err := c.Version(ctx); return err },
		"EtcdStatus": func(ctx context.Context, c *client.Client) error { _, err := c.EtcdStatus(ctx); return err },
		"EtcdSnapshot": func(ctx context.Context, c *client.Client) error {
			stream, err := c.MachineClient.EtcdSnapshot(ctx, &machine.EtcdSnapshotRequest{})
			if err == nil {
				_, err = stream.Recv()
			}

			return err
		},
		"EtcdDefragment": func(ctx context.Context, c *client.Client) error { _, err := c.EtcdDefragment(ctx); return err },
		"EtcdLeave": func(ctx context.Context, c *client.Client) error {
			return c.EtcdLeaveCluster(ctx, &machine.EtcdLeaveClusterRequest{})
		},
		"Read": func(ctx context.Context, c *client.Client) error { _, err := read(ctx, c, bootIDPath); return err },
		"ServiceStop": func(ctx context.Context, c *client.Client) error {
			_, err := c.ServiceStop(ctx, "nonesuch")

			return err
		},
		"ApplyConfiguration": func(ctx context.Context, c *client.Client) error {
			_, err := c.ApplyConfiguration(ctx, &machine.ApplyConfigurationRequest{DryRun: true})

			return err
		},
	}

	for who, may := range map[role.Role][]string{
		role.Admin:      {"Version", "EtcdStatus", "EtcdSnapshot", "EtcdDefragment", "EtcdLeave", "Read", "ServiceStop", "ApplyConfiguration"},
		role.Operator:   {"Version", "EtcdStatus", "EtcdSnapshot", "EtcdDefragment", "ServiceStop"},
		role.Reader:     {"Version", "EtcdStatus"},
		role.EtcdBackup: {"EtcdStatus", "EtcdSnapshot"},
		role.MetaWriter: nil,
	} {
		c := e.as(t, e.workers[0], who)

		var let []string

		for name, call := range calls {
			err := call(within(t, short), c)
			if status.Code(err) != codes.PermissionDenied {
				let = append(let, name)

				continue
			}

			refused(t, fmt.Errorf("%s as %s: %w", name, who, err), codes.PermissionDenied, "not authorized")
		}

		require.ElementsMatch(t, may, let, "%s", who)
	}
}
