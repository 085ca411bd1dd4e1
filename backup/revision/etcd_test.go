package revision_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"

	"ichor.maesh.dev/backup/revision"
)

func TestMain(m *testing.M) {
	revision.RunIfChild()
	holdIfTold()
	os.Exit(m.Run())
}

// patience is for a machine that is very busy.
const patience = 2 * time.Minute

// address is where all etcds of a test serve, one after the other, as those of one control plane do.
type address struct{ client, peer url.URL }

func newAddress(t *testing.T) address {
	t.Helper()
	free := func() url.URL {
		listener, err := net.Listen("tcp", "127.0.87.91:0")
		require.NoError(t, err)
		defer func() { _ = listener.Close() }()
		return url.URL{Scheme: "http", Host: listener.Addr().String()}
	}
	return address{client: free(), peer: free()}
}

// serve runs an etcd over a data folder; an empty one begins anew. The result stops it.
func (a address) serve(t *testing.T, dir string) (stop func()) {
	t.Helper()
	config := embed.NewConfig()
	config.Name, config.Dir, config.LogLevel, config.UnsafeNoFsync = "cp-1", dir, "error", true
	config.LogOutputs = []string{filepath.Join(t.TempDir(), "log")}
	config.ListenClientUrls, config.AdvertiseClientUrls = []url.URL{a.client}, []url.URL{a.client}
	config.ListenPeerUrls, config.AdvertisePeerUrls = []url.URL{a.peer}, []url.URL{a.peer}
	config.InitialCluster = config.InitialClusterFromName(config.Name)
	server, err := embed.StartEtcd(config)
	require.NoError(t, err)
	stopped := false
	stop = func() {
		if !stopped {
			stopped = true
			server.Close()
		}
	}
	t.Cleanup(stop)
	select {
	case <-server.Server.ReadyNotify():
	case err := <-server.Err():
		require.NoError(t, err)
	case <-time.After(patience):
		require.Fail(t, "etcd did not start")
	}
	return stop
}

func (a address) dial(t *testing.T) *clientv3.Client {
	t.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{a.client.String()}, DialTimeout: patience, Logger: zap.NewNop()})
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// restore makes a data folder of a snapshot as Talos does, with its hash checked.
func (a address) restore(t *testing.T, file string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "data")
	require.NoError(t, snapshot.NewV3(zap.NewNop()).Restore(snapshot.RestoreConfig{
		SnapshotPath: file, Name: "cp-1", OutputDataDir: dir, PeerURLs: []string{a.peer.String()}, InitialCluster: "cp-1=" + a.peer.String(),
	}))
	return dir
}

func bounded(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

func put(t *testing.T, client *clientv3.Client, key, value string) int64 {
	t.Helper()
	answer, err := client.Put(bounded(t), key, value)
	require.NoError(t, err)
	return answer.Header.Revision
}

func save(t *testing.T, client *clientv3.Client) string {
	t.Helper()
	stream, err := client.Snapshot(bounded(t))
	require.NoError(t, err)
	defer func() { _ = stream.Close() }()
	path := filepath.Join(t.TempDir(), "snapshot.db")
	file, err := os.Create(path)
	require.NoError(t, err)
	_, err = io.Copy(file, stream)
	require.NoError(t, err)
	require.NoError(t, file.Close())
	return path
}

// everything is all keys with their values, by key.
func everything(t *testing.T, client *clientv3.Client) map[string]string {
	t.Helper()
	answer, err := client.Get(bounded(t), "", clientv3.WithPrefix())
	require.NoError(t, err)
	all := map[string]string{}
	for _, kv := range answer.Kvs {
		all[string(kv.Key)] = string(kv.Value)
	}
	return all
}

// fill writes pods, and takes some away again.
func fill(t *testing.T, client *clientv3.Client) {
	t.Helper()
	for n := range 200 {
		put(t, client, fmt.Sprintf("/registry/pods/default/web-%d", n), fmt.Sprintf("value %d", n))
	}
	for n := range 20 {
		_, err := client.Delete(bounded(t), fmt.Sprintf("/registry/pods/default/web-%d", n))
		require.NoError(t, err)
	}
}

func rewrite(t *testing.T, from string, target int64) (string, revision.Contents) {
	t.Helper()
	to := filepath.Join(t.TempDir(), "raised.db")
	contents, err := revision.Rewrite(bounded(t), from, to, target)
	require.NoError(t, err)
	return to, contents
}
