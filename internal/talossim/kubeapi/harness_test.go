package kubeapi_test

import (
	"context"
	"crypto/tls"
	stdx509 "crypto/x509"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/siderolabs/crypto/x509"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"ichor.maesh.dev/internal/talossim/kubeapi"
	"ichor.maesh.dev/internal/talossim/member"
	"ichor.maesh.dev/internal/talossim/world"
)

// patience only ends a test that hangs.
const patience = 2 * time.Minute

// bench is one API server over an etcd of its own.
type bench struct {
	*testing.T
	addr   string
	ca     *x509.CertificateAuthority
	member *member.Member
	etcd   *clientv3.Client
	kubernetes.Interface
}

func newBench(t *testing.T, addr string, clk clock.WithTicker) *bench {
	t.Helper()
	t.Parallel() // each has an address of its own
	w := world.New(clock.RealClock{}, 1)
	at := netip.MustParseAddr(addr)
	etcd, err := member.Start(t.Context(), member.Config{
		Name: "cp-1", Address: at, DataDir: filepath.Join(t.TempDir(), "etcd"), InitialCluster: "cp-1=" + member.PeerURL(at), New: true, Network: w.Network,
	})
	require.NoError(t, err)
	t.Cleanup(etcd.Kill)
	ca, err := x509.NewSelfSignedCertificateAuthority(x509.ECDSA(true), x509.CommonName("kubernetes"), x509.NotAfter(time.Now().Add(time.Hour)))
	require.NoError(t, err)
	serving, err := x509.NewKeyPair(ca, x509.IPAddresses([]net.IP{at.AsSlice()}), x509.NotAfter(time.Now().Add(time.Hour)),
		x509.ExtKeyUsage([]stdx509.ExtKeyUsage{stdx509.ExtKeyUsageServerAuth}))
	require.NoError(t, err)
	pool := stdx509.NewCertPool()
	pool.AddCert(ca.Crt)
	b := &bench{T: t, addr: addr, ca: ca, member: etcd, etcd: etcdClient(t, at)}
	server, err := kubeapi.Start(kubeapi.Config{
		Address: at, Link: w.Network.Link(at).Wrap, Certificate: *serving.Certificate, ClientCAs: pool, Etcd: etcdClient(t, at), Version: "v1.36.2",
		Clock: clk, RequestTimeout: 5 * time.Second, MonitorPeriod: 5 * time.Second, NodeGrace: 40 * time.Second, Log: slog.New(slog.DiscardHandler),
	})
	require.NoError(t, err)
	t.Cleanup(server.Close)
	b.Interface = b.client("admin", "system:masters")
	b.eventually("the namespaces are there", func(ctx context.Context) error {
		_, err := b.CoreV1().Namespaces().Get(ctx, corev1.NamespaceNodeLease, metav1.GetOptions{})
		return err
	})
	return b
}

func etcdClient(t *testing.T, addr netip.Addr) *clientv3.Client {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{member.ClientURL(addr)}, Logger: zap.NewNop()})
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// config is a client's configuration with a certificate for a user of groups.
func (b *bench) config(user string, groups ...string) *rest.Config {
	b.Helper()
	pair, err := x509.NewKeyPair(b.ca, x509.CommonName(user), x509.Organization(groups...), x509.NotAfter(time.Now().Add(time.Hour)),
		x509.ExtKeyUsage([]stdx509.ExtKeyUsage{stdx509.ExtKeyUsageClientAuth}))
	require.NoError(b, err)
	pem := x509.NewCertificateAndKeyFromKeyPair(pair)
	return &rest.Config{
		Host: b.host(), QPS: -1,
		TLSClientConfig: rest.TLSClientConfig{CAData: b.ca.CrtPEM, CertData: pem.Crt, KeyData: pem.Key},
	}
}

func (b *bench) host() string {
	return "https://" + net.JoinHostPort(b.addr, strconv.Itoa(kubeapi.Port))
}

func (b *bench) client(user string, groups ...string) kubernetes.Interface {
	b.Helper()
	set, err := kubernetes.NewForConfig(b.config(user, groups...))
	require.NoError(b, err)
	return set
}

// bare is a client without Kubernetes' own, with any certificate or none.
func (b *bench) tls(certs ...tls.Certificate) *tls.Config {
	pool := stdx509.NewCertPool()
	pool.AddCert(b.ca.Crt)
	return &tls.Config{RootCAs: pool, Certificates: certs, MinVersion: tls.VersionTLS12}
}

func (b *bench) eventually(what string, f func(ctx context.Context) error) {
	b.Helper()
	var last error
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(patience); time.Now().Before(end); <-tick.C {
		ctx, cancel := context.WithTimeout(b.Context(), 10*time.Second)
		last = f(ctx)
		cancel()
		if last == nil {
			return
		}
	}
	require.NoError(b, last, what)
}

// node makes a node.
func (b *bench) node(name string, labels map[string]string) *corev1.Node {
	b.Helper()
	node, err := b.CoreV1().Nodes().Create(b.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}, metav1.CreateOptions{})
	require.NoError(b, err)
	return node
}

// pod makes a pod on a node that is ready.
func (b *bench) pod(name, node string, labels map[string]string) *corev1.Pod {
	b.Helper()
	pods := b.CoreV1().Pods(metav1.NamespaceDefault)
	pod, err := pods.Create(b.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}, Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "main", Image: "none"}}},
	}, metav1.CreateOptions{})
	require.NoError(b, err)
	pod.Status.Phase = corev1.PodRunning
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	pod, err = pods.UpdateStatus(b.Context(), pod, metav1.UpdateOptions{})
	require.NoError(b, err)
	return pod
}

// stored is what etcd has at a key.
func (b *bench) stored(key string) (value string, revision int64) {
	b.Helper()
	resp, err := b.etcd.Get(b.Context(), key)
	require.NoError(b, err)
	if len(resp.Kvs) == 0 {
		return "", 0
	}
	return string(resp.Kvs[0].Value), resp.Kvs[0].ModRevision
}

func revision(o metav1.Object) string { return o.GetResourceVersion() }

var errNotYet = fmt.Errorf("not yet")
