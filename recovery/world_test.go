package recovery

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"ichor.maesh.dev/backup/keyspace"
	"ichor.maesh.dev/backup/revision"
	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/talos"
)

// turned is a clock that goes on by itself: whoever waits finds the time gone.
type turned struct{ *clocktesting.FakeClock }

func newTurned() turned {
	return turned{clocktesting.NewFakeClock(time.Date(2026, 11, 30, 3, 0, 0, 0, time.UTC))}
}

func (c turned) NewTimer(d time.Duration) clock.Timer {
	timer := c.FakeClock.NewTimer(d)
	c.Step(d)
	return timer
}

type turnedClocks struct{ clock turned }

func (c turnedClocks) Now() statefile.Instant {
	now := c.clock.Now()
	age := time.Duration(now.UnixNano())
	return statefile.Instant{Monotonic: age, Boot: age, Wall: now}
}

// cluster is an etcd: who is a member, and which of its data a machine must hold to run one of them.
type cluster struct {
	name    string
	members []talos.EtcdMember
}

func (c *cluster) index(id uint64) int {
	return slices.IndexFunc(c.members, func(m talos.EtcdMember) bool { return m.ID == id })
}

func (c *cluster) remove(id uint64) {
	c.members = slices.DeleteFunc(c.members, func(m talos.EtcdMember) bool { return m.ID == id })
}

// world is control planes as a test makes them, and everything that they accepted.
type world struct {
	mu       sync.Mutex
	clock    turned
	machines map[string]*box
	accepted []string
	// old is the etcd that was there before, recovered the one that came of the snapshot; each may have no member.
	old, recovered *cluster
	held           revision.Contents
	// nextID is the ID of the next member.
	nextID uint64
	// wrong are violations of what must never be.
	wrong   []string
	cordons map[string]string
	// died is called when a machine goes down.
	died func(name string)
}

// box is one machine.
type box struct {
	name, uuid  string
	maintenance bool
	off         bool
	boot        int
	// of is the etcd whose data it holds, nil where it holds none, and member which of its members it is.
	of      *cluster
	member  uint64
	upload  string // what was uploaded in this boot
	service talos.Service
	// server is until when an API server runs after its etcd is gone.
	server time.Time
	// resetIn is after how many looks a reset that was accepted takes effect; zero: none is under way.
	resetIn int
	// pods are on it; held are those that don't go.
	pods int
	held string
	// What goes wrong, each as often as it says: a reset, a recovery that is dropped, one that is refused, an upload that breaks.
	dropLeaves, dropResets, dropRecoveries, refuseRecoveries, breakUploads, damageUploads, tearUploads int
	slow                                                                                               int
	stuck                                                                                              bool // never joins
	// worker runs no etcd. kubelet is its kubelet, which runs where it isn't off.
	worker  bool
	kubelet testKubelet
	// nameless: it dies in its first tries to join, each time after it was added; learner: it reboots before it is promoted. Each as often
	// as it says.
	nameless, learner int
	// mute: what runs on it can't be asked. unsaid: its etcd gives no status, so that nobody knows which member it is.
	mute, unsaid bool
}

func newWorld(names ...string) *world {
	w := &world{clock: newTurned(), machines: map[string]*box{}, old: &cluster{name: "old"}, recovered: &cluster{name: "recovered"}, nextID: 1000,
		cordons: map[string]string{}, died: func(string) {}}
	for n, name := range names {
		w.machines[name] = &box{name: name, uuid: fmt.Sprintf("00000000-0000-4000-8000-%012d", n+1), boot: 1, slow: 2, pods: 2}
		w.machines[name].serve(w, "Preparing", "Running pre state")
		w.machines[name].kubelet.start(w)
	}
	w.held = revision.Contents{Counts: keyspace.Counts{Keys: 42}}
	return w
}

// runOld gives these machines an etcd that works, or one of which the others are gone for good where more members are named than machines hold.
func (w *world) runOld(members ...string) {
	for n, name := range members {
		w.old.members = append(w.old.members, talos.EtcdMember{ID: uint64(70 + n), Name: name, PeerURLs: []string{"https://" + name + ":2380"}})
		if b := w.machines[name]; b != nil && !b.maintenance {
			b.of, b.member = w.old, uint64(70+n)
			b.serve(w, "Running", "started")
		}
	}
}

func (b *box) serve(w *world, state, message string) {
	w.clock.Step(time.Millisecond)
	b.service = talos.Service{ID: "etcd", State: state, Message: message, Changed: w.clock.Now()}
}

func (b *box) url() string { return "https://" + b.name + ":2380" }

func (b *box) fingerprint() string { return fmt.Sprintf("fingerprint of %s, boot %d", b.name, b.boot) }

func (b *box) bootID() string { return fmt.Sprintf("%s-boot-%d", b.name, b.boot) }

// runs says whether a machine runs a member of an etcd now.
func (b *box) runs(c *cluster) bool {
	return b.of == c && !b.off && c.index(b.member) >= 0
}

// answers says whether an etcd has a quorum.
func (w *world) answers(c *cluster) bool {
	voters, up := 0, 0
	for _, m := range c.members {
		if m.Learner {
			continue
		}
		voters++
		for _, b := range w.machines {
			if b.runs(c) && b.member == m.ID {
				up++
			}
		}
	}
	return voters > 0 && up > voters/2
}

// rebooted takes a machine into its next boot.
func (b *box) rebooted(w *world) {
	b.boot++
	b.upload, b.server = "", time.Time{}
	b.kubelet.start(w)
	if b.of == nil {
		b.serve(w, "Preparing", "Running pre state")
	} else {
		b.serve(w, "Running", "started")
	}
	w.died(b.name)
}

// tick lets what is under way go on: it is called at each look.
func (w *world) tick(b *box) {
	if w.answers(w.old) && w.answers(w.recovered) {
		w.wrong = append(w.wrong, fmt.Sprintf("two etcds answer after %v", w.accepted))
	}
	if b.resetIn > 0 {
		if b.resetIn--; b.resetIn == 0 {
			b.of, b.member = nil, 0
			b.rebooted(w)
		}
		return
	}
	if b.of != nil || b.maintenance || b.off || b.stuck || b.service.State != "Preparing" {
		w.promote(b)
		return
	}
	for _, c := range []*cluster{w.recovered, w.old} {
		if w.answers(c) {
			w.join(b, c)
			return
		}
	}
}

// join adds a machine as Talos does: a member of its own name goes first, and there is one learner at a time.
func (w *world) join(b *box, c *cluster) {
	c.members = slices.DeleteFunc(c.members, func(m talos.EtcdMember) bool { return m.Name == b.name })
	if slices.ContainsFunc(c.members, func(m talos.EtcdMember) bool {
		return m.Learner || m.Name == "" || slices.Contains(m.PeerURLs, b.url())
	}) {
		return
	}
	w.nextID++
	member := talos.EtcdMember{ID: w.nextID, Name: b.name, PeerURLs: []string{b.url()}, Learner: true}
	if b.nameless > 0 {
		b.nameless--
		member.Name = ""
		c.members = append(c.members, member)
		return
	}
	c.members = append(c.members, member)
	b.of, b.member = c, member.ID
	b.serve(w, "Running", "started")
}

// promote makes a learner a voter, unless it lost the boot in which it joined.
func (w *world) promote(b *box) {
	if b.of == nil || b.of.index(b.member) < 0 || !w.answers(b.of) {
		return
	}
	m := &b.of.members[b.of.index(b.member)]
	if m.Learner && b.learner > 0 {
		return
	}
	m.Learner = false
}

func (w *world) Observe(_ context.Context, to talos.Target) talos.Observation {
	w.mu.Lock()
	defer w.mu.Unlock()
	b := w.machines[to.Name]
	w.tick(b)
	o := talos.Observation{At: w.clock.Now()}
	if b.off {
		o.Problem = "connection refused"
		return o
	}
	o.Mode, o.UUID, o.Stage, o.MachineType = talos.ModeConfigured, b.uuid, "running", "controlplane"
	if b.maintenance {
		o.Mode, o.Stage, o.MachineType, o.Fingerprint = talos.ModeMaintenance, "maintenance", "", b.fingerprint()
		return o
	}
	o.ActiveDigest, o.PersistentDigest = "digest", "digest"+b.kubelet.staged
	o.BootID, o.Hostname, o.Services, o.Etcd.Data = b.bootID(), b.name, []talos.Service{b.service, b.kubelet.service}, talos.No
	if b.worker {
		o.MachineType, o.Services, o.Etcd.Data = "worker", o.Services[1:], talos.Unknown
		return o
	}
	o.Etcd.Service, o.Etcd.ServiceMessage, o.Etcd.ServiceHealthy = b.service.State, b.service.Message, talos.No
	if b.of == nil {
		return o
	}
	o.Etcd.Data, o.Etcd.MemberID = talos.Yes, b.member
	if b.unsaid {
		o.Etcd.MemberID = 0
	}
	at := b.of.index(b.member)
	if at < 0 || !w.answers(b.of) || b.service.State != "Running" {
		return o
	}
	o.Etcd.Learner = b.of.members[at].Learner
	o.Etcd.Members = slices.Clone(b.of.members)
	if !o.Etcd.Learner {
		o.Etcd.ServiceHealthy = talos.Yes
	}
	return o
}

func (w *world) dial(to talos.Target, maintenance bool) (*conn, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	b := w.machines[to.Name]
	if b.off || b.maintenance != maintenance {
		return nil, fmt.Errorf("%s can't be reached", to.Name)
	}
	return &conn{world: w, box: b, boot: b.boot}, nil
}

// count is how often a call was accepted.
func (w *world) count(call string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 0
	for _, one := range w.accepted {
		if one == call || strings.HasPrefix(one, call+" ") {
			n++
		}
	}
	return n
}
