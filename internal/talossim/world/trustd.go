package world

import (
	"context"
	"net/netip"
	"sync"
)

// Signer answers a worker's certificate request on a control plane: the signed certificate and every CA the control plane
// accepts, both PEM.
type Signer func(ctx context.Context, token string, csr []byte) (cert, acceptedCAs []byte, err error)

// Trustd knows which machines run trustd (port 50001 of a control plane).
type Trustd struct {
	mu      sync.Mutex
	servers map[string]Signer
}

// Serve makes a machine a trustd server; nil ends it.
func (t *Trustd) Serve(addr netip.Addr, s Signer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s == nil {
		delete(t.servers, addr.String())
		return
	}
	t.servers[addr.String()] = s
}

// At returns the trustd of a machine, nil when it runs none.
func (t *Trustd) At(addr netip.Addr) Signer {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.servers[addr.String()]
}
