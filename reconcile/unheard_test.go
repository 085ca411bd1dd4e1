package reconcile

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/statefile"
)

// TestAnIntentOfWhichOnlyTheAcknowledgementIsLostIsTakenBack: the write of an intent arrives, the answer doesn't, and neither does the next read. The
// call is not made then, and the agent knows that and says so: the operation goes on without a pause, and its machine takes each call once.
func TestAnIntentOfWhichOnlyTheAcknowledgementIsLostIsTakenBack(t *testing.T) {
	t.Parallel()
	m := newMortals(t)
	for _, k := range everyOperation() {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			intents := 0
			for _, point := range k.undisturbed(t, m) {
				if strings.HasPrefix(point, "after state Intent ") {
					intents++
				}
			}
			for lost := range intents {
				w := k.begin(t, m)
				n, where := -1, ""
				w.unheard = func(write string) bool {
					if strings.HasPrefix(write, "state Intent ") {
						if n++; n == lost {
							where = write
							return true
						}
					}
					return false
				}
				w.live(nil, k.settled(w))
				require.NotEmpty(t, where)
				op := operationNamed(w.state(), "asked")
				require.Equal(t, statefile.OperationCompleted, op.Phase, "%s: %s %s", where, op.Message, op.FailureReason)
				k.completed(t, w)
				for _, call := range k.calls {
					require.Equal(t, 1, w.model.accepted[call], "%s: %v", where, w.model.accepted)
				}
			}
		})
	}
}

// TestAShutdownThatNobodySawIsNoSuccess: the agent dies over a call that it had not made, and the machine loses its power before the next one looks.
func TestAShutdownThatNobodySawIsNoSuccess(t *testing.T) {
	m := newMortals(t)
	k := killed{name: "shutdown", script: threeMachines, body: aboutNode("w-1", "shutdown")}
	w := k.begin(t, m)
	died, _ := w.live(func(point string) bool { return strings.HasPrefix(point, "after state Intent shutdown") }, k.settled(w))
	require.True(t, died)
	w.model.bootUp(w.model.nodes["w-1"])
	w.model.tick(aTurn)
	w.live(nil, k.settled(w))
	op := operationNamed(w.state(), "asked")
	require.Equal(t, statefile.OperationPaused, op.Phase, op.Message)
	require.Contains(t, op.FailureReason, "whether it was asked to shut down is not known")
	require.Zero(t, w.model.accepted["shutdown w-1"])
}
