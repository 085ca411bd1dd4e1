package harness

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Port is where Talos's control planes serve the Kubernetes API.
const Port = 6443

// Etcd says how an etcd is reached.
type Etcd struct {
	// Endpoints are client URLs.
	Endpoints []string
	// CA, Certificate and Key are PEM; empty for an etcd without TLS.
	CA, Certificate, Key []byte
}

// APIServer is one kube-apiserver at an address of its own.
type APIServer struct {
	t       testing.TB
	dir     string
	address string
	port    int
	args    []string
	web     *http.Client
	process *process
}

// StartAPIServer starts an API server at an address (a loopback address of the test's own), port 6443, over an etcd, with a
// bundle's authorities, and waits until it is ready.
func StartAPIServer(t testing.TB, secrets *Secrets, address string, etcd Etcd) *APIServer {
	t.Helper()
	s := newAPIServer(t, secrets, address, Port, etcd)
	s.Start()
	return s
}

// newAPIServer prepares one. Its certificate is also for the other addresses.
func newAPIServer(t testing.TB, secrets *Secrets, address string, port int, etcd Etcd, others ...string) *APIServer {
	t.Helper()
	s := &APIServer{t: t, dir: t.TempDir(), address: address, port: port}
	certificate, key := secrets.Issue(t, "kube-apiserver", nil, append(others, address)...)
	accounts := write(t, s.dir, "service-account.key", secrets.bundle.Certs.K8sServiceAccount.Key)
	s.args = []string{
		"--bind-address=" + address, "--secure-port=" + strconv.Itoa(port),
		// What it would write as its own address must not be a loopback one; nothing here asks for it.
		"--advertise-address=10.5.0.1", "--endpoint-reconciler-type=none",
		"--etcd-servers=" + strings.Join(etcd.Endpoints, ","),
		"--tls-cert-file=" + write(t, s.dir, "server.crt", certificate), "--tls-private-key-file=" + write(t, s.dir, "server.key", key),
		"--client-ca-file=" + write(t, s.dir, "ca.crt", secrets.CA()),
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file=" + accounts, "--service-account-signing-key-file=" + accounts,
		"--service-cluster-ip-range=10.96.0.0/12",
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction", "--anonymous-auth=false", "--allow-privileged=true", "--profiling=false",
	}
	if len(etcd.CA) > 0 {
		s.args = append(s.args, "--etcd-cafile="+write(t, s.dir, "etcd-ca.crt", etcd.CA),
			"--etcd-certfile="+write(t, s.dir, "etcd.crt", etcd.Certificate), "--etcd-keyfile="+write(t, s.dir, "etcd.key", etcd.Key))
	}
	roots := x509.NewCertPool()
	require.True(t, roots.AppendCertsFromPEM(secrets.CA()))
	certificate, key = secrets.Issue(t, "probe", []string{"system:masters"})
	pair, err := tls.X509KeyPair(certificate, key)
	require.NoError(t, err)
	s.web = &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12},
	}}
	return s
}

// Address is host:port.
func (s *APIServer) Address() string { return net.JoinHostPort(s.address, strconv.Itoa(s.port)) }

// URL is that of the API.
func (s *APIServer) URL() string { return "https://" + s.Address() }

// Start starts the process, also after Kill, and waits until it is ready.
func (s *APIServer) Start() {
	s.t.Helper()
	s.process = start(s.t, s.dir, "kube-apiserver", s.args...)
	Eventually(s.t, s.Address()+" is ready", func() error {
		if s.process.ended() {
			s.t.Fatalf("the API server has ended:\n%s", s.process.tail())
		}
		return s.ready()
	})
}

func (s *APIServer) ready() error {
	request, err := http.NewRequestWithContext(context.Background(), http.MethodGet, s.URL()+"/readyz", nil)
	if err != nil {
		return err
	}
	response, err := s.web.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close() //nolint:errcheck // it was read
	body, err := io.ReadAll(io.LimitReader(response.Body, 1<<16))
	if err != nil || response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s (%w)", response.Status, body, err)
	}
	return nil
}

// Kill ends the process as a power cut of its machine would; its port refuses connections.
func (s *APIServer) Kill() { s.process.kill() }
