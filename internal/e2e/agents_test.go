package e2e

import (
	"context"
	"fmt"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/statefile"
)

// askedOnce is how long a command takes that asks the bucket once.
func (w *world) askedOnce() time.Duration {
	w.t.Helper()
	began := time.Now()
	w.statusText()
	return time.Since(began)
}

// stopsSoon stops an agent and wants that to take no longer than an agent without an open call needs: less than the end of a lease or of
// any call would be waited for, or on a host that is busier than that allows for as long as some commands that ask the bucket once,
// before it and after it.
func (w *world) stopsSoon(a *agent, s syscall.Signal, before time.Duration) time.Duration {
	w.t.Helper()
	took, code := a.stop(s)
	assert.Zero(w.t, code, "after %s: %s", s, tail(a.log.String()))
	if limit := 10 * time.Second; took > limit {
		assert.Less(w.t, took, 10*max(before, w.askedOnce()), "after %s", s)
	}
	return took
}

// holder is who holds the lease; empty when it was given back.
func (w *world) holder() string {
	w.t.Helper()
	status, err := statefile.ReadLease(context.Background(), w.store(), 0)
	require.NoError(w.t, err)
	return status.Holder
}

func TestASignalStopsTheAgentSoonAndTheNextOneActsAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "127.0.81.1", 1, 0)
	a := w.startAgent("one")
	w.awaitState("the cluster Ready", ready)
	b := w.startAgent("two")
	b.awaitSaying(0, "this one stands by")
	for n, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		once, was := w.askedOnce(), w.holder()
		took := w.stopsSoon(a, s, once)
		assert.NotEqual(t, was, w.holder(), "the lease is given back, and the other agent waits for no end of it")
		w.setting(fmt.Sprint(100000 + n))
		began := time.Now()
		w.awaitState("the other agent applying a change", readyAt(w.push()))
		t.Logf("%s: stopped after %s, the other one had applied a change %s later", s, took, time.Since(began))
		a, b = b, w.startAgent(fmt.Sprintf("next-%d", n))
		b.awaitSaying(0, "this one stands by")
	}
	status := w.statusText("-o", "json")
	require.Zero(t, status.code, status.err)
}

func TestASignalStopsAnAgentThatWaitsForItsBucketOrForMachines(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "127.0.82.1", 1, 0)
	once := w.askedOnce()
	w.bucket.Stop()
	a := w.startAgent("one")
	a.awaitSaying(0, "the store can't be reached")
	w.stopsSoon(a, syscall.SIGTERM, once)

	b := w.startAgent("one")
	b.awaitSaying(0, "the store can't be reached")
	w.startBucket()
	w.awaitState("the cluster Ready once the bucket is there", ready)

	w.farm.Node("cp-1").Partition()
	w.awaitState("the machine unreachable", machineIs("cp-1", "Unreachable"))
	w.stopsSoon(b, syscall.SIGINT, w.askedOnce())
	w.farm.Node("cp-1").Heal()
}

func TestOneOfTwoAgentsActsAndTheOtherGoesOnWhenItIsKilledDuringBringUp(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "127.0.83.1", 3, 0)
	a := w.startAgent("one")
	a.awaitSaying(0, `"held":true`)
	b := w.startAgent("two")
	// In the middle: etcd is bootstrapped, and its other members are on their way.
	await(t, "the bootstrap", func(context.Context) error {
		if w.accepted("Bootstrap")["cp-1"] == 0 {
			return fmt.Errorf("accepted: %v", w.accepted("ApplyConfiguration"))
		}
		return nil
	})
	a.kill()
	killed := time.Now()
	b.awaitSaying(0, `"held":true`)
	w.awaitState("the other agent as the writer", func(s *statefile.State) error {
		if s.Writer.Epoch < 2 {
			return fmt.Errorf("the writer's epoch is %d", s.Writer.Epoch)
		}
		return nil
	})
	t.Logf("the other agent went on %s after the first was killed", time.Since(killed))
	w.awaitState("the cluster Ready", ready)
	assert.Equal(t, map[string]int{"cp-1": 1}, w.accepted("Bootstrap"))
	assert.Equal(t, map[string]int{"cp-1": 1, "cp-2": 1, "cp-3": 1}, w.accepted("ApplyConfiguration"))
	assert.Empty(t, b.saying(0, "panic"))

	t.Run("an agent with another state touches nothing and says why", func(t *testing.T) { w.anotherState(t, b) })
	t.Run("an agent with another number of shards refuses to start and says why", func(t *testing.T) {
		w.t = t
		before := w.changes()
		got := w.ichor(append(w.agentArguments("three"), "--shards", "2")...)
		assert.Equal(t, 2, got.code)
		assert.Contains(t, got.err, "this state has 1 shards, and --shards says 2")
		assert.Equal(t, before, w.changes())
	})
}

// anotherState starts an agent whose state is in a folder, beside the one that manages the machines.
func (w *world) anotherState(t *testing.T, first *agent) {
	w.t = t
	first.stop(syscall.SIGTERM) // what the other does must not hang on the first being there
	before := w.changes()
	w.folder = w.path("other-state")
	require.NoError(t, os.MkdirAll(w.folder, 0o700))
	defer func() { w.folder = "" }()
	w.setting("200000")
	w.push()
	other := w.startAgent("other")
	w.awaitState("the machines as another's", func(s *statefile.State) error {
		for _, name := range []string{"cp-1", "cp-2", "cp-3"} {
			if err := machineIs(name, "ManagedElsewhere")(s); err != nil {
				return err
			}
		}
		return nil
	})
	w.passes(other, 5)
	assert.Equal(t, before, w.changes())
	assert.Len(t, other.saying(0, `"machine":"cp-1"`), 1)
	status := w.statusText()
	assert.Equal(t, 1, status.code)
	t.Log(status.out)
	other.stop(syscall.SIGTERM)
}
