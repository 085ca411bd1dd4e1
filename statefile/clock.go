package statefile

import "time"

// Clocks reads a machine's three clocks. The monotonic one stands still while the machine sleeps, the boot-time one doesn't,
// and the wall clock may be set. Where the age of something protects a node, the largest of the three counts.
type Clocks interface {
	Now() Instant
}

// Instant is a reading of the three clocks, from one machine and one boot.
type Instant struct {
	Monotonic time.Duration
	Boot      time.Duration
	Wall      time.Time
}

// Since is how long ago then was: the largest that any clock says, never negative.
func (i Instant) Since(then Instant) time.Duration {
	return max(i.Monotonic-then.Monotonic, i.Boot-then.Boot, i.Wall.Round(0).Sub(then.Wall.Round(0)), 0)
}

// Passed is how much time has gone by since then for certain: what the clock says that nobody sets, never negative.
func (i Instant) Passed(then Instant) time.Duration { return max(i.Monotonic-then.Monotonic, 0) }

// SystemClocks reads the clocks of this machine. Instants compare only with others of the same Clocks. Where the system has no boot-time clock the monotonic one stands in for it.
func SystemClocks() Clocks { return systemClocks{start: time.Now()} }

type systemClocks struct{ start time.Time }

func (c systemClocks) Now() Instant {
	now := time.Now()
	monotonic := now.Sub(c.start)
	boot, ok := bootTime()
	if !ok {
		boot = monotonic
	}
	return Instant{Monotonic: monotonic, Boot: boot, Wall: now.Round(0)}
}
