package revision_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/backup/revision"
)

func TestTheRevisionOfARestoredEtcdIsAboveAllThatIsKnown(t *testing.T) {
	for name, test := range map[string]struct {
		known revision.Known
		want  int64
	}{
		"the snapshot alone":                     {revision.Known{Snapshot: 5170}, 1_000_005_170},
		"an empty etcd":                          {revision.Known{Snapshot: 1}, 1_000_000_001},
		"a newer snapshot is listed":             {revision.Known{Snapshot: 5170, NewestListed: 9000}, 1_000_009_000},
		"the last restore was higher":            {revision.Known{Snapshot: 5170, NewestListed: 9000, LastRestore: 1_000_005_170}, 2_000_005_170},
		"what ran since the last restore counts": {revision.Known{Snapshot: 5170, LastRestore: 1_000_005_170, APIServer: 1_000_777_000}, 2_000_777_000},
		"a snapshot of a restored etcd":          {revision.Known{Snapshot: 1_000_005_300, NewestListed: 1_000_005_300}, 2_000_005_300},
		"an API server that serves old lists":    {revision.Known{Snapshot: 5170, APIServer: 100}, 1_000_005_170},
	} {
		t.Run(name, func(t *testing.T) {
			target, err := revision.Target(test.known)
			require.NoError(t, err)
			require.Equal(t, test.want, target)
		})
	}
}

func TestARevisionThatNoEtcdComesToIsNotBelieved(t *testing.T) {
	for name, known := range map[string]revision.Known{
		"the snapshot's isn't known":   {APIServer: 7},
		"a negative one":               {Snapshot: 5, NewestListed: -1},
		"an API server that lies":      {Snapshot: 5, APIServer: math.MaxInt64},
		"an index that lies":           {Snapshot: 5, NewestListed: 1 << 62},
		"a marker that lies":           {Snapshot: 5, LastRestore: math.MaxInt64 - 1},
		"a snapshot that is beyond it": {Snapshot: math.MaxInt64},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := revision.Target(known)
			require.Error(t, err)
		})
	}
}
