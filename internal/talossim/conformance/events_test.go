package conformance_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	"github.com/stretchr/testify/require"
)

// watcher collects a node's events until its stream ends.
type watcher struct {
	e *cluster

	mu     sync.Mutex
	events []client.Event
	err    error
	ended  chan struct{}
}

// watch begins to collect; what happened before isn't in it.
func (e *cluster) watch(t *testing.T, c *client.Client, options ...client.EventsOptionFunc) *watcher {
	t.Helper()

	w := &watcher{e: e, ended: make(chan struct{})}
	ctx, cancel := context.WithCancel(t.Context())

	stream, err := c.Events(ctx, options...)
	require.NoError(t, err)

	_, err = stream.Recv() // the empty first event: from here on nothing is missed
	require.NoError(t, err)

	go func() {
		defer close(w.ended)

		for {
			raw, err := stream.Recv()
			if err != nil {
				w.end(err)

				return
			}

			ev, err := client.UnmarshalEvent(raw)
			if err != nil || ev == nil {
				continue // an unknown payload
			}

			w.mu.Lock()
			w.events = append(w.events, *ev)
			w.mu.Unlock()
		}
	}()

	t.Cleanup(func() { cancel(); <-w.ended })

	return w
}

func (w *watcher) end(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()

	w.err = err
}

func (w *watcher) find(match func(client.Event) bool) bool {
	w.mu.Lock()
	defer w.mu.Unlock()

	for _, ev := range w.events {
		if match(ev) {
			return true
		}
	}

	return false
}

// wait waits for an event.
func (w *watcher) wait(t *testing.T, what string, match func(client.Event) bool) {
	t.Helper()

	w.e.eventually(t, 5*minute, func(context.Context) error {
		if w.find(match) {
			return nil
		}

		w.mu.Lock()
		defer w.mu.Unlock()

		return fmt.Errorf("%s wasn't among %d events (stream: %v)", what, len(w.events), w.err)
	})
}

// streamEnd waits for the stream's end and returns its error.
func (w *watcher) streamEnd(t *testing.T) error {
	t.Helper()

	select {
	case <-w.ended:
	case <-within(t, 5*minute).Done():
		t.Fatal("the event stream didn't end")
	}

	w.mu.Lock()
	defer w.mu.Unlock()

	return w.err
}

func sequence(name string, action machine.SequenceEvent_Action) func(client.Event) bool {
	return func(ev client.Event) bool {
		s, ok := ev.Payload.(*machine.SequenceEvent)

		return ok && s.Sequence == name && s.Action == action
	}
}
