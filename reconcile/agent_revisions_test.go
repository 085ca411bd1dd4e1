package reconcile

import (
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/operation"
)

// panicsOnce says who may sign from its second call on: the first is made while the clusters of the first revision are sorted.
func panicsOnce(config *Config) {
	var calls atomic.Int64
	config.Signers = func() (*operation.AllowedSigners, error) {
		if calls.Add(1) == 1 {
			panic("a fault of this program")
		}
		return &operation.AllowedSigners{}, nil
	}
}

func TestClustersThatAPanicLeftUnsortedAreSortedAtTheNextPoll(t *testing.T) {
	b := newBench(t, "prod")
	b.run(panicsOnce)
	b.until("prod", applied(b.source.revisions[0].Commit))
	require.Contains(t, b.log.String(), "sorting the clusters of a revision failed; the next poll tries again")
	require.Contains(t, b.log.String(), "a fault of this program")
}

func TestASinglePassWhoseClustersCouldNotBeSortedFails(t *testing.T) {
	b := newBench(t, "prod")
	var config Config
	b.run(func(c *Config) { config = *c })
	panicsOnce(&config)
	_, err := New(config).Once(t.Context())
	require.ErrorContains(t, err, "could not be settled")
}
