package kube

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// maxReply bounds one reply of an API server, in bytes. Lists are asked for in pages, whose objects are at most 1.5 MiB
// each (etcd's limit); pages of a real cluster's pods are a few MiB.
const maxReply = 64 << 20

// maxReplyValues bounds what one reply may hold: a few bytes of it can become an object of a thousand in memory. A page of 250 pods has some
// hundred thousand names and values.
const maxReplyValues = 400_000

// maxDial bounds the making of one connection, the TLS handshake included. A control plane that is off answers to nothing,
// and the next one waits for its turn.
const maxDial = 4 * time.Second

// failover sends each request to the API server that answered last, and to the next when that one is gone. Each request has
// its own connection: a connection that is kept may lead to a machine that was switched off, and then a write is lost
// without anybody knowing whether it arrived; and its client certificate may have ended.
type failover struct {
	servers []string
	// current is the index of the server that is tried first.
	current atomic.Int32
	timeout time.Duration
	base    http.RoundTripper
}

// unreachableError says that no server gave an answer to a request, with what each one said. It hides the errors beneath,
// because client-go sends requests again on some of them.
type unreachableError struct {
	// sent says that the request may have arrived.
	sent   bool
	causes []string
	// canceled is context.Canceled when the caller gave up.
	canceled error
}

func (e *unreachableError) Error() string { return strings.Join(e.causes, "; ") }
func (e *unreachableError) Unwrap() error { return e.canceled }

// notSentError is an error from before anything of the request went out.
type notSentError struct{ error }

func (e notSentError) Unwrap() error { return e.error }

func newFailover(servers []string, authorities *x509.CertPool, certificate func() (tls.Certificate, error), timeout time.Duration) *failover {
	dial := func(ctx context.Context, network, address string) (net.Conn, error) {
		made, err := certificate()
		if err != nil {
			return nil, notSentError{fmt.Errorf("no client certificate: %w", err)}
		}
		ctx, cancel := context.WithTimeout(ctx, min(maxDial, timeout))
		defer cancel()
		dialer := &tls.Dialer{Config: &tls.Config{
			RootCAs:      authorities,
			Certificates: []tls.Certificate{made},
			MinVersion:   tls.VersionTLS12,
			NextProtos:   []string{"http/1.1"},
		}}
		connection, err := dialer.DialContext(ctx, network, address)
		if err != nil {
			return nil, notSentError{err}
		}
		return connection, nil
	}
	return &failover{servers: servers, timeout: timeout, base: &http.Transport{
		DialTLSContext:         dial,
		DisableKeepAlives:      true,
		MaxResponseHeaderBytes: 1 << 20,
	}}
}

// RoundTrip tries the servers in turn. A request that only reads goes to the next whatever happened; a write does so only
// when nothing of it was sent.
func (f *failover) RoundTrip(request *http.Request) (*http.Response, error) {
	first := int(f.current.Load())
	reads := request.Method == http.MethodGet
	failed := &unreachableError{}
	if request.Body != nil {
		defer func() { _ = request.Body.Close() }()
	}
	var refused *http.Response
	for i := range f.servers {
		index := (first + i) % len(f.servers)
		response, err := f.try(request, index, reads, len(f.servers)-i)
		if err == nil && !(reads && elsewhere(response.StatusCode)) {
			f.current.Store(int32(index))
			drop(refused)
			return response, nil
		}
		if err == nil {
			// A server that can't do it now. The last such answer is given when no other server has a better one.
			drop(refused)
			refused = response
			continue
		}
		failed.causes = append(failed.causes, f.servers[index]+" "+cause(err))
		var notSent notSentError
		if !reads && !errors.As(err, &notSent) {
			failed.sent = true
			f.leave(index)
			break
		}
		if request.Context().Err() != nil {
			f.leave(index)
			break
		}
	}
	if refused != nil {
		return refused, nil
	}
	return nil, f.failed(request, failed)
}

// failed notes where it was the caller who gave up.
func (f *failover) failed(request *http.Request, err *unreachableError) error {
	if errors.Is(request.Context().Err(), context.Canceled) {
		err.canceled = context.Canceled
	}
	return err
}

// leave makes the next request begin with the server after this one.
func (f *failover) leave(index int) {
	f.current.CompareAndSwap(int32(index), int32((index+1)%len(f.servers)))
}

// elsewhere says whether a status is that of a server, or of a proxy in front of it, that can't read now while another
// may: it starts, it has lost its etcd, it does too much.
func elsewhere(status int) bool {
	return status >= http.StatusInternalServerError || status == http.StatusTooManyRequests
}

// try sends the request to one server, once. A read waits for its share of the time that is left, so that a server that
// takes connections and never answers leaves some for the others.
func (f *failover) try(request *http.Request, index int, reads bool, left int) (*http.Response, error) {
	ctx, cancel := context.WithCancel(request.Context())
	if reads {
		share := f.timeout / time.Duration(left)
		if deadline, ok := ctx.Deadline(); ok {
			share = time.Until(deadline) / time.Duration(left)
		}
		timer := time.AfterFunc(share, cancel)
		defer timer.Stop()
	}
	server, copied := f.servers[index], request.Clone(ctx)
	copied.URL.Host, copied.Host = server, server
	if request.GetBody != nil {
		body, err := request.GetBody()
		if err != nil {
			cancel()
			return nil, notSentError{err}
		}
		copied.Body = body
	}
	response, err := f.base.RoundTrip(copied)
	if err != nil {
		cancel()
		return nil, err
	}
	// client-go sleeps and sends again whatever has this header, writes too. Here the caller decides what comes next.
	response.Header.Del("Retry-After")
	response.Body = &reply{body: response.Body, kind: onlyKnownKinds(response.Header), cancel: cancel, broken: func(err error) error {
		f.leave(index)
		return f.failed(request, &unreachableError{sent: true, causes: []string{server + " " + cause(err)}})
	}}
	return response, nil
}

// reply is a body that ends in an error, not in silence, when it is too long or would become too large. It is read whole before any of it
// is given: whoever decodes it would need more memory than it is long.
type reply struct {
	body   io.ReadCloser
	kind   string
	cancel context.CancelFunc
	// broken makes the error of a body that stops before its end.
	broken func(error) error
	whole  *bytes.Reader
	err    error
}

func (r *reply) Read(p []byte) (int, error) {
	if r.whole == nil && r.err == nil {
		r.whole, r.err = r.fetch()
	}
	if r.err != nil {
		return 0, r.err
	}
	return r.whole.Read(p)
}

func (r *reply) fetch() (*bytes.Reader, error) {
	data, err := io.ReadAll(io.LimitReader(r.body, maxReply+1))
	switch {
	case len(data) > maxReply:
		return nil, fmt.Errorf("the reply is larger than %d MiB", maxReply>>20)
	case err != nil:
		return nil, r.broken(err)
	case replyValues(r.kind, data) > maxReplyValues:
		return nil, fmt.Errorf("the reply holds more than %d names and values", maxReplyValues)
	}
	return bytes.NewReader(data), nil
}

func (r *reply) Close() error {
	err := r.body.Close()
	r.cancel()
	return err
}

func drop(response *http.Response) {
	if response != nil {
		_ = response.Body.Close()
	}
}

// cause says in a few words why a server gave no answer.
func cause(err error) string {
	var (
		authority x509.UnknownAuthorityError
		hostname  x509.HostnameError
		invalid   x509.CertificateInvalidError
		network   net.Error
	)
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET):
		return "breaks the connection off"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "refuses connections"
	case errors.As(err, &authority):
		return "shows a certificate of another authority"
	case errors.As(err, &hostname):
		return "shows a certificate of another name"
	case errors.As(err, &invalid):
		return "shows a certificate that isn't valid: " + clean(invalid.Error())
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled), errors.As(err, &network) && network.Timeout():
		return "doesn't answer in time"
	}
	return clean(err.Error())
}
