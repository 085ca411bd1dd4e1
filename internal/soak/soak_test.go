package soak

import (
	"cmp"
	"flag"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

var (
	seeds    = flag.Int("soak.seeds", 6, "how many histories of modelled machines are run")
	first    = flag.Uint64("soak.first", 1, "the first seed")
	only     = flag.String("soak.only", "", "let only these events of a history happen: their numbers, with commas between them")
	restores = flag.Bool("soak.restores", false, "let every cluster have backups, and be restored from them")
	frozen   = flag.Bool("soak.frozen", false, "let agents freeze often and long")
	hosted   = flag.Bool("soak.hosted", false, "let agents live on control planes")
	verbose  = flag.Bool("soak.v", false, "print every history, and the agents' logs of one that failed")
)

// madeKeys are made once: to make them takes longer than many a history.
var madeKeys = sync.OnceValues(NewKeys)

func sharedKeys(t *testing.T) *Keys {
	t.Helper()
	keys, err := madeKeys()
	require.NoError(t, err)
	return keys
}

// history runs one seed in a bubble of its own.
func history(t *testing.T, seed uint64, keys *Keys, options Options) (result *Result) {
	synctest.Test(t, func(*testing.T) {
		result = Run(seed, keys, options)
		time.Sleep(2 * time.Minute) // calls that were sent late come to their end
	})
	return result
}

// asked are the options that the flags ask for.
func asked(t *testing.T) Options {
	t.Helper()
	options := Options{Restores: *restores, Frozen: *frozen, Hosted: *hosted}
	for _, number := range strings.FieldsFunc(*only, func(r rune) bool { return r == ',' }) {
		n, err := strconv.Atoi(number)
		require.NoError(t, err)
		options.Only = append(options.Only, n)
	}
	return options
}

// command replays a history.
func command(seed uint64, options Options) string {
	text := fmt.Sprintf("make soak SEEDS=1 FIRST=%d", seed)
	if options.Restores {
		text += " RESTORES=1"
	}
	if options.Frozen {
		text += " FROZEN=1"
	}
	if options.Hosted {
		text += " HOSTED=1"
	}
	switch {
	case options.Only == nil:
	case len(options.Only) == 0:
		text += " ONLY=0"
	default:
		text += " ONLY=" + strings.Trim(strings.ReplaceAll(fmt.Sprint(options.Only), " ", ","), "[]")
	}
	return text
}

// TestOneSeedGivesOneHistory runs one seed twice: a failure must be there again when it is looked at.
func TestOneSeedGivesOneHistory(t *testing.T) {
	keys := sharedKeys(t)
	const seed = 32 // agents that die and freeze, a flaky store
	once := happened(t, history(t, seed, keys, Options{}))
	require.Greater(t, len(once), 30)
	again := happened(t, history(t, seed, keys, Options{}))
	require.Len(t, again, len(once))
	for n := range once {
		require.Equal(t, once[n].what, again[n].what)
		require.InDelta(t, once[n].at.Seconds(), again[n].at.Seconds(), 0.05, once[n].what)
	}
}

// happening is a line of a history.
type happening struct {
	at   time.Duration
	what string
}

// happened gives what happened in a history by what it was and then by its time. Calls that a process makes at one instant have no order of their
// own, so that one takes the other's few milliseconds.
func happened(t *testing.T, r *Result) (list []happening) {
	t.Helper()
	for line := range strings.Lines(r.History) {
		at, what, found := strings.Cut(strings.TrimSpace(line), "  ")
		require.True(t, found, line)
		after, err := time.ParseDuration(at)
		require.NoError(t, err)
		list = append(list, happening{after, what})
	}
	slices.SortFunc(list, func(a, b happening) int { return cmp.Or(strings.Compare(a.what, b.what), cmp.Compare(a.at, b.at)) })
	return list
}

// TestRandomHistories runs clusters of modelled machines through random histories.
func TestRandomHistories(t *testing.T) {
	keys := sharedKeys(t)
	began, sum, options := time.Now(), newSummary(), asked(t)
	for n := range *seeds {
		seed := *first + uint64(n)
		result := history(t, seed, keys, options)
		sum.add(result)
		if sum.seeds%50 == 0 {
			fmt.Printf("soak: %d seeds so far, in %s: %s\n", sum.seeds, time.Since(began).Round(time.Second), sum)
		}
		if *verbose || result.Failed() {
			fmt.Println(result.History)
		}
		if result.Failed() {
			if *verbose {
				fmt.Println(result.Logs)
			}
			t.Errorf("seed %d (%s):\nbroken: %q\nnot converged: %q\nreplay it with: %s", seed, result.Shape, result.Broken, result.Unsettled, command(seed, options))
			shortest, least := shrink(result, options, func(o Options) *Result { return history(t, seed, keys, o) })
			fmt.Printf("%s\nthe shortest history that fails so has %d of the %d events:\nbroken: %q\nnot converged: %q\nreplay it with: %s\n", shortest.History,
				shortest.Steps, result.Steps, shortest.Broken, shortest.Unsettled, command(seed, least))
		}
	}
	fmt.Fprintf(os.Stdout, "soak: %d of %d seeds, first seed %d, in %s: %s\n", sum.seeds, *seeds, *first, time.Since(began).Round(time.Second), sum)
}
