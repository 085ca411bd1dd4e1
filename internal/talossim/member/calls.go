package member

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc"
)

// Calls knows what an embedded etcd is being asked. A call that still reads when etcd closes its database, as a watch does that
// was just told of a change, takes the whole process down with it; of a real etcd nothing is left at that moment.
type Calls struct {
	mu    sync.Mutex
	open  int
	ended chan struct{} // closed when open falls to zero; nil while nobody waits
}

// Options let etcd report its calls.
func (c *Calls) Options() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ChainUnaryInterceptor(func(ctx context.Context, request any, _ *grpc.UnaryServerInfo, serve grpc.UnaryHandler) (any, error) {
			defer c.begin()()
			return serve(ctx, request)
		}),
		grpc.ChainStreamInterceptor(func(server any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, serve grpc.StreamHandler) error {
			defer c.begin()()
			return serve(server, stream)
		}),
	}
}

func (c *Calls) begin() (end func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open++
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.open--; c.open == 0 && c.ended != nil {
			close(c.ended)
			c.ended = nil
		}
	}
}

// Await waits until no call is open, at most so long. The callers' connections have to be closed before, or it is in vain.
func (c *Calls) Await(limit time.Duration) {
	c.mu.Lock()
	if c.open == 0 {
		c.mu.Unlock()
		return
	}
	if c.ended == nil {
		c.ended = make(chan struct{})
	}
	ended := c.ended
	c.mu.Unlock()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-ended:
	case <-timer.C:
	}
}
