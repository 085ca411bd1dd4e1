package validate

import (
	"strings"
	"testing"
)

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
