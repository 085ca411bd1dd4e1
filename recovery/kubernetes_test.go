package recovery

import (
	"testing"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/kube"
	"ichor.maesh.dev/talos"
)

func TestANodeIsTheMachinesWhoseUUIDItsKubeletReports(t *testing.T) {
	machines := []Machine{{Name: "cp-1", UUID: "00000000-0000-4000-8000-000000000001"}, {Name: "cp-2", UUID: "00000000-0000-4000-8000-000000000002"},
		{Name: "cp-3", Endpoint: "10.0.0.3:50000", UUID: "00000000-0000-4000-8000-000000000003"}}
	seen := map[string]Seen{"cp-3": {Observation: talos.Observation{Hostname: "talos-abc"}}}
	found, _ := nodesOf(machines, seen, []kube.Node{
		{Name: "cp-2", SystemUUID: machines[0].UUID}, // swapped names: the UUID decides
		{Name: "cp-1", SystemUUID: machines[1].UUID},
		{Name: "talos-abc", Addresses: []string{"10.0.0.3"}},
		{Name: "cp-3", SystemUUID: "another machine's"},
		{Name: "worker-1"},
	})
	require.Len(t, found, 3)
	require.Equal(t, "cp-2", found["cp-1"].Name)
	require.Equal(t, "cp-1", found["cp-2"].Name)
	require.Equal(t, "talos-abc", found["cp-3"].Name)
}
