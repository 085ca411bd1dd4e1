package soak

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

var (
	seeds   = flag.Int("soak.seeds", 6, "how many histories of modelled machines are run")
	first   = flag.Uint64("soak.first", 1, "the first seed")
	verbose = flag.Bool("soak.v", false, "print every history, and the agents' logs of one that failed")
)

// history runs one seed in a bubble of its own.
func history(t *testing.T, seed uint64, keys *Keys) (result *Result) {
	synctest.Test(t, func(*testing.T) { result = Run(seed, keys) })
	return result
}

// TestOneSeedGivesOneHistory runs one seed twice: a failure must be there again when it is looked at.
func TestOneSeedGivesOneHistory(t *testing.T) {
	keys, err := NewKeys()
	require.NoError(t, err)
	const seed = 32 // agents that die and freeze, a flaky store
	once := history(t, seed, keys)
	require.Greater(t, once.Steps, 10)
	require.Equal(t, inOrder(once.History), inOrder(history(t, seed, keys).History))
}

// inOrder gives the lines of a history, each of which begins with its time: those of one instant have no order of their own.
func inOrder(history string) []string {
	lines := strings.Split(history, "\n")
	slices.Sort(lines)
	return lines
}

// TestRandomHistories runs clusters of modelled machines through random histories.
func TestRandomHistories(t *testing.T) {
	keys, err := NewKeys()
	require.NoError(t, err)
	began, sum := time.Now(), newSummary()
	for n := range *seeds {
		seed := *first + uint64(n)
		result := history(t, seed, keys)
		sum.add(result)
		if *verbose || result.Failed() {
			fmt.Println(result.History)
		}
		if result.Failed() {
			if *verbose {
				fmt.Println(result.Logs)
			}
			t.Errorf("seed %d (%s):\nbroken: %q\nnot converged: %q\nreplay it with: make soak SEEDS=1 FIRST=%d", seed, result.Shape, result.Broken, result.Unsettled, seed)
		}
	}
	fmt.Fprintf(os.Stdout, "soak: %d of %d seeds, first seed %d, in %s: %s\n", sum.seeds, *seeds, *first, time.Since(began).Round(time.Second), sum)
}
