//go:build unix

package validate

import (
	"syscall"
	"time"
)

// worked is how long this process has kept processors busy: what something costs, however little of them the host has left for it.
func worked() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		panic(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
