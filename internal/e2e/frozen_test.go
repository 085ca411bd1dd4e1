package e2e

import (
	"context"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/internal/talossim"
)

// frozen is a moment at which an agent is frozen.
type frozen struct {
	name string
	// ready says that the cluster is Ready first; the call is then that of a changed config.
	ready bool
	// arm lets freeze be called at the moment.
	arm func(w *world, b *between, freeze func())
}

func momentsOfFreezing() []frozen {
	return []frozen{
		{
			name: "while the state is on its way to the bucket with the intent of a bootstrap",
			arm:  func(_ *world, b *between, freeze func()) { b.when("bootstrap", true, freeze) },
		},
		{
			name: "between the intent of a bootstrap and its call",
			arm:  func(_ *world, b *between, freeze func()) { b.when("bootstrap", false, freeze) },
		},
		{
			name:  "between the intent of a changed config and its call",
			ready: true,
			arm:   func(_ *world, b *between, freeze func()) { b.when("config-try", false, freeze) },
		},
		{
			name:  "while a changed config is on its way",
			ready: true,
			arm: func(w *world, _ *between, freeze func()) {
				reached := make(chan struct{}, 1)
				w.farm.Node("cp-1").Inject(talossim.Fault{Method: "ApplyConfiguration", Kind: talossim.Hang, Times: 1, Reached: reached})
				go func() {
					<-reached
					freeze()
				}()
			},
		},
	}
}

func TestAnAgentFrozenInTheGateSendsNothingIntoALaterBoot(t *testing.T) {
	for n, moment := range momentsOfFreezing() {
		t.Run(moment.name, func(t *testing.T) {
			t.Parallel()
			freezeAndThaw(t, fmt.Sprintf("127.0.84.%d", 1+n*4), moment)
		})
	}
}

func freezeAndThaw(t *testing.T, first string, moment frozen) {
	w := newWorld(t, first, 1, 0)
	b := w.standBetween()
	node := w.farm.Node("cp-1")
	var a *agent
	started, isFrozen, thawing := make(chan struct{}), make(chan struct{}), make(chan struct{})
	freeze := func() {
		<-started
		_ = a.cmd.Process.Signal(syscall.SIGSTOP)
		close(isFrozen)
		<-thawing
	}
	if !moment.ready {
		moment.arm(w, b, freeze)
	}
	a = w.startAgent("frozen")
	close(started)
	if moment.ready {
		w.awaitState("the cluster Ready", ready)
		moment.arm(w, b, freeze)
		w.setting("100000")
		w.push()
	}
	select {
	case <-isFrozen:
	case <-time.After(patience):
		close(thawing)
		require.Fail(t, "the moment did not come")
	}
	// Another agent takes over and finishes the work, and the machine boots again.
	other := w.startAgent("other")
	other.awaitSaying(0, `"held":true`)
	wanted := w.repo.Tip("main")
	w.awaitState("the cluster Ready by the other agent", readyAt(wanted))
	boot := node.BootID()
	require.NoError(t, node.PowerCycle())
	await(t, "the next boot", func(context.Context) error {
		if now := node.BootID(); now == "" || now == boot {
			return fmt.Errorf("boot ID %q", now)
		}
		return nil
	})
	w.passes(other, 5)
	w.awaitState("the cluster Ready after the boot", ready)
	require.NotEmpty(t, other.saying(0, `"begun"`), "the other agent had nothing to do")
	done, known := w.changes(), len(node.Journal())
	close(thawing) // what was held on the road goes on first
	a.signal(syscall.SIGCONT)
	a.awaitSaying(0, "this one stands by")
	w.passes(a, 5)
	for _, entry := range node.Journal()[known:] {
		assert.False(t, entry.Mutating, "%s of %s was sent to a later boot and answered %s", entry.Method, a.name, entry.Code)
	}
	assert.Equal(t, done, w.changes())
	assert.Equal(t, map[string]int{"cp-1": 1}, w.accepted("Bootstrap"))
}
