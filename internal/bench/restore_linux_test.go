package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/config/generate/secrets"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"sigs.k8s.io/yaml"

	"ichor.maesh.dev/backup"
	"ichor.maesh.dev/backup/revision"
	"ichor.maesh.dev/internal/cputime"
	"ichor.maesh.dev/talos"
)

// uploadEnv makes this program do what a restore does with a sealed snapshot until a machine has it, and end:
// "SEALED\nBUNDLE\nSPOOL\nADDRESS".
const uploadEnv = "ICHOR_BENCH_UPLOAD"

func uploadAlone(order []string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Minute)
	defer cancel()
	bundle, owner, err := openBundle(order[1])
	if err != nil {
		return err
	}
	sealed, err := os.Open(order[0])
	if err != nil {
		return err
	}
	info, err := sealed.Stat()
	if err != nil {
		return err
	}
	checked := backup.Check(sealed, "")
	defer func() { _ = checked.Close() }()
	plain, err := backup.OpenChecked(checked, owner.Passphrase)
	if err != nil {
		return err
	}
	spool, err := backup.OpenSpool(order[2])
	if err != nil {
		return err
	}
	prepared, err := revision.Prepare(ctx, plain, info.Size(), spool, func(own int64) (int64, error) { return revision.Target(revision.Known{Snapshot: own}) })
	if err != nil {
		return err
	}
	client := talos.NewClient(bundle, talos.ClientOptions{})
	session, err := client.Dial(ctx, talos.Target{Name: "cp-1", Endpoint: order[3], ControlPlane: true}, talos.RoleAdmin)
	if err != nil {
		return err
	}
	file, err := os.Open(prepared.Path)
	if err != nil {
		return err
	}
	err = session.UploadSnapshot(ctx, file)
	return errors.Join(err, file.Close(), session.Close(), client.Close(), prepared.Close())
}

// sink is a machine that takes a snapshot and throws it away.
type sink struct {
	machineapi.UnimplementedMachineServiceServer
	taken atomic.Int64
}

func (s *sink) EtcdRecover(stream machineapi.MachineService_EtcdRecoverServer) error {
	for {
		piece, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return stream.SendAndClose(&machineapi.EtcdRecoverResponse{Messages: []*machineapi.EtcdRecover{{}}})
		}
		if err != nil {
			return err
		}
		s.taken.Add(int64(len(piece.GetBytes())))
	}
}

// startSink serves one at a loopback address, with a certificate of the bundle's authority.
func startSink(b *testing.B, bundle string) (*sink, string) {
	b.Helper()
	text, err := os.ReadFile(bundle)
	if err != nil {
		b.Fatal(err)
	}
	var authorities secrets.Bundle
	if err := yaml.Unmarshal(text, &authorities); err != nil {
		b.Fatal(err)
	}
	authority, err := tls.X509KeyPair(authorities.Certs.OS.Crt, authorities.Certs.OS.Key)
	if err != nil {
		b.Fatal(err)
	}
	issuer, err := x509.ParseCertificate(authority.Certificate[0])
	if err != nil {
		b.Fatal(err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		b.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, issuer, key.Public(), authority.PrivateKey)
	if err != nil {
		b.Fatal(err)
	}
	clients := x509.NewCertPool()
	clients.AddCert(issuer)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	s := &sink{}
	server := grpc.NewServer(grpc.Creds(credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS13, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: clients,
		Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}})), grpc.MaxRecvMsgSize(32<<20))
	machineapi.RegisterMachineServiceServer(server, s)
	go func() { _ = server.Serve(listener) }()
	b.Cleanup(server.Stop)
	return s, listener.Addr().String()
}

// BenchmarkRestoreMemory runs what a restore does with a sealed snapshot, up to the end of its upload, in a process of its own with its children,
// and compares the most anonymous memory that they take with that of the same over a snapshot of 1 MiB.
func BenchmarkRestoreMemory(b *testing.B) {
	bundle := makeBundle(b)
	machine, address := startSink(b, bundle)
	restore := func(size int64) measured {
		self, err := os.Executable()
		if err != nil {
			b.Fatal(err)
		}
		snapshot, dir := makeSnapshot(b, size), b.TempDir()
		sealed := filepath.Join(dir, "etcd.snapshot.age")
		seal := exec.Command(self)
		seal.Env = append(os.Environ(), takeEnv+"="+strings.Join([]string{snapshot, bundle, dir, sealed}, "\n"))
		watch(b, seal)
		if err := os.Remove(snapshot); err != nil {
			b.Fatal(err)
		}
		machine.taken.Store(0)
		upload := exec.Command(self)
		upload.Env = append(os.Environ(), uploadEnv+"="+strings.Join([]string{sealed, bundle, filepath.Join(dir, "spool"), address}, "\n"))
		got := watch(b, upload)
		if taken := machine.taken.Load(); taken < size/2 {
			b.Fatalf("the machine was given %d bytes of a snapshot of %d", taken, size)
		}
		if err := os.RemoveAll(dir); err != nil {
			b.Fatal(err)
		}
		return got
	}
	small := restore(1 << 20)
	for _, size := range restored {
		b.Run(fmt.Sprintf("%d MiB", size>>20), func(b *testing.B) {
			var large measured
			for b.Loop() {
				large = restore(size)
			}
			growth := (large.anonymous - small.anonymous) >> 10
			b.ReportMetric(float64(large.took.Nanoseconds()), "ns/op")
			b.ReportMetric(float64(large.processor.Milliseconds()), cputime.Unit)
			b.ReportMetric(float64(growth), "MiB-grown")
			b.ReportMetric(float64(large.anonymous>>10), "MiB-anonymous")
			if growth >= growthLimit {
				b.Fatalf("the restore of %d MiB grew by %d MiB", size>>20, growth)
			}
		})
	}
}
