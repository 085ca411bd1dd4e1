package apid_test

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"math/big"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	talosx509 "github.com/siderolabs/crypto/x509"
	"github.com/siderolabs/talos/pkg/machinery/api/common"
	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	"github.com/siderolabs/talos/pkg/machinery/config/generate/secrets"
	"github.com/siderolabs/talos/pkg/machinery/role"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
	"k8s.io/utils/clock"

	"ichor.maesh.dev/internal/talossim/apid"
)

// authority is an OS CA as the machinery's secrets bundle makes it.
type authority struct {
	ca   *talosx509.PEMEncodedCertificateAndKey
	pool *x509.CertPool
}

func newAuthority(t *testing.T) *authority {
	t.Helper()

	ca, err := secrets.NewTalosCA(time.Now())
	require.NoError(t, err)

	pool := x509.NewCertPool()
	require.True(t, pool.AppendCertsFromPEM(ca.CrtPEM))

	return &authority{ca: talosx509.NewCertificateAndKeyFromCertificateAuthority(ca), pool: pool}
}

// client mints a certificate as talosctl and Ichor do.
func (a *authority) client(t *testing.T, roles ...role.Role) *tls.Certificate {
	t.Helper()

	pem, err := secrets.NewAdminCertificateAndKey(time.Now(), a.ca, role.MakeSet(roles...), time.Hour)
	require.NoError(t, err)

	cert, err := tls.X509KeyPair(pem.Crt, pem.Key)
	require.NoError(t, err)

	return &cert
}

// sign makes a certificate with any extended key usage.
func (a *authority) sign(t *testing.T, organization string, usages []x509.ExtKeyUsage, ips ...string) *tls.Certificate {
	t.Helper()

	ca, err := tls.X509KeyPair(a.ca.Crt, a.ca.Key)
	require.NoError(t, err)

	parent, err := x509.ParseCertificate(ca.Certificate[0])
	require.NoError(t, err)

	return signed(t, parent, ca.PrivateKey.(ed25519.PrivateKey), organization, usages, ips...)
}

func selfSigned(t *testing.T, ips ...string) *tls.Certificate {
	t.Helper()

	return signed(t, nil, nil, "maintenance", []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, ips...)
}

func signed(t *testing.T, parent *x509.Certificate, signer ed25519.PrivateKey, organization string, usages []x509.ExtKeyUsage, ips ...string,
) *tls.Certificate {
	t.Helper()

	public, private, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)

	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	require.NoError(t, err)

	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{Organization: []string{organization}}, ExtKeyUsage: usages,
		NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageDigitalSignature,
	}

	for _, ip := range ips {
		template.IPAddresses = append(template.IPAddresses, net.ParseIP(ip))
	}

	if parent == nil {
		parent, signer = template, private
	}

	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, signer)
	require.NoError(t, err)

	leaf, err := x509.ParseCertificate(der)
	require.NoError(t, err)

	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: private, Leaf: leaf}
}

// node is a front with a small machine service behind it.
type node struct {
	front   *apid.Server
	journal *apid.Journal
	link    *apid.Link
	address string
	machine *machineService

	mu       sync.Mutex
	settings apid.Settings
}

func (n *node) set(change func(*apid.Settings)) {
	n.mu.Lock()
	defer n.mu.Unlock()

	change(&n.settings)
}

func (n *node) current() apid.Settings {
	n.mu.Lock()
	defer n.mu.Unlock()

	return n.settings
}

type nodeOptions struct {
	worker, maintenance bool
	clock               clock.WithTicker // the real one when nil
}

func startNode(t *testing.T, a *authority, ip, hostname string, o nodeOptions) *node {
	t.Helper()

	journal, err := apid.OpenJournal(t.TempDir(), hostname, clock.RealClock{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, journal.Close()) })

	return buildNode(t, a, ip, hostname, journal, o)
}

func startNodeWith(t *testing.T, a *authority, ip string, journal *apid.Journal) *node {
	t.Helper()

	return buildNode(t, a, ip, "cp-1", journal, nodeOptions{})
}

func buildNode(t *testing.T, a *authority, ip, hostname string, journal *apid.Journal, o nodeOptions) *node {
	t.Helper()

	n := &node{journal: journal, address: ip, machine: &machineService{
		hostname: hostname, release: make(chan struct{}), entered: make(chan struct{}, 16), calls: make(chan *apid.Call, 16),
	}}
	n.settings = apid.Settings{Maintenance: o.maintenance, Accepted: a.pool, Local: []string{ip, hostname}}

	if o.maintenance {
		n.settings.Server = selfSigned(t, ip)
	} else {
		n.settings.Server = a.sign(t, "", []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, ip)
	}

	if !o.worker && !o.maintenance {
		n.settings.Client = a.client(t, role.Impersonator)
	}

	socket := filepath.Join(t.TempDir(), "machine.sock")
	listener, err := net.Listen("unix", socket)
	require.NoError(t, err)

	server := grpc.NewServer(apid.ServerOptions(journal, func() string { return "boot-1" })...)
	machine.RegisterMachineServiceServer(server, n.machine)
	machine.RegisterLifecycleServiceServer(server, machine.UnimplementedLifecycleServiceServer{})

	go server.Serve(listener) //nolint:errcheck // ends with Stop

	t.Cleanup(server.Stop)

	n.link = apid.NewLink(clock.RealClock{})
	n.front = apid.New(apid.Config{
		Address: net.JoinHostPort(ip, "50000"),
		Machined: func(ctx context.Context) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		},
		Provider: apid.ProviderFunc(n.current), Journal: journal, BootID: func() string { return "boot-1" }, Link: n.link, Clock: o.clock, TimeScale: 20,
	})
	require.NoError(t, n.front.Start(t.Context()))
	t.Cleanup(n.front.Cut)

	return n
}

// dial is a client of the node's front; a nil certificate is an insecure one, as in maintenance mode.
func (n *node) dial(t *testing.T, a *authority, cert *tls.Certificate) *client.Client {
	t.Helper()

	config := &tls.Config{RootCAs: a.pool}
	if cert != nil {
		config.Certificates = []tls.Certificate{*cert}
	} else {
		config.InsecureSkipVerify = true
	}

	c, err := client.New(t.Context(), client.WithTLSConfig(config), client.WithEndpoints(n.address))
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() }) //nolint:errcheck // nothing depends on it

	return c
}

func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()

	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)

	return ctx
}

// machineService answers a few methods in each of the shapes that matter to a front.
type machineService struct {
	machine.UnimplementedMachineServiceServer
	hostname string
	release  chan struct{} // Memory and Events wait for it
	entered  chan struct{} // gets a value when they began
	calls    chan *apid.Call
}

func (m *machineService) Hostname(context.Context, *emptypb.Empty) (*machine.HostnameResponse, error) {
	return &machine.HostnameResponse{Messages: []*machine.Hostname{{Hostname: m.hostname}}}, nil
}

func (m *machineService) Version(ctx context.Context, _ *emptypb.Empty) (*machine.VersionResponse, error) {
	tag := ""
	for _, r := range apid.Roles(ctx).Strings() {
		tag += r + " "
	}

	return &machine.VersionResponse{Messages: []*machine.Version{{Version: &machine.VersionInfo{Tag: tag}}}}, nil
}

func (m *machineService) LoadAvg(context.Context, *emptypb.Empty) (*machine.LoadAvgResponse, error) {
	return nil, errors.New("a plain error")
}

func (m *machineService) SystemStat(context.Context, *emptypb.Empty) (*machine.SystemStatResponse, error) {
	panic("a bug")
}

func (m *machineService) EtcdStatus(context.Context, *emptypb.Empty) (*machine.EtcdStatusResponse, error) {
	return nil, status.Error(codes.Unimplemented, "etcd status is only available on control plane nodes")
}

func (m *machineService) Memory(ctx context.Context, _ *emptypb.Empty) (*machine.MemoryResponse, error) {
	m.calls <- apid.CallFrom(ctx)

	m.entered <- struct{}{}

	select {
	case <-m.release:
		return &machine.MemoryResponse{Messages: []*machine.Memory{{}}}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (m *machineService) Reset(ctx context.Context, req *machine.ResetRequest) (*machine.ResetResponse, error) {
	m.calls <- apid.CallFrom(ctx)

	if req.Graceful {
		apid.CallFrom(ctx).SetAccepted(false, "sequence not started: locked")
	}

	return &machine.ResetResponse{Messages: []*machine.Reset{{ActorId: "actor"}}}, nil
}

func (m *machineService) ApplyConfiguration(ctx context.Context, _ *machine.ApplyConfigurationRequest) (*machine.ApplyConfigurationResponse, error) {
	return nil, status.Error(codes.InvalidArgument, "this config change can't be applied in immediate mode\ndiff:\n+ token: canary-secret")
}

func (m *machineService) Events(_ *machine.EventsRequest, stream machine.MachineService_EventsServer) error {
	if err := stream.Send(&machine.Event{Id: m.hostname}); err != nil {
		return err
	}

	m.entered <- struct{}{}

	select {
	case <-m.release:
		return nil
	case <-stream.Context().Done():
		return stream.Context().Err()
	}
}

func (m *machineService) List(_ *machine.ListRequest, _ machine.MachineService_ListServer) error {
	return errors.New("lstat /var/lib/etcd/member: no such file or directory")
}

func (m *machineService) Read(req *machine.ReadRequest, stream machine.MachineService_ReadServer) error {
	size := 31 << 20
	if req.Path == "/too-big" {
		size = 33 << 20
	}

	return stream.Send(&common.Data{Bytes: make([]byte, size)})
}

func (m *machineService) EtcdRecover(stream machine.MachineService_EtcdRecoverServer) error {
	for {
		if _, err := stream.Recv(); err != nil {
			break
		}
	}

	return stream.SendAndClose(&machine.EtcdRecoverResponse{Messages: []*machine.EtcdRecover{{}}})
}
