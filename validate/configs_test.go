package validate_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/fstest"

	"filippo.io/age"
	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/internal/sealed"
	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/talos"
	"ichor.maesh.dev/validate"
)

const configsCluster = `apiVersion: ichor.maesh.dev/v1alpha1
kind: TalosCluster
metadata: {name: prod}
spec:
  id: 1f3a9c0d2b4e6f78
  endpoint: https://10.0.0.10:6443
  talosVersion: v1.13.6
  kubernetesVersion: v1.36.2
  controlPlane: {count: 1}
  secrets: {file: secrets.age}
  install: {disk: /dev/sda}
  patches:
    all:
    - file: patch.yaml
`

const configsMachine = `apiVersion: ichor.maesh.dev/v1alpha1
kind: TalosMachine
metadata: {name: NAME}
spec:
  clusterRef: {name: prod}
  role: ROLE
  endpoint: NAME.example.com
  uuid: 4c4c4544-0039-3510-8052-b4c04f4e3732
`

func renderWithPatch(t *testing.T, patch map[string]string) validate.Rendering {
	t.Helper()
	return renderFiles(t, patch, nil)
}

func renderFiles(t *testing.T, patch map[string]string, identities *sealed.Identities) validate.Rendering {
	t.Helper()
	machine := func(name, role string) *fstest.MapFile {
		return &fstest.MapFile{Data: []byte(strings.NewReplacer("NAME", name, "ROLE", role).Replace(configsMachine))}
	}
	tree := fstest.MapFS{
		"c/cluster.yaml": {Data: []byte(configsCluster)}, "c/secrets.age": {Data: []byte("x")},
		"c/cp-1.yaml": machine("cp-1", "controlplane"), "c/w-1.yaml": machine("w-1", "worker"),
	}
	for name, text := range patch {
		tree[name] = &fstest.MapFile{Data: []byte(text)}
	}
	fleet, problems := schema.Load(tree, []string{"."})
	require.Empty(t, problems)
	rendering, err := validate.RenderConfigs(fleet, identities)
	require.NoError(t, err)
	return rendering
}

func TestAPatchThatTalosTakesIsNoFinding(t *testing.T) {
	got := renderWithPatch(t, map[string]string{"c/patch.yaml": "machine:\n  sysctls:\n    vm.swappiness: \"1\"\n"})
	require.Equal(t, validate.Rendering{Rendered: 2, Distinct: 2}, got)
}

func TestAPatchThatTalosRefusesIsOneFindingWhereItStands(t *testing.T) {
	for name, test := range map[string]struct{ patch, want string }{
		"a field that isn't there":    {"machine:\n  sysctlz:\n    a: b\n", "Talos knows no field machine.sysctlz (did you mean sysctls?)"},
		"what the secrets bundle own": {"machine:\n  token: mine\n", "machine.token comes from the secrets bundle"},
		"a JSON patch":                {"- op: add\n  path: /machine/x\n  value: 1\n", "JSON patches"},
	} {
		t.Run(name, func(t *testing.T) {
			got := renderWithPatch(t, map[string]string{"c/patch.yaml": test.patch})
			require.Len(t, got.Findings, 1)
			found := got.Findings[0]
			require.Equal(t, "c/patch.yaml", found.File)
			require.Equal(t, validate.RuleConfig, found.Rule)
			require.Equal(t, validate.Error, found.Severity)
			require.Equal(t, "prod", found.Cluster)
			require.Contains(t, found.Message, "no config can be made for cp-1 and w-1: ")
			require.Contains(t, found.Message, test.want)
		})
	}
}

func TestAPatchThatIsNotThereIsLeftToTheRuleForFiles(t *testing.T) {
	got := renderWithPatch(t, nil)
	require.Empty(t, got.Findings)
	require.Zero(t, got.Rendered)
}

func TestMachinesWithASealedPatchAreCountedAndNotJudged(t *testing.T) {
	got := renderWithPatch(t, map[string]string{"c/patch.yaml": "-----BEGIN AGE ENCRYPTED FILE-----\nYWdl\n-----END AGE ENCRYPTED FILE-----\n"})
	require.Equal(t, validate.Rendering{Sealed: 2}, got)
}

// sealedFor gives data sealed to a new identity, and that identity.
func sealedFor(t *testing.T, data []byte) (*sealed.Identities, string) {
	t.Helper()
	identity, err := age.GenerateX25519Identity()
	require.NoError(t, err)
	recipients, err := sealed.ParseRecipients("recipients.txt", []byte(identity.Recipient().String()))
	require.NoError(t, err)
	text, err := sealed.Seal(recipients, data)
	require.NoError(t, err)
	identities, err := sealed.ParseIdentities("key", []byte(identity.String()))
	require.NoError(t, err)
	return identities, string(text)
}

func TestTheClustersOwnSecretsAreUsedWhereTheyCanBeOpened(t *testing.T) {
	bundle, err := talos.GenerateBundle("v1.6")
	require.NoError(t, err)
	plain, err := bundle.Marshal()
	require.NoError(t, err)
	identities, text := sealedFor(t, plain)
	other, _ := sealedFor(t, nil)
	damaged, notABundle := sealedFor(t, []byte("secret: canary\n"))
	cluster := strings.Replace(configsCluster, "1f3a9c0d2b4e6f78", schema.ClusterID(bundle.ClusterID()), 1)
	good := "machine:\n  sysctls: {a: b}\n"
	for name, test := range map[string]struct {
		files      map[string]string
		identities *sealed.Identities
		opened     []string
		want       string
	}{
		"opened":            {map[string]string{"c/cluster.yaml": cluster, "c/secrets.age": text}, identities, []string{"prod"}, ""},
		"without identity":  {map[string]string{"c/cluster.yaml": cluster, "c/secrets.age": text}, nil, nil, ""},
		"another's":         {map[string]string{"c/cluster.yaml": cluster, "c/secrets.age": text}, other, nil, ""},
		"another cluster's": {map[string]string{"c/secrets.age": text}, identities, nil, "c/secrets.age holds the secrets of another cluster: their ID is " + schema.ClusterID(bundle.ClusterID()) + " and spec.id says 1f3a9c0d2b4e6f78"},
		"no bundle":         {map[string]string{"c/secrets.age": notABundle}, damaged, nil, "c/secrets.age: the secrets bundle is not in the format of"},
	} {
		t.Run(name, func(t *testing.T) {
			test.files["c/patch.yaml"] = good
			got := renderFiles(t, test.files, test.identities)
			require.Equal(t, 2, got.Rendered)
			require.Equal(t, test.opened, got.Opened)
			if test.want == "" {
				require.Empty(t, got.Findings)
				return
			}
			require.Len(t, got.Findings, 1)
			require.Contains(t, got.Findings[0].Message, test.want)
			require.Equal(t, schema.Position{File: "c/cluster.yaml", Line: 10, Column: 19}, got.Findings[0].Position)
			require.NotContains(t, got.Findings[0].Message, "canary")
		})
	}
}

func TestNoFindingHoldsASecretOfTheCluster(t *testing.T) {
	bundle, err := talos.GenerateBundle("v1.6")
	require.NoError(t, err)
	plain, err := bundle.Marshal()
	require.NoError(t, err)
	identities, text := sealedFor(t, plain)
	cluster := strings.Replace(configsCluster, "1f3a9c0d2b4e6f78", schema.ClusterID(bundle.ClusterID()), 1)
	for _, secret := range bundle.Scalars() {
		if strings.Contains(secret, "\n") {
			continue
		}
		patch := "machine:\n  kubelet:\n    nodeIP:\n      validSubnets: [\"" + secret + "\"]\n"
		got := renderFiles(t, map[string]string{"c/cluster.yaml": cluster, "c/secrets.age": text, "c/patch.yaml": patch}, identities)
		require.Len(t, got.Findings, 1)
		require.Equal(t, []string{"prod"}, got.Opened)
		require.NotContains(t, got.Findings[0].Message, secret)
		require.Equal(t, schema.Position{File: "c/patch.yaml", Line: 4, Column: 22}, got.Findings[0].Position)
	}
}

func TestASealedPatchIsJudgedWhereItCanBeOpened(t *testing.T) {
	identities, text := sealedFor(t, []byte("machine:\n  sysctlz:\n    secretfield: canary\n"))
	got := renderFiles(t, map[string]string{"c/patch.yaml": text, "c/secrets.age": text}, identities)
	require.Zero(t, got.Sealed)
	require.Len(t, got.Findings, 2) // the bundle's, and the patch's
	for _, found := range got.Findings {
		require.NotContains(t, found.Message, "canary")
		require.NotContains(t, found.Message, "sysctlz")
	}
	require.Equal(t, schema.Position{File: "c/patch.yaml"}, got.Findings[0].Position)
	require.Contains(t, got.Findings[0].Message, "(line 2 of what it opens to)")
}

func TestAFindingNamesAFewOfTheMachinesItHitsAndCountsTheRest(t *testing.T) {
	files := map[string]string{"c/patch.yaml": "machine:\n  sysctlz: {}\n"}
	for n := range 9 {
		name := fmt.Sprintf("w-%d", n+2)
		files["c/"+name+".yaml"] = strings.NewReplacer("NAME", name, "ROLE", "worker").Replace(configsMachine)
	}
	got := renderFiles(t, files, nil)
	require.Len(t, got.Findings, 1)
	require.Contains(t, got.Findings[0].Message, "no config can be made for cp-1, w-1, w-10 and 8 more: ")
	require.Equal(t, 11, got.Rendered)
}
