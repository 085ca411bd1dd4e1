package talos

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"strconv"
	"strings"
	"time"

	siderox509 "github.com/siderolabs/crypto/x509"
	clientconfig "github.com/siderolabs/talos/pkg/machinery/client/config"

	"ichor.maesh.dev/internal/printable"
	"ichor.maesh.dev/schema"
)

// maxCertificateLife bounds what is minted: a certificate can't be taken back.
const maxCertificateLife = 24 * time.Hour

// Mint makes a client certificate of a role for the Talos API. It is valid from five minutes before now, because nodes'
// clocks may be behind, until now plus life, at most 24 hours; its one extended usage is clientAuth, since Talos refuses
// any other set.
func (b *Bundle) Mint(role Role, life time.Duration, now time.Time) (tls.Certificate, error) {
	leaf, key, err := b.mint(role, life, now)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: key, Leaf: leaf}, nil
}

func (b *Bundle) mint(role Role, life time.Duration, now time.Time) (*x509.Certificate, any, error) {
	switch role {
	case RoleReader, RoleEtcdBackup, RoleOperator, RoleAdmin:
	default:
		return nil, nil, fmt.Errorf("role %q is not known; want os:reader, os:etcd:backup, os:operator or os:admin", role)
	}
	return issue(b.secrets.Certs.OS, "Talos API", pkix.Name{Organization: []string{string(role)}}, life, now)
}

// MintKubernetes makes a client certificate for the Kubernetes API, in the name of a user and with groups, valid like that of
// [Bundle.Mint]. What Kubernetes keeps for its own parts is refused, but for the group of administrators.
func (b *Bundle) MintKubernetes(user string, groups []string, life time.Duration, now time.Time) (tls.Certificate, error) {
	switch {
	case user == "":
		return tls.Certificate{}, errors.New("a client certificate for Kubernetes names a user, and none is given")
	case strings.HasPrefix(user, "system:"):
		return tls.Certificate{}, fmt.Errorf("the user %q is one of Kubernetes's own parts (system:), and a certificate names a person", printable.Text(user))
	}
	for _, name := range append([]string{user}, groups...) {
		if printable.Text(name) != name || strings.TrimSpace(name) != name || name == "" || len(name) > maxName {
			return tls.Certificate{}, fmt.Errorf("%q can't stand in a certificate; write 1 to %d characters that can be read, without blanks around", printable.Text(name), maxName)
		}
	}
	for _, group := range groups {
		if strings.HasPrefix(group, "system:") && group != GroupMasters {
			return tls.Certificate{}, fmt.Errorf("the group %q is one of Kubernetes's own (system:); of these only %s is given", printable.Text(group), GroupMasters)
		}
	}
	leaf, key, err := issue(b.secrets.Certs.K8s, "Kubernetes", pkix.Name{CommonName: user, Organization: groups}, life, now)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: key, Leaf: leaf}, nil
}

// GroupMasters is the group whose members may do everything in Kubernetes, whatever its roles say.
const GroupMasters = "system:masters"

// maxName bounds a name in a certificate, as X.520 does.
const maxName = 64

// KubernetesCA gives the certificate of the Kubernetes authority, as PEM.
func (b *Bundle) KubernetesCA() []byte { return bytes.Clone(b.secrets.Certs.K8s.Crt) }

// issue makes a client certificate of an authority.
func issue(pair *siderox509.PEMEncodedCertificateAndKey, which string, subject pkix.Name, life time.Duration, now time.Time) (*x509.Certificate, any, error) {
	failed := func(err error) (*x509.Certificate, any, error) {
		return nil, nil, fmt.Errorf("minting a client certificate: %w", err)
	}
	if life <= 0 || life > maxCertificateLife {
		return nil, nil, fmt.Errorf("a client certificate lives up to %s, not %s", maxCertificateLife, life)
	}
	authority, err := certificateOf(pair)
	if err != nil {
		return failed(fmt.Errorf("the %s authority: %w", which, err))
	}
	if now.After(authority.NotAfter) {
		return failed(fmt.Errorf("the %s authority ended at %s; rotate it", which, authority.NotAfter.UTC().Format(time.RFC3339)))
	}
	signer, err := tls.X509KeyPair(pair.Crt, pair.Key)
	if err != nil {
		return failed(fmt.Errorf("the %s authority's key can't be read", which))
	}
	public, private, err := newKey(signer.PrivateKey)
	if err != nil {
		return failed(err)
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return failed(err)
	}
	template := &x509.Certificate{
		SerialNumber:          serial,
		Subject:               subject,
		NotBefore:             now.Add(-backdated),
		NotAfter:              now.Add(life),
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, authority, public, signer.PrivateKey)
	if err != nil {
		return failed(err)
	}
	leaf, err := x509.ParseCertificate(der)
	return leaf, private, err
}

// newKey makes a key of the authority's kind: Ed25519 as Talos does, ECDSA otherwise.
func newKey(authority any) (public, private any, err error) {
	if _, ok := authority.(ed25519.PrivateKey); ok {
		return ed25519.GenerateKey(rand.Reader)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	return key.Public(), key, nil
}

// TalosconfigOptions say what a talosconfig is for.
type TalosconfigOptions struct {
	// Cluster names the context.
	Cluster string
	// Endpoints and Nodes are host or host:port, as in TalosMachine.spec.endpoint.
	Endpoints, Nodes []string
	Role             Role
	Life             time.Duration
	Now              time.Time
}

// Talosconfig gives the text of a talosconfig for talosctl, with a freshly minted certificate. It holds a key.
func (b *Bundle) Talosconfig(options TalosconfigOptions) ([]byte, error) {
	leaf, key, err := b.mint(options.Role, options.Life, options.Now)
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("minting a client certificate: %w", err)
	}
	blockType := "PRIVATE KEY"
	if _, ok := key.(ed25519.PrivateKey); ok {
		blockType = "ED25519 PRIVATE KEY" // as Talos's own tools write it
	}
	pair := &siderox509.PEMEncodedCertificateAndKey{
		Crt: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: leaf.Raw}),
		Key: pem.EncodeToMemory(&pem.Block{Type: blockType, Bytes: der}),
	}
	made := clientconfig.NewConfig(options.Cluster, endpointsOf(options.Endpoints), b.secrets.Certs.OS.Crt, pair)
	for _, one := range made.Contexts {
		one.Nodes = endpointsOf(options.Nodes)
	}
	return made.Bytes()
}

// endpointsOf drops the default port: talosctl adds it, and takes nodes only without.
func endpointsOf(endpoints []string) []string {
	short := make([]string, 0, len(endpoints))
	for _, endpoint := range endpoints {
		target := Target{Endpoint: endpoint}
		address := target.Address()
		if _, port, err := net.SplitHostPort(address); err == nil && port == strconv.Itoa(schema.TalosPort) {
			address = target.Host()
		}
		short = append(short, address)
	}
	return short
}
