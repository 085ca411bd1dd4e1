package machined

import (
	"bytes"
	"context"
	"crypto/subtle"
	stdx509 "crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"

	"github.com/siderolabs/crypto/x509"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// trustd serves other machines' certificate requests for as long as the service runs.
func (m *Machine) trustd(ctx context.Context) error {
	m.cfg.World.Trustd.Serve(m.cfg.Address, m.sign)
	<-ctx.Done()
	m.cfg.World.Trustd.Serve(m.cfg.Address, nil)
	return nil
}

// sign answers a certificate request (Talos: internal/app/trustd/internal/reg/reg.go).
func (m *Machine) sign(_ context.Context, token string, csr []byte) (cert, accepted []byte, err error) {
	p := m.conf.current()
	if p == nil || m.ctx.Err() != nil {
		return nil, nil, status.Error(codes.Unavailable, "trustd is not up")
	}
	security := p.Machine().Security()
	switch {
	case token == "":
		return nil, nil, status.Error(codes.Unauthenticated, "missing token")
	case subtle.ConstantTimeCompare([]byte(token), []byte(security.Token())) != 1:
		return nil, nil, status.Error(codes.Unauthenticated, "invalid token")
	}
	block, _ := pem.Decode(csr)
	if block == nil {
		return nil, nil, status.Error(codes.InvalidArgument, "failed to decode CSR")
	}
	request, err := stdx509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil, nil, status.Errorf(codes.InvalidArgument, "failed to parse CSR: %s", err)
	}
	options := []x509.Option{
		x509.KeyUsage(stdx509.KeyUsageDigitalSignature),
		x509.ExtKeyUsage([]stdx509.ExtKeyUsage{stdx509.ExtKeyUsageServerAuth}),
	}
	if len(request.Subject.Organization) > 0 {
		options = append(options, x509.OverrideSubject(func(s *pkix.Name) { s.Organization = nil }))
	}
	ca := security.IssuingCA()
	signed, err := x509.NewCertificateFromCSRBytes(ca.Crt, ca.Key, csr, options...)
	if err != nil {
		return nil, nil, status.Errorf(codes.Internal, "failed to sign CSR: %s", err)
	}
	return signed.X509CertificatePEM, bytes.Clone(m.front.acceptedCAs()), nil
}

// askTrustd tries the control planes that are known, ten seconds each.
func (m *Machine) askTrustd(ctx context.Context, token string, csr []byte) (cert, accepted []byte, err error) {
	err = errors.New("no control plane is known")
	for _, addr := range m.controlPlaneEndpoints() {
		server := m.cfg.World.Trustd.At(addr)
		if server == nil || !m.cfg.World.Network.Reachable(m.cfg.Address, addr) {
			err = errors.New("no trustd answers at " + addr.String())
			continue
		}
		attempt, cancel := m.pace.Within(ctx, trustdAttempt)
		cert, accepted, err = server(attempt, token, csr)
		cancel()
		if err == nil {
			return cert, accepted, nil
		}
	}
	return nil, nil, err
}
