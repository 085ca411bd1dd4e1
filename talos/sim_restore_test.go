package talos_test

import (
	"bytes"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/talos"
)

func TestASimulatedMachineRecoversFromASnapshot(t *testing.T) {
	r := newRig(t, "127.0.87.101", 1, 0)
	n := r.farm.Nodes()[0]
	r.configure(n, r.render(n))
	r.seen(n, "has no data", func(o talos.Observation) bool { return o.Mode == talos.ModeConfigured && o.Etcd.Data == talos.No })
	require.Eventually(t, func() bool { return r.session(n).Bootstrap(r.soon()) == nil }, 3*time.Minute, 50*time.Millisecond)
	o := r.seen(n, "has an etcd", func(o talos.Observation) bool { return len(o.Etcd.Members) == 1 && o.Etcd.ServiceHealthy == talos.Yes })
	require.False(t, o.Etcd.Members[0].Restored(), "it was bootstrapped")
	stream, err := r.session(n).EtcdSnapshot(r.soon())
	require.NoError(t, err)
	snapshot, err := io.ReadAll(stream)
	require.NoError(t, err)
	require.NoError(t, stream.Close())
	require.ErrorContains(t, r.session(n).LeaveEtcd(r.soon()), "not enough started members", "the last member can't leave")

	before := o.BootID
	require.NoError(t, r.session(n).Reset(r.soon(), talos.ResetRequest{Partitions: []string{"EPHEMERAL"}, Reboot: true}))
	r.seen(n, "is empty", func(o talos.Observation) bool { return o.BootID != "" && o.BootID != before && o.Etcd.Data == talos.No })
	require.Eventually(t, func() bool { return r.session(n).RecoverEtcd(r.soon()) == nil }, 3*time.Minute, 50*time.Millisecond)
	o = r.seen(n, "says what is wrong", func(o talos.Observation) bool { return o.Etcd.Service == "Failed" })
	require.Contains(t, o.Etcd.ServiceMessage, "stat /var/lib/etcd.snapshot: no such file or directory")

	require.NoError(t, r.session(n).UploadSnapshot(r.soon(), bytes.NewReader(snapshot)))
	require.NoError(t, r.session(n).RecoverEtcd(r.soon()))
	o = r.seen(n, "has recovered", func(o talos.Observation) bool { return len(o.Etcd.Members) == 1 && o.Etcd.ServiceHealthy == talos.Yes })
	require.True(t, o.Etcd.Members[0].Restored())
	require.Equal(t, o.Etcd.MemberID, o.Etcd.Members[0].ID)
}
