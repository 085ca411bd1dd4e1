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
