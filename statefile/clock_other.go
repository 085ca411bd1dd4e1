//go:build !linux

package statefile

import "time"

// bootTime: this system has none that is the same everywhere.
func bootTime() (time.Duration, bool) { return 0, false }
