package apid

import (
	"context"
	"strconv"
	"sync"

	"google.golang.org/grpc"
)

// passing are the calls that a front has taken and not yet answered.
type passing struct {
	mu    sync.Mutex
	last  uint64
	calls map[string]chan struct{}
}

type passingKey struct{}

// stream numbers a call, so that the machine service can ask whether its answer is on its way.
func (p *passing) stream(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	p.mu.Lock()
	p.last++
	id, answered := strconv.FormatUint(p.last, 10), make(chan struct{})
	p.calls[id] = answered
	p.mu.Unlock()

	defer func() {
		p.mu.Lock()
		delete(p.calls, id)
		p.mu.Unlock()
		close(answered)
	}()

	return handler(srv, &contextStream{ServerStream: stream, ctx: context.WithValue(stream.Context(), passingKey{}, id)})
}

func passingFrom(ctx context.Context) string {
	id, _ := ctx.Value(passingKey{}).(string)

	return id
}

// Answered returns when the front has handed a call's answer over to its caller's connection, or when ctx ends. A machine that
// acts on a call waits for it: Talos's has seconds until it goes away, of which the time scale may leave too little for an answer.
func (s *Server) Answered(ctx context.Context, call *Call) {
	s.passing.mu.Lock()
	answered := s.passing.calls[call.front]
	s.passing.mu.Unlock()

	if answered == nil {
		return
	}

	select {
	case <-answered:
	case <-ctx.Done():
	}
}
