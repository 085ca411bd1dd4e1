package reconcile

import (
	"testing"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/kube"
	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/talos"
)

// TestMaintenanceModeShowsThatAllWasWiped: Talos wipes one partition after the other and ends at the first that it can't, and a machine without
// STATE is in maintenance mode whatever else it holds.
func TestMaintenanceModeShowsThatAllWasWiped(t *testing.T) {
	require.Equal(t, []string{"EPHEMERAL", "STATE"}, partitionLabels(partitionsOf(ActResetMachine)))
}

// TestOnlyAWipeOfItsOwnIsCalledOne: a machine that was in maintenance mode before its removal may hold everything but its config.
func TestOnlyAWipeOfItsOwnIsCalledOne(t *testing.T) {
	for _, test := range []struct {
		wiped int
		holds string
		says  string
	}{
		{1, "partition META", "it is wiped and waits in maintenance mode"},
		{1, "partition ETCD xfs", "etcd's data may be there still: /dev/vda holds a partition ETCD"},
		{0, "partition ETCD xfs", "it was in maintenance mode already, where nothing can be wiped"},
	} {
		s := restorable()
		s.op.Left, s.op.Sent = true, map[string]int{string(ActResetMachine): test.wiped}
		s.spec = schema.OperationSpec{Node: &schema.NodeOperation{MachineRef: schema.MachineRef{Name: "cp-3", UUID: "uuid-cp-3"}, Action: schema.ActionRemove, Confirm: "cp-3", Then: "reboot"}}
		s.in.Kubernetes, s.next.Machines["cp-3"] = &KubernetesView{Nodes: map[string]kube.Node{}}, &statefile.MachineState{Managed: true}
		s.change("cp-1", func(seen *Seen) { seen.Etcd.Members = seen.Etcd.Members[:2] })
		s.change("cp-2", func(seen *Seen) { seen.Etcd.Members = seen.Etcd.Members[:2] })
		s.change("cp-3", func(seen *Seen) {
			seen.Mode, seen.BootID, seen.Etcd = talos.ModeMaintenance, "", talos.EtcdObservation{}
			seen.Disks = []talos.Disk{{Path: "/dev/vda", Contents: []string{test.holds}}}
		})
		m := nextRemove(s)
		require.Contains(t, m.done, test.says)
		require.True(t, s.next.Machines["cp-3"].Removed)
	}
}
