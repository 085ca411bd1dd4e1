package validate

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/schema"
)

// step is a change of a fleet and what is found about it. "-" as old means that there is no base.
type step struct {
	name     string
	old, new string
	// want are the findings as "rule cluster/name", without not-yet.
	want []string
}

func judge(t *testing.T, steps []step) {
	t.Helper()
	engine, err := New()
	require.NoError(t, err)
	for _, s := range steps {
		t.Run(s.name, func(t *testing.T) {
			var old *schema.Fleet
			if s.old != "-" {
				old = fleetOf(t, s.old)
			}
			var got []string
			for _, f := range engine.Check(old, fleetOf(t, s.new), Without(RuleNotYet)) {
				require.NotContains(t, f.Message, "could not be judged")
				require.Equal(t, strings.ToLower(f.Message[:1]), f.Message[:1], f.Message)
				got = append(got, f.Rule+" "+f.Cluster+"/"+f.Name)
			}
			require.ElementsMatch(t, s.want, got)
		})
	}
}

func TestApprovalCap(t *testing.T) {
	judge(t, []step{
		{"the first control plane of count 1 is approved",
			`cluster prod count=1`,
			`cluster prod count=1
			 machine prod/cp-1 controlplane approved`, nil},
		{"1 to 2 on count 1 passes, so that the one can be replaced",
			`cluster prod count=1
			 machine prod/cp-1 controlplane approved`,
			`cluster prod count=1
			 machine prod/cp-1 controlplane approved
			 machine prod/cp-2 controlplane approved`, nil},
		{"2 to 3 on count 1 is refused",
			`cluster prod count=1
			 machine prod/cp-1 controlplane approved
			 machine prod/cp-2 controlplane approved`,
			`cluster prod count=1
			 machine prod/cp-1 controlplane approved
			 machine prod/cp-2 controlplane approved
			 machine prod/cp-3 controlplane approved`,
			[]string{"approval-cap prod/cp-3"}},
		{"3 to 4 on count 3 passes",
			`cluster prod
			 machine prod/cp-1 controlplane approved
			 machine prod/cp-2 controlplane approved
			 machine prod/cp-3 controlplane approved
			 machine prod/cp-4 controlplane`,
			`cluster prod
			 machine prod/cp-1 controlplane approved
			 machine prod/cp-2 controlplane approved
			 machine prod/cp-3 controlplane approved
			 machine prod/cp-4 controlplane approved`, nil},
		{"4 to 5 on count 3 is refused",
			`cluster prod
			 machine prod/cp-1 controlplane approved
			 machine prod/cp-2 controlplane approved
			 machine prod/cp-3 controlplane approved
			 machine prod/cp-4 controlplane approved
			 machine prod/cp-5 controlplane`,
			`cluster prod
			 machine prod/cp-1 controlplane approved
			 machine prod/cp-2 controlplane approved
			 machine prod/cp-3 controlplane approved
			 machine prod/cp-4 controlplane approved
			 machine prod/cp-5 controlplane approved`,
			[]string{"approval-cap prod/cp-5"}},
		{"5 to 6 on count 5 passes",
			`cluster prod count=5
			 machine prod/cp-1 controlplane approved
			 machine prod/cp-2 controlplane approved
			 machine prod/cp-3 controlplane approved
			 machine prod/cp-4 controlplane approved
			 machine prod/cp-5 controlplane approved`,
			`cluster prod count=5
			 machine prod/cp-1 controlplane approved
			 machine prod/cp-2 controlplane approved
			 machine prod/cp-3 controlplane approved
			 machine prod/cp-4 controlplane approved
			 machine prod/cp-5 controlplane approved
			 machine prod/cp-6 controlplane approved`, nil},
		{"several approvals in one change count together",
			`cluster prod count=1
			 machine prod/cp-1 controlplane approved
			 machine prod/cp-2 controlplane
			 machine prod/cp-3 controlplane`,
			`cluster prod count=1
			 machine prod/cp-1 controlplane approved
			 machine prod/cp-2 controlplane approved
			 machine prod/cp-3 controlplane approved`,
			[]string{"approval-cap prod/cp-2", "approval-cap prod/cp-3"}},
		{"a new cluster with all of its control planes approved passes",
			``,
			`cluster prod
			 machine prod/cp-1 controlplane approved
			 machine prod/cp-2 controlplane approved
			 machine prod/cp-3 controlplane approved`, nil},
		{"a new cluster with five approved on count 3 is refused",
			``,
			`cluster prod
			 machine prod/cp-1 controlplane approved
			 machine prod/cp-2 controlplane approved
			 machine prod/cp-3 controlplane approved
			 machine prod/cp-4 controlplane approved
			 machine prod/cp-5 controlplane approved`,
			[]string{"approval-cap prod/cp-1", "approval-cap prod/cp-2", "approval-cap prod/cp-3", "approval-cap prod/cp-4", "approval-cap prod/cp-5"}},
		{"without a base nobody knows what becomes approved",
			`-`,
			`cluster prod count=1
			 machine prod/cp-1 controlplane approved
			 machine prod/cp-2 controlplane approved
			 machine prod/cp-3 controlplane approved`, nil},
		{"an edit that approves nothing is not refused, far over the cap",
			`cluster prod count=1
			 machine prod/cp-1 controlplane approved
			 machine prod/cp-2 controlplane approved
			 machine prod/cp-3 controlplane approved
			 machine prod/cp-4 controlplane approved`,
			`cluster prod count=1
			 machine prod/cp-1 controlplane approved hostname=one
			 machine prod/cp-2 controlplane approved
			 machine prod/cp-3 controlplane approved
			 machine prod/cp-4 controlplane approved
			 machine prod/cp-5 controlplane
			 machine prod/w-1 worker approved`, nil},
		{"lowering count below the live total starts a shrink and passes",
			`cluster prod count=3
			 machine prod/cp-1 controlplane approved
			 machine prod/cp-2 controlplane approved
			 machine prod/cp-3 controlplane approved`,
			`cluster prod count=1
			 machine prod/cp-1 controlplane approved
			 machine prod/cp-2 controlplane approved
			 machine prod/cp-3 controlplane approved`, nil},
		{"raising count widens the cap in the same change",
			`cluster prod count=1
			 machine prod/cp-1 controlplane approved
			 machine prod/cp-2 controlplane approved`,
			`cluster prod count=3
			 machine prod/cp-1 controlplane approved
			 machine prod/cp-2 controlplane approved
			 machine prod/cp-3 controlplane approved
			 machine prod/cp-4 controlplane approved`, nil},
		{"raising count widens the cap so far and no farther",
			`cluster prod count=1
			 machine prod/cp-1 controlplane approved
			 machine prod/cp-2 controlplane approved`,
			`cluster prod count=3
			 machine prod/cp-1 controlplane approved
			 machine prod/cp-2 controlplane approved
			 machine prod/cp-3 controlplane approved
			 machine prod/cp-4 controlplane approved
			 machine prod/cp-5 controlplane approved`,
			[]string{"approval-cap prod/cp-3", "approval-cap prod/cp-4", "approval-cap prod/cp-5"}},
		{"a machine that a remove names doesn't count",
			`cluster prod count=1
			 machine prod/cp-1 controlplane approved
			 machine prod/cp-2 controlplane approved
			 remove prod/cp-1`,
			`cluster prod count=1
			 machine prod/cp-1 controlplane approved
			 machine prod/cp-2 controlplane approved
			 machine prod/cp-3 controlplane approved
			 remove prod/cp-1`, nil},
		{"a machine that a remove of the same change names doesn't count",
			`cluster prod count=1
			 machine prod/cp-1 controlplane approved
			 machine prod/cp-2 controlplane approved`,
			`cluster prod count=1
			 machine prod/cp-1 controlplane approved
			 machine prod/cp-2 controlplane approved
			 machine prod/cp-3 controlplane approved
			 remove prod/cp-1 gone`, nil},
		{"a remove of another machine under the same name does not help",
			`cluster prod count=1
			 machine prod/cp-1 controlplane approved
			 machine prod/cp-2 controlplane approved
			 remove prod/cp-1 uuid=00000000-1111-2222-3333-444444444444`,
			`cluster prod count=1
			 machine prod/cp-1 controlplane approved
			 machine prod/cp-2 controlplane approved
			 machine prod/cp-3 controlplane approved
			 remove prod/cp-1 uuid=00000000-1111-2222-3333-444444444444`,
			[]string{"approval-cap prod/cp-3"}},
		{"a remove from before the machine was approved speaks of an earlier life",
			`cluster prod count=1
			 machine prod/cp-1 controlplane approved decided=1h
			 machine prod/cp-2 controlplane approved
			 remove prod/cp-1`,
			`cluster prod count=1
			 machine prod/cp-1 controlplane approved decided=1h
			 machine prod/cp-2 controlplane approved
			 machine prod/cp-3 controlplane approved
			 remove prod/cp-1`,
			[]string{"approval-cap prod/cp-3"}},
		{"another operation than a remove doesn't take a machine away",
			`cluster prod count=1
			 machine prod/cp-1 controlplane approved
			 machine prod/cp-2 controlplane approved`,
			`cluster prod count=1
			 machine prod/cp-1 controlplane approved
			 machine prod/cp-2 controlplane approved
			 machine prod/cp-3 controlplane approved
			 remove prod/cp-1 action=reboot`,
			[]string{"approval-cap prod/cp-3"}},
		{"other clusters don't count",
			`cluster prod count=1
			 machine prod/cp-1 controlplane approved
			 cluster test count=3
			 machine test/cp-1 controlplane approved
			 machine test/cp-2 controlplane approved
			 machine test/cp-3 controlplane approved`,
			`cluster prod count=1
			 machine prod/cp-1 controlplane approved
			 machine prod/cp-2 controlplane approved
			 cluster test count=3
			 machine test/cp-1 controlplane approved
			 machine test/cp-2 controlplane approved
			 machine test/cp-3 controlplane approved`, nil},
		{"a moved file approves nothing",
			`cluster prod count=1
			 machine prod/cp-1 controlplane approved
			 machine prod/cp-2 controlplane approved
			 machine prod/cp-3 controlplane approved`,
			`cluster prod count=1 file=elsewhere/prod.yaml
			 machine prod/cp-1 controlplane approved file=elsewhere/a.yaml
			 machine prod/cp-2 controlplane approved file=elsewhere/a.yaml
			 machine prod/cp-3 controlplane approved file=elsewhere/c.yaml`, nil},
		{"an approved worker that turns control plane counts as an approval",
			`cluster prod count=1
			 machine prod/cp-1 controlplane approved
			 machine prod/cp-2 controlplane approved
			 machine prod/w-1 worker approved`,
			`cluster prod count=1
			 machine prod/cp-1 controlplane approved
			 machine prod/cp-2 controlplane approved
			 machine prod/w-1 controlplane approved`,
			[]string{"approval-cap prod/w-1", "role-immutable prod/w-1"}},
		{"an approval in place of a deletion is counted after it",
			`cluster prod count=1
			 machine prod/cp-1 controlplane approved
			 machine prod/cp-2 controlplane approved`,
			`cluster prod count=1
			 machine prod/cp-2 controlplane approved
			 machine prod/cp-3 controlplane approved`, nil},
	})
}

func TestSchedulableNeedsWorker(t *testing.T) {
	judge(t, []step{
		{"turning false without an approved worker is refused",
			`cluster prod count=1 schedulable=true
			 machine prod/w-1 worker`,
			`cluster prod count=1 schedulable=false
			 machine prod/w-1 worker`,
			[]string{"schedulable-needs-worker prod/prod"}},
		{"turning false is refused too where true was the default",
			`cluster prod count=1`,
			`cluster prod count=1 schedulable=false`,
			[]string{"schedulable-needs-worker prod/prod"}},
		{"turning false with an approved worker passes",
			`cluster prod count=1`,
			`cluster prod count=1 schedulable=false
			 machine prod/w-1 worker approved`, nil},
		{"a worker that is being removed is none",
			`cluster prod count=1
			 machine prod/w-1 worker approved
			 remove prod/w-1`,
			`cluster prod count=1 schedulable=false
			 machine prod/w-1 worker approved
			 remove prod/w-1`,
			[]string{"schedulable-needs-worker prod/prod"}},
		{"a worker that the same change removes is none",
			`cluster prod count=1
			 machine prod/w-1 worker approved`,
			`cluster prod count=1 schedulable=false
			 machine prod/w-1 worker approved
			 remove prod/w-1`,
			[]string{"schedulable-needs-worker prod/prod", "last-worker prod/remove-w-1"}},
		{"another cluster's worker is none",
			`cluster prod count=1
			 cluster test count=1
			 machine test/w-1 worker approved`,
			`cluster prod count=1 schedulable=false
			 cluster test count=1
			 machine test/w-1 worker approved`,
			[]string{"schedulable-needs-worker prod/prod"}},
		{"a cluster may be created false",
			``, `cluster prod count=1 schedulable=false`, nil},
		{"an unrelated edit is not refused",
			`cluster prod count=1 schedulable=false`,
			`cluster prod count=3 schedulable=false`, nil},
		{"turning true passes",
			`cluster prod count=1 schedulable=false`,
			`cluster prod count=1 schedulable=true`, nil},
	})
}

func TestLastWorker(t *testing.T) {
	judge(t, []step{
		{"deleting the last worker is refused",
			`cluster prod schedulable=false
			 machine prod/w-1 worker approved`,
			`cluster prod schedulable=false`,
			[]string{"last-worker prod/w-1"}},
		{"unapproving the last worker is refused",
			`cluster prod schedulable=false
			 machine prod/w-1 worker approved`,
			`cluster prod schedulable=false
			 machine prod/w-1 worker`,
			[]string{"last-worker prod/w-1"}},
		{"re-roling the last worker is refused",
			`cluster prod schedulable=false
			 machine prod/w-1 worker approved`,
			`cluster prod schedulable=false
			 machine prod/w-1 controlplane approved`,
			[]string{"last-worker prod/w-1", "role-immutable prod/w-1"}},
		{"moving the last worker to another cluster is refused",
			`cluster prod schedulable=false
			 cluster test
			 machine prod/w-1 worker approved uuid=aa`,
			`cluster prod schedulable=false
			 cluster test
			 machine test/w-1 worker approved uuid=AA`,
			[]string{"last-worker prod/w-1", "cluster-ref-immutable prod/w-1", "cluster-ref-immutable test/w-1"}},
		{"removing the last worker by an operation is refused",
			`cluster prod schedulable=false
			 machine prod/w-1 worker approved`,
			`cluster prod schedulable=false
			 machine prod/w-1 worker approved
			 remove prod/w-1`,
			[]string{"last-worker prod/remove-w-1"}},
		{"removing the last worker is refused once, by operation and deletion in one change",
			`cluster prod schedulable=false
			 machine prod/w-1 worker approved`,
			`cluster prod schedulable=false
			 remove prod/w-1`,
			[]string{"last-worker prod/remove-w-1"}},
		{"a worker that is gone for good is still the last one",
			`cluster prod schedulable=false
			 machine prod/w-1 worker approved`,
			`cluster prod schedulable=false
			 machine prod/w-1 worker approved
			 remove prod/w-1 gone`,
			[]string{"last-worker prod/remove-w-1"}},
		{"two that go together are both refused",
			`cluster prod schedulable=false
			 machine prod/w-1 worker approved
			 machine prod/w-2 worker approved`,
			`cluster prod schedulable=false
			 machine prod/w-1 worker`,
			[]string{"last-worker prod/w-1", "last-worker prod/w-2"}},
		{"one of two may go",
			`cluster prod schedulable=false
			 machine prod/w-1 worker approved
			 machine prod/w-2 worker approved`,
			`cluster prod schedulable=false
			 machine prod/w-2 worker approved`, nil},
		{"one of two may not go while the other is being removed",
			`cluster prod schedulable=false
			 machine prod/w-1 worker approved
			 machine prod/w-2 worker approved
			 remove prod/w-2`,
			`cluster prod schedulable=false
			 machine prod/w-2 worker approved
			 remove prod/w-2`,
			[]string{"last-worker prod/w-1"}},
		{"one of two may be unapproved",
			`cluster prod schedulable=false
			 machine prod/w-1 worker approved
			 machine prod/w-2 worker approved`,
			`cluster prod schedulable=false
			 machine prod/w-1 worker
			 machine prod/w-2 worker approved`, nil},
		{"one of two may be removed",
			`cluster prod schedulable=false
			 machine prod/w-1 worker approved
			 machine prod/w-2 worker approved`,
			`cluster prod schedulable=false
			 machine prod/w-1 worker approved
			 machine prod/w-2 worker approved
			 remove prod/w-1`, nil},
		{"unapproving one while the same change removes the other is refused for both",
			`cluster prod schedulable=false
			 machine prod/w-1 worker approved
			 machine prod/w-2 worker approved`,
			`cluster prod schedulable=false
			 machine prod/w-1 worker
			 machine prod/w-2 worker approved
			 remove prod/w-2`,
			[]string{"last-worker prod/w-1", "last-worker prod/remove-w-2"}},
		{"deleting one while the same change removes the other is refused for both",
			`cluster prod schedulable=false
			 machine prod/w-1 worker approved
			 machine prod/w-2 worker approved`,
			`cluster prod schedulable=false
			 machine prod/w-2 worker approved
			 remove prod/w-2`,
			[]string{"last-worker prod/w-1", "last-worker prod/remove-w-2"}},
		{"unapproving and removing the last one in one change is refused for both",
			`cluster prod schedulable=false
			 machine prod/w-1 worker approved`,
			`cluster prod schedulable=false
			 machine prod/w-1 worker
			 remove prod/w-1`,
			[]string{"last-worker prod/w-1", "last-worker prod/remove-w-1"}},
		{"control planes are no workers",
			`cluster prod schedulable=false count=1
			 machine prod/cp-1 controlplane approved
			 machine prod/w-1 worker approved`,
			`cluster prod schedulable=false count=1
			 machine prod/cp-1 controlplane approved
			 machine prod/w-1 worker approved
			 remove prod/w-1`,
			[]string{"last-worker prod/remove-w-1"}},
		{"it may be removed when control planes take workloads",
			`cluster prod
			 machine prod/w-1 worker approved`,
			`cluster prod
			 machine prod/w-1 worker approved
			 remove prod/w-1`, nil},
		{"it may go when another is approved in the same change",
			`cluster prod schedulable=false
			 machine prod/w-1 worker approved`,
			`cluster prod schedulable=false
			 machine prod/w-2 worker approved`, nil},
		{"it may go when control planes take workloads",
			`cluster prod
			 machine prod/w-1 worker approved`,
			`cluster prod`, nil},
		{"it may go when control planes begin to take workloads in the same change",
			`cluster prod schedulable=false
			 machine prod/w-1 worker approved`,
			`cluster prod schedulable=true`, nil},
		{"it may go with its cluster",
			`cluster prod schedulable=false allow-delete
			 machine prod/w-1 worker approved`,
			``, nil},
		{"an unapproved worker may go",
			`cluster prod schedulable=false
			 machine prod/w-1 worker`,
			`cluster prod schedulable=false`, nil},
		{"a worker whose removal was permitted before may be deleted",
			`cluster prod schedulable=false
			 machine prod/w-1 worker approved
			 remove prod/w-1`,
			`cluster prod schedulable=false`, nil},
		{"other clusters' workers don't count",
			`cluster prod schedulable=false
			 machine prod/w-1 worker approved
			 cluster test
			 machine test/w-1 worker approved`,
			`cluster prod schedulable=false
			 cluster test
			 machine test/w-1 worker approved`,
			[]string{"last-worker prod/w-1"}},
		{"a moved file is no deletion",
			`cluster prod schedulable=false
			 machine prod/w-1 worker approved`,
			`cluster prod schedulable=false
			 machine prod/w-1 worker approved file=other/w.yaml`, nil},
	})
}

func TestControlPlaneCount(t *testing.T) {
	three := `cluster prod
		machine prod/cp-1 controlplane approved
		machine prod/cp-2 controlplane approved
		machine prod/cp-3 controlplane approved
		`
	two := `cluster prod
		machine prod/cp-1 controlplane approved
		machine prod/cp-2 controlplane approved
		`
	judge(t, []step{
		{"deleting one of three is refused", three, two, []string{"control-plane-count prod/cp-3"}},
		{"unapproving one of three is refused", three, two + `machine prod/cp-3 controlplane`, []string{"control-plane-count prod/cp-3"}},
		{"re-roling one of three is refused", three, two + `machine prod/cp-3 worker approved`,
			[]string{"control-plane-count prod/cp-3", "role-immutable prod/cp-3"}},
		{"removing one of three by an operation is refused", three, three + `remove prod/cp-3`,
			[]string{"control-plane-count prod/remove-cp-3"}},
		{"removing one of three is refused once, by operation and deletion in one change", three, two + `remove prod/cp-3`,
			[]string{"control-plane-count prod/remove-cp-3"}},
		{"removing one of three that is gone for good passes", three, three + `remove prod/cp-3 gone`, nil},
		{"moving one of three to another cluster is refused",
			three + `cluster test`,
			two + `cluster test
			machine test/cp-3 controlplane approved uuid=` + uuidOf("prod", "cp-3"),
			[]string{"control-plane-count prod/cp-3", "cluster-ref-immutable prod/cp-3", "cluster-ref-immutable test/cp-3"}},
		{"deleting one of four passes", three + `machine prod/cp-4 controlplane approved`, three, nil},
		{"removing one of four passes",
			three + `machine prod/cp-4 controlplane approved`,
			three + `machine prod/cp-4 controlplane approved
			remove prod/cp-1`, nil},
		{"removing two of four is refused twice",
			three + `machine prod/cp-4 controlplane approved`,
			three + `machine prod/cp-4 controlplane approved
			remove prod/cp-1
			remove prod/cp-2`,
			[]string{"control-plane-count prod/remove-cp-1", "control-plane-count prod/remove-cp-2"}},
		{"deleting one of four is refused while another is being removed",
			three + `machine prod/cp-4 controlplane approved
			remove prod/cp-1`,
			two + `machine prod/cp-4 controlplane approved
			remove prod/cp-1`,
			[]string{"control-plane-count prod/cp-3"}},
		{"a replacement approved in the same change passes",
			three, two + `machine prod/cp-4 controlplane approved`, nil},
		{"an annotation of its own name in the base permits it",
			two + `machine prod/cp-3 controlplane approved allow-delete`, two, nil},
		{"an annotation of its own name in the base permits the operation too",
			two + `machine prod/cp-3 controlplane approved allow-delete`,
			two + `machine prod/cp-3 controlplane approved allow-delete
			remove prod/cp-3`, nil},
		{"an annotation of another name doesn't",
			two + `machine prod/cp-3 controlplane approved allow-delete-of=cp-2`, two, []string{"control-plane-count prod/cp-3"}},
		{"an annotation that comes with the change doesn't",
			three, two + `machine prod/cp-3 controlplane allow-delete`, []string{"control-plane-count prod/cp-3"}},
		{"an annotation doesn't permit another's going with it",
			`cluster prod
			machine prod/cp-1 controlplane approved
			machine prod/cp-2 controlplane approved
			machine prod/cp-3 controlplane approved allow-delete`,
			`cluster prod
			machine prod/cp-1 controlplane approved`, []string{"control-plane-count prod/cp-2"}},
		{"lowering count in the same change permits it", three,
			`cluster prod count=1
			machine prod/cp-1 controlplane approved
			machine prod/cp-2 controlplane approved`, nil},
		{"raising count in the same change doesn't hide a loss", three,
			`cluster prod count=5
			machine prod/cp-1 controlplane approved
			machine prod/cp-2 controlplane approved`, []string{"control-plane-count prod/cp-3"}},
		{"where count was never reached a machine may go", two,
			`cluster prod
			machine prod/cp-1 controlplane approved`, nil},
		{"unapproving one of four passes", three + `machine prod/cp-4 controlplane approved`, three + `machine prod/cp-4 controlplane`, nil},
		{"unapproving one of four while the same change removes another is refused for both",
			three + `machine prod/cp-4 controlplane approved`,
			three + `machine prod/cp-4 controlplane
			remove prod/cp-1`,
			[]string{"control-plane-count prod/cp-4", "control-plane-count prod/remove-cp-1"}},
		{"deleting one of four while the same change removes another is refused for both",
			three + `machine prod/cp-4 controlplane approved`,
			three + `remove prod/cp-1`,
			[]string{"control-plane-count prod/cp-4", "control-plane-count prod/remove-cp-1"}},
		{"unapproving and removing one of three in one change is refused for both", three,
			two + `machine prod/cp-3 controlplane
			remove prod/cp-3`,
			[]string{"control-plane-count prod/cp-3", "control-plane-count prod/remove-cp-3"}},
		{"an edit of an unapproved one isn't blamed for another's going",
			three + `machine prod/cp-4 controlplane`,
			two + `machine prod/cp-4 controlplane hostname=x`, []string{"control-plane-count prod/cp-3"}},
		{"one whose removal was permitted isn't blamed for another's going",
			three + `machine prod/cp-4 controlplane approved
			remove prod/cp-4`,
			two, []string{"control-plane-count prod/cp-3"}},
		{"workers are no control planes", three + `machine prod/w-1 worker approved
			machine prod/w-2 worker approved
			machine prod/w-3 worker approved`,
			two + `machine prod/cp-3 controlplane
			machine prod/w-1 worker approved
			machine prod/w-2 worker approved
			machine prod/w-3 worker approved`, []string{"control-plane-count prod/cp-3"}},
		{"where one was being removed already another may be unapproved", three + `remove prod/cp-2`,
			two + `machine prod/cp-3 controlplane`, nil},
		{"where one was being removed already another may be deleted", three + `remove prod/cp-2`, two, nil},
		{"where one was being removed already another may be removed", three + `remove prod/cp-2`, three + `remove prod/cp-3`, nil},
		{"lowering count in the same change permits unapproving", three,
			`cluster prod count=1
			machine prod/cp-1 controlplane approved
			machine prod/cp-2 controlplane approved
			machine prod/cp-3 controlplane`, nil},
		{"lowering count in the same change permits removing", three,
			`cluster prod count=1
			machine prod/cp-1 controlplane approved
			machine prod/cp-2 controlplane approved
			machine prod/cp-3 controlplane approved
			remove prod/cp-3`, nil},
		{"raising count in the same change doesn't hide an unapproved one", three,
			`cluster prod count=5
			machine prod/cp-1 controlplane approved
			machine prod/cp-2 controlplane approved
			machine prod/cp-3 controlplane`, []string{"control-plane-count prod/cp-3"}},
		{"raising count in the same change doesn't hide a removal", three,
			`cluster prod count=5
			machine prod/cp-1 controlplane approved
			machine prod/cp-2 controlplane approved
			machine prod/cp-3 controlplane approved
			remove prod/cp-3`, []string{"control-plane-count prod/remove-cp-3"}},
		{"a cluster whose own document comes with the change counts by its new count",
			strings.TrimPrefix(three, "cluster prod") + `machine prod/cp-4 controlplane approved
			machine prod/cp-5 controlplane approved`,
			`cluster prod
			machine prod/cp-1 controlplane
			machine prod/cp-2 controlplane approved
			machine prod/cp-3 controlplane approved
			machine prod/cp-5 controlplane approved
			remove prod/cp-5`,
			[]string{"control-plane-count prod/cp-1", "control-plane-count prod/cp-4", "control-plane-count prod/remove-cp-5"}},
		{"an unapproved control plane may go", three + `machine prod/cp-4 controlplane`, three, nil},
		{"a removed one may be deleted afterwards",
			three + `machine prod/cp-4 controlplane approved
			remove prod/cp-4`,
			three, nil},
		{"it may go with its cluster",
			`cluster prod count=1 allow-delete
			machine prod/cp-1 controlplane approved`, ``, nil},
		{"other clusters don't count",
			three + `cluster test
			machine test/cp-1 controlplane approved`,
			two + `cluster test
			machine test/cp-1 controlplane approved`, []string{"control-plane-count prod/cp-3"}},
		{"a moved file is no deletion", three, two + `machine prod/cp-3 controlplane approved file=other.yaml`, nil},
	})
}

func TestImmutables(t *testing.T) {
	judge(t, []step{
		{"a role doesn't change",
			`cluster prod
			 machine prod/a worker`,
			`cluster prod
			 machine prod/a controlplane`, []string{"role-immutable prod/a"}},
		{"a role doesn't change under another name either",
			`cluster prod
			 machine prod/a worker uuid=aa`,
			`cluster prod
			 machine prod/b controlplane uuid=AA`, []string{"role-immutable prod/b"}},
		{"a machine may get another name",
			`cluster prod
			 machine prod/a worker approved uuid=aa`,
			`cluster prod
			 machine prod/b worker approved uuid=aa`, nil},
		{"a uuid doesn't change",
			`cluster prod
			 machine prod/a worker uuid=aa`,
			`cluster prod
			 machine prod/a worker uuid=bb`, []string{"uuid-immutable prod/a"}},
		{"the case of a uuid may change",
			`cluster prod
			 machine prod/a worker uuid=aa`,
			`cluster prod
			 machine prod/a worker uuid=AA`, nil},
		{"a machine doesn't move to another cluster, under another name either",
			`cluster prod
			 cluster test
			 machine prod/a worker uuid=aa`,
			`cluster prod
			 cluster test
			 machine test/b worker uuid=aa`, []string{"cluster-ref-immutable prod/a", "cluster-ref-immutable test/b"}},
		{"a machine of the same name in another cluster is another machine",
			`cluster prod
			 cluster test
			 machine prod/a worker`,
			`cluster prod
			 cluster test
			 machine test/a worker`, nil},
		{"what was removed from one cluster may turn up in another later",
			`cluster prod
			 cluster test`,
			`cluster prod
			 cluster test
			 machine test/a worker uuid=aa`, nil},
		{"a cluster doesn't go by itself",
			`cluster prod`, ``, []string{"cluster-removal prod/prod"}},
		{"a cluster goes when its own name stood on it before",
			`cluster prod allow-delete`, ``, nil},
		{"another name doesn't permit it",
			`cluster prod allow-delete-of=test`, ``, []string{"cluster-removal prod/prod"}},
		{"a cluster that is renamed goes",
			`cluster prod`, `cluster production`, []string{"cluster-removal prod/prod"}},
		{"a cluster whose file moves stays",
			`cluster prod`, `cluster prod file=x.yaml`, nil},
	})
}

func TestUnique(t *testing.T) {
	judge(t, []step{
		{"names of clusters", `-`,
			`cluster prod
			 cluster prod endpoint=https://other:6443 id=other file=copy.yaml`,
			[]string{"unique-name prod/prod", "unique-name prod/prod"}},
		{"names of machines in one cluster", `-`,
			`cluster prod
			 machine prod/a
			 machine prod/a uuid=bb endpoint=b`,
			[]string{"unique-name prod/a", "unique-name prod/a"}},
		{"machines of two clusters may have one name", `-`,
			`cluster prod
			 cluster test
			 machine prod/a
			 machine test/a`, nil},
		{"two kinds may have one name", `-`,
			`cluster prod
			 machine prod/prod
			 backup prod/prod`, nil},
		{"names of operations", `-`,
			`cluster prod
			 remove prod/a name=x
			 remove prod/b name=x`,
			[]string{"unique-name prod/x", "unique-name prod/x"}},
		{"endpoints, with and without the port", `-`,
			`cluster prod
			 machine prod/a endpoint=10.0.0.1
			 machine prod/b endpoint=10.0.0.1:50000`,
			[]string{"unique-endpoint prod/a", "unique-endpoint prod/b"}},
		{"endpoints in any case, with and without the final dot", `-`,
			`cluster prod
			 machine prod/a endpoint=Node.example.com.
			 machine prod/b endpoint=node.EXAMPLE.com:50000`,
			[]string{"unique-endpoint prod/a", "unique-endpoint prod/b"}},
		{"endpoints that are one IPv6 address", `-`,
			`cluster prod
			 machine prod/a endpoint=fd00::1
			 machine prod/b endpoint=[FD00:0::1]:50000`,
			[]string{"unique-endpoint prod/a", "unique-endpoint prod/b"}},
		{"endpoints across clusters", `-`,
			`cluster prod
			 cluster test
			 machine prod/a endpoint=10.0.0.1
			 machine test/b endpoint=10.0.0.1`,
			[]string{"unique-endpoint prod/a", "unique-endpoint test/b"}},
		{"two ports of one host are two endpoints", `-`,
			`cluster prod
			 machine prod/a endpoint=10.0.0.1
			 machine prod/b endpoint=10.0.0.1:50001`, nil},
		{"a machine's endpoint may be its cluster's", `-`,
			`cluster prod endpoint=https://10.0.0.1:6443
			 machine prod/a endpoint=10.0.0.1:6443`, nil},
		{"endpoints of clusters", `-`,
			`cluster prod endpoint=https://k8s.example.com
			 cluster test endpoint=https://K8S.example.com:443`,
			[]string{"unique-endpoint prod/prod", "unique-endpoint test/test"}},
		{"uuids across clusters, in any case", `-`,
			`cluster prod
			 cluster test
			 machine prod/a uuid=4c4c4544-AA
			 machine test/b uuid=4C4C4544-aa`,
			[]string{"unique-uuid prod/a", "unique-uuid test/b"}},
		{"hostnames within a cluster, in any case", `-`,
			`cluster prod
			 machine prod/a hostname=node
			 machine prod/b hostname=NODE`,
			[]string{"unique-hostname prod/a", "unique-hostname prod/b"}},
		{"hostnames of two clusters may be equal", `-`,
			`cluster prod
			 cluster test
			 machine prod/a hostname=node
			 machine test/b hostname=node`, nil},
		{"machines without a hostname have none in common", `-`,
			`cluster prod
			 machine prod/a
			 machine prod/b`, nil},
		{"prefixes of one bucket", `-`,
			`cluster prod
			 cluster test
			 backup prod/hourly prefix=x
			 backup test/hourly prefix=/x/ endpoint=https://S3.example.com:443`,
			[]string{"unique-prefix prod/hourly", "unique-prefix test/hourly"}},
		{"one prefix in two buckets", `-`,
			`cluster prod
			 backup prod/a prefix=x bucket=one
			 backup prod/b prefix=x bucket=two`, nil},
		{"ids of clusters", `-`,
			`cluster prod id=1f3a9c0d2b4e6f78
			 cluster test id=1f3a9c0d2b4e6f78`,
			[]string{"unique-cluster-id prod/prod", "unique-cluster-id test/test"}},
		{"a newcomer is wrong, not who had it before",
			`cluster prod
			 machine prod/a endpoint=10.0.0.1`,
			`cluster prod
			 machine prod/a endpoint=10.0.0.1
			 cluster test
			 machine test/b endpoint=10.0.0.1`,
			[]string{"unique-endpoint test/b"}},
		{"two who had it before are both wrong",
			`cluster prod
			 machine prod/a endpoint=10.0.0.1
			 machine prod/b endpoint=10.0.0.1`,
			`cluster prod
			 machine prod/a endpoint=10.0.0.1
			 machine prod/b endpoint=10.0.0.1`,
			[]string{"unique-endpoint prod/a", "unique-endpoint prod/b"}},
		{"an endpoint that passes from one to another in one change is free",
			`cluster prod
			 machine prod/a endpoint=10.0.0.1
			 machine prod/b endpoint=10.0.0.2`,
			`cluster prod
			 machine prod/a endpoint=10.0.0.3
			 machine prod/b endpoint=10.0.0.1`, nil},
	})
}

func TestReferences(t *testing.T) {
	judge(t, []step{
		{"a machine of no cluster", `-`, `machine prod/a file=machines/a.yaml`, []string{"cluster-exists prod/a"}},
		{"a backup of no cluster", `-`, `backup prod/a`, []string{"cluster-exists prod/a"}},
		{"a new operation for no cluster", ``, `remove prod/a`, []string{"cluster-exists prod/remove-a"}},
		{"an old operation for a cluster that went", `remove prod/a`, `remove prod/a`, nil},
		{"a patch that isn't there", `-`,
			`cluster prod
			 machine prod/a patch=patches/x.yaml`, []string{"file-exists prod/a"}},
		{"a patch that is there", `-`,
			`cluster prod
			 machine prod/a patch=../../../secrets.age`, nil},
		{"a patch outside of the repository", `-`,
			`cluster prod
			 machine prod/a patch=../../../../secrets.age`, []string{"file-exists prod/a"}},
	})
}

func TestTargets(t *testing.T) {
	operation := func(change func(*schema.OperationSpec)) *schema.TalosOperation {
		o := &schema.TalosOperation{Metadata: schema.ObjectMeta{Name: "op"}, Source: schema.Source{Position: schema.Position{File: "op.yaml"}}}
		o.Spec.ClusterRef = schema.ClusterRef{Name: "prod", ID: "id-of-prod"}
		change(&o.Spec)
		return o
	}
	ref := func(name string) schema.MachineRef {
		return schema.MachineRef{Name: name, UUID: strings.ToUpper(uuidOf("prod", name))}
	}
	node := func(action, name string) *schema.TalosOperation {
		return operation(func(o *schema.OperationSpec) {
			o.Kind, o.Node = schema.OperationNode, &schema.NodeOperation{Action: action, MachineRef: ref(name)}
		})
	}
	for name, c := range map[string]struct {
		op    *schema.TalosOperation
		found bool
	}{
		"a reboot of a machine that is there":  {node("reboot", "a"), true},
		"a reboot of a machine that isn't":     {node("reboot", "b"), false},
		"a removal of a machine that was once": {node("remove", "b"), true},
		"a machine of that uuid under another name": {operation(func(o *schema.OperationSpec) {
			o.Kind, o.Node = schema.OperationNode, &schema.NodeOperation{Action: "reboot", MachineRef: schema.MachineRef{Name: "x", UUID: uuidOf("prod", "a")}}
		}), false},
		"a machine of another cluster": {operation(func(o *schema.OperationSpec) {
			o.Kind, o.Node = schema.OperationNode, &schema.NodeOperation{Action: "reboot", MachineRef: schema.MachineRef{Name: "a", UUID: uuidOf("test", "a")}}
		}), false},
		"an adoption of a machine that is there": {operation(func(o *schema.OperationSpec) {
			o.Kind, o.Adopt = schema.OperationAdopt, &schema.MachineOperation{MachineRef: ref("a")}
		}), true},
		"an adoption of one that isn't": {operation(func(o *schema.OperationSpec) {
			o.Kind, o.Adopt = schema.OperationAdopt, &schema.MachineOperation{MachineRef: ref("b")}
		}), false},
		"a bootstrap of one that isn't": {operation(func(o *schema.OperationSpec) {
			o.Kind, o.Bootstrap = schema.OperationBootstrap, &schema.BootstrapOperation{MachineRef: ref("b")}
		}), false},
		"a backup that is there": {operation(func(o *schema.OperationSpec) {
			o.Kind, o.EtcdBackup = schema.OperationEtcdBackup, &schema.EtcdBackupOperation{BackupRef: schema.NameRef{Name: "hourly"}}
		}), true},
		"a backup that isn't": {operation(func(o *schema.OperationSpec) {
			o.Kind, o.EtcdBackup = schema.OperationEtcdBackup, &schema.EtcdBackupOperation{BackupRef: schema.NameRef{Name: "daily"}}
		}), false},
		"a restore of one that isn't": {operation(func(o *schema.OperationSpec) {
			o.Kind, o.EtcdRestore = schema.OperationEtcdRestore, &schema.RestoreOperation{BackupRef: schema.NameRef{Name: "daily"}, LocalDataLoss: "accepted"}
		}), false},
		"a cancel names no machine": {operation(func(o *schema.OperationSpec) {
			o.Kind, o.Cancel = schema.OperationCancel, &schema.CancelOperation{Operation: "x"}
		}), true},
	} {
		t.Run(name, func(t *testing.T) {
			engine, err := New()
			require.NoError(t, err)
			fleet := func() *schema.Fleet {
				return fleetOf(t, `cluster prod
					cluster test
					machine prod/a approved
					machine test/a
					backup prod/hourly`)
			}
			proposed := fleet()
			proposed.Operations = append(proposed.Operations, c.op)
			var got []string
			for _, f := range engine.Check(fleet(), proposed, Without(RuleNotYet)) {
				got = append(got, f.Rule)
			}
			if c.found {
				require.Empty(t, got)
			} else {
				require.Equal(t, []string{"target-exists"}, got)
			}
			require.Empty(t, engine.Check(proposed, proposed, Without(RuleNotYet)), "an operation that is there already may have done its work")
		})
	}
}

func TestNothingOfARolloutIsPassedOver(t *testing.T) {
	engine, err := New()
	require.NoError(t, err)
	require.Empty(t, engine.Check(nil, fleetOf(t, `cluster prod reboots=window window=0_2_*_*_SAT
		backup prod/hourly`)))
	require.Empty(t, engine.Check(nil, fleetOf(t, `cluster prod reboots=automatic`)))
}
