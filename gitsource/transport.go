package gitsource

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/go-git/go-git/v5/plumbing/transport"
	githttp "github.com/go-git/go-git/v5/plumbing/transport/http"
	"golang.org/x/crypto/ssh"
)

const (
	// dialTimeout bounds a TCP connection and a TLS handshake.
	dialTimeout = 10 * time.Second
	// maxErrorBody bounds what is read of an answer that isn't a success, in bytes.
	maxErrorBody = 4 << 10
	// maxRefs bounds the list of references, in bytes: about 100,000 of them.
	maxRefs = 16 << 20
)

// connect begins a conversation, before beginning ends. A conversation over pipes ends with ctx at the latest.
func (s *Source) connect(ctx, beginning context.Context, creds credentials) (session, error) {
	switch s.location.endpoint.Protocol {
	case protocolFile:
		return opened(s.connectFile(ctx, uploadPack))
	case protocolSSH:
		return opened(s.connectSSH(beginning, creds, uploadPack))
	default:
		client, endpoint, auth := s.connectHTTP(creds)
		return client.NewUploadPackSession(endpoint, auth)
	}
}

// connectToPush is connect for a conversation in which commits are sent.
func (s *Source) connectToPush(ctx, beginning context.Context, creds credentials) (pushSession, error) {
	switch s.location.endpoint.Protocol {
	case protocolFile:
		stream, err := s.connectFile(ctx, receivePackService)
		if err != nil {
			return nil, err
		}
		return stream, nil
	case protocolSSH:
		stream, err := s.connectSSH(beginning, creds, receivePackService)
		if err != nil {
			return nil, err
		}
		return stream, nil
	default:
		client, endpoint, auth := s.connectHTTP(creds)
		return client.NewReceivePackSession(endpoint, auth)
	}
}

// The services of a Git server.
const (
	uploadPack         = "upload-pack"
	receivePackService = "receive-pack"
)

// opened gives a stream as a session, and no session where there is no stream.
func opened(s *stream, err error) (session, error) {
	if err != nil {
		return nil, err
	}
	return s, nil
}

// connectHTTP uses go-git's client, which drops credentials when a redirect leaves the repository's origin, over a transport
// of ours. The transport is kept between polls, so that they share a connection.
func (s *Source) connectHTTP(creds credentials) (transport.Transport, *transport.Endpoint, transport.AuthMethod) {
	if s.http == nil || !sameCA(s.httpCA, creds.ca) {
		if s.http != nil {
			s.http.CloseIdleConnections()
		}
		s.http = &http.Transport{
			Proxy:               http.ProxyFromEnvironment,
			DialContext:         (&net.Dialer{Timeout: dialTimeout}).DialContext,
			TLSHandshakeTimeout: dialTimeout,
			TLSClientConfig:     &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: creds.pool},
			ForceAttemptHTTP2:   true,
			IdleConnTimeout:     90 * time.Second,
			MaxIdleConns:        2,
		}
		s.httpCA = creds.ca
	}
	client := githttp.NewClient(&http.Client{Transport: boundedTransport{s.http}})
	endpoint := *s.location.endpoint // a redirect changes it
	var auth transport.AuthMethod
	if creds.http != nil {
		auth = creds.http
	}
	return client, &endpoint, auth
}

// boundedTransport bounds answers that go-git reads whole: errors, and the list of references.
type boundedTransport struct{ next http.RoundTripper }

func (t boundedTransport) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := t.next.RoundTrip(request)
	if err != nil {
		return nil, err
	}
	switch {
	case response.StatusCode >= 300:
		response.Body = boundedBody{io.LimitReader(response.Body, maxErrorBody), response.Body}
	case request.Method == http.MethodGet:
		response.Body = boundedBody{io.LimitReader(response.Body, maxRefs), response.Body}
	}
	return response, nil
}

type boundedBody struct {
	io.Reader
	io.Closer
}

// connectSSH dials by itself rather than through go-git's client, whose handshake has no deadline, and which obeys the user's
// ~/.ssh/config.
func (s *Source) connectSSH(ctx context.Context, creds credentials, service string) (*stream, error) {
	address := hostPort(s.location.endpoint, 22)
	dialer := net.Dialer{Timeout: dialTimeout}
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() }) // go-git's and ssh's own calls know no context
	defer stop()
	sshConn, channels, requests, err := ssh.NewClientConn(conn, address, &ssh.ClientConfig{
		User:              s.location.endpoint.User,
		Auth:              []ssh.AuthMethod{ssh.PublicKeys(creds.signer)},
		HostKeyCallback:   creds.knownHosts.HostKeyCallback(),
		HostKeyAlgorithms: creds.knownHosts.HostKeyAlgorithms(address),
	})
	if err != nil {
		_ = conn.Close()
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, err
	}
	client := ssh.NewClient(sshConn, channels, requests)
	opened, err := openSSHStream(client, "git-"+service+" "+shellQuote(s.location.endpoint.Path))
	if err != nil {
		_ = client.Close()
		return nil, err
	}
	if !stop() { // it is closed, or about to be
		_ = client.Close()
		return nil, ctx.Err()
	}
	return opened, nil
}

func openSSHStream(client *ssh.Client, command string) (*stream, error) {
	channel, err := client.NewSession()
	if err != nil {
		return nil, err
	}
	in, err := channel.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := channel.StdoutPipe()
	if err != nil {
		return nil, err
	}
	stderr := &lineBuffer{}
	channel.Stderr = stderr
	if err := channel.Start(command); err != nil {
		return nil, err
	}
	return &stream{
		in:   in,
		out:  out,
		kill: func() { _ = client.Close() },
		wait: func() string {
			_ = channel.Wait()
			return stderr.text()
		},
	}, nil
}

// shellQuote quotes a path for the shell at the other end, as git itself does.
func shellQuote(path string) string {
	return "'" + strings.NewReplacer("'", `'\''`, "!", `'\!'`).Replace(path) + "'"
}

var errNoGit = errors.New("git isn't installed")

// connectFile runs git itself, as git itself does for a repository on the same machine.
func (s *Source) connectFile(ctx context.Context, service string) (*stream, error) {
	path := s.location.endpoint.Path
	if _, err := os.Stat(path); err != nil {
		return nil, err
	}
	git, err := exec.LookPath("git")
	if err != nil {
		return nil, errNoGit
	}
	command := exec.CommandContext(ctx, git, service, "--", path)
	// A hook or a wrapper may have set GIT_DIR and its kin for another repository.
	for _, variable := range os.Environ() {
		if !strings.HasPrefix(variable, "GIT_") {
			command.Env = append(command.Env, variable)
		}
	}
	command.Env = append(command.Env, "LC_ALL=C")
	command.WaitDelay = time.Second
	stderr := &lineBuffer{}
	command.Stderr = stderr
	in, err := command.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := command.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := command.Start(); err != nil {
		return nil, fmt.Errorf("starting git: %w", err)
	}
	return &stream{
		in:   in,
		out:  out,
		kill: func() { _ = command.Process.Kill() },
		wait: func() string {
			_ = command.Wait()
			return stderr.text()
		},
	}, nil
}
