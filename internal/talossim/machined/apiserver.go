package machined

import (
	"bytes"
	"context"
	"crypto/subtle"
	"crypto/tls"
	stdx509 "crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/siderolabs/crypto/x509"
	"github.com/siderolabs/talos/pkg/machinery/config"

	"ichor.maesh.dev/internal/talossim/kubeapi"
)

// Kubernetes' own times, and what they aren't shortened below: a busy host has to get a heartbeat through in between.
const (
	apiRequestTimeout = 60 * time.Second
	nodeMonitorPeriod = 5 * time.Second
	nodeGrace         = 40 * time.Second
	monitorFloor      = time.Second
	graceFloor        = 15 * time.Second
)

// startAPIServer opens the machine's port 6443 with what its config says.
func (m *Machine) startAPIServer(p config.Provider) (*kubeapi.Server, error) {
	cert, err := m.apiServerCertificate(p)
	if err != nil {
		return nil, err
	}
	etcd, err := m.etcdLocalClient()
	if err != nil {
		return nil, err
	}
	image := p.Cluster().APIServer().Image()
	server, err := kubeapi.Start(kubeapi.Config{
		Address: m.cfg.Address, Link: m.cfg.World.Network.Link(m.cfg.Address).Wrap,
		Certificate: cert, ClientCAs: pool(kubernetesCAs(p)), Etcd: etcd,
		Version: image[strings.LastIndex(image, ":")+1:],
		Clock:   m.pace.Clock, RequestTimeout: max(m.pace.Of(apiRequestTimeout), workFloor),
		MonitorPeriod: max(m.pace.Of(nodeMonitorPeriod), monitorFloor), NodeGrace: max(m.pace.Of(nodeGrace), graceFloor),
		Log: m.log,
	})
	if err != nil {
		return nil, errors.Join(err, etcd.Close())
	}
	return server, nil
}

// kubernetesCAs are those that the config has callers of the API accepted by: the issuing one and the further accepted ones.
func kubernetesCAs(p config.Provider) []byte {
	var out bytes.Buffer
	if ca := p.Cluster().IssuingCA(); ca != nil {
		out.Write(ca.Crt)
	}
	for _, ca := range p.Cluster().AcceptedCAs() {
		out.WriteByte('\n')
		out.Write(ca.Crt)
	}
	return out.Bytes()
}

// apiServerCertificate is made with the Kubernetes CA of the config, for the names and addresses that Talos gives it.
func (m *Machine) apiServerCertificate(p config.Provider) (tls.Certificate, error) {
	c := p.Cluster()
	ca, err := x509.NewCertificateAuthorityFromCertificateAndKey(c.IssuingCA())
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("failed to parse the Kubernetes CA: %w", err)
	}
	ips := []net.IP{m.cfg.Address.AsSlice(), net.IPv4(127, 0, 0, 1)}
	names := []string{
		"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc." + c.Network().DNSDomain(), "localhost", m.hostname(),
	}
	service, err := c.Network().APIServerIPs()
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("the API server's service addresses: %w", err)
	}
	for _, addr := range service {
		ips = append(ips, addr.AsSlice())
	}
	for _, san := range append(slices.Clone(c.CertSANs()), c.Endpoint().Hostname()) {
		if ip := net.ParseIP(san); ip != nil {
			ips = append(ips, ip)
		} else {
			names = append(names, san)
		}
	}
	pair, err := x509.NewKeyPair(ca, x509.CommonName("kube-apiserver"), x509.Organization("kube-master"), x509.IPAddresses(ips), x509.DNSNames(names),
		x509.NotAfter(time.Now().Add(kubeCertLifetime)), x509.KeyUsage(stdx509.KeyUsageDigitalSignature|stdx509.KeyUsageKeyEncipherment),
		x509.ExtKeyUsage([]stdx509.ExtKeyUsage{stdx509.ExtKeyUsageServerAuth}))
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("failed to generate the API server's certificate: %w", err)
	}
	return *pair.Certificate, nil
}

// signKubelet gives a kubelet that knows the bootstrap token its client certificate, as Kubernetes' controllers do.
func (m *Machine) signKubelet(_ context.Context, token string, csr []byte) ([]byte, error) {
	p := m.conf.current()
	if p == nil || m.ctx.Err() != nil {
		return nil, errors.New("the control plane is not up")
	}
	if subtle.ConstantTimeCompare([]byte(token), []byte(bootstrapToken(p))) != 1 {
		return nil, errors.New("the bootstrap token isn't this cluster's")
	}
	block, _ := pem.Decode(csr)
	if block == nil {
		return nil, errors.New("the kubelet's certificate request is no PEM")
	}
	request, err := stdx509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("the kubelet's certificate request: %w", err)
	}
	if !strings.HasPrefix(request.Subject.CommonName, kubeletUser) || !slices.Equal(request.Subject.Organization, []string{kubeletGroup}) {
		return nil, fmt.Errorf("%s is no kubelet's name", request.Subject.CommonName)
	}
	ca := p.Cluster().IssuingCA()
	signed, err := x509.NewCertificateFromCSRBytes(ca.Crt, ca.Key, csr, x509.NotAfter(time.Now().Add(kubeCertLifetime)),
		x509.KeyUsage(stdx509.KeyUsageDigitalSignature), x509.ExtKeyUsage([]stdx509.ExtKeyUsage{stdx509.ExtKeyUsageClientAuth}))
	if err != nil {
		return nil, fmt.Errorf("signing the kubelet's certificate: %w", err)
	}
	return signed.X509CertificatePEM, nil
}

func bootstrapToken(p config.Provider) string {
	return p.Cluster().Token().ID() + "." + p.Cluster().Token().Secret()
}
