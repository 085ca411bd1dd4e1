package backup_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/utils/clock"
	testclock "k8s.io/utils/clock/testing"

	"ichor.maesh.dev/backup"
	"ichor.maesh.dev/internal/s3gateway"
	"ichor.maesh.dev/statefile"
)

func TestMain(m *testing.M) {
	s3gateway.RunIfChild()
	os.Exit(m.Run())
}

const (
	access = "canary-access-key"
	secret = "canary-secret-key-0123456789"
)

func startS3(t *testing.T) *s3gateway.Child {
	t.Helper()
	child, err := s3gateway.StartChild(t.Context(), s3gateway.Options{Dir: t.TempDir(), Access: access, Secret: secret, Buckets: []string{"backups"}})
	require.NoError(t, err)
	t.Cleanup(child.Stop)
	return child
}

// cluster is a cluster that takes backups, as its bundle tells.
type cluster struct{ id, secret string }

func (c cluster) owner(t *testing.T) backup.Owner {
	t.Helper()
	passphrase, err := backup.NewPassphrase(c.id, c.secret)
	require.NoError(t, err)
	sealer, err := statefile.NewSealer(c.id, "secretbox-of-"+c.secret, "")
	require.NoError(t, err)
	return backup.Owner{ClusterID: c.id, Passphrase: passphrase, Sealer: sealer}
}

var prod = cluster{"prod-id", "prod-secret"}

func bucketAt(t *testing.T, server *s3gateway.Child, prefix string) *statefile.Bucket {
	t.Helper()
	bucket, err := statefile.OpenBucket(t.Context(), statefile.S3Config{Endpoint: server.Endpoint, Bucket: "backups", Prefix: prefix,
		Credentials: &statefile.S3Credentials{AccessKeyID: access, SecretAccessKey: secret}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, bucket.Close()) })
	return bucket
}

// at and withTrailer are those of the package's own tests.
var at, withTrailer = backup.At, backup.SnapshotOf

// emptySpool opens a spool in a folder of its own.
func emptySpool(t *testing.T) *backup.Spool {
	t.Helper()
	spool, err := backup.OpenSpool(t.TempDir())
	require.NoError(t, err)
	return spool
}

// member is a control plane whose etcd streams what it is given.
type member struct {
	name   string
	status backup.EtcdStatus
	data   []byte
	err    error
}

func (m *member) Name() string { return m.name }

func (m *member) EtcdStatus(context.Context) (backup.EtcdStatus, error) { return m.status, m.err }

func (m *member) EtcdSnapshot(context.Context) (io.ReadCloser, error) {
	return io.NopCloser(bytes.NewReader(m.data)), nil
}

func follower(name string, data []byte) *member {
	return &member{name: name, data: data, status: backup.EtcdStatus{MemberID: 2, Leader: 1}}
}

// take takes a snapshot of a made-up etcd, at a time.
func take(t *testing.T, c cluster, when time.Time) *backup.Taken {
	t.Helper()
	spool := emptySpool(t)
	taken, err := backup.Take(t.Context(), []backup.Node{follower("cp-1", withTrailer(backup.EtcdDatabase(t, 4096, 500, func() int { return 100 })))}, spool,
		c.owner(t).Passphrase, testclock.NewFakeClock(when))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, taken.Close()) })
	return taken
}

func store(t *testing.T, d *backup.Destination, c cluster, when time.Time) backup.Snapshot {
	t.Helper()
	taken := take(t, c, when)
	s := d.Describe(taken, "v1.13.6", "v1.36.2")
	require.NoError(t, d.Store(t.Context(), s, taken))
	contents, err := d.Contents(t.Context())
	require.NoError(t, err)
	for _, listed := range contents.Snapshots {
		if listed.Name == s.Name {
			s.ETag = listed.ETag // the store's, which nobody knows before
		}
	}
	return s
}

func TestASnapshotIsStoredListedAndVerified(t *testing.T) {
	server := startS3(t)
	d := backup.NewDestination(bucketAt(t, server, "prod"), "prod", prod.owner(t))
	first := store(t, d, prod, at("2026-11-29 10:00:00"))
	second := store(t, d, prod, at("2026-11-29 11:00:00"))
	require.EqualValues(t, 500, first.Revision)
	contents, err := d.Contents(t.Context())
	require.NoError(t, err)
	require.Equal(t, []backup.Snapshot{second, first}, contents.Snapshots)
	require.Empty(t, contents.Missing())
	size, revision, err := d.Verify(t.Context(), first.Name, first.SHA256)
	require.NoError(t, err)
	require.EqualValues(t, 500, revision)
	require.Equal(t, first.Size, size)
	_, _, err = d.Verify(t.Context(), first.Name, second.SHA256)
	require.ErrorIs(t, err, backup.ErrReplaced)
	other := backup.NewDestination(bucketAt(t, server, "prod"), "prod", cluster{"prod-id", "another"}.owner(t))
	_, _, err = other.Verify(t.Context(), first.Name, first.SHA256)
	require.ErrorIs(t, err, backup.ErrOtherBundle)
	var forged *statefile.StateForgedError
	_, err = other.Contents(t.Context())
	require.ErrorAs(t, err, &forged, "its seal is of another bundle")
	moved := backup.NewDestination(bucketAt(t, server, "prod"), "elsewhere", prod.owner(t))
	_, err = moved.Contents(t.Context())
	require.ErrorAs(t, err, &forged, "an index serves under its own prefix only")
}

func TestANameThatIsNotAfterTheNewestIsRefused(t *testing.T) {
	d := backup.NewDestination(bucketAt(t, startS3(t), "prod"), "prod", prod.owner(t))
	store(t, d, prod, at("2026-11-29 10:00:00"))
	for _, when := range []string{"2026-11-29 09:59:59", "2026-11-29 10:00:00"} {
		taken := take(t, prod, at(when))
		var behind *backup.ClockBehindError
		require.ErrorAs(t, d.Store(t.Context(), d.Describe(taken, "", ""), taken), &behind)
	}
}

func TestWhatIsMissingReplacedForeignOrUnlistedIsSaid(t *testing.T) {
	server := startS3(t)
	bucket := bucketAt(t, server, "shared")
	d := backup.NewDestination(bucket, "shared", prod.owner(t))
	gone := store(t, d, prod, at("2026-11-29 10:00:00"))
	replaced := store(t, d, prod, at("2026-11-29 11:00:00"))
	whole := store(t, d, prod, at("2026-11-29 12:00:00"))
	require.NoError(t, bucket.Delete(t.Context(), gone.Name))
	require.NoError(t, bucket.Delete(t.Context(), replaced.Name))
	text := func(s string) *io.SectionReader { return io.NewSectionReader(strings.NewReader(s), 0, int64(len(s))) }
	_, err := bucket.Upload(t.Context(), replaced.Name, text("something else"), map[string]string{"cluster-id": "prod-id"})
	require.NoError(t, err)
	foreign, unknown, unlisted := backup.ObjectName(at("2026-11-29 10:30:00")), backup.ObjectName(at("2026-11-29 10:31:00")), backup.ObjectName(at("2026-11-29 10:32:00"))
	_, err = bucket.Upload(t.Context(), foreign, text("a"), map[string]string{"cluster-id": "staging-id"})
	require.NoError(t, err)
	_, err = bucket.Upload(t.Context(), unknown, text("b"), nil)
	require.NoError(t, err)
	_, err = bucket.Upload(t.Context(), unlisted, text("c"), map[string]string{"cluster-id": "prod-id"})
	require.NoError(t, err)
	_, err = bucket.Upload(t.Context(), "etcd-notes.txt", text("d"), nil)
	require.NoError(t, err)

	contents, err := d.Contents(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{replaced.Name, gone.Name}, contents.Missing())
	require.Equal(t, []string{foreign, unknown}, contents.Foreign)
	require.Equal(t, []string{unlisted}, contents.Unlisted)
	found, err := contents.Find("")
	require.NoError(t, err)
	require.Equal(t, whole, found)
	_, err = contents.Find(gone.Name)
	require.ErrorIs(t, err, statefile.ErrNotFound)

	_, err = d.Prune(t.Context(), backup.Retention{Last: 1}, backup.Guard{}, nil)
	var foreignError *backup.ForeignError
	require.ErrorAs(t, err, &foreignError)
	contents, err = d.Contents(t.Context())
	require.NoError(t, err)
	require.Len(t, contents.Snapshots, 3, "nothing was deleted")
}

func TestAnObjectInThePlaceOfAnotherOfItsSizeIsNoticed(t *testing.T) {
	bucket := bucketAt(t, startS3(t), "shared")
	d := backup.NewDestination(bucket, "shared", prod.owner(t))
	snapshot := store(t, d, prod, at("2026-11-29 10:00:00"))
	whole := store(t, d, prod, at("2026-11-29 11:00:00"))
	require.NoError(t, bucket.Delete(t.Context(), snapshot.Name))
	other := bytes.Repeat([]byte("x"), int(snapshot.SealedSize))
	_, err := bucket.Upload(t.Context(), snapshot.Name, io.NewSectionReader(bytes.NewReader(other), 0, snapshot.SealedSize), map[string]string{"cluster-id": "prod-id"})
	require.NoError(t, err)
	contents, err := d.Contents(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{snapshot.Name}, contents.Missing())
	_, err = contents.Find(snapshot.Name)
	require.ErrorIs(t, err, backup.ErrReplaced)
	found, err := contents.Find("")
	require.NoError(t, err)
	require.Equal(t, whole.Name, found.Name)
}

// renamed is a bucket whose listing gives other ETags than the objects were stored with, as that of a copy does.
type renamed struct {
	backup.Objects
	etag      string // of every object; empty: as it is
	hidden    bool   // storing tells no ETag, as older versions kept none
	downloads int
}

func (r *renamed) List(ctx context.Context, prefix, after string, fn func(statefile.ObjectInfo) error) error {
	return r.Objects.List(ctx, prefix, after, func(o statefile.ObjectInfo) error {
		if r.etag != "" {
			o.ETag = r.etag
		}
		return fn(o)
	})
}

func (r *renamed) Upload(ctx context.Context, key string, content *io.SectionReader, metadata map[string]string) (statefile.Stat, error) {
	stat, err := r.Objects.Upload(ctx, key, content, metadata)
	if r.hidden {
		stat.ETag = ""
	}
	return stat, err
}

func (r *renamed) Download(ctx context.Context, key string) (io.ReadCloser, statefile.Stat, error) {
	r.downloads++
	body, stat, err := r.Objects.Download(ctx, key)
	if r.etag != "" {
		stat.ETag = r.etag
	}
	return body, stat, err
}

func TestACopyOfASnapshotIsNoOtherObject(t *testing.T) {
	bucket := &renamed{Objects: bucketAt(t, startS3(t), "shared")}
	d := backup.NewDestination(bucket, "shared", prod.owner(t))
	store(t, d, prod, at("2026-11-29 10:00:00"))
	bucket.etag, bucket.downloads = "of-the-copy", 0
	for range 3 {
		contents, err := d.Contents(t.Context())
		require.NoError(t, err)
		require.Empty(t, contents.Missing())
		require.Len(t, contents.Snapshots, 1)
	}
	require.Equal(t, 1, bucket.downloads, "its content is read once")
}

func TestAnEntryWithoutAnETagIsReadAsBefore(t *testing.T) {
	bucket := &renamed{Objects: bucketAt(t, startS3(t), "shared"), hidden: true}
	d := backup.NewDestination(bucket, "shared", prod.owner(t))
	snapshot := store(t, d, prod, at("2026-11-29 10:00:00"))
	index, err := bucket.Get(t.Context(), "etcd-index.json", "")
	require.NoError(t, err)
	require.NotContains(t, string(index.Data), "etag")
	bucket.downloads = 0
	contents, err := d.Contents(t.Context())
	require.NoError(t, err)
	require.Equal(t, []backup.Snapshot{snapshot}, contents.Snapshots)
	require.Zero(t, bucket.downloads)
}

func TestPruningDeletesOnlyWhatIsListed(t *testing.T) {
	bucket := bucketAt(t, startS3(t), "prod")
	d := backup.NewDestination(bucket, "prod", prod.owner(t))
	var all []backup.Snapshot
	for hour := range 5 {
		all = append(all, store(t, d, prod, at(fmt.Sprintf("2026-11-29 %02d:00:00", hour))))
	}
	pruned, err := d.Prune(t.Context(), backup.Retention{Last: 2}, backup.Guard{}, nil)
	require.NoError(t, err)
	require.Equal(t, []string{all[0].Name, all[1].Name, all[2].Name}, pruned.Deleted)
	contents, err := d.Contents(t.Context())
	require.NoError(t, err)
	require.Equal(t, []backup.Snapshot{all[4], all[3]}, contents.Snapshots)
}

// cutOff fails every call from the nth on, as if the process had died there.
type cutOff struct {
	backup.Objects
	left int
}

var errCut = errors.New("cut off")

func (c *cutOff) step() error {
	if c.left--; c.left < 0 {
		return errCut
	}
	return nil
}

func (c *cutOff) Put(ctx context.Context, key string, data []byte, cond statefile.If) (string, error) {
	if err := c.step(); err != nil {
		return "", err
	}
	etag, err := c.Objects.Put(ctx, key, data, cond)
	if cut := c.step(); cut != nil {
		return "", cut
	}
	return etag, err
}

func (c *cutOff) Upload(ctx context.Context, key string, content *io.SectionReader, metadata map[string]string) (statefile.Stat, error) {
	if err := c.step(); err != nil {
		return statefile.Stat{}, err
	}
	stat, err := c.Objects.Upload(ctx, key, content, metadata)
	if cut := c.step(); cut != nil {
		return statefile.Stat{}, cut
	}
	return stat, err
}

func (c *cutOff) Remove(ctx context.Context, key string) error {
	if err := c.step(); err != nil {
		return err
	}
	err := c.Objects.Remove(ctx, key)
	if cut := c.step(); cut != nil {
		return cut
	}
	return err
}

func TestStoringThatIsCutOffAnywhereIsFinishedOrForgotten(t *testing.T) {
	server := startS3(t)
	for left := 0; ; left++ {
		prefix := fmt.Sprintf("cut-%d", left)
		cut := &cutOff{Objects: bucketAt(t, server, prefix), left: left}
		taken := take(t, prod, at("2026-11-29 10:00:00"))
		d := backup.NewDestination(cut, prefix, prod.owner(t))
		s := d.Describe(taken, "", "")
		err := d.Store(t.Context(), s, taken)
		again := backup.NewDestination(bucketAt(t, server, prefix), prefix, prod.owner(t))
		stored, finishErr := again.Finish(t.Context(), s)
		require.NoError(t, finishErr)
		contents, listErr := again.Contents(t.Context())
		require.NoError(t, listErr)
		require.Empty(t, contents.Unlisted)
		require.Equal(t, stored, len(contents.Snapshots) == 1)
		require.Equal(t, left > 0, stored, "cut off after %d steps", left)
		if err == nil {
			require.Equal(t, 4, left, "upload and index, before and after each")
			return
		}
	}
}

func TestPruningThatIsCutOffAnywhereGoesOn(t *testing.T) {
	server := startS3(t)
	for left := 0; ; left++ {
		prefix := fmt.Sprintf("cut-%d", left)
		d := backup.NewDestination(bucketAt(t, server, prefix), prefix, prod.owner(t))
		for hour := range 3 {
			store(t, d, prod, at(fmt.Sprintf("2026-11-29 %02d:00:00", hour)))
		}
		cut := backup.NewDestination(&cutOff{Objects: bucketAt(t, server, prefix), left: left}, prefix, prod.owner(t))
		first, err := cut.Prune(t.Context(), backup.Retention{Last: 1}, backup.Guard{}, nil)
		contents, listErr := d.Contents(t.Context())
		require.NoError(t, listErr)
		require.Empty(t, contents.Missing(), "what pruning deleted is no loss")
		_, pruneErr := d.Prune(t.Context(), backup.Retention{Last: 1}, backup.Guard{}, nil)
		require.NoError(t, pruneErr)
		contents, listErr = d.Contents(t.Context())
		require.NoError(t, listErr)
		require.Len(t, contents.Snapshots, 1)
		if err == nil && len(first.Problems) == 0 {
			require.Equal(t, 8, left, "the mark, two deletions, the index, before and after each")
			return
		}
	}
}

func TestATornStreamIsNoSnapshotAndTheNextMemberIsAsked(t *testing.T) {
	spool := emptySpool(t)
	data := withTrailer(backup.EtcdDatabase(t, 4096, 500, func() int { return 100 }))
	torn := follower("cp-1", data[:len(data)/2])
	leader := &member{name: "cp-0", data: data, status: backup.EtcdStatus{MemberID: 1, Leader: 1}}
	learner := &member{name: "cp-3", data: data, status: backup.EtcdStatus{MemberID: 3, Leader: 1, Learner: true}}
	taken, err := backup.Take(t.Context(), []backup.Node{leader, torn, learner}, spool, prod.owner(t).Passphrase, clock.RealClock{})
	require.NoError(t, err)
	require.Equal(t, "cp-0", taken.Member, "the leader comes last")
	require.NoError(t, taken.Close())

	_, err = backup.Take(t.Context(), []backup.Node{torn, learner, &member{name: "cp-4", err: errors.New("no route to host")},
		&member{name: "cp-5", status: backup.EtcdStatus{MemberID: 5, Errors: []string{"etcdserver: no leader"}}}}, spool, prod.owner(t).Passphrase, clock.RealClock{})
	require.ErrorIs(t, err, backup.ErrTorn)
	for _, part := range []string{"cp-1: the stream ended early", "cp-3 is a learner", "cp-4 didn't say how its etcd is: no route to host", "cp-5 knows no leader"} {
		require.ErrorContains(t, err, part)
	}
}

// mute is a control plane that gives no answer to a question for a snapshot, or a stream that brings nothing.
type mute struct {
	member
	opens bool
}

func (m *mute) EtcdSnapshot(ctx context.Context) (io.ReadCloser, error) {
	if !m.opens {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	reader, writer := io.Pipe()
	context.AfterFunc(ctx, func() { _ = writer.CloseWithError(ctx.Err()) })
	return reader, nil
}

func TestAStreamThatBringsNothingIsGivenUp(t *testing.T) {
	spool := emptySpool(t)
	for _, opens := range []bool{false, true} {
		silent := &mute{member: *follower("cp-1", nil), opens: opens}
		whole := follower("cp-2", withTrailer(backup.EtcdDatabase(t, 4096, 500, func() int { return 100 })))
		turned := testclock.NewFakeClock(at("2026-11-29 10:00:00"))
		var taken *backup.Taken
		done := make(chan error, 1)
		go func() {
			var err error
			taken, err = backup.Take(t.Context(), []backup.Node{silent, whole}, spool, prod.owner(t).Passphrase, turned)
			done <- err
		}()
		require.Eventually(t, turned.HasWaiters, 10*time.Minute, time.Millisecond)
		turned.Step(2 * time.Minute)
		require.NoError(t, <-done)
		require.Equal(t, "cp-2", taken.Member)
		require.Equal(t, at("2026-11-29 10:02:00"), taken.At)
		require.NoError(t, taken.Close())
	}
}
