package drill_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"

	"ichor.maesh.dev/backup"
	"ichor.maesh.dev/backup/drill"
)

func TestMain(m *testing.M) {
	drill.RunIfChild()
	os.Exit(m.Run())
}

// snapshotOfEtcd runs an etcd that nobody can reach, lets write fill it, and gives its snapshot.
func snapshotOfEtcd(t *testing.T, write func(put, remove func(key string))) []byte {
	t.Helper()
	config := embed.NewConfig()
	config.Dir, config.LogLevel, config.UnsafeNoFsync = t.TempDir(), "error", true
	config.LogOutputs = []string{filepath.Join(t.TempDir(), "log")}
	free := []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	config.ListenClientUrls, config.AdvertiseClientUrls, config.ListenPeerUrls, config.AdvertisePeerUrls = free, free, free, free
	config.InitialCluster = config.InitialClusterFromName(config.Name)
	etcd, err := embed.StartEtcd(config)
	require.NoError(t, err)
	defer etcd.Close()
	<-etcd.Server.ReadyNotify()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{etcd.Clients[0].Addr().String()}})
	require.NoError(t, err)
	defer func() { _ = client.Close() }()
	write(func(key string) {
		_, err := client.Put(t.Context(), key, "value of "+key)
		require.NoError(t, err)
	}, func(key string) {
		_, err := client.Delete(t.Context(), key)
		require.NoError(t, err)
	})
	stream, err := client.Snapshot(t.Context())
	require.NoError(t, err)
	data, err := io.ReadAll(stream)
	require.NoError(t, err)
	return data
}

func openSpool(t *testing.T) (*backup.Spool, string) {
	t.Helper()
	dir := t.TempDir()
	spool, err := backup.OpenSpool(dir)
	require.NoError(t, err)
	return spool, dir
}

func TestADrillRestoresAndCounts(t *testing.T) {
	data := snapshotOfEtcd(t, func(put, remove func(string)) {
		for n := range 30 {
			put(fmt.Sprintf("/registry/pods/default/web-%d", n))
			put(fmt.Sprintf("/registry/pods/default/web-%d", n)) // a second revision of the same
		}
		for n := range 10 {
			remove(fmt.Sprintf("/registry/pods/default/web-%d", n))
		}
		put("/registry/pods/default/web-3") // made anew
		put("/registry/services/specs/default/kubernetes")
		put("/registry/services/endpoints/default/kubernetes")
		put("/registry/minions/w-1")
		put("/registry/cilium.io/ciliumnodes/w-1")
		put("/registry/apiextensions.k8s.io/customresourcedefinitions/a.b")
		put("compact_rev_key")
	})
	spool, dir := openSpool(t)
	counts, err := drill.Run(t.Context(), bytes.NewReader(data), int64(len(data)), spool)
	require.NoError(t, err)
	require.EqualValues(t, 1+60+10+1+6, counts.Revision)
	require.EqualValues(t, 20+1+6, counts.Keys)
	require.Equal(t, map[string]int64{"pods": 21, "services": 1, "endpoints": 1, "nodes": 1, "cilium.io/ciliumnodes": 1,
		"apiextensions.k8s.io/customresourcedefinitions": 1}, counts.Resources)
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, left)
}

// damaged is a snapshot whose trailer matches all the same.
func damaged(data []byte, change func(body []byte)) []byte {
	body := bytes.Clone(data[:len(data)-sha256.Size])
	change(body)
	sum := sha256.Sum256(body)
	return append(body, sum[:]...)
}

func TestASnapshotThatCanNotBeRestoredFailsTheDrillAndNothingElse(t *testing.T) {
	data := snapshotOfEtcd(t, func(put, _ func(string)) {
		for n := range 500 {
			put(fmt.Sprintf("/registry/pods/default/web-%d", n))
		}
	})
	for name, bad := range map[string][]byte{
		"no database at all":            damaged(make([]byte, 8192+32), func([]byte) {}),
		"no trailer":                    data[:len(data)-sha256.Size],
		"the meta pages are wiped":      damaged(data, func(b []byte) { clear(b[:8192]) }),
		"pages hold other pages' bytes": damaged(data, func(b []byte) { copy(b[4*4096:], b[2*4096:]) }),
		"every page but the meta pages": damaged(data, func(b []byte) {
			for n := range b[8192:] {
				b[8192+n] = 0xff
			}
		}),
		"it is cut in the middle": damaged(data, func(b []byte) { clear(b[len(b)/2:]) }),
	} {
		t.Run(name, func(t *testing.T) {
			spool, dir := openSpool(t)
			_, err := drill.Run(t.Context(), bytes.NewReader(bad), int64(len(bad)), spool)
			var failed *drill.FailedError
			require.ErrorAs(t, err, &failed)
			left, err := os.ReadDir(dir)
			require.NoError(t, err)
			require.Empty(t, left)
		})
	}
}

func TestADrillThatCouldNotBeMadeProvesNothing(t *testing.T) {
	spool, _ := openSpool(t)
	var failed *drill.FailedError
	broken := errors.New("the connection was reset")
	_, err := drill.Run(t.Context(), io.MultiReader(bytes.NewReader([]byte("x")), &failing{broken}), 1, spool)
	require.ErrorIs(t, err, broken)
	require.False(t, errors.As(err, &failed))
	_, err = drill.Run(t.Context(), bytes.NewReader(nil), 1<<60, spool)
	require.ErrorContains(t, err, "MiB of disk and the spool folder has")
	require.False(t, errors.As(err, &failed))
	_, err = drill.Run(t.Context(), &failing{fmt.Errorf("opening x: %w", backup.ErrDamaged)}, 1, spool)
	require.ErrorAs(t, err, &failed)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = drill.Run(ctx, bytes.NewReader(make([]byte, 1000)), 1000, spool)
	require.ErrorIs(t, err, context.Canceled)
	require.False(t, errors.As(err, &failed))
}

type failing struct{ err error }

func (f *failing) Read([]byte) (int, error) { return 0, f.err }
