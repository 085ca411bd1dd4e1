package reconcile

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/talos"
)

// threeVoters is an etcd of three joined control planes.
func threeVoters() etcdView {
	v := etcdView{known: true, source: "cp-1", machine: map[uint64]string{}, member: map[string]talos.EtcdMember{}, joined: map[string]bool{}}
	for n, name := range []string{"cp-1", "cp-2", "cp-3"} {
		m := talos.EtcdMember{ID: uint64(n + 1), Name: name}
		v.members = append(v.members, m)
		v.machine[m.ID], v.member[name], v.joined[name] = name, m, true
	}
	return v
}

func allowed(kind ActionKind) attempt {
	cluster := &schema.TalosCluster{Metadata: schema.ObjectMeta{Name: "prod"}}
	cluster.Spec.ID = "1f3a9c0d2b4e6f78"
	a := attempt{
		action: Action{Kind: kind, Machine: "cp-2", UUID: "u2", Boot: "b2", Lock: "joins"}, cluster: cluster, bundleID: "1f3a9c0d2b4e6f78",
		declared: "U2", uuid: "u2", boot: "b2", facts: map[string]string{}, leaseAge: time.Second, leaseHeld: true, hasDeadline: true,
		state: &statefile.State{Origin: statefile.OriginNew, Bootstrap: &statefile.BootstrapRecord{Machine: "cp-1", UUID: "u1", Done: time.Unix(1, 0)}},
		etcd:  threeVoters(),
	}
	a.action.Facts = map[string]string{}
	for _, key := range neededFacts(Action{Kind: kind, Lock: "joins"}) {
		a.action.Facts[key], a.facts[key] = "absent", "absent"
	}
	switch kind {
	case ActReset:
		a.partitions = []wipe{{"EPHEMERAL", true}}
	case ActBootstrap:
		a.action.Lock = "bootstrap"
		a.state.Bootstrap = nil
		a.etcd = etcdView{}
	case ActFirstConfig, ActTry, ActConfirm, ActStage:
		a.action.Lock, a.mode = "", talos.ApplyNoReboot
	case ActRemoveMember:
		a.action.Via, a.action.Member = "cp-1", 2
	}
	return a
}

func TestTheGateLetsThroughWhatNothingSpeaksAgainst(t *testing.T) {
	for _, kind := range []ActionKind{ActFirstConfig, ActTry, ActConfirm, ActStage, ActBootstrap, ActRemoveMember, ActReset, ActReboot} {
		require.NoError(t, refuse(allowed(kind)), kind)
	}
}

func TestAFirstConfigAndTheEndOfACordonWaitForNoLockOfTheAgentsOwnActs(t *testing.T) {
	for _, kind := range []ActionKind{ActFirstConfig, ActUncordon, ActCordon, ActReboot} {
		a := allowed(kind)
		a.action.Lock = ""
		a.state.Lock = &statefile.Lock{Holder: operationLock("0123456789abcdef"), Reason: "reboot of w-1"}
		harmless := kind == ActFirstConfig || kind == ActUncordon
		require.Equal(t, harmless, refuseLease(a) == "", "%s: %s", kind, refuseLease(a))
		a.state.Lock.Holder = "restore"
		require.NotEmpty(t, refuseLease(a), "%s while somebody else has the cluster", kind)
	}
}

func TestTheGateRefuses(t *testing.T) {
	for _, test := range []struct {
		name   string
		kind   ActionKind
		change func(*attempt)
		says   string
	}{
		{"a destructive call without the lease", ActReset, func(a *attempt) { a.leaseHeld = false }, "lease of this cluster's shard is not held"},
		{"a call under a lease of ten seconds", ActReboot, func(a *attempt) { a.leaseAge = 10 * time.Second }, "last renewed 10s ago"},
		{"a destructive call without the lock", ActReset, func(a *attempt) { a.action.Lock = "" }, "needs the cluster lock"},
		{"a call while another holds the lock", ActReboot, func(a *attempt) {
			a.state.Lock = &statefile.Lock{Holder: "operation x", Reason: "restore"}
		}, "held by operation x (restore)"},
		{"a call while the end of another isn't known", ActTry, func(a *attempt) {
			a.state.Intent = &statefile.Intent{Action: "reboot", Machine: "cp-3"}
		}, "what became of reboot on cp-3"},
		{"a second bootstrap", ActBootstrap, func(a *attempt) {
			a.state.Bootstrap = &statefile.BootstrapRecord{Machine: "cp-2", UUID: "u2", Done: time.Unix(1, 0)}
		}, "was bootstrapped on cp-2 at 1970-01-01T00:00:01Z"},
		{"a bootstrap of another machine than the one begun", ActBootstrap, func(a *attempt) {
			a.state.Bootstrap = &statefile.BootstrapRecord{Machine: "cp-1", UUID: "u1"}
		}, "a bootstrap of cp-1 (u1) was begun"},
		{"a bootstrap of another machine under the same name", ActBootstrap, func(a *attempt) {
			a.state.Bootstrap = &statefile.BootstrapRecord{Machine: "cp-2", UUID: "another"}
		}, "a bootstrap of cp-2 (another) was begun"},
		{"a bootstrap beside an etcd that answers", ActBootstrap, func(a *attempt) { a.etcd = threeVoters() }, "the etcd of cp-1 answers with 3 members"},
		{"a bootstrap where the past isn't known", ActBootstrap, func(a *attempt) { a.state.Origin = statefile.OriginLost }, "doesn't know the cluster's past"},
		{"a reboot that leaves one of three", ActReboot, func(a *attempt) { a.etcd.joined["cp-3"] = false }, "2 of 3 etcd members are healthy; without cp-2 there would be 1, quorum is 2"},
		{"a reset that leaves one of three", ActReset, func(a *attempt) { a.etcd.joined["cp-3"] = false }, "2 of 3 etcd members are healthy; without cp-2 there would be 1, quorum is 2"},
		{"a reboot of one of two", ActReboot, func(a *attempt) { a.etcd.members = a.etcd.members[:2] }, "2 of 2 etcd members are healthy; without cp-2 there would be 1, quorum is 2"},
		{"a reset of the only member", ActReset, func(a *attempt) { a.etcd.members = a.etcd.members[1:2] }, "its data would be lost for good"},
		{"a removal that leaves one healthy voter of two", ActRemoveMember, func(a *attempt) { a.etcd.joined["cp-3"] = false }, "2 of 3 etcd members are healthy; without member 2 there would be 1 of 2, quorum is 2"},
		{"a removal of the last member", ActRemoveMember, func(a *attempt) { a.etcd.members = a.etcd.members[1:2] }, "without member 2 there would be 0 of 0"},
		{"a removal of what is no member", ActRemoveMember, func(a *attempt) { a.action.Member = 99 }, "member 63 is not in etcd's list"},
		{"a reset while etcd gives no list", ActReset, func(a *attempt) { a.etcd = etcdView{} }, "quorum is not known"},
		{"another machine's UUID", ActFirstConfig, func(a *attempt) { a.uuid = "someone" }, "has the UUID someone, and cp-2 is declared as U2"},
		{"a machine without a readable UUID", ActFirstConfig, func(a *attempt) { a.uuid = "" }, "has the UUID (unreadable)"},
		{"another boot", ActReset, func(a *attempt) { a.boot = "b3" }, "shows boot b3 and this was decided for boot b2"},
		{"an unreadable boot", ActReset, func(a *attempt) { a.boot, a.action.Boot = "", "" }, "shows boot (unreadable)"},
		{"a fact that changed", ActReset, func(a *attempt) {
			a.action.Facts, a.facts = map[string]string{"data": "present"}, map[string]string{"data": "absent"}
		}, "data is absent now and was present"},
		{"a fact that is unknown", ActBootstrap, func(a *attempt) {
			a.action.Facts, a.facts = map[string]string{"data": "absent"}, map[string]string{"data": "unknown"}
		}, "data is unknown now and was absent"},
		{"a bootstrap without a look for data", ActBootstrap, func(a *attempt) { a.action.Facts = nil }, "decided without a look at its data"},
		{"a bootstrap decided beside data", ActBootstrap, func(a *attempt) {
			a.action.Facts, a.facts = map[string]string{"data": "present"}, map[string]string{"data": "present"}
		}, "while the machine held etcd data"},
		{"a bootstrap against a guard", ActBootstrap, func(a *attempt) { a.against = "cp-3 holds etcd data" }, "cp-3 holds etcd data"},
		{"a removal without a look at the member", ActRemoveMember, func(a *attempt) { a.action.Facts = nil }, "decided without a look at its member"},
		{"a reset while two etcds answer", ActReset, func(a *attempt) { a.etcd.split = "cp-1 and cp-3 are in two" }, "cp-1 and cp-3 are in two"},
		{"a reset without partitions", ActReset, func(a *attempt) { a.partitions = nil }, "wipes the whole disk"},
		{"a reset with a partition that isn't wiped", ActReset, func(a *attempt) {
			a.partitions = append(a.partitions, wipe{"STATE", false})
		}, "partition STATE bears wipe: false"},
		{"an ApplyConfiguration without a mode", ActTry, func(a *attempt) { a.mode = "" }, `mode "" may reboot the machine`},
		{"an ApplyConfiguration with AUTO", ActTry, func(a *attempt) { a.mode = "AUTO" }, `mode "AUTO" may reboot the machine`},
		{"a call through nodes metadata", ActReboot, func(a *attempt) { a.routed = "nodes" }, `bears "nodes" metadata`},
		{"a call without a deadline", ActReboot, func(a *attempt) { a.hasDeadline = false }, "it has no deadline"},
		{"a bundle of another cluster", ActTry, func(a *attempt) { a.bundleID = "ffff" }, "is of cluster ID ffff and spec.id of prod is 1f3a9c0d2b4e6f78"},
		{"a state of another cluster", ActTry, func(a *attempt) { a.state.Cluster.ID = "eeee" }, "the state is of cluster ID eeee"},
	} {
		t.Run(test.name, func(t *testing.T) {
			a := allowed(test.kind)
			test.change(&a)
			err := refuse(a)
			require.ErrorIs(t, err, errRefused)
			require.ErrorContains(t, err, test.says)
		})
	}
}

func TestTheOnlyMemberMayBeRebooted(t *testing.T) {
	a := allowed(ActReboot)
	a.etcd.members = a.etcd.members[1:2]
	require.NoError(t, refuse(a))
}

func TestALearnerMayBeRemovedWhateverTheQuorum(t *testing.T) {
	a := allowed(ActRemoveMember)
	a.etcd.members[1].Learner = true
	a.etcd.joined["cp-2"], a.etcd.joined["cp-3"] = false, false
	require.NoError(t, refuse(a))
}
