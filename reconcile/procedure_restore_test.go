package reconcile

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/talos"
)

// restorable is a restore of three healthy control planes of which cp-2 leads.
func restorable() situation {
	no := false
	cluster := &schema.TalosCluster{Metadata: schema.ObjectMeta{Name: "prod"}}
	cluster.Spec.ControlPlane.Count, cluster.Spec.ControlPlane.Schedulable = 3, &no
	in := &Input{Cluster: Cluster{Object: cluster, Commit: "c1"}, Seen: map[string]Seen{}, State: &statefile.State{}, Now: time.Date(2026, 11, 30, 3, 0, 0, 0, time.UTC), Timing: DefaultTiming(), RecoverFlags: "--state s3://ichor/prod"}
	in.Cluster.Backups = []*schema.TalosEtcdBackup{{Metadata: schema.ObjectMeta{Name: "hourly"}}}
	spec := &schema.RestoreOperation{BackupRef: schema.NameRef{Name: "hourly"}, Snapshot: schema.SnapshotRef{Name: "etcd-20261129T100000Z.snapshot.age"}, Confirm: "prod",
		ControlPlanes: map[string]string{}}
	next := &statefile.State{Machines: map[string]*statefile.MachineState{}}
	var members []talos.EtcdMember
	for n, name := range []string{"cp-1", "cp-2", "cp-3"} {
		m := &schema.TalosMachine{Metadata: schema.ObjectMeta{Name: name}}
		m.Spec.Role, m.Spec.Approved, m.Spec.UUID, m.Spec.Endpoint = schema.RoleControlPlane, true, "uuid-"+name, "10.0.0.1"+name[3:]
		in.Cluster.Machines = append(in.Cluster.Machines, m)
		spec.ControlPlanes[name] = m.Spec.UUID
		next.Machines[name] = &statefile.MachineState{Managed: true}
		members = append(members, talos.EtcdMember{ID: uint64(n + 1), Name: name, PeerURLs: []string{"https://" + m.Spec.Endpoint + ":2380"}})
	}
	for n, name := range []string{"cp-1", "cp-2", "cp-3"} {
		seen := Seen{Observation: talos.Observation{Mode: talos.ModeConfigured, UUID: "uuid-" + name, Hostname: name, BootID: "boot", Stage: "running", Ready: true}, Config: ConfigView{Active: "d"}}
		seen.Etcd = talos.EtcdObservation{Data: talos.Yes, Service: "Running", ServiceHealthy: talos.Yes, MemberID: uint64(n + 1), Leader: 2, Members: members}
		in.Seen[name] = seen
	}
	s := situation{decision: &decision{in: in, next: next, says: map[string]verdict{}}, op: &statefile.OperationState{Digest: "d1"}, spec: schema.OperationSpec{EtcdRestore: spec}}
	s.again()
	return s
}

// again looks at the machines anew.
func (s situation) again() {
	s.decision.etcd = viewEtcd(s.in)
	s.decision.held = hold(s.in, s.etcd)
	s.decision.wanted = wantedControlPlanes(s.in, s.decision.held)
	s.decision.strangers = strangers(s.in, s.etcd)
}

func (s situation) silence(names ...string) {
	for _, name := range names {
		s.in.Seen[name] = Seen{Observation: talos.Observation{Problem: "connection refused"}}
	}
	s.again()
}

func (s situation) change(name string, change func(*Seen)) {
	seen := s.in.Seen[name]
	change(&seen)
	s.in.Seen[name] = seen
	s.again()
}

func TestARestoreThatMustNotBeginSaysWhyAndThatNothingWasChanged(t *testing.T) {
	for name, test := range map[string]struct {
		spoil func(s situation, spec *schema.RestoreOperation)
		says  string
	}{
		"another name was typed":     {func(_ situation, spec *schema.RestoreOperation) { spec.Confirm = "staging" }, "a restore must say confirm: prod, the cluster's name"},
		"there is no such backup":    {func(_ situation, spec *schema.RestoreOperation) { spec.BackupRef.Name = "daily" }, "there is no TalosEtcdBackup daily"},
		"the backup is suspended":    {func(s situation, _ *schema.RestoreOperation) { s.in.Cluster.Backups[0].Spec.Suspend = true }, "the backup hourly is suspended"},
		"another machine was signed": {func(_ situation, spec *schema.RestoreOperation) { spec.ControlPlanes["cp-3"] = "other" }, "cp-3 with the UUID other, and Git declares uuid-cp-3"},
		"one was not signed":         {func(_ situation, spec *schema.RestoreOperation) { delete(spec.ControlPlanes, "cp-3") }, "names it neither in controlPlanes nor in without"},
		"one is not wanted any more": {func(s situation, _ *schema.RestoreOperation) {
			s.in.Cluster.Machines[2].Spec.Approved = false
			s.again()
		}, "no wanted control plane"},
		"one doesn't answer": {func(s situation, _ *schema.RestoreOperation) { s.silence("cp-3") }, "sign it into without if it is off for good"},
		"one that is gone for good is on": {func(_ situation, spec *schema.RestoreOperation) {
			spec.Without = map[string]string{"cp-3": "uuid-cp-3"}
		}, "cp-3 is off for good, and it answers"},
		"one may hold data or not": {func(s situation, _ *schema.RestoreOperation) {
			s.change("cp-3", func(seen *Seen) { seen.Etcd.Data = talos.Unknown })
		}, "whether cp-3 holds etcd data is not known"},
		"one is somebody else's":         {func(s situation, _ *schema.RestoreOperation) { s.next.Machines["cp-3"].Managed = false }, "cp-3 is not Ichor's to change"},
		"pods may run on control planes": {func(s situation, _ *schema.RestoreOperation) { s.in.Cluster.Object.Spec.ControlPlane.Schedulable = nil }, "sign it with localDataLoss: accepted"},
		"a stranger is a member": {func(s situation, _ *schema.RestoreOperation) {
			s.change("cp-1", func(seen *Seen) {
				seen.Etcd.Members = append(append([]talos.EtcdMember{}, seen.Etcd.Members...), talos.EtcdMember{ID: 9, Name: "x"})
			})
			s.silence("cp-2", "cp-3")
		}, "they would keep the old etcd alive; remove them first"},
		"the agent's own etcd may live alone": {func(s situation, spec *schema.RestoreOperation) {
			s.in.NodeName = "cp-1"
			for _, name := range []string{"cp-1", "cp-2", "cp-3"} {
				s.change(name, func(seen *Seen) { seen.Etcd.Members = nil })
			}
		}, "there would be two; stop the agent, and from another machine: ichor restore --recover-cluster --cluster prod --backup hourly --snapshot etcd-20261129T100000Z.snapshot.age --wipe cp-1 --wipe cp-2 --wipe cp-3 --state s3://ichor/prod"},
		"the agent is on the only one": {func(s situation, spec *schema.RestoreOperation) {
			s.in.NodeName = "cp-1"
			s.in.Cluster.Machines = s.in.Cluster.Machines[:1]
			spec.ControlPlanes = map[string]string{"cp-1": "uuid-cp-1"}
			s.change("cp-1", func(seen *Seen) { seen.Etcd.Members = seen.Etcd.Members[:1] })
		}, "there is no other control plane that could recover before that one is wiped under it; stop it, and from another machine: ichor restore --recover-cluster --cluster prod --backup hourly --snapshot etcd-20261129T100000Z.snapshot.age --wipe cp-1 --state s3://ichor/prod"},
	} {
		t.Run(name, func(t *testing.T) {
			s := restorable()
			refuse, _ := refuseRestore(s)
			require.Empty(t, refuse, "before it is spoilt")
			test.spoil(s, s.spec.EtcdRestore)
			refuse = s.refuseRestore()
			require.Contains(t, refuse, test.says)
			require.Contains(t, refuse, nothingChanged)
		})
	}
}

// configured adds a control plane that is not approved any more, got its config, and holds no data.
func (s situation) configured(name string) {
	m := &schema.TalosMachine{Metadata: schema.ObjectMeta{Name: name}}
	m.Spec.Role, m.Spec.UUID, m.Spec.Endpoint = schema.RoleControlPlane, "uuid-"+name, "10.0.0.14"
	s.in.Cluster.Machines = append(s.in.Cluster.Machines, m)
	if s.in.State.Machines == nil {
		s.in.State.Machines = map[string]*statefile.MachineState{}
	}
	s.in.State.Machines[name] = &statefile.MachineState{Managed: true}
	seen := s.in.Seen["cp-3"]
	seen.UUID, seen.Hostname, seen.Stage, seen.Etcd = m.Spec.UUID, name, "running", talos.EtcdObservation{Data: talos.No}
	s.in.Seen[name] = seen
}

// TestOneLookNeitherRefusesARestoreNorHasAllWiped: what a look did not show is waited for, for as long as anything that should be so already.
func TestOneLookNeitherRefusesARestoreNorHasAllWiped(t *testing.T) {
	for name, test := range map[string]struct {
		spoil func(s situation)
		waits string
		// after is what it comes to where it lasts: a refusal, "gentle" where it goes on with what it saw, else all are wiped.
		after string
	}{
		"one doesn't answer": {func(s situation) { s.silence("cp-3") }, "cp-3 (10.0.0.13) can't be reached", "sign it into without if it is off for good"},
		"one may hold data or not": {func(s situation) { s.change("cp-3", func(seen *Seen) { seen.Etcd.Data = talos.Unknown }) },
			"whether cp-3 holds etcd data is not known", "whether cp-3 holds etcd data is not known"},
		"etcd gives no list": {func(s situation) {
			for _, name := range []string{"cp-1", "cp-2", "cp-3"} {
				s.change(name, func(seen *Seen) { seen.Etcd.Members = nil })
			}
		}, "etcd is not healthy (no control plane gave a member list within 10 s)", ""},
		"a member is not healthy": {func(s situation) { s.change("cp-2", func(seen *Seen) { seen.Etcd.ServiceHealthy = talos.No }) },
			"etcd is not healthy (cp-2 is a member and not healthy)", ""},
		"one that got its config and is approved no more boots": {func(s situation) { s.configured("cp-4"); delete(s.in.Seen, "cp-4") },
			"cp-4 has its config, gives no answer, and may be about to join the old etcd", "gentle"},
		"one that got its config and is approved no more has no data yet": {func(s situation) { s.configured("cp-4") },
			"cp-4 has its config and may be about to join the old etcd (it is running)", "gentle"},
	} {
		t.Run(name, func(t *testing.T) {
			s := restorable()
			test.spoil(s)
			refuse, wait := refuseRestore(s)
			require.Empty(t, refuse+wait, "it begins, which changes nothing")
			s.op.Step, s.op.StepSince = stepPreparing, s.in.Now.Add(-time.Hour)
			m := nextRestore(s)
			require.Contains(t, m.wait, test.waits)
			require.Equal(t, stepLooking, m.step, "however long it was prepared before")
			require.Nil(t, s.plan.Restore)

			s.op.Step, s.op.StepSince = m.step, s.in.Now.Add(-s.in.Timing.Patience+time.Second)
			require.Contains(t, nextRestore(s).wait, test.waits)
			s.op.StepSince = s.in.Now.Add(-s.in.Timing.Patience)
			m = nextRestore(s)
			if test.after == "gentle" {
				require.Empty(t, m.pause, "it may be off for good")
				way, why := s.way()
				require.Empty(t, why)
				require.NotEmpty(t, way.holder)
				return
			}
			if test.after != "" {
				require.Contains(t, m.pause, nothingChanged)
				require.Contains(t, m.pause, test.after)
				return
			}
			require.Empty(t, m.pause)
			way, _ := s.way()
			require.Empty(t, way.holder)
		})
	}
	t.Run("what no look changes is refused at once", func(t *testing.T) {
		s := restorable()
		s.silence("cp-3")
		s.spec.EtcdRestore.Confirm = "staging"
		require.Contains(t, nextRestore(s).pause, "a restore must say confirm: prod")
		s = restorable()
		s.spec.EtcdRestore.ControlPlanes["cp-3"] = "other"
		s.change("cp-2", func(seen *Seen) { seen.Etcd.ServiceHealthy = talos.No })
		require.Contains(t, nextRestore(s).pause, "Git declares uuid-cp-3")
	})
}

func TestWhoIsWipedAndWhoRecovers(t *testing.T) {
	for name, test := range map[string]struct {
		change         func(s situation, spec *schema.RestoreOperation)
		target, holder string
		machines       int
	}{
		"etcd is healthy: the leader holds it": {func(situation, *schema.RestoreOperation) {}, "cp-1", "cp-2", 3},
		"the agent runs on a follower":         {func(s situation, _ *schema.RestoreOperation) { s.in.NodeName = "cp-3" }, "cp-3", "cp-2", 3},
		"the agent runs on the leader":         {func(s situation, _ *schema.RestoreOperation) { s.in.LocalAddresses = []string{"10.0.0.12"} }, "cp-2", "cp-1", 3},
		"one is a learner: all are wiped": {func(s situation, _ *schema.RestoreOperation) {
			s.change("cp-3", func(seen *Seen) { seen.Etcd.Learner = true; seen.Etcd.ServiceHealthy = talos.No })
		}, "cp-1", "", 3},
		"one is off for good: the others are wiped": {func(s situation, spec *schema.RestoreOperation) {
			s.silence("cp-3")
			delete(spec.ControlPlanes, "cp-3")
			spec.Without = map[string]string{"cp-3": "uuid-cp-3"}
		}, "cp-1", "", 2},
		"etcd doesn't answer any more: all are wiped": {func(s situation, _ *schema.RestoreOperation) {
			for _, name := range []string{"cp-1", "cp-2", "cp-3"} {
				s.change(name, func(seen *Seen) { seen.Etcd.Members = nil })
			}
		}, "cp-1", "", 3},
		"all are wiped, and the agent runs on the first": {func(s situation, spec *schema.RestoreOperation) {
			s.in.NodeName = "cp-1"
			for _, name := range []string{"cp-1", "cp-2", "cp-3"} {
				s.change(name, func(seen *Seen) { seen.Etcd.Members = nil })
				s.next.Machines[name].MemberID = "1"
			}
			require.Empty(t, s.refuseRestore())
		}, "cp-2", "", 3},
	} {
		t.Run(name, func(t *testing.T) {
			s := restorable()
			test.change(s, s.spec.EtcdRestore)
			way, why := s.way()
			require.Empty(t, why)
			require.Equal(t, []string{test.target, test.holder}, []string{way.target, way.holder})
			require.Len(t, way.machines, test.machines)
		})
	}
}

func TestARestoreSaysHowItStandsAndKeepsItsLockPastItsMarker(t *testing.T) {
	for name, test := range map[string]struct {
		view          RestoreView
		marked        bool
		wait, pause   string
		done, ordered bool
	}{
		"it is on its way":                 {RestoreView{Marked: true, Step: "leaving", Say: "cp-1 leaves"}, true, "cp-1 leaves", "", false, true},
		"a failure before the marker":      {RestoreView{Problem: "no such snapshot"}, false, "", "nothing was changed: no such snapshot", false, false},
		"a failure past the marker":        {RestoreView{Marked: true, Problem: "cp-2 is lost; end it by hand"}, true, "", "cp-2 is lost; end it by hand", false, false},
		"it is over":                       {RestoreView{Marked: true, Done: true, Say: "etcd is restored"}, true, "", "", true, false},
		"what is left of an earlier pause": {RestoreView{Pause: 7, Marked: true, Problem: "old"}, true, "the snapshot etcd-20261129T100000Z.snapshot.age is fetched", "", false, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := restorable()
			s.op.Marked = test.marked
			test.view.Digest = s.op.Digest
			s.in.Restore = &test.view
			m := nextRestore(s)
			require.Contains(t, m.wait, test.wait)
			require.Contains(t, m.pause, test.pause)
			require.Equal(t, test.done, m.done != "")
			require.Equal(t, test.ordered, s.plan.Restore != nil)
			require.Equal(t, test.marked, s.op.Marked)
			if m.pause != "" {
				s.next.Lock = &statefile.Lock{Holder: operationLock(s.op.Digest)}
				s.pause(s.op, m.pause)
				require.Equal(t, test.marked, s.next.Lock != nil)
			}
		})
	}
}

func TestWhatAnAgentThatDiedMayHaveMarkedIsLookedForBeforeARestoreIsRefused(t *testing.T) {
	s := restorable()
	s.silence("cp-3")
	s.op.Step, s.op.StepSince = stepLooking, s.in.Now.Add(-time.Hour)
	m := nextRestore(s)
	require.Contains(t, m.pause, nothingChanged, "nothing was begun: it is refused")
	require.Nil(t, s.plan.Restore)

	s.op.Sent = map[string]int{sentRestore: 1}
	m = nextRestore(s)
	require.Empty(t, m.pause)
	require.NotNil(t, s.plan.Restore)
	require.Contains(t, s.plan.Restore.Refuse, "sign it into without if it is off for good")
	require.NotContains(t, s.plan.Restore.Refuse, nothingChanged)

	s.in.Restore = &RestoreView{Digest: s.op.Digest, Problem: s.plan.Restore.Refuse}
	m = nextRestore(s)
	require.Contains(t, m.pause, nothingChanged, "there was no marker")
}

func TestTheMachineThatTheAgentRunsOnIsFoundByWhatItsNodeIsCalled(t *testing.T) {
	m := &schema.TalosMachine{Metadata: schema.ObjectMeta{Name: "cp-1"}}
	m.Spec.Hostname, m.Spec.Endpoint, m.Spec.UUID = "node-1", "10.0.0.11:50000", "uuid-cp-1"
	in := &Input{Cluster: Cluster{Machines: []*schema.TalosMachine{m}}, State: &statefile.State{Machines: map[string]*statefile.MachineState{"cp-1": {Hostname: "before-1"}}},
		Seen: map[string]Seen{"cp-1": {Observation: talos.Observation{UUID: "uuid-cp-1", Hostname: "talos-abc"}}}}
	for _, name := range []string{"cp-1", "node-1", "Node-1", "talos-abc", "before-1", "10.0.0.11"} {
		in.NodeName = name
		require.Equal(t, "cp-1", ownMachine(in), name)
	}
	for _, name := range []string{"", "cp-2", "10.0.0.1"} {
		in.NodeName = name
		require.Empty(t, ownMachine(in), name)
	}
}
