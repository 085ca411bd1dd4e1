package soak

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// summary adds up many histories.
type summary struct {
	seeds, failed, steps int
	lasted               time.Duration
	faults, calls        map[string]int
}

func newSummary() *summary { return &summary{faults: map[string]int{}, calls: map[string]int{}} }

func (s *summary) add(r *Result) {
	s.seeds++
	s.steps += r.Steps
	s.lasted += r.Lasted + r.Converged
	if r.Failed() {
		s.failed++
	}
	for kind, n := range r.Faults {
		s.faults[kind] += n
	}
	for kind, n := range r.Calls {
		s.calls[kind] += n
	}
}

func (s *summary) String() string {
	return fmt.Sprintf("%d failed; %d steps in %s of modelled time; calls that were taken: %s; what befell: %s", s.failed, s.steps, s.lasted.Round(time.Minute), list(s.calls), list(s.faults))
}

func list(counts map[string]int) string {
	var parts []string
	for _, kind := range slices.Sorted(maps.Keys(counts)) {
		parts = append(parts, fmt.Sprintf("%s %d", kind, counts[kind]))
	}
	return strings.Join(parts, ", ")
}
