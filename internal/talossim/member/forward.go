package member

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"sync"

	"ichor.maesh.dev/internal/talossim/world"
)

// forwarder passes connections to a port of a machine on to the embedded server.
type forwarder struct {
	network  *world.Network
	addr     netip.Addr
	backend  string
	listener net.Listener

	mu      sync.Mutex
	stopped bool
	conns   map[net.Conn]bool
}

func forward(network *world.Network, addr netip.Addr, port int, backend string) (*forwarder, error) {
	front := net.JoinHostPort(addr.String(), strconv.Itoa(port))
	l, err := net.Listen("tcp", front)
	if err != nil {
		return nil, fmt.Errorf("listening on %s for etcd: %w", front, err)
	}
	f := &forwarder{network: network, addr: addr, backend: backend, listener: l, conns: map[net.Conn]bool{}}
	go f.serve()
	return f, nil
}

func (f *forwarder) serve() {
	for {
		c, err := f.listener.Accept()
		if err != nil {
			return
		}
		go f.pass(c)
	}
}

func (f *forwarder) pass(raw net.Conn) {
	front := f.network.Link(f.addr).Wrap(raw)
	if !f.hold(front) {
		return
	}
	defer f.release(front)
	in := bufio.NewReaderSize(front, 8<<10)
	// A peer says who it is in its first request; from then on the connection hangs on its sender's cable too.
	var from io.Reader = in
	var to io.Writer = front
	if peer := f.network.Member(sender(in)); peer.IsValid() && peer != f.addr {
		wrapped := f.network.Link(peer).Wrap(&buffered{Conn: front, in: in})
		if !f.hold(wrapped) {
			return
		}
		defer f.release(wrapped)
		from, to = wrapped, wrapped
	}
	back, err := net.Dial("tcp", f.backend)
	if err != nil || !f.hold(back) {
		return
	}
	defer f.release(back)
	done := make(chan struct{}, 2)
	go func() { _, _ = io.Copy(back, from); done <- struct{}{} }() // the end of either direction ends both
	go func() { _, _ = io.Copy(to, back); done <- struct{}{} }()
	<-done
}

type buffered struct {
	net.Conn
	in *bufio.Reader
}

func (b *buffered) Read(p []byte) (int, error) { return b.in.Read(p) }

func (f *forwarder) hold(c net.Conn) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.stopped {
		_ = c.Close()
		return false
	}
	f.conns[c] = true
	return true
}

func (f *forwarder) release(c net.Conn) {
	f.mu.Lock()
	delete(f.conns, c)
	f.mu.Unlock()
	_ = c.Close()
}

func (f *forwarder) close() {
	_ = f.listener.Close()
	f.mu.Lock()
	f.stopped = true
	conns := f.conns
	f.conns = map[net.Conn]bool{}
	f.mu.Unlock()
	for c := range conns {
		_ = c.Close()
	}
}

// sender reads ahead to the end of an HTTP/1 request's headers and returns the ID of the etcd member that sent it, "" when
// it is none. It consumes nothing.
func sender(in *bufio.Reader) string {
	for size := 1; size <= in.Size(); {
		if _, err := in.Peek(size); err != nil {
			return ""
		}
		head, _ := in.Peek(in.Buffered())
		if head[0] != 'G' && head[0] != 'P' || bytes.HasPrefix(head, []byte("PRI ")) {
			return ""
		}
		if end := bytes.Index(head, []byte("\r\n\r\n")); end >= 0 {
			req, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(head[:end+4])))
			if err != nil {
				return ""
			}
			return req.Header.Get("X-Server-From")
		}
		size = len(head) + 1
	}
	return ""
}
