//go:build unix

// Package cputime measures what benchmarks take of the processors' time: it is the fair figure where other work runs beside them.
package cputime

import (
	"syscall"
	"testing"
	"time"
)

// Unit is that of the figure which Of reports.
const Unit = "cpu-ms/op"

// Of begins to measure; what it returns ends that and reports the processor time of one operation. It is called right before the benchmark's
// loop, and what it returns after that.
func Of(b *testing.B) (report func()) {
	b.Helper()
	began := used(b)
	return func() {
		b.Helper()
		b.ReportMetric(float64((used(b)-began).Microseconds())/1000/float64(b.N), Unit)
	}
}

// used is the processor time of this process so far.
func used(b *testing.B) time.Duration {
	b.Helper()
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
