package recovery

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"ichor.maesh.dev/backup"
	"ichor.maesh.dev/backup/keyspace"
	"ichor.maesh.dev/backup/revision"
	"ichor.maesh.dev/internal/scrub"
	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/statefile/storetest"
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
	// mute: what runs on it can't be asked.
	mute bool
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

// conn is a connection to one boot.
type conn struct {
	world *world
	box   *box
	boot  int
}

// alive runs f if the connection's boot still runs.
func (c *conn) alive(f func() error) error {
	c.world.mu.Lock()
	defer c.world.mu.Unlock()
	if c.box.boot != c.boot || c.box.off {
		return status.Error(codes.Unavailable, "the connection broke")
	}
	return f()
}

func (c *conn) accept(call string, f func() error) error {
	return c.alive(func() error {
		c.world.accepted = append(c.world.accepted, call+" "+c.box.name)
		return f()
	})
}

func (c *conn) Maintenance() bool   { return c.box.maintenance }
func (c *conn) Fingerprint() string { return c.box.fingerprint() }
func (c *conn) Close() error        { return nil }

func (c *conn) UUID(context.Context) (string, error) {
	return c.box.uuid, c.alive(func() error { return nil })
}

func (c *conn) BootID(context.Context) (string, error) {
	return c.box.bootID(), c.alive(func() error { return nil })
}

func (c *conn) EtcdData(context.Context) (data talos.Fact, err error) {
	err = c.alive(func() error {
		if data = talos.No; c.box.of != nil {
			data = talos.Yes
		}
		return nil
	})
	return data, err
}

func (c *conn) Services(context.Context) (services []talos.Service, err error) {
	err = c.alive(func() error { services = []talos.Service{c.box.service, c.box.kubelet.service}; return nil })
	return services, err
}

func (c *conn) EtcdSnapshot(context.Context) (io.ReadCloser, error) {
	return io.NopCloser(strings.NewReader("")), c.alive(func() error { return nil })
}

func (c *conn) Members(context.Context) (members []talos.EtcdMember, err error) {
	err = c.alive(func() error { members = slices.Clone(c.box.of.members); return nil })
	return members, err
}

func (c *conn) APIServer(context.Context) (server talos.Fact, err error) {
	err = c.alive(func() error {
		switch {
		case c.box.mute:
			return status.Error(codes.Unavailable, "the container runtime doesn't answer")
		case c.world.clock.Now().Before(c.box.server):
			server = talos.Yes
		default:
			server = talos.No
		}
		return nil
	})
	return server, err
}

func (c *conn) ApplyConfig(context.Context, talos.ApplyRequest) error {
	return c.accept("config", func() error {
		c.box.maintenance = false
		c.box.rebooted(c.world)
		return nil
	})
}

func (c *conn) Reset(context.Context, talos.ResetRequest) error {
	return c.accept("reset", func() error {
		if c.box.dropResets > 0 {
			c.box.dropResets--
			return nil
		}
		if c.box.resetIn > 0 {
			c.world.wrong = append(c.world.wrong, c.box.name+" was told twice in one boot to reset")
		}
		c.box.resetIn = c.box.slow
		return nil
	})
}

func (c *conn) Reboot(context.Context, talos.RebootMode) error {
	return c.accept("reboot", func() error { c.box.rebooted(c.world); return nil })
}

func (c *conn) RestartService(_ context.Context, id string) error {
	if c.box.kubelet.refuse > 0 {
		c.box.kubelet.refuse--
		return status.Error(codes.FailedPrecondition, "the service is not up yet")
	}
	return c.accept("restart "+id+" on", func() error {
		if !c.box.kubelet.drop {
			c.box.kubelet.start(c.world)
		}
		return nil
	})
}

func (c *conn) RemoveMember(_ context.Context, id uint64) error {
	return c.accept("remove-member", func() error {
		if !c.world.answers(c.box.of) {
			return status.Error(codes.DeadlineExceeded, "no quorum")
		}
		c.box.of.remove(id)
		for _, b := range c.world.machines {
			b.learner = max(b.learner-1, 0)
		}
		return nil
	})
}

func (c *conn) LeaveEtcd(context.Context) error {
	return c.accept("leave", func() error {
		old, b := c.world.old, c.box
		switch {
		case b.of != old || !c.world.answers(old):
			return status.Error(codes.Unknown, "etcdserver: no leader")
		case len(old.members) == 1:
			return status.Error(codes.Unknown, "re-configuration failed due to not enough started members")
		case b.dropLeaves > 0:
			b.dropLeaves--
			return status.Error(codes.Unknown, "etcdserver: unhealthy cluster")
		}
		old.remove(b.member)
		b.of, b.member, b.server = nil, 0, c.world.clock.Now().Add(40*time.Second)
		b.serve(c.world, "Finished", "Service finished successfully")
		return nil
	})
}

func (c *conn) UploadSnapshot(_ context.Context, snapshot io.Reader) error {
	content, err := io.ReadAll(snapshot)
	if err != nil {
		return err
	}
	if c.box.breakUploads > 0 {
		c.box.breakUploads--
		return status.Error(codes.Unavailable, "the connection broke")
	}
	return c.accept("upload", func() error {
		c.box.upload = string(content)
		if c.box.damageUploads > 0 {
			c.box.damageUploads--
			c.box.upload = "damaged"
		}
		if c.box.tearUploads > 0 {
			c.box.tearUploads--
			c.box.upload = ""
		}
		return nil
	})
}

func (c *conn) RecoverEtcd(context.Context) error {
	if c.box.refuseRecoveries > 0 {
		c.box.refuseRecoveries--
		return status.Error(codes.FailedPrecondition, "time is not in sync yet")
	}
	if c.box.of != nil {
		return status.Error(codes.AlreadyExists, "etcd data directory is not empty")
	}
	return c.accept("recover", func() error {
		b := c.box
		switch {
		case b.dropRecoveries > 0:
			b.dropRecoveries--
		case b.upload == "":
			b.serve(c.world, "Failed", "stat /var/lib/etcd.snapshot: no such file or directory")
		case b.upload == "damaged":
			b.of, b.upload = &cluster{name: "damaged"}, ""
			b.serve(c.world, "Failed", "expected sha256 [1], got [2]")
		default:
			id, err := talos.RestoredMemberID([]string{b.url()})
			if err != nil {
				return err
			}
			if len(c.world.recovered.members) > 0 {
				c.world.wrong = append(c.world.wrong, "a second etcd was recovered beside the first")
			}
			b.of, b.member, b.upload = c.world.recovered, id, ""
			c.world.recovered.members = []talos.EtcdMember{{ID: id, Name: b.name, PeerURLs: []string{b.url()}}}
			b.serve(c.world, "Running", "started")
		}
		return nil
	})
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

// fenceFunc is told of each intent.
type fenceFunc func(Intent)

func (f fenceFunc) Hold(context.Context) error              { return nil }
func (f fenceFunc) Check(context.Context) error             { return nil }
func (f fenceFunc) Begin(_ context.Context, i Intent) error { f(i); return nil }

// stage is a world with a marker's store.
type stage struct {
	*world
	t      *testing.T
	store  *storetest.Memory
	sealer *statefile.Sealer
	file   string
	wipe   []string
	holder string
	own    string
	target string
	said   []string
	// kubernetes is nil where no way to it is known.
	kubernetes *testCluster
	cancel     bool
	// resumed: a person has each process go on.
	resumed bool
}

func newStage(t *testing.T, w *world, wipe ...string) *stage {
	t.Helper()
	sealer, err := statefile.NewSealer("cluster", "secret", "")
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "snapshot.db")
	require.NoError(t, os.WriteFile(file, []byte("the snapshot"), 0o600))
	return &stage{world: w, t: t, store: storetest.NewMemory(), sealer: sealer, file: file, wipe: wipe}
}

// marker is a new recovery of all machines of the world on the first.
func (s *stage) marker() *Marker {
	m := &Marker{ID: "recover:0123456789abcdef", Cluster: Cluster{Name: "prod", ID: "1f3a9c0d2b4e6f78"}, Wipe: s.wipe,
		Snapshot: Snapshot{Name: "snapshot.db", Revision: 7, Keys: 42, Raised: 1_000_000_007}}
	for name, b := range s.machines {
		list := &m.Machines
		if b.worker {
			list = &m.Workers
		}
		*list = append(*list, Machine{Name: name, Endpoint: name, UUID: b.uuid})
	}
	for _, list := range [][]Machine{m.Machines, m.Workers} {
		slices.SortFunc(list, func(a, b Machine) int { return strings.Compare(a.Name, b.Name) })
	}
	m.Target, m.Holder, m.Own = nameOr(s.target, m.Machines[0].Name), s.holder, s.own
	return m
}

// process is a run of the command that dies at one of its points, or at none.
func (s *stage) process(at int) (*Run, *mortal, context.Context) {
	s.t.Helper()
	ctx, cancel := context.WithCancel(s.t.Context())
	s.t.Cleanup(cancel)
	p := &mortal{at: at, end: cancel}
	r := &Run{
		Nodes: mortalNodes{s.world, p}, Marker: mortalMarker{backup.NewMarker(s.store, s.sealer), p}, Fence: NoFence{},
		Prepared: &revision.Prepared{Path: s.file}, Clock: s.clock, Clocks: turnedClocks{s.clock}, Timing: DefaultTiming(), Scrubber: scrub.New(),
		Config: func(name string, seen talos.Observation) (Config, string) {
			return Config{Bytes: []byte("config of " + name), Digest: "digest"}, ""
		},
		Count: func(context.Context, io.Reader, int64) (revision.Contents, error) { return s.held, nil },
		Say:   func(line string) { s.said = append(s.said, line) }, Cancel: s.cancel,
	}
	if s.kubernetes != nil {
		r.Kubernetes = mortalKubernetes{s.kubernetes, p}
	}
	return r, p, ctx
}

// begin does what the command does at its start: a new marker, or the one that is there.
func (s *stage) begin(ctx context.Context, r *Run) error {
	content, err := r.Marker.Read(ctx)
	if err != nil {
		return err
	}
	m := s.marker()
	if content != nil {
		if m, err = DecodeMarker(content); err != nil {
			return err
		}
		if m.Phase == PhaseDone {
			r.marker = m
			return nil
		}
		if s.resumed {
			m.Resume(s.clock.Now(), m.Pause+1)
		}
	}
	return r.Begin(ctx, m)
}

// read gives the marker as it stands in the store.
func (s *stage) read() (*Marker, error) {
	content, err := backup.NewMarker(s.store, s.sealer).Read(s.t.Context())
	if err != nil {
		return nil, err
	}
	return DecodeMarker(content)
}

// run is a whole run.
func (s *stage) run(at int) (*Marker, int, error) {
	r, p, ctx := s.process(at)
	if err := s.begin(ctx, r); err != nil {
		return nil, p.points, err
	}
	m, err := r.Go(ctx)
	return m, p.points, err
}

// requireWhole says that there is one etcd, of all machines, recovered once from the snapshot on the target.
func (s *stage) requireWhole(m *Marker) {
	s.t.Helper()
	require.Equal(s.t, PhaseDone, m.Phase)
	require.Empty(s.t, s.wrong)
	require.False(s.t, m.Cancelled)
	require.Len(s.t, s.recovered.members, len(m.Machines))
	for _, one := range m.Machines {
		require.True(s.t, s.machines[one.Name].runs(s.recovered), one.Name)
		require.Empty(s.t, s.cordons[one.Name])
	}
	at := slices.IndexFunc(s.recovered.members, func(member talos.EtcdMember) bool { return member.Name == m.Target })
	require.True(s.t, s.recovered.members[at].Restored())
	for _, one := range s.accepted {
		if strings.HasPrefix(one, "recover ") || strings.HasPrefix(one, "upload ") {
			require.True(s.t, strings.HasSuffix(one, " "+m.Target), one)
		}
	}
}

// requireOld says that there is the old etcd, of all machines, and that nothing was lost.
func (s *stage) requireOld(m *Marker) {
	s.t.Helper()
	require.Equal(s.t, PhaseDone, m.Phase)
	require.Empty(s.t, s.wrong)
	require.True(s.t, m.Cancelled)
	require.Len(s.t, s.old.members, len(s.machines))
	for name, b := range s.machines {
		require.True(s.t, b.runs(s.old), name)
		require.Empty(s.t, s.cordons[name])
	}
	require.Zero(s.t, s.count("reset")+s.count("upload")+s.count("recover"))
}
