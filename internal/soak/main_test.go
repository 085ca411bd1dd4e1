package soak

import (
	"os"
	"testing"

	"ichor.maesh.dev/backup/revision"
)

// TestMain does a child's work where this was started as one: restores of modelled machines open real snapshots.
func TestMain(m *testing.M) {
	revision.RunIfChild()
	os.Exit(m.Run())
}
