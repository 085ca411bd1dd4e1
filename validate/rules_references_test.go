package validate

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/schema"
)

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
