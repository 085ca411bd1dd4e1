package reconcile

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/statefile"
)

func TestASnapshotIsNamedForAsLongAsItsRestoreMayBegin(t *testing.T) {
	now := time.Date(2026, 11, 30, 3, 0, 0, 0, time.UTC)
	op := func(name, snapshot string, change func(op *statefile.OperationState)) *statefile.OperationState {
		body := "  kind: etcd-restore\n  etcdRestore:\n    backupRef:\n      name: hourly\n    snapshot:\n      name: " + snapshot + "\n      sha256: " +
			"9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08\n    confirm: prod\n    controlPlanes:\n      cp-1: 4c4c4544-0000-4000-8000-00000000000b\n"
		one := &statefile.OperationState{Name: name, Kind: string(schema.OperationEtcdRestore), Phase: statefile.OperationPending, AcceptedAt: now,
			Data: operationText(name, "1f3a9c0d2b4e6f78", now, time.Hour, body)}
		change(one)
		return one
	}
	in := func(phase statefile.OperationPhase) func(*statefile.OperationState) {
		return func(op *statefile.OperationState) { op.Phase = phase }
	}
	state := &statefile.State{Operations: []*statefile.OperationState{
		op("waits", "etcd-20261129T010000Z.snapshot.age", in(statefile.OperationPending)),
		op("runs", "etcd-20261129T020000Z.snapshot.age", in(statefile.OperationRunning)),
		op("rests", "etcd-20261129T030000Z.snapshot.age", in(statefile.OperationPaused)),
		op("over", "etcd-20261129T040000Z.snapshot.age", in(statefile.OperationCompleted)),
		op("refused", "etcd-20261129T050000Z.snapshot.age", func(op *statefile.OperationState) { op.AcceptedAt = time.Time{} }),
	}}
	require.Equal(t, map[string]map[string]string{"hourly": {"etcd-20261129T010000Z.snapshot.age": "waits", "etcd-20261129T020000Z.snapshot.age": "runs",
		"etcd-20261129T030000Z.snapshot.age": "rests"}}, toRestore(state))
}
