package backup_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/minio/minio-go/v7/pkg/signer"
	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/backup"
	"ichor.maesh.dev/internal/s3gateway"
	"ichor.maesh.dev/statefile"
)

// lockedBucket makes a bucket with Object Lock, and a destination in it.
func lockedBucket(t *testing.T) (*backup.Destination, *minio.Client) {
	t.Helper()
	server, err := s3gateway.StartChild(t.Context(), s3gateway.Options{Dir: t.TempDir(), VersioningDir: t.TempDir(), Access: access, Secret: secret})
	require.NoError(t, err)
	t.Cleanup(server.Stop)
	client, err := minio.New(strings.TrimPrefix(server.Endpoint, "http://"), &minio.Options{Creds: credentials.NewStaticV4(access, secret, ""), Region: s3gateway.Region})
	require.NoError(t, err)
	require.NoError(t, client.MakeBucket(t.Context(), "backups", minio.MakeBucketOptions{ObjectLocking: true}))
	return backup.NewDestination(bucketAt(t, server, "prod"), "prod", prod.owner(t)), client
}

func TestALockedSnapshotIsReportedAndPruningGoesOn(t *testing.T) {
	d, client := lockedBucket(t)
	locked := store(t, d, prod, at("2026-11-29 00:00:00"))
	mode, until := minio.Governance, time.Now().Add(24*time.Hour).UTC()
	require.NoError(t, client.PutObjectRetention(t.Context(), "backups", "prod/"+locked.Name, minio.PutObjectRetentionOptions{Mode: &mode, RetainUntilDate: &until}))
	held := store(t, d, prod, at("2026-11-29 01:00:00"))
	on := minio.LegalHoldEnabled
	require.NoError(t, client.PutObjectLegalHold(t.Context(), "backups", "prod/"+held.Name, minio.PutObjectLegalHoldOptions{Status: &on}))
	free := store(t, d, prod, at("2026-11-29 02:00:00"))
	newest := store(t, d, prod, at("2026-11-29 03:00:00"))

	for range 2 { // the second pass meets the same
		pruned, err := d.Prune(t.Context(), backup.Retention{Last: 1}, backup.Guard{}, nil)
		require.NoError(t, err)
		require.Subset(t, []string{free.Name}, pruned.Deleted)
		require.Len(t, pruned.Problems, 2)
		require.Regexp(t, locked.Name+` could not be pruned: .*the object is locked until \d{4}-\d\d-\d\dT`, pruned.Problems[0])
		require.Contains(t, pruned.Problems[1], held.Name+" could not be pruned: ")
		require.Contains(t, pruned.Problems[1], "the object is locked by a legal hold")
	}
	contents, err := d.Contents(t.Context())
	require.NoError(t, err)
	require.Equal(t, []backup.Snapshot{newest, held, locked}, contents.Snapshots, "neither hidden nor marked as going")
}

// through gives a destination behind a server that answers some requests itself and hands on the rest, with session credentials.
func through(t *testing.T, server *s3gateway.Child, token string, answer func(w http.ResponseWriter, r *http.Request) bool) *backup.Opened {
	t.Helper()
	target, err := url.Parse(server.Endpoint)
	require.NoError(t, err)
	proxy := httputil.NewSingleHostReverseProxy(target)
	box := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !answer(w, r) {
			proxy.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(box.Close)
	d, err := backup.OpenDestination(t.Context(), statefile.S3Config{Endpoint: box.URL, Bucket: "backups", Prefix: "/prod/etcd/",
		Credentials: &statefile.S3Credentials{AccessKeyID: access, SecretAccessKey: secret, SessionToken: token}}, prod.owner(t))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	return d
}

func TestKeysThatMayNotDeleteStoreAndListAndSayWhatStays(t *testing.T) {
	d := through(t, startS3(t), "", func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodDelete {
			return false
		}
		w.WriteHeader(http.StatusForbidden)
		fmt.Fprint(w, "<Error><Code>AccessDenied</Code><Message>no</Message></Error>")
		return true
	})
	result, err := d.Probe(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"delete"}, result.Missing)
	older := store(t, d.Destination, prod, at("2026-11-29 00:00:00"))
	newer := store(t, d.Destination, prod, at("2026-11-29 01:00:00"))
	pruned, err := d.Prune(t.Context(), backup.Retention{Last: 1}, backup.Guard{}, nil)
	require.NoError(t, err)
	require.Empty(t, pruned.Deleted)
	require.Len(t, pruned.Problems, 1)
	require.Contains(t, pruned.Problems[0], older.Name+" could not be pruned: ")
	require.Contains(t, pruned.Problems[0], "these keys need the right s3:DeleteObject")
	contents, err := d.Contents(t.Context())
	require.NoError(t, err)
	require.Equal(t, []backup.Snapshot{newer, older}, contents.Snapshots)
}

func TestASessionTokenGoesWithEveryRequestAndAPrefixMayHaveSlashes(t *testing.T) {
	var with, without atomic.Int64
	server := startS3(t)
	d := through(t, server, "canary-session-token", func(_ http.ResponseWriter, r *http.Request) bool {
		if r.Header.Get("X-Amz-Security-Token") == "canary-session-token" && strings.Contains(r.Header.Get("Authorization"), "x-amz-security-token") {
			with.Add(1)
		} else {
			without.Add(1)
		}
		// The server knows no tokens: this is what a service that hands them out stands for.
		r.Header.Del("X-Amz-Security-Token")
		r.Header.Del("Authorization")
		r.Host, r.URL.Host, r.URL.Scheme = strings.TrimPrefix(server.Endpoint, "http://"), strings.TrimPrefix(server.Endpoint, "http://"), "http"
		*r = *signer.SignV4(*r, access, secret, "", s3gateway.Region)
		return false
	})
	s := store(t, d.Destination, prod, at("2026-11-29 00:00:00"))
	_, _, err := d.Verify(t.Context(), s.Name, s.SHA256)
	require.NoError(t, err)
	require.Zero(t, without.Load())
	require.Positive(t, with.Load())
	require.FileExists(t, filepath.Join(server.Options.Dir, "backups", "prod", "etcd", s.Name))
	plain := backup.NewDestination(bucketAt(t, server, "prod/etcd"), "prod/etcd", prod.owner(t))
	_, err = plain.Contents(t.Context())
	require.NoError(t, err, "the same prefix without the slashes around it")
}

func TestMoreThanAThousandSnapshotsAreListedWithAndWithoutAnIndex(t *testing.T) {
	server := startS3(t)
	d := backup.NewDestination(bucketAt(t, server, "prod"), "prod", prod.owner(t))
	first := store(t, d, prod, at("2026-01-01 00:00:00"))
	folder := filepath.Join(server.Options.Dir, "backups", "prod")
	for n := range 1100 {
		name := backup.ObjectName(at("2026-02-01 00:00:00").Add(time.Duration(n) * time.Minute))
		require.NoError(t, os.WriteFile(filepath.Join(folder, name), []byte("x"), 0o600))
	}
	last := store(t, d, prod, at("2026-11-29 00:00:00"))
	contents, err := d.Contents(t.Context())
	require.NoError(t, err)
	require.Equal(t, []backup.Snapshot{last, first}, contents.Snapshots)
	require.Len(t, contents.Foreign, 1100)
	require.NoError(t, os.Remove(filepath.Join(folder, "etcd-index.json")))
	contents, err = d.Look(t.Context())
	require.NoError(t, err)
	require.Len(t, contents.Foreign, 1100)
	require.Equal(t, []string{first.Name, last.Name}, contents.Unlisted)
	require.False(t, contents.Indexed)
}
