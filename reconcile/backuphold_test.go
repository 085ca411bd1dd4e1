package reconcile

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/statefile"
)

func TestBackupsStandStillWhereTheyAreNotOurs(t *testing.T) {
	done := time.Date(2026, 11, 29, 10, 0, 0, 0, time.UTC)
	cluster := Cluster{Object: &schema.TalosCluster{Metadata: schema.ObjectMeta{Name: "prod"}}}
	state := func(reason string) *statefile.State {
		return &statefile.State{Bootstrap: &statefile.BootstrapRecord{Done: done}, Machines: map[string]*statefile.MachineState{
			"cp-1": {Ready: statefile.Condition{Status: true, Reason: "Ready"}}, "cp-2": {Ready: statefile.Condition{Reason: reason}}}}
	}
	in := Input{Cluster: cluster, Now: done.Add(firstBackupPatience), State: &statefile.State{}}
	held := backupHold(cluster, state("ManagedElsewhere"), in)
	require.Equal(t, "ManagedElsewhere", held.Reason)
	require.Contains(t, held.Message, "cp-2 bears the mark of another Ichor's state")
	require.Empty(t, backupHold(cluster, state("Unreachable"), in).Reason)
}
