package statefile_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clocktesting "k8s.io/utils/clock/testing"

	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/statefile/storetest"
)

// handClocks are the clocks of one machine, turned by hand.
type handClocks struct {
	mu  sync.Mutex
	now statefile.Instant
}

func newHandClocks() *handClocks {
	return &handClocks{now: statefile.Instant{Monotonic: time.Hour, Boot: 2 * time.Hour, Wall: noon}}
}

func (c *handClocks) Now() statefile.Instant {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// run lets all three clocks go on.
func (c *handClocks) run(d time.Duration) { c.turn(d, d, d) }

// turn lets each clock go on by so much: a machine that sleeps has no monotonic time, a clock that is set only wall time.
func (c *handClocks) turn(monotonic, boot, wall time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now.Monotonic += monotonic
	c.now.Boot += boot
	c.now.Wall = c.now.Wall.Add(wall)
}

func newLease(t *testing.T, store statefile.Store, holder string, clocks statefile.Clocks) *statefile.Lease {
	t.Helper()
	lease, err := statefile.NewLease(store, statefile.LeaseOptions{Holder: holder, Clocks: clocks})
	require.NoError(t, err)
	return lease
}

func tick(t *testing.T, lease *statefile.Lease) time.Duration {
	t.Helper()
	next, err := lease.Tick(t.Context())
	require.NoError(t, err)
	return next
}

func requireHeld(t *testing.T, lease *statefile.Lease, want bool) {
	t.Helper()
	_, held := lease.Age()
	require.Equal(t, want, held)
	require.Equal(t, want, lease.Status().Held)
}

func TestAFreeLeaseIsTakenAtOnceAndRenewed(t *testing.T) {
	store, clocks := storetest.NewMemory(), newHandClocks()
	lease := newLease(t, store, "first", clocks)
	requireHeld(t, lease, false)
	require.Equal(t, statefile.LeaseRenew, tick(t, lease))
	requireHeld(t, lease, true)
	require.Equal(t, statefile.LeaseStatus{Held: true, Holder: "first", Token: 1}, lease.Status())

	for range 10 {
		clocks.run(statefile.LeaseRenew)
		age, _ := lease.Age()
		require.Equal(t, statefile.LeaseRenew, age)
		tick(t, lease)
		age, _ = lease.Age()
		require.Zero(t, age)
	}
	require.Equal(t, uint64(1), lease.Status().Token, "renewing changes no token")
	status, err := statefile.ReadLease(t.Context(), store, 0)
	require.NoError(t, err)
	require.Equal(t, "first", status.Holder)
}

func TestAChallengerTakesALeaseOnlyAfterTheSameRecordStoodForAWholeTTL(t *testing.T) {
	store, mine, theirs := storetest.NewMemory(), newHandClocks(), newHandClocks()
	holder, challenger := newLease(t, store, "holder", mine), newLease(t, store, "challenger", theirs)
	tick(t, holder)
	for range 20 { // as long as it is renewed
		require.LessOrEqual(t, tick(t, challenger), statefile.LeaseRenew)
		requireHeld(t, challenger, false)
		mine.run(statefile.LeaseRenew)
		theirs.run(statefile.LeaseRenew)
		tick(t, holder)
	}
	tick(t, challenger) // sees the last renewal
	theirs.run(statefile.LeaseTTL - time.Second)
	require.Equal(t, time.Second, tick(t, challenger), "it looks again just when the TTL is over")
	requireHeld(t, challenger, false)
	theirs.run(time.Second)
	tick(t, challenger)
	requireHeld(t, challenger, true)
	require.Equal(t, uint64(2), challenger.Status().Token)

	_, err := holder.Tick(t.Context())
	require.ErrorIs(t, err, statefile.ErrConflict)
	requireHeld(t, holder, false)
	require.Equal(t, "challenger", holder.Status().Holder)
}

func TestAnotherMachinesClockAndASetClockTakeNoLease(t *testing.T) {
	store, mine, theirs := storetest.NewMemory(), newHandClocks(), newHandClocks()
	theirs.turn(0, 0, 24*time.Hour)
	holder, challenger := newLease(t, store, "holder", mine), newLease(t, store, "challenger", theirs)
	tick(t, holder)
	tick(t, challenger)
	theirs.turn(0, 0, 24*time.Hour)
	tick(t, challenger)
	requireHeld(t, challenger, false)
	theirs.turn(0, time.Hour, time.Hour) // it slept; the record may have been renewed and the machine not noticed
	tick(t, challenger)
	requireHeld(t, challenger, false)
}

func TestTheAgeOfALeaseIsTheLargestThatAnyClockSays(t *testing.T) {
	for _, test := range []struct {
		name                  string
		monotonic, boot, wall time.Duration
		age                   time.Duration
		held                  bool
	}{
		{"nothing happened", 0, 0, 0, 0, true},
		{"time went on", 9 * time.Second, 9 * time.Second, 9 * time.Second, 9 * time.Second, true},
		{"the machine slept", time.Second, time.Minute, time.Minute, time.Minute, false},
		{"the wall clock was set forward", time.Second, time.Second, time.Hour, time.Hour, false},
		{"the wall clock was set back", 16 * time.Second, 16 * time.Second, -time.Hour, 16 * time.Second, false},
		{"only the boot-time clock noticed", 0, 15 * time.Second, 0, 15 * time.Second, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			clocks := newHandClocks()
			lease := newLease(t, storetest.NewMemory(), "first", clocks)
			tick(t, lease)
			clocks.turn(test.monotonic, test.boot, test.wall)
			age, held := lease.Age()
			require.Equal(t, test.age, age)
			require.Equal(t, test.held, held)
		})
	}
}

// slowStore lets time go by while a call is under way.
type slowStore struct {
	statefile.Store
	before, after func()
}

func (s *slowStore) Put(ctx context.Context, key string, data []byte, cond statefile.If) (string, error) {
	s.before()
	defer s.after()
	return s.Store.Put(ctx, key, data, cond)
}

func TestTheAgeCountsFromTheStartOfTheRenewal(t *testing.T) {
	clocks := newHandClocks()
	store := &slowStore{Store: storetest.NewMemory(), before: func() { clocks.run(2 * time.Second) }, after: func() { clocks.run(time.Second) }}
	lease := newLease(t, store, "first", clocks)
	tick(t, lease)
	age, held := lease.Age()
	require.Equal(t, 3*time.Second, age)
	require.True(t, held)
	clocks.run(statefile.LeaseRenew)
	require.Equal(t, statefile.LeaseRenew-3*time.Second, tick(t, lease), "the pause is between the starts")
	age, _ = lease.Age()
	require.Equal(t, 3*time.Second, age)
}

func TestAFrozenHolderFindsThatItHoldsNothingWhenItThaws(t *testing.T) {
	store, mine, theirs := storetest.NewMemory(), newHandClocks(), newHandClocks()
	holder, challenger := newLease(t, store, "holder", mine), newLease(t, store, "challenger", theirs)
	tick(t, holder)
	requireHeld(t, holder, true)
	tick(t, challenger)

	mine.turn(0, time.Minute, time.Minute) // frozen with its machine: no monotonic time
	theirs.run(time.Minute)
	tick(t, challenger)
	requireHeld(t, challenger, true)
	requireHeld(t, holder, false)
	_, err := holder.Tick(t.Context())
	require.ErrorIs(t, err, statefile.ErrConflict)
	requireHeld(t, challenger, true)
}

func TestALeaseThatNobodyTookMeanwhileIsRenewedAfterItsTTL(t *testing.T) {
	clocks := newHandClocks()
	lease := newLease(t, storetest.NewMemory(), "first", clocks)
	tick(t, lease)
	clocks.run(time.Minute)
	requireHeld(t, lease, false)
	tick(t, lease)
	requireHeld(t, lease, true)
	require.Equal(t, uint64(1), lease.Status().Token)
}

func TestAStoreThatIsAwayDoesNotRenew(t *testing.T) {
	clocks := newHandClocks()
	fault := storetest.None
	lease := newLease(t, storetest.NewFaulty(storetest.NewMemory(), func(storetest.Call) storetest.Fault { return fault }), "first", clocks)
	tick(t, lease)
	fault = storetest.Unavailable
	for range 2 {
		clocks.run(statefile.LeaseRenew)
		_, err := lease.Tick(t.Context())
		require.ErrorIs(t, err, statefile.ErrUnacknowledged)
		requireHeld(t, lease, true)
		require.NotEmpty(t, lease.Status().Problem)
	}
	clocks.run(statefile.LeaseRenew)
	requireHeld(t, lease, false)
	fault = storetest.None
	tick(t, lease)
	requireHeld(t, lease, true)
	require.Empty(t, lease.Status().Problem)
}

func TestARenewalThatFailedIsTriedAgainSoonWhileTheLeaseIsHeld(t *testing.T) {
	store, clocks := &away{Store: storetest.NewMemory()}, newHandClocks()
	lease := newLease(t, store, "first", clocks)
	tick(t, lease)
	store.gone = true
	for held := time.Duration(0); held < statefile.LeaseTTL; held += time.Second {
		next, err := lease.Tick(t.Context())
		require.Error(t, err)
		require.Equal(t, time.Second, next)
		clocks.run(time.Second)
	}
	next, err := lease.Tick(t.Context())
	require.Error(t, err)
	require.Equal(t, statefile.LeaseRenew, next, "it is lost, and there is no hurry any more")
}

// away is a store that can't be reached while it is gone.
type away struct {
	statefile.Store
	gone bool
}

func (a *away) Get(ctx context.Context, key, known string) (*statefile.Object, error) {
	if a.gone {
		return nil, statefile.ErrUnavailable
	}
	return a.Store.Get(ctx, key, known)
}

func (a *away) Put(ctx context.Context, key string, data []byte, cond statefile.If) (string, error) {
	if a.gone {
		return "", statefile.ErrUnavailable
	}
	return a.Store.Put(ctx, key, data, cond)
}

func TestARenewalWhoseAnswerIsLostCountsFromItsStart(t *testing.T) {
	for name, fault := range map[string]storetest.Fault{
		"the answer is lost":                  storetest.LostReply,
		"a copy of the request came in later": storetest.ConflictAfterEffect,
	} {
		t.Run(name, func(t *testing.T) {
			clocks, now := newHandClocks(), storetest.None
			store := storetest.NewMemory()
			lease := newLease(t, storetest.NewFaulty(store, func(call storetest.Call) storetest.Fault {
				if call.Op == storetest.Put {
					return now
				}
				return storetest.None
			}), "first", clocks)
			now = fault
			tick(t, lease)
			clocks.run(statefile.LeaseRenew)
			tick(t, lease)
			age, held := lease.Age()
			require.Zero(t, age)
			require.True(t, held)
		})
	}
}

func TestAnEarlierRenewalThatComesLateTakesNothingAway(t *testing.T) {
	clocks, memory := newHandClocks(), storetest.NewMemory()
	late := false
	lease := newLease(t, storetest.NewFaulty(memory, func(call storetest.Call) storetest.Fault {
		if late && call.Op == storetest.Put {
			late = false
			return storetest.LateRequest
		}
		return storetest.None
	}), "first", clocks)
	tick(t, lease)
	clocks.run(statefile.LeaseRenew)
	late = true
	before := memory.Snapshot()
	_, err := lease.Tick(t.Context())
	require.ErrorIs(t, err, statefile.ErrUnacknowledged)
	require.Equal(t, before, memory.Snapshot(), "the renewal is on its way still")
	clocks.run(statefile.LeaseRenew)
	age, _ := lease.Age()
	require.Equal(t, 2*statefile.LeaseRenew, age, "it counts from the last that is known to have succeeded")
	tick(t, lease)
	requireHeld(t, lease, true)
	age, _ = lease.Age()
	require.Zero(t, age)
}

func TestAReleasedLeaseIsTakenAtOnce(t *testing.T) {
	store, clocks := storetest.NewMemory(), newHandClocks()
	first, second := newLease(t, store, "first", clocks), newLease(t, store, "second", clocks)
	require.NoError(t, second.Release(t.Context()), "what is not held needs no release")
	tick(t, first)
	tick(t, second)
	require.NoError(t, first.Release(t.Context()))
	requireHeld(t, first, false)
	tick(t, second)
	requireHeld(t, second, true)
	require.Equal(t, uint64(2), second.Status().Token)
	require.NoError(t, first.Release(t.Context()))
	requireHeld(t, second, true)
}

func TestOfManyThatWantALeaseOneHasIt(t *testing.T) {
	store := storetest.NewMemory()
	held := make([]bool, 16)
	var group sync.WaitGroup
	for i := range held {
		group.Go(func() {
			lease := newLease(t, store, fmt.Sprint(i), newHandClocks())
			if _, err := lease.Tick(t.Context()); err != nil {
				t.Errorf("ticking: %v", err)
			}
			_, held[i] = lease.Age()
		})
	}
	group.Wait()
	holders := 0
	for _, is := range held {
		if is {
			holders++
		}
	}
	require.Equal(t, 1, holders)
}

func TestALeaseThatCanNotBeReadIsNotTaken(t *testing.T) {
	for name, data := range map[string]string{
		"garbage":       "x",
		"another shard": `{"schemaVersion":1,"shard":7,"holder":"x","token":1,"generation":1,"nonce":"n","renewedAt":"2026-11-29T12:00:00Z"}`,
		"a newer one":   `{"schemaVersion":2}`,
	} {
		t.Run(name, func(t *testing.T) {
			store := storetest.NewMemory()
			store.Tamper("leases/0.json", []byte(data))
			lease := newLease(t, store, "first", newHandClocks())
			_, err := lease.Tick(t.Context())
			require.Error(t, err)
			requireHeld(t, lease, false)
			require.Equal(t, data, string(store.Snapshot()["leases/0.json"]))
		})
	}
}

func TestRunRenewsAndSaysWhenTheHolderChanges(t *testing.T) {
	store, clocks := storetest.NewMemory(), newHandClocks()
	fake := clocktesting.NewFakeClock(noon)
	lease, err := statefile.NewLease(store, statefile.LeaseOptions{Shard: 3, Holder: "first", Clocks: clocks, Clock: fake})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	changes := make(chan statefile.LeaseStatus, 10)
	done := make(chan error, 1)
	go func() { done <- lease.Run(ctx, func(status statefile.LeaseStatus) { changes <- status }) }()
	require.Equal(t, statefile.LeaseStatus{Held: true, Holder: "first", Token: 1}, <-changes)
	for range 3 {
		require.Eventually(t, fake.HasWaiters, 3*time.Minute, time.Millisecond)
		clocks.run(statefile.LeaseRenew)
		fake.Step(statefile.LeaseRenew)
		require.Eventually(t, func() bool { age, _ := lease.Age(); return age == 0 }, 3*time.Minute, time.Millisecond)
	}
	// Another takes it behind its back.
	var record map[string]any
	require.NoError(t, json.Unmarshal(store.Snapshot()["leases/3.json"], &record))
	record["holder"], record["nonce"], record["token"] = "second", "other", 2
	data, err := json.Marshal(record)
	require.NoError(t, err)
	store.Tamper("leases/3.json", data)
	require.Eventually(t, fake.HasWaiters, 3*time.Minute, time.Millisecond)
	clocks.run(statefile.LeaseRenew)
	fake.Step(statefile.LeaseRenew)
	lost := <-changes
	require.False(t, lost.Held)
	require.Equal(t, "second", lost.Holder)
	require.Equal(t, uint64(2), lost.Token)
	cancel()
	require.NoError(t, <-done)
	require.Empty(t, changes)
}

func TestTheNumberOfShardsIsAgreedOnOnce(t *testing.T) {
	store := storetest.NewMemory()
	require.NoError(t, statefile.AgreeShards(t.Context(), store, 4))
	require.NoError(t, statefile.AgreeShards(t.Context(), store, 4))
	err := statefile.AgreeShards(t.Context(), store, 1)
	require.ErrorContains(t, err, "4 shards")
	require.ErrorContains(t, err, "--shards 4")
	require.Error(t, statefile.AgreeShards(t.Context(), store, 0))
	require.Error(t, statefile.AgreeShards(t.Context(), store, statefile.MaxShards+1))
	store.Tamper("leases/shards.json", []byte(`{"schemaVersion":2,"shards":4,"why":"newer"}`))
	require.ErrorIs(t, statefile.AgreeShards(t.Context(), store, 4), statefile.ErrNewerSchema)

	lost := storetest.NewFaulty(storetest.NewMemory(), func(call storetest.Call) storetest.Fault {
		if call.Op == storetest.Put {
			return storetest.LostReply
		}
		return storetest.None
	})
	require.NoError(t, statefile.AgreeShards(t.Context(), lost, 2))
	require.Error(t, statefile.AgreeShards(t.Context(), lost, 3))
}

func TestAClustersShardIsStableAndSpreads(t *testing.T) {
	require.Equal(t, 0, statefile.ShardOf("prod", 1))
	// Fixed for ever: agents of two versions must agree.
	require.Equal(t, []int{2, 0, 1}, []int{statefile.ShardOf("prod", 4), statefile.ShardOf("staging", 4), statefile.ShardOf("lab", 4)})
	counts := map[int]int{}
	for i := range 1000 {
		counts[statefile.ShardOf(fmt.Sprintf("cluster-%d", i), 4)]++
	}
	require.Len(t, counts, 4)
	for shard, count := range counts {
		require.InDelta(t, 250, count, 75, "shard %d", shard)
	}
}

func TestTheSystemsClocksGoOn(t *testing.T) {
	clocks := statefile.SystemClocks()
	then := clocks.Now()
	require.Eventually(t, func() bool {
		now := clocks.Now()
		return now.Monotonic > then.Monotonic && now.Boot > then.Boot && now.Wall.After(then.Wall) && now.Since(then) > 0
	}, 3*time.Minute, time.Millisecond)
	require.Zero(t, then.Since(clocks.Now()), "never negative")
	require.False(t, strings.Contains(then.Wall.String(), "m="), "the wall clock carries no monotonic reading")
}
