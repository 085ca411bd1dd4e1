package reconcile

import (
	"os"
	"testing"

	"ichor.maesh.dev/backup/drill"
	"ichor.maesh.dev/backup/revision"
	"ichor.maesh.dev/internal/s3gateway"
)

// TestMain lets a test start this program again as an S3 server, and the agents in it as a drill.
func TestMain(m *testing.M) {
	drill.RunIfChild()
	revision.RunIfChild()
	s3gateway.RunIfChild()
	os.Exit(m.Run())
}
