package childprocess

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAChildThatTakesMoreMemoryThanItMayBreaksDownAlone(t *testing.T) {
	var failed *FailedError
	require.ErrorAs(t, Run(t.Context(), "deed", deed{"greedy"}, new(string)), &failed)
	require.ErrorContains(t, failed, "out of memory")
}
