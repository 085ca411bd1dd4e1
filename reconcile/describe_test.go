package reconcile

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/statefile"
)

// planned is a story of one plan.
type planned struct {
	story string
	// control planes and workers that Git has, all approved; count is that of the control planes unless given.
	controlPlanes, workers, count int
	spec                          schema.OperationSpec
	state                         *statefile.State
	change                        func(*Cluster)
	objections                    []string
}

func plannedCluster(p planned) Cluster {
	c := Cluster{Object: &schema.TalosCluster{Metadata: schema.ObjectMeta{Name: "prod"}}}
	if c.Object.Spec.ControlPlane.Count = p.count; p.count == 0 {
		c.Object.Spec.ControlPlane.Count = p.controlPlanes
	}
	add := func(name string, role schema.Role) {
		m := &schema.TalosMachine{Metadata: schema.ObjectMeta{Name: name}, Spec: schema.MachineSpec{Role: role, Approved: true, UUID: "uuid-" + name}}
		m.Source.File = "machines/" + name + ".yaml"
		c.Machines = append(c.Machines, m)
	}
	for n := range p.controlPlanes {
		add(fmt.Sprintf("cp-%d", n+1), schema.RoleControlPlane)
	}
	for n := range p.workers {
		add(fmt.Sprintf("w-%d", n+1), schema.RoleWorker)
	}
	if p.change != nil {
		p.change(&c)
	}
	return c
}

func nodeSpec(action, machine string, change ...func(*schema.NodeOperation)) schema.OperationSpec {
	node := &schema.NodeOperation{Action: action, MachineRef: schema.MachineRef{Name: machine, UUID: "uuid-" + machine}}
	if action == schema.ActionRemove {
		node.Confirm = machine
	}
	for _, c := range change {
		c(node)
	}
	return schema.OperationSpec{Kind: schema.OperationNode, Node: node}
}

// remembered is a state in which machines are managed, and control planes members.
func remembered(names ...string) *statefile.State {
	s := &statefile.State{Machines: map[string]*statefile.MachineState{}}
	for _, name := range names {
		m := &statefile.MachineState{Managed: true, Role: "worker"}
		if strings.HasPrefix(name, "cp-") {
			m.Role, m.MemberID = "controlplane", "id-"+name
		}
		s.Machines[name] = m
	}
	return s
}

func (p planned) with(change func(*statefile.State)) planned {
	change(p.state)
	return p
}

func withOperation(op statefile.OperationState) func(*statefile.State) {
	return func(s *statefile.State) {
		op.AcceptedAt = time.Date(2026, 11, 29, 10, 0, 0, 0, time.UTC)
		s.Operations = append(s.Operations, &op)
	}
}

func plans() []planned {
	named := statefile.OperationState{Name: "20261129-remove-w-1", Digest: "d1", Kind: "node", Action: "remove", Target: "w-1", Override: true}
	at := func(phase statefile.OperationPhase, pause int) statefile.OperationState {
		op := named
		op.Phase, op.Pause, op.Step, op.FailureReason = phase, pause, "evacuate", "shop/cart can't be evicted: the budget shop/cart allows 0 disruptions"
		return op
	}
	marked := func(phase statefile.OperationPhase, undo string) statefile.OperationState {
		op := at(phase, 1)
		op.Kind, op.Action, op.Target, op.Step, op.Marked, op.Undo = "etcd-restore", "", "hourly", "joining", true, undo
		return op
	}
	resume := schema.OperationSpec{Kind: schema.OperationResume, Resume: &schema.ResumeOperation{Operation: named.Name, Digest: "d1", Pause: 2}}
	cancel := schema.OperationSpec{Kind: schema.OperationCancel, Cancel: &schema.CancelOperation{Operation: named.Name, Digest: "d1"}}
	backup := schema.OperationSpec{Kind: schema.OperationEtcdBackup, EtcdBackup: &schema.EtcdBackupOperation{BackupRef: schema.NameRef{Name: "hourly"}}}
	withBackup := func(suspend bool) func(*Cluster) {
		return func(c *Cluster) {
			b := &schema.TalosEtcdBackup{Metadata: schema.ObjectMeta{Name: "hourly"}}
			b.Spec.Suspend, b.Source.File = suspend, "backup.yaml"
			b.Spec.Destination.S3 = &schema.S3Destination{Bucket: "etcd", Prefix: "prod"}
			c.Backups = append(c.Backups, b)
		}
	}
	machine := schema.MachineRef{Name: "cp-1", UUID: "uuid-cp-1"}
	bootstrap := schema.OperationSpec{Kind: schema.OperationBootstrap, Bootstrap: &schema.BootstrapOperation{MachineRef: machine, Confirm: "prod"}}
	adopt := schema.OperationSpec{Kind: schema.OperationAdopt, Adopt: &schema.MachineOperation{MachineRef: machine}}
	three := []string{"cp-1", "cp-2", "cp-3", "w-1"}
	return []planned{
		{story: "a worker is rebooted", controlPlanes: 3, workers: 2, spec: nodeSpec("reboot", "w-1"), state: remembered(three...)},
		{story: "a control plane of three is rebooted, and nobody said where the state is", controlPlanes: 3, spec: nodeSpec("reboot", "cp-1")},
		planned{story: "another control plane and the machine itself were last seen to be unwell", controlPlanes: 3, spec: nodeSpec("reboot", "cp-1"), state: remembered(three...)}.
			with(func(s *statefile.State) {
				s.Machines["cp-1"].Ready.Reason, s.Machines["cp-3"].Ready.Reason = "NotReady", "Unreachable"
			}),
		planned{story: "the machine that the agent runs on is rebooted", controlPlanes: 3, workers: 2, spec: nodeSpec("reboot", "w-1"), state: remembered(three...)}.
			with(func(s *statefile.State) { s.AgentOn = "w-1" }),
		{story: "a machine that is managed already is adopted", controlPlanes: 3, spec: adopt, state: remembered(three...)},
		planned{story: "a machine that another Ichor took over is adopted", controlPlanes: 3, spec: adopt, state: remembered(three...)}.
			with(func(s *statefile.State) { s.Machines["cp-1"].Ready.Reason = "ManagedElsewhere" }),
		{story: "the only control plane is rebooted", controlPlanes: 1, spec: nodeSpec("reboot", "cp-1"), state: remembered("cp-1")},
		{story: "one of two members is rebooted while the cluster grows to three", controlPlanes: 3, spec: nodeSpec("reboot", "cp-1"), state: remembered("cp-1", "cp-2")},
		{story: "a control plane is rebooted while a fourth one replaces another", controlPlanes: 4, count: 3, spec: nodeSpec("reboot", "cp-1"),
			state: remembered("cp-1", "cp-2", "cp-3", "cp-4")},
		{story: "pods without a controller may go", controlPlanes: 1, workers: 2, spec: nodeSpec("reboot", "w-1"), state: remembered("cp-1", "w-1"),
			change: func(c *Cluster) {
				c.Object.Spec.Rollout.Drain = schema.DrainSpec{Timeout: schema.Duration(time.Hour), Force: true}
			}},
		{story: "a machine that isn't Ichor's is rebooted", controlPlanes: 1, workers: 2, spec: nodeSpec("reboot", "w-2"), state: remembered("cp-1", "w-1"),
			objections: []string{"can't act on w-2: it is not approved (target-approved)"}},
		planned{story: "another operation runs", controlPlanes: 3, workers: 2, spec: nodeSpec("reboot", "w-1"), state: remembered(three...)}.
			with(withOperation(statefile.OperationState{Name: "20261129-reboot-cp-2", Phase: "Running", Step: "reboot"})),
		planned{story: "a shutdown rests, and another operation waits for its turn", controlPlanes: 3, workers: 2, spec: nodeSpec("reboot", "w-1"), state: remembered(three...)}.
			with(withOperation(statefile.OperationState{Name: "20261129-shutdown-w-2", Phase: "ShutDown"})).
			with(withOperation(statefile.OperationState{Name: "20261129-reboot-cp-2", Phase: "Pending"})),
		planned{story: "the machine is being removed by a paused operation", controlPlanes: 3, workers: 2, spec: nodeSpec("reboot", "w-1"), state: remembered(three...)}.
			with(withOperation(at("Paused", 1))),
		planned{story: "the machine was removed", controlPlanes: 3, workers: 2, spec: nodeSpec("reboot", "w-1"), state: remembered(three...)}.
			with(func(s *statefile.State) { s.Machines["w-1"].Removed = true }),
		{story: "a worker is shut down", controlPlanes: 3, workers: 2, spec: nodeSpec("shutdown", "w-1"), state: remembered(three...)},
		{story: "a control plane of three is shut down", controlPlanes: 3, spec: nodeSpec("shutdown", "cp-2"), state: remembered(three...)},
		{story: "one of two control planes is shut down", controlPlanes: 2, count: 3, spec: nodeSpec("shutdown", "cp-2")},
		{story: "the only control plane is shut down", controlPlanes: 1, spec: nodeSpec("shutdown", "cp-1"), state: remembered("cp-1")},
		{story: "the kubelet is restarted", controlPlanes: 1, spec: nodeSpec("restart-service", "cp-1", func(n *schema.NodeOperation) { n.Service = "kubelet" }), state: remembered("cp-1")},
		{story: "containerd is restarted", controlPlanes: 1, spec: nodeSpec("restart-service", "cp-1", func(n *schema.NodeOperation) { n.Service = "containerd" }), state: remembered("cp-1")},
		{story: "a member is defragmented", controlPlanes: 3, spec: nodeSpec("etcd-defrag", "cp-1"), state: remembered(three...)},
		{story: "a member is defragmented even where it leads", controlPlanes: 3, spec: nodeSpec("etcd-defrag", "cp-1", func(n *schema.NodeOperation) { n.AllowLeader = true }),
			state: remembered(three...)},
		{story: "the only member is defragmented", controlPlanes: 1, spec: nodeSpec("etcd-defrag", "cp-1"), state: remembered("cp-1")},
		{story: "the leader hands over", controlPlanes: 3, spec: nodeSpec("etcd-forfeit-leadership", "cp-1"), state: remembered(three...)},
		{story: "the only member can't hand over", controlPlanes: 1, spec: nodeSpec("etcd-forfeit-leadership", "cp-1"), state: remembered("cp-1")},
		{story: "a worker is removed", controlPlanes: 3, workers: 2, spec: nodeSpec("remove", "w-1"), state: remembered(three...)},
		{story: "a control plane is removed after its replacement has joined, and rebooted", controlPlanes: 4, count: 3,
			spec: nodeSpec("remove", "cp-1", func(n *schema.NodeOperation) { n.Then = "reboot" }), state: remembered("cp-1", "cp-2", "cp-3", "cp-4")},
		{story: "a dead control plane is removed", controlPlanes: 3, spec: nodeSpec("remove", "cp-1", func(n *schema.NodeOperation) { n.Gone = true }), state: remembered(three...)},
		{story: "the last control plane is removed, and the name that was typed is another", controlPlanes: 1,
			spec: nodeSpec("remove", "cp-1", func(n *schema.NodeOperation) { n.Confirm = "cp-2" }), state: remembered("cp-1")},
		{story: "a machine that Git forgot is removed", controlPlanes: 3, spec: nodeSpec("remove", "w-9"), state: remembered("cp-1", "cp-2", "cp-3", "w-9")},
		{story: "a machine that nobody knows is removed", controlPlanes: 3, spec: nodeSpec("remove", "w-9"), state: remembered("cp-1", "cp-2", "cp-3")},
		planned{story: "a snapshot is taken while an operation is paused", controlPlanes: 1, spec: backup, state: remembered("cp-1"), change: withBackup(false)}.
			with(withOperation(at("Paused", 1))),
		{story: "a snapshot is asked of a suspended backup", controlPlanes: 1, spec: backup, state: remembered("cp-1"), change: withBackup(true)},
		planned{story: "a control plane is adopted, for which a paused operation waits", controlPlanes: 1, spec: adopt, state: &statefile.State{}}.
			with(withOperation(statefile.OperationState{Name: "20261129-reboot-cp-1", Phase: "Paused", FailureReason: "cp-1 is not Ichor's to change; sign an adopt of it first"})),
		{story: "etcd begins anew where nothing is known of it", controlPlanes: 3, spec: bootstrap, state: &statefile.State{}},
		planned{story: "etcd was bootstrapped", controlPlanes: 3, spec: bootstrap, state: &statefile.State{}}.
			with(func(s *statefile.State) {
				at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
				s.Bootstrap = &statefile.BootstrapRecord{Machine: "cp-2", At: at, Done: at}
			}),
		planned{story: "a paused removal goes on", controlPlanes: 3, spec: resume, state: remembered(three...)}.with(withOperation(at("Paused", 2))),
		planned{story: "a resume was signed for an earlier pause", controlPlanes: 3, spec: resume, state: remembered(three...)}.with(withOperation(at("Paused", 3))),
		planned{story: "what runs can't be resumed", controlPlanes: 3, spec: resume, state: remembered(three...)}.with(withOperation(at("Running", 1))),
		{story: "what nobody knows can't be resumed", controlPlanes: 3, spec: resume, state: remembered(three...)},
		{story: "a resume without a look at the state", controlPlanes: 3, spec: resume},
		planned{story: "a paused removal is cancelled", controlPlanes: 3, spec: cancel, state: remembered(three...)}.with(withOperation(at("Paused", 2))),
		planned{story: "what waits is cancelled", controlPlanes: 3, spec: cancel, state: remembered(three...)}.with(withOperation(at("Pending", 0))),
		planned{story: "what runs can't be cancelled", controlPlanes: 3, spec: cancel, state: remembered(three...)}.with(withOperation(at("Running", 0))),
		planned{story: "a restore is turned round before anything was wiped", controlPlanes: 3, spec: cancel, state: remembered(three...)}.with(withOperation(marked("Running", "rejoin"))),
		planned{story: "a restore can't be turned round between its wipe and its etcd", controlPlanes: 3, spec: cancel, state: remembered(three...)}.with(withOperation(marked("Running", ""))),
		planned{story: "a paused restore ends once etcd has recovered", controlPlanes: 3, spec: cancel, state: remembered(three...)}.with(withOperation(marked("Paused", "end"))),
		planned{story: "what is over can't be cancelled", controlPlanes: 3, spec: cancel, state: remembered(three...)}.with(withOperation(at("Completed", 0))),
		planned{story: "a machine that is off can't be cancelled", controlPlanes: 3, spec: cancel, state: remembered(three...)}.with(withOperation(at("ShutDown", 0))),
		{story: "a cluster is restored", controlPlanes: 3, state: remembered(three...), spec: schema.OperationSpec{Kind: schema.OperationEtcdRestore,
			EtcdRestore: &schema.RestoreOperation{Confirm: "prod", Snapshot: schema.SnapshotRef{Name: "etcd-20261129T100000Z.snapshot.age"}, LocalDataLoss: "accepted",
				ControlPlanes: map[string]string{"cp-1": "1", "cp-2": "2"}, Without: map[string]string{"cp-3": "3"}}}},
	}
}

// TestPlans holds every plan to testdata/plans.txt. After a change of words run with -update and review the difference.
func TestPlans(t *testing.T) {
	var out strings.Builder
	for _, p := range plans() {
		p.spec.ClusterRef = schema.ClusterRef{Name: "prod", ID: "1f3a9c0d2b4e6f78"}
		op := &schema.TalosOperation{Metadata: schema.ObjectMeta{Name: "op"}, Spec: p.spec}
		plan := DescribeOperation(plannedCluster(p), p.state, op, p.objections...)
		fmt.Fprintf(&out, "# %s\n", p.story)
		for n, step := range plan.Steps {
			fmt.Fprintf(&out, "%d. %s\n", n+1, step)
		}
		for _, lost := range plan.Lost {
			fmt.Fprintf(&out, "lost: %s\n", lost)
		}
		for _, warning := range plan.Warnings {
			fmt.Fprintf(&out, "know: %s\n", warning)
		}
		for _, blocker := range plan.Blockers {
			fmt.Fprintf(&out, "blocked: %s\n", blocker)
		}
		if plan.Confirm != "" {
			fmt.Fprintf(&out, "type: %s\n", plan.Confirm)
		}
		fmt.Fprintf(&out, "sign for: %s\n\n", plan.Namespace)
	}
	const file = "testdata/plans.txt"
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(out.String()), 0o644))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(want), out.String())
}

// TestADrainSaysThatItTakesTheAgentItself: of the machine that the agent runs on and of no other, and of no call that leaves its pod where it is.
func TestADrainSaysThatItTakesTheAgentItself(t *testing.T) {
	s := &statefile.State{AgentOn: "w-1"}
	for _, kind := range []ActionKind{ActCordon, ActEvict} {
		require.Contains(t, ownNode(s, Action{Kind: kind, Machine: "w-1", Node: "node-1"}), "kubectl uncordon node-1")
		require.Empty(t, ownNode(s, Action{Kind: kind, Machine: "w-2", Node: "node-2"}))
	}
	require.Empty(t, ownNode(s, Action{Kind: ActUncordon, Machine: "w-1", Node: "node-1"}))
}
