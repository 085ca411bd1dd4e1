package reconcile

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clocktesting "k8s.io/utils/clock/testing"

	"ichor.maesh.dev/statefile"
)

// fastClock goes slower than the real one until it is hurried, and several times as fast then: a lease of 15 s ends after 15 s of it. It
// goes on in small steps, so that on a busy host, where an agent comes to its renewals late, it is late as well. Before the agent that
// holds the lease is gone nobody may take it, however late a renewal is.
type fastClock struct {
	*clocktesting.FakeClock
	start   time.Time
	times   time.Duration
	hurried atomic.Bool
}

// hurry lets it run fast from now on, calm slowly again.
func (c *fastClock) hurry() { c.hurried.Store(true) }

func (c *fastClock) calm() { c.hurried.Store(false) }

func newFastClock(t *testing.T, times int) *fastClock {
	start := time.Now()
	c := &fastClock{FakeClock: clocktesting.NewFakeClock(start), start: start, times: time.Duration(times)}
	go func() {
		const step = 5 * time.Millisecond
		ticker := time.NewTicker(step)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				if c.hurried.Load() {
					c.Step(step * c.times)
				} else {
					c.Step(step / 2)
				}
			case <-t.Context().Done():
				return
			}
		}
	}()
	return c
}

// fastClocks are the three clocks read from a fastClock.
type fastClocks struct{ clock *fastClock }

func (c fastClocks) Now() statefile.Instant {
	now := c.clock.Now()
	since := now.Sub(c.clock.start)
	return statefile.Instant{Monotonic: since, Boot: since, Wall: now}
}

// tappedStore is the store of one agent behind its tap, for the lease.
type tappedStore struct {
	statefile.Store
	tap *tap
}

func (s tappedStore) Get(ctx context.Context, key, known string) (*statefile.Object, error) {
	if s.tap.freeze != nil {
		s.tap.freeze("store")
	}
	if err := s.tap.alive(); err != nil {
		return nil, err
	}
	return s.Store.Get(ctx, key, known)
}

func (s tappedStore) Put(ctx context.Context, key string, data []byte, cond statefile.If) (string, error) {
	if s.tap.freeze != nil {
		s.tap.freeze("store")
	}
	if err := s.tap.alive(); err != nil {
		return "", err
	}
	return s.Store.Put(ctx, key, data, cond)
}

// leased gives an agent a real lease, in time that runs fast.
func (l *lab) leased(writer string, p *tap, fast *fastClock) Config {
	config := tapped(l.config(writer), p)
	lease, err := statefile.NewLease(tappedStore{l.store, p}, statefile.LeaseOptions{Holder: writer, Clock: fast, Clocks: fastClocks{fast}})
	require.NoError(l.t, err)
	config.Leases = []ShardLease{lease}
	config.Clocks = fastClocks{fast}
	config.Timing.WriterQuiet = 15 * time.Second / fast.times
	return config
}

// start runs an agent in the background and gives it with what stops it.
func start(config Config) (agent *Agent, stop func()) {
	agent = New(config)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = agent.Run(ctx)
	}()
	return agent, func() { cancel(); <-done }
}

// TestOneOfTwoAgentsActsAndTheOtherGoesOnWhenItIsKilled: the other takes over then and not before, and no machine took a call twice.
// How soon is the lease's: its own tests turn its clock.
func TestOneOfTwoAgentsActsAndTheOtherGoesOnWhenItIsKilled(t *testing.T) {
	l := newHurriedLab(t, "127.0.54.1")
	fast := newFastClock(t, 3)
	first := newTap(func(point string) bool { return point == "after Bootstrap cp-1" })
	_, stopFirst := start(l.leased("agent-1", first, fast))
	defer stopFirst()
	taken := make(chan bool, 1)
	second := newTap(func(point string) bool {
		if point == "after writer taken over" {
			select {
			case taken <- first.alive() == nil:
			default:
			}
		}
		return false
	})
	require.Eventually(t, func() bool { return l.leaseHolder() == "agent-1" }, ample, 10*time.Millisecond)
	standby, stopSecond := start(l.leased("agent-2", second, fast))
	defer stopSecond()
	select {
	case <-first.died:
	case <-time.After(ample):
		t.Fatal("agent-1 did not get as far as the bootstrap")
	}
	fast.hurry()
	select {
	case early := <-taken:
		require.False(t, early, "agent-2 took over while agent-1 was at work")
	case <-time.After(ample):
		t.Fatal("agent-2 did not take over")
	}
	require.Eventually(t, func() bool { return allReady(standby.Report()) }, ample, 50*time.Millisecond)
	l.oneEtcdOfThree()
}

func (l *lab) leaseHolder() string {
	status, err := statefile.ReadLease(context.Background(), l.store, 0)
	if err != nil {
		return ""
	}
	return status.Holder
}

// TestAFrozenAgentThawedSendsNothingIntoALaterBoot freezes an agent inside the gate, as SIGSTOP does, until another took over and
// brought the cluster up, and thaws it then.
func TestAFrozenAgentThawedSendsNothingIntoALaterBoot(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, first, point string
		cycle              string
	}{
		{"after the intent was written and before the last look at the clock", "127.0.54.11", "after state Intent bootstrap cp-1", ""},
		{"just before the call leaves, the machine being power-cycled meanwhile", "127.0.54.21", "before Bootstrap cp-1", "cp-1"},
		{"just before a first config leaves", "127.0.54.31", "before ApplyConfig cp-2", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			l := newHurriedLab(t, test.first)
			fast := newFastClock(t, 3)
			ice := newIce(test.point)
			frozen := newTap(nil)
			frozen.freeze = ice.freeze
			_, stopFirst := start(l.leased("agent-1", frozen, fast))
			defer stopFirst()
			defer ice.thaw()
			select {
			case <-ice.frozen:
			case <-time.After(ample):
				t.Fatal("agent-1 did not get as far")
			}
			fast.hurry()
			if test.cycle != "" {
				require.NoError(t, l.farm.Node(test.cycle).PowerCycle())
			}
			second, stopSecond := start(l.leased("agent-2", newTap(nil), fast))
			defer stopSecond()
			require.Eventually(t, func() bool { return allReady(second.Report()) }, ample, 50*time.Millisecond,
				"%v", second.Report().Problems())
			fast.calm() // agent-2 keeps the lease, however late it renews it
			ice.thaw()
			select {
			case <-ice.passed:
			case <-time.After(ample):
				t.Fatal("agent-1 did not go on")
			}
			// It goes on for a while, and may do whatever it likes.
			require.Never(t, func() bool {
				total := 0
				for _, n := range l.accepted("Bootstrap") {
					total += n
				}
				return total != 1
			}, 2*time.Second, 50*time.Millisecond)
			l.oneEtcdOfThree()
			state, err := l.openState(t, "reader").Load(context.Background())
			require.NoError(t, err)
			require.Equal(t, "agent-2", state.Writer.ID)
		})
	}
}

func (l *lab) openState(t *testing.T, writer string) StateStore {
	state, err := l.config(writer).OpenState("prod", l.fleet.bundle)
	require.NoError(t, err)
	return state
}

// ice freezes everything that an agent does from a point on.
type ice struct {
	point          string
	frozen, passed chan struct{}
	melted         chan struct{}
	mu             sync.Mutex
	solid          bool
	once, out      sync.Once
}

func newIce(point string) *ice {
	return &ice{point: point, frozen: make(chan struct{}), passed: make(chan struct{}), melted: make(chan struct{})}
}

func (i *ice) freeze(point string) {
	i.mu.Lock()
	if point == i.point && !i.solid {
		i.solid = true
		i.once.Do(func() { close(i.frozen) })
	}
	solid := i.solid
	i.mu.Unlock()
	if !solid {
		return
	}
	<-i.melted
	if point == i.point {
		i.out.Do(func() { close(i.passed) })
	}
}

func (i *ice) thaw() {
	i.mu.Lock()
	defer i.mu.Unlock()
	select {
	case <-i.melted:
	default:
		close(i.melted)
	}
}

// TestAnAgentOnAnotherStateTouchesNothing: machines bear the mark of the state they are managed from.
func TestAnAgentOnAnotherStateTouchesNothing(t *testing.T) {
	t.Parallel()
	l := newLab(t, "127.0.54.41", 1, 1, 20)
	report := l.run(l.config("agent-1"), allReady)
	require.True(t, allReady(report), "%v", report.Problems())
	calls := l.mutating()

	other := *l
	store, err := statefile.OpenFolder(t.TempDir(), statefile.FolderOptions{})
	require.NoError(t, err)
	defer store.Close()
	other.store = store
	other.source = &memorySource{}
	other.fleet.write("clusters/prod/patch.yaml", "machine:\n  sysctls:\n    net.core.somaxconn: \"1024\"\n")
	cluster := string(other.fleet.files["clusters/prod/cluster.yaml"].Data)
	other.fleet.write("clusters/prod/cluster.yaml", cluster+"  patches: {all: [{inline: {machine: {sysctls: {net.core.somaxconn: \"1024\"}}}}]}\n")
	delete(other.fleet.files, "clusters/prod/patch.yaml")
	other.source.push(other.fleet.files)
	report = other.run(other.config("agent-2"), func(r Report) bool {
		return len(r.Clusters) == 1 && r.Clusters[0].State != nil && r.Clusters[0].State.Machines["w-1"] != nil &&
			r.Clusters[0].State.Machines["w-1"].Ready.Reason == "ManagedElsewhere"
	})
	state := report.Clusters[0].State
	require.NotNil(t, state, "%v", report.Problems())
	require.Equal(t, "ManagedElsewhere", state.Machines["cp-1"].Ready.Reason)
	require.Equal(t, "ManagedElsewhere", state.Machines["w-1"].Ready.Reason)
	require.True(t, state.Bootstrap.Adopted)
	require.Equal(t, calls, l.mutating(), "nothing was sent")
}

// mutating counts the calls that would change something and that machines accepted.
func (l *lab) mutating() int {
	n := 0
	for _, node := range l.farm.Nodes() {
		for _, entry := range node.Journal() {
			if entry.Accepted && entry.Mutating {
				n++
			}
		}
	}
	return n
}

func TestAnotherNumberOfShardsIsRefused(t *testing.T) {
	store, err := statefile.OpenFolder(t.TempDir(), statefile.FolderOptions{})
	require.NoError(t, err)
	defer store.Close()
	require.NoError(t, statefile.AgreeShards(context.Background(), store, 2))
	require.NoError(t, statefile.AgreeShards(context.Background(), store, 2))
	require.ErrorContains(t, statefile.AgreeShards(context.Background(), store, 3), "this state has 2 shards")
}
