package machined

import (
	"bytes"
	"context"
	"crypto/tls"
	stdx509 "crypto/x509"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/siderolabs/crypto/x509"
	"github.com/siderolabs/talos/pkg/machinery/resources/network"
	"github.com/siderolabs/talos/pkg/machinery/resources/secrets"
	"github.com/siderolabs/talos/pkg/machinery/role"

	"ichor.maesh.dev/internal/talossim/apid"
)

// Talos's times of the API certificates (controllers/secrets/api.go).
const (
	certLifetime  = 24 * time.Hour
	certRefresh   = 12 * time.Hour
	trustdAttempt = 10 * time.Second
	trustdPause   = 2 * time.Second
)

// frontControl decides what port 50000 shows: nothing, the maintenance certificate, or the configured one.
type frontControl struct {
	m    *Machine
	wake chan struct{}

	mu          sync.Mutex
	maintenance bool
	stale       bool // the configured certificates no longer fit the config
	shown       apid.Settings
	open        bool
}

func (f *frontControl) settings() apid.Settings {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.shown
}

// maintain asks for maintenance mode.
func (f *frontControl) maintain() {
	f.mu.Lock()
	f.maintenance = true
	f.mu.Unlock()
	f.poke()
}

// refresh asks for new certificates, now that the config, the addresses or the names have changed.
func (f *frontControl) refresh() {
	f.mu.Lock()
	f.stale = true
	f.mu.Unlock()
	f.poke()
}

func (f *frontControl) poke() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// run follows the config: it opens the port in maintenance mode, restarts the listener when that ends, and renews
// certificates. It returns when the boot ends.
func (f *frontControl) run(ctx context.Context) {
	for {
		retry := f.step(ctx)
		wait := f.m.pace.Of(certRefresh)
		if retry {
			wait = f.m.pace.Of(trustdPause)
		}
		timer := f.m.pace.Clock.NewTimer(wait)
		select {
		case <-f.wake:
		case <-timer.C():
			f.mu.Lock()
			f.stale = true
			f.mu.Unlock()
		case <-ctx.Done():
			timer.Stop()
			return
		}
		timer.Stop()
	}
}

func (f *frontControl) step(ctx context.Context) (retry bool) {
	m := f.m
	f.mu.Lock()
	maintenance, stale, open, shown := f.maintenance, f.stale, f.open, f.shown
	f.mu.Unlock()
	switch {
	case m.conf.configured() && open && shown.Maintenance:
		// Leaving maintenance: the listener goes away gracefully and comes back with the node's own certificate.
		m.cfg.Front.Stop()
		f.mu.Lock()
		f.open, f.maintenance, f.stale = false, false, true
		f.mu.Unlock()
		return f.step(ctx)
	case m.conf.configured() && (stale || !open):
		settings, err := f.issue(ctx)
		if err != nil {
			m.log.Debug("no API certificate yet", "err", err)
			return true
		}
		return f.show(ctx, settings)
	case maintenance && !open && !m.conf.configured():
		settings, err := f.selfSigned()
		if err != nil {
			m.log.Error("making the maintenance certificate", "err", err)
			return true
		}
		return f.show(ctx, settings)
	}
	return false
}

func (f *frontControl) show(ctx context.Context, settings apid.Settings) (retry bool) {
	f.mu.Lock()
	f.shown, f.stale = settings, false
	open := f.open
	f.mu.Unlock()
	if open || ctx.Err() != nil {
		return false
	}
	if err := f.m.cfg.Front.Start(ctx); err != nil {
		f.m.log.Error("opening port 50000", "err", err)
		return true
	}
	f.mu.Lock()
	f.open = true
	f.mu.Unlock()
	return false
}

// selfSigned is the maintenance certificate: a new CA at each boot.
func (f *frontControl) selfSigned() (apid.Settings, error) {
	ca, err := x509.NewSelfSignedCertificateAuthority(x509.Organization("talos"), x509.NotAfter(time.Now().Add(87600*time.Hour)))
	if err != nil {
		return apid.Settings{}, fmt.Errorf("making the maintenance CA: %w", err)
	}
	server, err := x509.NewKeyPair(ca, x509.CommonName("maintenance-service.talos.dev"),
		x509.IPAddresses([]net.IP{f.m.cfg.Address.AsSlice(), net.IPv4(127, 0, 0, 1), net.IPv6loopback}), x509.DNSNames([]string{"localhost"}),
		x509.NotAfter(time.Now().Add(certLifetime)), x509.KeyUsage(stdx509.KeyUsageDigitalSignature),
		x509.ExtKeyUsage([]stdx509.ExtKeyUsage{stdx509.ExtKeyUsageServerAuth}))
	if err != nil {
		return apid.Settings{}, fmt.Errorf("making the maintenance certificate: %w", err)
	}
	return apid.Settings{Maintenance: true, Server: server.Certificate, Local: f.local()}, nil
}

func (f *frontControl) local() []string {
	names := []string{f.m.cfg.Address.String(), "127.0.0.1", "localhost"}
	if r, ok := get(f.m.ctx, f.m.st, network.NewHostnameStatus(network.NamespaceName, network.HostnameID)); ok {
		names = append(names, r.TypedSpec().Hostname, r.TypedSpec().FQDN())
	}
	return names
}

// sans are the certificate's addresses and names: the node's own and certSANs, nothing else.
func (f *frontControl) sans() (ips []net.IP, names []string, fqdn string) {
	ips = []net.IP{f.m.cfg.Address.AsSlice(), net.IPv4(127, 0, 0, 1)}
	for _, n := range f.local() {
		if net.ParseIP(n) == nil && !slices.Contains(names, n) && n != "localhost" {
			names = append(names, n)
			fqdn = n
		}
	}
	for _, san := range f.m.conf.current().Machine().Security().CertSANs() {
		if ip := net.ParseIP(san); ip != nil {
			ips = append(ips, ip)
		} else {
			names = append(names, san)
		}
	}
	return ips, names, fqdn
}

func (f *frontControl) issue(ctx context.Context) (apid.Settings, error) {
	if f.m.conf.machineType().IsControlPlane() {
		return f.issueControlPlane()
	}
	return f.issueWorker(ctx)
}

// issueControlPlane makes the node's certificates with the OS CA of its config.
func (f *frontControl) issueControlPlane() (apid.Settings, error) {
	security := f.m.conf.current().Machine().Security()
	ca, err := x509.NewCertificateAuthorityFromCertificateAndKey(security.IssuingCA())
	if err != nil {
		return apid.Settings{}, fmt.Errorf("failed to parse CA certificate: %w", err)
	}
	ips, names, fqdn := f.sans()
	until := x509.NotAfter(time.Now().Add(certLifetime))
	server, err := x509.NewKeyPair(ca, x509.IPAddresses(ips), x509.DNSNames(names), x509.CommonName(fqdn), until,
		x509.KeyUsage(stdx509.KeyUsageDigitalSignature), x509.ExtKeyUsage([]stdx509.ExtKeyUsage{stdx509.ExtKeyUsageServerAuth}))
	if err != nil {
		return apid.Settings{}, fmt.Errorf("failed to generate API server cert: %w", err)
	}
	client, err := x509.NewKeyPair(ca, x509.CommonName(fqdn), x509.Organization(string(role.Impersonator)), until,
		x509.KeyUsage(stdx509.KeyUsageDigitalSignature), x509.ExtKeyUsage([]stdx509.ExtKeyUsage{stdx509.ExtKeyUsageClientAuth}))
	if err != nil {
		return apid.Settings{}, fmt.Errorf("failed to generate API client cert: %w", err)
	}
	accepted := f.acceptedCAs()
	f.publishCerts(x509.NewCertificateAndKeyFromKeyPair(server), x509.NewCertificateAndKeyFromKeyPair(client), accepted)
	return apid.Settings{Server: server.Certificate, Client: client.Certificate, Accepted: pool(accepted), Local: f.local()}, nil
}

// acceptedCAs are the config's: the issuing CA and the further accepted ones, one PEM after the other.
func (f *frontControl) acceptedCAs() []byte {
	security := f.m.conf.current().Machine().Security()
	var out bytes.Buffer
	if ca := security.IssuingCA(); ca != nil {
		out.Write(ca.Crt)
	}
	for _, ca := range security.AcceptedCAs() {
		out.Write([]byte("\n"))
		out.Write(ca.Crt)
	}
	return out.Bytes()
}

func pool(pem []byte) *stdx509.CertPool {
	p := stdx509.NewCertPool()
	p.AppendCertsFromPEM(pem)
	return p
}

// issueWorker asks the trustd of a control plane. What CAs the worker then accepts is what that control plane accepts.
func (f *frontControl) issueWorker(ctx context.Context) (apid.Settings, error) {
	security := f.m.conf.current().Machine().Security()
	template := security.IssuingCA()
	if accepted := security.AcceptedCAs(); len(accepted) > 0 {
		template = &x509.PEMEncodedCertificateAndKey{Crt: accepted[len(accepted)-1].Crt}
	}
	if template == nil {
		return apid.Settings{}, fmt.Errorf("no accepted CAs")
	}
	cert, err := template.GetCert()
	if err != nil {
		return apid.Settings{}, fmt.Errorf("failed to parse CA certificate: %w", err)
	}
	ips, names, fqdn := f.sans()
	csr, identity, err := x509.NewCSRAndIdentityFromCA(cert, x509.IPAddresses(ips), x509.DNSNames(names), x509.CommonName(fqdn))
	if err != nil {
		return apid.Settings{}, fmt.Errorf("failed to generate API server CSR: %w", err)
	}
	signed, accepted, err := f.m.askTrustd(ctx, security.Token(), csr.X509CertificateRequestPEM)
	if err != nil {
		return apid.Settings{}, err
	}
	identity.Crt = signed
	server, err := tls.X509KeyPair(identity.Crt, identity.Key)
	if err != nil {
		return apid.Settings{}, fmt.Errorf("the certificate that trustd signed: %w", err)
	}
	f.publishCerts(identity, nil, accepted)
	return apid.Settings{Server: &server, Accepted: pool(accepted), Local: f.local()}, nil
}

func (f *frontControl) publishCerts(server, client *x509.PEMEncodedCertificateAndKey, accepted []byte) {
	r := secrets.NewAPI()
	spec := r.TypedSpec()
	spec.Server, spec.Client, spec.AcceptedCAs = server, client, []*x509.PEMEncodedCertificate{{Crt: accepted}}
	f.m.put(r)
}
