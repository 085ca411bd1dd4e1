package soak

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"time"

	"ichor.maesh.dev/reconcile"
	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/statefile/storetest"
)

// epoch is when every history begins.
var epoch = time.Date(2026, 11, 29, 10, 0, 0, 0, time.UTC)

// World is everything outside of the agents.
type World struct {
	seed uint64
	keys *Keys
	// began is when the history began. grid is how often a clone of the repository answers.
	began time.Time
	grid  time.Duration
	// adapt, if set, gives a process other machines than the modelled ones; nothing is judged by the monitor then.
	adapt func(*process, reconcile.Config) reconcile.Config
	sabotage

	// mu guards all of the world. Nobody sleeps while holding it.
	mu       sync.Mutex
	clusters []*cluster
	byIP     map[string]*machine
	store    *storetest.Memory
	// bucket holds the backups of all clusters, labels what each of its objects was uploaded with. spools is the folder in which processes keep
	// what is on its way there; empty where no cluster has backups.
	bucket  *storetest.Memory
	labels  map[string]map[string]string
	spools  string
	git     *branch
	monitor *monitor
	hosts   []*host
	lines   []string
	// faults counts what befell, by kind.
	faults map[string]int
	calls  map[string]int
}

// cluster is the machines of one cluster with their etcd and Kubernetes.
type cluster struct {
	name     string
	number   int
	keys     *ClusterKeys
	machines []*machine
	etcds    []*etcd
	nextID   uint64
	nextNode int
	// kubernetesAway says that the Kubernetes API gives no answer, whatever etcd does.
	kubernetesAway bool
}

func newWorld(seed uint64, keys *Keys) *World {
	w := &World{seed: seed, keys: keys, began: epoch, grid: 30 * time.Second, byIP: map[string]*machine{}, store: storetest.NewMemory(), bucket: storetest.NewMemory(),
		labels: map[string]map[string]string{}, git: &branch{}, faults: map[string]int{}, calls: map[string]int{}}
	w.monitor = newMonitor(w)
	return w
}

// say puts a line into the history.
func (w *World) say(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sayLocked(format, args...)
}

func (w *World) sayLocked(format string, args ...any) {
	w.lines = append(w.lines, fmt.Sprintf("%9s  ", time.Since(w.began).Truncate(time.Millisecond))+fmt.Sprintf(format, args...))
}

// befell counts a fault.
func (w *World) befell(kind string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.faults[kind]++
}

// draw gives a number from the seed and a name: the same for the same, whatever else happened before.
func (w *World) draw(parts ...any) uint64 {
	sum := sha256.Sum256(fmt.Appendf(nil, "%d %v", w.seed, parts))
	return binary.BigEndian.Uint64(sum[:8])
}

// span gives a time between least and most for a name.
func (w *World) span(least, most time.Duration, parts ...any) time.Duration {
	return least + time.Duration(w.draw(parts...)%uint64(most-least))
}

func (w *World) addCluster(name string, number int, keys *ClusterKeys) *cluster {
	c := &cluster{name: name, number: number, keys: keys, nextID: 0x100}
	w.clusters = append(w.clusters, c)
	return c
}

// addMachine puts a new machine, in maintenance mode, into the rack.
func (w *World) addMachine(c *cluster, name string, role schema.Role) *machine {
	last := 11 + len(c.machines)
	ip := netip.AddrFrom4([4]byte{10, 0, byte(c.number), byte(last)}).String()
	m := &machine{w: w, c: c, name: name, hostname: name, ip: ip, uuid: fmt.Sprintf("4c4c4544-00%02x-4000-8000-0000000000%02x", c.number, last), role: role,
		power: true, stage: stageMaintenance, boot: 1}
	c.machines = append(c.machines, m)
	w.byIP[ip] = m
	return m
}

func (c *cluster) machine(name string) *machine {
	for _, m := range c.machines {
		if m.name == name {
			return m
		}
	}
	return nil
}

// run lets the world's own time pass until stop is closed: each second the machines do what they do by themselves.
func (w *World) run(stop <-chan struct{}) {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for {
		select {
		case <-stop:
			return
		case <-ticker.C:
			w.mu.Lock()
			for _, c := range w.clusters {
				c.tick(time.Now())
				w.monitor.oneEtcd(c)
			}
			w.mu.Unlock()
			w.endLodgers()
		}
	}
}

func (c *cluster) tick(now time.Time) {
	for _, m := range c.machines {
		m.advance(now)
	}
	for _, e := range c.etcds {
		e.elect(c)
	}
	for _, m := range c.machines {
		m.etcdStep(now)
		m.kubeletStep(now)
	}
}

// history is what happened, as text.
func (w *World) history() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.Join(w.lines, "\n")
}
