package reconcile

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestTimeThatRunsFastLeavesRealWorkItsTime(t *testing.T) {
	plain := DefaultTiming()
	require.Equal(t, plain, plain.Scaled(1))
	fast := plain.Scaled(100)
	require.Equal(t, plain.Busy/100, fast.Busy, "a pause follows the scale")
	require.Equal(t, plain.Call, fast.Call, "a network is no faster")
	require.Equal(t, plain.WriterQuiet, fast.WriterQuiet, "another agent isn't either")
	require.Equal(t, 4*time.Minute, fast.LearnerGrace, "an etcd needs its time to catch up")
	require.Equal(t, plain.NamelessGrace/2, plain.Scaled(2).NamelessGrace, "what is long enough follows the scale")
	short := plain
	short.ComeBack = time.Second
	require.Equal(t, time.Second, short.Scaled(100).ComeBack, "nothing gets longer than it is")
}
