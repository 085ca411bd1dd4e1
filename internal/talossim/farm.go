package talossim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"

	"github.com/google/uuid"
	"k8s.io/utils/clock"

	"ichor.maesh.dev/internal/talossim/apid"
	"ichor.maesh.dev/internal/talossim/kubeapi"
	"ichor.maesh.dev/internal/talossim/machined"
	"ichor.maesh.dev/internal/talossim/world"
)

// NodesFile is the name of the list of machines in a farm's folder: a JSON array of [NodeSpec].
const NodesFile = "nodes.json"

// defaultDiskSize is that of a disk whose size isn't given.
const defaultDiskSize = 20 << 30

// Farm is a set of running machines.
type Farm struct {
	opts  Options
	pace  machined.Pace
	world *world.World
	// hostBootID is the boot ID of every container of the farm.
	hostBootID string
	ctx        context.Context
	cancel     context.CancelFunc
	nodes      []*Node
}

// Start switches the machines of a farm on and returns without waiting for them. They run until [Farm.Close], or until ctx
// ends, which is a power cut for all of them.
func Start(ctx context.Context, opts Options) (*Farm, error) {
	specs, err := opts.defaulted()
	if err != nil {
		return nil, err
	}
	if opts.Clock == nil {
		opts.Clock = clock.RealClock{}
	}
	if opts.TimeScale == 0 {
		opts.TimeScale = 1
	}
	if opts.TimeScale < 0 {
		return nil, fmt.Errorf("a farm's time scale is %v; give 1 or more", opts.TimeScale)
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	if err := os.MkdirAll(opts.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("making the farm's folder: %w", err)
	}
	if err := writeNodes(opts.Dir, specs); err != nil {
		return nil, err
	}
	if !opts.ForeignKubernetes {
		if err := portsFree(ctx, specs); err != nil {
			return nil, err
		}
	}
	f := &Farm{
		opts: opts, pace: machined.Pace{Clock: opts.Clock, Scale: opts.TimeScale, Impatient: opts.Impatient},
		world: world.New(opts.Clock, opts.TimeScale), hostBootID: uuid.NewString(),
	}
	f.ctx, f.cancel = context.WithCancel(ctx)
	for _, spec := range specs {
		n, err := newNode(f, spec)
		if err != nil {
			return nil, errors.Join(err, f.Close())
		}
		f.nodes = append(f.nodes, n)
	}
	for _, n := range f.nodes {
		n.PowerOn()
	}
	return f, nil
}

// portsFree says why a machine could not serve the Kubernetes API. Port 6443 is the one of a farm's that a host may well have in use: a
// Kubernetes of its own listens there, often on every address.
func portsFree(ctx context.Context, specs []NodeSpec) error {
	for _, s := range specs {
		address := net.JoinHostPort(s.Address, strconv.Itoa(kubeapi.Port))
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
		if err == nil {
			_ = l.Close() // it was only tried
		}
		if errors.Is(err, syscall.EADDRINUSE) {
			return fmt.Errorf("%s can't serve its Kubernetes API, for the port is in use (%w); end what listens on port %d of every address of this host", s.Name, err, kubeapi.Port)
		}
	}
	return nil
}

// Nodes returns the machines in their order.
func (f *Farm) Nodes() []*Node { return append([]*Node(nil), f.nodes...) }

// Node returns a machine by name, nil when there is none.
func (f *Farm) Node(name string) *Node {
	for _, n := range f.nodes {
		if n.spec.Name == name {
			return n
		}
	}
	return nil
}

// Journal returns every call that a machine got, nil for a machine that isn't there.
func (f *Farm) Journal(name string) []apid.Entry {
	if n := f.Node(name); n != nil {
		return n.Journal()
	}
	return nil
}

// World is what the machines share: the network, discovery, Kubernetes objects.
func (f *Farm) World() *world.World { return f.world }

// Close cuts the power of every machine and frees their addresses. What stood on their disks stays.
func (f *Farm) Close() error {
	f.cancel()
	errs := make([]error, len(f.nodes))
	var wg sync.WaitGroup
	for i, n := range f.nodes {
		wg.Go(func() { errs[i] = n.close() })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// ReadNodes reads the list of machines of a farm's folder.
func ReadNodes(dir string) ([]NodeSpec, error) {
	data, err := os.ReadFile(filepath.Join(dir, NodesFile))
	if err != nil {
		return nil, fmt.Errorf("reading the list of machines: %w", err)
	}
	var specs []NodeSpec
	if err := json.Unmarshal(data, &specs); err != nil {
		return nil, fmt.Errorf("reading the list of machines in %s: %w", dir, err)
	}
	return specs, nil
}

func writeNodes(dir string, specs []NodeSpec) error {
	data, err := json.MarshalIndent(specs, "", "  ")
	if err != nil {
		return fmt.Errorf("writing the list of machines: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, NodesFile), append(data, '\n'), 0o600); err != nil {
		return fmt.Errorf("writing the list of machines: %w", err)
	}
	return nil
}

// defaulted returns the machines that the options describe, with nothing left open. A farm that was there before keeps its
// machines' UUIDs.
func (o *Options) defaulted() ([]NodeSpec, error) {
	if o.Dir == "" {
		return nil, errors.New("a farm needs a folder (Options.Dir)")
	}
	if o.First == "" {
		o.First = "127.0.10.1"
	}
	next, err := netip.ParseAddr(o.First)
	if err != nil || !next.Is4() || !next.IsLoopback() {
		return nil, fmt.Errorf("a farm's first address is %q; give an IPv4 loopback address such as 127.0.10.1", o.First)
	}
	before := map[string]NodeSpec{}
	if old, err := ReadNodes(o.Dir); err == nil {
		for _, s := range old {
			before[s.Name] = s
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var specs []NodeSpec
	for i := range o.ControlPlanes {
		specs = append(specs, NodeSpec{Name: fmt.Sprintf("cp-%d", i+1), Role: ControlPlane})
	}
	for i := range o.Workers {
		specs = append(specs, NodeSpec{Name: fmt.Sprintf("w-%d", i+1), Role: Worker})
	}
	specs = append(specs, o.Nodes...)
	seen := map[string]bool{}
	for i := range specs {
		if specs[i].Address == "" {
			specs[i].Address = next.String()
		}
		next = next.Next()
		if err := specs[i].fill(before[specs[i].Name]); err != nil {
			return nil, err
		}
		for _, key := range []string{specs[i].Name, specs[i].Address, specs[i].UUID} {
			if seen[key] {
				return nil, fmt.Errorf("two machines of the farm share %q", key)
			}
			seen[key] = true
		}
	}
	return specs, nil
}

func (s *NodeSpec) fill(before NodeSpec) error {
	if s.Name == "" || s.Name != filepath.Base(s.Name) || s.Name == "." || s.Name == ".." {
		return fmt.Errorf("a machine's name is %q; give one that can name a folder", s.Name)
	}
	if a, err := netip.ParseAddr(s.Address); err != nil || !a.Is4() || !a.IsLoopback() {
		return fmt.Errorf("%s's address is %q; give an IPv4 loopback address", s.Name, s.Address)
	}
	if s.UUID == "" {
		s.UUID = before.UUID
	}
	if s.UUID == "" {
		s.UUID = uuid.NewString()
	}
	if s.Role == "" {
		s.Role = ControlPlane
	}
	if len(s.Disks) == 0 {
		s.Disks = []DiskSpec{{DevPath: "/dev/sda", Model: "SIMDISK", Serial: s.Name + "-0", Transport: "virtio"}}
	}
	for i := range s.Disks {
		if s.Disks[i].Size == 0 {
			s.Disks[i].Size = defaultDiskSize
		}
	}
	return nil
}
