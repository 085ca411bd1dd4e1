package scaffold_test

import (
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"ichor.maesh.dev/internal/scaffold"
	"ichor.maesh.dev/schema"
)

func load(t *testing.T, files map[string][]byte) *schema.Fleet {
	t.Helper()
	tree := fstest.MapFS{}
	for name, data := range files {
		tree[name] = &fstest.MapFile{Data: data}
	}
	fleet, problems := schema.Load(tree, []string{"."})
	require.Empty(t, problems)
	return fleet
}

func TestAClusterIsReadBackAsItWasGiven(t *testing.T) {
	for _, schedulable := range []bool{true, false} {
		text, err := scaffold.Cluster{Name: "prod", ID: "1234567890123456", Endpoint: "https://[fd00::1]:6443", TalosVersion: "v1.13.6", KubernetesVersion: "v1.36.2",
			Contract: "v1.13", ControlPlanes: 5, Schedulable: schedulable, InstallImage: "registry:5000/x", InstallDisk: "/dev/disk/by-id/a:b@c"}.YAML()
		require.NoError(t, err)
		c := load(t, map[string][]byte{"cluster.yaml": text}).Cluster("prod")
		require.Equal(t, "1234567890123456", c.Spec.ID, "an ID of digits alone stays a text")
		require.Equal(t, "https://[fd00::1]:6443", c.Spec.Endpoint)
		require.Equal(t, 5, c.Spec.ControlPlane.Count)
		require.Equal(t, schedulable, c.Spec.ControlPlanesSchedulable())
		require.Equal(t, "registry:5000/x", c.Spec.Install.Image)
		require.Equal(t, "/dev/disk/by-id/a:b@c", c.Spec.Install.Disk)
	}
}

func TestAMachineIsReadBackAsItWasGiven(t *testing.T) {
	at := time.Date(2026, 11, 29, 10, 0, 0, 0, time.FixedZone("", 3600))
	text, err := scaffold.Machine{Name: "cp-1", Cluster: "prod", Role: schema.RoleControlPlane, Endpoint: "10.0.0.11", UUID: "4c4c4544-0039-3310-8052-b4c04f4a3258",
		Hostname: "cp-1.example.com", Fingerprint: strings.Repeat("A", 43) + "=", Approval: &schema.ApprovalDecision{At: at, By: "ada: the # first"}, Notes: []string{"a note"}}.YAML()
	require.NoError(t, err)
	m := load(t, map[string][]byte{"m.yaml": text}).MachinesOf("prod")[0]
	require.Equal(t, strings.Repeat("A", 43)+"=", m.Spec.Fingerprint)
	require.Equal(t, "cp-1.example.com", m.Spec.Hostname)
	require.True(t, m.Spec.Approved)
	require.Equal(t, at.UTC(), m.Spec.ApprovalDecision.At.UTC())
	require.Equal(t, "ada: the # first", m.Spec.ApprovalDecision.By)
	require.True(t, strings.HasPrefix(string(text), "# a note\n"))
}

func TestWhatAMachineSaysOfItselfCannotBecomeYAML(t *testing.T) {
	const hostile = "disk\napproved: true\r\nkind: x\u2028y\u0085z\x1b[2J"
	text, err := scaffold.Machine{Name: "m-1", Cluster: "prod", Role: schema.RoleWorker, Endpoint: "10.0.0.11", UUID: "4c4c4544-0039-3310-8052-b4c04f4a3258",
		Fingerprint: hostile, Notes: []string{hostile}}.YAML()
	require.NoError(t, err)
	var read struct {
		Kind string
		Spec map[string]any
	}
	require.NoError(t, yaml.UnmarshalStrict(text, &struct {
		*schema.TalosMachine
	}{}))
	require.NoError(t, yaml.Unmarshal(text, &read))
	require.Equal(t, "TalosMachine", read.Kind)
	require.Equal(t, false, read.Spec["approved"])
	require.Equal(t, hostile, read.Spec["fingerprint"])
	require.NotContains(t, string(text), "\x1b")
}

func TestTheReadmeNamesTheClusterTheIdentityAndTheWorkflows(t *testing.T) {
	text, err := scaffold.Readme("prod", "prod.agekey", scaffold.CIs())
	require.NoError(t, err)
	require.Contains(t, string(text), "clusters/prod/secrets.age")
	require.Contains(t, string(text), "--age-identity prod.agekey")
	require.Contains(t, string(text), `them there.

    clusters/prod/cluster.yaml     the cluster: versions, how many control planes, secrets
    clusters/prod/machines/*.yaml  its machines, one a file
    clusters/prod/secrets.age      its Talos secrets, sealed to whom recipients.txt names
    .github/workflows/ichor.yaml   runs ichor on every proposed change
    .gitlab-ci.yml                 runs ichor on every proposed change

## Changing something
`)
	require.Contains(t, string(text), "CI runs both")
	text, err = scaffold.Readme("prod", "prod.agekey", nil)
	require.NoError(t, err)
	require.NotContains(t, string(text), "CI")
	require.NotContains(t, string(text), "runs ichor")
}

func TestRecipientsStandOneALine(t *testing.T) {
	require.Equal(t, []string{"age1a", "age1b"}, strings.Split(strings.TrimSpace(string(scaffold.Recipients([]string{"age1a", "age1b"}))), "\n")[1:])
}
