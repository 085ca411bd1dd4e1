package soak

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"ichor.maesh.dev/schema"
)

// Result is what came of one history.
type Result struct {
	Seed uint64
	// Shape says how many clusters, machines and agents there were.
	Shape string
	// Broken are the promises that were broken, Unsettled what had not converged at the end. Both empty: all is well.
	Broken, Unsettled []string
	History           string
	// Events is how many there are in it, Steps how many of them happened.
	Events, Steps     int
	Faults, Calls     map[string]int
	Lasted, Converged time.Duration
	Logs              string
}

// Failed says whether something went wrong.
func (r *Result) Failed() bool { return len(r.Broken)+len(r.Unsettled) > 0 }

// run is one history under way.
type run struct {
	w     *World
	keys  *Keys
	seed  uint64
	lot   *rand.Rand
	fleet *fleet
	hosts []*host
	steps int
	// operationsMade counts the operation files.
	operationsMade int
	stopping       chan struct{}
	supervised     sync.WaitGroup
	shape          string
	// resumed are the pauses that somebody saw to.
	resumed map[string]bool
	// lastRemoval and lastChange are when the person last signed a removal, and saw to a rollout.
	lastRemoval, lastChange time.Time
	// lastRestore is when it last signed a restore; foreign counts the objects that were put beside snapshots.
	lastRestore time.Time
	foreign     int
	// frozen: agents freeze often, and long.
	frozen bool
	// hosted: agents live on control planes.
	hosted bool
	// events and enough are those of [Options].
	events []event
	enough func([]string) bool
}

// Options say which of the histories of a seed is run; the zero value is the whole of the seed's own.
type Options struct {
	// Only are the numbers of the events that happen; nil: all do. What each of the others is doesn't change with it, nor when it happens.
	Only []int
	// Restores lets clusters have backups, Frozen lets agents freeze often and long; else the seed says whether they do.
	// Hosted lets agents live on control planes.
	Restores, Frozen, Hosted bool
	sabotage
	// events are what the history is made of instead of the usual ones; enough ends it early, before anything converges.
	events []event
	enough func(broken []string) bool
	// patience is how long everything may take to converge; 0: [patience].
	patience time.Duration
}

// Run drives one history. It must run inside of a bubble of testing/synctest.
func Run(seed uint64, keys *Keys, options Options) *Result {
	time.Sleep(time.Until(epoch))
	r := &run{w: newWorld(seed, keys), keys: keys, seed: seed, lot: lotOf(seed, 0), stopping: make(chan struct{}), resumed: map[string]bool{},
		fleet: &fleet{operations: map[string]string{}, bad: map[string]string{}}, events: options.events, enough: options.enough}
	r.w.sabotage = options.sabotage
	r.hosted = options.Hosted || r.w.draw("hosted")%5 == 0
	r.frozen = options.Frozen || r.w.draw("frozen")%5 == 0
	if options.Restores || r.w.draw("backups")%3 == 0 {
		dir, err := os.MkdirTemp("", "soak-spools-")
		if err != nil {
			panic(err)
		}
		defer func() { _ = os.RemoveAll(dir) }()
		r.w.spools = dir
	}
	r.build()
	worldStops := make(chan struct{})
	var world sync.WaitGroup
	world.Go(func() { r.w.run(worldStops) })
	r.push("the fleet")
	for _, h := range r.hosts {
		r.supervised.Go(func() { r.supervise(h) })
	}
	if r.lot.IntN(3) > 0 {
		r.until(12*time.Minute, func() bool { return r.ready() || r.told() })
	}
	steps := 12 + r.lot.IntN(20)
	for n := 0; n < steps && !r.told(); n++ {
		r.lot = lotOf(seed, n+1)
		time.Sleep(time.Duration(2+r.lot.IntN(60))*time.Second + time.Duration(r.lot.IntN(1e9)))
		if options.Only == nil || slices.Contains(options.Only, n+1) {
			r.w.say("event %d", n+1)
			r.step()
		}
	}
	r.lot = lotOf(seed, steps+1)
	lasted := time.Since(epoch)
	var unsettled []string
	if r.enough == nil {
		unsettled = r.converge(cmp.Or(options.patience, patience))
	}
	stacks := make([]byte, 4<<20)
	if len(unsettled) > 0 {
		stacks = stacks[:runtime.Stack(stacks, true)]
	}
	result := &Result{Seed: seed, Shape: r.shape, Unsettled: unsettled, Events: steps, Steps: r.steps, Lasted: lasted, Converged: time.Since(epoch) - lasted}
	r.end()
	close(worldStops)
	world.Wait()
	r.secrets()
	r.judgeBuckets()
	result.Broken, result.History, result.Faults, result.Calls = r.w.monitor.broken, r.w.history(), r.w.faults, r.w.calls
	if result.Failed() {
		for _, p := range r.w.monitor.processes {
			result.Logs += "\n--- " + p.id + "\n" + p.log.String()
		}
		if len(unsettled) > 0 {
			result.Logs += "\n--- what everybody waited for\n" + string(stacks)
		}
	}
	return result
}

// lotOf draws for one event of a history, whatever the others drew: 0 is what comes before them.
func lotOf(seed uint64, event int) *rand.Rand {
	return rand.New(rand.NewPCG(seed, 0x1c408+uint64(event)))
}

// build makes the machines, the fleet that wants them, and the hosts of the agents.
func (r *run) build() {
	clusters, agents := 1, 1
	if r.lot.IntN(5) == 0 {
		clusters = 2
	}
	switch n := r.lot.IntN(20); {
	case n >= 16:
		agents = 3
	case n >= 7:
		agents = 2
	}
	var shape []string
	for n := range clusters {
		c := r.w.addCluster(clusterNames()[n], n+1, r.keys.Clusters[n])
		want := &wantedCluster{c: c, endpoint: fmt.Sprintf("10.0.%d.10", c.number), reboots: "automatic", machines: map[string]*wantedMachine{}}
		want.count = []int{1, 1, 3, 3, 3, 3, 5}[r.lot.IntN(7)]
		workers := r.lot.IntN(4)
		if n > 0 {
			want.count, workers = 1, 1
		}
		want.backups = r.w.spools != ""
		spare := 0
		if want.count < 5 && r.lot.IntN(3) == 0 {
			spare = 2
		}
		for k := range want.count + spare {
			r.want(want, fmt.Sprintf("cp-%d", k+1), schema.RoleControlPlane, k < want.count)
		}
		for k := range workers + 1 {
			r.want(want, fmt.Sprintf("w-%d", k+1), schema.RoleWorker, k < workers)
		}
		shape = append(shape, fmt.Sprintf("%s: %d control planes and %d workers", c.name, want.count, workers))
		r.fleet.clusters = append(r.fleet.clusters, want)
	}
	for n := range agents {
		r.hosts = append(r.hosts, &host{w: r.w, name: fmt.Sprintf("agent-%d", n+1), number: n + 1, links: map[string]*link{}, lodging: lodging{hosted: r.hosted}})
	}
	r.w.hosts = r.hosts
	if r.w.spools != "" {
		shape = append(shape, "with backups")
	}
	if r.frozen {
		shape = append(shape, "agents freeze often")
	}
	if r.hosted {
		shape = append(shape, "agents live on control planes")
	}
	r.shape = fmt.Sprintf("%s; %d agents", strings.Join(shape, "; "), agents)
	r.w.say("seed %d: %s", r.seed, r.shape)
}

// want puts a machine into the rack and, where it is approved, into Git; the others wait there for their time.
func (r *run) want(c *wantedCluster, name string, role schema.Role, approved bool) {
	m := r.w.addMachine(c.c, name, role)
	c.machines[name] = &wantedMachine{m: m, approved: approved, at: epoch.Add(-time.Hour + time.Duration(len(c.machines))*time.Minute)}
}

// supervise starts an agent on the host whenever none runs.
func (r *run) supervise(h *host) {
	time.Sleep(time.Duration(h.number) * time.Microsecond) // what happens at one instant would have no order
	for r.lodge(h) {
		p := h.start()
		<-p.done
		select {
		case <-r.stopping:
			return
		case <-time.After(h.w.span(3*time.Second, 50*time.Second, "restart", p.id)):
		}
	}
}

// end stops everything.
func (r *run) end() {
	close(r.stopping)
	for _, h := range r.hosts {
		if h.process != nil {
			h.process.kill("at the end of the history")
		}
	}
	r.supervised.Wait()
}

// until waits until a condition holds, for a while at most.
func (r *run) until(most time.Duration, holds func() bool) bool {
	for ends := time.Now().Add(most); time.Now().Before(ends); {
		if holds() {
			return true
		}
		time.Sleep(10*time.Second + 7*time.Microsecond)
	}
	return false
}

// told says whether what was broken so far is enough to end the history.
func (r *run) told() bool {
	r.w.mu.Lock()
	defer r.w.mu.Unlock()
	return r.enough != nil && r.enough(r.w.monitor.broken)
}

// ready says whether every cluster says that it is.
func (r *run) ready() bool {
	r.w.mu.Lock()
	defer r.w.mu.Unlock()
	for _, c := range r.w.clusters {
		if s := r.w.stateOf(c.name); s == nil || !s.Ready.Status {
			return false
		}
	}
	return true
}

// secrets looks for every secret of every bundle in whatever the agents said and stored.
func (r *run) secrets() {
	texts := map[string]string{}
	for _, p := range r.w.monitor.processes {
		texts["the log of "+p.id] = p.log.String()
		texts["the report of "+p.id] = fmt.Sprintf("%+v", p.agent.Report())
	}
	for key, data := range r.w.store.Snapshot() {
		texts["the object "+key] = string(data)
	}
	for _, keys := range r.keys.Clusters[:len(r.w.clusters)] {
		for _, secret := range keys.Bundle.Scalars() {
			for line := range strings.Lines(secret) { // what has several is escaped between them
				line = strings.TrimSpace(line)
				if len(line) < 8 || strings.HasPrefix(line, "-----") {
					continue
				}
				for where, text := range texts {
					if strings.Contains(text, line) {
						r.w.monitor.breach("%s holds a secret of %s", where, keys.ID)
					}
				}
			}
		}
	}
}
