package e2e

import (
	"encoding/json"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/internal/s3gateway"
	"ichor.maesh.dev/statefile"
)

// backupIs gives a condition on the backup "hourly".
func backupIs(what string, is func(*statefile.BackupState) bool) func(*statefile.State) error {
	return func(s *statefile.State) error {
		b := s.Backups["hourly"]
		if b == nil {
			return fmt.Errorf("nothing is remembered of the backup")
		}
		if !is(b) {
			return fmt.Errorf("the backup is not %s: %s: %s", what, b.Ready.Reason, b.Ready.Message)
		}
		return nil
	}
}

func TestTheAgentsOwnKeysServeOnlyTheDestinationThatItWasTold(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "127.0.77.1", 1, 0)
	a := w.startAgent("one")
	w.awaitState("the cluster Ready", ready) // a cluster whose backups can't be looked at is not begun
	w.files[clusterDir+"/backup.yaml"] = fmt.Sprintf(`apiVersion: ichor.maesh.dev/v1alpha1
kind: TalosEtcdBackup
metadata: {name: hourly}
spec:
  clusterRef: {name: prod}
  destination: {s3: {endpoint: %q, region: %s, bucket: %s, prefix: backups/prod, addressing: path}}
`, w.bucket.Endpoint, s3gateway.Region, bucketName)
	w.push()
	refused := w.awaitState("the backup refused", backupIs("refused", func(b *statefile.BackupState) bool { return b.Ready.Reason == "CredentialsUnreadable" }))
	assert.Contains(t, refused.Backups["hourly"].Ready.Message, "start the agent with --backup-destination s3://fleet/backups/prod")
	assert.Zero(t, refused.Backups["hourly"].LastSuccess)
	_, code := a.stop(syscall.SIGTERM)
	require.Zero(t, code)

	// The state's own place is never one, and neither is a destination that is only beside the one that was told.
	got := w.once("state", "--backup-destination", "s3://fleet/state/backups")
	assert.Equal(t, 2, got.code)
	assert.Contains(t, got.err, "is where the state is")
	beside := w.startAgent("one", "--backup-destination", "s3://fleet/backups/pro")
	beside.awaitSaying(0, "start the agent with --backup-destination s3://fleet/backups/prod")
	_, code = beside.stop(syscall.SIGTERM)
	require.Zero(t, code)

	w.startAgent("one", "--backup-destination", "s3://fleet/backups/prod")
	stored := w.awaitState("a snapshot stored", backupIs("stored", func(b *statefile.BackupState) bool { return b.Ready.Status && !b.LastSuccess.IsZero() }))
	require.Len(t, stored.Backups["hourly"].Snapshots, 1)
	w.writeFile("bundle.yaml", string(w.plain))
	list := w.ichor("backup", "list", "--bundle", w.path("bundle.yaml"), "--from", "s3://fleet/backups/prod", "--s3-endpoint", w.endpoint,
		"--s3-credentials", w.path("s3.yaml"), "-o", "json")
	require.Zero(t, list.code, list.err)
	require.True(t, json.Valid([]byte(list.out)))
	assert.Contains(t, list.out, stored.Backups["hourly"].Snapshots[0].Name)

	canaries := w.canaries()
	var found []string
	for path, content := range w.written() {
		if !strings.HasSuffix(path, "bundle.yaml") && !strings.HasSuffix(path, "s3.yaml") {
			found = append(found, findings(path, content, canaries)...)
		}
	}
	found = append(found, findings("what was printed", w.printed.String(), canaries)...)
	assert.Empty(t, found)
}
