package keeper_test

import (
	"context"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/backup"
	"ichor.maesh.dev/backup/drill"
	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/statefile"
)

func TestTheCopyOfARestoreThatNeverBeganIsTakenAwayADayAfterItsEnd(t *testing.T) {
	h, data := newHost(t)
	k := h.keep(t, "prod", streaming{data})
	k.keeper.Once(t.Context(), k.want)
	place, err := h.Open(t.Context(), k.want.Fleet, k.want.Backups[0], k.want.Owner)
	require.NoError(t, err)
	defer func() { _ = place.Close() }()
	contents, err := place.Contents(t.Context())
	require.NoError(t, err)
	first, err := contents.Find("")
	require.NoError(t, err)

	now := h.clock.Now()
	restore := func(digest string, change func(op *statefile.OperationState)) *statefile.OperationState {
		op := &statefile.OperationState{Name: "restore-" + digest, Digest: digest, Kind: string(schema.OperationEtcdRestore), Target: "hourly", Phase: statefile.OperationCancelled,
			AcceptedAt: now, StartedAt: now, FinishedAt: now}
		change(op)
		return op
	}
	stays := map[string]*statefile.OperationState{
		"its marker was written":        restore("000000000001", func(op *statefile.OperationState) { op.Marked = true }),
		"it is paused":                  restore("000000000002", func(op *statefile.OperationState) { op.Phase = statefile.OperationPaused }),
		"it was cancelled an hour ago":  restore("000000000003", func(op *statefile.OperationState) { op.FinishedAt = now.Add(24 * time.Hour) }),
		"it is of another backup":       restore("000000000004", func(op *statefile.OperationState) { op.Target = "daily" }),
		"the last restore rested on it": restore("000000000005", func(op *statefile.OperationState) { op.Phase = statefile.OperationCompleted }),
	}
	goes := restore("00000000000f", func(*statefile.OperationState) {})
	require.NoError(t, k.state.Swap(t.Context(), func(s *statefile.State) error {
		s.Operations = []*statefile.OperationState{goes}
		for _, op := range stays {
			s.Operations = append(s.Operations, op)
		}
		s.LastRestore = &statefile.RestoreRecord{At: now.Add(24 * time.Hour), Backup: "hourly", Pinned: backup.PinnedName("000000000005")}
		return nil
	}))
	isThere := func(op *statefile.OperationState) error {
		plain, err := place.Open(t.Context(), backup.PinnedName(op.Digest), first.SHA256)
		if err == nil {
			_ = plain.Close()
		}
		return err
	}
	pin := func(op *statefile.OperationState) {
		require.NoError(t, place.Pin(t.Context(), h.spool, first.Name, first.SHA256, backup.PinnedName(op.Digest)))
		require.NoError(t, isThere(op))
	}
	for _, op := range stays {
		pin(op)
	}
	pin(goes)

	h.clock.Step(25 * time.Hour)
	k.keeper.Once(t.Context(), k.want)
	require.Equal(t, h.clock.Now(), k.memory().LastSuccess)
	require.ErrorIs(t, isThere(goes), statefile.ErrNotFound)
	for why, op := range stays {
		require.NoError(t, isThere(op), why)
	}
}

// TestASnapshotThatIsToBeRestoredIsNotPrunedForTheOneOfNow: a restore first has a snapshot of now stored, and the retention counts that too.
func TestASnapshotThatIsToBeRestoredIsNotPrunedForTheOneOfNow(t *testing.T) {
	h, data := newHost(t)
	k := h.keep(t, "prod", streaming{data})
	one := 1
	k.want.Backups[0].Spec.Retention = &schema.Retention{KeepLast: &one}
	names := func() (names []string) {
		for _, s := range k.memory().Snapshots {
			names = append(names, s.Name)
		}
		return names
	}
	k.keeper.Once(t.Context(), k.want)
	first := names()[0]
	k.want.Named = map[string]map[string]string{"hourly": {first: "restore-prod"}}
	for range 3 {
		h.clock.Step(2 * time.Hour)
		k.keeper.Once(t.Context(), k.want)
	}
	require.Len(t, names(), 2)
	require.Contains(t, names(), first)

	k.want.Named = nil
	h.clock.Step(2 * time.Hour)
	k.keeper.Once(t.Context(), k.want)
	require.Len(t, names(), 1)
	require.NotContains(t, names(), first, "once its restore is over it goes with the others")
}

func TestADrillThatTakesTooLongSaysWhatTookLongerThanWhat(t *testing.T) {
	h, data := newHost(t)
	h.drillLimit = 50 * time.Millisecond
	h.drill = func(ctx context.Context, _ io.Reader, _ int64, _ *backup.Spool) (drill.Counts, error) {
		<-ctx.Done()
		return drill.Counts{}, ctx.Err()
	}
	k := h.keep(t, "prod", streaming{data})
	k.want.Backups[0].Spec.Drill = &schema.Drill{Schedule: "*/5 * * * *"}
	k.keeper.Once(t.Context(), k.want)
	h.clock.Step(time.Hour)
	k.keeper.Once(t.Context(), k.want)
	m := k.memory()
	require.False(t, m.LastDrillAttempt.IsZero())
	require.Regexp(t, `^the drill of etcd-\S+ took longer than 50ms, its limit, and was broken off: `, m.DrillProblem)
}

func TestASnapshotThatIsAskedForInTheSecondOfTheNewestWaitsForTheNextSecond(t *testing.T) {
	h, data := newHost(t)
	k := h.keep(t, "prod", streaming{data})
	k.keeper.Once(t.Context(), k.want)
	first := k.memory()
	require.Equal(t, h.clock.Now(), first.LastSuccess)
	require.NoError(t, k.state.Swap(t.Context(), func(s *statefile.State) error {
		s.Backups["hourly"].Request = &statefile.BackupRequest{Digest: "asked", At: h.clock.Now()}
		return nil
	}))
	done := make(chan struct{})
	go func() { defer close(done); k.keeper.Once(t.Context(), k.want) }()
	require.Eventually(t, h.clock.HasWaiters, time.Minute, time.Millisecond)
	h.clock.Step(time.Second)
	<-done
	second := k.memory()
	require.True(t, second.Ready.Status, "%+v", second.Ready)
	require.NotNil(t, second.Request)
	require.Equal(t, h.clock.Now(), second.Request.Done)
	require.Contains(t, second.Request.Outcome, "etcd-20261129T100001Z.snapshot.age")
	require.Equal(t, h.clock.Now(), second.LastSuccess)
}
