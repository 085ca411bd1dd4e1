package soak

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAHistoryThatFailsIsReducedToTheEventsThatItTakes(t *testing.T) {
	for _, test := range []struct {
		name  string
		takes []int
	}{
		{"one event", []int{7}},
		{"two that are far from each other", []int{2, 19}},
		{"the first and the last", []int{1, 20}},
		{"none at all", []int{}},
	} {
		t.Run(test.name, func(t *testing.T) {
			run := func(o Options) *Result {
				r := &Result{Events: 20, Steps: len(o.Only)}
				for _, n := range test.takes {
					if !slices.Contains(o.Only, n) {
						r.Unsettled = []string{"it fails in another way"}
						return r
					}
				}
				r.Broken = []string{"a promise"}
				return r
			}
			shortest, options := shrink(&Result{Events: 20, Steps: 20, Broken: []string{"a promise"}}, Options{Frozen: true}, run)
			require.Equal(t, test.takes, options.Only)
			require.True(t, options.Frozen)
			require.Equal(t, []string{"a promise"}, shortest.Broken)
		})
	}
}
