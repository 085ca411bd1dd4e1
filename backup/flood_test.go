package backup

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/statefile"
)

// flooded is a bucket that somebody fills with objects that are called like snapshots.
type flooded struct {
	Objects
	listed int
}

func (f *flooded) Location() string { return "s3://s3.example.com/backups/prod" }

func (f *flooded) List(_ context.Context, _, _ string, each func(statefile.ObjectInfo) error) error {
	for at := time.Unix(0, 0); ; at = at.Add(time.Second) {
		f.listed++
		if err := each(statefile.ObjectInfo{Key: ObjectName(at), Size: 1, ETag: "e"}); err != nil {
			return err
		}
	}
}

func TestAFloodOfObjectsInTheBucketIsAnErrorAndFillsNoMemory(t *testing.T) {
	bucket := &flooded{}
	_, err := NewDestination(bucket, "prod", Owner{ClusterID: "x"}).Look(t.Context())
	require.ErrorContains(t, err, "more than 100000 objects in s3://s3.example.com/backups/prod are called like snapshots")
	require.Less(t, bucket.listed, 100_002)
}
