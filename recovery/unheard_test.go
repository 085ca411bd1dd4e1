package recovery

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/statefile"
)

// unheardMarker loses the acknowledgement of one write that brings an intent, and gives no answer to the read after it.
type unheardMarker struct {
	mortalMarker
	lost  int // which of the intents
	seen  int
	known string // the last intent that was written
	deaf  bool
}

func (m *unheardMarker) Swap(ctx context.Context, content json.RawMessage) error {
	if err := m.mortalMarker.Swap(ctx, content); err != nil {
		return err
	}
	next, err := DecodeMarker(content)
	if err != nil || len(next.Intents) == 0 {
		return err
	}
	last := next.Intents[len(next.Intents)-1]
	if last.Outcome != "" || last.Nonce == m.known {
		return nil
	}
	m.known = last.Nonce
	if m.seen++; m.seen == m.lost {
		m.deaf = true
		return fmt.Errorf("writing the marker: %w", statefile.ErrUnacknowledged)
	}
	return nil
}

func (m *unheardMarker) Read(ctx context.Context) (json.RawMessage, error) {
	if m.deaf {
		m.deaf = false
		return nil, errors.New("the store gives no answer")
	}
	return m.mortalMarker.Read(ctx)
}

// TestAnIntentOfWhichOnlyTheAcknowledgementIsLostIsTakenBack: the call of such an intent is not made. The process that knows that goes on at once, and
// makes each call as often as in a restore that nothing befell.
func TestAnIntentOfWhichOnlyTheAcknowledgementIsLostIsTakenBack(t *testing.T) {
	for name, begin := range map[string]func(t *testing.T) *stage{
		"an etcd that is lost": func(t *testing.T) *stage { return newStage(t, lost(), "cp-3") },
		"an etcd that works":   working,
	} {
		t.Run(name, func(t *testing.T) {
			undisturbed := begin(t)
			_, _, err := undisturbed.run(0)
			require.NoError(t, err)
			for n := 1; ; n++ {
				s := begin(t)
				r, _, ctx := s.process(0)
				marker := &unheardMarker{mortalMarker: r.Marker.(mortalMarker), lost: n}
				r.Marker = marker
				require.NoError(t, s.begin(ctx, r))
				m, err := r.Go(ctx)
				require.NoError(t, err, s.said)
				s.requireWhole(m)
				require.ElementsMatch(t, undisturbed.accepted, s.accepted, "intent %d", n)
				require.Less(t, m.Ended.Sub(m.Began), undisturbed.took()+time.Minute, "intent %d", n)
				if marker.seen < n {
					require.Greater(t, n, 3)
					return
				}
				require.True(t, slices.ContainsFunc(m.Intents, func(i Intent) bool { return neverSent(&i) }), "intent %d", n)
			}
		})
	}
}

// took is how long the restore in the store took.
func (s *stage) took() time.Duration {
	m, err := s.read()
	require.NoError(s.t, err)
	return m.Ended.Sub(m.Began)
}
