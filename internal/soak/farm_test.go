package soak

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/internal/talossim"
	"ichor.maesh.dev/internal/talossim/safety"
	"ichor.maesh.dev/reconcile"
	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/talos"
)

var (
	farms     = flag.Int("soak.farms", 0, "how many histories of simulated machines, with a real etcd each, are run")
	firstFarm = flag.Uint64("soak.first-farm", 1, "the first seed of these")
)

// farmRun is a history of simulated machines. Which events it has, and in which order, follows from the seed; what happens in between takes
// real time, so that their order to the millisecond doesn't.
type farmRun struct {
	*run
	farm *talossim.Farm
}

// farmScale is how many times as fast as real machines' the time of simulated ones goes.
const farmScale = 40

// TestRandomHistoriesOfSimulatedMachines runs agents over machines with a real etcd each through random histories.
func TestRandomHistoriesOfSimulatedMachines(t *testing.T) {
	if *farms == 0 {
		t.Skip("histories of simulated machines take minutes each: make soak-farm SEEDS=n runs them")
	}
	keys := sharedKeys(t)
	for n := range *farms {
		seed := *firstFarm + uint64(n)
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) { farmHistory(t, seed, keys) })
	}
}

func farmHistory(t *testing.T, seed uint64, keys *Keys) {
	r := &farmRun{run: &run{w: newWorld(seed, keys), keys: keys, seed: seed, lot: rand.New(rand.NewPCG(seed, 0xfa43)), stopping: make(chan struct{}),
		resumed: map[string]bool{}, fleet: &fleet{operations: map[string]string{}, bad: map[string]string{}}}}
	r.w.began, r.w.grid, r.w.adapt = time.Now(), time.Second, r.adapt
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	count := []int{1, 3}[r.lot.IntN(2)]
	farm, err := talossim.Start(ctx, talossim.Options{Dir: t.TempDir(), First: "127.0.110.1", ControlPlanes: count, Workers: 1, TimeScale: farmScale, LooseMembership: true})
	require.NoError(t, err)
	defer farm.Close()
	r.farm = farm
	r.raise(count)
	t.Cleanup(func() {
		if t.Failed() {
			fmt.Printf("%s\nreplay it with: make soak-farm SEEDS=1 FIRST=%d\n", r.w.history(), seed)
			for _, p := range r.w.monitor.processes {
				fmt.Printf("--- %s\n%s", p.id, p.log)
			}
		}
	})
	for _, h := range r.hosts {
		r.supervised.Go(func() { r.supervise(h) })
	}
	defer r.end()
	r.wait(t, "the cluster comes up", r.settled)
	for range 6 + r.lot.IntN(6) {
		time.Sleep(time.Duration(500+r.lot.IntN(6000)) * time.Millisecond)
		r.event()
		r.judge(t)
	}
	r.w.say("the faults stop")
	r.locked(func() {
		for _, h := range r.hosts {
			h.heal()
		}
	})
	for _, node := range farm.Nodes() {
		node.Heal()
		node.PowerOn()
	}
	r.wait(t, "everything converges", r.settled)
	r.judge(t)
	r.secrets()
	require.Empty(t, r.w.monitor.broken)
	fmt.Printf("seed %d: %d events, %s\n", seed, r.steps, time.Since(r.w.began).Round(time.Second))
}

// raise makes the fleet that wants the farm's machines, and the hosts.
func (r *farmRun) raise(count int) {
	c := r.w.addCluster("prod", 1, r.keys.Clusters[0])
	want := &wantedCluster{c: c, count: count, reboots: "automatic", machines: map[string]*wantedMachine{}, endpoint: r.farm.Nodes()[0].Address()}
	for n, node := range r.farm.Nodes() {
		role := schema.RoleWorker
		if node.Role() == talossim.ControlPlane {
			role = schema.RoleControlPlane
		}
		m := r.w.addMachine(c, node.Name(), role)
		m.ip, m.uuid = node.Address(), node.UUID()
		want.machines[node.Name()] = &wantedMachine{m: m, approved: true, at: epoch.Add(-time.Hour + time.Duration(n)*time.Minute)}
	}
	r.fleet.clusters = []*wantedCluster{want}
	for n := range 1 + r.lot.IntN(2) {
		r.hosts = append(r.hosts, &host{w: r.w, name: fmt.Sprintf("agent-%d", n+1), number: n, links: map[string]*link{}})
	}
	r.w.say("seed %d: %d control planes, 1 worker, %d agents", r.seed, count, len(r.hosts))
	r.push("the fleet")
}

// adapt gives a process the farm's machines.
func (r *farmRun) adapt(p *process, config reconcile.Config) reconcile.Config {
	config.PollInterval = time.Second
	config.TrustedNetworks = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
	config.Timing = reconcile.DefaultTiming().Scaled(farmScale)
	config.OpenNodes = func(bundle *talos.Bundle) reconcile.Nodes {
		return farmNodes{Nodes: reconcile.TalosNodes(talos.NewClient(bundle, talos.ClientOptions{Scrubber: config.Scrubber})), p: p}
	}
	config.OpenKubernetes = func(bundle *talos.Bundle, servers []string) (reconcile.Kubernetes, error) {
		if p.isDead() {
			return nil, errDead
		}
		return reconcile.OpenKubernetes(time.Now)(bundle, servers)
	}
	return config
}

// event lets one thing happen.
func (r *farmRun) event() {
	node := r.farm.Nodes()[r.lot.IntN(len(r.farm.Nodes()))]
	for {
		happened := true
		switch r.lot.IntN(12) {
		case 0, 1:
			r.pushLive()
		case 2:
			r.pushReboot()
		case 3, 4:
			r.signReboot()
		case 5:
			r.signRestart()
		case 6:
			r.pushBad()
		case 7:
			r.signForged()
		case 8:
			r.w.say("%s loses power for a moment", node.Name())
			_ = node.PowerCycle()
		case 9:
			r.w.say("%s can't be reached by anybody for a while", node.Name())
			node.Partition()
			time.Sleep(time.Duration(1+r.lot.IntN(8)) * time.Second)
			node.Heal()
		case 10:
			happened = r.storeFault()
		default:
			happened = r.kill()
		}
		if happened {
			r.steps++
			return
		}
	}
}

// settled says what is left to be done, and does what a person is asked to do.
func (r *farmRun) settled() (left []string) {
	s := r.stateOf(r.w.clusters[0])
	switch {
	case s == nil:
		return []string{"there is no state"}
	case !s.Ready.Status:
		left = append(left, s.Ready.Reason+": "+s.Ready.Message)
	}
	if s.Revision.Applied != r.w.git.tip && s.Revision.Refused == nil {
		left = append(left, "it is not on the newest revision")
	}
	if s.Intent != nil || s.Lock != nil || s.Rollout != nil {
		left = append(left, fmt.Sprintf("intent %v, lock %v, rollout %v", s.Intent, s.Lock, s.Rollout))
	}
	for _, op := range s.Operations {
		if !op.Phase.Over() {
			left = append(left, fmt.Sprintf("%s is %s: %s %s", op.Name, op.Phase, op.Message, op.FailureReason))
		}
	}
	if len(left) > 0 {
		r.seeToOperations(r.fleet.clusters[0], s)
	}
	return left
}

// wait waits for an ample time until nothing is left.
func (r *farmRun) wait(t *testing.T, what string, left func() []string) {
	t.Helper()
	var last []string
	quiet := 0
	for ends := time.Now().Add(15 * time.Minute); time.Now().Before(ends); {
		if last = left(); len(last) > 0 {
			quiet = 0
		} else if quiet++; quiet > 10 {
			return
		}
		time.Sleep(200 * time.Millisecond)
	}
	require.Fail(t, "it never comes to that: "+what, "%s", strings.Join(last, "\n"))
}

// judge says that nothing was done that must never be.
func (r *farmRun) judge(t *testing.T) {
	t.Helper()
	h := safety.Of(r.farm)
	report, err := statefile.VerifyAudit(t.Context(), &namedStore{r.w.store}, r.keys.Clusters[0].Sealer, "prod")
	require.NoError(t, err)
	h.Events = report.Events
	require.Empty(t, safety.Check(h))
}

// namedStore is the bucket under the name that the agents know.
type namedStore struct{ statefile.Store }

func (namedStore) Location() string { return "memory://soak" }

// farmNodes are the farm's machines as a process reaches them, while it lives.
type farmNodes struct {
	reconcile.Nodes
	p *process
}

func (n farmNodes) Observe(ctx context.Context, target talos.Target) talos.Observation {
	if err := n.p.point(ctx, target.Name, "observe"); err != nil {
		return talos.Observation{Problem: err.Error()}
	}
	return n.Nodes.Observe(ctx, target)
}

func (n farmNodes) Dial(ctx context.Context, target talos.Target) (reconcile.Session, error) {
	return n.session(ctx, target, func() (reconcile.Session, error) { return n.Nodes.Dial(ctx, target) })
}

func (n farmNodes) DialMaintenance(ctx context.Context, target talos.Target, fingerprint string) (reconcile.Session, error) {
	return n.session(ctx, target, func() (reconcile.Session, error) { return n.Nodes.DialMaintenance(ctx, target, fingerprint) })
}

func (n farmNodes) session(ctx context.Context, target talos.Target, dial func() (reconcile.Session, error)) (reconcile.Session, error) {
	if err := n.p.point(ctx, target.Name, "dial"); err != nil {
		return nil, err
	}
	s, err := dial()
	if err != nil {
		return nil, err
	}
	return farmSession{Session: s, p: n.p, name: target.Name}, nil
}

// farmSession is a session of a process, which may die before a call of it or after.
type farmSession struct {
	reconcile.Session
	p    *process
	name string
}

func (s farmSession) around(ctx context.Context, what string, do func() error) error {
	if err := s.p.point(ctx, s.name, "before "+what); err != nil {
		return err
	}
	err := do()
	if dead := s.p.point(ctx, s.name, "after "+what); dead != nil {
		return dead
	}
	return err
}

func (s farmSession) ApplyConfig(ctx context.Context, request talos.ApplyRequest) error {
	return s.around(ctx, "ApplyConfiguration", func() error { return s.Session.ApplyConfig(ctx, request) })
}

func (s farmSession) Bootstrap(ctx context.Context) error {
	return s.around(ctx, "Bootstrap", func() error { return s.Session.Bootstrap(ctx) })
}

func (s farmSession) RemoveMember(ctx context.Context, id uint64) error {
	return s.around(ctx, "EtcdRemoveMemberByID", func() error { return s.Session.RemoveMember(ctx, id) })
}

func (s farmSession) Reset(ctx context.Context, request talos.ResetRequest) error {
	return s.around(ctx, "Reset", func() error { return s.Session.Reset(ctx, request) })
}

func (s farmSession) Reboot(ctx context.Context, mode talos.RebootMode) error {
	return s.around(ctx, "Reboot", func() error { return s.Session.Reboot(ctx, mode) })
}

func (s farmSession) RestartService(ctx context.Context, id string) error {
	return s.around(ctx, "ServiceRestart", func() error { return s.Session.RestartService(ctx, id) })
}
