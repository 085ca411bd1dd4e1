package apid

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/siderolabs/grpc-proxy/proxy"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"k8s.io/utils/clock"
)

// gracefulStop is how long Talos's apid lets calls finish when its listener restarts (internal/app/apid/service.go).
const gracefulStop = 10 * time.Second

// gracefulFloor is the least that it is shortened to: how long it takes to answer a call doesn't follow the time scale, and who sent
// a config and lost the answer can't ask again, for the machine has left maintenance by then.
const gracefulFloor = 5 * time.Second

// Config says how a front is made. Address, Machined and Provider are required.
type Config struct {
	// Address is host:port to listen on; Talos's port is 50000.
	Address string
	// Machined dials the node's own machine service. A failure is answered as Unavailable.
	Machined func(context.Context) (net.Conn, error)
	Provider Provider
	// Dial reaches another node's front at host:port; a plain TCP dialer when nil.
	Dial func(ctx context.Context, address string) (net.Conn, error)
	// Journal gets the calls that are forwarded or refused before they reach machined; none when nil.
	Journal *Journal
	// BootID is put into those journal entries; none when nil.
	BootID func() string
	// Link is the node's cable; one that is always up when nil.
	Link *Link
	// Clock is the real one when nil.
	Clock clock.WithTicker
	// TimeScale divides Talos's constants (the graceful stop down to five seconds, the back-off between nodes); 1 when zero.
	TimeScale float64
}

// Server is the front of one node. Its methods may be called at any time and from any goroutine.
type Server struct {
	cfg     Config
	passing passing

	mu       sync.Mutex
	grpc     *grpc.Server
	listener *trackingListener
	routes   *router
	served   chan struct{}
	dark     net.Listener
}

// New makes a front; nothing listens yet.
func New(cfg Config) *Server {
	if cfg.Clock == nil {
		cfg.Clock = clock.RealClock{}
	}

	if cfg.TimeScale == 0 {
		cfg.TimeScale = 1
	}

	if cfg.Link == nil {
		cfg.Link = NewLink(cfg.Clock)
	}

	if cfg.Dial == nil {
		cfg.Dial = func(ctx context.Context, address string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "tcp", address)
		}
	}

	if cfg.BootID == nil {
		cfg.BootID = func() string { return "" }
	}

	return &Server{cfg: cfg, passing: passing{calls: map[string]chan struct{}{}}}
}

// Start listens and serves in the mode that the provider says now. It fails when the front already listens or the address
// is taken.
func (s *Server) Start(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()

	if s.grpc != nil {
		return fmt.Errorf("the front on %s already listens; stop it first", s.cfg.Address)
	}

	s.dropDarkLocked()

	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", s.cfg.Address)
	if err != nil {
		return fmt.Errorf("listening on %s: %w", s.cfg.Address, err)
	}

	settings := s.cfg.Provider.Settings()

	routes, err := newRouter(s.cfg, settings.Maintenance)
	if err != nil {
		return errors.Join(err, listener.Close())
	}

	injector := injector{maintenance: settings.Maintenance}

	server := grpc.NewServer(
		grpc.Creds(credentials.NewTLS(serverTLS(s.cfg.Provider, settings.Maintenance))),
		grpc.ForceServerCodecV2(proxy.Codec()),
		grpc.UnknownServiceHandler(proxy.TransparentHandler(routes.direct, proxy.WithStreamedDetector(streamed))),
		grpc.MaxRecvMsgSize(constants.GRPCMaxMessageSize),
		grpc.MaxSendMsgSize(constants.GRPCMaxMessageSize),
		grpc.ChainStreamInterceptor(s.passing.stream, recoverStream, injector.stream, s.journalRefusals),
	)

	tracked := newTrackingListener(listener, s.cfg.Link)
	served := make(chan struct{})

	go func() {
		defer close(served)

		_ = server.Serve(tracked) // ends with Stop, GracefulStop or Cut; there is nobody to tell
	}()

	s.grpc, s.listener, s.routes, s.served = server, tracked, routes, served

	return nil
}

// Listening says whether the front is started.
func (s *Server) Listening() bool {
	s.mu.Lock()
	defer s.mu.Unlock()

	return s.grpc != nil
}

// Stop ends the front as a restart of Talos's listener does: no new connections, calls under way may finish within ten
// seconds (divided by the time scale, but never less than five), then they are cut off. Stopping a stopped front does nothing.
func (s *Server) Stop() {
	server, listener, routes, served := s.take()
	if server == nil {
		return
	}

	stopped := make(chan struct{})

	go func() {
		defer close(stopped)

		server.GracefulStop()
	}()

	select {
	case <-stopped:
	case <-s.cfg.Clock.After(max(s.scaled(gracefulStop), gracefulFloor)):
	}

	server.Stop()
	<-stopped
	<-served
	listener.reset()
	routes.close()
}

// Cut ends the front as a power event does: every connection is reset, no call gets an answer, the port is closed.
func (s *Server) Cut() {
	server, listener, routes, served := s.take()

	s.mu.Lock()
	s.dropDarkLocked()
	s.mu.Unlock()

	if server == nil {
		return
	}

	_ = listener.Close() // grpc closes it again below
	listener.reset()
	server.Stop()
	<-served
	routes.close()
}

// ResetConnections resets every connection and leaves the port open: calls under way get no answer, the next connection is taken.
func (s *Server) ResetConnections() {
	s.mu.Lock()
	listener := s.listener
	s.mu.Unlock()

	if listener != nil {
		listener.reset()
	}
}

// Vanish ends the front as a machine does whose power or cable is gone: established connections stay open and mute, new ones
// are never answered, so that callers run into their deadlines. Start and Cut end it; connections of before are then reset.
func (s *Server) Vanish() error {
	server, listener, routes, served := s.take()
	if server != nil {
		listener.mute()
		_ = listener.Close() // grpc closes it again below
		server.Stop()
		<-served
		routes.close()
	}

	s.mu.Lock()
	defer s.mu.Unlock()

	if s.dark != nil {
		return nil
	}

	hole, err := net.Listen("tcp", s.cfg.Address)
	if err != nil {
		return fmt.Errorf("holding %s while the machine is off: %w", s.cfg.Address, err)
	}

	s.dark = newBlackHole(hole, listener)

	return nil
}

func (s *Server) dropDarkLocked() {
	if s.dark != nil {
		_ = s.dark.Close() // a listener that holds an address has nothing to lose

		s.dark = nil
	}
}

// take hands over what is running, so that exactly one caller ends it.
func (s *Server) take() (*grpc.Server, *trackingListener, *router, chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()

	server, listener, routes, served := s.grpc, s.listener, s.routes, s.served
	s.grpc, s.listener, s.routes, s.served = nil, nil, nil, nil

	return server, listener, routes, served
}

func (s *Server) scaled(d time.Duration) time.Duration {
	return time.Duration(float64(d) / s.cfg.TimeScale)
}
