package reconcile

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestAgentsThatMakeOnePassEachBringAClusterUp: each is another writer, and finds the call that the one before it began.
func TestAgentsThatMakeOnePassEachBringAClusterUp(t *testing.T) {
	t.Parallel()
	l := newLab(t, "127.0.54.61", 1, 0, 20)
	ctx, cancel := context.WithTimeout(context.Background(), ample)
	defer cancel()
	var report Report
	for n := 0; ctx.Err() == nil && !allReady(report); n++ {
		config := l.config(fmt.Sprintf("agent-%d", n))
		config.Timing.WriterQuiet = 3 * time.Second // longer than a pass, so that waiting is what it takes
		var err error
		report, err = New(config).Once(ctx)
		require.NoError(t, err)
	}
	require.True(t, allReady(report), "%v", report.Problems())
	require.Equal(t, map[string]int{"cp-1": 1}, l.accepted("Bootstrap"))
}
