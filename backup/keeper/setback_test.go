package keeper

import (
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clocktesting "k8s.io/utils/clock/testing"

	"ichor.maesh.dev/statefile"
)

func TestAClockThatWasSetBackIsWaitedForInPauses(t *testing.T) {
	noon := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	tender := newTender(New(Options{Clock: clocktesting.NewFakeClock(noon), Log: slog.New(slog.DiscardHandler)}), "often")
	due := noon.Add(time.Millisecond)
	require.Equal(t, 10*time.Millisecond, tender.until(due, &statefile.State{Latest: noon}))
	require.Equal(t, breath, tender.until(due.Add(10*time.Minute), &statefile.State{Latest: noon.Add(10 * time.Minute)}), "it stands at the latest time until the clock is there")
	require.Equal(t, time.Minute, tender.until(noon.Add(time.Minute), &statefile.State{Latest: noon}))
}
