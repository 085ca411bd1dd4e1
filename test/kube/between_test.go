package kubetest

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// request is one that passes a between.
type request struct {
	Method, Path string
	// Lose ends the connection once the API server has answered, so that nobody hears of the answer.
	Lose bool
}

// between stands on the road from a client to the API server, and lets a test act just before a request arrives there.
type between struct {
	address string

	mu      sync.Mutex
	answers []answered
}

type answered struct {
	method string
	status int
}

// between starts one. before sees each request, one after another; it may be changed there.
func (w *world) between(t *testing.T, before func(*request)) *between {
	t.Helper()
	b := &between{}
	target, err := url.Parse(w.server.URL())
	require.NoError(t, err)
	roots := x509.NewCertPool()
	require.True(t, roots.AppendCertsFromPEM(w.secrets.CA()))
	certificate, key := w.secrets.Issue(t, "between", []string{"system:masters"})
	client, err := tls.X509KeyPair(certificate, key)
	require.NoError(t, err)
	proxy := &httputil.ReverseProxy{
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{client}, MinVersion: tls.VersionTLS12}},
		ErrorLog:  log.New(io.Discard, "", 0),
	}
	var inTurn sync.Mutex
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		inTurn.Lock()
		seen := &request{Method: r.Method, Path: r.URL.Path}
		before(seen)
		inTurn.Unlock()
		answer := httptest.NewRecorder()
		proxy.ServeHTTP(answer, r)
		b.mu.Lock()
		b.answers = append(b.answers, answered{method: r.Method, status: answer.Code})
		b.mu.Unlock()
		if seen.Lose {
			panic(http.ErrAbortHandler)
		}
		for name, values := range answer.Header() {
			rw.Header()[name] = values
		}
		rw.WriteHeader(answer.Code)
		_, _ = rw.Write(answer.Body.Bytes())
	}))
	listener, err := net.Listen("tcp", "127.0.75.9:0")
	require.NoError(t, err)
	require.NoError(t, server.Listener.Close())
	server.Listener, server.Config.ErrorLog = listener, log.New(io.Discard, "", 0)
	certificate, key = w.secrets.Issue(t, "kube-apiserver", nil, "127.0.75.9")
	serving, err := tls.X509KeyPair(certificate, key)
	require.NoError(t, err)
	server.TLS = &tls.Config{Certificates: []tls.Certificate{serving}, MinVersion: tls.VersionTLS12}
	server.StartTLS()
	t.Cleanup(server.Close)
	b.address = listener.Addr().String()
	return b
}

// refused counts the answers of a status to requests of a method.
func (b *between) refused(method string, status int) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := 0
	for _, one := range b.answers {
		if one.method == method && one.status == status {
			n++
		}
	}
	return n
}
