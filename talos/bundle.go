package talos

import (
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	siderox509 "github.com/siderolabs/crypto/x509"
	"go.yaml.in/yaml/v4"

	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/config/configloader"
	"github.com/siderolabs/talos/pkg/machinery/config/generate/secrets"
)

// maxBundle bounds the text of a secrets bundle; a real one has some 20 KiB.
const maxBundle = 1 << 20

// Bundle is a cluster's Talos secrets bundle, in the format of `talosctl gen secrets`. It never changes and prints nothing.
type Bundle struct {
	secrets *secrets.Bundle
}

// String keeps the bundle out of texts.
func (b *Bundle) String() string { return "(secrets bundle)" }

// GoString keeps the bundle out of texts.
func (b *Bundle) GoString() string { return "(secrets bundle)" }

// LoadBundle reads a secrets bundle. Errors name the field and never quote the text.
func LoadBundle(data []byte) (*Bundle, error) {
	if len(data) > maxBundle {
		return nil, fmt.Errorf("the secrets bundle has more than %d bytes, which none has", maxBundle)
	}
	loaded := &secrets.Bundle{}
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	decoder.KnownFields(true)
	if err := decoder.Decode(loaded); err != nil {
		return nil, errors.New("the secrets bundle is not in the format of 'talosctl gen secrets' (cluster, secrets, trustdinfo, certs); 'ichor secrets import' takes it from a control plane's config")
	}
	if err := decoder.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, errors.New("the secrets bundle is more than one YAML document")
	}
	return newBundle(loaded)
}

func newBundle(loaded *secrets.Bundle) (*Bundle, error) {
	if err := validateBundle(loaded); err != nil {
		return nil, fmt.Errorf("the secrets bundle is incomplete or damaged: %w", err)
	}
	loaded.Clock = secrets.NewClock()
	return &Bundle{loaded}, nil
}

// validateBundle is the machinery's check, with its words kept only where they can't quote a value.
func validateBundle(loaded *secrets.Bundle) error {
	if err := loaded.Validate(); err != nil {
		return errors.New(bundleProblem(loaded))
	}
	for name, pair := range authorities(loaded) {
		if _, err := tls.X509KeyPair(pair.Crt, pair.Key); err != nil {
			return fmt.Errorf("certs.%s: certificate and key don't belong together", name)
		}
		if _, err := certificateOf(pair); err != nil {
			return fmt.Errorf("certs.%s: %w", name, err)
		}
	}
	return nil
}

// bundleProblem names the first part that is missing or wrong.
func bundleProblem(b *secrets.Bundle) string {
	switch {
	case b.Cluster == nil || b.Cluster.ID == "" || b.Cluster.Secret == "":
		return "cluster.id and cluster.secret are required"
	case b.Secrets == nil || b.Secrets.BootstrapToken == "":
		return "secrets.bootstraptoken is required"
	case (b.Secrets.AESCBCEncryptionSecret == "") == (b.Secrets.SecretboxEncryptionSecret == ""):
		return "exactly one of secrets.secretboxencryptionsecret and secrets.aescbcencryptionsecret is required"
	case b.TrustdInfo == nil || b.TrustdInfo.Token == "":
		return "trustdinfo.token is required"
	case b.Certs == nil:
		return "certs is required"
	}
	for _, name := range []string{"os", "k8s", "k8saggregator", "etcd"} {
		pair := authorities(b)[name]
		if pair == nil {
			return "certs." + name + " is required"
		}
		if _, err := tls.X509KeyPair(pair.Crt, pair.Key); err != nil {
			return "certs." + name + " is no certificate with its key"
		}
	}
	return "certs.k8sserviceaccount is no private key"
}

func authorities(b *secrets.Bundle) map[string]*siderox509.PEMEncodedCertificateAndKey {
	found := map[string]*siderox509.PEMEncodedCertificateAndKey{}
	if b.Certs == nil {
		return found
	}
	for name, pair := range map[string]*siderox509.PEMEncodedCertificateAndKey{
		"os": b.Certs.OS, "k8s": b.Certs.K8s, "k8saggregator": b.Certs.K8sAggregator, "etcd": b.Certs.Etcd,
	} {
		if pair != nil {
			found[name] = pair
		}
	}
	return found
}

func certificateOf(pair *siderox509.PEMEncodedCertificateAndKey) (*x509.Certificate, error) {
	block, _ := pem.Decode(pair.Crt)
	if block == nil || block.Type != "CERTIFICATE" {
		return nil, errors.New("it holds no PEM certificate")
	}
	certificate, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, errors.New("its certificate can't be read")
	}
	if !certificate.IsCA {
		return nil, errors.New("its certificate is no authority's")
	}
	return certificate, nil
}

// GenerateBundle makes new secrets for a cluster of the Talos version whose config generation is used ("v1.13").
func GenerateBundle(contract string) (*Bundle, error) {
	version, err := parseContract(contract)
	if err != nil {
		return nil, err
	}
	made, err := secrets.NewBundle(secrets.NewClock(), version)
	if err != nil {
		return nil, fmt.Errorf("generating secrets: %w", err)
	}
	return newBundle(made)
}

// parseContract gives the machinery's form of a contract. Empty means that of the machinery itself.
func parseContract(contract string) (*config.VersionContract, error) {
	if contract == "" {
		return config.TalosVersion1_13, nil
	}
	version, err := config.ParseContractFromVersion(contract)
	if err != nil {
		return nil, fmt.Errorf("contract %q is not a Talos version; write it as in v1.13", contract)
	}
	if version.Greater(config.TalosVersion1_13) {
		return nil, fmt.Errorf("contract %s is newer than v1.13, the newest that this program generates configs for", version)
	}
	return version, nil
}

// ImportBundle takes the secrets from the text of a control plane's machine config or of a secrets bundle.
func ImportBundle(data []byte) (*Bundle, error) {
	if bundle, err := LoadBundle(data); err == nil {
		return bundle, nil
	}
	provider, err := configloader.NewFromBytes(data)
	if err != nil || provider.RawV1Alpha1() == nil || provider.RawV1Alpha1().MachineConfig == nil || provider.RawV1Alpha1().ClusterConfig == nil {
		return nil, errors.New("this is neither a Talos secrets bundle nor a machine config")
	}
	raw := provider.RawV1Alpha1()
	if !provider.Machine().Type().IsControlPlane() {
		return nil, errors.New("this is a worker's config, which lacks the keys; take a control plane's (talosctl get machineconfig v1alpha1 -o jsonpath='{.spec}')")
	}
	if len(raw.MachineConfig.MachineAcceptedCAs) > 0 || len(raw.ClusterConfig.ClusterAcceptedCAs) > 0 {
		return nil, errors.New("this config accepts further authorities (acceptedCAs), which a bundle can't hold: a rotation of the authorities is under way; finish it first")
	}
	if raw.ClusterConfig.EtcdConfig == nil {
		return nil, errors.New("the secrets bundle is incomplete or damaged: certs.etcd is required")
	}
	return newBundle(secrets.NewBundleFromConfig(secrets.NewClock(), provider))
}

// Marshal gives the bundle's text, in the format of `talosctl gen secrets`. It is to be sealed at once.
func (b *Bundle) Marshal() ([]byte, error) {
	var out bytes.Buffer
	encoder := yaml.NewEncoder(&out)
	encoder.SetIndent(4)
	if err := encoder.Encode(b.secrets); err != nil {
		return nil, errors.New("encoding the secrets bundle failed")
	}
	return out.Bytes(), nil
}

// ClusterID is the cluster's ID as it stands in the bundle; schema.ClusterID makes of it what TalosCluster.spec.id holds.
func (b *Bundle) ClusterID() string { return b.secrets.Cluster.ID }

// SealingMaterial is what the seals of the state and the passphrase of backups are derived from, each as the bytes of the
// strings in the bundle.
type SealingMaterial struct {
	ClusterID     string
	ClusterSecret string
	// EncryptionSecret is secretboxEncryptionSecret, else aescbcEncryptionSecret. Control planes alone know it.
	EncryptionSecret string
}

// SealingMaterial gives the secrets that seals are made from.
func (b *Bundle) SealingMaterial() SealingMaterial {
	secret := b.secrets.Secrets.SecretboxEncryptionSecret
	if secret == "" {
		secret = b.secrets.Secrets.AESCBCEncryptionSecret
	}
	return SealingMaterial{b.secrets.Cluster.ID, b.secrets.Cluster.Secret, secret}
}

// CAs gives the SHA-256 fingerprints, in hex, of the certificates of the bundle's authorities by name: os, kubernetes,
// etcd, aggregator.
func (b *Bundle) CAs() map[string]string {
	names := map[string]string{"os": "os", "k8s": "kubernetes", "k8saggregator": "aggregator", "etcd": "etcd"}
	prints := map[string]string{}
	for name, pair := range authorities(b.secrets) {
		block, _ := pem.Decode(pair.Crt)
		sum := sha256.Sum256(block.Bytes)
		prints[names[name]] = hex.EncodeToString(sum[:])
	}
	return prints
}

// Fingerprint identifies the cluster that the bundle is of: two bundles have the same one exactly when cluster ID and
// cluster secret, which backups and seals hang on, are the same. The secret has 32 random bytes, so nothing of it can be
// found from the fingerprint. A rotation of the authorities leaves it alone; CAs tells that.
func (b *Bundle) Fingerprint() string {
	hash := sha256.New()
	for _, part := range []string{"ichor.maesh.dev/bundle/v1", b.secrets.Cluster.ID, b.secrets.Cluster.Secret, b.SealingMaterial().EncryptionSecret} {
		fmt.Fprintf(hash, "%d:%s,", len(part), part)
	}
	return hex.EncodeToString(hash.Sum(nil))
}

// Same says whether two bundles hold the same secrets and authorities: configs made with one are those made with the other.
func (b *Bundle) Same(other *Bundle) bool {
	return b.Fingerprint() == other.Fingerprint() && maps.Equal(b.CAs(), other.CAs()) && slices.Equal(b.Scalars(), other.Scalars())
}

// Scalars gives every secret text of the bundle, for scrubbers: tokens whole and in halves, secrets, and private keys as
// PEM and as the base64 that configs hold.
func (b *Bundle) Scalars() []string {
	inside := b.secrets
	found := []string{
		inside.Cluster.Secret, inside.Secrets.BootstrapToken, inside.TrustdInfo.Token,
		inside.Secrets.SecretboxEncryptionSecret, inside.Secrets.AESCBCEncryptionSecret,
	}
	for _, token := range []string{inside.Secrets.BootstrapToken, inside.TrustdInfo.Token} {
		if _, secret, ok := bytes.Cut([]byte(token), []byte(".")); ok {
			found = append(found, string(secret))
		}
	}
	keys := [][]byte{inside.Certs.K8sServiceAccount.Key}
	for _, pair := range authorities(inside) {
		keys = append(keys, pair.Key)
	}
	for _, key := range keys {
		found = append(found, string(key), base64.StdEncoding.EncodeToString(key))
		if block, _ := pem.Decode(key); block != nil {
			found = append(found, base64.StdEncoding.EncodeToString(block.Bytes))
		}
	}
	slices.Sort(found)
	return slices.DeleteFunc(slices.Compact(found), func(value string) bool { return value == "" })
}

func (b *Bundle) osRoots() (*x509.CertPool, error) {
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(b.secrets.Certs.OS.Crt) {
		return nil, errors.New("the bundle's Talos API authority can't be read")
	}
	return roots, nil
}

// backdated is how far in the past a minted certificate begins: nodes' clocks run behind.
const backdated = 5 * time.Minute
