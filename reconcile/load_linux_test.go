package reconcile

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clocktesting "k8s.io/utils/clock/testing"

	"ichor.maesh.dev/internal/gittest"
	"ichor.maesh.dev/internal/s3gateway"
	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/statefile/storetest"
)

// loadShape is a fleet, and the agents that look after it. The clusters are spread over as many shards as there are agents.
type loadShape struct{ clusters, machines, agents int }

func (s loadShape) name() string {
	name := fmt.Sprintf("%d clusters of %d machines", s.clusters, s.machines)
	if s.agents > 1 {
		name += fmt.Sprintf(" %d agents", s.agents)
	}
	return name
}

// loadMinutes is how many minutes of the agents' own time are counted. What is done once an hour is counted apart.
const loadMinutes = 2

// BenchmarkLoad puts agents over fleets of growing size, with their state in a real S3 server, and reports what the fleet costs: the time
// is that of one pass over all clusters that finds nothing to do. Requests are counted over minutes in which nothing happens, by a
// clock that the benchmark turns: passes, polls and renewals come as often as in an agent. Each shape wants a process of its own, for the
// memory's sake.
func BenchmarkLoad(b *testing.B) {
	shapes := []loadShape{}
	for _, n := range []int{10, 100, 300, 1000} {
		shapes = append(shapes, loadShape{n, 10, 1})
	}
	for _, n := range []int{10, 100, 300, 1000} {
		shapes = append(shapes, loadShape{1, n, 1})
	}
	shapes = append(shapes, loadShape{1000, 10, 4})
	for _, shape := range shapes {
		b.Run(shape.name(), func(b *testing.B) { benchLoad(b, shape) })
	}
}

func benchLoad(b *testing.B, shape loadShape) {
	ctx := context.Background()
	f := newLoadedFleet(b, shape)
	figures := map[string]float64{} // reported at the end, since b.Loop forgets what was reported before it
	report := func(value float64, unit string) { figures[unit] = value }
	perMinute := func(before map[string]uint64, name string) float64 {
		return float64(f.requests()[name]-before[name]) / loadMinutes
	}

	before := heap()
	spent := measure(b, func() { f.start(b, ctx) })
	report(spent.wall.Seconds(), "s-first")
	report(spent.cpu.Seconds(), "cpu-s-first")
	report(float64(total(f.requests())), "requests-first")
	report(float64(heap()-before)/float64(shape.agents)/(1<<20), "kept-MiB")

	f.minute(ctx) // what the start still had to write is written
	known, polls := f.requests(), f.polls()
	observed := f.world.calls.observe.Load()
	for range loadMinutes {
		f.minute(ctx)
	}
	f.mustBeReady(b)
	for name, count := range f.requests() {
		if count > known[name] {
			report(perMinute(known, name), name+"/min")
		}
	}
	report(float64(f.polls()-polls)/loadMinutes, "ls-remote/min")
	report(float64(f.world.calls.observe.Load()-observed)/loadMinutes, "Observe/min")
	report(float64(f.world.calls.dial.Load()), "Dial")

	f.clock.Step(time.Hour)
	f.renew(ctx)
	known = f.requests()
	f.passes(ctx)
	report(float64(f.requests()["ListObjectsV2"]-known["ListObjectsV2"]), "ListObjectsV2/hour")
	f.passes(ctx)
	f.mustBeReady(b)

	known = f.requests()
	f.world.repository.Commit(gittest.Files{"README.md": "a change that touches no machine\n"})
	spent = measure(b, func() { f.catchUp(b, ctx) })
	report(spent.wall.Seconds(), "s-commit")
	report(spent.cpu.Seconds(), "cpu-s-commit")
	report(float64(total(f.requests())-total(known)), "requests-commit")

	var cpu time.Duration
	for b.Loop() {
		cpu += measure(b, func() { f.passes(ctx) }).cpu
	}
	report(float64(cpu.Milliseconds())/float64(b.N), "cpu-ms/op")
	f.mustBeReady(b)

	f.stop(b, ctx)
	spent = measure(b, func() { f.start(b, ctx) })
	report(spent.wall.Seconds(), "s-restart")
	report(spent.cpu.Seconds(), "cpu-s-restart")
	report(float64(peakMemory(b))/(1<<20), "peak-MiB")
	for unit, value := range figures {
		b.ReportMetric(value, unit)
	}
}

// BenchmarkPassBesideAHangingCluster makes passes over twenty clusters, by turns while nothing else goes on and while all machines of another
// cluster hang, and reports the ratio. The time is that of both together.
func BenchmarkPassBesideAHangingCluster(b *testing.B) {
	for _, machines := range []int{10, 1000} {
		b.Run(fmt.Sprintf("of %d machines", machines), func(b *testing.B) { benchHanging(b, machines) })
	}
}

func benchHanging(b *testing.B, machines int) {
	const rounds = 50
	store := storetest.NewMemory()
	sizes := append([]int{machines}, slices.Repeat([]int{10}, 20)...)
	world := newSettledWorldOf(b, sizes, statefile.LocationHash(store), farAway)
	timing := DefaultTiming()
	timing.Observe = time.Hour // they hang until the benchmark lets them go
	clock := clocktesting.NewFakeClock(time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC))
	f := world.newAgent(b, store, Config{Leases: []ShardLease{&heldLease{token: 1}}, Clock: clock, Clocks: statefile.SystemClocks(), Timing: timing})
	f.settle(b, context.Background())
	all := f.agent.current()
	hanging, others := all[0], all[1:]
	nodes := world.nodes[world.bundles[hanging.name].ClusterID()]
	round := func() spent { return measure(b, func() { passOnce(others) }) }
	var alone, beside spent
	for b.Loop() {
		for range rounds {
			clock.Step(timing.Steady)
			alone.add(round())
			ctx, release := context.WithCancel(context.Background())
			nodes.hang = make(chan struct{})
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				hanging.once(ctx)
			}()
			for range min(machines, lookedAtOnce) {
				<-nodes.hang
			}
			beside.add(round())
			release()
			<-ended
			nodes.hang = nil
		}
	}
	b.ReportMetric(float64(beside.wall)/float64(alone.wall), "×-nobody-hanging")
	b.ReportMetric(float64(beside.cpu)/float64(alone.cpu), "×-its-processor-time")
}

// passOnce lets each of several clusters make a pass, side by side.
func passOnce(workers []*worker) {
	var group sync.WaitGroup
	for _, w := range workers {
		group.Go(func() { w.once(context.Background()) })
	}
	group.Wait()
}

// loadedFleet is a fleet with its agents.
type loadedFleet struct {
	shape  loadShape
	world  *settledWorld
	store  statefile.Store
	sent   *statefile.Requests
	clock  *clocktesting.FakeClock
	agents []*settledAgent
	leases [][]*statefile.Lease // by agent
	tb     testing.TB
}

func newLoadedFleet(b *testing.B, shape loadShape) *loadedFleet {
	b.Helper()
	server, err := s3gateway.StartChild(b.Context(), s3gateway.Options{Dir: b.TempDir(), Access: backupAccess, Secret: backupSecret, Buckets: []string{"state"}})
	require.NoError(b, err)
	b.Cleanup(server.Stop)
	f := &loadedFleet{shape: shape, sent: &statefile.Requests{}, clock: clocktesting.NewFakeClock(time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)), tb: b}
	f.store, err = statefile.OpenS3(b.Context(), statefile.S3Config{Endpoint: server.Endpoint, Region: s3gateway.Region, Bucket: "state", Prefix: "load",
		Credentials: &statefile.S3Credentials{AccessKeyID: backupAccess, SecretAccessKey: backupSecret}, Addressing: "path", Requests: f.sent,
		Use: statefile.BucketOfState, Timeout: 5 * time.Minute}) // the server shares the processors with all of this
	require.NoError(b, err)
	b.Cleanup(func() { f.store.Close() })
	f.world = newSettledWorld(b, shape.clusters, shape.machines, statefile.LocationHash(f.store))
	return f
}

// Now implements statefile.Clocks.
func (f *loadedFleet) Now() statefile.Instant {
	since := f.clock.Since(time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC))
	return statefile.Instant{Monotonic: since, Boot: since, Wall: f.clock.Now()}
}

// start starts the agents and brings each cluster to where nothing is left to do.
func (f *loadedFleet) start(b *testing.B, ctx context.Context) {
	f.agents, f.leases = nil, nil
	for range f.shape.agents {
		holder := statefile.NewNonce()
		config := Config{Clock: f.clock, Clocks: f, Bell: statefile.NewBell(f.store).Rings}
		config.Inbox = func(ctx context.Context, cluster string) ([]statefile.InboxFile, bool, error) {
			return statefile.ReadInbox(ctx, f.store, cluster)
		}
		var leases []*statefile.Lease
		for shard := range f.shape.agents {
			lease, err := statefile.NewLease(f.store, statefile.LeaseOptions{Shard: shard, Holder: holder, Clocks: f})
			require.NoError(b, err)
			leases = append(leases, lease)
			config.Leases = append(config.Leases, lease)
		}
		f.leases = append(f.leases, leases)
		f.agents = append(f.agents, f.world.newAgent(b, f.store, config))
	}
	f.renew(ctx)
	for range 20 {
		for _, agent := range f.agents {
			agent.agent.pollOnce(ctx)
		}
		f.passes(ctx)
		f.clock.Step(time.Second)
		if f.unready() == "" {
			return
		}
	}
	b.Fatal(f.unready())
}

// stop gives the leases back, as an agent does at its end.
func (f *loadedFleet) stop(b *testing.B, ctx context.Context) {
	for n := range f.agents {
		require.NoError(b, f.leases[n][n].Release(ctx))
	}
	f.agents = nil
}

// renew lets each agent ask for its leases: all for the one that is their own first, so that none is found stale by another.
func (f *loadedFleet) renew(ctx context.Context) {
	for shard := range f.shape.agents {
		for n, leases := range f.leases {
			if _, err := leases[(n+shard)%len(leases)].Tick(ctx); err != nil {
				f.tb.Error(err)
			}
		}
	}
}

// passes lets every agent make a pass over each of its clusters, one agent after the other.
func (f *loadedFleet) passes(ctx context.Context) {
	for _, agent := range f.agents {
		agent.passes(ctx)
	}
}

// minute is a minute in which nothing happens: a poll, four passes and twelve renewals.
func (f *loadedFleet) minute(ctx context.Context) {
	for _, agent := range f.agents {
		agent.agent.pollOnce(ctx)
	}
	for second := 0; second < 60; second += int(statefile.LeaseRenew / time.Second) {
		if second%int(DefaultTiming().Steady/time.Second) == 0 {
			f.passes(ctx)
		}
		f.clock.Step(statefile.LeaseRenew)
		f.renew(ctx)
	}
}

// catchUp lets the agents see the newest commit, and every cluster arrive there.
func (f *loadedFleet) catchUp(b *testing.B, ctx context.Context) {
	for _, agent := range f.agents {
		agent.agent.pollOnce(ctx)
	}
	f.passes(ctx)
	head := f.world.repository.Tip("main")
	for n, agent := range f.agents {
		for _, w := range agent.agent.current() {
			if agent.agent.shard(w.name) == n && w.report().State.Revision.Applied != head {
				b.Fatalf("%s did not arrive at the newest commit: %v", w.name, w.report().Ready)
			}
		}
	}
}

// unready says of the first cluster that isn't Ready at its own agent why; empty when all are.
func (f *loadedFleet) unready() string {
	for n, agent := range f.agents {
		for _, w := range agent.agent.current() {
			if r := w.report(); agent.agent.shard(w.name) == n && (!r.Ready.Status || r.Blocked) {
				return fmt.Sprintf("%s: %s: %s", w.name, r.Ready.Reason, r.Ready.Message)
			}
		}
	}
	return ""
}

func (f *loadedFleet) mustBeReady(b *testing.B) {
	b.Helper()
	if why := f.unready(); why != "" {
		b.Fatal(why)
	}
}

func (f *loadedFleet) requests() map[string]uint64 {
	counts := map[string]uint64{}
	for _, c := range f.sent.Counts() {
		counts[c.Operation] = c.Sent
	}
	return counts
}

func (f *loadedFleet) polls() (polls int64) {
	for _, agent := range f.agents {
		polls += agent.source.Stats().Polls
	}
	return polls
}

func total(counts map[string]uint64) (sum uint64) {
	for _, count := range counts {
		sum += count
	}
	return sum
}

type spent struct{ wall, cpu time.Duration }

func (s *spent) add(more spent) { s.wall, s.cpu = s.wall+more.wall, s.cpu+more.cpu }

// measure says how long something took, and how much of the processors' time this process used meanwhile.
func measure(tb testing.TB, what func()) spent {
	began, used := time.Now(), processorTime(tb)
	what()
	return spent{time.Since(began), processorTime(tb) - used}
}

func processorTime(tb testing.TB) time.Duration {
	var usage syscall.Rusage
	require.NoError(tb, syscall.Getrusage(syscall.RUSAGE_SELF, &usage))
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// heap is what is kept in memory, in bytes.
func heap() int64 {
	debug.FreeOSMemory()
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	return int64(memory.HeapAlloc)
}

// peakMemory is the most memory that this process ever had, in bytes.
func peakMemory(tb testing.TB) int64 {
	text, err := os.ReadFile("/proc/self/status")
	require.NoError(tb, err)
	_, rest, found := bytes.Cut(text, []byte("VmHWM:"))
	require.True(tb, found)
	kilobytes, err := strconv.ParseInt(string(bytes.Fields(rest)[0]), 10, 64)
	require.NoError(tb, err)
	return kilobytes << 10
}
