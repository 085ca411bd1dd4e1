package reconcile

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"ichor.maesh.dev/internal/sealed"
	"ichor.maesh.dev/talos"
)

// unreachableInMaintenance is a farm of which one machine answers looks and refuses every connection of the gate.
type unreachableInMaintenance struct {
	Nodes
	name string
}

func (n unreachableInMaintenance) DialMaintenance(ctx context.Context, target talos.Target, fingerprint string) (Session, error) {
	if target.Name == n.name {
		return nil, errors.New("its certificate is another at each connection")
	}
	return n.Nodes.DialMaintenance(ctx, target, fingerprint)
}

func TestAMachineThatCannotBeGivenItsConfigKeepsNobodyElseWaiting(t *testing.T) {
	l := newLab(t, "127.0.90.11", 1, 2, 30)
	config := l.config("agent-1")
	open := config.OpenNodes
	config.OpenNodes = func(bundle *talos.Bundle) Nodes { return unreachableInMaintenance{open(bundle), "w-1"} }
	report := l.run(config, func(r Report) bool {
		state := r.Clusters
		if len(state) == 0 || state[0].State == nil {
			return false
		}
		machines := state[0].State.Machines
		return machines["cp-1"] != nil && machines["cp-1"].Ready.Status && machines["w-2"].Ready.Status && machines["w-1"].Ready.Reason == "NotConfigured"
	})
	machines := report.Clusters[0].State.Machines
	require.True(t, machines["cp-1"].Ready.Status, "%v", machines["cp-1"].Ready)
	require.True(t, machines["w-2"].Ready.Status, "%v", machines["w-2"].Ready)
	require.Equal(t, "NotConfigured", machines["w-1"].Ready.Reason)
	require.Contains(t, machines["w-1"].Ready.Message, "another at each connection")
}

func TestABundleWithOtherAuthoritiesIsRefused(t *testing.T) {
	l := newLab(t, "127.0.90.21", 1, 0, 30)
	report := l.run(l.config("agent-1"), allReady)
	require.True(t, allReady(report), "%+v", report.Problems())
	other, err := talos.GenerateBundle("v1.13")
	require.NoError(t, err)
	require.NotEqual(t, other.CAs(), l.fleet.bundle.CAs())
	l.seal(withAuthoritiesOf(t, l.fleet.bundle, other))
	l.source.push(l.fleet.files)
	report = l.run(l.config("agent-2"), func(r Report) bool { return len(r.Clusters) > 0 && r.Clusters[0].Ready.Reason == "WrongBundle" })
	require.Equal(t, "WrongBundle", report.Clusters[0].Ready.Reason, "%+v", report.Problems())
}

// withAuthoritiesOf gives a bundle's text with the certificate authorities of another.
func withAuthoritiesOf(t *testing.T, bundle, other *talos.Bundle) []byte {
	t.Helper()
	var parts [2]map[string]any
	for n, b := range []*talos.Bundle{bundle, other} {
		text, err := b.Marshal()
		require.NoError(t, err)
		require.NoError(t, yaml.Unmarshal(text, &parts[n]))
	}
	require.Contains(t, parts[1], "certs")
	parts[0]["certs"] = parts[1]["certs"]
	text, err := yaml.Marshal(parts[0])
	require.NoError(t, err)
	return text
}

// seal puts another secrets bundle into the repository, sealed to a new identity.
func (l *lab) seal(bundle []byte) {
	l.t.Helper()
	identities, recipients := newKeys(l.t)
	l.fleet.identities = identities
	text, err := sealed.Seal(recipients, bundle)
	require.NoError(l.t, err)
	l.fleet.write("clusters/prod/secrets.age", string(text))
}
