package web

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/net/netutil"
	"k8s.io/utils/clock"

	"ichor.maesh.dev/gitsource"
	"ichor.maesh.dev/internal/scrub"
	"ichor.maesh.dev/reconcile"
	"ichor.maesh.dev/statefile"
)

// Bounds of a server. A page is made in milliseconds; what takes longer is a client that holds on.
const (
	headerTimeout  = 5 * time.Second
	readTimeout    = 20 * time.Second
	writeTimeout   = 30 * time.Second
	idleTimeout    = 30 * time.Second
	maxHeaderBytes = 16 << 10
	maxConnections = 256
	// closing is how long requests may take to end once the server is told to stop.
	closing = 500 * time.Millisecond
)

// Config says where to listen, and who may come in.
type Config struct {
	// Address is host:port. An address beyond loopback needs TokenFile, ClientCAFile or Public.
	Address string
	Public  bool
	// TokenFile holds the tokens that open everything, one a line.
	TokenFile string
	// CertFile and KeyFile are the certificate that is shown; without them HTTP is spoken. ClientCAFile holds the
	// authorities whose certificates open everything.
	CertFile, KeyFile, ClientCAFile string
	// Hosts are further names under which the server may be asked for.
	Hosts []string
	// HookSecretFile holds the secret of the Git webhook; without it there is no webhook.
	HookSecretFile string
	// Version is the program's.
	Version string

	Clock    clock.WithTicker
	Log      *slog.Logger
	Scrubber *scrub.Scrubber
	// Requests are those that are sent to S3 servers; nil: none are counted.
	Requests *statefile.Requests
}

// Agent is what is shown; *reconcile.Agent is one.
type Agent interface {
	Report() reconcile.Report
	// Poke makes the next pull immediate.
	Poke()
}

// Server serves one agent.
type Server struct {
	config   Config
	listener net.Listener
	http     *http.Server
	access   *access
	pacer    *pacer
	hook     *hook
	// sources is nil until the agent is there.
	sources atomic.Pointer[sources]
	// waiting is what the agent waits for before it is there.
	waiting atomic.Pointer[string]
}

// sources are where what is shown comes from.
type sources struct {
	agent  Agent
	stored *stored
	git    func() gitsource.Stats
}

// Listen checks the config and takes the address. Nothing is served before Run.
func Listen(config Config) (*Server, error) {
	s := &Server{config: config}
	tokens, err := openSecrets(config.TokenFile, "--token-file", config.Clock, config.Scrubber)
	if err != nil {
		return nil, err
	}
	hookSecrets, err := openSecrets(config.HookSecretFile, "--hook-secret-file", config.Clock, config.Scrubber)
	if err != nil {
		return nil, err
	}
	secure, err := config.tls()
	if err != nil {
		return nil, err
	}
	if s.listener, err = net.Listen("tcp", config.Address); err != nil {
		return nil, fmt.Errorf("--listen %s: %w; give host:port, or none", config.Address, err)
	}
	if err := config.permit(s.listener.Addr()); err != nil {
		_ = s.listener.Close()
		return nil, err
	}
	s.access = newAccess(config, tokens)
	s.pacer = newPacer(config.Clock, hookGap, s.poke)
	s.hook = &hook{secrets: hookSecrets, asked: s.pacer.ask, log: config.Log, said: newThrottle(config.Clock, saidGap)}
	s.http = &http.Server{
		Handler: s.access.guard(s.routes()), TLSConfig: secure,
		ReadHeaderTimeout: headerTimeout, ReadTimeout: readTimeout, WriteTimeout: writeTimeout, IdleTimeout: idleTimeout,
		MaxHeaderBytes: maxHeaderBytes, DisableGeneralOptionsHandler: true,
		// What clients do wrong (a scanner's TLS hello, a broken request) is for a verbose log only.
		ErrorLog: slog.NewLogLogger(config.Log.Handler(), slog.LevelDebug),
		// HTTP/2 would let one connection hold a hundred requests.
		Protocols: protocols(),
	}
	return s, nil
}

func protocols() *http.Protocols {
	var p http.Protocols
	p.SetHTTP1(true)
	return &p
}

// permit refuses an address beyond loopback that nothing protects.
func (c Config) permit(bound net.Addr) error {
	address, ok := bound.(*net.TCPAddr)
	loopback := ok && address.IP.IsLoopback()
	if loopback || c.Public || c.TokenFile != "" || c.ClientCAFile != "" {
		return nil
	}
	return fmt.Errorf("--listen %s is reachable from other machines, and whoever reaches it could read the names, addresses and problems of every "+
		"cluster; give --token-file or --client-ca, or --listen-public if that is meant", c.Address)
}

// Loopback says whether only this machine can reach the server.
func (s *Server) Loopback() bool {
	address, ok := s.listener.Addr().(*net.TCPAddr)
	return ok && address.IP.IsLoopback()
}

// tls makes the TLS side from the files; nil for HTTP.
func (c Config) tls() (*tls.Config, error) {
	switch {
	case (c.CertFile == "") != (c.KeyFile == ""):
		return nil, errors.New("--tls-cert and --tls-key belong together; give both, or neither for HTTP")
	case c.CertFile == "" && c.ClientCAFile != "":
		return nil, errors.New("--client-ca needs TLS; give --tls-cert and --tls-key too")
	case c.CertFile == "":
		return nil, nil
	}
	pair := &keyPair{cert: c.CertFile, key: c.KeyFile, clock: c.Clock, log: c.Log}
	if _, err := pair.get(nil); err != nil {
		return nil, err
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: pair.get}
	if c.ClientCAFile == "" {
		return config, nil
	}
	text, err := os.ReadFile(c.ClientCAFile)
	if err != nil {
		return nil, fmt.Errorf("--client-ca: %w", err)
	}
	config.ClientCAs = x509.NewCertPool()
	if !config.ClientCAs.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("--client-ca %s holds no certificate; give the PEM file of the authority", c.ClientCAFile)
	}
	// Whoever asks for the health, and the Git server, has no certificate: each request is judged by itself.
	config.ClientAuth = tls.VerifyClientCertIfGiven
	return config, nil
}

// URL is where the page is.
func (s *Server) URL() string {
	scheme := "http://"
	if s.config.CertFile != "" {
		scheme = "https://"
	}
	return scheme + s.listener.Addr().String() + "/"
}

// Attach gives the server its agent, the store of its state, and the counts of its Git source.
func (s *Server) Attach(agent Agent, store statefile.Store, git func() gitsource.Stats) {
	s.sources.Store(&sources{agent: agent, git: git, stored: newStored(store, s.config.Clock, s.storedFailed)})
}

func (s *Server) storedFailed(value any) {
	s.config.Log.Error("reading what the state's store holds of a cluster failed", "panic", s.config.Scrubber.Panic(value))
}

// Waiting says what the agent waits for while it isn't attached.
func (s *Server) Waiting(why string) {
	why = s.config.Scrubber.Text(why)
	s.waiting.Store(&why)
}

// poke asks the agent for a pull. Before the agent is there its first pull is still to come.
func (s *Server) poke() {
	if from := s.sources.Load(); from != nil {
		from.agent.Poke()
	}
}

// Run serves until ctx ends, and then for a moment, so that requests can end.
func (s *Server) Run(ctx context.Context) error {
	pacing, stop := context.WithCancel(ctx)
	defer stop()
	go s.pacer.run(pacing)
	s.http.BaseContext = func(net.Listener) context.Context { return context.WithoutCancel(ctx) }
	ended := make(chan error, 1)
	go func() {
		limited := netutil.LimitListener(s.listener, maxConnections)
		if s.http.TLSConfig != nil {
			ended <- s.http.ServeTLS(limited, "", "")
			return
		}
		ended <- s.http.Serve(limited)
	}()
	select {
	case err := <-ended:
		return fmt.Errorf("the status page is no longer served: %w", err)
	case <-ctx.Done():
	}
	short, cancel := context.WithTimeout(context.WithoutCancel(ctx), closing)
	defer cancel()
	if s.http.Shutdown(short) != nil {
		_ = s.http.Close()
	}
	<-ended
	return nil
}

// Close gives the address back when Run was never called.
func (s *Server) Close() { _ = s.listener.Close() }

// routes says who answers what. Methods and access were judged before.
func (s *Server) routes() http.Handler {
	mux := http.NewServeMux()
	metrics := s.metricsHandler()
	mux.HandleFunc("/{$}", s.overview)
	mux.HandleFunc("/clusters/{cluster}", s.clusterPage)
	mux.HandleFunc("/style.css", asset("style.css", "text/css; charset=utf-8"))
	mux.HandleFunc("/icon.svg", asset("icon.svg", "image/svg+xml"))
	mux.HandleFunc("/api/v1/status", s.apiStatus)
	mux.HandleFunc("/api/v1/agent", s.apiAgent)
	mux.HandleFunc("/api/v1/clusters/{cluster}", s.apiCluster)
	mux.HandleFunc("/api/v1/clusters/{cluster}/machines/{machine}", s.apiMachine)
	mux.Handle("/metrics", metrics)
	mux.HandleFunc(pathLive, s.live)
	mux.HandleFunc(pathReady, s.ready)
	mux.Handle(pathHook, s.hook)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		refuse(w, r, http.StatusNotFound, "there is nothing here; the status page is /, and docs/web.md lists the rest")
	})
	return mux
}

func isAPI(path string) bool { return strings.HasPrefix(path, "/api/") }
