package reconcile

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/talos"
)

// shrunk is a restore of a cluster whose count went from 5 to 3 with five members, and whose etcd then lost its quorum: cp-5 is held. All that
// are approved are signed, as ichor restore --live signs them.
func shrunk() situation {
	s := restorable()
	for _, name := range []string{"cp-4", "cp-5"} {
		m := &schema.TalosMachine{Metadata: schema.ObjectMeta{Name: name}}
		m.Spec.Role, m.Spec.Approved, m.Spec.UUID, m.Spec.Endpoint = schema.RoleControlPlane, true, "uuid-"+name, "10.0.0.1"+name[3:]
		s.in.Cluster.Machines = append(s.in.Cluster.Machines, m)
		s.spec.EtcdRestore.ControlPlanes[name] = m.Spec.UUID
		seen := s.in.Seen["cp-3"]
		seen.UUID, seen.Hostname = m.Spec.UUID, name
		s.in.Seen[name] = seen
	}
	s.in.State.Machines = map[string]*statefile.MachineState{}
	for _, m := range s.in.Cluster.Machines {
		name := m.Metadata.Name
		s.in.State.Machines[name] = &statefile.MachineState{Managed: true, MemberID: "00000000000000a" + name[3:]}
		s.next.Machines[name] = s.in.State.Machines[name]
		s.change(name, func(seen *Seen) { seen.Etcd = talos.EtcdObservation{Data: talos.Yes, Service: "Running"} })
	}
	return s
}

func TestARestoreLeavesNoControlPlaneBehindWithTheOldEtcdsData(t *testing.T) {
	raise := "it is held, because count is 3: raise spec.controlPlane.count in the TalosCluster to 5 until etcd is restored, or wipe it (talosctl reset), or power it off for good " +
		"and sign it into without"
	unsigned := func(spec *schema.RestoreOperation) { delete(spec.ControlPlanes, "cp-5") }
	gone := func(spec *schema.RestoreOperation, uuid string) {
		unsigned(spec)
		spec.Without = map[string]string{"cp-5": uuid}
	}
	for name, test := range map[string]struct {
		change func(s situation, spec *schema.RestoreOperation)
		// says is the refusal, else it restores on so many.
		says string
		on   int
		// atOnce: no other look could show it otherwise.
		atOnce bool
	}{
		"one that is held has data, and was signed": {func(situation, *schema.RestoreOperation) {},
			"cp-5 holds etcd data, and the restore would leave it that: the old etcd could live on there, beside the restored one; " + raise, 0, false},
		"one that is held has data, and was not signed": {func(_ situation, spec *schema.RestoreOperation) { unsigned(spec) }, "cp-5 holds etcd data", 0, false},
		"the count is raised, as it says":               {func(s situation, _ *schema.RestoreOperation) { s.in.Cluster.Object.Spec.ControlPlane.Count = 5 }, "", 5, false},
		"one that is held is wiped, as it says": {func(s situation, _ *schema.RestoreOperation) {
			s.change("cp-5", func(seen *Seen) { seen.Mode, seen.Etcd = talos.ModeMaintenance, talos.EtcdObservation{} })
		}, "", 4, false},
		"one that is held has no data": {func(s situation, _ *schema.RestoreOperation) {
			s.change("cp-5", func(seen *Seen) { seen.Etcd.Data = talos.No })
		}, "", 4, false},
		"one that is held may have data or not": {func(s situation, _ *schema.RestoreOperation) {
			s.change("cp-5", func(seen *Seen) { seen.Etcd.Data = talos.Unknown })
		}, "whether cp-5 holds etcd data is not known", 0, false},
		"of one that is held nothing but its UUID was read": {func(s situation, _ *schema.RestoreOperation) {
			s.change("cp-5", func(seen *Seen) { seen.Mode, seen.Etcd = talos.ModeUnknown, talos.EtcdObservation{} })
		}, "whether cp-5 holds etcd data is not known", 0, false},
		"one that is held gives no answer": {func(s situation, _ *schema.RestoreOperation) { s.silence("cp-5") },
			"cp-5 was etcd's member 00000000000000a5 when it was last seen and gives no answer", 0, false},
		"one that is held is off for good, as it was signed": {func(s situation, spec *schema.RestoreOperation) {
			s.silence("cp-5")
			gone(spec, "uuid-cp-5")
		}, "", 4, false},
		"one that is held is said to be off for good, and answers": {func(_ situation, spec *schema.RestoreOperation) { gone(spec, "uuid-cp-5") },
			"what was signed says that cp-5 is off for good, and it answers", 0, false},
		"another machine was signed to be off for good": {func(s situation, spec *schema.RestoreOperation) {
			s.silence("cp-5")
			gone(spec, "other")
		}, "leaves out cp-5 with the UUID other", 0, false},
		"one that is held gives no answer and never was a member": {func(s situation, _ *schema.RestoreOperation) {
			s.in.State.Machines["cp-5"].MemberID = ""
			s.silence("cp-5")
		}, "", 4, false},
		"one whose approval was taken back has data": {func(s situation, spec *schema.RestoreOperation) {
			s.in.Cluster.Object.Spec.ControlPlane.Count = 5
			s.in.Cluster.Machines[4].Spec.Approved = false
			unsigned(spec)
			s.again()
		}, "cp-5 holds etcd data, and the restore would leave it that: the old etcd could live on there, beside the restored one; approve it until etcd is restored, or wipe it", 0, false},
		"one that Git has no more was a member, and gives no answer": {func(s situation, _ *schema.RestoreOperation) {
			s.in.Cluster.Object.Spec.ControlPlane.Count = 5
			s.in.State.Machines["old"] = &statefile.MachineState{Managed: true, Role: "controlplane", UUID: "uuid-old", Address: "10.0.0.19", MemberID: "a9"}
		}, "old was etcd's member a9 when it was last seen and gives no answer, and Git has old (10.0.0.19, UUID uuid-old) no more: the old etcd could live on there, beside the " +
			"restored one; put its YAML back", 0, false},
		"one that Git has no more holds data": {func(s situation, spec *schema.RestoreOperation) {
			delete(spec.ControlPlanes, "cp-5")
			s.in.Cluster.Machines = s.in.Cluster.Machines[:4]
			memory := s.in.State.Machines["cp-5"]
			memory.Role, memory.UUID, memory.MemberID = "controlplane", "uuid-cp-5", ""
		}, "cp-5 holds etcd data, and Git has cp-5 (, UUID uuid-cp-5) no more", 0, false},
		"one that Git has no more was wiped": {func(s situation, _ *schema.RestoreOperation) {
			s.in.Cluster.Object.Spec.ControlPlane.Count = 5
			s.in.State.Machines["old"] = &statefile.MachineState{Managed: true, Role: "controlplane", UUID: "uuid-old", Address: "10.0.0.19", MemberID: "a9"}
			s.in.Seen["old"] = Seen{Observation: talos.Observation{Mode: talos.ModeMaintenance, UUID: "uuid-old"}}
		}, "", 5, false},
		"discovery knows one that nobody else knows": {func(s situation, _ *schema.RestoreOperation) {
			s.in.Cluster.Object.Spec.ControlPlane.Count = 5
			s.change("cp-1", func(seen *Seen) {
				seen.Discovery = []talos.DiscoveredMember{{Name: "cp-2", Addresses: []string{"10.0.0.12"}, MachineType: "controlplane"},
					{Name: "w-9", Addresses: []string{"10.0.0.59"}, MachineType: "worker"}, {Name: "x-1", Addresses: []string{"10.0.0.91"}, MachineType: "controlplane"}}
			})
		}, "discovery lists x-1 (10.0.0.91) as a control plane, and neither Git nor the state knows it", 0, false},
		"discovery knows another address of one that gives no answer": {func(s situation, spec *schema.RestoreOperation) {
			s.in.Cluster.Object.Spec.ControlPlane.Count = 5
			s.in.State.Machines["cp-5"].Hostname = "talos-five"
			s.silence("cp-5")
			gone(spec, "uuid-cp-5")
			s.change("cp-1", func(seen *Seen) {
				seen.Discovery = []talos.DiscoveredMember{{Name: "talos-five", Addresses: []string{"192.0.2.5"}, MachineType: "controlplane"}}
			})
		}, "", 4, false},
		"a removal that is not over has data left": {func(s situation, _ *schema.RestoreOperation) {
			s.in.State.Operations = []*statefile.OperationState{{Name: "out", Target: "cp-5", Action: schema.ActionRemove, Left: true, Phase: statefile.OperationPaused}}
			s.again()
		}, "let out, which removes it, end or cancel it first", 0, false},
		"a removal that is not over has nothing left": {func(s situation, _ *schema.RestoreOperation) {
			s.in.State.Operations = []*statefile.OperationState{{Name: "out", Target: "cp-5", Action: schema.ActionRemove, Left: true, Phase: statefile.OperationPaused}}
			s.change("cp-5", func(seen *Seen) { seen.Etcd.Data = talos.No })
		}, "out removes cp-5, which what was signed names; let that end, or cancel it, and sign anew", 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := shrunk()
			test.change(s, s.spec.EtcdRestore)
			s.again()
			refuse, _ := refuseRestore(s)
			if test.atOnce {
				require.Contains(t, refuse, test.says)
				return
			}
			require.Empty(t, refuse, "etcd gives no list: another look is waited for")
			s.op.Step, s.op.StepSince = stepLooking, s.in.Now.Add(-s.in.Timing.Patience+time.Second)
			require.NotEmpty(t, nextRestore(s).wait)
			s.op.StepSince = s.in.Now.Add(-s.in.Timing.Patience)
			m := nextRestore(s)
			if test.says != "" {
				require.Contains(t, m.pause, nothingChanged)
				require.Contains(t, m.pause, test.says)
				require.Nil(t, s.plan.Restore)
				return
			}
			require.Empty(t, m.pause)
			require.Len(t, s.plan.Restore.Machines, test.on)
			require.Empty(t, s.plan.Restore.Holder)
		})
	}
}

// TestAHeldControlPlaneIsRestoredWithTheOthersAndRemovedAfterwards follows what the refusal says: up with the count, restore, down with the count,
// and the removal that could not go first has nothing against it any more.
func TestAHeldControlPlaneIsRestoredWithTheOthersAndRemovedAfterwards(t *testing.T) {
	s := shrunk()
	remove := s
	remove.spec = schema.OperationSpec{Node: &schema.NodeOperation{MachineRef: schema.MachineRef{Name: "cp-5", UUID: "uuid-cp-5"}, Action: schema.ActionRemove, Confirm: "cp-5"}}
	refuse, _ := refuseRemove(remove)
	require.Contains(t, refuse, "no control plane gives a member list")

	s.op.Step, s.op.StepSince = stepLooking, s.in.Now.Add(-s.in.Timing.Patience)
	require.Contains(t, nextRestore(s).pause, "raise spec.controlPlane.count in the TalosCluster to 5")
	require.Nil(t, s.plan.Restore)

	s.in.Cluster.Object.Spec.ControlPlane.Count = 5
	s.again()
	s.op.Step, s.op.Pause = stepLooking, 1
	require.Empty(t, nextRestore(s).pause)
	require.Len(t, s.plan.Restore.Machines, 5)

	var members []talos.EtcdMember
	for n, m := range s.in.Cluster.Machines {
		members = append(members, talos.EtcdMember{ID: uint64(n + 1), Name: m.Metadata.Name, PeerURLs: []string{"https://" + m.Spec.Endpoint + ":2380"}})
	}
	for _, member := range members {
		s.change(member.Name, func(seen *Seen) {
			seen.Etcd = talos.EtcdObservation{Data: talos.Yes, Service: "Running", ServiceHealthy: talos.Yes, MemberID: member.ID, Leader: 1, Members: members}
		})
	}
	s.in.Cluster.Object.Spec.ControlPlane.Count = 3
	s.again()
	require.Contains(t, s.decision.held["cp-5"], "count is 3")
	refuse, wait := refuseRemove(remove)
	require.Empty(t, refuse+wait)
}
