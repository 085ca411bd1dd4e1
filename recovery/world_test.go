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

// world is control planes as a test makes them, and everything that they accepted.
type world struct {
	mu       sync.Mutex
	clock    turned
	machines map[string]*box
	accepted []string
	// members is the etcd that recovered, by machine; old the one that was there before.
	members, old map[string]talos.EtcdMember
	// unlike makes the counted keys differ.
	held revision.Contents
}

// box is one machine.
type box struct {
	name, uuid  string
	maintenance bool
	off         bool
	boot        int
	data        bool
	upload      string // what was uploaded in this boot
	service     talos.Service
	// resetIn is after how many looks a reset that was accepted takes effect; zero: none is under way.
	resetIn int
	// What goes wrong, each as often as it says: a reset, a recovery that is dropped, one that is refused, an upload that breaks.
	dropLeaves, dropResets, dropRecoveries, refuseRecoveries, breakUploads, damageUploads, tearUploads int
	slow                                                                                               int
	stuck                                                                                              bool // never joins
	// worker runs no etcd. kubelet is its kubelet, which runs where it isn't off.
	worker  bool
	kubelet testKubelet
}

func newWorld(names ...string) *world {
	w := &world{clock: newTurned(), machines: map[string]*box{}, members: map[string]talos.EtcdMember{}, old: map[string]talos.EtcdMember{}}
	for n, name := range names {
		w.machines[name] = &box{name: name, uuid: fmt.Sprintf("00000000-0000-4000-8000-%012d", n+1), boot: 1, slow: 2}
		w.machines[name].serve(w, "Preparing", "Running pre state")
		w.machines[name].kubelet.start(w)
	}
	w.held = revision.Contents{Counts: keyspace.Counts{Keys: 42}}
	return w
}

func (b *box) serve(w *world, state, message string) {
	w.clock.Step(time.Millisecond)
	b.service = talos.Service{ID: "etcd", State: state, Message: message, Changed: w.clock.Now()}
}

func (b *box) url() string { return "https://" + b.name + ":2380" }

func (b *box) fingerprint() string { return fmt.Sprintf("fingerprint of %s, boot %d", b.name, b.boot) }

func (b *box) bootID() string { return fmt.Sprintf("%s-boot-%d", b.name, b.boot) }

// rebooted is a machine in its next boot.
func (b *box) rebooted(w *world) {
	b.boot++
	b.upload = ""
	b.kubelet.start(w)
	switch {
	case b.data:
		b.serve(w, "Running", "Health check successful")
		b.service.Healthy = talos.Yes
	default:
		b.serve(w, "Preparing", "Running pre state")
	}
}

// tick lets what is under way go on: it is called at each look.
func (w *world) tick(b *box) {
	if b.resetIn > 0 {
		if b.resetIn--; b.resetIn == 0 {
			b.data = false
			delete(w.members, b.name)
			delete(w.old, b.name)
			b.rebooted(w)
		}
		return
	}
	if len(w.members) > 0 && !b.data && !b.maintenance && !b.off && !b.stuck && b.service.State == "Preparing" {
		b.data = true
		w.members[b.name] = talos.EtcdMember{ID: uint64(1000*b.boot) + uint64(len(w.members)), Name: b.name, PeerURLs: []string{b.url()}}
		b.serve(w, "Running", "Health check successful")
		b.service.Healthy = talos.Yes
	}
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
	o.BootID, o.Services, o.Etcd.Data = b.bootID(), []talos.Service{b.service, b.kubelet.service}, talos.No
	if b.worker {
		o.MachineType, o.Services, o.Etcd.Data = "worker", o.Services[1:], talos.Unknown
		return o
	}
	o.Etcd.Service, o.Etcd.ServiceMessage, o.Etcd.ServiceHealthy = b.service.State, b.service.Message, b.service.Healthy
	if b.data {
		o.Etcd.Data = talos.Yes
	}
	for _, cluster := range []map[string]talos.EtcdMember{w.members, w.old} {
		if member, in := cluster[b.name]; in {
			o.Etcd.MemberID = member.ID
			for _, one := range cluster {
				o.Etcd.Members = append(o.Etcd.Members, one)
			}
		}
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
		if data = talos.No; c.box.data {
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

func (c *conn) LeaveEtcd(context.Context) error {
	return c.accept("leave", func() error {
		if len(c.world.old) == 1 {
			return status.Error(codes.Unknown, "re-configuration failed due to not enough started members")
		}
		if c.box.dropLeaves > 0 {
			c.box.dropLeaves--
			return status.Error(codes.Unknown, "etcdserver: unhealthy cluster")
		}
		delete(c.world.old, c.box.name)
		c.box.data = false
		c.box.serve(c.world, "Finished", "Service finished successfully")
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
	if c.box.data {
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
			b.data, b.upload = true, ""
			b.serve(c.world, "Failed", "expected sha256 [1], got [2]")
		default:
			id, err := talos.RestoredMemberID([]string{b.url()})
			if err != nil {
				return err
			}
			b.data, b.upload = true, ""
			c.world.members[b.name] = talos.EtcdMember{ID: id, Name: b.name, PeerURLs: []string{b.url()}}
			b.serve(c.world, "Running", "Health check successful")
			b.service.Healthy = talos.Yes
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

func (c *mortalConn) UploadSnapshot(ctx context.Context, snapshot io.Reader) error {
	return c.call("upload", func() error { return c.conn.UploadSnapshot(ctx, snapshot) })
}

func (c *mortalConn) RecoverEtcd(ctx context.Context) error {
	return c.call("recover", func() error { return c.conn.RecoverEtcd(ctx) })
}

// stage is a world with a marker's store.
type stage struct {
	*world
	t      *testing.T
	store  *storetest.Memory
	sealer *statefile.Sealer
	file   string
	wipe   []string
	holder string
	said   []string
	// kubernetes is nil where no way to it is known.
	kubernetes *testCluster
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
	m.Target, m.Holder = m.Machines[0].Name, s.holder
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
		Say:   func(line string) { s.said = append(s.said, line) },
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
	}
	return r.Begin(ctx, m)
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

// requireWhole says that there is one etcd, of all machines, recovered once from the snapshot on the first.
func (s *stage) requireWhole(m *Marker) {
	s.t.Helper()
	require.Equal(s.t, PhaseDone, m.Phase)
	require.Empty(s.t, s.old)
	require.Len(s.t, s.members, len(m.Machines))
	require.True(s.t, s.members[m.Target].Restored())
	for _, one := range s.accepted {
		if strings.HasPrefix(one, "recover ") || strings.HasPrefix(one, "upload ") {
			require.True(s.t, strings.HasSuffix(one, " "+m.Target), one)
		}
	}
}
