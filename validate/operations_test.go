package validate

import (
	"crypto/ed25519"
	"crypto/rand"
	"fmt"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"

	"ichor.maesh.dev/operation"
	"ichor.maesh.dev/schema"
)

// operationOf makes an operation on prod; its file is what its spec says.
func operationOf(name string, kind schema.OperationKind, change func(*schema.OperationSpec)) *schema.TalosOperation {
	o := &schema.TalosOperation{
		APIVersion: schema.APIVersion, Kind: schema.KindOperation, Metadata: schema.ObjectMeta{Name: name},
		Source: schema.Source{Position: schema.Position{File: "operations/" + name + ".yaml", Line: 1, Column: 1}},
	}
	o.Spec.ClusterRef = schema.ClusterRef{Name: "prod", ID: "1f3a9c0d2b4e6f78"}
	o.Spec.Kind = kind
	o.Spec.CreatedAt, o.Spec.ExpiresAt = morning, morning.Add(24*time.Hour)
	change(&o.Spec)
	o.Raw = fmt.Appendf(nil, "%s %+v", name, o.Spec)
	return o
}

func nodeOf(action, machine string) *schema.TalosOperation {
	return operationOf(action+"-"+machine, schema.OperationNode, func(s *schema.OperationSpec) {
		s.Node = &schema.NodeOperation{Action: action, MachineRef: schema.MachineRef{Name: machine, UUID: uuidOf("prod", machine)}}
	})
}

func restoreOf(localDataLoss string, controlPlanes, without []string) *schema.TalosOperation {
	uuids := func(names []string) map[string]string {
		of := map[string]string{}
		for _, name := range names {
			of[name] = uuidOf("prod", name)
		}
		return of
	}
	return operationOf("restore", schema.OperationEtcdRestore, func(s *schema.OperationSpec) {
		s.EtcdRestore = &schema.RestoreOperation{BackupRef: schema.NameRef{Name: "hourly"}, LocalDataLoss: localDataLoss,
			ControlPlanes: uuids(controlPlanes), Without: uuids(without)}
	})
}

const fleetOfThree = `cluster prod id=1f3a9c0d2b4e6f78 schedulable=false
	machine prod/cp-1 controlplane approved
	machine prod/cp-2 controlplane approved
	machine prod/cp-3 controlplane approved
	machine prod/w-1 worker approved
	machine prod/w-2 worker approved
	backup prod/hourly`

func TestWhatTheRepositoryKnowsOfANewOperation(t *testing.T) {
	paused := func(of *schema.ObjectMeta) {
		of.Annotations = map[string]string{schema.AnnotationPaused: "moving racks"}
	}
	one := strings.NewReplacer("machine prod/cp-2 controlplane approved", "", "machine prod/cp-3 controlplane approved", "").Replace(fleetOfThree)
	three := []string{"cp-1", "cp-2", "cp-3"}
	engine, err := New()
	require.NoError(t, err)
	target := func(o *schema.TalosOperation, name, uuid string) *schema.TalosOperation {
		o.Spec.Node.MachineRef = schema.MachineRef{Name: name, UUID: uuid}
		return o
	}
	for _, c := range []struct {
		name, fleet string
		op          *schema.TalosOperation
		change      func(*schema.Fleet)
		want        string
	}{
		{"a reboot of a worker", fleetOfThree, nodeOf("reboot", "w-1"), nil, ""},
		{"a reboot of a control plane", fleetOfThree, nodeOf("reboot", "cp-1"), nil, ""},
		{"a reboot of the only control plane", one, nodeOf("reboot", "cp-1"), nil, ""},
		{"a file called otherwise", fleetOfThree, nodeOf("reboot", "w-1"), func(f *schema.Fleet) { f.Operations[0].Source.File = "operations/reboot.yaml" }, "operation-file"},
		{"a file whose name ends like it", fleetOfThree, nodeOf("reboot", "w-1"), func(f *schema.Fleet) { f.Operations[0].Source.File = "operations/a-reboot-w-1.yaml" }, "operation-file"},
		{"a file in another folder", fleetOfThree, nodeOf("reboot", "w-1"), func(f *schema.Fleet) { f.Operations[0].Source.File = "reboot-w-1.yaml" }, ""},
		{"another cluster's ID", fleetOfThree, nodeOf("reboot", "w-1"), func(f *schema.Fleet) { f.Operations[0].Spec.ClusterRef.ID = "0000000000000000" }, "operation-cluster-id"},
		{"a machine that isn't approved", fleetOfThree, nodeOf("reboot", "w-1"), func(f *schema.Fleet) { f.Machines[3].Spec.Approved = false }, "target-approved"},
		{"the removal of a machine that isn't approved", fleetOfThree, nodeOf("remove", "w-1"), func(f *schema.Fleet) { f.Machines[3].Spec.Approved = false }, ""},
		{"the adoption of a machine that isn't approved", fleetOfThree, operationOf("adopt", schema.OperationAdopt, func(s *schema.OperationSpec) {
			s.Adopt = &schema.MachineOperation{MachineRef: schema.MachineRef{Name: "w-1", UUID: uuidOf("prod", "w-1")}}
		}), func(f *schema.Fleet) { f.Machines[3].Spec.Approved = false }, "target-approved"},
		{"a machine that is paused", fleetOfThree, nodeOf("reboot", "w-1"), func(f *schema.Fleet) { paused(&f.Machines[3].Metadata) }, "target-paused"},
		{"a cluster that is paused", fleetOfThree, nodeOf("reboot", "w-1"), func(f *schema.Fleet) { paused(&f.Clusters[0].Metadata) }, "target-paused"},
		{"a backup of a cluster that is paused", fleetOfThree, operationOf("backup", schema.OperationEtcdBackup, func(s *schema.OperationSpec) {
			s.EtcdBackup = &schema.EtcdBackupOperation{BackupRef: schema.NameRef{Name: "hourly"}}
		}), func(f *schema.Fleet) { paused(&f.Clusters[0].Metadata) }, ""},
		{"another machine that is paused", fleetOfThree, nodeOf("reboot", "w-1"), func(f *schema.Fleet) { paused(&f.Machines[4].Metadata) }, ""},
		{"a defragmentation of a worker", fleetOfThree, nodeOf("etcd-defrag", "w-1"), nil, "etcd-on-control-planes"},
		{"a hand-over by a worker", fleetOfThree, nodeOf("etcd-forfeit-leadership", "w-1"), nil, "etcd-on-control-planes"},
		{"a bootstrap of a worker", fleetOfThree, operationOf("bootstrap", schema.OperationBootstrap, func(s *schema.OperationSpec) {
			s.Bootstrap = &schema.BootstrapOperation{MachineRef: schema.MachineRef{Name: "w-1", UUID: uuidOf("prod", "w-1")}, Confirm: "prod"}
		}), nil, "etcd-on-control-planes"},
		{"a defragmentation of a control plane", fleetOfThree, nodeOf("etcd-defrag", "cp-1"), nil, ""},
		{"a restart of the kubelet of a worker", fleetOfThree, nodeOf("restart-service", "w-1"), nil, ""},
		{"a reboot of the only worker", fleetOfThree, nodeOf("reboot", "w-1"), func(f *schema.Fleet) { f.Machines = f.Machines[:4] }, "last-schedulable"},
		{"a shutdown of the only approved worker", fleetOfThree, nodeOf("shutdown", "w-1"), func(f *schema.Fleet) { f.Machines[4].Spec.Approved = false }, "last-schedulable"},
		{"a restart of the kubelet of the only worker", fleetOfThree, nodeOf("restart-service", "w-1"), func(f *schema.Fleet) { f.Machines[4].Spec.Approved = false }, ""},
		{"a removal that leaves too few", fleetOfThree, nodeOf("remove", "cp-1"), nil, "control-plane-count"},
		{"the last control plane's removal in a cluster that should have three", one, nodeOf("remove", "cp-1"), nil, "last-control-plane"},
		{"the removal of the one control plane that there should be", strings.Replace(one, "id=", "count=1 id=", 1), nodeOf("remove", "cp-1"), nil, "control-plane-count"},
		{"its removal when it may be deleted", strings.Replace(one, "cp-1 controlplane approved", "cp-1 controlplane approved allow-delete", 1), nodeOf("remove", "cp-1"), nil, "last-control-plane"},
		{"the last control plane's removal when it is gone", one, nodeOf("remove", "cp-1"), func(f *schema.Fleet) { f.Operations[0].Spec.Node.Gone = true }, "last-control-plane"},
		{"the removal of a machine that only history knows", fleetOfThree, nodeOf("remove", "w-9"), nil, ""},
		{"a removal under another's name", fleetOfThree, target(nodeOf("remove", "w-1"), "w-2", uuidOf("prod", "w-1")), nil, "target-exists"},
		{"a removal under another's UUID", fleetOfThree, target(nodeOf("remove", "w-1"), "w-9", uuidOf("prod", "w-1")), nil, "target-exists"},
		{"a removal of a name with a UUID that nobody has", fleetOfThree, target(nodeOf("remove", "w-1"), "w-1", uuidOf("prod", "x")), nil, "target-exists"},

		{"a restore of all control planes", fleetOfThree, restoreOf("", three, nil), nil, ""},
		{"a restore without one that is off", fleetOfThree, restoreOf("", three[:2], three[2:]), nil, ""},
		{"a restore that forgets one", fleetOfThree, restoreOf("", three[:2], nil), nil, "restore-control-planes"},
		{"a restore that names a worker", fleetOfThree, restoreOf("", append(three[:2:2], "w-1"), nil), nil, "restore-control-planes"},
		{"a restore that names one too many", fleetOfThree, restoreOf("", append(three[:3:3], "w-1"), nil), nil, "restore-control-planes"},
		{"a restore with the UUID of a machine before it", fleetOfThree, restoreOf("", three, nil), func(f *schema.Fleet) { f.Operations[0].Spec.EtcdRestore.ControlPlanes["cp-1"] = uuidOf("prod", "x") }, "restore-control-planes"},
		{"a restore of a machine that isn't approved", fleetOfThree, restoreOf("", three, nil), func(f *schema.Fleet) { f.Machines[0].Spec.Approved = false }, "restore-control-planes control-plane-count"},
		{"a restore where workloads run on control planes", strings.Replace(fleetOfThree, " schedulable=false", "", 1), restoreOf("", three, nil), nil, "restore-local-data"},
		{"a restore that says so", strings.Replace(fleetOfThree, " schedulable=false", "", 1), restoreOf("accepted", three, nil), nil, ""},
		{"a restore of a paused cluster", fleetOfThree, restoreOf("", three, nil), func(f *schema.Fleet) { paused(&f.Clusters[0].Metadata) }, "target-paused"},
	} {
		t.Run(c.name, func(t *testing.T) {
			proposed := fleetOf(t, c.fleet)
			op := *c.op
			proposed.Operations = append(proposed.Operations, &op)
			if c.change != nil {
				c.change(proposed)
			}
			var got []string
			for _, f := range engine.Check(fleetOf(t, c.fleet), proposed, Without(RuleNotYet)) {
				require.NotContains(t, f.Message, "could not be judged")
				got = append(got, f.Rule)
			}
			require.ElementsMatch(t, strings.Fields(c.want), got)
			for _, f := range engine.Check(proposed, proposed, Without(RuleNotYet)) {
				require.Equal(t, "operation-file", f.Rule, "an operation that is there already may have done its work")
			}
		})
	}
}

func TestAnOperationNeverChanges(t *testing.T) {
	engine, err := New()
	require.NoError(t, err)
	check := func(old, proposed *schema.Fleet) []string {
		var got []string
		for _, f := range engine.Check(old, proposed, Without(RuleNotYet)) {
			got = append(got, f.Rule)
		}
		return got
	}
	with := func(ops ...*schema.TalosOperation) *schema.Fleet {
		f := fleetOf(t, fleetOfThree+"\ncluster test id=2f3a9c0d2b4e6f78\nmachine test/w-1 approved")
		f.Operations = ops
		return f
	}
	before := nodeOf("reboot", "w-1")
	require.Empty(t, check(with(before), with(before)))
	require.Empty(t, check(with(before), with()), "it may be deleted")
	require.Empty(t, check(with(before), with(before, nodeOf("reboot", "w-2"))), "two at once are allowed")
	require.Equal(t, []string{"unique-name", "unique-name"}, check(with(), with(before, nodeOf("reboot", "w-1"))))

	moved := *before
	moved.Source.File = "clusters/prod/operations/reboot-w-1.yaml"
	require.Empty(t, check(with(before), with(&moved)), "what it says is what counts")

	blank := *before
	blank.Raw = append([]byte("\n"), before.Raw...)
	require.Equal(t, []string{"operation-immutable"}, check(with(before), with(&blank)), "a byte more")

	elsewhere := *nodeOf("reboot", "w-1")
	elsewhere.Spec.ClusterRef = schema.ClusterRef{Name: "test", ID: "2f3a9c0d2b4e6f78"}
	elsewhere.Spec.Node = &schema.NodeOperation{Action: "reboot", MachineRef: schema.MachineRef{Name: "w-1", UUID: uuidOf("test", "w-1")}}
	require.Equal(t, []string{"operation-immutable"}, check(with(before), with(&elsewhere)), "another cluster's in the same file")
}

func TestAResumeOrCancelNamesWhatIsThere(t *testing.T) {
	engine, err := New()
	require.NoError(t, err)
	paused := nodeOf("reboot", "w-1")
	for _, kind := range []schema.OperationKind{schema.OperationResume, schema.OperationCancel} {
		for digest, want := range map[string]string{operation.Digest(paused.Raw): "", operation.Digest(nil): "operation-digest"} {
			op := operationOf(string(kind), kind, func(s *schema.OperationSpec) {
				if kind == schema.OperationResume {
					s.Resume = &schema.ResumeOperation{Operation: paused.Metadata.Name, Digest: digest, Pause: 1}
				} else {
					s.Cancel = &schema.CancelOperation{Operation: paused.Metadata.Name, Digest: digest}
				}
			})
			old, proposed, forgotten := fleetOf(t, fleetOfThree), fleetOf(t, fleetOfThree), fleetOf(t, fleetOfThree)
			old.Operations = []*schema.TalosOperation{paused}
			proposed.Operations = []*schema.TalosOperation{paused, op}
			forgotten.Operations = []*schema.TalosOperation{op}
			var got []string
			for _, f := range engine.Check(old, proposed, Without(RuleNotYet)) {
				got = append(got, f.Rule)
			}
			require.Equal(t, strings.Fields(want), append([]string{}, got...), kind)
			require.Empty(t, engine.Check(old, forgotten, Without(RuleNotYet)), "what it names may be in the state only")
		}
	}
}

func TestTheMessagesAboutOperationsAreTheProgramsOwn(t *testing.T) {
	engine, err := New()
	require.NoError(t, err)
	found := sections(t)
	uuid := "4c4c4544-0039-3510-8052-b4c04f4e3732"
	for rule, change := range map[string]func(*schema.Fleet){
		"operation-file":       func(f *schema.Fleet) { f.Operations[0].Source.File = "operations/reboot.yaml" },
		"operation-cluster-id": func(f *schema.Fleet) { f.Operations[0].Spec.ClusterRef.ID = "0000000000000000" },
		"target-approved":      func(f *schema.Fleet) { f.Machines[3].Spec.Approved = false },
		"target-paused": func(f *schema.Fleet) {
			f.Machines[3].Metadata.Annotations = map[string]string{schema.AnnotationPaused: "moving racks"}
		},
		"etcd-on-control-planes": func(f *schema.Fleet) { f.Operations[0].Spec.Node.Action = "etcd-defrag" },
		"last-schedulable":       func(f *schema.Fleet) { f.Machines[4].Spec.Approved = false },
		"target-exists":          func(f *schema.Fleet) { f.Operations[0].Spec.Node.MachineRef.UUID = uuid },
		"restore-control-planes": func(f *schema.Fleet) { f.Operations[0] = restoreOf("accepted", nil, nil) },
		"restore-local-data": func(f *schema.Fleet) {
			f.Clusters[0].Spec.ControlPlane.Schedulable = nil
			f.Operations[0] = restoreOf("", []string{"cp-1", "cp-2", "cp-3"}, nil)
		},
		"last-control-plane": func(f *schema.Fleet) {
			f.Machines = append(f.Machines[:1], f.Machines[3:]...)
			f.Operations[0] = nodeOf("remove", "cp-1")
			f.Operations[0].Spec.Node.Gone = true
		},
		"operation-digest": func(f *schema.Fleet) {
			f.Operations = append(f.Operations, operationOf("cancel", schema.OperationCancel, func(s *schema.OperationSpec) {
				s.Cancel = &schema.CancelOperation{Operation: "reboot-w-1", Digest: operation.Digest(nil)}
			}))
		},
	} {
		t.Run(rule, func(t *testing.T) {
			proposed := fleetOf(t, fleetOfThree)
			proposed.Operations = []*schema.TalosOperation{nodeOf("reboot", "w-1")}
			proposed.Operations[0].Raw = []byte("as it was signed")
			change(proposed)
			old := fleetOf(t, fleetOfThree)
			for _, f := range engine.Check(old, proposed) {
				if f.Rule == rule {
					message := strings.ReplaceAll(f.Message, "reboot-w-1 names a machine", "20261129-reboot-w1 names a machine")
					require.Contains(t, found[rule], "\n    "+message+"\n")
					return
				}
			}
			t.Fatal("the change breaks the rule, and nothing was found")
		})
	}
}

const rebootYAML = `apiVersion: ichor.maesh.dev/v1alpha1
kind: TalosOperation
metadata: {name: %s}
spec:
  clusterRef: {name: prod, id: 1f3a9c0d2b4e6f78}
  kind: node
  createdAt: 2026-11-29T10:00:00Z
  expiresAt: 2026-11-30T10:00:00Z
  node: {machineRef: {name: w-1, uuid: 4c4c4544-0039-3510-8052-b4c04f4e3733}, action: reboot}
`

func TestSignaturesOfWhatIsNew(t *testing.T) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	signer, err := ssh.NewSignerFromSigner(key)
	require.NoError(t, err)
	signers, err := operation.ParseAllowedSigners("signers", fmt.Appendf(nil, "alice namespaces=\"ichor-operation@prod\" %s", ssh.MarshalAuthorizedKey(signer.PublicKey())))
	require.NoError(t, err)
	document := func(name string) string { return fmt.Sprintf(rebootYAML, name) }
	signed := func(text, namespace string) string {
		armoured, err := operation.Sign([]byte(text), namespace, signer)
		require.NoError(t, err)
		return string(armoured)
	}
	load := func(files map[string]string) *schema.Fleet {
		tree := fstest.MapFS{}
		for name, text := range files {
			tree[name] = &fstest.MapFile{Data: []byte(text)}
		}
		fleet, problems := schema.Load(tree, []string{"."})
		require.Empty(t, problems)
		return fleet
	}
	a, good := document("a"), signed(document("a"), "ichor-operation@prod")
	noon := morning.Add(2 * time.Hour)
	for _, c := range []struct {
		name     string
		old, new map[string]string // nil: there is no base
		now      time.Time
		want     []string
		checked  int
	}{
		{"a new one that is signed", map[string]string{}, map[string]string{"operations/a.yaml": a, "operations/a.yaml.sig": good}, noon, nil, 1},
		{"a new one that isn't", map[string]string{}, map[string]string{"operations/a.yaml": a}, noon,
			[]string{"operations/a.yaml:1:1: error: signature: a would be refused (SignatureMissing): there is no a.yaml.sig; sign it with ssh-keygen -Y sign -n ichor-operation@prod -f KEY operations/a.yaml"}, 1},
		{"an empty signature", map[string]string{}, map[string]string{"operations/a.yaml": a, "operations/a.yaml.sig": ""}, noon,
			[]string{"operations/a.yaml.sig: error: signature: a would be refused (SignatureMissing)"}, 1},
		{"another's signature", map[string]string{}, map[string]string{"operations/a.yaml": a, "operations/a.yaml.sig": signed(document("b"), "ichor-operation@prod")}, noon,
			[]string{"operations/a.yaml.sig: error: signature: a would be refused (SignatureWrong)"}, 1},
		{"a signature that isn't allowed", map[string]string{}, map[string]string{"operations/a.yaml": a, "operations/a.yaml.sig": signed(a, "ichor-override@prod")}, noon,
			[]string{"operations/a.yaml.sig: error: signature: a would be refused (NamespaceNotAllowed)"}, 1},
		{"one that was merged without", map[string]string{"operations/a.yaml": a}, map[string]string{"operations/a.yaml": a}, noon, nil, 0},
		{"a bad signature for one that was merged", map[string]string{"operations/a.yaml": a}, map[string]string{"operations/a.yaml": a, "operations/a.yaml.sig": "x"}, noon,
			[]string{"operations/a.yaml.sig: error: signature: a would be refused (SignatureMalformed)"}, 1},
		{"one that was changed", map[string]string{"operations/a.yaml": a, "operations/a.yaml.sig": good}, map[string]string{"operations/a.yaml": a + "\n", "operations/a.yaml.sig": good}, noon,
			[]string{"operations/a.yaml.sig: error: signature: a would be refused (SignatureWrong)"}, 1},
		{"a new one that is expired", map[string]string{}, map[string]string{"operations/a.yaml": a, "operations/a.yaml.sig": good}, morning.Add(24 * time.Hour),
			[]string{"operations/a.yaml:8:14: error: operation-times: a would be refused (Expired)"}, 1},
		{"a new one from the future", map[string]string{}, map[string]string{"operations/a.yaml": a, "operations/a.yaml.sig": good}, morning.Add(-6 * time.Minute),
			[]string{"operations/a.yaml:8:14: error: operation-times: a would be refused (CreatedAhead)"}, 1},
		{"without a base, one that is expired", nil, map[string]string{"operations/a.yaml": a}, morning.Add(24 * time.Hour), nil, 0},
		{"without a base, one that isn't", nil, map[string]string{"operations/a.yaml": a}, noon,
			[]string{"operations/a.yaml:1:1: error: signature: a would be refused (SignatureMissing)"}, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			var old *schema.Fleet
			if c.old != nil {
				old = load(c.old)
			}
			result := CheckOperations(old, load(c.new), signers, c.now)
			require.Len(t, result.Findings, len(c.want), "%v", result.Findings)
			for i, want := range c.want {
				require.Contains(t, result.Findings[i].String(), want)
				require.Equal(t, "prod", result.Findings[i].Cluster)
			}
			require.Equal(t, c.checked, result.Checked)
			require.Zero(t, result.Unchecked)

			unasked := CheckOperations(old, load(c.new), nil, c.now)
			require.Equal(t, c.checked, unasked.Unchecked)
			for _, f := range unasked.Findings {
				require.Equal(t, RuleOperationTimes, f.Rule)
			}
		})
	}
}

func TestAResumeNeedsTheNamespaceOfWhatItResumes(t *testing.T) {
	remove := nodeOf("remove", "w-1")
	resume := operationOf("resume", schema.OperationResume, func(s *schema.OperationSpec) {
		s.Resume = &schema.ResumeOperation{Operation: remove.Metadata.Name, Digest: operation.Digest(remove.Raw), Pause: 1}
	})
	f := &schema.Fleet{Operations: []*schema.TalosOperation{remove, resume}, Tree: fstest.MapFS{}}
	none, err := operation.ParseAllowedSigners("signers", nil)
	require.NoError(t, err)
	result := CheckOperations(nil, f, none, morning)
	require.Len(t, result.Findings, 2)
	for _, finding := range result.Findings {
		require.Contains(t, finding.Message, "-n ichor-override@prod", "both wipe")
	}
	f.Operations = f.Operations[1:]
	require.Contains(t, CheckOperations(nil, f, none, morning).Findings[0].Message, "-n ichor-operation@prod", "nobody knows what it resumes")
}
