package e2e

import (
	"context"
	"fmt"
	"path"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/statefile"
)

// rebooted waits until a machine took as many reboots as that.
func (w *world) rebooted(machine string, times int) {
	w.t.Helper()
	await(w.t, fmt.Sprintf("reboot number %d of %s", times, machine), func(context.Context) error {
		if got := w.accepted("Reboot")[machine]; got != times {
			return fmt.Errorf("%d reboots", got)
		}
		return nil
	})
}

// TestAnOperationIsDoneOnceWhateverBecomesOfItsAgent lets agents race for operations, and kills, freezes and cuts off who carries one out.
func TestAnOperationIsDoneOnceWhateverBecomesOfItsAgent(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "127.0.91.1", 1, 2)
	b := w.standBetween()
	s := w.meet()
	one := w.startAgent("one", w.signing()...)
	two := w.startAgent("two", w.signing()...)
	w.awaitState("the cluster Ready", ready)
	acts, waits := one, two
	if len(two.saying(0, `"held":true`)) > 0 {
		acts, waits = two, one
	}
	texts := map[string]string{}
	submit := func(name, machine string) {
		texts[name] = w.submit(s.alice, orders, name, w.reboot(machine))
		w.push()
	}
	done := func(name string) {
		w.awaitState(name+" done", inPhase(name, texts[name], statefile.OperationCompleted))
	}
	step := func(what string, do func(t *testing.T)) {
		require.True(t, t.Run(what, func(t *testing.T) {
			w.t = t
			defer func() { w.t = w.whole }()
			do(t)
		}))
	}

	step("two agents see the same file, and one of them acts", func(t *testing.T) {
		submit("race", "w-1")
		done("race")
		assert.Equal(t, map[string]int{"Reboot w-1": 1}, w.disruptions())
	})
	step("the bucket goes away in the middle", func(t *testing.T) {
		submit("bucketless", "w-2")
		w.rebooted("w-2", 1)
		from := len(acts.lines())
		w.bucket.Stop()
		acts.awaitSaying(from, "the store can't be reached")
		w.startBucket()
		done("bucketless")
		assert.Equal(t, map[string]int{"Reboot w-1": 1, "Reboot w-2": 1}, w.disruptions())
	})
	step("the agent is killed once the machine took the call", func(t *testing.T) {
		submit("killed", "w-1")
		w.rebooted("w-1", 2)
		w.killActing(&acts, &waits)
		done("killed")
		assert.Equal(t, map[string]int{"Reboot w-1": 2, "Reboot w-2": 1}, w.disruptions())
	})
	step("the agent is frozen between the word that it calls and the call, and goes on when another is done", func(t *testing.T) {
		third := w.startAgent("three", w.signing()...)
		third.awaitSaying(0, "this one stands by")
		frozen := w.acting(acts, third)
		other := acts
		if frozen == acts {
			other = third
		}
		isFrozen, thaw := make(chan struct{}), make(chan struct{})
		b.when("reboot", false, func() {
			_ = frozen.cmd.Process.Signal(syscall.SIGSTOP)
			close(isFrozen)
			<-thaw
		})
		submit("frozen", "w-2")
		select {
		case <-isFrozen:
		case <-time.After(patience):
			close(thaw)
			require.Fail(t, "the moment did not come")
		}
		other.awaitSaying(0, `"held":true`)
		node := w.farm.Node("w-2")
		require.NoError(t, node.PowerCycle())
		done("frozen")
		known := len(node.Journal())
		close(thaw)
		frozen.signal(syscall.SIGCONT)
		frozen.awaitSaying(0, "this one stands by")
		w.passes(frozen, 5)
		for _, entry := range node.Journal()[known:] {
			assert.False(t, entry.Mutating, "%s was sent to a later boot and answered %s", path.Base(entry.Method), entry.Code)
		}
		assert.LessOrEqual(t, w.disruptions()["Reboot w-2"], 2)
	})
	events := w.audit()
	for name, text := range texts {
		counts := told(events, text)
		assert.Equal(t, 1, counts["OperationAccepted"], name)
		assert.Equal(t, 1, counts["OperationCompleted"], name)
		assert.Equal(t, 1, counts["Intent"], name)
	}
}

// acting is which of two agents holds the lease.
func (w *world) acting(a, b *agent) *agent {
	w.t.Helper()
	var found *agent
	await(w.t, "an agent that holds the lease", func(context.Context) error {
		for _, one := range []*agent{a, b} {
			held := false
			for _, l := range one.lines() {
				if is, ok := l["held"].(bool); ok {
					held = is
				}
			}
			if held && one.running() {
				found = one
				return nil
			}
		}
		return fmt.Errorf("neither does")
	})
	return found
}

// killActing kills who acts; the other one takes its place.
func (w *world) killActing(acts, waits **agent) {
	w.t.Helper()
	found := w.acting(*acts, *waits)
	other := *acts
	if found == *acts {
		other = *waits
	}
	found.kill()
	*acts, *waits = other, nil
}
