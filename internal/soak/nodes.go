package soak

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc/codes"

	"ichor.maesh.dev/reconcile"
	"ichor.maesh.dev/talos"
)

// observeLimit is how long the client looks at a machine that gives no answer.
const observeLimit = 15 * time.Second

// agentNodes is one process's way to the machines of a cluster.
type agentNodes struct {
	p *process
	c *cluster
}

func refusal(m *machine, doing, message string) error {
	return &talos.CallError{Machine: m.name, Doing: doing, Code: codes.FailedPrecondition, Message: message}
}

func broken(machine, doing string) error {
	return &talos.CallError{Machine: machine, Doing: doing, Code: codes.Unavailable, Message: "the connection broke"}
}

func late(machine, doing string) error {
	return &talos.CallError{Machine: machine, Doing: doing, Code: codes.DeadlineExceeded, Message: "no answer in time"}
}

// reach waits for what the network does to a call; hangs says that no answer will come.
func (n agentNodes) reach(ctx context.Context, name, endpoint, what string) (m *machine, hangs bool, err error) {
	if err := n.p.point(ctx, name, what); err != nil {
		return nil, false, err
	}
	ip := endpoint
	if host, _, err := net.SplitHostPort(endpoint); err == nil {
		ip = host
	}
	w := n.p.w
	w.mu.Lock()
	m = w.byIP[ip]
	mode := n.p.host.link(ip).mode
	if n.p.host.cutOff(m) {
		mode = "refused"
	}
	if m != nil && w.see(m).lockedOut() {
		mode = "hangs"
	}
	w.mu.Unlock()
	switch mode {
	case "refused":
		w.befell("agent and machine parted")
		return nil, false, errors.New("there is no route to it")
	case "hangs":
		w.befell("machine hangs")
		return m, true, nil
	case "slow":
		w.befell("machine slow")
		time.Sleep(w.span(time.Second, 4*time.Second, "slow", n.p.id, name, what, time.Now().UnixNano()))
	}
	if m == nil {
		return nil, false, errors.New("nobody is there")
	}
	return m, false, nil
}

// Observe implements reconcile.Nodes.
func (n agentNodes) Observe(ctx context.Context, target talos.Target) talos.Observation {
	m, hangs, err := n.reach(ctx, target.Name, target.Endpoint, "observe")
	if hangs {
		select {
		case <-ctx.Done():
		case <-time.After(observeLimit):
		}
		err = errors.New("no answer in time")
	}
	now := hostClock{h: n.p.host}.Now()
	if err != nil {
		return talos.Observation{At: now, Problem: fmt.Sprintf("%s can't be reached: %v", target.Name, err)}
	}
	n.p.w.mu.Lock()
	defer n.p.w.mu.Unlock()
	o := n.p.w.see(m).observe(time.Now())
	o.At = now
	if m.c != n.c && o.Mode == talos.ModeConfigured {
		return talos.Observation{At: now, Problem: target.Name + ": its certificate is of another authority than this cluster's bundle"}
	}
	return o
}

// Dial implements reconcile.Nodes.
func (n agentNodes) Dial(ctx context.Context, target talos.Target) (reconcile.Session, error) {
	return sessionOf(n.dial(ctx, target, false, ""))
}

// DialMaintenance implements reconcile.Nodes.
func (n agentNodes) DialMaintenance(ctx context.Context, target talos.Target, fingerprint string) (reconcile.Session, error) {
	return sessionOf(n.dial(ctx, target, true, fingerprint))
}

func sessionOf(s *session, err error) (reconcile.Session, error) {
	if err != nil {
		return nil, err
	}
	return s, nil
}

func (n agentNodes) dial(ctx context.Context, target talos.Target, maintenance bool, fingerprint string) (*session, error) {
	m, hangs, err := n.reach(ctx, target.Name, target.Endpoint, "dial")
	if hangs {
		<-waitFor(ctx, 4*time.Second)
		err = errors.New("no answer in time")
	}
	if err != nil {
		return nil, fmt.Errorf("%s can't be reached at %s: %w: %w", target.Name, target.Endpoint, err, talos.ErrNotSent)
	}
	n.p.w.mu.Lock()
	defer n.p.w.mu.Unlock()
	seen := n.p.w.see(m)
	switch {
	case !seen.answers():
		return nil, fmt.Errorf("%s refuses the connection: %w", target.Name, talos.ErrNotSent)
	case maintenance != (seen.stage == stageMaintenance) || maintenance && seen.fingerprint() != fingerprint || !maintenance && m.c != n.c:
		return nil, fmt.Errorf("%s shows another certificate: %w", target.Name, talos.ErrNotSent)
	}
	return &session{nodes: n, m: m, name: target.Name, endpoint: target.Endpoint, boot: seen.boot, maintenance: maintenance}, nil
}

func waitFor(ctx context.Context, d time.Duration) <-chan struct{} {
	done := make(chan struct{})
	go func() {
		defer close(done)
		select {
		case <-ctx.Done():
		case <-time.After(d):
		}
	}()
	return done
}
