package reconcile

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"ichor.maesh.dev/backup"
	"ichor.maesh.dev/kube"
	"ichor.maesh.dev/recovery"
	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/talos"
)

// errDead is what everything answers to an agent that was killed: nothing of it reaches the world any more.
var errDead = errors.New("this agent is dead")

// tap stands between one agent and the world. At each write of the state and each call on a session it asks whether the agent
// dies here, once before the effect and once after it.
type tap struct {
	mu   sync.Mutex
	dead bool
	// dies is asked with the name of the point.
	dies func(point string) bool
	// died is closed when the agent died; at is where.
	died chan struct{}
	at   string
	// freeze, if set, is called at each point before the tap is asked; it may block.
	freeze func(point string)
	// unheard, if set, is asked for each write of the state: true, and its acknowledgement is lost and the next read fails.
	unheard func(write string) bool
	deaf    bool
}

func newTap(dies func(string) bool) *tap { return &tap{dies: dies, died: make(chan struct{})} }

// point says whether the agent is still alive past a point.
func (p *tap) point(name string) error {
	if p.freeze != nil {
		p.freeze(name)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.dead && p.dies != nil && p.dies(name) {
		p.dead, p.at = true, name
		close(p.died)
	}
	if p.dead {
		return errDead
	}
	return nil
}

// around runs an effect between its two points.
func (p *tap) around(name string, effect func() error) error {
	if err := p.point("before " + name); err != nil {
		return err
	}
	err := effect()
	if dead := p.point("after " + name); dead != nil {
		return dead
	}
	return err
}

func (p *tap) alive() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.dead {
		return errDead
	}
	return nil
}

// tappedState is a state behind a tap.
type tappedState struct {
	tap   *tap
	inner StateStore
}

func (s tappedState) Load(ctx context.Context) (*statefile.State, error) {
	if err := s.tap.alive(); err != nil {
		return nil, err
	}
	if s.tap.freeze != nil {
		s.tap.freeze("load")
	}
	if s.tap.deaf {
		s.tap.deaf = false
		return nil, errors.New("the store gives no answer")
	}
	return s.inner.Load(ctx)
}

func (s tappedState) Known() (*statefile.State, uint64) { return s.inner.Known() }

func (s tappedState) Create(ctx context.Context, state *statefile.State, events ...statefile.Event) error {
	return s.tap.around("state created", func() error { return s.inner.Create(ctx, state, events...) })
}

func (s tappedState) TakeOver(ctx context.Context) (state *statefile.State, err error) {
	err = s.tap.around("writer taken over", func() error { state, err = s.inner.TakeOver(ctx); return err })
	return state, err
}

func (s tappedState) Swap(ctx context.Context, change func(*statefile.State) error, events ...statefile.Event) error {
	name := "state"
	for _, e := range events {
		call := e.Details["call"]
		if word := strings.Fields(call); len(word) > 0 {
			call = word[0]
		}
		name += strings.TrimRight(fmt.Sprintf(" %s %s %s", e.Action, call, e.Machine), " ")
	}
	err := s.tap.around(name, func() error { return s.inner.Swap(ctx, change, events...) })
	if err == nil && s.tap.unheard != nil && s.tap.unheard(name) {
		s.tap.deaf = true
		return fmt.Errorf("writing the state: %w", statefile.ErrUnacknowledged)
	}
	return err
}

func (s tappedState) Traces(ctx context.Context) ([]string, error) { return s.inner.Traces(ctx) }

func (s tappedState) Begin(ctx context.Context, name, digest, nonce string) error {
	return s.tap.around("begin "+name, func() error { return s.inner.Begin(ctx, name, digest, nonce) })
}

// tappedNodes are machines behind a tap.
type tappedNodes struct {
	tap   *tap
	inner Nodes
}

func (n tappedNodes) Observe(ctx context.Context, target talos.Target) talos.Observation {
	if err := n.tap.alive(); err != nil {
		return talos.Observation{Problem: err.Error()}
	}
	return n.inner.Observe(ctx, target)
}

func (n tappedNodes) Dial(ctx context.Context, target talos.Target) (Session, error) {
	return n.session(target, func() (Session, error) { return n.inner.Dial(ctx, target) })
}

func (n tappedNodes) DialMaintenance(ctx context.Context, target talos.Target, fingerprint string) (Session, error) {
	return n.session(target, func() (Session, error) { return n.inner.DialMaintenance(ctx, target, fingerprint) })
}

func (n tappedNodes) session(target talos.Target, dial func() (Session, error)) (session Session, err error) {
	err = n.tap.around("dial "+target.Name, func() error {
		session, err = dial()
		return err
	})
	if err != nil {
		if session != nil {
			session.Close()
		}
		return nil, err
	}
	return tappedSession{tap: n.tap, name: target.Name, Session: session}, nil
}

func (n tappedNodes) Recovery() recovery.Nodes { return tappedRecovery{n.tap, n.inner.Recovery()} }

func (n tappedNodes) Member(target talos.Target) backup.Node { return n.inner.Member(target) }

func (n tappedNodes) Close() error { return n.inner.Close() }

// tappedSession is a session behind a tap.
type tappedSession struct {
	tap  *tap
	name string
	Session
}

func (s tappedSession) UUID(ctx context.Context) (uuid string, err error) {
	err = s.tap.around("UUID "+s.name, func() error { uuid, err = s.Session.UUID(ctx); return err })
	return uuid, err
}

func (s tappedSession) BootID(ctx context.Context) (id string, err error) {
	err = s.tap.around("BootID "+s.name, func() error { id, err = s.Session.BootID(ctx); return err })
	return id, err
}

func (s tappedSession) EtcdData(ctx context.Context) (data talos.Fact, err error) {
	err = s.tap.around("EtcdData "+s.name, func() error { data, err = s.Session.EtcdData(ctx); return err })
	return data, err
}

func (s tappedSession) ApplyConfig(ctx context.Context, request talos.ApplyRequest) error {
	return s.tap.around("ApplyConfig "+s.name, func() error { return s.Session.ApplyConfig(ctx, request) })
}

func (s tappedSession) Bootstrap(ctx context.Context) error {
	return s.tap.around("Bootstrap "+s.name, func() error { return s.Session.Bootstrap(ctx) })
}

func (s tappedSession) RemoveMember(ctx context.Context, id uint64) error {
	return s.tap.around("RemoveMember "+s.name, func() error { return s.Session.RemoveMember(ctx, id) })
}

func (s tappedSession) Reset(ctx context.Context, request talos.ResetRequest) error {
	return s.tap.around("Reset "+s.name, func() error { return s.Session.Reset(ctx, request) })
}

func (s tappedSession) Reboot(ctx context.Context, mode talos.RebootMode) error {
	return s.tap.around("Reboot "+s.name, func() error { return s.Session.Reboot(ctx, mode) })
}

func (s tappedSession) Shutdown(ctx context.Context, force bool) error {
	return s.tap.around("Shutdown "+s.name, func() error { return s.Session.Shutdown(ctx, force) })
}

func (s tappedSession) RestartService(ctx context.Context, id string) error {
	return s.tap.around("RestartService "+s.name, func() error { return s.Session.RestartService(ctx, id) })
}

func (s tappedSession) Defragment(ctx context.Context) error {
	return s.tap.around("Defragment "+s.name, func() error { return s.Session.Defragment(ctx) })
}

func (s tappedSession) ForfeitLeadership(ctx context.Context) error {
	return s.tap.around("ForfeitLeadership "+s.name, func() error { return s.Session.ForfeitLeadership(ctx) })
}

// tappedKubernetes is the Kubernetes API behind a tap.
type tappedKubernetes struct {
	tap   *tap
	inner Kubernetes
}

func (k tappedKubernetes) Nodes(ctx context.Context) ([]kube.Node, error) {
	if err := k.tap.alive(); err != nil {
		return nil, err
	}
	return k.inner.Nodes(ctx)
}

func (k tappedKubernetes) Cordon(ctx context.Context, node kube.Node, owner string) error {
	return k.tap.around("Cordon "+node.Name, func() error { return k.inner.Cordon(ctx, node, owner) })
}

func (k tappedKubernetes) Uncordon(ctx context.Context, node kube.Node, owner string) (lifted bool, err error) {
	err = k.tap.around("Uncordon "+node.Name, func() error { lifted, err = k.inner.Uncordon(ctx, node, owner); return err })
	return lifted, err
}

func (k tappedKubernetes) Evict(ctx context.Context, node kube.Node, options kube.EvictOptions) (drain kube.Drain, err error) {
	err = k.tap.around("Evict "+node.Name, func() error { drain, err = k.inner.Evict(ctx, node, options); return err })
	return drain, err
}

func (k tappedKubernetes) Revision(ctx context.Context) (int64, error) {
	if err := k.tap.alive(); err != nil {
		return 0, err
	}
	return k.inner.Revision(ctx)
}

func (k tappedKubernetes) Agents(ctx context.Context) ([]kube.Agent, error) {
	if err := k.tap.alive(); err != nil {
		return nil, err
	}
	return k.inner.Agents(ctx)
}

func (k tappedKubernetes) DeleteAgent(ctx context.Context, agent kube.Agent) error {
	return k.tap.around("DeleteAgent "+agent.Name, func() error { return k.inner.DeleteAgent(ctx, agent) })
}

func (k tappedKubernetes) DeleteNode(ctx context.Context, name, uid string) error {
	return k.tap.around("DeleteNode "+name, func() error { return k.inner.DeleteNode(ctx, name, uid) })
}

// tapped puts a tap between a config's agent and the world.
func tapped(config Config, p *tap) Config {
	openState, openNodes := config.OpenState, config.OpenNodes
	config.OpenState = func(cluster string, bundle *talos.Bundle) (StateStore, error) {
		inner, err := openState(cluster, bundle)
		if err != nil {
			return nil, err
		}
		return tappedState{tap: p, inner: inner}, nil
	}
	openKubernetes := config.OpenKubernetes
	config.OpenKubernetes = func(bundle *talos.Bundle, servers []string) (Kubernetes, error) {
		inner, err := openKubernetes(bundle, servers)
		if err != nil {
			return nil, err
		}
		return tappedKubernetes{tap: p, inner: inner}, nil
	}
	config.OpenNodes = func(bundle *talos.Bundle) Nodes { return tappedNodes{tap: p, inner: openNodes(bundle)} }
	if config.Backups != nil {
		backups := *config.Backups
		backups.Opener = tappedPlaces{tap: p, identities: config.Identities}
		config.Backups = &backups
	}
	return config
}

func TestADeadAgentReachesNothing(t *testing.T) {
	p := newTap(func(point string) bool { return point == "after Bootstrap cp-1" })
	sent := 0
	if err := p.around("Bootstrap cp-1", func() error { sent++; return nil }); !errors.Is(err, errDead) {
		t.Fatal(err)
	}
	if err := p.around("Reset cp-1", func() error { sent++; return nil }); !errors.Is(err, errDead) || sent != 1 {
		t.Fatal(err, sent)
	}
}
