package reconcile

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/talos"
)

// TestALiveChangeTravelsOverSimulatedMachines changes a setting in Git on machines that booted from their disks, as installed
// machines do: each is tried once and confirmed once, and keeps the change over a power cycle.
func TestALiveChangeTravelsOverSimulatedMachines(t *testing.T) {
	l := newLab(t, "127.0.90.1", 1, 1, 20)
	l.watchPromises()
	report := l.run(l.config("agent-1"), allReady)
	require.True(t, allReady(report), "%+v", report.Problems())
	file := l.fleet.files["clusters/prod/cluster.yaml"]
	l.fleet.write("clusters/prod/cluster.yaml", string(file.Data)+`  patches:
    all: [{file: sysctls.yaml}]
`)
	l.fleet.write("clusters/prod/sysctls.yaml", "machine: {sysctls: {vm.overcommit_memory: \"1\"}}\n")
	commit := l.source.push(l.fleet.files)
	before := l.accepted("ApplyConfiguration")
	report = l.run(l.config("agent-2"), func(r Report) bool {
		return allReady(r) && r.Clusters[0].State.Revision.Applied == commit && r.Clusters[0].State.Rollout == nil
	})
	require.True(t, allReady(report), "%+v", report.Problems())
	for name, calls := range l.accepted("ApplyConfiguration") {
		require.Equal(t, 2, calls-before[name], "%s: one try and one confirmation", name)
	}
	client := talos.NewClient(l.fleet.bundle, talos.ClientOptions{})
	defer client.Close()
	for _, node := range l.farm.Nodes() {
		var o talos.Observation
		require.Eventually(t, func() bool {
			o = client.Observe(context.Background(), talos.Target{Name: node.Name(), Endpoint: node.Address()})
			return o.Active != nil
		}, ample, 20*time.Millisecond)
		require.Equal(t, "1", o.Active.Machine().Sysctls()["vm.overcommit_memory"], node.Name())
		require.NotNil(t, o.Persistent, node.Name())
		require.Equal(t, "1", o.Persistent.Machine().Sysctls()["vm.overcommit_memory"], node.Name())
	}
	require.NotContains(t, strings.Join(report.Problems(), "; "), "ForeignConfig")
}
