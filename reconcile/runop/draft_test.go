package runop_test

import (
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/operation"
	"ichor.maesh.dev/reconcile/runop"
	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/validate"
)

func TestTheFileOfAnOperationSaysWhatWasAskedFor(t *testing.T) {
	draft, err := write(load(t, files()), node("remove", "w-1", of("prod"), func(r *runop.Request) {
		r.Reason, r.Then = `the "old" one: # 7 \ done`, "reboot"
	}))
	require.NoError(t, err)
	require.Equal(t, "operations/20261130-remove-w-1.yaml", draft.Path)
	require.True(t, draft.Override)
	require.Equal(t, `apiVersion: ichor.maesh.dev/v1alpha1
kind: TalosOperation
metadata:
  name: "20261130-remove-w-1"
spec:
  clusterRef:
    name: prod
    id: "1f3a9c0d2b4e6f78"
  kind: node
  createdAt: 2026-11-30T10:00:00Z
  expiresAt: 2026-12-01T10:00:00Z
  reason: "the \"old\" one: # 7 \\ done"
  node:
    machineRef:
      name: w-1
      uuid: "4c4c4544-0039-3510-8052-b4c04f4e0004"
    action: remove
    confirm: w-1
    then: reboot
`, string(draft.Data))
	require.Equal(t, draft.Data, draft.Operation.Raw)
	require.Equal(t, `the "old" one: # 7 \ done`, draft.Operation.Spec.Reason)
}

func TestEveryKindIsWrittenAsItIsRead(t *testing.T) {
	digest := strings.Repeat("0123456789abcdef", 4)
	for name, r := range map[string]runop.Request{
		"reboot":          node("reboot", "cp-1"),
		"shutdown":        node("shutdown", "cp-1"),
		"restart-service": node("restart-service", "cp-1", func(r *runop.Request) { r.Service = "cri" }),
		"defrag":          node("etcd-defrag", "cp-1", func(r *runop.Request) { r.AllowLeader = true }),
		"forfeit":         node("etcd-forfeit-leadership", "cp-1"),
		"remove":          node("remove", "cp-1", func(r *runop.Request) { r.Gone = true }),
		"etcd-backup":     request("etcd-backup", "", "", of("prod")),
		"etcd-restore": request("etcd-restore", "", "", of("prod"), func(r *runop.Request) {
			r.Confirm, r.Restore = "prod", runop.RestoreRequest{Snapshot: schema.SnapshotRef{Name: "etcd-20261130T090000Z.snapshot.age", SHA256: digest}, Without: []string{"cp-3"},
				LocalDataLoss: "accepted", PlainRevision: true, AcceptUnlisted: true}
		}),
		"adopt":     request("adopt", "", "cp-1"),
		"bootstrap": request("bootstrap", "", "cp-1", func(r *runop.Request) { r.Confirm = "prod" }),
		"resume":    request("resume", "", "some-op", of("prod"), func(r *runop.Request) { r.Digest, r.Pause = digest, 3 }),
		"cancel":    request("cancel", "", "some-op", of("prod"), func(r *runop.Request) { r.Digest = digest }),
	} {
		t.Run(name, func(t *testing.T) {
			draft, err := write(load(t, files()), r)
			require.NoError(t, err)
			read, refusal := operation.Read(draft.Path, draft.Data)
			require.Nil(t, refusal)
			require.Equal(t, r.Kind, read.Spec.Kind)
			require.Equal(t, "prod", read.Spec.ClusterRef.Name)
			switch {
			case read.Spec.Node != nil:
				require.Equal(t, r.Action, read.Spec.Node.Action)
				require.Equal(t, r.Service, read.Spec.Node.Service)
				require.Equal(t, r.AllowLeader, read.Spec.Node.AllowLeader)
				require.Equal(t, r.Gone, read.Spec.Node.Gone)
				require.Equal(t, uuid(1), read.Spec.Node.MachineRef.UUID)
			case read.Spec.EtcdRestore != nil:
				no := false
				require.Equal(t, schema.RestoreOperation{BackupRef: schema.NameRef{Name: "hourly"}, Snapshot: r.Restore.Snapshot, Confirm: "prod",
					ControlPlanes: map[string]string{"cp-1": uuid(1), "cp-2": uuid(2)}, Without: map[string]string{"cp-3": uuid(3)}, LocalDataLoss: "accepted",
					RevisionBump: &no, AcceptUnlisted: true}, *read.Spec.EtcdRestore)
				require.Equal(t, "20261130-etcd-restore-prod", read.Metadata.Name)
				require.True(t, draft.Override)
			case read.Spec.EtcdBackup != nil:
				require.Equal(t, "hourly", read.Spec.EtcdBackup.BackupRef.Name)
				require.Equal(t, "20261130-etcd-backup-hourly", read.Metadata.Name)
			case read.Spec.Resume != nil:
				require.Equal(t, schema.ResumeOperation{Operation: "some-op", Digest: digest, Pause: 3}, *read.Spec.Resume)
			}
		})
	}
}

// Names that a reader of YAML takes for something else, or that are as long as they may be.
func TestHostileNamesStayNames(t *testing.T) {
	long := strings.Repeat("x", 63)
	for _, name := range []string{"no", "on", "null", "true", "y", "1", "007", "0x1f", "1e5", "0b11", "12-30", "2026-11-30", "nan", "e5", long} {
		t.Run(name, func(t *testing.T) {
			tree := fstest.MapFS{}
			for file, text := range map[string]string{"c.yaml": clusterYAML(name, "1234567890123456", 1), "m.yaml": machineYAML(name, name, "controlplane", uuid(1))} {
				tree[file] = &fstest.MapFile{Data: []byte(text)}
			}
			fleet, _ := schema.Load(tree, []string{"."})
			require.Len(t, fleet.Machines, 1)
			for _, r := range []runop.Request{node("etcd-forfeit-leadership", name), node("remove", name)} {
				draft, err := write(fleet, r)
				require.NoError(t, err)
				require.Equal(t, name, draft.Operation.Spec.Node.MachineRef.Name)
				require.Equal(t, name, draft.Operation.Spec.ClusterRef.Name)
				require.Equal(t, "1234567890123456", draft.Operation.Spec.ClusterRef.ID)
				require.LessOrEqual(t, len(draft.Operation.Metadata.Name), 63)
			}
		})
	}
	for _, reason := range []string{"two\nlines", "\x1b[31m", "schön", "tab\there", strings.Repeat("x", 20<<10)} {
		_, err := write(load(t, files()), node("reboot", "cp-1", func(r *runop.Request) { r.Reason = reason }))
		var usage *runop.UsageError
		require.ErrorAs(t, err, &usage, "%q", reason)
		require.NotContains(t, err.Error(), "\x1b")
	}
}

func TestANameThatIsTakenGetsANumber(t *testing.T) {
	taken := map[string]bool{"20261130-reboot-cp-1": true, "20261130-reboot-cp-1-2": true}
	draft, err := write(load(t, files()), node("reboot", "cp-1"), func(o *runop.Options) { o.Taken = func(name string) bool { return taken[name] } })
	require.NoError(t, err)
	require.Equal(t, "20261130-reboot-cp-1-3", draft.Operation.Metadata.Name)
}

func TestWhatIsMeantIsFoundOrSaid(t *testing.T) {
	fleet := load(t, files())
	for _, c := range []struct {
		name, want string
		request    runop.Request
	}{
		{"a machine of one cluster needs no cluster", "", node("reboot", "cp-2")},
		{"a machine of two clusters does", "w-1 is in several clusters: prod, staging", node("reboot", "w-1")},
		{"the cluster decides", "", node("reboot", "w-1", of("staging"))},
		{"an unknown machine is named beside those that there are", "prod has no machine cp-9; it has cp-1, cp-2, cp-3, w-1, w-2", node("reboot", "cp-9", of("prod"))},
		{"an unknown machine of no cluster", "none of the clusters (prod, staging) has cp-9", node("reboot", "cp-9")},
		{"an unknown cluster", "no TalosCluster dev; it holds prod, staging", node("reboot", "cp-1", of("dev"))},
		{"a backup of a cluster without any", "staging has no TalosEtcdBackup", request("etcd-backup", "", "", of("staging"))},
		{"an unknown backup", "prod has no TalosEtcdBackup daily; it has hourly", request("etcd-backup", "", "daily", of("prod"))},
		{"a machine that Git forgot, and no state", "is not in Git any more", node("remove", "w-9", of("prod"))},
		{"a machine that Git forgot, with its UUID", "", node("remove", "w-9", of("prod"), func(r *runop.Request) { r.UUID = uuid(9) })},
		{"another UUID than Git's", "Git declares cp-1 with the UUID", node("remove", "cp-1", func(r *runop.Request) { r.UUID = uuid(9) })},
		{"a UUID that is none", "can't be written", node("remove", "w-9", of("prod"), func(r *runop.Request) { r.UUID = "x" })},
		{"an operation that nobody knows", "neither Git nor the state knows an operation x of prod", request("cancel", "", "x", of("prod"))},
		{"a resume without its pause", "which pause of x is to end isn't known", request("resume", "", "x", of("prod"), func(r *runop.Request) { r.Digest = strings.Repeat("a", 64) })},
		{"a week is the longest", "", node("reboot", "cp-1", func(r *runop.Request) { r.Life = 7 * 24 * time.Hour })},
		{"longer than a week", "would wait 169h0m0s, and an operation waits at most 7 days", node("reboot", "cp-1", func(r *runop.Request) { r.Life = 169 * time.Hour })},
		{"a removal waits a day", "waits at most 24 hours", node("remove", "cp-1", func(r *runop.Request) { r.Life = 25 * time.Hour })},
		{"no time at all", "would expire after 0s", node("reboot", "cp-1", func(r *runop.Request) { r.Life = 0 })},
		{"another service", "can't be written", node("restart-service", "cp-1", func(r *runop.Request) { r.Service = "etcd" })},
		{"gone, and what it does then", "can't be written", node("remove", "cp-1", func(r *runop.Request) { r.Gone, r.Then = true, "reboot" })},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := write(fleet, c.request)
			if c.want == "" {
				require.NoError(t, err)
				return
			}
			var usage *runop.UsageError
			require.ErrorAs(t, err, &usage)
			require.ErrorContains(t, err, c.want)
			require.NotEmpty(t, usage.Hint)
		})
	}
	_, err := runop.Find(&schema.Fleet{}, "", node("reboot", "cp-1"))
	require.ErrorContains(t, err, "holds no TalosCluster")
}

// withOperation adds a draft to a fleet, as a push does.
func withOperation(t *testing.T, tree fstest.MapFS, draft *runop.Draft) *schema.Fleet {
	t.Helper()
	tree[draft.Path] = &fstest.MapFile{Data: draft.Data}
	return load(t, tree)
}

func TestAResumeSaysWhatTheStateSays(t *testing.T) {
	tree := files()
	first, err := write(load(t, tree), node("remove", "w-2"))
	require.NoError(t, err)
	fleet := withOperation(t, tree, first)
	name, digest := first.Operation.Metadata.Name, operation.Digest(first.Data)
	remembered := &statefile.State{Operations: []*statefile.OperationState{{Name: name, Digest: digest, AcceptedAt: now, Phase: statefile.OperationPaused, Pause: 2, Override: true}}}
	withState := func(s *statefile.State) func(*runop.Options) { return func(o *runop.Options) { o.State = s } }

	draft, err := write(fleet, request("resume", "", name), withState(remembered))
	require.NoError(t, err)
	require.Equal(t, schema.ResumeOperation{Operation: name, Digest: digest, Pause: 2}, *draft.Operation.Spec.Resume)
	require.True(t, draft.Override, "it needs what the removal needed")
	draft, err = write(fleet, request("cancel", "", name))
	require.NoError(t, err)
	require.Equal(t, digest, draft.Operation.Spec.Cancel.Digest)
	require.True(t, draft.Override, "the file in Git says it too")
	_, err = write(fleet, request("cancel", "", name, func(r *runop.Request) { r.Life = 48 * time.Hour }))
	require.ErrorContains(t, err, "24 hours")
	draft, err = write(load(t, files()), request("resume", "", name, of("prod")), withState(remembered))
	require.NoError(t, err)
	require.Equal(t, digest, draft.Operation.Spec.Resume.Digest, "the state alone is enough")

	remembered.Operations[0].Digest = strings.Repeat("a", 64)
	_, err = write(fleet, request("resume", "", name), withState(remembered))
	require.ErrorContains(t, err, "the agent accepted aaaaaaaaaaaa")
	remembered.Operations[0].Digest, remembered.Operations[0].Pause = digest, 0
	_, err = write(fleet, request("resume", "", name), withState(remembered))
	require.ErrorContains(t, err, "has never paused")
}

func TestThePlanSaysWhatTheRulesOfTheRepositorySay(t *testing.T) {
	engine, err := validate.New()
	require.NoError(t, err)
	for _, c := range []struct {
		name    string
		request runop.Request
		change  func(tree fstest.MapFS)
		state   *statefile.State
		blocked []string
	}{
		{"nothing is in the way", node("reboot", "cp-1"), nil, nil, nil},
		{"fewer control planes than count", node("remove", "cp-1"), nil, nil, []string{"control-plane-count"}},
		{"it is off for good", node("remove", "cp-1", func(r *runop.Request) { r.Gone = true }), nil, nil, nil},
		{"the last control plane", node("remove", "cp", func(r *runop.Request) { r.Gone = true }), nil, nil, []string{"last-control-plane", "is the last control plane"}},
		{"the last worker", node("remove", "w-1", of("staging")), nil, nil, []string{"last-worker"}},
		{"its pods have nowhere to go", node("reboot", "w-1", of("staging")), nil, nil, []string{"last-schedulable"}},
		{"etcd runs on control planes", node("etcd-defrag", "w-2"), nil, nil, []string{"etcd-on-control-planes"}},
		{"not approved", node("reboot", "w-2"), func(tree fstest.MapFS) {
			tree["prod/w-2.yaml"].Data = []byte(strings.Replace(string(tree["prod/w-2.yaml"].Data), "approved: true", "approved: false", 1))
		}, nil, []string{"target-approved"}},
		{"not approved, and removed", node("remove", "w-2"), func(tree fstest.MapFS) {
			tree["prod/w-2.yaml"].Data = []byte(strings.Replace(string(tree["prod/w-2.yaml"].Data), "approved: true", "approved: false", 1))
		}, nil, nil},
		{"the cluster is paused", node("reboot", "cp-1"), func(tree fstest.MapFS) {
			tree["prod/cluster.yaml"].Data = []byte(strings.Replace(string(tree["prod/cluster.yaml"].Data), `{name: "prod"}`,
				`{name: prod, annotations: {ichor.maesh.dev/paused: "the move"}}`, 1))
		}, nil, []string{"target-paused"}},
		{"a rule of the team's own", node("reboot", "cp-1"), func(tree fstest.MapFS) {
			tree["policy.yaml"] = &fstest.MapFile{Data: []byte(`apiVersion: ichor.maesh.dev/v1alpha1
kind: Policy
metadata: {name: ours}
spec:
  rules:
  - {name: reasons, scope: operation, expr: "self.spec.reason != ''", message: "self.metadata.name + ' says no reason'"}
`)}
		}, nil, []string{"says no reason"}},
		{"another operation is paused", node("reboot", "cp-1"), nil, &statefile.State{Machines: map[string]*statefile.MachineState{"cp-1": {Managed: true}},
			Operations: []*statefile.OperationState{{Name: "before", Phase: statefile.OperationPaused, FailureReason: "it did not come back"}}},
			[]string{"the operation before is paused (it did not come back)"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			tree := files()
			if c.change != nil {
				c.change(tree)
			}
			fleet := load(t, tree)
			draft, err := write(fleet, c.request)
			require.NoError(t, err)
			plan := runop.Plan(engine, fleet, c.state, draft, nil, now)
			require.NotEmpty(t, plan.Steps)
			require.Len(t, plan.Blockers, len(c.blocked), "%q", plan.Blockers)
			for _, want := range c.blocked {
				require.True(t, slices.ContainsFunc(plan.Blockers, func(b string) bool { return strings.Contains(b, want) }), "%q lacks %q", plan.Blockers, want)
			}
		})
	}
}

func TestAMachineThatAnotherFileRemovesIsLeftAlone(t *testing.T) {
	engine, err := validate.New()
	require.NoError(t, err)
	tree := files()
	removal, err := write(load(t, tree), node("remove", "w-2"))
	require.NoError(t, err)
	fleet := withOperation(t, tree, removal)
	draft, err := write(fleet, node("reboot", "w-2"))
	require.NoError(t, err)
	require.Contains(t, strings.Join(runop.Plan(engine, fleet, nil, draft, nil, now).Blockers, "\n"), "w-2 is being removed by 20261130-remove-w-2 (operations/20261130-remove-w-2.yaml)")
	over := &statefile.State{Machines: map[string]*statefile.MachineState{"w-2": {Managed: true}}, Operations: []*statefile.OperationState{
		{Name: "20261130-remove-w-2", Digest: operation.Digest(removal.Data), Phase: statefile.OperationCancelled, Action: "remove", Target: "w-2"}}}
	require.NotContains(t, strings.Join(runop.Plan(engine, fleet, over, draft, nil, now).Blockers, "\n"), "being removed", "the state knows better")
	require.NotContains(t, strings.Join(runop.Plan(engine, fleet, nil, draft, nil, now.Add(48*time.Hour)).Blockers, "\n"), "being removed by", "its time is over")
}

// TestAControlPlaneThatIsNotApprovedIsLeftOutByItsName: it may have been a member of the etcd that is replaced, and a restore wants it off for good.
func TestAControlPlaneThatIsNotApprovedIsLeftOutByItsName(t *testing.T) {
	for name, test := range map[string]struct{ without []string }{
		"it is not named unasked": {nil},
		"it is off for good":      {[]string{"cp-3"}},
	} {
		t.Run(name, func(t *testing.T) {
			fleet := load(t, files())
			for _, m := range fleet.Machines {
				if m.Metadata.Name == "cp-3" {
					m.Spec.Approved = false
				}
			}
			draft, err := write(fleet, request("etcd-restore", "", "", of("prod"), func(r *runop.Request) {
				r.Confirm, r.Restore = "prod", runop.RestoreRequest{Snapshot: schema.SnapshotRef{Name: "etcd-20261130T090000Z.snapshot.age",
					SHA256: strings.Repeat("0123456789abcdef", 4)}, Without: test.without}
			}))
			require.NoError(t, err)
			restore := draft.Operation.Spec.EtcdRestore
			require.Equal(t, map[string]string{"cp-1": uuid(1), "cp-2": uuid(2)}, restore.ControlPlanes)
			require.Len(t, restore.Without, len(test.without))
			for _, off := range test.without {
				require.Equal(t, uuid(3), restore.Without[off])
			}
		})
	}
}
