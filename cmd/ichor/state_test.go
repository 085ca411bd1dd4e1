package main

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"filippo.io/age"
	"github.com/stretchr/testify/require"
	"k8s.io/utils/clock"

	"ichor.maesh.dev/internal/sealed"
	"ichor.maesh.dev/statefile"
)

const prodCluster = `apiVersion: ichor.maesh.dev/v1alpha1
kind: TalosCluster
metadata: {name: prod}
spec:
  id: 0123456789abcdef
  endpoint: https://10.0.0.10:6443
  talosVersion: v1.13.6
  kubernetesVersion: v1.36.2
  controlPlane: {count: 1}
  secrets: {file: secrets.age}
  install: {image: factory.talos.dev/installer/abc, disk: /dev/sda}
`

// stateBench is a checkout with a sealed bundle, and a state folder.
type stateBench struct {
	t                             *testing.T
	fleet, state, identity, cache string
	in                            io.Reader
	interactive                   bool
	store                         statefile.Store
	sealer                        *statefile.Sealer
}

func newStateBench(t *testing.T) *stateBench {
	t.Helper()
	dir := t.TempDir()
	b := &stateBench{t: t, fleet: filepath.Join(dir, "fleet"), state: filepath.Join(dir, "state"), identity: filepath.Join(dir, "key.txt"),
		cache: filepath.Join(dir, "cache")}
	identity, err := age.GenerateX25519Identity()
	require.NoError(t, err)
	for file, text := range map[string]string{
		b.identity: identity.String() + "\n",
		filepath.Join(b.fleet, "clusters/prod/recipients.txt"): identity.Recipient().String() + "\n",
		filepath.Join(b.fleet, "clusters/prod/cluster.yaml"):   prodCluster,
	} {
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o700))
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	}
	code, _, errText := b.run("secrets", "generate", "--out", filepath.Join(b.fleet, "clusters/prod/secrets.age"))
	require.Zero(t, code, errText)
	identities, err := sealed.LoadIdentities(b.identity)
	require.NoError(t, err)
	bundle, err := bundleFromCheckout(b.fleet, "prod", identities)
	require.NoError(t, err)
	b.sealer, err = sealerOf(bundle)
	require.NoError(t, err)
	b.store, err = statefile.OpenFolder(b.state, statefile.FolderOptions{Agent: true})
	require.NoError(t, err)
	t.Cleanup(func() { _ = b.store.Close() })
	return b
}

func (b *stateBench) run(args ...string) (code int, out, errText string) {
	b.t.Helper()
	var stdout, stderr bytes.Buffer
	in := b.in
	if in == nil {
		in = strings.NewReader("")
	}
	a := &app{
		terminal: &terminal{in: in, out: &stdout, err: &stderr, interactive: b.interactive},
		clock:    clock.RealClock{}, getenv: func(string) string { return "" },
	}
	code = a.execute(b.t.Context(), args)
	return code, stdout.String(), stderr.String()
}

func (b *stateBench) on(args ...string) []string {
	return append(args, "--state", "file://"+b.state, "--fleet", b.fleet, "--age-identity", b.identity)
}

// agent opens the state as an agent does, with the cache folder that agents of this machine have.
func (b *stateBench) agent() *statefile.Cluster {
	b.t.Helper()
	cluster, err := statefile.OpenCluster(b.store, statefile.Options{Name: "prod", Sealer: b.sealer, WriterID: statefile.NewNonce(),
		CacheDir: filepath.Join(b.cache, "state")})
	require.NoError(b.t, err)
	return cluster
}

// rolledBack makes a state that was put back to an earlier one, under an agent that is still there.
func (b *stateBench) rolledBack() *statefile.Cluster {
	b.t.Helper()
	agent := b.agent()
	require.NoError(b.t, agent.Create(b.t.Context(), &statefile.State{}))
	file := filepath.Join(b.state, "prod", "state.json")
	early, err := os.ReadFile(file)
	require.NoError(b.t, err)
	require.NoError(b.t, agent.AppendAudit(b.t.Context(), statefile.Event{Action: "Test", Machine: "cp-1", Message: "\x1b[31mred"}))
	require.NoError(b.t, os.WriteFile(file, early, 0o600))
	_, err = agent.Load(b.t.Context())
	var rolledBack *statefile.StateRolledBackError
	require.ErrorAs(b.t, err, &rolledBack)
	return agent
}

func TestStateAcceptGoesOnFromARolledBackState(t *testing.T) {
	b := newStateBench(t)
	agent := b.rolledBack()

	code, out, errText := b.run(b.on("state", "accept", "prod", "--cache", b.cache)...)
	require.Equal(t, exitCannot, code)
	require.Empty(t, out)
	require.Contains(t, errText, "--confirm prod")
	code, _, errText = b.run(b.on("state", "accept", "prod", "--cache", b.cache, "--confirm", "Prod")...)
	require.Equal(t, exitCannot, code)
	require.Contains(t, errText, "nothing was changed")
	_, err := agent.Load(t.Context())
	require.Error(t, err)

	code, out, errText = b.run(b.on("state", "accept", "prod", "--cache", b.cache, "--confirm", "prod", "--reason", "restored from a copy")...)
	require.Zero(t, code, errText)
	require.Contains(t, errText, "the state of prod: generation 1")
	require.Contains(t, errText, "it knows of no bootstrap")
	require.Contains(t, out, "generation 1, now 1000002")
	_, err = agent.Load(t.Context())
	require.NoError(t, err, "the agent goes on by itself")

	code, out, errText = b.run(b.on("audit", "verify", "--events")...)
	require.Zero(t, code, errText)
	require.Contains(t, out, "prod: 3 events, whole; seal checked")
	require.Contains(t, out, "StateAccepted")
	require.Contains(t, out, "restored from a copy")
	require.NotContains(t, out, "\x1b")
}

func TestStateAcceptAsksForTheNameOnATerminal(t *testing.T) {
	b := newStateBench(t)
	b.rolledBack()
	b.interactive, b.in = true, strings.NewReader("prod\n")
	code, out, errText := b.run(b.on("state", "accept", "prod", "--cache", b.cache)...)
	require.Zero(t, code, errText)
	require.Contains(t, errText, "type the cluster's name to accept this state: ")
	require.Contains(t, out, "accepted the state of prod")
}

func TestStateAcceptRefusesWhatItCanNotSealOrFind(t *testing.T) {
	b := newStateBench(t)
	code, _, errText := b.run(b.on("state", "accept", "prod", "--confirm", "prod")...)
	require.Equal(t, exitNo, code)
	require.Contains(t, errText, "prod has no state")
	b.rolledBack()
	code, _, errText = b.run("state", "accept", "prod", "--confirm", "prod", "--state", "file://"+b.state, "--fleet", b.fleet)
	require.Equal(t, exitCannot, code)
	require.Contains(t, errText, "--age-identity")
	require.NoError(t, os.WriteFile(filepath.Join(b.state, "prod", "state.json"), []byte("{}"), 0o600))
	code, _, errText = b.run(b.on("state", "accept", "prod", "--confirm", "prod")...)
	require.Equal(t, exitCannot, code)
	require.Contains(t, errText, "without this cluster's secrets bundle")
}

func TestAuditVerifySaysWhatIsMissing(t *testing.T) {
	b := newStateBench(t)
	code, _, errText := b.run(b.on("audit", "verify")...)
	require.Equal(t, exitNo, code)
	require.Contains(t, errText, "holds no cluster")
	agent := b.agent()
	require.NoError(t, agent.Create(t.Context(), &statefile.State{}))
	for range 3 {
		require.NoError(t, agent.AppendAudit(t.Context(), statefile.Event{Action: "Test"}))
	}
	require.NoError(t, os.Remove(filepath.Join(b.state, "prod", "audit", "0000000002.json")))

	code, out, _ := b.run(b.on("audit", "verify", "prod")...)
	require.Equal(t, exitNo, code)
	require.Contains(t, out, "prod: 3 events, NOT whole; seal checked\n  prod/audit/0000000002.json is missing\n")
	code, out, _ = b.run(b.on("audit", "verify", "-o", "json")...)
	require.Equal(t, exitNo, code)
	var answer auditAnswer
	require.NoError(t, json.Unmarshal([]byte(out), &answer))
	require.Equal(t, []clusterAudit{{Name: "prod", Events: 3, Seal: "checked", Problems: []string{"prod/audit/0000000002.json is missing"}}}, answer.Clusters)

	code, _, errText = b.run("audit", "verify", "--state", "file://"+b.state, "--fleet", b.fleet)
	require.Equal(t, exitCannot, code)
	require.Contains(t, errText, "--without-seals")
	code, out, _ = b.run("audit", "verify", "--state", "file://"+b.state, "--without-seals")
	require.Equal(t, exitNo, code)
	require.Contains(t, out, "seal not checked")
	code, _, errText = b.run(b.on("audit", "verify", "-o", "xml")...)
	require.Equal(t, exitCannot, code)
	require.Contains(t, errText, "text or json")
}
