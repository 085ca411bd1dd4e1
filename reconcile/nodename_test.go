package reconcile

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestANodeIsOneOfTheClusterThatIsNamedWithIt: machines of several clusters may bear the same names, and an agent that restores one must not take
// that one's machine for its own.
func TestANodeIsOneOfTheClusterThatIsNamedWithIt(t *testing.T) {
	for _, test := range []struct{ name, told, cluster, is string }{
		{"none is told", "", "prod", ""},
		{"a name alone is one of any cluster", "cp-1", "prod", "cp-1"},
		{"a name with its cluster", "prod/cp-1", "prod", "cp-1"},
		{"a name with another cluster", "prod/cp-1", "edge", ""},
	} {
		t.Run(test.name, func(t *testing.T) { require.Equal(t, test.is, nodeNameIn(test.told, test.cluster)) })
	}
}
