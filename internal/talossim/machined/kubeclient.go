package machined

import (
	"bytes"
	"context"
	"crypto/tls"
	stdx509 "crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path"
	"slices"
	"strconv"
	"time"

	"github.com/siderolabs/crypto/x509"
	"github.com/siderolabs/talos/pkg/machinery/config"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"ichor.maesh.dev/internal/talossim/kubeapi"
)

// kubeletCert is the client certificate that the kubelet has once it has found an API server. It goes with EPHEMERAL.
const kubeletCert = "/var/lib/kubelet/pki/kubelet-client-current.pem"

// Kubernetes' names of kubelets, and how long their certificates last.
const (
	kubeletUser      = "system:node:"
	kubeletGroup     = "system:nodes"
	kubeCertLifetime = 365 * 24 * time.Hour
)

// kubeClient is a connection to one API server of the cluster, with the kubelet's certificate.
type kubeClient struct {
	kubernetes.Interface
	cluster string
	addr    netip.Addr
	http    *http.Client
}

var errNoAPI = errors.New("the Kubernetes API doesn't answer")

// certified says whether the kubelet has its client certificate.
func (k *kubelet) certified() bool { return k.m.volumes.exists(kubeletCert) }

// connect returns a client of an API server that this machine reaches. One that was used before is kept while it is there, and a machine
// prefers its own.
func (k *kubelet) connect(ctx context.Context, p config.Provider) (*kubeClient, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	m, id := k.m, p.Cluster().ID()
	reachable := slices.DeleteFunc(m.cfg.World.Kubernetes.APIs(id), func(a netip.Addr) bool {
		return !m.cfg.World.Network.Reachable(m.cfg.Address, a)
	})
	if k.client != nil {
		if k.client.cluster == id && slices.Contains(reachable, k.client.addr) {
			return k.client, nil
		}
		k.dropLocked()
	}
	if len(reachable) == 0 {
		return nil, errNoAPI
	}
	addr := reachable[k.next%len(reachable)]
	if slices.Contains(reachable, m.cfg.Address) && k.next == 0 {
		addr = m.cfg.Address
	}
	cert, err := k.certificate(ctx, p, addr)
	if err != nil {
		return nil, err
	}
	k.client, err = m.newKubeClient(id, addr, cert, kubernetesCAs(p))
	return k.client, err
}

// failed takes note of an answer. After one that isn't the API's own, and one that says that etcd doesn't answer there, another API server is tried.
func (k *kubelet) failed(c *kubeClient, err error) {
	if err == nil || k.m.ctx.Err() != nil {
		return
	}
	if status := apierrors.APIStatus(nil); errors.As(err, &status) && status.Status().Code < http.StatusInternalServerError {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.client == c {
		k.dropLocked()
	}
}

func (k *kubelet) dropLocked() {
	if k.client != nil {
		k.client.http.CloseIdleConnections()
		k.client = nil
		k.next++
	}
}

func (m *Machine) newKubeClient(cluster string, addr netip.Addr, cert, accepted []byte) (*kubeClient, error) {
	cfg := &rest.Config{
		Host:            "https://" + net.JoinHostPort(addr.String(), strconv.Itoa(kubeapi.Port)),
		TLSClientConfig: rest.TLSClientConfig{CAData: accepted, CertData: cert, KeyData: cert},
		Dial: func(ctx context.Context, _, target string) (net.Conn, error) {
			return m.cfg.World.Network.Dial(ctx, m.cfg.Address, target)
		},
		UserAgent: "kubelet/" + m.cfg.Name, QPS: -1, Timeout: m.kubeCallLimit(),
	}
	client, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("making the kubelet's connection: %w", err)
	}
	set, err := kubernetes.NewForConfigAndClient(cfg, client)
	if err != nil {
		return nil, fmt.Errorf("making the kubelet's client: %w", err)
	}
	return &kubeClient{Interface: set, cluster: cluster, addr: addr, http: client}, nil
}

// certificate is the kubelet's, with its key: the one that it has, while it is one for this node of this cluster, or a new one.
func (k *kubelet) certificate(ctx context.Context, p config.Provider, addr netip.Addr) ([]byte, error) {
	file := k.m.volumes.path(kubeletCert)
	if file == "" {
		return nil, errors.New("EPHEMERAL is not mounted")
	}
	name := kubeletUser + k.m.hostname()
	if data, err := os.ReadFile(file); err == nil && usable(data, name, kubernetesCAs(p)) {
		return data, nil
	}
	csr, identity, err := x509.NewECDSACSRAndIdentity(x509.CommonName(name), x509.Organization(kubeletGroup))
	if err != nil {
		return nil, fmt.Errorf("making the kubelet's key: %w", err)
	}
	sign := k.m.cfg.World.Kubernetes.Signer(p.Cluster().ID(), addr)
	if sign == nil {
		return nil, errNoAPI
	}
	cert, err := sign(ctx, bootstrapToken(p), csr.X509CertificateRequestPEM)
	if err != nil {
		return nil, err
	}
	data := append(bytes.Clone(cert), identity.Key...)
	if err := k.m.volumes.mkdir(path.Dir(kubeletCert)); err != nil {
		return nil, fmt.Errorf("keeping the kubelet's certificate: %w", err)
	}
	if err := os.WriteFile(file, data, 0o600); err != nil {
		return nil, fmt.Errorf("keeping the kubelet's certificate: %w", err)
	}
	return data, nil
}

// usable says whether a certificate and its key are still what a node needs.
func usable(data []byte, name string, accepted []byte) bool {
	pair, err := tls.X509KeyPair(data, data)
	if err != nil || pair.Leaf == nil || pair.Leaf.Subject.CommonName != name {
		return false
	}
	_, err = pair.Leaf.Verify(stdx509.VerifyOptions{Roots: pool(accepted), KeyUsages: []stdx509.ExtKeyUsage{stdx509.ExtKeyUsageClientAuth}})
	return err == nil
}
