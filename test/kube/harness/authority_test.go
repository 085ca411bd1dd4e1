package harness

import (
	"crypto/tls"
	"crypto/x509"
	"testing"

	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/config/generate/secrets"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"
)

func newSecrets(t *testing.T) *Secrets {
	t.Helper()
	made, err := secrets.NewBundle(secrets.NewClock(), config.TalosVersionCurrent)
	require.NoError(t, err)
	text, err := yaml.Marshal(made)
	require.NoError(t, err)
	return ReadSecrets(t, text)
}

func TestACertificateServesForWhatItWasIssuedAndNothingElse(t *testing.T) {
	s := newSecrets(t)
	roots := x509.NewCertPool()
	require.True(t, roots.AppendCertsFromPEM(s.CA()))
	for _, test := range []struct {
		name           string
		addresses      []string
		usage, refused x509.ExtKeyUsage
	}{
		{"a server's", []string{"127.9.0.1", "127.9.0.2"}, x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		{"a client's", nil, x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	} {
		t.Run(test.name, func(t *testing.T) {
			certificate, key := s.Issue(t, "one", []string{"system:masters"}, test.addresses...)
			pair, err := tls.X509KeyPair(certificate, key)
			require.NoError(t, err)
			require.Equal(t, "one", pair.Leaf.Subject.CommonName)
			require.Equal(t, []string{"system:masters"}, pair.Leaf.Subject.Organization)
			_, err = pair.Leaf.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{test.usage}})
			require.NoError(t, err)
			_, err = pair.Leaf.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{test.refused}})
			require.Error(t, err)
			for _, address := range test.addresses {
				require.NoError(t, pair.Leaf.VerifyHostname(address))
			}
			require.Error(t, pair.Leaf.VerifyHostname("127.9.0.3"))
		})
	}
}

func TestAKubeconfigIsOfItsUserAndTheURL(t *testing.T) {
	s := newSecrets(t)
	config, err := clientcmd.BuildConfigFromFlags("", s.kubeconfig(t, t.TempDir(), "system:kube-scheduler", "https://127.9.0.1:6443"))
	require.NoError(t, err)
	require.Equal(t, "https://127.9.0.1:6443", config.Host)
	require.Equal(t, s.CA(), config.CAData)
	pair, err := tls.X509KeyPair(config.CertData, config.KeyData)
	require.NoError(t, err)
	require.Equal(t, "system:kube-scheduler", pair.Leaf.Subject.CommonName)
	require.Empty(t, pair.Leaf.Subject.Organization, "it isn't one that may do everything")
}
