package machined

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"

	"ichor.maesh.dev/internal/talossim/apid"
	"ichor.maesh.dev/internal/talossim/world"
)

// Front is the machine's port 50000 as its operating system opens and closes it.
type Front interface {
	Start(ctx context.Context) error
	Stop()
	Cut()
	Answered(ctx context.Context, call *apid.Call)
}

// Config is the hardware that boots, and its surroundings. Everything is required but the marked.
type Config struct {
	// Name is the machine's name in logs.
	Name    string
	Address netip.Addr
	UUID    string
	// Container is the container platform instead of metal.
	Container bool
	// HostBootID is the boot ID of the container's host; metal draws its own.
	HostBootID string
	Disks      []Disk
	Store      *Store
	World      *world.World
	Front      Front
	Journal    *apid.Journal
	// Faults may be nil.
	Faults *Faults
	// LooseMembership switches etcd's strict checks of member changes off.
	LooseMembership bool
	// ForeignKubernetes is an API server, and kubelets, of somebody else's.
	ForeignKubernetes bool
	Pace              Pace
	Log               *slog.Logger
}

// Disk is one of the machine's disks.
type Disk struct {
	DevPath, Model, Serial, Transport string
	Size                              uint64
	Readonly                          bool
	Partitions                        []Partition
}

// Partition is something on a disk that Talos didn't put there.
type Partition struct {
	Label, Filesystem string
	Size              uint64
}

// Outcome is how a boot ended.
type Outcome int

// The ways a boot ends.
const (
	// Lost: the power went.
	Lost Outcome = iota
	// Reboot: the machine starts again through its firmware.
	Reboot
	// Kexec: the machine starts again without its firmware.
	Kexec
	// PowerOff: the machine switched itself off.
	PowerOff
)

// kernelTime is from the kernel's start to machined's.
const kernelTime = 4 * time.Second

// answerTime is what an answer has, whatever the scale, from the front to its caller before anything that follows from the call begins.
const answerTime = 50 * time.Millisecond

// Machine is one boot of a machine.
type Machine struct {
	cfg      Config
	pace     Pace
	log      *slog.Logger
	bootID   string
	bootTime time.Time

	ctx    context.Context // the boot
	cancel context.CancelFunc
	wg     sync.WaitGroup

	st       state.State
	events   *eventLog
	lock     *sequenceLock
	conf     *configs
	services *services
	front    *frontControl
	volumes  *volumes
	etcd     *etcdSlot
	status   *statusControl
	kube     *kubeControl
	kubelet  *kubelet
	listener *bufconn.Listener
	server   *grpc.Server
	apply    applyState

	outcome chan Outcome
	fatal   sync.Once
}

// New prepares a boot.
func New(cfg Config) *Machine {
	m := &Machine{
		cfg: cfg, pace: cfg.Pace, log: cfg.Log.With("machine", cfg.Name), bootID: uuid.NewString(), bootTime: cfg.Pace.Clock.Now(),
		outcome: make(chan Outcome, 1), listener: bufconn.Listen(1 << 20),
		events: newEventLog(cfg.Pace.Clock), lock: newSequenceLock(cfg.Pace),
	}
	if cfg.Container {
		m.bootID = cfg.HostBootID
	}
	m.conf = &configs{m: m, complete: make(chan struct{})}
	m.services = &services{m: m, running: map[string]*service{}, changed: make(chan struct{})}
	m.front = &frontControl{m: m, wake: make(chan struct{}, 1)}
	m.volumes = &volumes{m: m}
	m.etcd = &etcdSlot{}
	m.status = &statusControl{m: m, wake: make(chan struct{}, 1)}
	m.kube = &kubeControl{m: m}
	m.kubelet = newKubelet(m)
	return m
}

// BootID is this boot's, as /proc/sys/kernel/random/boot_id shows it.
func (m *Machine) BootID() string { return m.bootID }

// Dial connects to machined's socket, which exists once machined runs.
func (m *Machine) Dial(ctx context.Context) (net.Conn, error) {
	return m.listener.DialContext(ctx)
}

// Settings is what the front is to show.
func (m *Machine) Settings() apid.Settings { return m.front.settings() }

// Run boots the machine and returns when the boot has ended. A cancelled context is a power cut: nothing is written any more.
func (m *Machine) Run(ctx context.Context) (Outcome, error) {
	m.ctx, m.cancel = context.WithCancel(ctx)
	defer m.cancel()
	st, err := newState(m.ctx)
	if err != nil {
		return Lost, err
	}
	m.st = st
	// A handler that is under way may still start something: it is waited for before the rest.
	options := append(apid.ServerOptions(m.cfg.Journal, m.BootID), m.cfg.Faults.options(m)...)
	m.server = grpc.NewServer(append(options, grpc.WaitForHandlers(true))...)
	m.register(m.server)
	m.spawn(m.main)
	outcome := Lost
	select {
	case outcome = <-m.outcome:
		m.cfg.Front.Cut()
	case <-m.ctx.Done():
	}
	m.cancel()
	m.cfg.World.Network.Switch(m.cfg.Address, false)
	m.kube.gone()
	m.etcd.kill()
	m.server.Stop()
	_ = m.listener.Close() // in memory
	m.wg.Wait()
	if outcome != Lost {
		m.cfg.Front.Cut() // in case the front was being opened at that moment
	}
	m.cfg.World.Trustd.Serve(m.cfg.Address, nil)
	return outcome, nil
}

// spawn runs something for as long as the boot lasts; Run waits for it.
func (m *Machine) spawn(f func(context.Context)) {
	m.wg.Add(1)
	go func() {
		defer m.wg.Done()
		f(m.ctx)
	}()
}

// end ends the boot. The first caller decides how.
func (m *Machine) end(o Outcome) error {
	select {
	case m.outcome <- o:
	default:
	}
	return errRebooting
}

func (m *Machine) main(ctx context.Context) {
	if m.pace.Sleep(ctx, kernelTime) != nil {
		return
	}
	m.cfg.World.Network.Switch(m.cfg.Address, true)
	go func() { _ = m.server.Serve(m.listener) }() // ends with Stop
	m.hardware(ctx)
	m.spawn(m.status.run)
	m.spawn(m.front.run)
	m.spawn(m.discover)
	m.spawn(m.kube.run)
	m.spawn(m.kubelet.run)
	for _, s := range []struct {
		name   string
		phases func() []phase
	}{{seqInitialize, m.initializePhases}, {seqInstall, m.installPhases}, {seqBoot, m.bootPhases}} {
		if err := m.runSequence(ctx, s.name, false, s.phases); err != nil {
			m.failed(s.name, err)
			return
		}
	}
}

// start runs a sequence in the background for a call; it holds the lock at once and acts when the call has been answered.
func (m *Machine) start(ctx context.Context, actor, name string, always bool, phases func() []phase) {
	call := apid.CallFrom(ctx)
	m.spawn(func(ctx context.Context) {
		err := m.runSequence(apid.WithCall(withActor(ctx, actor), call), name, always, func() []phase {
			m.cfg.Front.Answered(ctx, call)
			_ = m.pace.wait(ctx, answerTime) // a boot that ends meanwhile ends the phases too
			return phases()
		})
		m.failed(name, err)
	})
}

// failed is what Talos's main loop does about a sequence that ended: a fatal error reboots the machine.
func (m *Machine) failed(name string, err error) {
	if err == nil || errors.Is(err, errLocked) || errors.Is(err, context.Canceled) || errors.Is(err, errRebooting) || m.ctx.Err() != nil {
		return
	}
	m.fatal.Do(func() {
		m.log.Error("a sequence failed, the machine reboots", "sequence", name, "err", err)
		_ = m.pace.Sleep(m.ctx, 2*time.Second) // the volume cleanup
		m.cfg.Faults.halt(m.ctx, BeforeGoingDown)
		m.cfg.Front.Cut()
		_ = m.pace.Sleep(m.ctx, 10*time.Second)
		_ = m.end(Reboot)
	})
}

// put publishes a resource. Errors can only come from a state that is being torn down.
func (m *Machine) put(r resource.Resource) { m.publish(r, false) }

func (m *Machine) publish(r resource.Resource, bump bool) {
	if err := put(m.ctx, m.st, r, bump); err != nil && m.ctx.Err() == nil {
		m.log.Error("publishing a resource", "resource", r.Metadata().String(), "err", err)
	}
	m.status.poke()
}

func (m *Machine) drop(r resource.Resource) {
	if err := drop(m.ctx, m.st, r); err != nil && m.ctx.Err() == nil {
		m.log.Error("removing a resource", "resource", r.Metadata().String(), "err", err)
	}
	m.status.poke()
}

func (m *Machine) String() string { return fmt.Sprintf("%s (%s)", m.cfg.Name, m.cfg.Address) }
