package talossim

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/constants"

	"ichor.maesh.dev/internal/talossim/apid"
	"ichor.maesh.dev/internal/talossim/machined"
)

// firmwareTime is how long a machine's firmware takes before the kernel starts; kexec leaves it out.
const firmwareTime = 4 * time.Second

// What can go wrong with a machine's calls on cue; see [Node.Inject].
type (
	Fault     = machined.Fault
	FaultKind = machined.FaultKind
)

// The kinds of faults.
const (
	Hang       = machined.Hang
	Fail       = machined.Fail
	DropEffect = machined.DropEffect
	CutBefore  = machined.CutBefore
	CutAfter   = machined.CutAfter
	Panic      = machined.Panic
	EndEarly   = machined.EndEarly
	Stall      = machined.Stall
	Damage     = machined.Damage
)

// AfterMemberAdd is a Fault's Method for a machine whose member was added to etcd and has no name yet: with the kind Hang it
// stays there until its power is cut or the fault is taken back.
const AfterMemberAdd = machined.AfterMemberAdd

// BeforePromotion is such a point too: the machine's member is a learner, and nobody is asked to promote it.
const BeforePromotion = machined.BeforePromotion

// BeforeConfigWrite is such a point too: a config was taken and isn't on the disk yet.
const BeforeConfigWrite = machined.BeforeConfigWrite

// BeforeGoingDown is such a point too: a machine that reboots, resets or shuts down has stopped its services and still answers.
const BeforeGoingDown = machined.BeforeGoingDown

// BeforeStopping is such a point too: a machine that reboots, resets or shuts down has answered, and all its services run still.
const BeforeStopping = machined.BeforeStopping

// BeforeWipe is such a point too: a machine that resets is about to wipe. With the kind Fail its wipe fails, and it reboots as it was.
const BeforeWipe = machined.BeforeWipe

// Node is one machine: its hardware, its power switch and its cable. Its methods may be called from any goroutine.
type Node struct {
	farm    *Farm
	spec    NodeSpec
	addr    netip.Addr
	store   *machined.Store
	front   *apid.Server
	link    *apid.Link
	journal *apid.Journal
	faults  *machined.Faults

	power sync.Mutex // one change of power at a time

	mu      sync.Mutex
	machine *machined.Machine
	cut     context.CancelFunc // nil: the machine is off
	ended   chan struct{}      // closed when the machine has gone off
	boots   int
	err     error
}

func newNode(f *Farm, spec NodeSpec) (*Node, error) {
	addr, err := netip.ParseAddr(spec.Address)
	if err != nil {
		return nil, fmt.Errorf("%s's address: %w", spec.Name, err)
	}
	dir := filepath.Join(f.opts.Dir, spec.Name)
	store, err := machined.OpenStore(dir)
	if err != nil {
		return nil, err
	}
	if (spec.Installed || f.opts.Platform == Container) && !store.Installed() {
		if err := store.Install(spec.Disks[0].DevPath); err != nil {
			return nil, fmt.Errorf("installing %s: %w", spec.Name, err)
		}
	}
	journal, err := apid.OpenJournal(dir, spec.Name, f.opts.Clock)
	if err != nil {
		return nil, err
	}
	n := &Node{farm: f, spec: spec, addr: addr, store: store, journal: journal, link: f.world.Network.Link(addr)}
	n.front = apid.New(apid.Config{
		Address:  net.JoinHostPort(spec.Address, fmt.Sprint(constants.ApidPort)),
		Machined: n.dial, Provider: apid.ProviderFunc(n.settings), Journal: journal, BootID: n.BootID,
		Dial: func(ctx context.Context, address string) (net.Conn, error) {
			return f.world.Network.Dial(ctx, addr, address)
		},
		Link:  n.link,
		Clock: f.opts.Clock, TimeScale: f.opts.TimeScale,
	})
	n.faults = &machined.Faults{Cut: n.front.ResetConnections}
	return n, nil
}

// Name is the machine's name in the farm.
func (n *Node) Name() string { return n.spec.Name }

// Address is the machine's address, without a port.
func (n *Node) Address() string { return n.spec.Address }

// Endpoint is the address and port of the machine's Talos API.
func (n *Node) Endpoint() string {
	return net.JoinHostPort(n.spec.Address, fmt.Sprint(constants.ApidPort))
}

// UUID is the machine's SMBIOS UUID.
func (n *Node) UUID() string { return n.spec.UUID }

// Role is the hint that the machine was described with.
func (n *Node) Role() Role { return n.spec.Role }

// Spec is the machine's description.
func (n *Node) Spec() NodeSpec { return n.spec }

// Dir is the folder that holds the machine's partitions META, STATE and EPHEMERAL.
func (n *Node) Dir() string { return filepath.Join(n.farm.opts.Dir, n.spec.Name) }

// BootID is the boot ID of the boot that runs, "" while none does.
func (n *Node) BootID() string {
	if m := n.current(); m != nil {
		return m.BootID()
	}
	return ""
}

// KubeletUp says whether the machine's kubelet runs and has found everything in order.
func (n *Node) KubeletUp() bool {
	m := n.current()
	return m != nil && m.KubeletUp()
}

// Boots counts the boots since the farm was started.
func (n *Node) Boots() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.boots
}

// Powered says whether the machine is switched on.
func (n *Node) Powered() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.cut != nil
}

// Journal returns every call that the machine got, oldest first.
func (n *Node) Journal() []apid.Entry { return n.journal.Entries() }

// Accepted returns the calls of a method that the machine took, by the method's bare or full name.
func (n *Node) Accepted(method string) []apid.Entry { return n.journal.Accepted(method) }

// Inject makes calls of a method go wrong until the returned function is called or Fault.Times is used up. A machine that is held
// at a point of its own doings goes on when the function is called.
func (n *Node) Inject(fault Fault) (remove func()) { return n.faults.Add(fault) }

// PowerOn switches the machine on, if it is off.
func (n *Node) PowerOn() {
	n.power.Lock()
	defer n.power.Unlock()
	n.powerOn()
}

// PowerOff cuts the machine's power and returns when nothing of it runs any more. Its connections fall silent; who calls it
// gets no answer, not even a refusal.
func (n *Node) PowerOff() error {
	n.power.Lock()
	defer n.power.Unlock()
	return n.powerOff(true)
}

// LoseEtcdData takes etcd's data from the disk of a machine that is off. It is an error where there is none, or where the machine is on.
func (n *Node) LoseEtcdData() error {
	if n.Powered() {
		return fmt.Errorf("%s is on", n.spec.Name)
	}
	data := filepath.Join(n.Dir(), "EPHEMERAL", "lib", "etcd")
	if _, err := os.Stat(data); err != nil {
		return fmt.Errorf("taking etcd's data from %s: %w", n.spec.Name, err)
	}
	return os.RemoveAll(data)
}

// PowerCycle cuts the power and switches the machine on again.
func (n *Node) PowerCycle() error {
	n.power.Lock()
	defer n.power.Unlock()
	if err := n.powerOff(true); err != nil {
		return err
	}
	n.powerOn()
	return nil
}

// Partition pulls the machine's cable: nothing reaches it or leaves it, and nobody is told.
func (n *Node) Partition() { n.link.Partition() }

// Heal plugs the cable in again and ends a slowness.
func (n *Node) Heal() { n.link.Heal() }

// Slow delays whatever the machine sends by d (not scaled).
func (n *Node) Slow(d time.Duration) { n.link.Slow(d) }

func (n *Node) current() *machined.Machine {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.machine
}

func (n *Node) settings() apid.Settings {
	if m := n.current(); m != nil {
		return m.Settings()
	}
	return apid.Settings{}
}

func (n *Node) dial(ctx context.Context) (net.Conn, error) {
	m := n.current()
	if m == nil {
		return nil, errors.New("machined isn't running")
	}
	return m.Dial(ctx)
}

func (n *Node) powerOn() {
	n.mu.Lock()
	if n.cut != nil || n.farm.ctx.Err() != nil {
		n.mu.Unlock()
		return
	}
	ctx, cancel := context.WithCancel(n.farm.ctx)
	n.cut, n.ended = cancel, make(chan struct{})
	ended := n.ended
	n.mu.Unlock()
	go func() {
		defer close(ended)
		n.run(ctx)
		cancel()
		n.mu.Lock()
		n.cut, n.machine = nil, nil
		n.mu.Unlock()
	}()
}

// powerOff cuts the power. silent leaves the address held by a machine that doesn't answer; else it is free.
func (n *Node) powerOff(silent bool) error {
	n.mu.Lock()
	cut, ended := n.cut, n.ended
	n.mu.Unlock()
	var err error
	if silent {
		err = n.front.Vanish()
	} else {
		n.front.Cut()
	}
	if cut != nil {
		cut()
		<-ended
	}
	// A boot that was opening its front at that very moment may have opened it after all.
	if silent && n.front.Listening() {
		err = errors.Join(err, n.front.Vanish())
	} else if !silent {
		n.front.Cut()
	}
	return err
}

// run is the machine from power on to power off: firmware, boot, and again.
func (n *Node) run(ctx context.Context) {
	outcome := machined.Reboot
	for {
		if outcome != machined.Kexec && n.farm.pace.Sleep(ctx, firmwareTime) != nil {
			return
		}
		if n.spec.DiskOnly && !n.store.Installed() && n.store.EverInstalled() {
			n.front.Cut()
			<-ctx.Done() // nothing to boot from
			return
		}
		n.front.Cut() // from here on the machine refuses connections rather than ignoring them
		m := machined.New(n.hardware())
		n.mu.Lock()
		n.machine = m
		n.boots++
		n.mu.Unlock()
		var err error
		outcome, err = m.Run(ctx)
		n.mu.Lock()
		n.machine, n.err = nil, err
		n.mu.Unlock()
		if err != nil {
			n.farm.opts.Logger.Error("the machine doesn't boot", "machine", n.spec.Name, "err", err)
			return
		}
		if outcome == machined.PowerOff || ctx.Err() != nil {
			return
		}
	}
}

func (n *Node) hardware() machined.Config {
	cfg := machined.Config{
		Name: n.spec.Name, Address: n.addr, UUID: n.spec.UUID, Container: n.farm.opts.Platform == Container,
		HostBootID: n.farm.hostBootID, Store: n.store, World: n.farm.world, Front: n.front, Journal: n.journal, Faults: n.faults,
		LooseMembership: n.farm.opts.LooseMembership, ForeignKubernetes: n.farm.opts.ForeignKubernetes, Pace: n.farm.pace, Log: n.farm.opts.Logger,
	}
	for _, d := range n.spec.Disks {
		disk := machined.Disk{DevPath: d.DevPath, Model: d.Model, Serial: d.Serial, Transport: d.Transport, Size: d.Size, Readonly: d.Readonly}
		for _, p := range d.Partitions {
			disk.Partitions = append(disk.Partitions, machined.Partition{Label: p.Label, Filesystem: p.Filesystem, Size: p.Size})
		}
		cfg.Disks = append(cfg.Disks, disk)
	}
	return cfg
}

func (n *Node) close() error {
	n.power.Lock()
	defer n.power.Unlock()
	err := n.powerOff(false)
	n.link.Heal()
	return errors.Join(err, n.journal.Close())
}
