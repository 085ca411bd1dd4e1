package talos

import (
	"bytes"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/siderolabs/talos/pkg/machinery/client"
	clientconfig "github.com/siderolabs/talos/pkg/machinery/client/config"

	"ichor.maesh.dev/schema"
)

// testBundle is read from a file, so that the golden configs stay as they are.
var testBundle = sync.OnceValue(func() *Bundle {
	text, err := os.ReadFile("testdata/bundle.yaml")
	if err != nil {
		panic(err)
	}
	bundle, err := LoadBundle(text)
	if err != nil {
		panic(err)
	}
	return bundle
})

func TestABundleSurvivesItsText(t *testing.T) {
	bundle := testBundle()
	text, err := bundle.Marshal()
	require.NoError(t, err)
	again, err := LoadBundle(text)
	require.NoError(t, err)
	require.Equal(t, bundle.Fingerprint(), again.Fingerprint())
	require.Equal(t, bundle.CAs(), again.CAs())
	require.Equal(t, bundle.ClusterID(), again.ClusterID())
	require.Equal(t, bundle.Scalars(), again.Scalars())
	second, err := again.Marshal()
	require.NoError(t, err)
	require.Equal(t, string(text), string(second))
	require.ElementsMatch(t, []string{"os", "kubernetes", "etcd", "aggregator"}, keys(bundle.CAs()))
	require.Len(t, schema.ClusterID(bundle.ClusterID()), 16)
}

func keys[V any](m map[string]V) []string {
	var all []string
	for key := range m {
		all = append(all, key)
	}
	return all
}

func TestABundleIsImportedFromAControlPlanesConfig(t *testing.T) {
	rendered := render(t, testCluster(), testMachine("cp-1"), RenderOptions{})
	imported, err := ImportBundle(rendered.Bytes)
	require.NoError(t, err)
	require.Equal(t, testBundle().Fingerprint(), imported.Fingerprint())
	require.Equal(t, testBundle().CAs(), imported.CAs())
	require.Equal(t, testBundle().Scalars(), imported.Scalars())

	text, err := testBundle().Marshal()
	require.NoError(t, err)
	same, err := ImportBundle(text)
	require.NoError(t, err)
	require.Equal(t, testBundle().Fingerprint(), same.Fingerprint())
}

func TestWhatHoldsNoSecretsIsNotImported(t *testing.T) {
	worker := testMachine("w-1")
	worker.Spec.Role = schema.RoleWorker
	for name, test := range map[string]struct {
		text string
		want string
	}{
		"a worker's config": {string(render(t, testCluster(), worker, RenderOptions{}).Bytes), "worker's config"},
		"a kubeconfig":      {"apiVersion: v1\nkind: Config\n", "neither a Talos secrets bundle nor a machine config"},
		"nothing":           {"", "neither"},
		"a rotation under way": {strings.Replace(string(render(t, testCluster(), testMachine("cp-1"), RenderOptions{}).Bytes), "    certSANs:",
			"    acceptedCAs:\n        - crt: "+base64.StdEncoding.EncodeToString(testBundle().secrets.Certs.OS.Crt)+"\n    certSANs:", 1), "rotation"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ImportBundle([]byte(test.text))
			require.ErrorContains(t, err, test.want)
			requireNoSecret(t, err.Error())
		})
	}
}

// requireNoSecret fails when a secret of the test's bundle is in the text.
func requireNoSecret(t *testing.T, text string) {
	t.Helper()
	for _, secret := range testBundle().Scalars() {
		if strings.Contains(text, secret) {
			t.Fatal("the text holds a secret of the bundle")
		}
	}
}

func TestADamagedBundleIsRefusedByFieldAndWithoutItsText(t *testing.T) {
	text, err := testBundle().Marshal()
	require.NoError(t, err)
	inside := testBundle().secrets
	key := base64.StdEncoding.EncodeToString(inside.Certs.Etcd.Key)
	otherKey := base64.StdEncoding.EncodeToString(inside.Certs.K8s.Key)
	for name, test := range map[string]struct{ from, to, want string }{
		"no cluster secret":        {inside.Cluster.Secret, `""`, "cluster.id and cluster.secret"},
		"no token":                 {inside.TrustdInfo.Token, `""`, "trustdinfo.token"},
		"no encryption secret":     {inside.Secrets.SecretboxEncryptionSecret, `""`, "exactly one of"},
		"a key that is not one":    {key, "AAAA", "certs.etcd is no certificate with its key"},
		"the key of another one":   {key, otherKey, "certs.etcd"},
		"a misspelt field":         {"trustdinfo:", "trustinfo:", "talosctl gen secrets"},
		"a value of another shape": {"cluster:", "cluster: [" + inside.Cluster.Secret + "]\nx:", "talosctl gen secrets"},
		"two documents":            {"cluster:", "---\ncluster:", ""},
	} {
		t.Run(name, func(t *testing.T) {
			broken := strings.Replace(string(text), test.from, test.to, 1)
			if name == "two documents" {
				broken = string(text) + "---\nx: y\n"
				test.want = "more than one YAML document"
			}
			require.NotEqual(t, string(text), broken)
			_, err := LoadBundle([]byte(broken))
			require.ErrorContains(t, err, test.want)
			requireNoSecret(t, err.Error())
		})
	}
	_, err = LoadBundle(bytes.Repeat([]byte("#"), maxBundle+1))
	require.ErrorContains(t, err, "more than")
}

func TestABundlePrintsNothing(t *testing.T) {
	for _, format := range []string{"%v", "%+v", "%#v", "%s"} {
		requireNoSecret(t, fmt.Sprintf(format, testBundle()))
	}
}

func TestTheFingerprintTellsClustersApartAndLeavesRotationsAlone(t *testing.T) {
	other, err := GenerateBundle("v1.13")
	require.NoError(t, err)
	require.NotEqual(t, testBundle().Fingerprint(), other.Fingerprint())

	text, err := testBundle().Marshal()
	require.NoError(t, err)
	rotated, err := LoadBundle(text)
	require.NoError(t, err)
	rotated.secrets.Certs.OS = other.secrets.Certs.OS
	require.Equal(t, testBundle().Fingerprint(), rotated.Fingerprint())
	require.NotEqual(t, testBundle().CAs()["os"], rotated.CAs()["os"])
	requireNoSecret(t, testBundle().Fingerprint())
}

func TestOldContractsSealWithTheOtherEncryptionSecret(t *testing.T) {
	old, err := GenerateBundle("v1.2")
	require.NoError(t, err)
	require.Equal(t, old.secrets.Secrets.AESCBCEncryptionSecret, old.SealingMaterial().EncryptionSecret)
	require.NotEmpty(t, old.SealingMaterial().EncryptionSecret)
	material := testBundle().SealingMaterial()
	require.Equal(t, testBundle().secrets.Secrets.SecretboxEncryptionSecret, material.EncryptionSecret)
	require.Equal(t, testBundle().secrets.Cluster.Secret, material.ClusterSecret)
	_, err = GenerateBundle("v1.99")
	require.ErrorContains(t, err, "newer than v1.13")
	_, err = GenerateBundle("latest")
	require.ErrorContains(t, err, "not a Talos version")
}

func TestAMintedCertificateIsShortLivedAndForClientsOnly(t *testing.T) {
	now := time.Now()
	certificate, err := testBundle().Mint(RoleReader, 10*time.Minute, now)
	require.NoError(t, err)
	leaf := certificate.Leaf
	require.Equal(t, []string{"os:reader"}, leaf.Subject.Organization)
	require.Equal(t, []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, leaf.ExtKeyUsage)
	require.Equal(t, x509.KeyUsageDigitalSignature, leaf.KeyUsage)
	require.False(t, leaf.IsCA)
	require.WithinDuration(t, now.Add(-5*time.Minute), leaf.NotBefore, time.Second)
	require.WithinDuration(t, now.Add(10*time.Minute), leaf.NotAfter, time.Second)
	require.IsType(t, ed25519.PrivateKey{}, certificate.PrivateKey)
	roots, err := testBundle().osRoots()
	require.NoError(t, err)
	_, err = leaf.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	require.NoError(t, err)

	_, err = testBundle().Mint("os:everything", time.Minute, now)
	require.ErrorContains(t, err, "os:everything")
	_, err = testBundle().Mint(RoleReader, 0, now)
	require.ErrorContains(t, err, "lives up to")
	_, err = testBundle().Mint(RoleReader, 25*time.Hour, now)
	require.ErrorContains(t, err, "lives up to")
	_, err = testBundle().Mint(RoleReader, time.Minute, now.AddDate(11, 0, 0))
	require.ErrorContains(t, err, "authority ended")
}

func TestATalosconfigOpensWithTalosOwnReader(t *testing.T) {
	text, err := testBundle().Talosconfig(TalosconfigOptions{
		Cluster: "prod", Endpoints: []string{"10.0.0.11", "10.0.0.12:50001"}, Nodes: []string{"fd00::1"},
		Role: RoleOperator, Life: time.Hour, Now: time.Now(),
	})
	require.NoError(t, err)
	parsed, err := clientconfig.FromBytes(text)
	require.NoError(t, err)
	require.Equal(t, "prod", parsed.Context)
	one := parsed.Contexts["prod"]
	require.Equal(t, []string{"10.0.0.11", "10.0.0.12:50001"}, one.Endpoints)
	require.Equal(t, []string{"fd00::1"}, one.Nodes)
	certificate, err := client.CertificateFromConfigContext(one)
	require.NoError(t, err)
	require.Equal(t, []string{"os:operator"}, certificate.Leaf.Subject.Organization)
	for _, secret := range testBundle().Scalars() {
		require.NotContains(t, string(text), secret, "a talosconfig holds its own key and none of the bundle's")
	}
}

func TestTheContractOfARunningClusterIsFound(t *testing.T) {
	for _, contract := range []string{"v1.13", "v1.12", "v1.11", "v1.10", "v1.9", "v1.8", "v1.7", "v1.6", "v1.5"} {
		cluster, machine := testCluster(), testMachine("cp-1")
		cluster.Spec.Contract = contract
		cluster.Spec.Patches.All = inline(map[string]any{"machine": map[string]any{"sysctls": map[string]any{"net.core.somaxconn": "1024"}, "kubelet": map[string]any{"extraArgs": map[string]any{"v": "4"}}}})
		found := ContractOf(render(t, cluster, machine, RenderOptions{}).Bytes)
		cluster.Spec.Contract = found
		again := render(t, cluster, machine, RenderOptions{})
		cluster.Spec.Contract = contract
		require.Equal(t, render(t, cluster, machine, RenderOptions{}).Digest, again.Digest, "%s was taken for %s, which generates something else", contract, found)
	}
	text, err := testBundle().Marshal()
	require.NoError(t, err)
	require.Empty(t, ContractOf(text), "a bundle doesn't tell")
	require.Empty(t, ContractOf(nil))
}

func FuzzLoadBundle(f *testing.F) {
	text, err := testBundle().Marshal()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add([]byte("cluster:\n  id: x\n"))
	f.Add([]byte("a: &a [*a]\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, load := range []func([]byte) (*Bundle, error){LoadBundle, ImportBundle} {
			bundle, err := load(data)
			if err != nil {
				continue
			}
			if bundle.ClusterID() == "" || bundle.Fingerprint() == "" || len(bundle.CAs()) != 4 {
				t.Fatal("a loaded bundle is incomplete")
			}
		}
	})
}
