package harness

import (
	"io"
	"net"
	"sync"
)

// front passes the connections that come to an address on to a server, over a cable that may break.
type front struct {
	// backends gives where a connection goes: the first that takes it.
	backends func() []string
	// wrap lays a machine's cable under a connection; nil: none.
	wrap     func(net.Conn) net.Conn
	listener net.Listener

	mu     sync.Mutex
	closed bool
	open   map[net.Conn]bool
}

// openFront listens on an address until it is closed.
func openFront(address string, backends func() []string, wrap func(net.Conn) net.Conn) (*front, error) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	f := &front{backends: backends, wrap: wrap, listener: listener, open: map[net.Conn]bool{}}
	go func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			go f.pass(connection)
		}
	}()
	return f, nil
}

func (f *front) pass(client net.Conn) {
	if f.wrap != nil {
		client = f.wrap(client)
	}
	if !f.hold(client) {
		return
	}
	defer f.release(client)
	for _, backend := range f.backends() {
		server, err := net.Dial("tcp", backend)
		if err != nil {
			continue
		}
		if !f.hold(server) {
			return
		}
		defer f.release(server)
		done := make(chan struct{}, 2)
		go func() { _, _ = io.Copy(server, client); done <- struct{}{} }() // the end of either direction ends both
		go func() { _, _ = io.Copy(client, server); done <- struct{}{} }()
		<-done
		return
	}
}

func (f *front) hold(connection net.Conn) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		_ = connection.Close()
		return false
	}
	f.open[connection] = true
	return true
}

func (f *front) release(connection net.Conn) {
	f.mu.Lock()
	delete(f.open, connection)
	f.mu.Unlock()
	_ = connection.Close()
}

// close ends the listening and every connection.
func (f *front) close() {
	_ = f.listener.Close()
	f.mu.Lock()
	f.closed = true
	open := f.open
	f.open = map[net.Conn]bool{}
	f.mu.Unlock()
	for connection := range open {
		_ = connection.Close()
	}
}
