package talos

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
)

// maxReply bounds one message from a node: a config is at most a few MiB, Talos itself sends up to 32.
const maxReply = 8 << 20

// ErrNotSent is in the error of a call that was not sent at all: it was refused here.
var ErrNotSent = errors.New("not sent")

var errReconnect = errors.New("the connection broke and is not made again")

// dialOnce makes one TCP connection to address, does the TLS handshake and gives a gRPC channel over it which never
// reconnects: once the connection is gone every call fails. Proxy settings of the environment are not used, calls are
// not retried, calls without a deadline or with routing metadata are refused.
//
// It returns once the server has spoken, so that a server that refuses the client's certificate is noticed here.
func dialOnce(ctx context.Context, address string, config *tls.Config) (*grpc.ClientConn, tls.ConnectionState, error) {
	var dialer net.Dialer
	tcp, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, tls.ConnectionState{}, err
	}
	config = config.Clone()
	config.NextProtos = []string{"h2"}
	config.MinVersion = tls.VersionTLS13
	secured := tls.Client(tcp, config)
	if err := secured.HandshakeContext(ctx); err != nil {
		tcp.Close()
		return nil, tls.ConnectionState{}, err
	}
	first, err := firstWords(ctx, secured)
	if err != nil {
		secured.Close()
		return nil, tls.ConnectionState{}, err
	}
	conn := &watchedConn{Conn: secured, first: first}
	channel, err := overConnection(conn)
	if err != nil {
		secured.Close()
		return nil, tls.ConnectionState{}, err
	}
	if err := awaitReady(ctx, channel, conn); err != nil {
		channel.Close()
		secured.Close()
		return nil, tls.ConnectionState{}, err
	}
	return channel, secured.ConnectionState(), nil
}

// patience is how long a server may take to speak first; one that waits for the client is given the word after it.
const patience = time.Second

// firstWords reads what the server says first. A TLS 1.3 server judges the client's certificate after the client thinks the
// handshake done, so this is where a refusal shows; once gRPC has the connection, its writing may hide the reason.
func firstWords(ctx context.Context, conn net.Conn) ([]byte, error) {
	until := time.Now().Add(patience)
	if deadline, ok := ctx.Deadline(); ok && deadline.Before(until) {
		until = deadline
	}
	if err := conn.SetReadDeadline(until); err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	words := make([]byte, 512)
	n, err := conn.Read(words)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		return nil, err
	}
	stop()
	return words[:n], conn.SetReadDeadline(time.Time{})
}

func overConnection(conn net.Conn) (*grpc.ClientConn, error) {
	var taken atomic.Bool
	return grpc.NewClient("passthrough:///"+conn.RemoteAddr().String(),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) {
			if taken.Swap(true) {
				return nil, errReconnect
			}
			return conn, nil
		}),
		// TLS is done already, by dialOnce, so that it is seen and judged here.
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithNoProxy(),
		grpc.WithDisableRetry(),
		grpc.WithDisableServiceConfig(),
		grpc.WithIdleTimeout(0),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxReply), grpc.ForceCodecV2(newBoundedCodec())),
		grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			if err := mayCall(ctx, method); err != nil {
				return err
			}
			return invoke(ctx, method, req, reply, cc, opts...)
		}),
		grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, stream grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			if err := mayCall(ctx, method); err != nil {
				return nil, err
			}
			return stream(ctx, desc, cc, method, opts...)
		}),
	)
}

// mayCall refuses what no call to a node may be: without an end in time, or routed by another node.
func mayCall(ctx context.Context, method string) error {
	if _, ok := ctx.Deadline(); !ok {
		return fmt.Errorf("%s was called without a deadline, and nodes may never answer: %w", method, ErrNotSent)
	}
	if key := Routed(ctx); key != "" {
		return fmt.Errorf("%s was called with %q metadata, but nodes are only called directly: %w", method, key, ErrNotSent)
	}
	return nil
}

// Routed gives the metadata key of a call with which a node would pass it on to another one; empty where there is none.
func Routed(ctx context.Context) string {
	sent, _ := metadata.FromOutgoingContext(ctx)
	for _, key := range []string{"node", "nodes", "proxyfrom"} {
		if len(sent.Get(key)) > 0 {
			return key
		}
	}
	return ""
}

// lookAgain is how long a change of a channel's state is waited for before the state is looked at again.
const lookAgain = 50 * time.Millisecond

// awaitReady waits until the channel is there. A connection that came and went while nobody looked leaves the channel idle, as it was before,
// with no change to wait for: it is told to connect again, which it may not, and fails.
func awaitReady(ctx context.Context, channel *grpc.ClientConn, conn *watchedConn) error {
	for {
		channel.Connect()
		state := channel.GetState()
		switch state {
		case connectivity.Ready:
			return nil
		case connectivity.TransientFailure, connectivity.Shutdown:
			if err := conn.firstError(); err != nil {
				return err
			}
			return errors.New("the server doesn't speak the Talos API")
		}
		waiting, done := context.WithTimeout(ctx, lookAgain)
		channel.WaitForStateChange(waiting, state)
		done()
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

// watchedConn remembers why the connection ended: gRPC itself only says that it did.
type watchedConn struct {
	net.Conn
	// first is what was read already.
	first []byte
	mu    sync.Mutex
	err   error
}

func (c *watchedConn) Read(p []byte) (int, error) {
	if len(c.first) > 0 {
		n := copy(p, c.first)
		c.first = c.first[n:]
		return n, nil
	}
	n, err := c.Conn.Read(p)
	if err != nil {
		c.mu.Lock()
		if c.err == nil {
			c.err = err
		}
		c.mu.Unlock()
	}
	return n, err
}

func (c *watchedConn) firstError() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}
