package talos

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"syscall"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"ichor.maesh.dev/internal/scrub"
)

// CallError is the failure of one call to a machine. It keeps the gRPC code; its text is safe to show.
type CallError struct {
	Machine string
	Doing   string
	Code    codes.Code
	// Message is what the machine said, scrubbed and cut; or why the call was not made.
	Message string
	// NotSent says that nothing left this process.
	NotSent bool
}

func (e *CallError) Error() string {
	return fmt.Sprintf("%s: %s: %s", e.Machine, e.Doing, e.Message)
}

// GRPCStatus makes status.Code see the code.
func (e *CallError) GRPCStatus() *status.Status { return status.New(e.Code, e.Message) }

// Is makes errors.Is(err, ErrNotSent) work, and context errors of one's own.
func (e *CallError) Is(target error) bool {
	switch target {
	case ErrNotSent:
		return e.NotSent
	case context.DeadlineExceeded:
		return e.Code == codes.DeadlineExceeded
	case context.Canceled:
		return e.Code == codes.Canceled
	}
	return false
}

func callError(scrubber *scrub.Scrubber, target Target, doing string, err error) error {
	if err == nil {
		return nil
	}
	failure := &CallError{Machine: target.Name, Doing: doing, Code: status.Code(err)}
	switch {
	case errors.Is(err, ErrNotSent):
		failure.Code, failure.NotSent = codes.Unknown, true
		failure.Message = sane(scrubber, err.Error())
	case errors.Is(err, context.DeadlineExceeded), failure.Code == codes.DeadlineExceeded:
		failure.Code = codes.DeadlineExceeded
		failure.Message = "no answer in time"
	case noConnection(err, context.DeadlineExceeded.Error()):
		failure.Message = "it could not be reached in time"
	case errors.Is(err, context.Canceled):
		failure.Code = codes.Canceled
		failure.Message = "stopped before an answer came"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF),
		noConnection(err, errReconnect.Error(), "error reading server preface", io.ErrClosedPipe.Error()):
		failure.Code = codes.Unavailable
		failure.Message = "the connection broke"
	default:
		failure.Message = nodeText(scrubber, err)
	}
	return failure
}

// noConnection says whether gRPC itself gives up for one of these causes, in words that are its own and help nobody.
func noConnection(err error, causes ...string) bool {
	words := err.Error()
	return status.Code(err) == codes.Unavailable && strings.Contains(words, "connection error: desc = ") &&
		slices.ContainsFunc(causes, func(cause string) bool { return strings.Contains(words, cause) })
}

// nodeText gives what a node said, without what it says of configs: from "diff:" on it may quote a whole one.
func nodeText(scrubber *scrub.Scrubber, err error) string {
	text := err.Error()
	if from, ok := status.FromError(err); ok {
		text = from.Message()
	}
	lower := asciiLower(text)
	for _, mark := range []string{"diff:", "config diff", "--- a", "+++ b"} {
		if at := strings.Index(lower, mark); at >= 0 {
			text, lower = text[:at], lower[:at]
		}
	}
	return sane(scrubber, text)
}

// asciiLower makes A to Z small and leaves each byte where it is, which strings.ToLower doesn't: some letters are longer as small ones, and
// what is found in its text stands elsewhere in the one that was given.
func asciiLower(text string) string {
	lower := []byte(text)
	for at, c := range lower {
		if 'A' <= c && c <= 'Z' {
			lower[at] = c + 'a' - 'A'
		}
	}
	return string(lower)
}

// dialError says in a sentence why a machine could not be reached.
func dialError(scrubber *scrub.Scrubber, target Target, err error) error {
	return fmt.Errorf("%s can't be reached at %s: %w", target.Name, target.Address(), &dialFailure{text: dialText(scrubber, err), err: err})
}

type dialFailure struct {
	text string
	err  error
}

func (e *dialFailure) Error() string { return e.text }
func (e *dialFailure) Unwrap() error { return e.err }

func dialText(scrubber *scrub.Scrubber, err error) string {
	var (
		authority x509.UnknownAuthorityError
		invalid   x509.CertificateInvalidError
		host      x509.HostnameError
		dns       *net.DNSError
	)
	switch {
	case errors.As(err, &authority):
		return "its certificate is of another authority than this cluster's bundle: it is in maintenance mode or belongs to another cluster"
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return "its certificate is expired or not yet valid; compare its clock with this machine's"
	case errors.As(err, &host):
		return "its certificate is not for this address; add the address to machine.certSANs by a patch"
	case isCertificateDemand(err):
		return "it wants a client certificate of its own authority: it is configured, and not by this cluster's bundle"
	case errors.As(err, &dns):
		return "the name doesn't resolve: " + sane(scrubber, dns.Err)
	case errors.Is(err, syscall.ECONNREFUSED):
		return "it refuses the connection: it is starting, stopping, or waits for its certificate"
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return "there is no route to it"
	case errors.Is(err, context.DeadlineExceeded), isTimeout(err):
		return "no answer in time"
	case errors.Is(err, context.Canceled):
		return "stopped before an answer came"
	case errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET):
		return "the connection broke during the handshake"
	}
	return sane(scrubber, err.Error())
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

// isCertificateDemand recognises the alert by which a server refuses a client without a certificate it accepts. The
// standard library gives no type for alerts that the other side sent.
func isCertificateDemand(err error) bool {
	text := err.Error()
	return strings.Contains(text, "tls: certificate required") || strings.Contains(text, "tls: bad certificate") ||
		strings.Contains(text, "tls: unknown certificate authority")
}
