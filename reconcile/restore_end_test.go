package reconcile

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/internal/scrub"
	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/statefile"
)

func TestEveryFailurePastTheMarkerEndsWithTheCommandThatEndsItByHand(t *testing.T) {
	s := restorable()
	const command = "ichor restore --recover-cluster --cluster prod --backup hourly --snapshot etcd-20261129T100000Z.snapshot.age --state s3://ichor/prod"
	for _, why := range []string{
		"after 1h1m0s it still waits (1h0m0s is its limit): cp-2 doesn't answer", "cp-1 was told to leave etcd 8 times and has not: unhealthy cluster",
		"the recovery on cp-1 came to nothing 3 times", "it can't be cancelled any more", errRestoreLost.Error(), errRestoreOld.Error(),
		"another process drives this restore, and this one has stopped",
	} {
		w, r := &worker{agent: &Agent{scrubber: scrub.New()}}, &restoration{order: RestoreOrder{Spec: *s.spec.EtcdRestore}}
		w.keepRestore(r, RestoreView{Problem: why, Marked: true}, *s.in)
		require.True(t, strings.HasPrefix(r.view.Problem, why), r.view.Problem)
		require.True(t, strings.HasSuffix(r.view.Problem, "; resume it, or stop this agent and end it by hand: "+command), r.view.Problem)

		w.keepRestore(r, RestoreView{Problem: why}, *s.in)
		s.op.Marked, r.view.Digest = false, s.op.Digest
		s.in.Restore = r.view
		require.Equal(t, nothingChanged+why, nextRestore(s).pause, "before the marker")
	}
}

func TestWhenARestoreCanBeCancelled(t *testing.T) {
	for name, test := range map[string]struct {
		op    statefile.OperationState
		says  string
		turns bool
	}{
		"while others leave":                  {op: statefile.OperationState{Phase: statefile.OperationRunning, Marked: true, Undo: "rejoin"}, turns: true},
		"paused while others leave":           {op: statefile.OperationState{Phase: statefile.OperationPaused, Pause: 1, Marked: true, Undo: "rejoin"}, turns: true},
		"after etcd has recovered":            {op: statefile.OperationState{Phase: statefile.OperationRunning, Marked: true, Undo: "end"}, turns: true},
		"once the first wipe was begun":       {op: statefile.OperationState{Phase: statefile.OperationRunning, Marked: true}, says: "there is no etcd to go back to; let it go on"},
		"paused, the first wipe being begun":  {op: statefile.OperationState{Phase: statefile.OperationPaused, Marked: true}, says: "there is no etcd to go back to; let it go on"},
		"it is cancelled already":             {op: statefile.OperationState{Phase: statefile.OperationRunning, Marked: true, Undo: "rejoin", Cancelling: true}, says: "is being cancelled already"},
		"it is cancelled already, and paused": {op: statefile.OperationState{Phase: statefile.OperationPaused, Marked: true, Undo: "rejoin", Cancelling: true}, says: "resume it, and the cancel goes on"},
		"it runs and has no marker yet":       {op: statefile.OperationState{Phase: statefile.OperationRunning}, says: "only what is pending or paused can be cancelled"},
	} {
		t.Run(name, func(t *testing.T) {
			s := restorable()
			s.in.Operations = &Operations{}
			op := test.op
			op.Name, op.Digest, op.Kind, op.AcceptedAt = "restore", "d1", string(schema.OperationEtcdRestore), time.Unix(1, 0)
			control := &statefile.OperationState{Name: "stop-it", Digest: "d2", Phase: statefile.OperationRunning}
			s.next.Operations = []*statefile.OperationState{&op, control}
			s.next.Lock = &statefile.Lock{Holder: operationLock("d1")}
			s.control(control, schema.OperationSpec{Kind: schema.OperationCancel, Cancel: &schema.CancelOperation{Operation: "restore", Digest: "d1"}})
			require.Equal(t, operationLock("d1"), s.next.Lock.Holder, "the lock stays with the restore")
			if !test.turns {
				require.Equal(t, statefile.OperationRefused, control.Phase)
				require.Contains(t, control.Message, test.says)
				require.Equal(t, test.op.Cancelling, op.Cancelling)
				return
			}
			require.Equal(t, statefile.OperationCompleted, control.Phase, control.Message)
			require.True(t, op.Cancelling)
			require.Equal(t, statefile.OperationRunning, op.Phase)

			// What the restore's next steps find.
			s.op, op.Step = &op, "leaving"
			s.in.Restore = &RestoreView{Digest: "d1", Pause: op.Pause, Marked: true, Done: true, Cancelled: true, Say: "every control plane is a member of the old etcd",
				Cordons: map[string]statefile.Evacuation{"cp-1": {NodeUID: "uid", Owner: "recover:1", Cordoned: true}}}
			m := nextRestore(s)
			s.make(&op, procedure{}, m)
			require.Equal(t, statefile.OperationCancelled, op.Phase)
			require.Nil(t, s.next.Lock)
			require.Equal(t, "cp-1", s.next.Cordons[0].Machine)
			require.Nil(t, s.next.LastRestore)
		})
	}
}
