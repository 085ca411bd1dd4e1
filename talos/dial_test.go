package talos

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/metadata"
)

func dialed(t *testing.T, n *fakeNode, role Role) *Session {
	t.Helper()
	session, err := testClient(t).Dial(soon(t), n.target, role)
	require.NoError(t, err)
	t.Cleanup(func() { session.Close() })
	return session
}

func dialedMaintenance(t *testing.T, n *fakeNode) *Session {
	t.Helper()
	session, err := testClient(t).DialMaintenance(soon(t), n.target, "")
	require.NoError(t, err)
	t.Cleanup(func() { session.Close() })
	return session
}

func TestASessionNeverReconnects(t *testing.T) {
	n := configuredNode(t)
	session := dialed(t, n, RoleAdmin)
	_, err := session.BootID(soon(t))
	require.NoError(t, err)
	n.restart() // the machine is there again, at the same address, in another boot
	before := len(n.seen())
	for range 3 {
		err = session.Bootstrap(soon(t))
		require.Error(t, err)
		require.Equal(t, OutcomeUnknown, Classify(err))
	}
	require.Len(t, n.seen(), before, "nothing reached the later boot")
	require.EqualValues(t, 1, n.accepted.Load())
}

func TestNoProxyOfTheEnvironmentIsUsed(t *testing.T) {
	for _, name := range []string{"HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "ALL_PROXY"} {
		t.Setenv(name, "http://127.0.40.99:1")
	}
	_, err := dialed(t, configuredNode(t), RoleReader).Stage(soon(t))
	require.NoError(t, err)
}

func TestACallWithoutADeadlineIsNotSent(t *testing.T) {
	n := configuredNode(t)
	session := dialed(t, n, RoleAdmin)
	ctx := context.Background()
	for name, call := range map[string]func() error{
		"bootstrap": func() error { return session.Bootstrap(ctx) },
		"reset":     func() error { return session.Reset(ctx, ResetRequest{Partitions: []string{"EPHEMERAL"}}) },
		"apply":     func() error { return session.ApplyConfig(ctx, ApplyRequest{Config: []byte("x"), Mode: ApplyTry}) },
		"upload":    func() error { return session.UploadSnapshot(ctx, strings.NewReader("x")) },
		"recover":   func() error { return session.RecoverEtcd(ctx) },
		"boot ID":   func() error { _, err := session.BootID(ctx); return err },
		"members":   func() error { _, err := session.Members(ctx); return err },
		"data":      func() error { _, err := session.exists(ctx, "/x"); return session.failed("looking", err) },
	} {
		t.Run(name, func(t *testing.T) {
			err := call()
			require.ErrorIs(t, err, ErrNotSent)
			require.ErrorContains(t, err, "without a deadline")
			require.Equal(t, OutcomeRefused, Classify(err))
		})
	}
	require.Empty(t, n.seen())
}

func TestACallThroughAnotherNodeIsNotSent(t *testing.T) {
	n := configuredNode(t)
	session := dialed(t, n, RoleAdmin)
	for _, key := range []string{"nodes", "node", "proxyfrom"} {
		err := session.Bootstrap(metadata.AppendToOutgoingContext(soon(t), key, "10.0.0.12"))
		require.ErrorIs(t, err, ErrNotSent)
		require.ErrorContains(t, err, key)
	}
	require.Empty(t, n.seen())
}

func TestAnotherClustersMachineIsNotTalkedTo(t *testing.T) {
	other, err := GenerateBundle("v1.13")
	require.NoError(t, err)
	roots, err := other.osRoots()
	require.NoError(t, err)
	n := startNode(t, &tls.Config{Certificates: []tls.Certificate{serverCertificate(t, other)}, ClientCAs: roots, ClientAuth: tls.RequireAndVerifyClientCert})
	_, err = testClient(t).Dial(soon(t), n.target, RoleAdmin)
	require.ErrorIs(t, err, errAnotherMachine)
	require.ErrorContains(t, err, "another authority")
	_, err = testClient(t).DialMaintenance(soon(t), n.target, "")
	require.ErrorContains(t, err, "wants a client certificate")

	observation := testClient(t).Observe(soon(t), n.target)
	require.Equal(t, ModeUnknown, observation.Mode)
	require.Contains(t, observation.Problem, "configured, and not by this cluster's bundle")
	require.Empty(t, observation.UUID)
	require.Empty(t, n.seen())
}

func TestAServerThatRefusesOurCertificateIsUnreachable(t *testing.T) {
	n := startNode(t, &tls.Config{Certificates: []tls.Certificate{serverCertificate(t, testBundle())}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: x509.NewCertPool()})
	for range 30 {
		_, err := testClient(t).Dial(soon(t), n.target, RoleAdmin)
		require.ErrorContains(t, err, "wants a client certificate")
	}
}

func TestAServerThatWaitsForTheClientToSpeakIsHeard(t *testing.T) {
	ours, theirs := net.Pipe()
	defer ours.Close()
	defer theirs.Close()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := firstWords(ctx, ours)
	require.ErrorIs(t, err, context.Canceled)
	first, err := firstWords(soon(t), ours)
	require.NoError(t, err)
	require.Empty(t, first)
	go func() { _, _ = theirs.Write([]byte("at last")) }()
	words := make([]byte, 7)
	_, err = (&watchedConn{Conn: ours, first: first}).Read(words)
	require.NoError(t, err)
	require.Equal(t, "at last", string(words))
}

func TestAMachineInMaintenanceIsKnownByItsFingerprint(t *testing.T) {
	n := maintenanceNode(t)
	session := dialedMaintenance(t, n)
	require.True(t, session.Maintenance())
	fingerprint := session.Fingerprint()
	require.Len(t, fingerprint, 44)

	again, err := testClient(t).DialMaintenance(soon(t), n.target, fingerprint)
	require.NoError(t, err)
	defer again.Close()

	other := maintenanceNode(t)
	before := len(other.seen())
	_, err = testClient(t).DialMaintenance(soon(t), other.target, fingerprint)
	require.ErrorIs(t, err, errAnotherMachine)
	require.ErrorContains(t, err, fingerprint)
	require.ErrorContains(t, err, "read the console")
	require.Len(t, other.seen(), before, "nothing was sent to it")

	_, err = testClient(t).Dial(soon(t), n.target, RoleAdmin)
	require.ErrorContains(t, err, "maintenance mode or belongs to another cluster")
}

func TestWhyAMachineCannotBeReachedIsSaidInASentence(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.40.2:0")
	require.NoError(t, err)
	defer silent.Close()
	closed, err := net.Listen("tcp", "127.0.40.2:0")
	require.NoError(t, err)
	closed.Close()
	expired := serverCertificate(t, testBundle())
	n := startNode(t, &tls.Config{Certificates: []tls.Certificate{expired}})
	client := testClient(t)
	for address, want := range map[string]string{
		silent.Addr().String(): "no answer in time",
		closed.Addr().String(): "refuses the connection",
		strings.Replace(n.target.Endpoint, "127.0.40.1", "localhost", 1): "refuses the connection",
		"nosuchhost.invalid": "doesn't resolve",
	} {
		client.limits.dial = soonLimit
		if address == silent.Addr().String() {
			client.limits.dial = 100 * time.Millisecond
		}
		_, err := client.Dial(soon(t), Target{Name: "cp-1", Endpoint: address}, RoleReader)
		require.ErrorContains(t, err, want, address)
		require.ErrorContains(t, err, "cp-1 can't be reached at ")
		observation := client.Observe(soon(t), Target{Name: "cp-1", Endpoint: address})
		require.Contains(t, observation.Problem, want)
		require.Equal(t, ModeUnknown, observation.Mode)
	}
}

func TestACertificateForAnotherAddressOrTimeIsExplained(t *testing.T) {
	n := configuredNode(t)
	listener, err := net.Listen("tcp", "127.0.40.3:0")
	require.NoError(t, err)
	n.serve(listener)
	_, err = testClient(t).Dial(soon(t), Target{Name: "cp-1", Endpoint: listener.Addr().String()}, RoleReader)
	require.ErrorContains(t, err, "not for this address; add the address to machine.certSANs")

	late := NewClient(testBundle(), ClientOptions{Clock: fixedClock(time.Now().Add(48 * time.Hour))})
	defer late.Close()
	_, err = late.Dial(soon(t), Target{Name: "cp-1", Endpoint: listener.Addr().String()}, RoleReader)
	require.ErrorContains(t, err, "compare its clock")
}

func TestWithoutABundleOnlyMaintenanceIsReached(t *testing.T) {
	client := NewClient(nil, ClientOptions{})
	defer client.Close()
	_, err := client.Dial(soon(t), configuredNode(t).target, RoleReader)
	require.ErrorContains(t, err, "bundle isn't open")
	observation := client.Observe(soon(t), maintenanceNode(t).target)
	require.Equal(t, ModeMaintenance, observation.Mode)
}

// brief is a connection whose other end says what a gRPC server says first, and is gone.
type brief struct {
	net.Conn
	words *bytes.Reader
}

func (b brief) Read(p []byte) (int, error)     { return b.words.Read(p) }
func (brief) Write(p []byte) (int, error)      { return len(p), nil }
func (brief) Close() error                     { return nil }
func (brief) RemoteAddr() net.Addr             { return &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 50000} }
func (brief) LocalAddr() net.Addr              { return &net.TCPAddr{IP: net.IPv4(10, 0, 0, 2), Port: 40000} }
func (brief) SetDeadline(time.Time) error      { return nil }
func (brief) SetReadDeadline(time.Time) error  { return nil }
func (brief) SetWriteDeadline(time.Time) error { return nil }

func TestAConnectionThatCameAndWentIsNotWaitedFor(t *testing.T) {
	settings := []byte{0, 0, 0, 4, 0, 0, 0, 0, 0} // an empty SETTINGS frame (RFC 9113, section 6.5)
	for range 500 {
		conn := &watchedConn{Conn: brief{words: bytes.NewReader(settings)}}
		channel, err := overConnection(conn)
		require.NoError(t, err)
		err = awaitReady(soon(t), channel, conn)
		require.NotErrorIs(t, err, context.DeadlineExceeded)
		if err != nil {
			require.ErrorIs(t, err, io.EOF)
		}
		require.NoError(t, channel.Close())
	}
}
