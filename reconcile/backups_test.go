package reconcile

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/backup"
	"ichor.maesh.dev/backup/keeper"
	"ichor.maesh.dev/internal/s3gateway"
	"ichor.maesh.dev/internal/sealed"
	"ichor.maesh.dev/statefile"
)

const (
	backupAccess = "backup-access-key"
	backupSecret = "canary-of-the-backup-secret"
)

// vault is a real S3 server with what agents take backups with.
type vault struct {
	server *s3gateway.Child
	spool  string
	config *Backups
}

// withBackups gives the lab's cluster a bucket, and a backup "hourly" in it.
func (l *lab) withBackups(t testing.TB) *vault {
	t.Helper()
	server, err := s3gateway.StartChild(t.Context(), s3gateway.Options{Dir: t.TempDir(), Access: backupAccess, Secret: backupSecret, Buckets: []string{"backups"}})
	require.NoError(t, err)
	t.Cleanup(server.Stop)
	keys, err := sealed.Seal(l.fleet.recipients, []byte("accessKeyID: "+backupAccess+"\nsecretAccessKey: "+backupSecret+"\n"))
	require.NoError(t, err)
	l.fleet.write("clusters/prod/s3.age", string(keys))
	l.fleet.write("clusters/prod/backup.yaml", fmt.Sprintf(`apiVersion: ichor.maesh.dev/v1alpha1
kind: TalosEtcdBackup
metadata: {name: hourly}
spec:
  clusterRef: {name: prod}
  destination: {s3: {endpoint: %q, region: us-east-1, bucket: backups, prefix: prod, credentials: {file: s3.age}}}
  drill: {schedule: "30 4 * * *"}
`, server.Endpoint))
	l.source.mu.Lock()
	l.source.revisions = nil
	l.source.mu.Unlock()
	l.source.push(l.fleet.files)
	v := &vault{server: server, spool: filepath.Join(t.TempDir(), "spool")}
	spool, err := backup.OpenSpool(v.spool)
	require.NoError(t, err)
	v.config = &Backups{Spool: spool, Limits: keeper.NewLimits(2), Opener: &keeper.Places{Scrubber: l.scrubber, StateLocation: l.store.Location(),
		Identities: func() (*sealed.Identities, error) { return l.fleet.identities, nil }}}
	return v
}

// leave puts an object into the bucket that is no snapshot of this cluster's.
func (v *vault) leave(t testing.TB, name string) {
	t.Helper()
	_, err := v.bucket(t).Put(t.Context(), name, []byte("something"), statefile.IfAbsent())
	require.NoError(t, err)
}

// bucket is the vault's, below the backup's prefix.
func (v *vault) bucket(t testing.TB) *statefile.Bucket {
	t.Helper()
	bucket, err := statefile.OpenBucket(t.Context(), statefile.S3Config{Endpoint: v.server.Endpoint, Region: s3gateway.Region, Bucket: "backups", Prefix: "prod",
		Credentials: &statefile.S3Credentials{AccessKeyID: backupAccess, SecretAccessKey: backupSecret}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, bucket.Close()) })
	return bucket
}

// destination is the bucket as somebody with the bundle sees it.
func (l *lab) destination(t testing.TB, v *vault) *backup.Opened {
	t.Helper()
	material := l.fleet.bundle.SealingMaterial()
	owner, err := backup.NewOwner(material.ClusterID, material.ClusterSecret, material.EncryptionSecret)
	require.NoError(t, err)
	d, err := backup.OpenDestination(t.Context(), statefile.S3Config{Endpoint: v.server.Endpoint, Region: s3gateway.Region, Bucket: "backups", Prefix: "prod",
		Credentials: &statefile.S3Credentials{AccessKeyID: backupAccess, SecretAccessKey: backupSecret}}, owner)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	return d
}

func backupIn(r Report, name string) *statefile.BackupState {
	for _, c := range r.Clusters {
		if c.State != nil && c.State.Backups[name] != nil {
			return c.State.Backups[name]
		}
	}
	return &statefile.BackupState{}
}

func TestASnapshotIsTakenStoredAndDrilledWithoutBeingAskedFor(t *testing.T) {
	t.Parallel()
	l := newLab(t, "127.0.56.1", 1, 0, 30)
	v := l.withBackups(t)
	// Half a day away: the first snapshot and the first drill are due at once, and no second ones while this runs.
	far := fmt.Sprintf("30 %d * * *", (time.Now().UTC().Hour()+12)%24)
	text := string(l.fleet.files["clusters/prod/backup.yaml"].Data)
	l.fleet.write("clusters/prod/backup.yaml", strings.Replace(text, "30 4 * * *", far, 1)+fmt.Sprintf("  schedule: %q\n", far))
	l.source.push(l.fleet.files)
	config := l.config("agent-1")
	config.Backups = v.config
	report := l.run(config, func(r Report) bool { return allReady(r) && backupIn(r, "hourly").Drill != nil })
	b := backupIn(report, "hourly")
	require.True(t, b.Ready.Status, "%+v %v", b, report.Problems())
	require.Equal(t, "Succeeded", b.Ready.Reason)
	require.True(t, b.Drill.Passed, b.Drill.Problem)
	require.Positive(t, b.Drill.Revision)
	left, err := os.ReadDir(v.spool)
	require.NoError(t, err)
	require.Empty(t, left)
	require.NotContains(t, l.log.String(), backupSecret)

	d := l.destination(t, v)
	contents, err := d.Contents(t.Context())
	require.NoError(t, err)
	require.Len(t, contents.Snapshots, 1)
	stored := contents.Snapshots[0]
	require.True(t, stored.Drill.Passed)
	require.Equal(t, "v1.13.6", stored.TalosVersion)
	size, revision, err := d.Verify(t.Context(), stored.Name, stored.SHA256)
	require.NoError(t, err)
	require.Equal(t, []int64{stored.Size, stored.Revision}, []int64{size, revision})

	status := StatusOf(report.Clusters[0].State, nil)
	require.Len(t, status.Backups, 1)
	require.Equal(t, []SnapshotStatus{{Name: stored.Name, Time: when(stored.Time), Size: size, Revision: revision, Drill: "passed"}}, status.Backups[0].Snapshots)

	asked := 0
	for _, entry := range l.farm.Nodes()[0].Journal() {
		if strings.HasSuffix(entry.Method, "/EtcdSnapshot") {
			asked++
			require.Equal(t, []string{"os:etcd:backup"}, entry.Caller.Organization, "the least role that may")
		}
	}
	require.Equal(t, 1, asked)
}

func TestAFreshClusterWithASnapshotInItsBucketIsNotBootstrapped(t *testing.T) {
	t.Parallel()
	l := newLab(t, "127.0.56.5", 1, 0, 30)
	v := l.withBackups(t)
	// An object that another cluster, or nobody, put there is proof enough.
	v.leave(t, "etcd-20250101T000000Z.snapshot.age")
	config := l.config("agent-1")
	config.Backups = v.config
	report := l.run(config, func(r Report) bool {
		return len(r.Clusters) > 0 && r.Clusters[0].State != nil && r.Clusters[0].State.Origin == statefile.OriginLost &&
			strings.Contains(strings.Join(r.Problems(), "\n"), "--recover-cluster")
	})
	require.Contains(t, strings.Join(report.Problems(), "\n"), "bring it back from a snapshot with 'ichor restore --recover-cluster'")
	require.Empty(t, l.accepted("Bootstrap"))
}
