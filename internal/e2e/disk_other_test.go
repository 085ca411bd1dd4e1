//go:build !linux

package e2e

import "testing"

// mountSmall does nothing here: only Linux has a file system in memory that a test can mount.
func mountSmall(*testing.T, string) {}

func canMount() bool { return false }
