package kubeapi

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/utils/clock"
)

// Port is that of a control plane's API server.
const Port = 6443

// Config says where an API server is and what it stands on. Everything is required.
type Config struct {
	Address netip.Addr
	// Link lays the machine's cable under a connection.
	Link func(net.Conn) net.Conn
	// Certificate is the server's, and ClientCAs are who vouches for callers.
	Certificate tls.Certificate
	ClientCAs   *x509.CertPool
	// Etcd is a client of the control plane's own member. The server closes it.
	Etcd *clientv3.Client
	// Version is Kubernetes', as in v1.36.2.
	Version string
	Clock   clock.WithTicker
	// RequestTimeout bounds every call but a watch.
	RequestTimeout time.Duration
	// MonitorPeriod is how often nodes are looked at, and NodeGrace how long one may be silent before it is called unknown.
	MonitorPeriod, NodeGrace time.Duration
	Log                      *slog.Logger
}

// Server is one API server with the controllers beside it.
type Server struct {
	cfg       Config
	store     store
	resources []*resource
	codecs    serializer.CodecFactory
	http      *http.Server
	cancel    context.CancelFunc
	wg        sync.WaitGroup
}

// Start opens the port. The server lasts until [Server.Close].
func Start(cfg Config) (*Server, error) {
	_, codecs, err := newScheme()
	if err != nil {
		return nil, fmt.Errorf("making the scheme of the Kubernetes API: %w", err)
	}
	listener, err := net.Listen("tcp", net.JoinHostPort(cfg.Address.String(), strconv.Itoa(Port)))
	if err != nil {
		return nil, fmt.Errorf("opening the port of the Kubernetes API: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background()) // ended by Close
	s := &Server{cfg: cfg, store: store{cfg.Etcd}, resources: resources(), codecs: codecs, cancel: cancel}
	s.http = &http.Server{
		Handler:           s,
		ReadHeaderTimeout: 30 * time.Second,
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ErrorLog:          slog.NewLogLogger(cfg.Log.Handler(), slog.LevelDebug),
		TLSConfig: &tls.Config{
			Certificates: []tls.Certificate{cfg.Certificate}, MinVersion: tls.VersionTLS12,
			// Who shows no certificate, or a wrong one, is told so by a status, as Kubernetes does.
			ClientAuth: tls.RequestClientCert,
		},
	}
	s.wg.Go(func() { _ = s.http.ServeTLS(&linked{listener, cfg.Link}, "", "") }) // ends with Close
	s.wg.Go(func() { s.makeNamespaces(ctx) })
	s.wg.Go(func() { s.monitor(ctx) })
	return s, nil
}

// Close ends the server with its connections, as a killed process does.
func (s *Server) Close() {
	s.cancel()
	_ = s.http.Close()     // only sockets
	_ = s.cfg.Etcd.Close() // likewise
	s.wg.Wait()
}

// linked lays a cable under every connection.
type linked struct {
	net.Listener
	link func(net.Conn) net.Conn
}

func (l *linked) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return l.link(c), nil
}

// resource returns a kind by its name.
func (s *Server) resource(plural string) *resource {
	for _, res := range s.resources {
		if res.plural == plural {
			return res
		}
	}
	return nil
}
