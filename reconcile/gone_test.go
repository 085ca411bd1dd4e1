package reconcile

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/statefile"
)

// TestAStateDeletedUnderARunningAgentIsMadeAnewAndNothingIsBootstrappedAgain deletes the state, and everything else of the
// cluster in the store, while the agent runs.
func TestAStateDeletedUnderARunningAgentIsMadeAnewAndNothingIsBootstrappedAgain(t *testing.T) {
	l := newLab(t, "127.0.54.71", 1, 0, 20)
	deleted := false
	report := l.run(l.config("agent-1"), func(r Report) bool {
		if !deleted && allReady(r) {
			deleted = true
			var keys []string
			require.NoError(t, l.store.List(context.Background(), "prod/", "", func(o statefile.ObjectInfo) error {
				keys = append(keys, o.Key)
				return nil
			}))
			require.NotEmpty(t, keys)
			for _, key := range keys {
				require.NoError(t, l.store.Delete(context.Background(), key))
			}
			return false
		}
		return deleted && allReady(r) && r.Clusters[0].State.Origin == statefile.OriginLost
	})
	require.True(t, allReady(report), "%v", report.Problems())
	state := report.Clusters[0].State
	require.Equal(t, statefile.OriginLost, state.Origin)
	require.True(t, state.Bootstrap != nil && state.Bootstrap.Adopted, "the etcd that runs is adopted")
	require.Equal(t, map[string]int{"cp-1": 1}, l.accepted("Bootstrap"))
	require.Equal(t, map[string]int{"cp-1": 1}, l.accepted("ApplyConfiguration"))
}

// TestOnePassSeesATriedConfigThrough: a config that nobody confirms would be taken back by the machine.
func TestOnePassSeesATriedConfigThrough(t *testing.T) {
	l := newLab(t, "127.0.54.81", 1, 0, 20)
	report := l.run(l.config("agent-1"), allReady)
	require.True(t, allReady(report), "%v", report.Problems())
	file := l.fleet.files["clusters/prod/cluster.yaml"]
	l.fleet.write("clusters/prod/cluster.yaml", string(file.Data)+"  patches:\n    all: [{inline: {machine: {sysctls: {vm.overcommit_memory: \"1\"}}}}]\n")
	l.source.push(l.fleet.files)
	report, err := New(l.config("agent-2")).Once(t.Context())
	require.NoError(t, err)
	rollout := report.Clusters[0].State.Rollout
	require.True(t, rollout == nil || rollout.Phase == phaseConfirm || rollout.Phase == phaseSettle, "%+v", rollout)
	require.Equal(t, map[string]int{"cp-1": 3}, l.accepted("ApplyConfiguration"), "a first config, one try, one confirmation")
}

// TestABackupThatNothingTakesYetIsRefusedAloneAndTheClusterComesUp: the document is said to be left alone.
func TestABackupThatNothingTakesYetIsRefusedAloneAndTheClusterComesUp(t *testing.T) {
	l := newLab(t, "127.0.54.91", 1, 0, 20)
	l.fleet.write("clusters/prod/backup.yaml", `apiVersion: ichor.maesh.dev/v1alpha1
kind: TalosEtcdBackup
metadata: {name: hourly}
spec:
  clusterRef: {name: prod}
  destination: {s3: {endpoint: "https://s3.example.com", bucket: backups, prefix: prod}}
`)
	l.source.push(l.fleet.files)
	report := l.run(l.config("agent-1"), allReady)
	require.True(t, allReady(report), "%v", report.Problems())
	require.Contains(t, strings.Join(report.Clusters[0].State.Revision.NotYet, "; "), "hourly")
	require.Equal(t, map[string]int{"cp-1": 1}, l.accepted("Bootstrap"))
}
