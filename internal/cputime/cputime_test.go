//go:build unix

package cputime

import (
	"testing"
	"time"
)

func TestWorkCountsAndWaitingDoesNot(t *testing.T) {
	result := testing.Benchmark(func(b *testing.B) {
		defer Of(b)()
		for b.Loop() {
			for began, spent := used(b), time.Duration(0); spent < 2*time.Millisecond; spent = used(b) - began {
			}
		}
	})
	if got := result.Extra[Unit]; got < 2 {
		t.Errorf("an operation of 2 ms took %v ms", got)
	}
	waiting := make(chan struct{})
	result = testing.Benchmark(func(b *testing.B) {
		defer Of(b)()
		for b.Loop() {
			time.AfterFunc(20*time.Millisecond, func() { waiting <- struct{}{} })
			<-waiting
		}
	})
	if got, wall := result.Extra[Unit], float64(result.NsPerOp())/1e6; got > wall/2 {
		t.Errorf("waiting for %v ms counted as %v ms", wall, got)
	}
}
