package statefile_test

import (
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/statefile"
)

func TestEachRequestIsCountedByWhatItAsksAndOfWhichBucket(t *testing.T) {
	server := startS3(t)
	requests := &statefile.Requests{}
	counted := func(use string) func(*statefile.S3Config) {
		return func(c *statefile.S3Config) { c.Requests, c.Use, c.Prefix = requests, use, use }
	}
	require.Empty(t, requests.Counts())
	state := openBucket(t, server, counted(statefile.BucketOfState))
	etag, err := state.Put(t.Context(), "prod/state.json", []byte("{}"), statefile.IfAbsent())
	require.NoError(t, err)
	_, err = state.Get(t.Context(), "prod/state.json", etag)
	require.ErrorIs(t, err, statefile.ErrUnchanged)
	require.NoError(t, state.Delete(t.Context(), "prod/state.json"))

	backups := openBucket(t, server, counted(statefile.BucketOfBackups))
	_, err = backups.Upload(t.Context(), "large", section(randomBytes(6<<20)), nil)
	require.NoError(t, err)
	body, _, err := backups.Download(t.Context(), "large")
	require.NoError(t, err)
	_, err = io.Copy(io.Discard, body)
	require.NoError(t, err)
	require.NoError(t, body.Close())
	require.NoError(t, backups.List(t.Context(), "", "", func(statefile.ObjectInfo) error { return nil }))

	openBucket(t, server) // whom nobody counts
	require.Equal(t, []statefile.RequestCount{
		{"backups", "CompleteMultipartUpload", 1}, {"backups", "CreateMultipartUpload", 1}, {"backups", "GetObject", 1}, {"backups", "HeadObject", 2},
		{"backups", "ListObjectsV2", 1}, {"backups", "UploadPart", 2},
		{"state", "DeleteObject", 1}, {"state", "GetObject", 1}, {"state", "PutObject", 1},
	}, requests.Counts())
	_, err = backups.Upload(t.Context(), "large", section(randomBytes(6<<20-1)), nil)
	require.ErrorIs(t, err, statefile.ErrConflict)
	require.True(t, strings.HasPrefix(requests.Counts()[0].Operation, "Abort"), "what was sent in vain is given up")
}
