package reconcile

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"ichor.maesh.dev/internal/talossim"
	"ichor.maesh.dev/statefile"
)

// TestEveryTroubleOfABackupNamesItsPartAndPasses makes trouble in one part after the other: the status names the part, the cause and what to
// do, nothing half done is left, and the next attempt succeeds once the trouble is over.
func TestEveryTroubleOfABackupNamesItsPartAndPasses(t *testing.T) {
	t.Parallel()
	k := newKeeping(t, "127.0.56.13")
	node := k.lab.farm.Nodes()[0]
	once := func(names ...string) statefile.BackupState {
		k.process().Once(t.Context(), k.want(names...))
		return k.memory()
	}
	require.Equal(t, "Succeeded", once("cp-1").Ready.Reason)

	on := func(call string, err error) func() func() {
		return func() func() {
			k.fault = func(at string) error {
				if at == call {
					return err
				}
				return nil
			}
			return func() { k.fault = nil }
		}
	}
	inject := func(f talossim.Fault) func() func() { return func() func() { return node.Inject(f) } }
	for _, c := range []struct {
		name    string
		trouble func() (over func())
		reason  string
		says    []string
	}{
		{"a stream that ends early and looks whole", inject(talossim.Fault{Method: "EtcdSnapshot", Kind: talossim.EndEarly}), "Failed",
			[]string{"member: ", "cp-1: the stream ended early", "talosctl etcd status"}},
		{"a connection that is cut", inject(talossim.Fault{Method: "EtcdSnapshot", Kind: talossim.CutBefore}), "Failed", []string{"member: ", "its stream broke off"}},
		{"an etcd that says why not", inject(talossim.Fault{Method: "EtcdSnapshot", Kind: talossim.Fail, Code: codes.Unavailable, Text: "etcdserver: no leader"}), "Failed",
			[]string{"member: ", "no leader"}},
		{"a member that gives no status", inject(talossim.Fault{Method: "EtcdStatus", Kind: talossim.Fail, Code: codes.Unavailable, Text: "no route to etcd"}), "Failed",
			[]string{"member: ", "cp-1 didn't say how its etcd is", "no route to etcd"}},
		{"a store that answers 503", on("upload snapshot", fmt.Errorf("uploading: %w: it answered 503 SlowDown", statefile.ErrUnavailable)), "Failed",
			[]string{"store: ", "503", "is up and can be reached"}},
		{"a store that can't be listed", on("list", fmt.Errorf("listing: %w (it answered 403 AccessDenied)", statefile.ErrPermission)), "DestinationUnusable",
			[]string{"store: ", "403", "right to read, write and list"}},
		{"an index with a wrong seal", on("get etcd-index.json", &statefile.StateForgedError{Key: "prod/etcd-index.json", Why: "its seal is wrong"}), "IndexForged",
			[]string{"store: ", "find out who can write the bucket"}},
		{"a bucket that is gone", on("list", errors.New("there is no such bucket; make it, or mend the bucket's name")), "DestinationUnusable", []string{"store: ", "there is no such bucket"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			k.clock.Step(time.Hour)
			before := k.memory()
			over := c.trouble()
			m := once("cp-1")
			over()
			require.Equal(t, c.reason, m.Ready.Reason, m.Ready.Message)
			require.False(t, m.Ready.Status)
			for _, text := range c.says {
				require.Contains(t, m.Ready.Message, text)
			}
			require.Equal(t, before.Failures+1, m.Failures)
			require.Nil(t, m.Attempt)
			require.Equal(t, before.LastSuccess, m.LastSuccess)
			k.clock.Step(5 * time.Minute)
			m = once("cp-1")
			require.True(t, m.Ready.Status, "%+v", m.Ready)
			require.Equal(t, before.Failures+1, m.Failures)
			require.True(t, m.LastSuccess.After(before.LastSuccess))
		})
	}

	t.Run("a node that loses its power while it streams", func(t *testing.T) {
		fill(t, node.Address(), 16<<20) // more than can be on its way
		k.clock.Step(time.Hour)
		before := k.memory()
		pieces, cut := 0, make(chan struct{})
		k.fault = func(at string) error {
			if at != "stream" {
				return nil
			}
			if pieces++; pieces == 2 {
				require.NoError(t, node.PowerCycle())
				close(cut)
			}
			return nil
		}
		ended := make(chan struct{})
		go func() { // a stream that falls silent is given up after a time, which is turned
			select {
			case <-cut:
			case <-ended:
			}
			for tick := time.NewTicker(100 * time.Millisecond); ; {
				select {
				case <-ended:
					tick.Stop()
					return
				case <-tick.C:
					k.clock.Step(10 * time.Second)
				}
			}
		}()
		m := once("cp-1")
		close(ended)
		k.fault = nil
		<-cut
		require.Equal(t, "Failed", m.Ready.Reason, m.Ready.Message)
		require.Regexp(t, `member: .*cp-1: (its stream broke off|its stream brought nothing for 2m0s|the stream ended early)`, m.Ready.Message)
		require.Equal(t, before.LastSuccess, m.LastSuccess)
		require.Nil(t, m.Attempt)
		left, err := os.ReadDir(k.vault.spool)
		require.NoError(t, err)
		require.Empty(t, left)

		member := k.want("cp-1").Nodes[0]
		require.Eventually(t, func() bool {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			_, err := member.EtcdStatus(ctx)
			return err == nil
		}, 5*time.Minute, 100*time.Millisecond, "etcd is back")
		k.clock.Step(5 * time.Minute)
		m = once("cp-1")
		require.True(t, m.Ready.Status, "%+v", m.Ready)
		require.True(t, m.LastSuccess.After(before.LastSuccess))
	})
	t.Run("a torn stream of one member is made good by the next", func(t *testing.T) {
		k.clock.Step(time.Hour)
		defer node.Inject(talossim.Fault{Method: "EtcdSnapshot", Kind: talossim.EndEarly, Times: 1})()
		m := once("cp-1", "cp-1-again")
		require.True(t, m.Ready.Status, "%+v", m.Ready)
	})
	t.Run("a lost acknowledgement stores nothing twice", func(t *testing.T) {
		for _, call := range []string{"upload snapshot", "put etcd-index.json"} {
			k.clock.Step(time.Hour)
			before := k.memory()
			lost := false
			k.lost = func(at string) error {
				if at == call && !lost {
					lost = true
					return fmt.Errorf("writing: %w", statefile.ErrUnacknowledged)
				}
				return nil
			}
			m := once("cp-1")
			k.lost = nil
			require.True(t, lost)
			require.True(t, m.Ready.Status, "%+v", m.Ready)
			require.Equal(t, before.Failures, m.Failures, "it was there all the same")
		}
	})
	t.Run("a request is acted on once", func(t *testing.T) {
		k.clock.Step(10 * time.Minute)
		before := k.memory()
		k.ask(t, "digest-1")
		m := once("cp-1")
		require.Equal(t, "digest-1", m.Request.Digest)
		require.True(t, strings.HasPrefix(m.Request.Outcome, "stored etcd-"), m.Request.Outcome)
		require.True(t, m.LastSuccess.After(before.LastSuccess))
		require.Equal(t, m.LastSuccess, once("cp-1").LastSuccess)

		k.clock.Step(10 * time.Minute)
		k.ask(t, "digest-2")
		over := node.Inject(talossim.Fault{Method: "EtcdSnapshot", Kind: talossim.EndEarly})
		m = once("cp-1")
		over()
		require.Contains(t, m.Request.Outcome, "failed: member: ")
		require.False(t, m.Request.Done.IsZero())
		k.clock.Step(5 * time.Minute)
		require.True(t, once("cp-1").Ready.Status, "the schedule's own retry")
	})
	t.Run("while a restore's marker stands nothing is taken, and nothing counts as failed", func(t *testing.T) {
		bucket := tappedObjects{k.bucket(t), k}
		_, err := bucket.Bucket.Put(t.Context(), "etcd-restore.marker.json", []byte("{}"), statefile.IfAbsent())
		require.NoError(t, err)
		k.clock.Step(time.Hour)
		before := k.memory()
		m := once("cp-1")
		require.Equal(t, "RestoreInProgress", m.Ready.Reason)
		require.Equal(t, []any{before.Failures, before.LastSuccess, before.LastAttempt}, []any{m.Failures, m.LastSuccess, m.LastAttempt})
		require.NoError(t, bucket.Bucket.Delete(t.Context(), "etcd-restore.marker.json"))
		k.clock.Step(time.Minute)
		require.True(t, once("cp-1").Ready.Status)
	})
	t.Run("a snapshot that vanished, one of another cluster, and an index of old are each noticed", func(t *testing.T) {
		bucket := k.bucket(t)
		older, err := bucket.Get(t.Context(), "etcd-index.json", "")
		require.NoError(t, err)
		k.clock.Step(time.Hour)
		m := once("cp-1")
		require.True(t, m.Ready.Status, "%+v", m.Ready)

		newest, err := bucket.Get(t.Context(), "etcd-index.json", "")
		require.NoError(t, err)
		_, err = bucket.Put(t.Context(), "etcd-index.json", older.Data, statefile.IfMatch(newest.ETag))
		require.NoError(t, err)
		m = once("cp-1")
		require.Equal(t, "SnapshotsMissing", m.Ready.Reason)
		require.Contains(t, m.Ready.Message, "an older index was put in its place")
		put, err := bucket.Get(t.Context(), "etcd-index.json", "")
		require.NoError(t, err)
		_, err = bucket.Put(t.Context(), "etcd-index.json", newest.Data, statefile.IfMatch(put.ETag))
		require.NoError(t, err)
		require.True(t, once("cp-1").Ready.Status)

		_, err = bucket.Put(t.Context(), "etcd-20250101T000000Z.snapshot.age", []byte("something"), statefile.IfAbsent())
		require.NoError(t, err)
		k.clock.Step(time.Hour)
		m = once("cp-1")
		require.Equal(t, "ForeignSnapshots", m.Ready.Reason)
		require.Equal(t, k.clock.Now().UTC().Truncate(time.Second), m.LastSuccess, "a snapshot is taken all the same")
		require.NoError(t, bucket.Delete(t.Context(), "etcd-20250101T000000Z.snapshot.age"))

		require.NoError(t, bucket.Delete(t.Context(), m.Snapshots[0].Name))
		m = once("cp-1")
		require.Equal(t, "SnapshotsMissing", m.Ready.Reason)
		require.Contains(t, m.Ready.Message, m.Snapshots[0].Name)
	})
}

// bucket is the vault's as somebody with its keys sees it.
func (k *keeping) bucket(t *testing.T) *statefile.Bucket {
	t.Helper()
	s3 := k.fleet.Backups[0].Spec.Destination.S3
	bucket, err := statefile.OpenBucket(t.Context(), statefile.S3Config{Endpoint: s3.Endpoint, Region: s3.Region, Bucket: s3.Bucket, Prefix: s3.Prefix,
		Credentials: &statefile.S3Credentials{AccessKeyID: backupAccess, SecretAccessKey: backupSecret}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, bucket.Close()) })
	return bucket
}

// ask puts a request into the state.
func (k *keeping) ask(t *testing.T, digest string) {
	t.Helper()
	k.processes++
	material := k.lab.fleet.bundle.SealingMaterial()
	sealer, err := statefile.NewSealer(material.ClusterID, material.EncryptionSecret, "")
	require.NoError(t, err)
	state, err := statefile.OpenCluster(k.lab.store, statefile.Options{Name: "prod", Sealer: sealer, WriterID: fmt.Sprintf("process-%d", k.processes), Clock: k.clock})
	require.NoError(t, err)
	_, err = state.TakeOver(t.Context())
	require.NoError(t, err)
	require.NoError(t, state.Swap(t.Context(), func(s *statefile.State) error {
		s.Backups["hourly"].Request = &statefile.BackupRequest{Digest: digest, At: k.clock.Now().UTC()}
		return nil
	}))
}
