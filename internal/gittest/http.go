package gittest

import (
	"crypto/tls"
	"encoding/pem"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"ichor.maesh.dev/internal/keptport"
)

// Server is a Git server that a test can take away and bring back at the same address.
type Server struct {
	// URL is the repository's.
	URL string
	// CAFile holds the server's certificate in PEM, if it speaks TLS.
	CAFile string

	t     testing.TB
	port  *keptport.Port
	start func(net.Listener) (stop func())
	stop  func()

	requests atomic.Int64

	mu            sync.Mutex
	authorization string
	handler       http.Handler
}

// HTTPOptions says how HTTP serves.
type HTTPOptions struct {
	// Authorization, if not empty, is the header that a request must bear: Basic(user, password) or Bearer(token).
	Authorization string
	TLS           bool
}

// Basic gives the header of basic authentication.
func Basic(user, password string) string {
	request := &http.Request{Header: http.Header{}}
	request.SetBasicAuth(user, password)
	return request.Header.Get("Authorization")
}

// Bearer gives the header of a bearer token.
func Bearer(token string) string { return "Bearer " + token }

// HTTP serves a repository by git http-backend.
func HTTP(t testing.TB, repository *Repository, options HTTPOptions) *Server {
	t.Helper()
	backend, err := exec.Command("git", "--exec-path").Output()
	if err != nil {
		t.Fatalf("git --exec-path: %v", err)
	}
	s := &Server{t: t, authorization: options.Authorization}
	s.handler = &cgi.Handler{
		Path: filepath.Join(strings.TrimSpace(string(backend)), "git-http-backend"),
		Env: []string{"GIT_PROJECT_ROOT=" + filepath.Dir(repository.Dir), "GIT_HTTP_EXPORT_ALL=1",
			"GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=" + os.DevNull},
		Stderr: io.Discard,
	}
	scheme := "http"
	var config *tls.Config
	if options.TLS {
		scheme = "https"
		config = s.makeCertificate()
	}
	s.start = func(listener net.Listener) func() {
		server := &http.Server{Handler: http.HandlerFunc(s.serve), TLSConfig: config, ErrorLog: log.New(io.Discard, "", 0)}
		go func() {
			if config != nil {
				_ = server.ServeTLS(listener, "", "")
			} else {
				_ = server.Serve(listener)
			}
		}()
		return func() {
			_ = listener.Close() // Serve may not have begun, and then Close would miss it
			_ = server.Close()
		}
	}
	s.Start()
	s.URL = scheme + "://" + s.port.Address + "/" + filepath.Base(repository.Dir)
	t.Cleanup(s.Stop)
	return s
}

// makeCertificate uses the certificate that httptest brings, which names 127.0.0.1.
func (s *Server) makeCertificate() *tls.Config {
	lent := httptest.NewUnstartedServer(nil)
	lent.StartTLS()
	defer lent.Close()
	s.CAFile = filepath.Join(s.t.TempDir(), "ca.crt")
	block := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: lent.Certificate().Raw})
	if err := os.WriteFile(s.CAFile, block, 0o600); err != nil {
		s.t.Fatal(err)
	}
	return &tls.Config{Certificates: lent.TLS.Certificates, MinVersion: tls.VersionTLS12}
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	s.requests.Add(1)
	s.mu.Lock()
	want, handler := s.authorization, s.handler
	s.mu.Unlock()
	if want != "" && r.Header.Get("Authorization") != want {
		w.Header().Set("WWW-Authenticate", `Basic realm="git"`)
		// Some servers repeat what they were given: a client must not print it.
		http.Error(w, "refused: "+r.Header.Get("Authorization"), http.StatusUnauthorized)
		return
	}
	handler.ServeHTTP(w, r)
}

// Authorize changes the header that requests must bear from now on: a token expires.
func (s *Server) Authorize(authorization string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.authorization = authorization
}

// Handle puts another handler in the place of git http-backend, and gives back the one that was there.
func (s *Server) Handle(handler http.Handler) http.Handler {
	s.mu.Lock()
	defer s.mu.Unlock()
	was := s.handler
	s.handler = handler
	return was
}

// Requests counts what the server was asked (HTTP requests or SSH commands).
func (s *Server) Requests() int64 { return s.requests.Load() }

// Start brings the server (back), at the same address.
func (s *Server) Start() {
	s.t.Helper()
	var err error
	if s.port == nil {
		if s.port, err = keptport.Keep(); err != nil {
			s.t.Fatal(err)
		}
	}
	listener, err := net.Listen("tcp", s.port.Address)
	if err != nil {
		s.t.Fatalf("the Git server can't listen: %v", err)
	}
	s.stop = s.start(listener)
}

// Stop takes the server away, with its open connections.
func (s *Server) Stop() {
	if s.stop != nil {
		s.stop()
		s.stop = nil
	}
}
