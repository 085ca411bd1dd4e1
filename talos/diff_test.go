package talos

import (
	"encoding/base64"
	"strings"
	"testing"

	"filippo.io/age"
	"github.com/stretchr/testify/require"

	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/config/configloader"
	"github.com/siderolabs/talos/pkg/machinery/config/configpatcher"

	"ichor.maesh.dev/internal/cputime"
	"ichor.maesh.dev/internal/sealed"
	"ichor.maesh.dev/schema"
)

// patchedBy gives a config with a patch laid over it, as someone behind Ichor's back would.
func patchedBy(t testing.TB, base config.Provider, patch string) config.Provider {
	t.Helper()
	loaded, err := configpatcher.LoadPatch([]byte(patch))
	require.NoError(t, err)
	out, err := configpatcher.Apply(configpatcher.WithConfig(base), []configpatcher.Patch{loaded})
	require.NoError(t, err)
	text, err := out.Bytes()
	require.NoError(t, err)
	again, err := configloader.NewFromBytes(text)
	require.NoError(t, err)
	return again
}

// sealer seals patches for a test and opens them again.
type sealer struct {
	identities *sealed.Identities
	recipient  sealed.Recipient
}

func newSealer(t testing.TB) *sealer {
	t.Helper()
	identity, err := age.GenerateX25519Identity()
	require.NoError(t, err)
	identities, err := sealed.ParseIdentities("test", []byte(identity.String()))
	require.NoError(t, err)
	return &sealer{identities, sealed.Recipient{Recipient: identity.Recipient()}}
}

func (s *sealer) seal(t testing.TB, text string) string {
	t.Helper()
	data, err := sealed.Seal([]sealed.Recipient{s.recipient}, []byte(text))
	require.NoError(t, err)
	return string(data)
}

// withSealedPatch renders with one sealed patch.
func withSealedPatch(t testing.TB, patch string) (*Rendered, error) {
	t.Helper()
	s := newSealer(t)
	machine := testMachine("cp-1")
	machine.Spec.Patches = []schema.Patch{{File: "patch.age"}}
	return Render(testCluster(), machine, testBundle(), RenderOptions{
		Identities: s.identities, Read: repository(map[string]string{"clusters/prod/machines/patch.age": s.seal(t, patch)}),
	})
}

func TestADiffOfEqualConfigsIsEmpty(t *testing.T) {
	rendered := render(t, testCluster(), testMachine("cp-1"), RenderOptions{})
	reloaded, err := configloader.NewFromBytes(append([]byte("# a comment\n"), rendered.Bytes...))
	require.NoError(t, err)
	diff, err := Diff(reloaded, rendered)
	require.NoError(t, err)
	require.Empty(t, diff)
}

func TestADiffShowsWhatChangedAndNoSecret(t *testing.T) {
	rendered := render(t, testCluster(), testMachine("cp-1"), RenderOptions{})
	active := patchedBy(t, rendered.Config, `
machine:
  token: old-token-of-the-machine
  sysctls: {vm.overcommit_memory: "1"}
  env: {HTTPS_PROXY: "http://user:pass-canary@proxy:3128", TOKEN: env-canary}
  files: [{path: /var/x, permissions: 0o600, op: create, content: file-canary}]
cluster:
  inlineManifests: [{name: s, contents: manifest-canary}]
  extraManifestHeaders: {Authorization: header-canary}
`)
	diff, err := Diff(active, rendered)
	require.NoError(t, err)
	require.Contains(t, diff, "--- active\n+++ wanted\n")
	require.Contains(t, diff, `-        vm.overcommit_memory: "1"`)
	require.Regexp(t, `-    token: \(hidden \d+\)\n\+    token: \(hidden \d+\)`, diff, "that the token changed is seen")
	require.NotContains(t, diff, "canary")
	require.NotContains(t, diff, "old-token")
	requireNoSecret(t, diff)
}

func TestADiffAgainstNothingShowsNoSecret(t *testing.T) {
	rendered := render(t, testCluster(), testMachine("cp-1"), RenderOptions{})
	diff, err := Diff(nil, rendered)
	require.NoError(t, err)
	require.Contains(t, diff, "+    type: controlplane")
	requireNoSecret(t, diff)
	for _, pair := range authorities(testBundle().secrets) {
		require.NotContains(t, diff, base64.StdEncoding.EncodeToString(pair.Key))
	}
}

func TestWhatGitSaysInTheClearIsShown(t *testing.T) {
	machine := testMachine("cp-1")
	machine.Spec.Patches = inline(map[string]any{"machine": map[string]any{"env": map[string]any{"NO_PROXY": "10.0.0.0/8"}}})
	rendered := render(t, testCluster(), machine, RenderOptions{})
	before := render(t, testCluster(), testMachine("cp-1"), RenderOptions{})
	diff, err := Diff(before.Config, rendered)
	require.NoError(t, err)
	require.Contains(t, diff, "+        NO_PROXY: 10.0.0.0/8")
}

func TestATerminalObeysNothingInADiff(t *testing.T) {
	rendered := render(t, testCluster(), testMachine("cp-1"), RenderOptions{})
	active := patchedBy(t, rendered.Config, "machine:\n  sysctls: {a: \"x\\u202eevil\\e[2J\"}\n")
	diff, err := Diff(active, rendered)
	require.NoError(t, err)
	require.NotContains(t, diff, "\u202e")
	require.NotContains(t, diff, "\x1b")
}

func TestEveryValueOfASealedPatchIsHiddenOldAndNew(t *testing.T) {
	rendered, err := withSealedPatch(t, `
machine:
  files:
  - {path: /var/canary-path, permissions: 0o600, op: create, content: canary-content}
  sysctls: {kernel.canary: "7"}
  network: {nameservers: [10.9.8.7]}
  features: {kubePrism: {enabled: true, port: 7777}}
  pods:
  - {apiVersion: v1, kind: pod, metadata: {name: canary-pod}}
---
apiVersion: v1alpha1
kind: ExtensionServiceConfig
name: nut
environment: [PASSWORD=canary-env]
`)
	require.NoError(t, err)
	base := render(t, testCluster(), testMachine("cp-1"), RenderOptions{})
	older, err := withSealedPatch(t, `
machine:
  files:
  - {path: /var/stale-path, permissions: 0o600, op: create, content: stale-content}
  sysctls: {kernel.canary: "8"}
  network: {nameservers: [10.6.5.4]}
`)
	require.NoError(t, err)
	for name, active := range map[string]config.Provider{"nothing": nil, "the config without it": base.Config, "an older value": older.Config, "itself": rendered.Config} {
		t.Run("against "+name, func(t *testing.T) {
			diff, err := Diff(active, rendered)
			require.NoError(t, err)
			for _, value := range []string{"canary-", "stale-", `"7"`, `"8"`, "10.9.8.7", "10.6.5.4", "7777"} {
				require.NotContains(t, diff, value)
			}
		})
	}
	diff, err := Diff(older.Config, rendered)
	require.NoError(t, err)
	require.Contains(t, diff, "(hidden", "that something changed is seen")
}

func TestAValueOfASealedPatchIsHiddenWhereverItStands(t *testing.T) {
	rendered, err := withSealedPatch(t, "machine:\n  env: {TOKEN: canary-value}\n")
	require.NoError(t, err)
	active := patchedBy(t, rendered.Config, "machine:\n  sysctls: {a: prefix-canary-value}\n")
	diff, err := Diff(active, rendered)
	require.NoError(t, err)
	require.NotContains(t, diff, "canary")
}

func TestErrorsAboutASealedPatchQuoteNothingOfIt(t *testing.T) {
	for name, patch := range map[string]string{
		"a misspelt field":       "machine:\n  sysctl: {a: canary-value}\n",
		"a wrong type":           "machine:\n  sysctls: canary-value\n",
		"no YAML":                "machine: {canary-value: [\n",
		"a kind that is unknown": "apiVersion: v1alpha1\nkind: canary-value\n",
		"an invalid value":       "machine:\n  nodeTaints: {a: 'canary-value:canary-value'}\n",
		"an invalid label":       "machine:\n  nodeLabels: {a: '-canary-value'}\n",
		"a JSON patch":           "- op: add\n  path: /machine/sysctls/a\n  value: canary-value\n",
	} {
		t.Run(name, func(t *testing.T) {
			_, err := withSealedPatch(t, patch)
			require.Error(t, err)
			require.NotContains(t, err.Error(), "canary")
			require.Contains(t, err.Error(), "cp-1")
		})
	}
}

func TestASealedPatchWithoutAnIdentityIsSaidToBeUnchecked(t *testing.T) {
	s := newSealer(t)
	machine := testMachine("cp-1")
	machine.Spec.Patches = []schema.Patch{{File: "patch.age"}}
	_, err := Render(testCluster(), machine, testBundle(), RenderOptions{Read: repository(map[string]string{"clusters/prod/machines/patch.age": s.seal(t, "machine: {}")})})
	require.ErrorIs(t, err, sealed.ErrNoIdentity)
	require.ErrorContains(t, err, "clusters/prod/machines/patch.age")
}

func TestConfigsAreComparedByWhatTheySay(t *testing.T) {
	rendered := render(t, testCluster(), testMachine("cp-1"), RenderOptions{StateAnnotation: "here"})
	documents := strings.SplitN(string(rendered.Bytes), "---\n", 2)
	reordered, err := configloader.NewFromBytes([]byte("# comment\n" + documents[1] + "---\n" + documents[0]))
	require.NoError(t, err)
	equal, err := Equal(rendered.Config, reordered, false)
	require.NoError(t, err)
	require.True(t, equal)
	digest, err := Digest(reordered)
	require.NoError(t, err)
	require.Equal(t, rendered.Digest, digest)

	bare := render(t, testCluster(), testMachine("cp-1"), RenderOptions{})
	equal, err = Equal(bare.Config, rendered.Config, false)
	require.NoError(t, err)
	require.False(t, equal)
	equal, err = Equal(bare.Config, rendered.Config, true)
	require.NoError(t, err)
	require.True(t, equal, "the mark on the node aside")
	require.Equal(t, "here", StateAnnotationOf(rendered.Config), "comparing changes nothing")

	equal, err = Equal(nil, rendered.Config, true)
	require.NoError(t, err)
	require.False(t, equal)
}

func TestARebootIsNeededByTalosOwnRule(t *testing.T) {
	base := render(t, testCluster(), testMachine("cp-1"), RenderOptions{}).Config
	for patch, want := range map[string]string{
		"debug: true": "",
		"cluster: {apiServer: {extraArgs: {v: '4'}}, discovery: {enabled: false}}":                                                        "",
		"machine: {sysctls: {a: b}, sysfs: {a: b}}":                                                                                       "",
		"machine: {kubelet: {extraArgs: {v: '4'}}}":                                                                                       "",
		"machine: {install: {disk: /dev/sdb}}":                                                                                            "",
		"machine: {network: {nameservers: [10.0.0.1]}}":                                                                                   "",
		"machine: {nodeLabels: {a: b}, nodeTaints: {a: 'b:NoSchedule'}, nodeAnnotations: {a: b}}":                                         "",
		"machine: {features: {kubePrism: {enabled: false}}}":                                                                              "",
		"machine: {features: {kubernetesTalosAPIAccess: {enabled: true, allowedRoles: ['os:reader'], allowedKubernetesNamespaces: [x]}}}": "",
		"machine: {logging: {destinations: [{endpoint: 'tcp://1.2.3.4:12345', format: json_lines}]}}":                                     "",
		"apiVersion: v1alpha1\nkind: HostnameConfig\nhostname: x\nauto: off":                                                              "",
		"apiVersion: v1alpha1\nkind: KmsgLogConfig\nname: x\nurl: tcp://1.2.3.4:1":                                                        "",
		"machine: {env: {A: b}}": "machine.env",
		"machine: {files: [{path: /var/x, permissions: 0o600, op: create, content: x}]}":             "machine.files",
		"machine: {udev: {rules: ['x']}}":                                                            "machine.udev",
		"machine: {token: abc}":                                                                      "machine.token",
		"machine: {type: worker}":                                                                    "machine.type",
		"machine: {disks: [{device: /dev/sdb}]}":                                                     "machine.disks",
		"machine: {baseRuntimeSpecOverrides: {a: b}}":                                                "machine.baseRuntimeSpecOverrides",
		"machine: {systemDiskEncryption: {state: {provider: luks2, keys: [{slot: 0, nodeID: {}}]}}}": "machine.systemDiskEncryption",
		"machine: {features: {rbac: true}}":                                                          "machine.features.rbac",
		"machine: {features: {stableHostname: true}}":                                                "machine.features.stableHostname",
		"machine: {features: {apidCheckExtKeyUsage: true}}":                                          "machine.features.apidCheckExtKeyUsage",
		"machine: {features: {diskQuotaSupport: false}}":                                             "machine.features.diskQuotaSupport",
		"machine: {features: {$patch: delete}}":                                                      "machine.features",
		"persist: false":                                                                             "persist",
	} {
		t.Run(patch, func(t *testing.T) {
			changed := withPatchAllowed(t, base, patch)
			reboot, because, err := NeedsReboot(base, changed)
			require.NoError(t, err)
			require.Equal(t, want != "", reboot)
			require.Equal(t, want, strings.Join(because, " "))
			back, _, err := NeedsReboot(changed, base)
			require.NoError(t, err)
			require.Equal(t, reboot, back)
		})
	}
	_, _, err := NeedsReboot(nil, base)
	require.ErrorContains(t, err, "no machine config")
}

func withPatchAllowed(t *testing.T, base config.Provider, patch string) config.Provider {
	t.Helper()
	loaded, err := configloader.NewFromBytes([]byte(patch), configloader.WithAllowPatchDelete())
	require.NoError(t, err)
	out, err := configpatcher.StrategicMerge(base, configpatcher.NewStrategicMergePatch(loaded))
	require.NoError(t, err)
	return out
}

// FuzzNothingOfASealedPatchIsShown puts a canary into any field that a patch can reach.
func FuzzNothingOfASealedPatchIsShown(f *testing.F) {
	for _, patch := range []string{
		"machine: {sysctls: {a: CANARY}}", "machine: {env: {A: 'x CANARY y'}}", "machine: {certSANs: [CANARY]}",
		"machine: {files: [{path: /var/CANARY, permissions: 0o600, op: create, content: CANARY}]}",
		"machine: {registries: {mirrors: {docker.io: {endpoints: ['https://CANARY@mirror']}}}}",
		"machine: {kubelet: {extraArgs: {a: [CANARY, b]}, nodeIP: {validSubnets: [CANARY]}}}",
		"cluster: {inlineManifests: [{name: CANARY, contents: CANARY}]}",
		"cluster: {apiServer: {admissionControl: [{name: x, configuration: {deep: {deeper: [CANARY]}}}]}}",
		"cluster: {clusterName: CANARY}", "cluster: {etcd: {extraArgs: {a: CANARY}}}",
		"apiVersion: v1alpha1\nkind: KmsgLogConfig\nname: CANARY\nurl: tcp://CANARY:1/",
		"apiVersion: v1alpha1\nkind: TrustedRootsConfig\nname: x\ncertificates: CANARY",
		"machine: &m {env: &e {A: CANARY}, sysctls: *e}",
	} {
		f.Add(patch)
	}
	s := newSealer(f)
	base := render(f, testCluster(), testMachine("cp-1"), RenderOptions{Platform: "container"})
	f.Fuzz(func(t *testing.T, patch string) {
		const canary = "kanarienvogel"
		text := strings.ReplaceAll(patch, "CANARY", canary)
		if strings.Contains(text, canary+":") || strings.Contains(text, "? ") {
			return // a canary as a key; keys are shown
		}
		machine := testMachine("cp-1")
		machine.Spec.Patches = []schema.Patch{{File: "p.age"}}
		sealedText := s.seal(t, text)
		rendered, err := Render(testCluster(), machine, testBundle(), RenderOptions{
			Platform: "container", Identities: s.identities,
			Read: func(string, schema.FileRef) (string, []byte, error) { return "p.age", []byte(sealedText), nil },
		})
		if err != nil {
			require.NotContains(t, err.Error(), canary)
			return
		}
		for _, active := range []config.Provider{nil, base.Config, rendered.Config} {
			diff, err := Diff(active, rendered)
			require.NoError(t, err)
			if strings.Contains(diff, canary) {
				t.Fatalf("shown: %q", patch)
			}
		}
	})
}

func BenchmarkCompare(b *testing.B) {
	rendered := render(b, testCluster(), testMachine("cp-1"), RenderOptions{})
	b.ReportAllocs()
	defer cputime.Of(b)()
	for b.Loop() {
		if equal, err := Equal(rendered.Config, rendered.Config, false); err != nil || !equal {
			b.Fatal("not equal")
		}
	}
}

func BenchmarkDiff(b *testing.B) {
	rendered := render(b, testCluster(), testMachine("cp-1"), RenderOptions{})
	active := patchedBy(b, rendered.Config, "machine:\n  sysctls: {a: b}\n")
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Diff(active, rendered); err != nil {
			b.Fatal(err)
		}
	}
}
