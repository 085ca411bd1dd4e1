package talos

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"time"

	cosiv1alpha1 "github.com/cosi-project/runtime/api/v1alpha1"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
)

// certificateLife is how long a minted client certificate serves, and so how long a connection is kept.
const certificateLife = 10 * time.Minute

func (c *Client) dial(ctx context.Context, target Target, role Role) (*Session, error) {
	if c.bundle == nil {
		return nil, fmt.Errorf("%s can't be reached as a configured machine: the secrets bundle isn't open", target.Name)
	}
	certificate, err := c.certificate(role)
	if err != nil {
		return nil, err
	}
	roots, err := c.bundle.osRoots()
	if err != nil {
		return nil, err
	}
	return c.connect(ctx, target, false, &tls.Config{
		ServerName: target.Host(), RootCAs: roots, Certificates: []tls.Certificate{certificate}, Time: c.clock.Now,
	})
}

func (c *Client) dialMaintenance(ctx context.Context, target Target, fingerprint string) (*Session, error) {
	// In maintenance mode the certificate is made at boot and signed by nobody known: only its fingerprint says who it is.
	return c.connect(ctx, target, true, &tls.Config{
		InsecureSkipVerify: true,
		VerifyConnection: func(state tls.ConnectionState) error {
			shown := fingerprintOf(state)
			if fingerprint != "" && subtle.ConstantTimeCompare([]byte(shown), []byte(fingerprint)) != 1 {
				return fmt.Errorf("its certificate's fingerprint is %s, not %s as spec.fingerprint says; read the console and correct it if it is the right machine: %w", shown, fingerprint, errAnotherMachine)
			}
			return nil
		},
	})
}

func (c *Client) connect(ctx context.Context, target Target, maintenance bool, config *tls.Config) (*Session, error) {
	ctx, cancel := context.WithTimeout(ctx, c.limits.dial)
	defer cancel()
	channel, state, err := dialOnce(ctx, target.Address(), config)
	if err != nil {
		var authority x509.UnknownAuthorityError
		if errors.As(err, &authority) {
			err = errors.Join(err, errAnotherMachine)
		}
		return nil, dialError(c.scrubber, target, err)
	}
	return &Session{
		target: target, maintenance: maintenance, fingerprint: fingerprintOf(state),
		channel: channel, scrubber: c.scrubber,
		machine: machineapi.NewMachineServiceClient(channel),
		state:   cosiv1alpha1.NewStateClient(channel),
	}, nil
}

// fingerprintOf is what Talos shows on the console: base64 of the SHA-256 of the leaf's public key info.
func fingerprintOf(state tls.ConnectionState) string {
	if len(state.PeerCertificates) == 0 {
		return ""
	}
	sum := sha256.Sum256(state.PeerCertificates[0].RawSubjectPublicKeyInfo)
	return base64.StdEncoding.EncodeToString(sum[:])
}

// certificate gives a client certificate with at least half of its life before it.
func (c *Client) certificate(role Role) (tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.clock.Now()
	if minted, ok := c.certs[role]; ok && minted.until.Sub(now) > certificateLife/2 && minted.until.Sub(now) <= certificateLife {
		return minted.certificate, nil
	}
	certificate, err := c.bundle.Mint(role, certificateLife, now)
	if err != nil {
		return tls.Certificate{}, err
	}
	c.certs[role] = mintedCertificate{certificate, now.Add(certificateLife)}
	return certificate, nil
}

// linkKey names a connection that is kept for observing.
type linkKey struct {
	address     string
	role        Role
	maintenance bool
}

// link is a connection kept for observing, never for a call that changes something.
type link struct {
	session *Session
	until   time.Time
}

// observeLink gives a kept connection or makes one. fresh says that it was made now.
func (c *Client) observeLink(ctx context.Context, target Target, role Role, maintenance bool) (session *Session, fresh bool, err error) {
	key := linkKey{target.Address(), role, maintenance}
	c.mu.Lock()
	kept, ok := c.links[key]
	c.mu.Unlock()
	if ok && c.clock.Now().Before(kept.until) {
		return kept.session, false, nil
	}
	if ok {
		c.drop(key)
	}
	if maintenance {
		session, err = c.dialMaintenance(ctx, target, "")
	} else {
		session, err = c.dial(ctx, target, role)
	}
	if err != nil {
		return nil, false, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if other, ok := c.links[key]; ok {
		// Someone else made one at the same time, and may be using it.
		session.Close()
		return other.session, false, nil
	}
	c.links[key] = &link{session, c.clock.Now().Add(certificateLife)}
	return session, true, nil
}

func (c *Client) drop(key linkKey) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if kept, ok := c.links[key]; ok {
		kept.session.Close()
		delete(c.links, key)
	}
}

// Close ends the connections that are kept for observing.
func (c *Client) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var errs []error
	for key, kept := range c.links {
		errs = append(errs, kept.session.Close())
		delete(c.links, key)
	}
	return errors.Join(errs...)
}
