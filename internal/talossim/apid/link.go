package apid

import (
	"errors"
	"net"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

// Link is a node's network cable. While it is partitioned nothing passes and nobody is told; what was sent arrives when it is
// healed. A slow link delays each write.
type Link struct {
	clock clock.WithTicker

	mu    sync.Mutex
	up    chan struct{} // closed while the link is up
	down  bool
	delay time.Duration
}

// NewLink makes a link that is up.
func NewLink(c clock.WithTicker) *Link {
	up := make(chan struct{})
	close(up)

	return &Link{clock: c, up: up}
}

// Partition lets nothing pass any more.
func (l *Link) Partition() {
	l.mu.Lock()
	defer l.mu.Unlock()

	if !l.down {
		l.down, l.up = true, make(chan struct{})
	}
}

// Slow delays each write by d; 0 makes the link fast again.
func (l *Link) Slow(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()

	l.delay = d
}

// Heal ends a partition and a delay.
func (l *Link) Heal() {
	l.mu.Lock()
	defer l.mu.Unlock()

	l.delay = 0

	if l.down {
		l.down = false
		close(l.up)
	}
}

// Partitioned says whether nothing passes.
func (l *Link) Partitioned() bool {
	l.mu.Lock()
	defer l.mu.Unlock()

	return l.down
}

// Wrap lays the link under a connection, whichever side made it.
func (l *Link) Wrap(conn net.Conn) net.Conn {
	return l.wrap(conn, nil)
}

func (l *Link) wrap(conn net.Conn, onClose func(*linkConn)) *linkConn {
	return &linkConn{Conn: conn, link: l, closed: make(chan struct{}), onClose: onClose}
}

func (l *Link) state() (up chan struct{}, delay time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()

	return l.up, l.delay
}

// linkConn is a connection over a link.
type linkConn struct {
	net.Conn
	link    *Link
	closed  chan struct{}
	once    sync.Once
	onClose func(*linkConn)

	mu    sync.Mutex
	muted bool
}

func (c *linkConn) Read(p []byte) (int, error) {
	if err := c.wait(false); err != nil {
		return 0, err
	}

	n, err := c.Conn.Read(p)
	if n > 0 {
		// What came in just as the link broke hadn't arrived.
		if werr := c.wait(false); werr != nil {
			return 0, werr
		}
	}

	return n, err
}

func (c *linkConn) Write(p []byte) (int, error) {
	if err := c.wait(true); err != nil {
		return 0, err
	}

	c.mu.Lock()
	muted := c.muted
	c.mu.Unlock()

	if muted {
		return len(p), nil // into a dead cable: the far side must not even hear that the connection closes
	}

	return c.Conn.Write(p)
}

// wait returns when the link lets data pass, or with an error when the connection was closed meanwhile.
func (c *linkConn) wait(delayed bool) error {
	up, delay := c.link.state()

	select {
	case <-up:
	case <-c.closed:
		return net.ErrClosed
	}

	if delayed && delay > 0 {
		select {
		case <-c.link.clock.After(delay):
		case <-c.closed:
			return net.ErrClosed
		}
	}

	return nil
}

// Close closes the connection, unless it was muted: then the far side is told nothing until it is reset.
func (c *linkConn) Close() error {
	c.once.Do(func() { close(c.closed) })

	c.mu.Lock()
	muted := c.muted
	c.mu.Unlock()

	if muted {
		// The near side's readers end; the far side is told nothing.
		return c.Conn.SetDeadline(time.Unix(1, 0))
	}

	if c.onClose != nil {
		c.onClose(c)
	}

	return c.Conn.Close()
}

func (c *linkConn) mute() {
	c.mu.Lock()
	defer c.mu.Unlock()

	c.muted = true
}

// reset closes the connection so that the far side sees "connection reset by peer".
func (c *linkConn) reset() {
	c.once.Do(func() { close(c.closed) })

	if tcp, ok := c.Conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // the connection is going away whatever the answer
	}

	_ = c.Conn.Close() // likewise
}

// trackingListener knows its connections, so that they can be reset together.
type trackingListener struct {
	net.Listener
	link *Link

	mu    sync.Mutex
	conns map[*linkConn]struct{}
}

func newTrackingListener(listener net.Listener, link *Link) *trackingListener {
	return &trackingListener{Listener: listener, link: link, conns: map[*linkConn]struct{}{}}
}

func (l *trackingListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}

	linked := l.link.wrap(conn, l.forget)

	l.mu.Lock()
	defer l.mu.Unlock()

	l.conns[linked] = struct{}{}

	return linked, nil
}

func (l *trackingListener) forget(c *linkConn) {
	l.mu.Lock()
	defer l.mu.Unlock()

	delete(l.conns, c)
}

func (l *trackingListener) all() []*linkConn {
	l.mu.Lock()
	defer l.mu.Unlock()

	conns := make([]*linkConn, 0, len(l.conns))
	for c := range l.conns {
		conns = append(conns, c)
	}

	return conns
}

func (l *trackingListener) mute() {
	for _, c := range l.all() {
		c.mute()
	}
}

func (l *trackingListener) reset() {
	for _, c := range l.all() {
		c.reset()
		l.forget(c)
	}
}

// blackHole holds an address: connections are taken and never answered. Closing it resets them, and those of the front
// that was there before.
type blackHole struct {
	net.Listener
	before *trackingListener

	mu     sync.Mutex
	conns  []net.Conn
	closed bool
}

func newBlackHole(listener net.Listener, before *trackingListener) *blackHole {
	hole := &blackHole{Listener: listener, before: before}

	go hole.swallow()

	return hole
}

func (h *blackHole) swallow() {
	for {
		conn, err := h.Listener.Accept()
		if err != nil {
			return
		}

		h.mu.Lock()
		if h.closed {
			_ = conn.Close() // nobody waits for it
		} else {
			h.conns = append(h.conns, conn)
		}
		h.mu.Unlock()
	}
}

func (h *blackHole) Close() error {
	h.mu.Lock()
	conns := h.conns
	h.conns, h.closed = nil, true
	h.mu.Unlock()

	err := h.Listener.Close()

	for _, conn := range conns {
		if tcp, ok := conn.(*net.TCPConn); ok {
			err = errors.Join(err, tcp.SetLinger(0))
		}

		err = errors.Join(err, conn.Close())
	}

	if h.before != nil {
		h.before.reset()
	}

	return err
}
