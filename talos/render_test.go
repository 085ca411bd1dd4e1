package talos

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/internal/cputime"
	"ichor.maesh.dev/schema"
)

func testCluster() *schema.TalosCluster {
	return &schema.TalosCluster{
		Metadata: schema.ObjectMeta{Name: "prod"},
		Spec: schema.ClusterSpec{
			Endpoint: "https://10.0.0.10:6443", TalosVersion: "v1.13.6", KubernetesVersion: "v1.36.2", Contract: "v1.13",
			ControlPlane: schema.ControlPlaneSpec{Count: 3},
			Install:      schema.InstallSpec{Image: "factory.talos.dev/installer/abc", Disk: "/dev/sda"},
		},
		Source: schema.Source{Position: schema.Position{File: "clusters/prod/cluster.yaml", Line: 1}, Fields: map[string]schema.Position{
			"spec.patches.all[0]": {File: "clusters/prod/cluster.yaml", Line: 20, Column: 7},
		}},
	}
}

func testMachine(name string) *schema.TalosMachine {
	return &schema.TalosMachine{
		Metadata: schema.ObjectMeta{Name: name},
		Spec: schema.MachineSpec{
			ClusterRef: schema.ClusterRef{Name: "prod"}, Role: schema.RoleControlPlane, Endpoint: "10.0.0.11",
			UUID: "4c4c4544-0039-3010-8048-b7c04f384432", Approved: true,
		},
		Source: schema.Source{Position: schema.Position{File: "clusters/prod/machines/" + name + ".yaml", Line: 1}},
	}
}

func render(t testing.TB, cluster *schema.TalosCluster, machine *schema.TalosMachine, options RenderOptions) *Rendered {
	t.Helper()
	rendered, err := Render(cluster, machine, testBundle(), options)
	require.NoError(t, err)
	return rendered
}

// repository reads patches from files as a fleet does.
func repository(files map[string]string) func(string, schema.FileRef) (string, []byte, error) {
	tree := fstest.MapFS{}
	for name, text := range files {
		tree[name] = &fstest.MapFile{Data: []byte(text)}
	}
	fleet := &schema.Fleet{Tree: tree}
	return fleet.ReadRef
}

func inline(fields map[string]any) []schema.Patch { return []schema.Patch{{Inline: fields}} }

func TestARenderingIsTheSameToTheByteEveryTime(t *testing.T) {
	worker := testMachine("w-1")
	worker.Spec.Role, worker.Spec.Endpoint = schema.RoleWorker, "10.0.0.21:50001"
	worker.Spec.Labels = map[string]string{"b": "2", "a": "1", "c": "3"}
	worker.Spec.Taints = []string{"dedicated=gpu:NoSchedule", "spot:PreferNoSchedule"}
	worker.Spec.Install = &schema.MachineInstall{DiskSelector: map[string]any{"size": ">= 100GB", "type": "nvme"}, Wipe: true}
	named := testMachine("cp-1")
	named.Spec.Hostname = "cp-1"
	old := testCluster()
	old.Spec.Contract = "v1.11"
	patched := testCluster()
	patched.Spec.Network = schema.NetworkSpec{PodSubnets: []string{"10.1.0.0/16"}, ServiceSubnets: []string{"10.2.0.0/16"}, DNSDomain: "prod.local", CNI: "none"}
	no := false
	patched.Spec.ControlPlane.Schedulable = &no
	patched.Spec.Patches = schema.PatchesSpec{All: []schema.Patch{{File: "patches/all.yaml"}},
		ControlPlane: inline(map[string]any{"cluster": map[string]any{"apiServer": map[string]any{"extraArgs": map[string]any{"z": "1", "a": "2"}}}})}
	read := repository(map[string]string{"clusters/prod/patches/all.yaml": "machine:\n  sysctls:\n    net.core.somaxconn: \"1024\"\n---\napiVersion: v1alpha1\nkind: KmsgLogConfig\nname: remote\nurl: tcp://10.0.0.5:1514/\n"})

	for name, test := range map[string]struct {
		cluster *schema.TalosCluster
		machine *schema.TalosMachine
	}{
		"controlplane": {testCluster(), named}, "worker": {testCluster(), worker},
		"contract-v1.11": {old, named}, "patched": {patched, testMachine("cp-2")},
	} {
		t.Run(name, func(t *testing.T) {
			options := RenderOptions{Read: read, StateAnnotation: "9f86d081884c7d65"}
			first, err := Render(test.cluster, test.machine, testBundle(), options)
			require.NoError(t, err)
			for range 20 {
				again, err := Render(test.cluster, test.machine, testBundle(), options)
				require.NoError(t, err)
				require.Equal(t, string(first.Bytes), string(again.Bytes))
				require.Equal(t, first.Digest, again.Digest)
			}
			golden := filepath.Join("testdata", "golden", name+".yaml")
			if os.Getenv("UPDATE_GOLDEN") != "" {
				require.NoError(t, os.MkdirAll(filepath.Dir(golden), 0o755))
				require.NoError(t, os.WriteFile(golden, first.Bytes, 0o644))
			}
			want, err := os.ReadFile(golden)
			require.NoError(t, err)
			require.Equal(t, string(want), string(first.Bytes))
		})
	}
}

func TestARenderedConfigSaysWhatTheMachineDeclares(t *testing.T) {
	machine := testMachine("cp-1")
	machine.Spec.Hostname = "cp-1"
	machine.Spec.Endpoint = "cp-1.example.com:50001"
	machine.Spec.Install = &schema.MachineInstall{Disk: "/dev/nvme0n1"}
	rendered := render(t, testCluster(), machine, RenderOptions{StateAnnotation: "hash"})
	raw := rendered.Config.RawV1Alpha1()
	require.Equal(t, []string{"cp-1.example.com"}, raw.MachineConfig.MachineCertSANs)
	require.Equal(t, "/dev/nvme0n1", raw.MachineConfig.MachineInstall.InstallDisk)
	require.Equal(t, "factory.talos.dev/installer/abc:v1.13.6", raw.MachineConfig.MachineInstall.InstallImage)
	require.Equal(t, "cp-1", rendered.Config.NetworkHostnameConfig().Hostname())
	require.True(t, *raw.ClusterConfig.AllowSchedulingOnControlPlanes)
	require.Equal(t, "hash", StateAnnotationOf(rendered.Config))
	require.Equal(t, "ghcr.io/siderolabs/kubelet:v1.36.2", raw.MachineConfig.MachineKubelet.KubeletImage)
	require.Equal(t, testBundle().ClusterID(), raw.ClusterConfig.ClusterID)
	require.Empty(t, rendered.Pending)
	digest, err := Digest(rendered.Config)
	require.NoError(t, err)
	require.Equal(t, rendered.Digest, digest)
}

func TestAWorkersConfigHoldsNoKeyOfTheCluster(t *testing.T) {
	worker := testMachine("w-1")
	worker.Spec.Role = schema.RoleWorker
	rendered := render(t, testCluster(), worker, RenderOptions{})
	inside := testBundle().secrets
	for _, secret := range []string{inside.Secrets.SecretboxEncryptionSecret, string(inside.Certs.OS.Key), string(inside.Certs.K8s.Key)} {
		require.NotContains(t, string(rendered.Bytes), secret)
	}
	require.Nil(t, rendered.Config.RawV1Alpha1().ClusterConfig.AllowSchedulingOnControlPlanes)
}

func TestPatchesAreLaidOverInTheOrderAllRoleMachine(t *testing.T) {
	sysctl := func(value string) []schema.Patch {
		return inline(map[string]any{"machine": map[string]any{"sysctls": map[string]any{"vm.overcommit_memory": value}}})
	}
	value := func(cluster *schema.TalosCluster, machine *schema.TalosMachine) string {
		return render(t, cluster, machine, RenderOptions{}).Config.RawV1Alpha1().MachineConfig.MachineSysctls["vm.overcommit_memory"]
	}
	cluster, machine := testCluster(), testMachine("cp-1")
	cluster.Spec.Patches.All = sysctl("all")
	require.Equal(t, "all", value(cluster, machine))
	cluster.Spec.Patches.Worker = sysctl("worker")
	require.Equal(t, "all", value(cluster, machine), "a worker's patch is not for a control plane")
	cluster.Spec.Patches.ControlPlane = sysctl("controlPlane")
	require.Equal(t, "controlPlane", value(cluster, machine))
	machine.Spec.Patches = sysctl("machine")
	require.Equal(t, "machine", value(cluster, machine))
}

func TestOneRenderingDoesNotReachIntoAnother(t *testing.T) {
	cluster := testCluster()
	cluster.Spec.Patches.All = inline(map[string]any{"machine": map[string]any{"nodeLabels": map[string]any{"shared": "yes"}, "certSANs": []any{"extra.example.com"}}})
	first, second := testMachine("cp-1"), testMachine("cp-2")
	first.Spec.Labels, second.Spec.Endpoint = map[string]string{"only": "first"}, "10.0.0.12"
	render(t, cluster, first, RenderOptions{})
	rendered := render(t, cluster, second, RenderOptions{})
	require.NotContains(t, rendered.Config.RawV1Alpha1().MachineConfig.MachineNodeLabels, "only")
	require.Equal(t, []string{"10.0.0.12", "extra.example.com"}, rendered.Config.RawV1Alpha1().MachineConfig.MachineCertSANs)
}

func TestNoPatchTakesTheEndpointOutOfTheCertificate(t *testing.T) {
	machine := testMachine("cp-1")
	machine.Spec.Patches = inline(map[string]any{"machine": map[string]any{"certSANs": map[string]any{"$patch": "delete"}}})
	require.Equal(t, []string{"10.0.0.11"}, render(t, testCluster(), machine, RenderOptions{}).Config.RawV1Alpha1().MachineConfig.MachineCertSANs)
}

func TestARefusedPatchIsNamedByFileAndLine(t *testing.T) {
	for name, test := range map[string]struct {
		text string
		line int
		want string
	}{
		"a JSON patch": {"- op: replace\n  path: /machine/kubelet/extraArgs\n  value: {v: '4'}\n- op: remove\n  path: /cluster/proxy\n", 1,
			`write instead: {machine: {kubelet: {extraArgs: {v: '4'}}}, cluster: {proxy: {$patch: delete}}}`},
		"a JSON patch in JSON":             {`[{"op":"add","path":"/machine/sysctls/a~1b","value":"1"},{"op":"add","path":"/machine/certSANs/-","value":"x"}]`, 1, `write instead: {machine: {sysctls: {a/b: "1"}, certSANs: ["x"]}}`},
		"a JSON patch into a list":         {"- op: replace\n  path: /machine/certSANs/0\n  value: x\n", 1, "$patch: delete"},
		"an authority":                     {"machine:\n  sysctls: {a: b}\n  ca:\n    crt: eA==\n", 3, "machine.ca comes from the secrets bundle"},
		"an accepted authority":            {"cluster:\n  acceptedCAs:\n  - crt: eA==\n", 2, "cluster.acceptedCAs comes from"},
		"a token":                          {"machine:\n\n  token: abc\n", 3, "machine.token"},
		"a token taken away":               {"cluster:\n  token:\n    $patch: delete\n", 2, "cluster.token"},
		"etcd's authority":                 {"cluster:\n  etcd:\n    ca: {crt: eA==}\n", 3, "cluster.etcd.ca"},
		"all of etcd taken away":           {"cluster:\n  etcd:\n    $patch: delete\n", 3, "cluster.etcd holds what"},
		"the whole machine taken away":     {"machine:\n  $patch: delete\n", 2, "machine holds what"},
		"a cluster secret by an alias":     {"machine:\n  env: &e {secret: x}\ncluster:\n  <<: *e\n", 2, "cluster.secret"},
		"a cluster ID in JSON":             {`{"cluster": {"id": "x"}}`, 1, "cluster.id"},
		"an encryption secret":             {"cluster: {secretboxEncryptionSecret: eA==}\n", 1, "cluster.secretboxEncryptionSecret"},
		"the role":                         {"machine:\n  type: worker\n", 2, "machine.type comes from spec.role"},
		"who manages the machine":          {"machine:\n  nodeAnnotations:\n    ichor.maesh.dev/state: mine\n", 3, "a mark of who manages"},
		"a misspelt field":                 {"machine:\n  sysctls: {a: b}\n  kubelet:\n    extraArg: {v: '4'}\n", 4, "Talos knows no field machine.kubelet.extraArg (did you mean extraArgs?) in the machine config"},
		"a kind that is not known":         {"apiVersion: v1alpha1\nkind: NoSuchConfig\n", 2, `Talos has no documents of kind "NoSuchConfig" with apiVersion "v1alpha1"`},
		"no YAML":                          {"machine: [\n", 1, "the patch is not YAML"},
		"a tab":                            {"machine:\n\tsysctls: {}\n", 2, "the patch is not YAML"},
		"a key given twice":                {"machine:\n  env: {}\n  env: {}\n", 3, `mapping key "env" already defined at line 2`},
		"wrong types":                      {"machine:\n  sysctls: [a]\n  time:\n    disabled: \"maybe\"\n", 2, `a list stands where a mapping is due; the text "maybe" stands where true or false is due (line 4)`},
		"text alone":                       {"text\n", 1, "expected a YAML document"},
		"documents in a list":              {"- machine: {}\n- cluster: {}\n", 1, "a patch is one mapping, or several documents with --- between them, and this is a list"},
		"a kind of another API":            {"apiVersion: v1\nkind: ConfigMap\n", 2, `Talos has no documents of kind "ConfigMap"`},
		"a kind without a version":         {"kind: HostnameConfig\nhostname: x\n", 1, "has a kind and no apiVersion"},
		"a misspelt field of a document":   {"machine: {}\n---\napiVersion: v1alpha1\nkind: HostnameConfig\nhostnam: x\n", 5, "Talos knows no field hostnam (did you mean hostname?) in HostnameConfig"},
		"a field at the wrong depth":       {"sysctls: {a: b}\n", 1, "the document has no kind"},
		"one document twice":               {"machine: {}\n---\nmachine: {}\n", 3, "duplicate document"},
		"deleting what isn't there":        {"machine:\n  sysctls:\n    x:\n      $patch: delete\n", 3, "the patch deletes machine.sysctls.x, which the config doesn't have"},
		"deleting in a missing document":   {"apiVersion: v1alpha1\nkind: KmsgLogConfig\nname: a\n$patch: delete\n", 1, "the patch deletes from KmsgLogConfig/a, and the config has no such document"},
		"a value that Talos refuses":       {"machine:\n  env: {A: b}\n  kubelet:\n    nodeIP:\n      validSubnets: [300.0.0.0/8]\n", 5, `not valid: v1alpha1.Config: kubelet nodeIP subnet is not valid: "300.0.0.0/8"`},
		"a document that Talos refuses":    {"machine: {}\n---\napiVersion: v1alpha1\nkind: KmsgLogConfig\nname: a\nurl: foo\n", 3, "KmsgLogConfig/a: url scheme must be"},
		"what the contract has elsewhere":  {"machine:\n  network:\n    hostname: x\n", 1, "static hostname is already set in v1alpha1 config; a patch names the machine in another place than its config does: take that out, and set spec.hostname"},
		"a JSON patch of a token":          {"- op: replace\n  path: /machine/token\n  value: canary\n", 1, "JSON patches (RFC 6902) are not applied, and machine.token comes from the secrets bundle"},
		"an unknown way to patch":          {"cluster:\n  proxy:\n    $patch: remove\n", 3, "Talos knows no field cluster.proxy.$patch"},
		"a second document, not the first": {"machine: {}\n---\n- op: remove\n  path: /machine/env\n", 3, "JSON patches"},
	} {
		t.Run(name, func(t *testing.T) {
			machine := testMachine("cp-1")
			machine.Spec.Patches = []schema.Patch{{File: "../patches/p.yaml"}}
			_, err := Render(testCluster(), machine, testBundle(), RenderOptions{Read: repository(map[string]string{"clusters/prod/patches/p.yaml": test.text})})
			require.ErrorContains(t, err, test.want)
			var failed *RenderError
			require.ErrorAs(t, err, &failed)
			require.Equal(t, "clusters/prod/patches/p.yaml", failed.File)
			require.Equal(t, test.line, failed.Line)
			require.Equal(t, "cp-1", failed.Machine)
			require.NotContains(t, err.Error(), "\n")
		})
	}
}

func TestAnInlinePatchIsNamedByWhereItStands(t *testing.T) {
	cluster := testCluster()
	cluster.Spec.Patches.All = inline(map[string]any{"cluster": map[string]any{"secret": "x"}})
	_, err := Render(cluster, testMachine("cp-1"), testBundle(), RenderOptions{})
	var failed *RenderError
	require.ErrorAs(t, err, &failed)
	require.Equal(t, schema.Position{File: "clusters/prod/cluster.yaml", Line: 20, Column: 7}, failed.Position)
}

func TestWhatIsWrongInAnInlinePatchIsNamedByItsOwnLine(t *testing.T) {
	const text = `apiVersion: ichor.maesh.dev/v1alpha1
kind: TalosMachine
metadata: {name: cp-1}
spec:
  clusterRef: {name: prod}
  role: controlplane
  endpoint: 10.0.0.11
  uuid: 4c4c4544-0039-3010-8048-b7c04f384432
  patches:
  - inline: {machine: {env: {A: b}}}
  - inline:
      # first a comment
      machine:
        sysctls:
          net.core.somaxconn: "1"
        PLACE
`
	for name, test := range map[string]struct {
		bad, want string
		column    int
	}{
		"what the bundle owns": {"token: x", "machine.token comes from the secrets bundle", 9},
		"an unknown field":     {"kubelte: {}", "Talos knows no field machine.kubelte (did you mean kubelet?)", 9},
		"a wrong type":         {"time: 3", "where a TimeConfig is due", 9},
		"a refused value":      {"kubelet: {nodeIP: {validSubnets: [300.0.0.0/8]}}", "subnet is not valid", 43},
		"a deletion":           {"nodeLabels: {x: {$patch: delete}}", "the patch deletes machine.nodeLabels.x", 22},
	} {
		t.Run(name, func(t *testing.T) {
			tree := fstest.MapFS{"prod/cp-1.yaml": {Data: []byte(strings.Replace(text, "PLACE", test.bad, 1))}}
			fleet, problems := schema.Load(tree, []string{"."})
			require.Empty(t, problems)
			_, err := Render(testCluster(), fleet.Machines[0], testBundle(), RenderOptions{Read: fleet.ReadRef})
			require.ErrorContains(t, err, test.want)
			var failed *RenderError
			require.ErrorAs(t, err, &failed)
			require.Equal(t, schema.Position{File: "prod/cp-1.yaml", Line: 16, Column: test.column}, failed.Position)
		})
	}
}

func TestAPatchThatSaysNothingChangesNothing(t *testing.T) {
	plain := render(t, testCluster(), testMachine("cp-1"), RenderOptions{})
	for name, text := range map[string]string{
		"empty": "", "comments": "# nothing\n", "empty documents": "---\n---\n", "null": "null\n", "an empty mapping": "{}\n",
		"empty parts": "\ufeffmachine:\r\ncluster: {}\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			machine := testMachine("cp-1")
			machine.Spec.Patches = []schema.Patch{{File: "p.yaml"}}
			read := func(string, schema.FileRef) (string, []byte, error) { return "p.yaml", []byte(text), nil }
			require.Equal(t, plain.Digest, render(t, testCluster(), machine, RenderOptions{Read: read}).Digest)
		})
	}
}

func TestAPatchOfEtcdForAllIsRefusedForWorkersInTalosWords(t *testing.T) {
	cluster, worker := testCluster(), testMachine("w-1")
	worker.Spec.Role = schema.RoleWorker
	cluster.Spec.Patches.All = inline(map[string]any{"cluster": map[string]any{"etcd": map[string]any{"extraArgs": map[string]any{"quota-backend-bytes": "4294967296"}}}})
	_, err := Render(cluster, testMachine("cp-1"), testBundle(), RenderOptions{})
	require.NoError(t, err)
	_, err = Render(cluster, worker, testBundle(), RenderOptions{})
	require.ErrorContains(t, err, "etcd config is only allowed on control plane machines")
	require.NotContains(t, err.Error(), "secrets bundle", "it sets nothing that is the bundle's")
	cluster.Spec.Patches.All = inline(map[string]any{"cluster": map[string]any{"etcd": map[string]any{"ca": map[string]any{"crt": "eA=="}}}})
	_, err = Render(cluster, worker, testBundle(), RenderOptions{})
	require.ErrorContains(t, err, "cluster.etcd.ca")
}

func TestADocumentThatOneContractHasAndAnotherHasNotIsPatchedWhereItIs(t *testing.T) {
	for name, test := range map[string]struct{ contract, text, want string }{
		"deleted where it is":         {"v1.13", "apiVersion: v1alpha1\nkind: HostnameConfig\n$patch: delete\n", ""},
		"deleted where it isn't":      {"v1.11", "apiVersion: v1alpha1\nkind: HostnameConfig\n$patch: delete\n", "the patch deletes from HostnameConfig, and the config has no such document (contract v1.11 doesn't generate it)"},
		"the old field, old contract": {"v1.11", "machine:\n  network:\n    hostname: x\n", ""},
		"the old field, new contract": {"v1.13", "machine:\n  network:\n    hostname: x\n", "static hostname is already set"},
		"the new document, old one":   {"v1.11", "apiVersion: v1alpha1\nkind: HostnameConfig\nhostname: x\n", "stable hostname is already set"},
	} {
		t.Run(name, func(t *testing.T) {
			cluster, machine := testCluster(), testMachine("cp-1")
			cluster.Spec.Contract = test.contract
			machine.Spec.Patches = []schema.Patch{{File: "p.yaml"}}
			_, err := Render(cluster, machine, testBundle(), RenderOptions{Read: func(string, schema.FileRef) (string, []byte, error) { return "p.yaml", []byte(test.text), nil }})
			if test.want == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, test.want)
			require.ErrorContains(t, err, "p.yaml:1:1: ")
		})
	}
}

func TestThePatchThatMakesAConfigInvalidIsTheOneThatIsNamed(t *testing.T) {
	files := map[string]string{
		"good.yaml": "machine:\n  sysctls: {a: b}\n",
		"disk.yaml": "machine:\n  install:\n    disk: /dev/sdb\n",
		"bad.yaml":  "machine:\n  nodeTaints:\n    gpu: x:Never\n",
	}
	cluster := testCluster()
	cluster.Spec.Install.Disk = "" // without the patches the config is invalid in another way
	cluster.Source.File = "cluster.yaml"
	cluster.Spec.Patches.All = []schema.Patch{{File: "good.yaml"}, {File: "bad.yaml"}, {File: "disk.yaml"}}
	_, err := Render(cluster, testMachine("cp-1"), testBundle(), RenderOptions{Read: repository(files)})
	require.ErrorContains(t, err, "bad.yaml:1:1: cp-1: the rendered config is not valid: ")
	require.ErrorContains(t, err, "Never")
}

func TestAConfigThatTalosWouldRefuseIsRefused(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*schema.TalosCluster, *schema.TalosMachine)
		want   string
	}{
		"no install disk": {func(c *schema.TalosCluster, _ *schema.TalosMachine) { c.Spec.Install.Disk = "" }, "install disk"},
		"both disks": {func(_ *schema.TalosCluster, m *schema.TalosMachine) {
			m.Spec.Install = &schema.MachineInstall{Disk: "/dev/sda", DiskSelector: map[string]any{"size": "1GB"}}
		}, "exclude each other"},
		"a selector's field": {func(_ *schema.TalosCluster, m *schema.TalosMachine) {
			m.Spec.Install = &schema.MachineInstall{DiskSelector: map[string]any{"sise": "1GB"}}
		}, `field "sise" is not known`},
		"a taint": {func(_ *schema.TalosCluster, m *schema.TalosMachine) { m.Spec.Taints = []string{"gpu"} }, `"gpu" is no taint`},
		"two taints of one key": {func(_ *schema.TalosCluster, m *schema.TalosMachine) {
			m.Spec.Taints = []string{"a=1:NoSchedule", "a=2:NoExecute"}
		}, "stands here twice"},
		"an unknown effect": {func(_ *schema.TalosCluster, m *schema.TalosMachine) { m.Spec.Taints = []string{"a=1:Never"} }, "Never"},
		"a bad label":       {func(_ *schema.TalosCluster, m *schema.TalosMachine) { m.Spec.Labels = map[string]string{"-": "x"} }, "label"},
		"an unknown CNI":    {func(c *schema.TalosCluster, _ *schema.TalosMachine) { c.Spec.Network.CNI = "cilium" }, `cni "cilium" is not known`},
		"an endpoint":       {func(c *schema.TalosCluster, _ *schema.TalosMachine) { c.Spec.Endpoint = "10.0.0.10" }, "no URL"},
		"a newer contract":  {func(c *schema.TalosCluster, _ *schema.TalosMachine) { c.Spec.Contract = "v1.99" }, "newer than v1.13"},
		"a role":            {func(_ *schema.TalosCluster, m *schema.TalosMachine) { m.Spec.Role = "etcd" }, `role "etcd" is not known`},
		"a second hostname": {func(_ *schema.TalosCluster, m *schema.TalosMachine) {
			m.Spec.Hostname = "cp-1"
			m.Spec.Patches = inline(map[string]any{"apiVersion": "v1alpha1", "kind": "HostnameConfig", "hostname": "other"})
		}, "another hostname"},
		"an unnamed patch": {func(_ *schema.TalosCluster, m *schema.TalosMachine) { m.Spec.Patches = []schema.Patch{{}} }, "needs a file or an inline"},
	} {
		t.Run(name, func(t *testing.T) {
			cluster, machine := testCluster(), testMachine("cp-1")
			test.change(cluster, machine)
			_, err := Render(cluster, machine, testBundle(), RenderOptions{})
			require.ErrorContains(t, err, test.want)
			requireNoSecret(t, err.Error())
		})
	}
	container := testCluster()
	container.Spec.Install.Disk = ""
	render(t, container, testMachine("cp-1"), RenderOptions{Platform: "container"})
	_, err := Render(container, testMachine("cp-1"), testBundle(), RenderOptions{Platform: "toaster"})
	require.ErrorContains(t, err, `platform "toaster"`)
}

func TestVersionsStayAtWhatTheMachineRuns(t *testing.T) {
	before := render(t, testCluster(), testMachine("cp-1"), RenderOptions{})
	running := VersionsOf(before.Config)
	require.Equal(t, Versions{Kubelet: "v1.36.2", APIServer: "v1.36.2", ControllerManager: "v1.36.2", Scheduler: "v1.36.2", Proxy: "v1.36.2", Installer: "v1.13.6"}, running)

	newer := testCluster()
	newer.Spec.KubernetesVersion, newer.Spec.TalosVersion = "v1.36.3", "v1.13.7"
	after := render(t, newer, testMachine("cp-1"), RenderOptions{Running: running})
	require.Equal(t, before.Digest, after.Digest, "a new version is no drift")
	require.Contains(t, after.Pending, "kubelet v1.36.2, wanted v1.36.3")
	require.Contains(t, after.Pending, "Talos v1.13.6, wanted v1.13.7")
	require.Len(t, after.Pending, 6)

	mirrored := testMachine("cp-1")
	mirrored.Spec.Patches = inline(map[string]any{"machine": map[string]any{"kubelet": map[string]any{"image": "mirror.example.com:5000/kubelet:v1.36.9@sha256:" + strings.Repeat("0", 64)}}})
	moved := render(t, testCluster(), mirrored, RenderOptions{Running: running})
	require.Equal(t, "mirror.example.com:5000/kubelet:v1.36.2", moved.Config.RawV1Alpha1().MachineConfig.MachineKubelet.KubeletImage, "a patch moves the repository, not the version")

	first := render(t, newer, testMachine("cp-1"), RenderOptions{Running: VersionsOf(nil)})
	require.Equal(t, "v1.36.3", VersionsOf(first.Config).Kubelet, "a first config is of the wanted version")
}

func FuzzRenderAPatch(f *testing.F) {
	f.Add("machine:\n  sysctls: {a: b}\n")
	f.Add("- op: add\n  path: /a/-\n  value: 1\n")
	f.Add("a: &a {<<: *a}\n")
	f.Add("machine: &m {<<: [*m, *m], env: {A: b}}\n")
	f.Add("machine:\n  certSANs:\n    $patch: delete\n---\napiVersion: v1alpha1\nkind: HostnameConfig\n$patch: delete\n")
	f.Fuzz(func(t *testing.T, text string) {
		machine := testMachine("cp-1")
		machine.Spec.Patches = []schema.Patch{{File: "p.yaml"}}
		read := func(string, schema.FileRef) (string, []byte, error) { return "p.yaml", []byte(text), nil }
		rendered, err := Render(testCluster(), machine, testBundle(), RenderOptions{Read: read})
		if err != nil {
			return
		}
		raw := rendered.Config.RawV1Alpha1()
		if raw.ClusterConfig.ClusterID != testBundle().ClusterID() || raw.MachineConfig.MachineToken != testBundle().secrets.TrustdInfo.Token {
			t.Fatal("a patch changed what the bundle owns")
		}
	})
}

func BenchmarkRender(b *testing.B) {
	cluster, machine := testCluster(), testMachine("cp-1")
	cluster.Spec.Patches.All = inline(map[string]any{"machine": map[string]any{"sysctls": map[string]any{"net.core.somaxconn": "1024"}}})
	testBundle()
	b.ReportAllocs()
	defer cputime.Of(b)()
	for b.Loop() {
		render(b, cluster, machine, RenderOptions{StateAnnotation: "x"})
	}
}
