package recovery

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"sync"

	"ichor.maesh.dev/backup"
	"ichor.maesh.dev/talos"
)

// errKilled is what a process that is dead finds wherever it turns.
var errKilled = errors.New("killed")

// mortal is a process that dies at one of its points.
type mortal struct {
	mu     sync.Mutex
	points int
	at     int    // the point at which it dies; zero: never
	before string // the call that it dies before
	end    context.CancelFunc
}

func (p *mortal) point() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.points++
	if p.at > 0 && p.points >= p.at {
		p.end()
		return errKilled
	}
	return nil
}

// calls is the point before a call.
func (p *mortal) calls(call string) error {
	if p.before == call {
		p.mu.Lock()
		p.at = 1
		p.mu.Unlock()
	}
	return p.point()
}

// mortalMarker dies before or after a write.
type mortalMarker struct {
	*backup.Marker
	process *mortal
}

func (m mortalMarker) Swap(ctx context.Context, content json.RawMessage) error {
	if err := m.process.point(); err != nil {
		return err
	}
	err := m.Marker.Swap(context.WithoutCancel(ctx), content)
	return errors.Join(err, m.process.point())
}

// mortalNodes die before or after a call.
type mortalNodes struct {
	*world
	process *mortal
}

func (n mortalNodes) Dial(_ context.Context, to talos.Target) (Session, error) {
	c, err := n.dial(to, false)
	return &mortalConn{c, n.process}, err
}

func (n mortalNodes) DialMaintenance(_ context.Context, to talos.Target, fingerprint string) (Session, error) {
	c, err := n.dial(to, true)
	if err == nil && c.Fingerprint() != fingerprint {
		err = errors.New("another fingerprint")
	}
	return &mortalConn{c, n.process}, err
}

type mortalConn struct {
	*conn
	process *mortal
}

func (c *mortalConn) call(name string, f func() error) error {
	if err := c.process.calls(name); err != nil {
		return err
	}
	return errors.Join(f(), c.process.point())
}

func (c *mortalConn) ApplyConfig(ctx context.Context, request talos.ApplyRequest) error {
	return c.call("config", func() error { return c.conn.ApplyConfig(ctx, request) })
}

func (c *mortalConn) Reset(ctx context.Context, request talos.ResetRequest) error {
	return c.call("reset", func() error { return c.conn.Reset(ctx, request) })
}

func (c *mortalConn) Reboot(ctx context.Context, mode talos.RebootMode) error {
	return c.call("reboot", func() error { return c.conn.Reboot(ctx, mode) })
}

func (c *mortalConn) RestartService(ctx context.Context, id string) error {
	return c.call("restart", func() error { return c.conn.RestartService(ctx, id) })
}

func (c *mortalConn) LeaveEtcd(ctx context.Context) error {
	return c.call("leave", func() error { return c.conn.LeaveEtcd(ctx) })
}

func (c *mortalConn) RemoveMember(ctx context.Context, id uint64) error {
	return c.call("remove-member", func() error { return c.conn.RemoveMember(ctx, id) })
}

func (c *mortalConn) UploadSnapshot(ctx context.Context, snapshot io.Reader) error {
	return c.call("upload", func() error { return c.conn.UploadSnapshot(ctx, snapshot) })
}

func (c *mortalConn) RecoverEtcd(ctx context.Context) error {
	return c.call("recover", func() error { return c.conn.RecoverEtcd(ctx) })
}
