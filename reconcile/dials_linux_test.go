package reconcile

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"math/big"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	cosiv1alpha1 "github.com/cosi-project/runtime/api/v1alpha1"
	"github.com/siderolabs/talos/pkg/machinery/config/generate/secrets"
	runtimeres "github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v4"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/statefile/storetest"
	"ichor.maesh.dev/talos"
)

// BenchmarkPassBesideDials makes passes over twenty clusters while all machines of another cluster are dialled as an agent dials them, and hang
// in each way that a machine does, and by turns as many while nothing else goes on. It reports the ratio. The machines are in this process, so that
// what they take counts too.
func BenchmarkPassBesideDials(b *testing.B) {
	for _, machines := range []int{10, 1000} {
		b.Run(fmt.Sprintf("of %d machines", machines), func(b *testing.B) { benchDials(b, machines) })
	}
}

// What BenchmarkPassBesideDials does: so many turns, each of at most so long, in which a pass over the hanging cluster begins and may end. Which of
// the two comes first changes with each turn.
const (
	dialTurns = 6
	dialTurn  = 10 * time.Second
)

func benchDials(b *testing.B, machines int) {
	store := storetest.NewMemory()
	sizes := append([]int{machines}, slices.Repeat([]int{10}, 20)...)
	world := newSettledWorldOf(b, sizes, statefile.LocationHash(store), func(cluster, number int) string {
		if cluster == 0 {
			return hangingAddress(number - 1)
		}
		return farAway(cluster, number)
	})
	clock := clocktesting.NewFakeClock(time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC))
	f := world.newAgent(b, store, Config{Leases: []ShardLease{&heldLease{token: 1}}, Clock: clock, Clocks: statefile.SystemClocks()})
	f.settle(b, context.Background())
	all := f.agent.current()
	hanging, others := all[0], all[1:]
	bundle := world.bundles[hanging.name]
	hung := startHanging(b, bundle, machines, clock)
	client := talos.NewClient(bundle, talos.ClientOptions{Clock: clock})
	b.Cleanup(func() { client.Close() })
	world.nodes[bundle.ClusterID()].dialled = TalosNodes(client)

	pass := func() (took time.Duration) {
		ctx, release := context.WithTimeout(context.Background(), dialTurn)
		defer release()
		began := time.Now()
		hanging.once(ctx)
		return time.Since(began)
	}
	round := func() spent {
		clock.Step(DefaultTiming().Steady)
		return measure(b, func() { passOnce(others) })
	}
	var alone, beside rounds
	var dialling spent
	turnAlone := func(length time.Duration) {
		for began := time.Now(); time.Since(began) < length; {
			alone.add(round())
		}
	}
	for b.Loop() {
		first := measure(b, func() { pass() })
		dialling.add(first)
		for turn := range dialTurns {
			if turn%2 == 1 {
				turnAlone(first.wall) // as long as the other will be: what else the machine does changes meanwhile
			}
			ended := make(chan time.Duration, 1)
			go func() { ended <- pass() }()
			for len(ended) == 0 {
				beside.add(round())
			}
			if took := <-ended; turn%2 == 0 {
				turnAlone(took)
			}
		}
	}
	hung.mustHaveHung(b)
	for _, w := range others {
		if r := w.report(); !r.Ready.Status || r.Blocked {
			b.Fatalf("%s: %s: %s", w.name, r.Ready.Reason, r.Ready.Message)
		}
	}
	b.ReportMetric(float64(beside.mean().wall)/float64(alone.mean().wall), "×-nobody-hanging")
	b.ReportMetric(float64(beside.mean().cpu)/float64(alone.mean().cpu), "×-its-processor-time")
	b.ReportMetric(float64(beside.most(0.95))/float64(alone.most(0.95)), "×-its-95th-percentile")
	b.ReportMetric(float64(dialling.cpu.Milliseconds())/float64(b.N), "cpu-ms-dialling")
	b.ReportMetric(float64(len(beside.each))/float64(b.N), "passes-of-each")
}

// rounds are passes that were measured.
type rounds struct {
	all  spent
	each []time.Duration
}

func (r *rounds) add(one spent) {
	r.all.add(one)
	r.each = append(r.each, one.wall)
}

func (r *rounds) mean() spent {
	n := time.Duration(len(r.each))
	return spent{r.all.wall / n, r.all.cpu / n}
}

// most is what a part of them took at the most.
func (r *rounds) most(part float64) time.Duration {
	slices.Sort(r.each)
	return r.each[min(int(part*float64(len(r.each))), len(r.each)-1)]
}

// hangingAddress is where a machine of BenchmarkPassBesideDials is: from 127.0.120.1 on, in four networks that no other package's machines use.
func hangingAddress(n int) string { return fmt.Sprintf("127.0.%d.%d", 120+n/250, 1+n%250) }

// hangingMachines are real listeners of which none ever tells anything of use. By turns they take the connection and never say a word, drop the
// packets of whoever connects, speak TLS and answer no call, and answer the first call and no other.
type hangingMachines struct {
	cosiv1alpha1.UnimplementedStateServer
	silent, unanswered, answered, dropping atomic.Int64
}

func startHanging(b *testing.B, bundle *talos.Bundle, machines int, clock clock.PassiveClock) *hangingMachines {
	b.Helper()
	h := &hangingMachines{}
	var mute, talking *grpc.Server
	credential := hangingCredential(b, bundle, clock)
	mute = grpc.NewServer(grpc.Creds(credential), grpc.UnknownServiceHandler(h.never))
	talking = grpc.NewServer(grpc.Creds(credential), grpc.UnknownServiceHandler(h.never))
	cosiv1alpha1.RegisterStateServer(talking, h)
	b.Cleanup(mute.Stop)
	b.Cleanup(talking.Stop)
	for n := range machines {
		address := net.JoinHostPort(hangingAddress(n), "50000")
		if n%4 == 1 {
			dropPackets(b, hangingAddress(n))
			h.dropping.Add(1)
			continue
		}
		listener, err := net.Listen("tcp", address)
		require.NoError(b, err)
		b.Cleanup(func() { listener.Close() })
		switch n % 4 {
		case 0:
			go h.keepSilent(listener)
		case 2:
			go func() { _ = mute.Serve(listener) }()
		case 3:
			go func() { _ = talking.Serve(listener) }()
		}
	}
	return h
}

// keepSilent takes connections and says nothing, until whoever made one gives up.
func (h *hangingMachines) keepSilent(listener net.Listener) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		h.silent.Add(1)
		go func() {
			defer conn.Close()
			for buffer := make([]byte, 1024); ; {
				if _, err := conn.Read(buffer); err != nil {
					return
				}
			}
		}()
	}
}

// never answers no call.
func (h *hangingMachines) never(_ any, stream grpc.ServerStream) error {
	h.unanswered.Add(1)
	<-stream.Context().Done()
	return stream.Context().Err()
}

// Get answers what a look begins and ends with, and nothing else.
func (h *hangingMachines) Get(ctx context.Context, request *cosiv1alpha1.GetRequest) (*cosiv1alpha1.GetResponse, error) {
	if request.GetType() == runtimeres.MachineStatusType {
		h.answered.Add(1)
		return nil, status.Error(codes.NotFound, "it has no status yet")
	}
	<-ctx.Done()
	return nil, ctx.Err()
}

// List never answers.
func (h *hangingMachines) List(_ *cosiv1alpha1.ListRequest, stream grpc.ServerStreamingServer[cosiv1alpha1.ListResponse]) error {
	return h.never(nil, stream)
}

// mustHaveHung says that each kind of machine was met.
func (h *hangingMachines) mustHaveHung(b *testing.B) {
	b.Helper()
	b.Logf("silent: %d connections; calls that were never answered: %d; first calls that were: %d; machines that drop packets: %d",
		h.silent.Load(), h.unanswered.Load(), h.answered.Load(), h.dropping.Load())
	for _, met := range []*atomic.Int64{&h.silent, &h.unanswered, &h.answered, &h.dropping} {
		require.Positive(b, met.Load())
	}
}

// dropPackets listens, and has one connection wait that nothing takes: with the queue full, the system drops the packets of whoever connects.
func dropPackets(b *testing.B, address string) {
	b.Helper()
	socket, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	require.NoError(b, err)
	b.Cleanup(func() { _ = syscall.Close(socket) })
	require.NoError(b, syscall.SetsockoptInt(socket, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1))
	at := &syscall.SockaddrInet4{Port: 50000, Addr: [4]byte(net.ParseIP(address).To4())}
	require.NoError(b, syscall.Bind(socket, at))
	require.NoError(b, syscall.Listen(socket, 0))
	waiting, err := net.DialTimeout("tcp", net.JoinHostPort(address, "50000"), 10*time.Second)
	require.NoError(b, err)
	b.Cleanup(func() { waiting.Close() })
	_, err = net.DialTimeout("tcp", net.JoinHostPort(address, "50000"), 20*time.Millisecond)
	var late net.Error
	require.ErrorAs(b, err, &late)
	require.True(b, late.Timeout(), err)
}

// hangingCredential is that of machines of the bundle's cluster: each shows a certificate for its own address and wants one of whoever calls.
func hangingCredential(b *testing.B, bundle *talos.Bundle, clock clock.PassiveClock) credentials.TransportCredentials {
	b.Helper()
	plain, err := bundle.Marshal()
	require.NoError(b, err)
	var authorities secrets.Bundle
	require.NoError(b, yaml.Unmarshal(plain, &authorities))
	pair, err := tls.X509KeyPair(authorities.Certs.OS.Crt, authorities.Certs.OS.Key)
	require.NoError(b, err)
	issuer, err := x509.ParseCertificate(pair.Certificate[0])
	require.NoError(b, err)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(b, err)
	clients := x509.NewCertPool()
	clients.AddCert(issuer)
	var mu sync.Mutex
	shown := map[string]*tls.Certificate{}
	return credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS13, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: clients, Time: clock.Now,
		GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
			host, _, err := net.SplitHostPort(hello.Conn.LocalAddr().String())
			if err != nil {
				return nil, err
			}
			mu.Lock()
			defer mu.Unlock()
			if shown[host] == nil {
				der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
					SerialNumber: big.NewInt(int64(len(shown) + 1)), NotBefore: clock.Now().Add(-time.Hour), NotAfter: clock.Now().AddDate(1, 0, 0),
					IPAddresses: []net.IP{net.ParseIP(host)}, KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
				}, issuer, key.Public(), pair.PrivateKey)
				if err != nil {
					return nil, err
				}
				shown[host] = &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
			}
			return shown[host], nil
		}})
}
