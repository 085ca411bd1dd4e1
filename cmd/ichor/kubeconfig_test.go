package main

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"ichor.maesh.dev/internal/sealed"
	"ichor.maesh.dev/schema"
)

func TestAKubeconfigOpensWithKubernetesOwnReaderAndIsOfTheClustersAuthority(t *testing.T) {
	b := newStateBench(t)
	identities, err := sealed.LoadIdentities(b.identity)
	require.NoError(t, err)
	bundle, err := bundleFromCheckout(b.fleet, "prod", identities)
	require.NoError(t, err)
	file := filepath.Join(b.fleet, "clusters/prod/cluster.yaml")
	require.NoError(t, os.WriteFile(file, []byte(strings.Replace(prodCluster, "0123456789abcdef", schema.ClusterID(bundle.ClusterID()), 1)), 0o600))
	before := time.Now()
	code, text, errText := b.run("kubeconfig", "prod", "--fleet", b.fleet, "--age-identity", b.identity, "--user", "alice@example.com", "--ttl", "2h")
	require.Zero(t, code, errText)

	loaded, err := clientcmd.RESTConfigFromKubeConfig([]byte(text))
	require.NoError(t, err)
	require.Equal(t, "https://10.0.0.10:6443", loaded.Host)
	require.Equal(t, string(bundle.KubernetesCA()), string(loaded.CAData))

	minted := clientCertificate(t, loaded)
	roots := x509.NewCertPool()
	require.True(t, roots.AppendCertsFromPEM(bundle.KubernetesCA()))
	at := func(when time.Time) error {
		_, err := minted.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: when, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
		return err
	}
	require.NoError(t, at(time.Now()))
	require.WithinRange(t, minted.NotBefore, before.Add(-5*time.Minute-time.Second), time.Now().Add(-5*time.Minute), "clocks of control planes may be behind")
	require.NoError(t, at(before.Add(2*time.Hour-time.Minute)))
	require.Error(t, at(before.Add(2*time.Hour+time.Minute)))
	require.Equal(t, "alice@example.com", minted.Subject.CommonName)
	require.Equal(t, []string{"system:masters"}, minted.Subject.Organization)

	code, text, errText = b.run("kubeconfig", "prod", "--fleet", b.fleet, "--age-identity", b.identity, "--user", "bob", "--group", "viewers", "--group", "on-call")
	require.Zero(t, code, errText)
	loaded, err = clientcmd.RESTConfigFromKubeConfig([]byte(text))
	require.NoError(t, err)
	require.ElementsMatch(t, []string{"viewers", "on-call"}, clientCertificate(t, loaded).Subject.Organization, "DER sorts them")
}

// clientCertificate gives the certificate that a client of this config shows; its key belongs to it.
func clientCertificate(t *testing.T, config *rest.Config) *x509.Certificate {
	t.Helper()
	pair, err := tls.X509KeyPair(config.CertData, config.KeyData)
	require.NoError(t, err)
	return pair.Leaf
}
