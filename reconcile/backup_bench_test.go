package reconcile

import (
	"crypto/rand"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	clientconfig "github.com/siderolabs/talos/pkg/machinery/client/config"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"k8s.io/utils/clock"

	"ichor.maesh.dev/backup"
	"ichor.maesh.dev/internal/talossim/member"
	"ichor.maesh.dev/talos"
)

// snapshotBytes is how much stands in the etcd whose snapshot is taken.
const snapshotBytes = 64 << 20

// BenchmarkWholeBackup takes a snapshot of a simulated machine's etcd into a real bucket: asked for, streamed, hashed, sealed, uploaded,
// looked at and listed. Its peer is what `talosctl etcd snapshot` does with the same stream: the machinery's client writes it to a file.
func BenchmarkWholeBackup(b *testing.B) {
	l := newLab(b, "127.0.57.1", 1, 0, 30)
	v := l.withBackups(b)
	l.run(l.config("agent-1"), allReady)
	fill(b, l.farm.Nodes()[0].Address(), snapshotBytes)
	target := talos.Target{Name: "cp-1", Endpoint: l.farm.Nodes()[0].Address(), ControlPlane: true}
	b.Run("ichor", func(b *testing.B) {
		node := TalosNodes(talos.NewClient(l.fleet.bundle, talos.ClientOptions{Scrubber: l.scrubber})).Member(target)
		material := l.fleet.bundle.SealingMaterial()
		owner, err := backup.NewOwner(material.ClusterID, material.ClusterSecret, material.EncryptionSecret)
		require.NoError(b, err)
		spool, err := backup.OpenSpool(b.TempDir())
		require.NoError(b, err)
		d := l.destination(b, v)
		at := time.Now()
		b.SetBytes(snapshotBytes)
		for b.Loop() {
			taken, err := backup.Take(b.Context(), []backup.Node{node}, spool, owner.Passphrase, clock.RealClock{})
			require.NoError(b, err)
			s := d.Describe(taken, "v1.13.6", "v1.36.2")
			at = at.Add(time.Second) // two in one second would bear one name
			s.Name = backup.ObjectName(at)
			require.NoError(b, d.Store(b.Context(), s, taken))
			require.NoError(b, taken.Close())
		}
	})
	b.Run("to_a_file", func(b *testing.B) {
		text, err := l.fleet.bundle.Talosconfig(talos.TalosconfigOptions{Cluster: "prod", Endpoints: []string{target.Endpoint}, Role: talos.RoleAdmin,
			Life: time.Hour, Now: time.Now()})
		require.NoError(b, err)
		config, err := clientconfig.FromBytes(text)
		require.NoError(b, err)
		c, err := client.New(b.Context(), client.WithConfig(config))
		require.NoError(b, err)
		defer func() { _ = c.Close() }()
		b.SetBytes(snapshotBytes)
		for b.Loop() {
			stream, err := c.EtcdSnapshot(b.Context(), &machineapi.EtcdSnapshotRequest{})
			require.NoError(b, err)
			file, err := os.Create(filepath.Join(b.TempDir(), "snapshot"))
			require.NoError(b, err)
			size, err := io.Copy(file, stream)
			require.NoError(b, err)
			require.Greater(b, size, int64(snapshotBytes))
			require.NoError(b, file.Close())
			require.NoError(b, os.Remove(file.Name()))
		}
	})
}

// fill puts values that nothing can make shorter into an etcd.
func fill(b testing.TB, address string, size int) {
	b.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{member.ClientURL(netip.MustParseAddr(address))}, Logger: zap.NewNop()})
	require.NoError(b, err)
	defer func() { _ = c.Close() }()
	value := make([]byte, 256<<10)
	for n := range size / len(value) {
		_, _ = rand.Read(value)
		_, err := c.Put(b.Context(), fmt.Sprintf("/registry/configmaps/default/filler-%d", n), string(value))
		require.NoError(b, err)
	}
}
