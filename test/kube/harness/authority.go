package harness

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	siderox509 "github.com/siderolabs/crypto/x509"
	"github.com/siderolabs/talos/pkg/machinery/config/generate/secrets"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/yaml"
)

// Secrets are what a cluster's Talos secrets bundle holds for Kubernetes.
type Secrets struct {
	bundle secrets.Bundle
}

// ReadSecrets reads a secrets bundle as `talosctl gen secrets` writes it.
func ReadSecrets(t testing.TB, bundle []byte) *Secrets {
	t.Helper()
	s := &Secrets{}
	require.NoError(t, yaml.Unmarshal(bundle, &s.bundle))
	return s
}

// CA is the certificate of the Kubernetes authority, as PEM.
func (s *Secrets) CA() []byte { return s.bundle.Certs.K8s.Crt }

// Issue makes a certificate of the Kubernetes authority and its key, as PEM: for a server at the addresses, or for a client
// when there are none.
func (s *Secrets) Issue(t testing.TB, name string, groups []string, addresses ...string) (certificate, key []byte) {
	t.Helper()
	return issue(t, s.bundle.Certs.K8s, name, groups, addresses)
}

func issue(t testing.TB, pair *siderox509.PEMEncodedCertificateAndKey, name string, groups, addresses []string) (certificate, key []byte) {
	t.Helper()
	signer, err := tls.X509KeyPair(pair.Crt, pair.Key)
	require.NoError(t, err)
	authority, err := x509.ParseCertificate(signer.Certificate[0])
	require.NoError(t, err)
	made, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name, Organization: groups},
		NotBefore: time.Now().Add(-5 * time.Minute), NotAfter: time.Now().Add(24 * time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, BasicConstraintsValid: true,
	}
	if len(addresses) > 0 {
		template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
		template.DNSNames = []string{"kubernetes.default.svc"}
	}
	for _, address := range addresses {
		template.IPAddresses = append(template.IPAddresses, net.ParseIP(address))
	}
	der, err := x509.CreateCertificate(rand.Reader, template, authority, made.Public(), signer.PrivateKey)
	require.NoError(t, err)
	encoded, err := x509.MarshalPKCS8PrivateKey(made)
	require.NoError(t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: encoded})
}

// Client makes a client of the API at a URL for the test's own use, which may do everything.
func (s *Secrets) Client(t testing.TB, url string) kubernetes.Interface {
	t.Helper()
	certificate, key := s.Issue(t, "test", []string{"system:masters"})
	client, err := kubernetes.NewForConfig(&rest.Config{
		Host: url, QPS: -1, Timeout: time.Minute,
		TLSClientConfig: rest.TLSClientConfig{CAData: s.CA(), CertData: certificate, KeyData: key},
	})
	require.NoError(t, err)
	return client
}

// kubeconfig writes one for a part of Kubernetes into dir and gives its path.
func (s *Secrets) kubeconfig(t testing.TB, dir, user, url string) string {
	t.Helper()
	certificate, key := s.Issue(t, user, nil)
	config := clientcmdapi.NewConfig()
	config.Clusters["c"] = &clientcmdapi.Cluster{Server: url, CertificateAuthorityData: s.CA()}
	config.AuthInfos["u"] = &clientcmdapi.AuthInfo{ClientCertificateData: certificate, ClientKeyData: key}
	config.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	config.CurrentContext = "x"
	text, err := clientcmd.Write(*config)
	require.NoError(t, err)
	return write(t, dir, user+".kubeconfig", text)
}

func write(t testing.TB, dir, name string, data []byte) string {
	t.Helper()
	path := filepath.Join(dir, name)
	require.NoError(t, os.WriteFile(path, data, 0o600))
	return path
}
