package talos

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	cosiv1alpha1 "github.com/cosi-project/runtime/api/v1alpha1"
	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/cosi-project/runtime/pkg/state/impl/inmem"
	"github.com/cosi-project/runtime/pkg/state/impl/namespaced"
	cosiserver "github.com/cosi-project/runtime/pkg/state/protobuf/server"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/siderolabs/talos/pkg/machinery/api/common"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/resources/block"
	configres "github.com/siderolabs/talos/pkg/machinery/resources/config"
	"github.com/siderolabs/talos/pkg/machinery/resources/hardware"
	runtimeres "github.com/siderolabs/talos/pkg/machinery/resources/runtime"
)

// fakeNode is a node that does as a test tells it, for what a well-behaved one can't be made to do: lie, hang, break.
type fakeNode struct {
	machineapi.UnimplementedMachineServiceServer

	t        testing.TB
	state    state.State
	target   Target
	listener net.Listener
	server   *grpc.Server
	tls      *tls.Config

	accepted atomic.Int64 // connections
	mu       sync.Mutex
	calls    []fakeCall

	// What a test may set before it calls.
	list         func(*machineapi.ListRequest, grpc.ServerStreamingServer[machineapi.FileInfo]) error
	members      func(context.Context) (*machineapi.EtcdMemberListResponse, error)
	etcdStatus   func(context.Context) (*machineapi.EtcdStatusResponse, error)
	apply        func(*machineapi.ApplyConfigurationRequest) (*machineapi.ApplyConfigurationResponse, error)
	bootstrap    func() error
	bootID       string
	upload       func(grpc.ClientStreamingServer[common.Data, machineapi.EtcdRecoverResponse]) error
	lastBoot     *machineapi.BootstrapRequest
	leaveBy      time.Time
	lastReset    *machineapi.ResetRequest
	lastReboot   *machineapi.RebootRequest
	lastShutdown *machineapi.ShutdownRequest
	removed      uint64
	serviceReply *machineapi.ServiceListResponse
	// states serves the resources; nil serves those of state.
	states cosiv1alpha1.StateServer
}

// fakeCall is a call that arrived, and the roles of its caller.
type fakeCall struct {
	method string
	roles  []string
}

const testUUID = "4c4c4544-0039-3010-8048-b7c04f384432"

// configuredNode starts a node with a certificate of the test's bundle.
func configuredNode(t testing.TB) *fakeNode {
	t.Helper()
	roots, err := testBundle().osRoots()
	require.NoError(t, err)
	return startNode(t, &tls.Config{Certificates: []tls.Certificate{serverCertificate(t, testBundle())}, ClientCAs: roots, ClientAuth: tls.RequireAndVerifyClientCert})
}

// maintenanceNode starts a node with a certificate that it signed itself, which asks for none.
func maintenanceNode(t testing.TB) *fakeNode {
	t.Helper()
	n := startNode(t, &tls.Config{Certificates: []tls.Certificate{serverCertificate(t, nil)}})
	n.setStage("maintenance", true)
	return n
}

func startNode(t testing.TB, config *tls.Config) *fakeNode {
	t.Helper()
	n := &fakeNode{t: t, tls: config, bootID: "b3a1d2c4-0000-4000-8000-000000000001"}
	n.state = state.WrapCore(namespaced.NewState(inmem.Build))
	system := hardware.NewSystemInformation(hardware.SystemInformationID)
	system.TypedSpec().UUID = "4C4C4544-0039-3010-8048-B7C04F384432"
	n.put(system)
	n.setStage("running", true)
	listener, err := net.Listen("tcp", "127.0.40.1:0")
	require.NoError(t, err)
	n.target = Target{Name: "cp-1", Endpoint: listener.Addr().String(), ControlPlane: true}
	n.serve(listener)
	t.Cleanup(func() { n.server.Stop() })
	return n
}

// serve answers on a listener; after stop it may be called again with another one at the same address.
func (n *fakeNode) serve(listener net.Listener) {
	n.listener = listener
	config := n.tls.Clone()
	config.NextProtos, config.MinVersion = []string{"h2"}, tls.VersionTLS13
	n.server = grpc.NewServer(grpc.Creds(credentials.NewTLS(config)), grpc.ChainUnaryInterceptor(n.noteUnary), grpc.ChainStreamInterceptor(n.noteStream))
	machineapi.RegisterMachineServiceServer(n.server, n)
	if n.states == nil {
		n.states = cosiserver.NewState(n.state)
	}
	cosiv1alpha1.RegisterStateServer(n.server, n.states)
	go func() { _ = n.server.Serve(&countingListener{listener, &n.accepted}) }()
}

// restart cuts every connection and comes back at the same address.
func (n *fakeNode) restart() {
	n.server.Stop()
	var listener net.Listener
	require.Eventually(n.t, func() (ok bool) {
		var err error
		listener, err = net.Listen("tcp", n.target.Endpoint)
		return err == nil
	}, 3*time.Minute, 5*time.Millisecond)
	n.serve(listener)
}

type countingListener struct {
	net.Listener
	count *atomic.Int64
}

func (l *countingListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err == nil {
		l.count.Add(1)
	}
	return conn, err
}

func (n *fakeNode) noteUnary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	n.note(ctx, info.FullMethod)
	return handle(ctx, req)
}

func (n *fakeNode) noteStream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
	n.note(stream.Context(), info.FullMethod)
	return handle(srv, stream)
}

func (n *fakeNode) note(ctx context.Context, method string) {
	call := fakeCall{method: method}
	if from, ok := peer.FromContext(ctx); ok {
		if info, ok := from.AuthInfo.(credentials.TLSInfo); ok && len(info.State.PeerCertificates) > 0 {
			call.roles = info.State.PeerCertificates[0].Subject.Organization
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.calls = append(n.calls, call)
}

// seen gives the calls so far.
func (n *fakeNode) seen() []fakeCall {
	n.mu.Lock()
	defer n.mu.Unlock()
	return append([]fakeCall(nil), n.calls...)
}

func (n *fakeNode) put(r resource.Resource) {
	n.t.Helper()
	_ = n.state.Destroy(context.Background(), r.Metadata())
	require.NoError(n.t, n.state.Create(context.Background(), r))
}

func (n *fakeNode) setStage(stage string, ready bool) {
	n.t.Helper()
	status := runtimeres.NewMachineStatus()
	parsed, err := runtimeres.MachineStageString(stage)
	require.NoError(n.t, err)
	status.TypedSpec().Stage, status.TypedSpec().Status.Ready = parsed, ready
	n.put(status)
}

func (n *fakeNode) setConfigs(active, persistent config.Provider) {
	n.put(configres.NewMachineConfigWithID(active, configres.ActiveID))
	n.put(configres.NewMachineConfigWithID(persistent, configres.PersistentID))
}

func (n *fakeNode) setEphemeral(phase block.VolumePhase, mounted bool) {
	volume := block.NewVolumeStatus(block.NamespaceName, "EPHEMERAL")
	volume.TypedSpec().Phase = phase
	n.put(volume)
	mount := block.NewMountStatus(block.NamespaceName, "EPHEMERAL")
	mount.TypedSpec().Spec.VolumeID = "EPHEMERAL"
	_ = n.state.Destroy(context.Background(), mount.Metadata())
	if mounted {
		n.put(mount)
	}
}

func (n *fakeNode) Version(context.Context, *emptypb.Empty) (*machineapi.VersionResponse, error) {
	return &machineapi.VersionResponse{Messages: []*machineapi.Version{{Version: &machineapi.VersionInfo{Tag: "v1.13.6"}}}}, nil
}

func (n *fakeNode) Read(_ *machineapi.ReadRequest, stream grpc.ServerStreamingServer[common.Data]) error {
	return stream.Send(&common.Data{Bytes: []byte(n.bootID + "\n")})
}

func (n *fakeNode) List(request *machineapi.ListRequest, stream grpc.ServerStreamingServer[machineapi.FileInfo]) error {
	if n.list != nil {
		return n.list(request, stream)
	}
	return stream.Send(&machineapi.FileInfo{Name: request.GetRoot(), IsDir: true})
}

func (n *fakeNode) ServiceList(context.Context, *emptypb.Empty) (*machineapi.ServiceListResponse, error) {
	if n.serviceReply != nil {
		return n.serviceReply, nil
	}
	return &machineapi.ServiceListResponse{Messages: []*machineapi.ServiceList{{Services: []*machineapi.ServiceInfo{
		{Id: "etcd", State: "Running", Health: &machineapi.ServiceHealth{Healthy: true}, Events: &machineapi.ServiceEvents{Events: []*machineapi.ServiceEvent{{Msg: "Started", State: "Running"}}}},
		{Id: "kubelet", State: "Running", Health: &machineapi.ServiceHealth{Unknown: true}},
	}}}}, nil
}

func (n *fakeNode) EtcdMemberList(ctx context.Context, request *machineapi.EtcdMemberListRequest) (*machineapi.EtcdMemberListResponse, error) {
	if n.members != nil {
		return n.members(ctx)
	}
	if !request.GetQueryLocal() {
		return nil, status.Error(codes.Internal, "the list must be the machine's own etcd's")
	}
	return &machineapi.EtcdMemberListResponse{Messages: []*machineapi.EtcdMembers{{Members: []*machineapi.EtcdMember{
		{Id: 1, Hostname: "cp-1", PeerUrls: []string{"https://10.0.0.11:2380"}}, {Id: 2, PeerUrls: []string{"https://10.0.0.12:2380"}, IsLearner: true},
	}}}}, nil
}

func (n *fakeNode) EtcdStatus(ctx context.Context, _ *emptypb.Empty) (*machineapi.EtcdStatusResponse, error) {
	if n.etcdStatus != nil {
		return n.etcdStatus(ctx)
	}
	return &machineapi.EtcdStatusResponse{Messages: []*machineapi.EtcdStatus{{MemberStatus: &machineapi.EtcdMemberStatus{MemberId: 1, Leader: 1, RaftIndex: 10, RaftAppliedIndex: 10, DbSize: 20480}}}}, nil
}

func (n *fakeNode) ApplyConfiguration(_ context.Context, request *machineapi.ApplyConfigurationRequest) (*machineapi.ApplyConfigurationResponse, error) {
	if n.apply != nil {
		return n.apply(request)
	}
	return &machineapi.ApplyConfigurationResponse{Messages: []*machineapi.ApplyConfiguration{{Mode: request.GetMode()}}}, nil
}

func (n *fakeNode) EtcdRecover(stream grpc.ClientStreamingServer[common.Data, machineapi.EtcdRecoverResponse]) error {
	if n.upload != nil {
		return n.upload(stream)
	}
	return status.Error(codes.Unimplemented, "the test takes no upload")
}

func (n *fakeNode) EtcdLeaveCluster(ctx context.Context, _ *machineapi.EtcdLeaveClusterRequest) (*machineapi.EtcdLeaveClusterResponse, error) {
	n.leaveBy, _ = ctx.Deadline()
	return &machineapi.EtcdLeaveClusterResponse{Messages: []*machineapi.EtcdLeaveCluster{{}}}, nil
}

func (n *fakeNode) Bootstrap(_ context.Context, request *machineapi.BootstrapRequest) (*machineapi.BootstrapResponse, error) {
	n.lastBoot = request
	if n.bootstrap != nil {
		if err := n.bootstrap(); err != nil {
			return nil, err
		}
	}
	return &machineapi.BootstrapResponse{Messages: []*machineapi.Bootstrap{{}}}, nil
}

func (n *fakeNode) Reset(_ context.Context, request *machineapi.ResetRequest) (*machineapi.ResetResponse, error) {
	n.lastReset = request
	return &machineapi.ResetResponse{Messages: []*machineapi.Reset{{ActorId: "x"}}}, nil
}

func (n *fakeNode) Reboot(_ context.Context, request *machineapi.RebootRequest) (*machineapi.RebootResponse, error) {
	n.lastReboot = request
	return &machineapi.RebootResponse{Messages: []*machineapi.Reboot{{ActorId: "x"}}}, nil
}

func (n *fakeNode) EtcdRemoveMemberByID(_ context.Context, request *machineapi.EtcdRemoveMemberByIDRequest) (*machineapi.EtcdRemoveMemberByIDResponse, error) {
	n.removed = request.GetMemberId()
	return &machineapi.EtcdRemoveMemberByIDResponse{Messages: []*machineapi.EtcdRemoveMemberByID{{}}}, nil
}

// serverCertificate makes a certificate for 127.0.40.1, of the bundle's Talos authority or signed by itself.
func serverCertificate(t testing.TB, of *Bundle) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "node"},
		NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(24 * time.Hour), IPAddresses: []net.IP{net.ParseIP("127.0.40.1")},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, KeyUsage: x509.KeyUsageDigitalSignature,
	}
	parent, signer := template, any(key)
	if of != nil {
		parent, err = certificateOf(of.secrets.Certs.OS)
		require.NoError(t, err)
		pair, err := tls.X509KeyPair(of.secrets.Certs.OS.Crt, of.secrets.Certs.OS.Key)
		require.NoError(t, err)
		signer = pair.PrivateKey
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	require.NoError(t, err)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func testClient(t testing.TB) *Client {
	t.Helper()
	client := NewClient(testBundle(), ClientOptions{})
	// A node that answers is waited for, however slow this host is; a test sets the limit that it is about.
	client.limits = limits{dial: soonLimit, read: soonLimit, etcd: soonLimit, all: soonLimit}
	t.Cleanup(func() { client.Close() })
	return client
}

// soonLimit only ends a test that hangs.
const soonLimit = 3 * time.Minute

// soon gives a context that ends when a test must be over.
func soon(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), soonLimit)
	t.Cleanup(cancel)
	return ctx
}

// rawConfig is a config that is only bytes, as a newer Talos may hold one.
type rawConfig struct {
	config.Provider
	text []byte
}

func (c *rawConfig) Bytes() ([]byte, error) { return c.text, nil }
func (c *rawConfig) Readonly() bool         { return true }
