package main

import (
	"encoding/json"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/server/v3/embed"

	"ichor.maesh.dev/internal/talossim"
)

// serveEtcd runs an etcd where a control plane's would be.
func serveEtcd(t *testing.T, address string) {
	t.Helper()

	listener, err := net.Listen("tcp", address+":0")
	require.NoError(t, err)
	require.NoError(t, listener.Close())

	client, peer := url.URL{Scheme: "http", Host: address + ":2379"}, url.URL{Scheme: "http", Host: listener.Addr().String()}
	config := embed.NewConfig()
	config.Name, config.Dir, config.LogLevel, config.UnsafeNoFsync = "cp-2", t.TempDir(), "error", true
	config.LogOutputs = []string{filepath.Join(t.TempDir(), "log")}
	config.ListenClientUrls, config.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	config.ListenPeerUrls, config.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
	config.InitialCluster = config.InitialClusterFromName(config.Name)

	server, err := embed.StartEtcd(config)
	require.NoError(t, err)
	t.Cleanup(server.Close)

	select {
	case <-server.Server.ReadyNotify():
	case <-time.After(3 * time.Minute):
		require.Fail(t, "etcd did not start")
	}
}

func TestKeysAreWrittenReadAndDeletedInTheEtcdThatAnswers(t *testing.T) {
	const dead, alive = "127.0.30.151", "127.0.30.152"

	serveEtcd(t, alive)

	dir := t.TempDir()
	list, err := json.Marshal([]talossim.NodeSpec{
		{Name: "w-1", Address: alive, Role: talossim.Worker},
		{Name: "cp-1", Address: dead, Role: talossim.ControlPlane},
		{Name: "cp-2", Address: alive, Role: talossim.ControlPlane},
	})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, talossim.NodesFile), list, 0o600))

	etcd := func(args ...string) (string, error) {
		return ctl(t, append([]string{"--dir", dir, "etcd"}, args...)...)
	}

	_, err = etcd("put", "/registry/a", "what\x1b[2J nobody has a copy of")
	require.NoError(t, err)
	_, err = etcd("put", "/other", "b")
	require.NoError(t, err)

	out, err := etcd("get", "/registry/a")
	require.NoError(t, err)
	require.Contains(t, out, "nobody has a copy of\n")
	require.NotContains(t, out, "\x1b")

	out, err = etcd("list")
	require.NoError(t, err)
	require.Equal(t, "/other\n/registry/a\n", out)
	out, err = etcd("list", "/registry")
	require.NoError(t, err)
	require.Equal(t, "/registry/a\n", out)

	_, err = etcd("delete", "/registry/a")
	require.NoError(t, err)
	_, err = etcd("get", "/registry/a")
	require.EqualError(t, err, "there is no key /registry/a")
	_, err = etcd("delete", "/registry/a")
	require.EqualError(t, err, "there is no key /registry/a")
}

func TestWhereNoEtcdAnswersThatIsSaid(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, talossim.NodesFile), []byte(`[{"name":"w-1","address":"127.0.30.153","role":"worker"}]`), 0o600))

	_, err := ctl(t, "--dir", dir, "etcd", "list")
	require.EqualError(t, err, "no control plane's etcd answers; it does once the cluster is bootstrapped")
}
