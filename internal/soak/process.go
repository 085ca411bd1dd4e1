package soak

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/utils/clock"

	"ichor.maesh.dev/backup"
	"ichor.maesh.dev/backup/keeper"
	"ichor.maesh.dev/internal/scrub"
	"ichor.maesh.dev/internal/sealed"
	"ichor.maesh.dev/operation"
	"ichor.maesh.dev/reconcile"
	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/statefile/storetest"
	"ichor.maesh.dev/talos"
)

// errDead is what everything answers to a process that was killed: nothing of it reaches the world any more.
var errDead = errors.New("this process is dead")

// host is what an agent runs on: its network, its clock, its clone of the repository. Processes come and go on it.
type host struct {
	w      *World
	name   string
	number int

	// The world's lock guards the rest.
	links map[string]*link
	// store is how the store answers: "", unavailable, hangs, flaky, stale.
	store string
	// away is why Git can't be reached; empty when it can. good is the commit that was marked good last.
	away, good string
	ahead      time.Duration
	process    *process
	started    int
	lodging
}

// link is the network between a host and a machine: "", refused, hangs, slow. lose is how many further answers to changing calls are lost.
type link struct {
	mode string
	lose int
}

func (h *host) link(ip string) *link {
	l := h.links[ip]
	if l == nil {
		l = &link{}
		h.links[ip] = l
	}
	return l
}

// process is one run of an agent.
type process struct {
	w     *World
	host  *host
	id    string
	agent *reconcile.Agent
	stop  context.CancelFunc
	done  chan struct{}
	log   *logBuffer
	// started is when it was, on the machine of its host then.
	started time.Time
	on      *machine

	mu     sync.Mutex
	counts map[string]uint64
	dead   bool
	// thaw is closed when a frozen process goes on; nil: it isn't frozen.
	thaw chan struct{}
	// left is how many further points it lives or runs until what is due at the last of them; nil: nothing is.
	left int
	due  func(point string)
}

// logBuffer collects a log.
type logBuffer struct {
	mu   sync.Mutex
	text strings.Builder
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// point is where a process touches the world: it takes its time, waits while the process is frozen, and fails once it is dead.
func (p *process) point(ctx context.Context, target, name string) error {
	p.mu.Lock()
	p.counts[target]++
	n := p.counts[target]
	p.mu.Unlock()
	time.Sleep(p.w.span(time.Millisecond, 30*time.Millisecond, "latency", p.id, target, n))
	p.mu.Lock()
	if p.due != nil {
		if p.left--; p.left <= 0 {
			due := p.due
			p.due = nil
			p.mu.Unlock()
			due(name)
			p.mu.Lock()
		}
	}
	thaw, dead := p.thaw, p.dead
	p.mu.Unlock()
	if thaw != nil {
		<-thaw
		p.mu.Lock()
		dead = p.dead
		p.mu.Unlock()
	}
	if dead {
		return errDead
	}
	return nil
}

// kill ends the process: nothing of it reaches the world any more.
func (p *process) kill(how string) {
	p.mu.Lock()
	was := p.dead
	p.dead = true
	thaw := p.thaw
	p.thaw = nil
	p.mu.Unlock()
	if was {
		return
	}
	p.w.say("%s dies %s", p.id, how)
	p.w.befell("agent killed")
	if thaw != nil {
		close(thaw)
	}
	p.stop()
}

// freeze lets the process wait at its next call into the world.
func (p *process) freeze(how string, d time.Duration) {
	p.mu.Lock()
	if p.dead || p.thaw != nil {
		p.mu.Unlock()
		return
	}
	thaw := make(chan struct{})
	p.thaw = thaw
	p.mu.Unlock() // the world's lock comes before a process's
	p.w.say("%s freezes %s for %s", p.id, how, d.Round(time.Second))
	p.w.befell("agent frozen")
	go func() {
		select {
		case <-time.After(d):
		case <-thaw:
			return // it was killed meanwhile
		}
		p.mu.Lock()
		mine := p.thaw == thaw
		if mine {
			p.thaw = nil
		}
		p.mu.Unlock()
		if mine {
			p.w.say("%s goes on", p.id)
			close(thaw)
		}
	}()
}

// after lets something happen to the process at its nth point from now.
func (p *process) after(n int, what func(point string)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.left, p.due = n, what
}

func (p *process) isDead() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.dead
}

// hostClock is a host's wall clock, and the world's time to wait by.
type hostClock struct {
	clock.RealClock
	h *host
}

func (c hostClock) Now() time.Time {
	c.h.w.mu.Lock()
	defer c.h.w.mu.Unlock()
	return time.Now().Add(c.h.ahead)
}

func (c hostClock) Since(then time.Time) time.Duration { return c.Now().Sub(then) }

// hostClocks are the three clocks of a host. Only the wall clock is ever set.
type hostClocks struct{ h *host }

func (c hostClocks) Now() statefile.Instant {
	since := time.Since(epoch)
	return statefile.Instant{Monotonic: since, Boot: since, Wall: hostClock{h: c.h}.Now().Round(0)}
}

// start runs an agent on the host.
func (h *host) start() *process {
	h.w.mu.Lock()
	h.started++
	id := fmt.Sprintf("%s.%d", h.name, h.started)
	h.w.mu.Unlock()
	ctx, stop := context.WithCancel(context.Background())
	p := &process{w: h.w, host: h, id: id, stop: stop, done: make(chan struct{}), counts: map[string]uint64{}, log: &logBuffer{}, started: time.Now(), on: h.on}
	config := p.config()
	if h.w.adapt != nil {
		config = h.w.adapt(p, config)
	}
	if h.w.spoil != nil {
		h.w.spoil(p, &config)
	}
	p.agent = reconcile.New(config)
	h.w.mu.Lock()
	h.process = p
	h.w.monitor.processes = append(h.w.monitor.processes, p)
	h.w.mu.Unlock()
	h.w.say("%s starts", id)
	go func() {
		defer close(p.done)
		time.Sleep(h.w.span(time.Millisecond, time.Second, "start", id))
		_ = p.agent.Run(ctx)
	}()
	return p
}

// agentTiming is an agent's own, but that it looks less often: what is in between shows no more, and thousands of histories are to be run.
func agentTiming() reconcile.Timing {
	timing := reconcile.DefaultTiming()
	timing.Busy, timing.Steady, timing.Held = 5*time.Second, 30*time.Second, 30*time.Second
	return timing
}

func (p *process) config() reconcile.Config {
	h, w := p.host, p.w
	store := p.store()
	clocks, wall := hostClocks{h}, hostClock{h: h}
	lease, err := statefile.NewLease(store, statefile.LeaseOptions{Holder: p.id, Clocks: clocks, Clock: wall})
	if err != nil {
		panic(err)
	}
	scrubber := scrub.New()
	return reconcile.Config{
		Source: &clone{p: p}, Validator: w.keys.Validator,
		// The clone answers on the half minute, so that the jitter of the polls changes nothing.
		PollInterval: 25 * time.Second,
		Leases:       []reconcile.ShardLease{lease}, Mark: statefile.LocationHash(store), Timing: agentTiming(), Clock: wall, Clocks: clocks,
		TrustedNetworks: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, Scrubber: scrubber, Log: slog.New(scrubber.Handler(slog.NewTextHandler(p.log, nil))),
		Identities: func() (*sealed.Identities, error) { return w.keys.Identities, nil },
		Signers:    func() (*operation.AllowedSigners, error) { return w.keys.Signers, nil },
		OpenState: func(name string, bundle *talos.Bundle) (reconcile.StateStore, error) {
			material := bundle.SealingMaterial()
			sealer, err := statefile.NewSealer(material.ClusterID, material.EncryptionSecret, "")
			if err != nil {
				return nil, err
			}
			return statefile.OpenCluster(store, statefile.Options{Name: name, Sealer: sealer, WriterID: p.id, Clock: wall})
		},
		OpenNodes: func(bundle *talos.Bundle) reconcile.Nodes {
			return agentNodes{p: p, c: w.clusterOf(bundle)}
		},
		OpenKubernetes: func(bundle *talos.Bundle, _ []string) (reconcile.Kubernetes, error) {
			return agentKubernetes{p: p, c: w.clusterOf(bundle)}, nil
		},
		Backups: p.backups(), NodeName: h.nodeName(),
		Inbox: func(context.Context, string) ([]statefile.InboxFile, bool, error) { return nil, false, nil },
	}
}

// backups is what it takes backups with, in a folder of its own; nil where no cluster of the history has any.
func (p *process) backups() *reconcile.Backups {
	if p.w.spools == "" {
		return nil
	}
	spool, err := backup.OpenSpool(filepath.Join(p.w.spools, p.id))
	if err != nil {
		panic(err)
	}
	return &reconcile.Backups{Opener: p, Spool: spool, Limits: keeper.NewLimits(1)}
}

func (w *World) clusterOf(bundle *talos.Bundle) *cluster {
	for _, c := range w.clusters {
		if c.keys.ID == schema.ClusterID(bundle.ClusterID()) {
			return c
		}
	}
	panic("a bundle of no cluster")
}

// store is the bucket as this process reaches it.
func (p *process) store() statefile.Store {
	return p.through(&watchedStore{Memory: p.w.store, p: p}, "store")
}

// through is the way from this process to a bucket, with all that may befall it.
func (p *process) through(bucket statefile.Store, at string) *agentStore {
	var calls atomic.Uint64
	faulty := storetest.NewFaulty(bucket, func(call storetest.Call) storetest.Fault {
		lot := p.w.draw(at, p.id, calls.Add(1)) % 100
		p.w.mu.Lock()
		mode := p.host.store
		p.w.mu.Unlock()
		switch mode {
		case "unavailable":
			p.w.befell("store 503")
			return storetest.Unavailable
		case "stale":
			if call.Op == storetest.List {
				p.w.befell("stale listing")
				return storetest.StaleList
			}
		case "flaky":
			return p.flaky(call, lot)
		}
		return storetest.None
	})
	return &agentStore{Store: faulty, p: p, at: at}
}

func (p *process) flaky(call storetest.Call, lot uint64) storetest.Fault {
	fault, name := storetest.None, ""
	switch {
	case call.Op == storetest.Put && lot < 12:
		fault, name = storetest.LostReply, "store: acknowledgement lost"
	case call.Op == storetest.Put && lot < 20:
		fault, name = storetest.LostRequest, "store: request lost"
	case call.Op == storetest.Put && lot < 28:
		fault, name = storetest.LateRequest, "store: request late"
	case call.Op == storetest.Put && lot < 34:
		fault, name = storetest.ConflictAfterEffect, "store: conflict with oneself"
	case call.Op == storetest.Get && lot < 10:
		fault, name = storetest.ShortRead, "store: short read"
	case call.Op == storetest.List && lot < 20:
		fault, name = storetest.StaleList, "stale listing"
	}
	if name != "" {
		p.w.befell(name)
	}
	return fault
}
