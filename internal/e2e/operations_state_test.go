package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/operation"
	"ichor.maesh.dev/statefile"
)

// acceptState lets a person accept the state that is there.
func (w *world) acceptState() {
	w.t.Helper()
	got := w.ichor(append([]string{"state", "accept", "prod", "--confirm", "prod", "--cache", w.path("cache", "one"), "--fleet", w.checkout(),
		"--age-identity", w.path("age.key")}, w.stateArguments()...)...)
	require.Zero(w.t, got.code, "%s%s", got.out, got.err)
}

// putBack puts states of before an operation in the place of the newest, and forged ones.
func (w *world) putBack(t *testing.T, a *agent, s *signers) {
	ctx, store := context.Background(), w.store()
	before := w.disruptions()
	old := w.object(ctx, store, stateKey)
	done := w.submit(s.alice, orders, "once", w.reboot("w-1"))
	w.push()
	w.awaitState("the operation done", inPhase("once", done, statefile.OperationCompleted))
	before["Reboot w-1"]++
	require.Equal(t, before, w.disruptions())

	from := len(a.lines())
	w.putState(ctx, store, old)
	a.awaitSaying(from, "was rolled back")
	w.passes(a, 5)
	assert.Equal(t, before, w.disruptions(), "with a state that was put back")
	// A person takes the old state for the right one, and the very process that did the work goes on with it.
	w.acceptState()
	w.awaitState("what ran before refused", refusedFor("once", done, "AlreadyRan"))
	w.passes(a, 5)
	assert.Equal(t, before, w.disruptions(), "with an old state that was accepted")

	a.stop(syscall.SIGTERM)
	w.forgeState(t, ctx, store, s, before)
	w.t = t
	w.rollBackUnseen(t, ctx, store, old, before)
	_, _, last := w.recordOf(ctx, store)
	b := w.startAgent("one", w.signing()...)
	w.awaitState("the right state with another writer", func(s *statefile.State) error {
		if s.Writer.Epoch <= last.Writer.Epoch {
			return fmt.Errorf("nobody took it over")
		}
		return nil
	})
	w.passes(b, 5)
	assert.Equal(t, before, w.disruptions())
	b.stop(syscall.SIGTERM)
}

// rollBackUnseen puts an old state back while no agent runs, for one that remembers newer ones and for one that runs for the first time.
func (w *world) rollBackUnseen(t *testing.T, ctx context.Context, store statefile.Store, old []byte, before map[string]int) {
	newest := w.object(ctx, store, stateKey)
	w.putState(ctx, store, old)
	for _, cache := range []string{"one", "nobody"} {
		b := w.startAgent(cache, w.signing()...)
		b.awaitSaying(0, "was rolled back")
		w.passes(b, 3)
		b.stop(syscall.SIGTERM)
		assert.Equal(t, before, w.disruptions(), "an old state, seen by an agent with the cache %s", cache)
	}
	w.putState(ctx, store, newest)
}

// forgeState puts running operations into the state that nobody signed: without the cluster's secrets, and with them.
func (w *world) forgeState(t *testing.T, ctx context.Context, store statefile.Store, s *signers, before map[string]int) {
	defer func() { w.t = t }()
	newest, record, state := w.recordOf(ctx, store)
	plant := func(name, text, signature string) []byte {
		forged := *state
		now := time.Now().UTC().Truncate(time.Second)
		digest := operation.Digest([]byte(text))
		forged.Operations = append(append([]*statefile.OperationState(nil), state.Operations...), &statefile.OperationState{Name: name, Digest: digest,
			Kind: "node", Action: "reboot", Target: "w-2", Source: "git", File: orderFile(name), Data: text, Signature: signature, Signer: "alice@example.com",
			Phase: statefile.OperationRunning, FirstSeen: now, AcceptedAt: now, StartedAt: now, JudgedAt: now, ExpiresAt: now.Add(time.Hour),
			JudgedEpoch: state.Writer.Epoch + 1, Once: true, OnceNonce: statefile.NewNonce()})
		forged.Lock = &statefile.Lock{Holder: "operation:" + digest[:12], Reason: "planted", Since: now}
		content, err := json.Marshal(forged)
		require.NoError(t, err)
		return content
	}

	t.Run("a running operation that is written into the state without the cluster's secrets stops all work", func(t *testing.T) {
		w.t = t
		text := w.order("planted", w.reboot("w-2"))
		content := plant("planted", text, w.sign(s.mallory, orders, text))
		w.putState(ctx, store, bytes.Replace(newest, record.Content, content, 1))
		b := w.startAgent("one", w.signing()...)
		b.awaitSaying(0, "StateForged")
		w.passes(b, 3)
		b.stop(syscall.SIGTERM)
		assert.Equal(t, before, w.disruptions())
		w.putState(ctx, store, newest)
	})
	for _, one := range []struct {
		what, name string
		by         *person
	}{
		{"that a stranger signed", "planted-signed", s.mallory},
		{"that nobody signed", "planted-unsigned", nil},
	} {
		t.Run("whoever holds the cluster's secrets writes a running operation into the state "+one.what, func(t *testing.T) {
			w.t = t
			text, signature := w.order(one.name, w.reboot("w-2")), ""
			if one.by != nil {
				signature = w.sign(one.by, orders, text)
			}
			_, record, state = w.recordOf(ctx, store)
			data, err := statefile.EncodeRecord(w.sealer(), stateKey, record.Generation+1, statefile.NewNonce(), plant(one.name, text, signature))
			require.NoError(t, err)
			w.putState(ctx, store, data)
			b := w.startAgent("one", w.signing()...)
			found := w.awaitState("it does not go on", func(s *statefile.State) error {
				if op := remembered(s, one.name, text); op == nil || op.Phase == statefile.OperationRunning {
					return fmt.Errorf("%+v", op)
				}
				return nil
			})
			op := remembered(found, one.name, text)
			t.Log(op.Phase, op.Message)
			assert.Contains(t, []statefile.OperationPhase{statefile.OperationPaused, statefile.OperationRefused}, op.Phase)
			assert.Nil(t, found.Lock)
			w.passes(b, 3)
			b.stop(syscall.SIGTERM)
			assert.Equal(t, before, w.disruptions())
		})
	}
}
