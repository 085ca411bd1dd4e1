package apid

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
)

// serverTLS asks the provider at each handshake, so that certificates are swapped under a running listener.
func serverTLS(provider Provider, maintenance bool) *tls.Config {
	base := &tls.Config{
		MinVersion: tls.VersionTLS13,
		NextProtos: []string{"h2"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			if cert := provider.Settings().Server; cert != nil {
				return cert, nil
			}

			return nil, errors.New("the node has no server certificate yet")
		},
	}

	if maintenance {
		return base
	}

	config := base.Clone()
	config.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		mutual := base.Clone()
		mutual.ClientAuth = tls.RequireAndVerifyClientCert
		mutual.ClientCAs = provider.Settings().Accepted
		mutual.VerifyPeerCertificate = verifyClientUsage

		if mutual.ClientCAs == nil {
			mutual.ClientCAs = x509.NewCertPool() // a nil pool would mean the machine's own roots
		}

		return mutual, nil
	}

	return config
}

// verifyClientUsage wants exactly the one extended key usage clientAuth on every certificate of the chain that is not a CA
// (Talos: verifyExtKeyUsage in internal/app/apid/service.go).
func verifyClientUsage(_ [][]byte, chains [][]*x509.Certificate) error {
	if len(chains) == 0 {
		return errors.New("no verified chains")
	}

	for _, cert := range chains[0] {
		if cert.IsCA || slices.Equal(cert.ExtKeyUsage, []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}) {
			continue
		}

		return fmt.Errorf("certificate %q is missing the client auth extended key usage", cert.Subject)
	}

	return nil
}

// clientTLS is how one node's front calls another's.
func clientTLS(settings Settings) *tls.Config {
	return &tls.Config{
		MinVersion:   tls.VersionTLS13,
		RootCAs:      settings.Accepted,
		Certificates: []tls.Certificate{*settings.Client},
	}
}
