package talos

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/schema"
)

// checkedLikeRender requires that the checker says of each machine what Render says, and gives how many it rendered.
func checkedLikeRender(t *testing.T, cluster *schema.TalosCluster, machines []*schema.TalosMachine, options RenderOptions) int {
	t.Helper()
	checker := NewChecker(cluster, testBundle(), options)
	for _, machine := range machines {
		_, want := Render(cluster, machine, testBundle(), options)
		got := checker.Check(machine)
		if want == nil {
			require.NoError(t, got, machine.Metadata.Name)
			continue
		}
		require.EqualError(t, got, want.Error())
		require.Equal(t, want.(*RenderError).Position, got.(*RenderError).Position)
		require.Equal(t, machine.Metadata.Name, got.(*RenderError).Machine)
	}
	return checker.Distinct()
}

// machinesLike gives machines that differ in what change does to them.
func machinesLike(count int, change func(n int, m *schema.TalosMachine)) []*schema.TalosMachine {
	var machines []*schema.TalosMachine
	for n := range count {
		machine := testMachine(fmt.Sprintf("m-%d", n))
		machine.Spec.Endpoint = fmt.Sprintf("10.0.1.%d", n+1)
		machine.Source.Line = n + 1
		machine.Source.Fields = map[string]schema.Position{"spec.hostname": {Line: n + 1, Column: 3}, "spec.taints[0]": {Line: n + 1, Column: 5}}
		change(n, machine)
		machines = append(machines, machine)
	}
	return machines
}

func TestMachinesThatAreAlikeAreRenderedOnce(t *testing.T) {
	sysctls := func(value string) map[string]any {
		return map[string]any{"machine": map[string]any{"sysctls": map[string]any{"a": value}}}
	}
	for name, test := range map[string]struct {
		change func(n int, m *schema.TalosMachine)
		want   int
	}{
		"but for name and address": {func(int, *schema.TalosMachine) {}, 1},
		"but for their hostnames":  {func(n int, m *schema.TalosMachine) { m.Spec.Hostname = m.Metadata.Name }, 1},
		"but for labels, taints and disks": {func(n int, m *schema.TalosMachine) {
			m.Spec.Labels = map[string]string{"rack": fmt.Sprint(n)}
			m.Spec.Taints = []string{fmt.Sprintf("dedicated=%d:NoSchedule", n)}
			m.Spec.Install = &schema.MachineInstall{Disk: fmt.Sprintf("/dev/sd%c", 'a'+n)}
		}, 1},
		"of two roles": {func(n int, m *schema.TalosMachine) {
			if n%2 == 0 {
				m.Spec.Role = schema.RoleWorker
			}
		}, 2},
		"with one patch of their own": {func(n int, m *schema.TalosMachine) { m.Spec.Patches = inline(sysctls("1")) }, 1},
		"with patches that differ":    {func(n int, m *schema.TalosMachine) { m.Spec.Patches = inline(sysctls(fmt.Sprint(n))) }, 6},
		"with disk selectors": {func(n int, m *schema.TalosMachine) {
			m.Spec.Install = &schema.MachineInstall{DiskSelector: map[string]any{"size": fmt.Sprintf("%dGB", 1+n%2)}}
		}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, test.want, checkedLikeRender(t, testCluster(), machinesLike(6, test.change), RenderOptions{}))
		})
	}
}

func TestWhatIsAMachinesOwnIsCheckedForEach(t *testing.T) {
	for name, change := range map[string]func(n int, m *schema.TalosMachine){
		"a hostname that is none": func(n int, m *schema.TalosMachine) {
			m.Spec.Hostname = []string{"fine", "-wrong-", "a.b", "this-is-a-name-with-more-than-the-63-characters-that-a-label-may-have-at-most"}[n%4]
		},
		"a label that is none": func(n int, m *schema.TalosMachine) {
			m.Spec.Labels = map[string]string{[]string{"fine", "-"}[n%2]: "x"}
		},
		"a taint with an effect that is none": func(n int, m *schema.TalosMachine) {
			m.Spec.Taints = []string{[]string{"a=b:NoSchedule", "a=b:Never"}[n%2]}
		},
		"a taint that is none": func(n int, m *schema.TalosMachine) { m.Spec.Taints = []string{[]string{"a=b:NoSchedule", "ab"}[n%2]} },
		"two disks": func(n int, m *schema.TalosMachine) {
			m.Spec.Install = &schema.MachineInstall{Disk: "/dev/sda", DiskSelector: map[string]any{"type": "ssd"}}
		},
		"a hostname that a patch sets too": func(n int, m *schema.TalosMachine) {
			m.Spec.Hostname = []string{"one", "two"}[n%2]
			m.Spec.Patches = inline(map[string]any{"apiVersion": "v1alpha1", "kind": "HostnameConfig", "hostname": "one"})
		},
		"a label that a patch takes away, where it is": func(n int, m *schema.TalosMachine) {
			if n%2 == 0 {
				m.Spec.Labels = map[string]string{"gone": "x"}
			}
			m.Spec.Patches = inline(map[string]any{"machine": map[string]any{"nodeLabels": map[string]any{"gone": map[string]any{"$patch": "delete"}}}})
		},
		"a label that a patch mends": func(n int, m *schema.TalosMachine) {
			m.Spec.Labels = map[string]string{"team": []string{"fine", "not fine"}[n%2]}
			m.Spec.Patches = inline(map[string]any{"machine": map[string]any{"nodeLabels": map[string]any{"team": "good"}}})
		},
		"a disk that a patch takes away": func(n int, m *schema.TalosMachine) {
			m.Spec.Install = &schema.MachineInstall{Disk: "/dev/sdb"}
			m.Spec.Patches = inline(map[string]any{"machine": map[string]any{"install": map[string]any{"disk": map[string]any{"$patch": "delete"}}}})
		},
	} {
		t.Run(name, func(t *testing.T) {
			machines := machinesLike(8, change)
			checkedLikeRender(t, testCluster(), machines, RenderOptions{})
			old := testCluster()
			old.Spec.Contract = "v1.11"
			checkedLikeRender(t, old, machines, RenderOptions{})
		})
	}
}

func TestAPatchThatFailsForAllIsRenderedTwiceAtMost(t *testing.T) {
	cluster := testCluster()
	cluster.Source.File = "cluster.yaml"
	cluster.Spec.Patches.All = []schema.Patch{{File: "bad.yaml"}}
	for name, test := range map[string]struct {
		text string
		want int
	}{
		"unknown field": {"machine:\n  sysctlz: {}\n", 2}, "invalid value": {"machine:\n  nodeTaints: {a: b:c}\n", 2}, "not YAML": {"[", 0}, "not there": {"", 0},
	} {
		t.Run(name, func(t *testing.T) {
			files := map[string]string{"bad.yaml": test.text}
			if test.text == "" {
				files = nil
			}
			require.Equal(t, test.want, checkedLikeRender(t, cluster, machinesLike(6, func(int, *schema.TalosMachine) {}), RenderOptions{Read: repository(files)}))
		})
	}
}

func TestAPatchFileIsReadOnceForAllThatShareIt(t *testing.T) {
	var reading sync.Mutex
	reads := map[string]int{}
	files := repository(map[string]string{"shared.yaml": "machine:\n  env: {A: b}\n", "machines/own.yaml": "machine:\n  env: {C: d}\n"})
	read := func(from string, ref schema.FileRef) (string, []byte, error) {
		name, data, err := files(from, ref)
		reading.Lock()
		defer reading.Unlock()
		reads[name]++
		return name, data, err
	}
	cluster := testCluster()
	cluster.Source.File = "cluster.yaml"
	cluster.Spec.Patches.All = []schema.Patch{{File: "shared.yaml"}}
	checker := NewChecker(cluster, testBundle(), RenderOptions{Read: read})
	var group sync.WaitGroup
	for _, machine := range machinesLike(20, func(n int, m *schema.TalosMachine) {
		m.Source.File = "machines/all.yaml"
		m.Spec.Patches = []schema.Patch{{File: "own.yaml"}}
	}) {
		group.Go(func() { require.NoError(t, checker.Check(machine)) })
	}
	group.Wait()
	require.Equal(t, map[string]int{"shared.yaml": 1, "machines/own.yaml": 1}, reads)
	require.Equal(t, 1, checker.Distinct())
}

func TestNoErrorOfARenderingHoldsASecretOfTheBundle(t *testing.T) {
	inside := testBundle().secrets
	// Each makes the machinery or its parser quote a value that is the bundle's: someone pasted it where it doesn't belong.
	for name, text := range map[string]string{
		"a wrong type":        "machine:\n  time:\n    disabled: " + inside.TrustdInfo.Token + "\n",
		"a refused value":     "machine:\n  kubelet:\n    nodeIP:\n      validSubnets: [\"" + inside.Cluster.Secret + "\"]\n",
		"a taint":             "machine:\n  nodeTaints:\n    a: b:" + inside.Secrets.BootstrapToken + "\n",
		"a key":               "machine:\n  " + inside.TrustdInfo.Token + ": x\n",
		"a kind":              "apiVersion: v1alpha1\nkind: \"" + inside.Secrets.SecretboxEncryptionSecret + "\"\n",
		"a document's name":   "apiVersion: v1alpha1\nkind: KmsgLogConfig\nname: \"" + inside.Cluster.Secret + "\"\nurl: foo\n",
		"a JSON patch":        "- op: add\n  path: /machine/env/A\n  value: \"" + inside.Cluster.Secret + "\"\n",
		"a deletion":          "machine:\n  env:\n    \"" + inside.TrustdInfo.Token + "\": {$patch: delete}\n",
		"what stands twice":   "\"" + inside.TrustdInfo.Token + "\": 1\n\"" + inside.TrustdInfo.Token + "\": 2\n",
		"an alias to nothing": "machine: *" + inside.TrustdInfo.Token[:6] + "\nx: \"" + inside.TrustdInfo.Token + "\n",
	} {
		t.Run(name, func(t *testing.T) {
			machine := testMachine("cp-1")
			machine.Spec.Patches = []schema.Patch{{File: "p.yaml"}}
			read := func(string, schema.FileRef) (string, []byte, error) { return "p.yaml", []byte(text), nil }
			_, err := Render(testCluster(), machine, testBundle(), RenderOptions{Read: read})
			require.Error(t, err)
			requireNoSecret(t, err.Error())
			err = NewChecker(testCluster(), testBundle(), RenderOptions{Read: read}).Check(machine)
			require.Error(t, err)
			requireNoSecret(t, err.Error())
		})
	}
}

func TestAPatchNeverComesFromOutsideTheRepository(t *testing.T) {
	dir, outside := t.TempDir(), filepath.Join(t.TempDir(), "outside.yaml")
	require.NoError(t, os.WriteFile(outside, []byte("machine:\n  env: {CANARY: x}\n"), 0o600))
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "prod"), 0o700))
	require.NoError(t, os.Symlink(outside, filepath.Join(dir, "prod", "link.yaml")))
	require.NoError(t, os.Symlink(filepath.Dir(outside), filepath.Join(dir, "linked")))
	fleet := &schema.Fleet{Tree: os.DirFS(dir)}
	for file, want := range map[string]string{
		"../../outside.yaml":      "leaves the repository",
		outside:                   "is not a relative path",
		"link.yaml":               "is a symlink",
		"../linked/outside.yaml":  "is a symlink",
		"../prod/../../etc/hosts": "leaves the repository",
	} {
		machine := testMachine("cp-1")
		machine.Source.File = "prod/cp-1.yaml"
		machine.Spec.Patches = []schema.Patch{{File: file}}
		_, err := Render(testCluster(), machine, testBundle(), RenderOptions{Read: fleet.ReadRef})
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, NewChecker(testCluster(), testBundle(), RenderOptions{Read: fleet.ReadRef}).Check(machine), want)
	}
}
