package talos

import (
	"context"
	"crypto/tls"
	"errors"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"ichor.maesh.dev/internal/scrub"
)

// ClientOptions are what a Client may be given; the zero value works.
type ClientOptions struct {
	// Clock is the real one when nil. It judges certificates and the age of connections.
	Clock clock.PassiveClock
	// Scrubber is used for every text from a node; the bundle's scalars are added to it. A new one when nil.
	Scrubber *scrub.Scrubber
}

// Client reaches the machines of one cluster. Without a bundle it reaches machines in maintenance mode only. Safe for use
// by many goroutines.
type Client struct {
	bundle   *Bundle
	clock    clock.PassiveClock
	scrubber *scrub.Scrubber
	limits   limits

	mu    sync.Mutex
	links map[linkKey]*link
	certs map[Role]mintedCertificate
}

type mintedCertificate struct {
	certificate tls.Certificate
	until       time.Time
}

// NewClient makes a client for the cluster of bundle, or one for maintenance mode alone when bundle is nil.
func NewClient(bundle *Bundle, options ClientOptions) *Client {
	if options.Clock == nil {
		options.Clock = clock.RealClock{}
	}
	if options.Scrubber == nil {
		options.Scrubber = scrub.New()
	}
	if bundle != nil {
		options.Scrubber.Add(bundle.Scalars()...)
	}
	return &Client{
		bundle: bundle, clock: options.Clock, scrubber: options.Scrubber, limits: defaultLimits,
		links: map[linkKey]*link{}, certs: map[Role]mintedCertificate{},
	}
}

// errAnotherMachine is in the error of a dial that met a machine with another fingerprint or certificate authority.
var errAnotherMachine = errors.New("another machine answers there")

// Dial connects to a configured machine with a freshly minted certificate of the role; the machine's certificate must be
// of the bundle's authority.
func (c *Client) Dial(ctx context.Context, target Target, role Role) (*Session, error) {
	return c.dial(ctx, target, role)
}

// DialMaintenance connects to a machine in maintenance mode. With a fingerprint (TalosMachine.spec.fingerprint) another
// certificate is refused before anything is sent; without one nothing says who answers.
func (c *Client) DialMaintenance(ctx context.Context, target Target, fingerprint string) (*Session, error) {
	return c.dialMaintenance(ctx, target, fingerprint)
}
