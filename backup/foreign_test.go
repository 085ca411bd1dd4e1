package backup_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/backup"
	"ichor.maesh.dev/statefile"
)

// Somebody pushes a TalosEtcdBackup that points at another cluster's prefix, with keepLast 1, or lets a cluster with the same name and another
// bundle have it.
func TestAForeignPrefixWithKeepLast1LosesNothing(t *testing.T) {
	server := startS3(t)
	bucket := bucketAt(t, server, "prod")
	ours := backup.NewDestination(bucket, "prod", prod.owner(t))
	var all []string
	for hour := range 3 {
		all = append(all, store(t, ours, prod, at(fmt.Sprintf("2026-11-29 %02d:00:00", hour))).Name)
	}
	stranger := cluster{"test-id", "test-secret"}
	theirs := backup.NewDestination(bucketAt(t, server, "prod"), "prod", stranger.owner(t))
	left := func() {
		t.Helper()
		for _, name := range all {
			_, err := bucket.Stat(t.Context(), name)
			require.NoError(t, err, name)
		}
	}

	// Under an index of the other cluster nothing is stored and nothing goes.
	taken := take(t, stranger, at("2026-11-29 10:00:00"))
	var forged *statefile.StateForgedError
	require.ErrorAs(t, theirs.Store(t.Context(), theirs.Describe(taken, "v1.13.6", "v1.36.2"), taken), &forged)
	_, err := theirs.Prune(t.Context(), backup.Retention{Last: 1}, backup.Guard{}, nil)
	require.ErrorAs(t, err, &forged)
	left()
	found, err := ours.Contents(t.Context())
	require.NoError(t, err)
	require.Len(t, found.Snapshots, 3)

	// Where the index was taken away, they store theirs, and what isn't theirs stays and is said.
	require.NoError(t, bucket.Delete(t.Context(), "etcd-index.json"))
	for hour := 11; hour < 14; hour++ {
		store(t, theirs, stranger, at(fmt.Sprintf("2026-11-29 %02d:00:00", hour)))
	}
	_, err = theirs.Prune(t.Context(), backup.Retention{Last: 1}, backup.Guard{}, nil)
	var foreign *backup.ForeignError
	require.ErrorAs(t, err, &foreign)
	require.Equal(t, all, foreign.Names)
	left()
}
