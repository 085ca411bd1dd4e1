package world

import (
	"fmt"
	"io"
	"net"
	"sync"
)

// Relay passes the connections that come to an address on to a server, over cables that may break.
type Relay struct {
	listener net.Listener
	servers  []string
	cables   []func(net.Conn) net.Conn

	mu     sync.Mutex
	closed bool
	open   map[net.Conn]bool
}

// OpenRelay listens on an address until the relay is closed. Each connection gets the cables in turn, and goes to the first of the servers
// that takes it.
func OpenRelay(address string, servers []string, cables ...func(net.Conn) net.Conn) (*Relay, error) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listening on %s: %w", address, err)
	}
	r := &Relay{listener: listener, servers: servers, cables: cables, open: map[net.Conn]bool{}}
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			go r.pass(client)
		}
	}()
	return r, nil
}

func (r *Relay) pass(client net.Conn) {
	if !r.hold(client) {
		return
	}
	defer func() { r.release(client) }()
	for _, cable := range r.cables {
		// A cable may wait for what comes over those before it.
		over := cable(client)
		if !r.hold(over) {
			return
		}
		r.forget(client)
		client = over
	}
	for _, address := range r.servers {
		server, err := net.Dial("tcp", address)
		if err != nil {
			continue
		}
		if !r.hold(server) {
			return
		}
		defer r.release(server)
		done := make(chan struct{}, 2)
		go func() { _, _ = io.Copy(server, client); done <- struct{}{} }() // the end of either direction ends both
		go func() { _, _ = io.Copy(client, server); done <- struct{}{} }()
		<-done
		return
	}
}

// hold keeps a connection to be closed with the relay, or closes it at once when that has happened.
func (r *Relay) hold(c net.Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		_ = c.Close()
		return false
	}
	r.open[c] = true
	return true
}

func (r *Relay) forget(c net.Conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.open, c)
}

func (r *Relay) release(c net.Conn) {
	r.forget(c)
	_ = c.Close()
}

// Close ends the listening and every connection.
func (r *Relay) Close() {
	_ = r.listener.Close()
	r.mu.Lock()
	r.closed = true
	open := r.open
	r.open = map[net.Conn]bool{}
	r.mu.Unlock()
	for c := range open {
		_ = c.Close()
	}
}
