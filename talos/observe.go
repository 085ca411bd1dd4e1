package talos

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// limits bound the time of one look.
type limits struct {
	// dial is for making one connection, read for one call, etcd for one that asks etcd, which may hang, all for the whole.
	dial, read, etcd, all time.Duration
}

// defaultLimits make a machine that hangs cost 15 seconds at most.
var defaultLimits = limits{dial: 4 * time.Second, read: 5 * time.Second, etcd: 10 * time.Second, all: 15 * time.Second}

// Observe looks at one machine: reads what there is to read, all at once, and takes 15 seconds at most. It changes nothing,
// and uses the role os:reader except for config and boot ID, which Talos shows to os:admin only. What could not be read is
// left unknown, and Problem says why. Connections are kept for the next look and dropped on any error.
func (c *Client) Observe(ctx context.Context, target Target) (seen Observation) {
	ctx, cancel := context.WithTimeout(ctx, c.limits.all)
	defer cancel()
	observation := Observation{At: c.clock.Now()}
	defer c.scrubber.Recover(func(text string) {
		c.forget(target)
		seen = Observation{At: observation.At, Problem: unhandled(target, "looking at it", text).Error()}
	})
	session, err := c.reach(ctx, target)
	if err != nil {
		observation.Problem = c.scrubber.Text(err.Error())
		return observation
	}
	look := &look{client: c, target: target, session: session, observation: &observation}
	if session.maintenance {
		look.maintenance(ctx)
	} else {
		look.configured(ctx)
	}
	err = look.finish(ctx)
	if err != nil || look.broken {
		c.forget(target)
	}
	if err != nil {
		return Observation{At: observation.At, Problem: "it went away while it was looked at: " + err.Error()}
	}
	observation.Problem = strings.Join(look.problems, "; ")
	return observation
}

// finish reads the stage, last of all. The connection that it is read over was there before everything else was read and
// never spans two boots, so with this answer all that was read, also over other connections, is of one boot. Without it the
// parts may be of two, and together say what never was.
func (l *look) finish(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, l.client.limits.read)
	defer cancel()
	stage, err := l.session.stage(ctx)
	if errors.Is(err, errMissing) {
		return nil
	}
	if err != nil {
		return l.session.failed("reading its stage", err)
	}
	l.observation.Stage, l.observation.Ready, l.observation.Unmet = stage.Name, stage.Ready, stage.Unmet
	return nil
}

// reach gives a connection to read over, in the mode that the machine is in. The two modes are told apart by trying both
// ways: a configured machine shows a certificate of the bundle's authority, one in maintenance a self-signed one, and asks
// for none.
func (c *Client) reach(ctx context.Context, target Target) (*Session, error) {
	if c.bundle == nil {
		session, err := c.alive(ctx, target, RoleReader, true)
		return session, err
	}
	session, err := c.alive(ctx, target, RoleReader, false)
	if err == nil {
		return session, nil
	}
	var authority x509.UnknownAuthorityError
	if !errors.As(err, &authority) {
		return nil, err
	}
	// Not this cluster's certificate: in maintenance mode, or another cluster's, which asks for a certificate.
	return c.alive(ctx, target, RoleReader, true)
}

// alive gives a connection over which the machine has just answered: a kept one may have died unseen.
func (c *Client) alive(ctx context.Context, target Target, role Role, maintenance bool) (*Session, error) {
	for {
		session, fresh, err := c.observeLink(ctx, target, role, maintenance)
		if err != nil {
			return nil, err
		}
		probe, cancel := context.WithTimeout(ctx, c.limits.read)
		_, err = session.stage(probe)
		cancel()
		if err == nil || errors.Is(err, errMissing) {
			return session, nil
		}
		c.drop(linkKey{target.Address(), role, maintenance})
		if fresh || ctx.Err() != nil {
			return nil, session.failed("reading its stage", err)
		}
	}
}

// look is one observation under way.
type look struct {
	client  *Client
	target  Target
	session *Session

	mu          sync.Mutex
	observation *Observation
	problems    []string
	// broken says that a connection may be at fault for a problem.
	broken bool
	wg     sync.WaitGroup
}

// read runs one read at the side of the others, with its own deadline. read returns what it found as a function, which is
// applied alone; on an error nothing is applied, so what was to be read stays unknown.
func (l *look) read(ctx context.Context, doing string, limit time.Duration, read func(context.Context) (func(*Observation), error)) {
	l.wg.Go(func() {
		defer l.client.scrubber.Recover(l.unhandled(doing))
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		apply, err := read(ctx)
		if err != nil {
			l.problem(l.session.failed(doing, err))
			return
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		apply(l.observation)
	})
}

// unhandled notes a panic. A machine can send anything; nothing that it sends may take this process down.
func (l *look) unhandled(doing string) func(panicked string) {
	return func(panicked string) { l.problem(unhandled(l.target, doing, panicked)) }
}

func unhandled(target Target, doing, panicked string) error {
	line, _, _ := strings.Cut(panicked, "\n")
	return fmt.Errorf("%s: %s: what it sent could not be handled (%s)", target.Name, doing, line)
}

// problem notes why something could not be read, and whether the connection may be at fault.
func (l *look) problem(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.problems = append(l.problems, err.Error())
	switch status.Code(err) {
	case codes.Unavailable, codes.Canceled:
		l.broken = true
	}
}

// forget drops every kept connection to a machine.
func (c *Client) forget(target Target) {
	for _, maintenance := range []bool{true, false} {
		for _, role := range []Role{RoleReader, RoleAdmin} {
			c.drop(linkKey{target.Address(), role, maintenance})
		}
	}
}
