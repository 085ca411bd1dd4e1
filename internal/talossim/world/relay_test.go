package world

import (
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// echoing answers each connection with what it was sent, after its own name.
func echoing(t *testing.T, name string) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close() //nolint:errcheck // the test reads to its end
				_, _ = io.WriteString(conn, name)
				_, _ = io.Copy(conn, conn)
			}()
		}
	}()
	return listener.Addr().String()
}

// closedPort is an address where nobody listens.
func closedPort(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, listener.Close())
	return listener.Addr().String()
}

func dialRelay(t *testing.T, r *Relay) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", r.listener.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	require.NoError(t, conn.SetDeadline(time.Now().Add(time.Minute)))
	return conn
}

func reads(t *testing.T, conn net.Conn, want string) {
	t.Helper()
	got := make([]byte, len(want))
	_, err := io.ReadFull(conn, got)
	require.NoError(t, err)
	require.Equal(t, want, string(got))
}

func TestARelayGoesToTheFirstServerThatTakesAConnection(t *testing.T) {
	r, err := OpenRelay("127.0.0.1:0", []string{closedPort(t), echoing(t, "second"), echoing(t, "third")})
	require.NoError(t, err)
	t.Cleanup(r.Close)
	conn := dialRelay(t, r)
	reads(t, conn, "second")
	_, err = io.WriteString(conn, "back and forth")
	require.NoError(t, err)
	reads(t, conn, "back and forth")
}

func TestARelayWithoutAServerEndsTheConnection(t *testing.T) {
	r, err := OpenRelay("127.0.0.1:0", []string{closedPort(t)})
	require.NoError(t, err)
	t.Cleanup(r.Close)
	_, err = dialRelay(t, r).Read(make([]byte, 1))
	require.Error(t, err)
}

// lettered is a cable that puts a letter before what comes back.
func lettered(letter string) func(net.Conn) net.Conn {
	return func(conn net.Conn) net.Conn {
		_, _ = io.WriteString(conn, letter)
		return conn
	}
}

func TestARelaysCablesComeInTurn(t *testing.T) {
	r, err := OpenRelay("127.0.0.1:0", []string{echoing(t, "server")}, lettered("a"), lettered("b"))
	require.NoError(t, err)
	t.Cleanup(r.Close)
	reads(t, dialRelay(t, r), "abserver")
}

func TestARelayThatIsClosedEndsWhatItPassesAndTakesNothingMore(t *testing.T) {
	r, err := OpenRelay("127.0.0.1:0", []string{echoing(t, "server")})
	require.NoError(t, err)
	address, conn := r.listener.Addr().String(), dialRelay(t, r)
	reads(t, conn, "server")
	r.Close()
	_, err = conn.Read(make([]byte, 1))
	require.Error(t, err)
	require.NotErrorIs(t, err, net.ErrClosed, "the relay ended it, not the test")
	_, err = net.Dial("tcp", address)
	require.Error(t, err)
	r.Close()
}
