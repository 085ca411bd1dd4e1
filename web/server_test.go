package web

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// raw sends bytes and reads the first line of what comes back.
func (b *bench) raw(request string) (string, net.Conn) {
	b.t.Helper()
	conn, err := net.Dial("tcp", b.listener.Addr().String())
	require.NoError(b.t, err)
	b.t.Cleanup(func() { _ = conn.Close() })
	_, err = io.WriteString(conn, request)
	require.NoError(b.t, err)
	require.NoError(b.t, conn.SetReadDeadline(time.Now().Add(time.Minute)))
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		return "", conn
	}
	return strings.TrimSpace(line), conn
}

func TestWhatIsNoProperRequestIsRefused(t *testing.T) {
	b := newBench(t, nil)
	b.serve()
	for request, want := range map[string]string{
		"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n": "HTTP/1.1 200 OK",
		"GET / HTTP/1.1\r\n\r\n":                    "HTTP/1.1 400 Bad Request",
		"GET / HTTP/1.0\r\n\r\n":                    "HTTP/1.0 421 Misdirected Request",
		"GET / HTTP/1.1\r\nHost: evil.example\r\nX-Forwarded-Host: localhost\r\n\r\n":                        "HTTP/1.1 421 Misdirected Request",
		"GET http://evil.example/ HTTP/1.1\r\nHost: localhost\r\n\r\n":                                       "HTTP/1.1 421 Misdirected Request",
		"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n":                                    "HTTP/1.1 400 Bad Request",
		"CONNECT localhost:443 HTTP/1.1\r\nHost: localhost\r\n\r\n":                                          "HTTP/1.1 405 Method Not Allowed",
		"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n":                                                      "HTTP/1.1 405 Method Not Allowed",
		"GET / HTTP/1.1\r\nHost: localhost\r\nX-Long: " + strings.Repeat("x", 3*maxHeaderBytes) + "\r\n\r\n": "HTTP/1.1 431 Request Header Fields Too Large",
		"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n":                                                                   "HTTP/1.1 421 Misdirected Request",
		"nonsense\r\n\r\n":                                                                                   "HTTP/1.1 400 Bad Request",
	} {
		line, _ := b.raw(request)
		require.True(t, strings.HasPrefix(line, want), "%.60q: %s", request, line)
	}
}

func TestItStopsWhileConnectionsAreOpen(t *testing.T) {
	b := newBench(t, func(c *Config) { c.HookSecretFile = writeFile(t, secret) })
	stop := b.serve()
	line, _ := b.raw("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n") // stays open for the next request
	require.Equal(t, "HTTP/1.1 200 OK", line)
	silent, err := net.Dial("tcp", b.listener.Addr().String())
	require.NoError(t, err)
	defer silent.Close()
	half, err := net.Dial("tcp", b.listener.Addr().String())
	require.NoError(t, err)
	defer half.Close()
	// A request whose body never comes to an end.
	_, err = fmt.Fprintf(half, "POST %s HTTP/1.1\r\nHost: localhost\r\nX-Gitea-Signature: %s\r\nContent-Length: 1000\r\n\r\nhalf", pathHook,
		strings.Repeat("00", 32))
	require.NoError(t, err)
	began := time.Now()
	stop()
	t.Logf("stopped after %s", time.Since(began))
	require.Less(t, time.Since(began), readTimeout, "it did not wait for those who hold on")
	_, err = net.Dial("tcp", b.listener.Addr().String())
	require.Error(t, err)
}

func TestALostListenerIsSaid(t *testing.T) {
	b := newBench(t, nil)
	b.Close()
	require.ErrorContains(t, b.Run(context.Background()), "the status page is no longer served")
}

func TestManyReadersGetTheirPage(t *testing.T) {
	b := newBench(t, nil)
	b.serve()
	failed := make(chan error, 40)
	for range cap(failed) {
		go func() {
			answer, err := http.Get(b.URL())
			if err == nil {
				_, err = io.Copy(io.Discard, answer.Body)
				_ = answer.Body.Close()
			}
			failed <- err
		}()
	}
	for range cap(failed) {
		require.NoError(t, <-failed)
	}
}
