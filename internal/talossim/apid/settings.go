package apid

import (
	"crypto/tls"
	"crypto/x509"
)

// Settings is what a node's front needs to know about the node. It is asked for anew at each handshake and each call, so
// that a new certificate or CA holds for new connections while established ones go on.
type Settings struct {
	// Maintenance: no client certificate is asked for, callers are os:reader, routing metadata is ignored. A change of
	// mode takes hold when the front is started anew.
	Maintenance bool
	// Server is the certificate shown to callers.
	Server *tls.Certificate
	// Accepted are the CAs whose client certificates are accepted, and with which other nodes' servers are verified.
	Accepted *x509.CertPool
	// Client is the os:impersonator certificate with which calls are forwarded to other nodes. Only control planes hold
	// one: nil means that this node forwards nothing.
	Client *tls.Certificate
	// Local are the node's own addresses, hostname and FQDN.
	Local []string
}

// Provider tells the front about its node. It is called from many goroutines.
type Provider interface {
	Settings() Settings
}

// ProviderFunc makes a Provider of a function.
type ProviderFunc func() Settings

// Settings calls f.
func (f ProviderFunc) Settings() Settings { return f() }
