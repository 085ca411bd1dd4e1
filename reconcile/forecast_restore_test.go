package reconcile

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/backup"
	"ichor.maesh.dev/backup/keyspace"
	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/talos"
)

// TestARestoreIsForecastAsItIsBegun holds what is said beforehand to what the agent decides it by.
func TestARestoreIsForecastAsItIsBegun(t *testing.T) {
	deaf := func(s situation) {
		for _, name := range []string{"cp-1", "cp-2", "cp-3"} {
			s.change(name, func(seen *Seen) { seen.Etcd.Members = nil })
		}
	}
	for name, test := range map[string]struct {
		change               func(s situation, spec *schema.RestoreOperation)
		on                   string
		target, holder, full string
		wiped                []string
		refuse               string
	}{
		"etcd is healthy":          {func(situation, *schema.RestoreOperation) {}, "", "cp-1", "cp-2", "", []string{"cp-2"}, ""},
		"the agent runs on cp-3":   {func(situation, *schema.RestoreOperation) {}, "cp-3", "cp-3", "cp-2", "", []string{"cp-2"}, ""},
		"etcd gives no answer":     {func(s situation, _ *schema.RestoreOperation) { deaf(s) }, "", "cp-1", "", "no control plane gave a member list", []string{"cp-1", "cp-2", "cp-3"}, ""},
		"the agent would be wiped": {func(s situation, _ *schema.RestoreOperation) { deaf(s) }, "cp-1", "cp-2", "", "no control plane gave", []string{"cp-1", "cp-2", "cp-3"}, "ichor restore --recover-cluster"},
		"one gives no answer":      {func(s situation, _ *schema.RestoreOperation) { s.silence("cp-3") }, "", "", "", "", nil, "sign it into without if it is off for good"},
		"one is another machine":   {func(_ situation, spec *schema.RestoreOperation) { spec.ControlPlanes["cp-3"] = "other" }, "", "", "", "", nil, "cp-3 with the UUID other"},
		"local data is asked elsewhere": {func(s situation, _ *schema.RestoreOperation) { s.in.Cluster.Object.Spec.ControlPlane.Schedulable = nil }, "", "cp-1", "cp-2", "",
			[]string{"cp-2"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := restorable()
			test.change(s, s.spec.EtcdRestore)
			in := *s.in
			in.State, in.NodeName = s.next, test.on
			forecast := forecastRestore(in, *s.spec.EtcdRestore)
			require.Equal(t, []string{test.target, test.holder}, []string{forecast.Target, forecast.Holder})
			require.Equal(t, test.wiped, forecast.Wiped)
			require.Contains(t, forecast.Full, test.full)
			require.Equal(t, test.full == "", forecast.Full == "")
			require.Equal(t, test.refuse == "", forecast.Refuse == "", forecast.Refuse)
			require.Contains(t, forecast.Refuse, test.refuse)
			require.NotContains(t, forecast.Refuse, nothingChanged)
		})
	}
}

func TestThePlanOfARestoreSaysWhatIsLostAndTheWayOut(t *testing.T) {
	s := restorable()
	cluster := s.in.Cluster
	takes := true
	cluster.Object.Spec.ControlPlane.Schedulable = &takes
	worker := &schema.TalosMachine{Metadata: schema.ObjectMeta{Name: "w-2"}}
	worker.Spec.Role, worker.Spec.Approved = schema.RoleWorker, true
	cluster.Machines = append(cluster.Machines, worker)
	taken := time.Date(2026, 11, 29, 10, 0, 0, 0, time.UTC)
	listed := &backup.Snapshot{Name: "etcd-20261129T100000Z.snapshot.age", Time: taken, Size: 5 << 20, Revision: 4711, Member: "cp-3",
		Drill: &backup.DrillResult{At: taken.Add(time.Hour), Passed: true, Keys: 12}}
	known := RestoreKnown{Now: taken.Add(26 * time.Hour), Snapshot: listed, Newer: 2, Seen: s.in.Seen, RecoverFlags: "--fleet . --state s3://ichor/prod",
		Opened: &keyspace.Counts{Revision: 4711, Keys: 12, Resources: map[string]int64{"nodes": 4, "pods": 3}, Nodes: []string{"cp-1", "cp-2", "cp-3", "w-1"}},
		Inside: []string{"the state is kept inside"}}
	op := &schema.TalosOperation{Metadata: schema.ObjectMeta{Name: "op"}, Spec: s.spec}
	op.Spec.Kind, op.Spec.ClusterRef.Name = schema.OperationEtcdRestore, "prod"
	plan := DescribeRestore(cluster, s.next, op, known)
	text := strings.Join(append(append(append(append([]string{}, plan.Restores...), plan.Steps...), plan.Lost...), plan.Warnings...), "\n")
	for _, want := range []string{"taken 2026-11-29T10:00:00Z, 26h00m ago; 5.0 MiB; etcd's revision 4711; taken from cp-3", "a drill restored it at 2026-11-29T11:00:00Z: 12 keys",
		"it is not the newest: 2 listed snapshots are newer", "12 keys, among them 4 nodes, 3 pods", "it goes gently, because etcd is healthy with 3 members: cp-1, cp-3 go out of etcd",
		"cp-2 is reset", "cp-1 gets the snapshot", "cp-3 is rebooted for it", "expect 8 to 14 minutes", "since 2026-11-29T10:00:00Z (26h00m)", "what pods keep on cp-2: local and hostPath volumes",
		"of machines that joined since, what Kubernetes knows: w-2", "the Nodes of machines that left since come back, not Ready: w-1", "the state is kept inside"} {
		require.Contains(t, text, want)
	}
	require.Equal(t, "ichor restore --recover-cluster --cluster prod --backup hourly --snapshot etcd-20261129T100000Z.snapshot.age --fleet . --state s3://ichor/prod", plan.WayOut)
	require.Len(t, plan.Blockers, 1)
	require.Contains(t, plan.Blockers[0], "--local-data-loss accepted")

	// The only control plane carries the agent: it is refused with the command, since nobody would be left to go on.
	op.Spec.EtcdRestore.LocalDataLoss = "accepted"
	require.Empty(t, DescribeRestore(cluster, s.next, op, known).Blockers)
	s.next.AgentOn = "cp-1"
	deaf := map[string]Seen{}
	for name, seen := range s.in.Seen {
		seen.Etcd.Members = nil
		deaf[name] = seen
	}
	known.Seen = deaf
	plan = DescribeRestore(cluster, s.next, op, known)
	require.Len(t, plan.Blockers, 1)
	require.Contains(t, plan.Blockers[0], "this agent runs on cp-1")
	require.Contains(t, plan.Blockers[0], "ichor restore --recover-cluster --cluster prod")

	// What can't be known is said, and doesn't block; what the index doesn't vouch for does.
	known.Seen, known.NotAsked, known.Opened, known.NotOpened, known.Snapshot, known.Unlisted = nil, "no control plane answers this machine", nil, "--no-fetch", nil, "there is no index"
	plan = DescribeRestore(cluster, nil, op, known)
	require.Len(t, plan.Blockers, 1)
	require.Contains(t, plan.Blockers[0], "--accept-unlisted")
	text = strings.Join(append(plan.Restores, plan.Warnings...), "\n")
	require.Contains(t, text, "it was not opened here (--no-fetch)")
	require.Contains(t, text, "decided when it begins (no control plane answers this machine)")
}

func TestThePlanOfARestoreNamesTheControlPlanesThatDidNotTellAll(t *testing.T) {
	const silent, partly = "decided without an answer of cp-3", "decided on a part of cp-3's answer (reading its services: no answer in time)"
	for name, test := range map[string]struct {
		change    func(*Seen)
		want, not string
	}{
		"all told all":          {func(*Seen) {}, "", "decided"},
		"one gave no answer":    {func(seen *Seen) { *seen = Seen{Observation: talos.Observation{Problem: "no answer in time"}} }, silent + " (no answer in time)", "part of"},
		"one gave no reason":    {func(seen *Seen) { *seen = Seen{} }, silent + " (no answer)", "part of"},
		"one gave a part of it": {func(seen *Seen) { seen.Problem = "reading its services: no answer in time" }, partly, "without an answer"},
	} {
		t.Run(name, func(t *testing.T) {
			s := restorable()
			s.change("cp-3", test.change)
			op := &schema.TalosOperation{Metadata: schema.ObjectMeta{Name: "op"}, Spec: s.spec}
			op.Spec.Kind, op.Spec.ClusterRef.Name = schema.OperationEtcdRestore, "prod"
			warnings := strings.Join(DescribeRestore(s.in.Cluster, s.next, op, RestoreKnown{Now: s.in.Now, Seen: s.in.Seen}).Warnings, "\n")
			require.Contains(t, warnings, test.want)
			require.NotContains(t, strings.ReplaceAll(warnings, "which of the two ways it takes is decided when", ""), test.not)
		})
	}
}

// A worker that was broken into says that it is called like the agent's node, or has its address.
func TestAMachinesOwnWordDoesNotHideTheOneThatTheAgentRunsOn(t *testing.T) {
	liar := func(s situation, say func(*talos.Observation)) {
		m := s.in.Cluster.Machines[0]
		worker := *m
		worker.Metadata.Name, worker.Spec.Role, worker.Spec.Endpoint, worker.Spec.UUID, worker.Spec.Hostname = "a-worker", schema.RoleWorker, "10.0.0.99", "uuid-of-the-worker", ""
		s.in.Cluster.Machines = append([]*schema.TalosMachine{&worker}, s.in.Cluster.Machines...)
		seen := Seen{Observation: talos.Observation{UUID: worker.Spec.UUID, Mode: talos.ModeConfigured}}
		say(&seen.Observation)
		s.in.Seen["a-worker"] = seen
	}
	for name, c := range map[string]struct {
		node      string
		addresses []string
		say       func(*talos.Observation)
		want      string
	}{
		"it takes the name that Git gives another": {"cp-2", nil, func(o *talos.Observation) { o.Hostname = "cp-2" }, "cp-2"},
		"it takes the address that Git gives":      {"", []string{"10.0.0.12"}, func(o *talos.Observation) { o.Addresses = []string{"10.0.0.12"} }, "cp-2"},
		"it takes the name that another reports":   {"talos-x", nil, func(o *talos.Observation) { o.Hostname = "talos-x" }, "cp-3"},
		"it shows another UUID":                    {"talos-y", nil, func(o *talos.Observation) { o.Hostname, o.UUID = "talos-y", "another" }, ""},
		"it is the one":                            {"talos-z", nil, func(o *talos.Observation) { o.Hostname = "talos-z" }, "a-worker"},
	} {
		t.Run(name, func(t *testing.T) {
			s := restorable()
			cp3 := s.in.Seen["cp-3"]
			cp3.Hostname = "talos-x"
			s.in.Seen["cp-3"] = cp3
			liar(s, c.say)
			s.in.NodeName, s.in.LocalAddresses = c.node, c.addresses
			require.Equal(t, c.want, ownMachine(s.in))
		})
	}
}

func TestTheMachineThatTheAgentRunsOnIsRememberedWhileItIsAway(t *testing.T) {
	s := restorable()
	s.in.NodeName = "cp-2"
	require.Equal(t, "cp-2", Decide(*s.in).Next.AgentOn)
	in := *s.in
	in.NodeName, in.State = "", &statefile.State{AgentOn: "cp-2"}
	require.Empty(t, Decide(in).Next.AgentOn, "it answers, and the agent that looks now runs elsewhere")
	in.Seen = map[string]Seen{"cp-2": {Observation: talos.Observation{Problem: "connection refused"}}}
	require.Equal(t, "cp-2", Decide(in).Next.AgentOn)
}
