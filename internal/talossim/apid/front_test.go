package apid_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"testing"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"github.com/siderolabs/talos/pkg/machinery/role"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
	clocktesting "k8s.io/utils/clock/testing"

	"ichor.maesh.dev/internal/talossim/apid"
)

// soon only ends a test that hangs.
const soon = 2 * time.Minute

func TestHandshake(t *testing.T) {
	a := newAuthority(t)
	n := startNode(t, a, "127.0.30.201", "cp-1", nodeOptions{})
	other := newAuthority(t)
	both := []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}

	for name, test := range map[string]struct {
		cert *tls.Certificate
		want codes.Code
	}{
		"an admin's certificate is let in":                            {a.client(t, role.Admin), codes.OK},
		"no certificate is a TLS failure, so Unavailable":             {nil, codes.Unavailable},
		"another CA's certificate is a TLS failure":                   {other.client(t, role.Admin), codes.Unavailable},
		"serverAuth beside clientAuth is refused in the handshake":    {a.sign(t, "os:admin", both), codes.Unavailable},
		"a certificate for servers alone is refused in the handshake": {a.sign(t, "os:admin", both[:1]), codes.Unavailable},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := n.dial(t, a, test.cert).Version(within(t, soon))
			require.Equal(t, test.want.String(), status.Code(err).String(), "%v", err)
		})
	}
}

func TestTLSBelow13IsRefused(t *testing.T) {
	a := newAuthority(t)
	n := startNode(t, a, "127.0.30.202", "cp-1", nodeOptions{})

	conn, err := net.Dial("tcp", n.address+":50000")
	require.NoError(t, err)

	defer conn.Close() //nolint:errcheck // nothing depends on it

	err = tls.Client(conn, &tls.Config{MaxVersion: tls.VersionTLS12, InsecureSkipVerify: true}).HandshakeContext(within(t, soon))
	require.ErrorContains(t, err, "protocol version")
}

func TestANewServerCertificateHoldsForNewConnections(t *testing.T) {
	a := newAuthority(t)
	n := startNode(t, a, "127.0.30.203", "cp-1", nodeOptions{})
	admin := a.client(t, role.Admin)
	before := n.dial(t, a, admin)

	_, err := before.Version(within(t, soon))
	require.NoError(t, err)

	swapped := newAuthority(t)
	n.set(func(s *apid.Settings) {
		s.Server, s.Accepted = swapped.sign(t, "", []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, n.address), swapped.pool
	})

	_, err = before.Version(within(t, soon))
	require.NoError(t, err, "the established connection goes on")

	_, err = n.dial(t, a, admin).Version(within(t, soon))
	require.Equal(t, codes.Unavailable, status.Code(err), "%v", err)

	_, err = n.dial(t, swapped, swapped.client(t, role.Admin)).Version(within(t, soon))
	require.NoError(t, err)
}

func TestRoles(t *testing.T) {
	a := newAuthority(t)
	n := startNode(t, a, "127.0.30.204", "cp-1", nodeOptions{})

	seen := func(t *testing.T, cert *tls.Certificate, claimed ...string) string {
		ctx := within(t, soon)
		for _, c := range claimed {
			ctx = metadata.AppendToOutgoingContext(ctx, constants.APIAuthzRoleMetadataKey, c)
		}

		resp, err := n.dial(t, a, cert).MachineClient.Version(ctx, &emptypb.Empty{})
		require.NoError(t, err)

		return resp.Messages[0].Version.Tag
	}

	t.Run("are the organization of the certificate", func(t *testing.T) {
		require.Equal(t, "os:etcd:backup os:reader ", seen(t, a.client(t, role.Reader, role.EtcdBackup)))
	})
	t.Run("cannot be claimed by metadata", func(t *testing.T) {
		require.Equal(t, "os:reader ", seen(t, a.client(t, role.Reader), "os:admin"))
	})
	t.Run("are taken from metadata when the caller impersonates", func(t *testing.T) {
		require.Equal(t, "os:operator ", seen(t, a.client(t, role.Impersonator), "os:operator"))
	})
	t.Run("unknown ones are carried along", func(t *testing.T) {
		require.Equal(t, "os:reader os:unheard-of ", seen(t, a.client(t, role.Reader, "os:unheard-of")))
	})
}

func TestMaintenance(t *testing.T) {
	a := newAuthority(t)
	n := startNode(t, a, "127.0.30.205", "cp-1", nodeOptions{maintenance: true})
	c := n.dial(t, a, nil)

	t.Run("everybody is a reader", func(t *testing.T) {
		resp, err := c.Version(within(t, soon))
		require.NoError(t, err)
		require.Equal(t, "os:reader ", resp.Messages[0].Version.Tag)
	})
	t.Run("routing is ignored", func(t *testing.T) {
		ctx := client.WithNodes(within(t, soon), "127.0.30.250", "nowhere")

		resp, err := c.MachineClient.Hostname(ctx, &emptypb.Empty{})
		require.NoError(t, err)
		require.Len(t, resp.Messages, 1)
		require.Equal(t, "cp-1", resp.Messages[0].Hostname)
		require.Nil(t, resp.Messages[0].Metadata)
	})
	t.Run("what is for admins is denied", func(t *testing.T) {
		err := c.ResetGeneric(within(t, soon), &machine.ResetRequest{})
		require.Equal(t, codes.PermissionDenied, status.Code(err))
		require.Equal(t, "not authorized", status.Convert(err).Message())
	})
	t.Run("a configuration reaches the handler", func(t *testing.T) {
		_, err := c.ApplyConfiguration(within(t, soon), &machine.ApplyConfigurationRequest{})
		require.Equal(t, codes.InvalidArgument, status.Code(err))
	})
	t.Run("a client that verifies sees an unknown authority", func(t *testing.T) {
		_, err := n.dial(t, a, a.client(t, role.Admin)).Version(within(t, soon))
		require.Equal(t, codes.Unavailable, status.Code(err))
		require.ErrorContains(t, err, "x509")
	})
}

func TestStopLetsCallsFinishAndThenCutsThem(t *testing.T) {
	a := newAuthority(t)
	clk := clocktesting.NewFakeClock(time.Now())
	n := startNode(t, a, "127.0.30.206", "cp-1", nodeOptions{clock: clk})
	c := n.dial(t, a, a.client(t, role.Admin))

	answered := make(chan error, 1)

	go func() {
		_, err := c.Memory(within(t, soon))
		answered <- err
	}()

	<-n.machine.entered

	stream, err := c.MachineClient.Events(within(t, soon), &machine.EventsRequest{})
	require.NoError(t, err)

	_, err = stream.Recv()
	require.NoError(t, err)
	<-n.machine.entered

	stopped := make(chan struct{})

	go func() {
		defer close(stopped)

		n.front.Stop()
	}()

	require.Eventually(t, func() bool {
		conn, err := net.DialTimeout("tcp", n.address+":50000", time.Second)
		if err == nil {
			conn.Close() //nolint:errcheck // nothing depends on it
		}

		return err != nil
	}, soon, 5*time.Millisecond, "the port closes at once")

	n.machine.release <- struct{}{} // one of the two; the other is the long stream or the call

	streamed := make(chan error, 1)

	go func() {
		_, err := stream.Recv()
		streamed <- err
	}()

	var failed error

	select {
	case err := <-answered:
		require.NoError(t, err)
		require.Eventually(t, clk.HasWaiters, soon, time.Millisecond)
		clk.Step(10 * time.Second)

		failed = <-streamed
	case err := <-streamed:
		require.ErrorIs(t, err, io.EOF)
		require.Eventually(t, clk.HasWaiters, soon, time.Millisecond)
		clk.Step(10 * time.Second)

		failed = <-answered
	}

	<-stopped
	require.Contains(t, []codes.Code{codes.Unavailable, codes.Canceled}, status.Code(failed), "%v", failed)
	require.False(t, n.front.Listening())
}

func TestWhoActsOnACallCanWaitUntilItsAnswerIsOnItsWay(t *testing.T) {
	a := newAuthority(t)
	n := startNode(t, a, "127.0.30.213", "cp-1", nodeOptions{})
	c := n.dial(t, a, a.client(t, role.Admin))
	answered := make(chan error, 1)

	go func() {
		_, err := c.Memory(within(t, soon))
		answered <- err
	}()

	call := <-n.machine.calls
	over, giveUp := context.WithCancel(t.Context())
	giveUp()
	n.front.Answered(over, call) // who is stopped waits no longer

	waited := make(chan struct{})

	go func() {
		defer close(waited)

		n.front.Answered(within(t, soon), call)
	}()

	select {
	case <-waited:
		t.Fatal("the call wasn't answered yet")
	default:
	}

	n.machine.release <- struct{}{}

	<-waited
	require.NoError(t, <-answered)
	n.front.Answered(t.Context(), call)
	n.front.Answered(t.Context(), apid.CallFrom(t.Context())) // nor is there anything to wait for where no front was asked
}

func TestCutResetsEverything(t *testing.T) {
	a := newAuthority(t)
	n := startNode(t, a, "127.0.30.207", "cp-1", nodeOptions{})
	c := n.dial(t, a, a.client(t, role.Admin))

	answered := make(chan error, 1)

	go func() {
		_, err := c.Memory(within(t, soon))
		answered <- err
	}()

	<-n.machine.entered
	n.front.Cut()

	err := <-answered
	require.Equal(t, codes.Unavailable, status.Code(err), "%v", err)

	_, err = net.Dial("tcp", n.address+":50000")
	require.ErrorContains(t, err, "refused")

	require.NoError(t, n.front.Start(t.Context()))

	_, err = n.dial(t, a, a.client(t, role.Admin)).Version(within(t, soon))
	require.NoError(t, err)
}

func TestAMachineThatIsOffSaysNothing(t *testing.T) {
	a := newAuthority(t)
	n := startNode(t, a, "127.0.30.208", "cp-1", nodeOptions{})
	admin := a.client(t, role.Admin)
	before := n.dial(t, a, admin)

	_, err := before.Version(within(t, soon))
	require.NoError(t, err)
	require.NoError(t, n.front.Vanish())

	for name, c := range map[string]*client.Client{"established connections hang": before, "new ones are not answered": n.dial(t, a, admin)} {
		t.Run(name, func(t *testing.T) {
			_, err := c.Version(within(t, 300*time.Millisecond))
			require.Equal(t, codes.DeadlineExceeded, status.Code(err), "%v", err)
		})
	}

	t.Run("after power-on old connections are reset and new ones served", func(t *testing.T) {
		require.NoError(t, n.front.Start(t.Context()))

		_, err := n.dial(t, a, admin).Version(within(t, soon))
		require.NoError(t, err)
	})
}

func TestAPartitionDelaysAndLosesNothing(t *testing.T) {
	a := newAuthority(t)
	n := startNode(t, a, "127.0.30.209", "cp-1", nodeOptions{})
	c := n.dial(t, a, a.client(t, role.Admin))

	_, err := c.Version(within(t, soon))
	require.NoError(t, err)

	n.link.Partition()
	require.True(t, n.link.Partitioned())

	_, err = c.Version(within(t, 200*time.Millisecond))
	require.Equal(t, codes.DeadlineExceeded, status.Code(err))

	answered := make(chan error, 1)

	go func() {
		_, err := c.Version(within(t, soon))
		answered <- err
	}()

	n.link.Heal()
	require.NoError(t, <-answered)
}

func TestASlowLinkDelaysEachAnswer(t *testing.T) {
	a := newAuthority(t)
	n := startNode(t, a, "127.0.30.210", "cp-1", nodeOptions{})
	c := n.dial(t, a, a.client(t, role.Admin))

	_, err := c.Version(within(t, soon))
	require.NoError(t, err)

	n.link.Slow(250 * time.Millisecond)

	began := time.Now()
	_, err = c.Version(within(t, soon))
	require.NoError(t, err)
	require.GreaterOrEqual(t, time.Since(began), 250*time.Millisecond)
}

func TestMessagesUpTo32MiBPass(t *testing.T) {
	a := newAuthority(t)
	n := startNode(t, a, "127.0.30.211", "cp-1", nodeOptions{})
	c := n.dial(t, a, a.client(t, role.Admin))

	read := func(path string) error {
		stream, err := c.MachineClient.Read(within(t, soon), &machine.ReadRequest{Path: path})
		require.NoError(t, err)

		_, err = stream.Recv()

		return err
	}

	require.NoError(t, read("/big"))
	require.Equal(t, codes.ResourceExhausted, status.Code(read("/too-big")))
}

func TestAMissingMachineServiceIsUnavailable(t *testing.T) {
	a := newAuthority(t)
	settings := apid.Settings{Server: a.sign(t, "", []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, "127.0.30.212"), Accepted: a.pool}
	n := &node{address: "127.0.30.212", front: apid.New(apid.Config{
		Address: "127.0.30.212:50000",
		Machined: func(context.Context) (net.Conn, error) {
			return nil, &net.OpError{Op: "dial", Net: "unix", Err: net.UnknownNetworkError("gone")}
		},
		Provider: apid.ProviderFunc(func() apid.Settings { return settings }), TimeScale: 20,
	})}
	require.NoError(t, n.front.Start(t.Context()))
	t.Cleanup(n.front.Cut)

	_, err := n.dial(t, a, a.client(t, role.Admin)).Version(within(t, soon))
	require.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
	require.ErrorContains(t, n.front.Start(t.Context()), "already listens")
}
