package soak

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// faulty is one way in which a product might be broken, and what a history has to say of it.
type faulty struct {
	name string
	// reports is what is said to be broken; stays what hasn't converged.
	reports, stays string
	sabotage       sabotage
	// events are what its histories are made of; nil: nothing but the coming up of the clusters.
	events  []event
	options Options
	// from is the first seed that is tried; 0: 100.
	from uint64
}

// saying is an event that is drawn as often as the others.
func saying(happen func(*run) bool) event { return event{1, happen} }

// idle lets ten minutes pass.
func (r *run) idle() bool {
	time.Sleep(10 * time.Minute)
	return true
}

// sabotagedSeeds is how many seeds are tried until a history reports what is broken: not every one has the machines for it.
const sabotagedSeeds = 6

// TestAHistoryReportsWhatIsBroken runs histories with a product that is broken on purpose, at the edges between it and the world: each has to say
// by name what was broken. Whoever judges nothing would pass every other test of this package.
func TestAHistoryReportsWhatIsBroken(t *testing.T) {
	keys := sharedKeys(t)
	var all []faulty
	all = append(append(append(append(all, brokenCalls()...), brokenStates()...), brokenLooks()...), brokenRestores()...)
	all = append(all, brokenBackups()...)
	for _, b := range all {
		t.Run(b.name, func(t *testing.T) {
			var said []string
			for seed := range uint64(sabotagedSeeds) {
				result := history(t, max(b.from, 100)+seed, keys, b.whole())
				if b.reported(result) {
					t.Logf("seed %d, after %d of %d events, %s", result.Seed, result.Steps, result.Events, result.Lasted+result.Converged)
					return
				}
				said = append(append(append(said, result.Shape), result.Broken[:min(3, len(result.Broken))]...), result.Unsettled...)
			}
			require.Failf(t, "nothing of it was reported", "%q %q was to be said, and this was:\n%s", b.reports, b.stays, strings.Join(said, "\n"))
		})
	}
}

// TestASabotagedHistoryIsReducedToTheEventsThatItTakes shrinks a history of the usual events. Seed 16 is the first of which the sabotage is reported.
func TestASabotagedHistoryIsReducedToTheEventsThatItTakes(t *testing.T) {
	keys := sharedKeys(t)
	b := brokenLooks()[0]
	for seed := uint64(16); ; seed++ {
		options := b.whole()
		options.events, options.Only = nil, nil
		run := func(o Options) *Result {
			r := history(t, seed, keys, o)
			if !b.reported(r) {
				r.Broken = nil
			}
			return r
		}
		failed := run(options)
		if !failed.Failed() {
			continue
		}
		shortest, least := shrink(failed, options, run)
		require.True(t, b.reported(shortest))
		require.Less(t, shortest.Steps, 5)
		t.Logf("%s, seed %d (%s): %d of its %d events happened until it was reported, and these are left: %v\n%s\nbroken: %q", b.name, seed, failed.Shape,
			failed.Steps, failed.Events, least.Only, shortest.History, shortest.Broken)
		return
	}
}

// whole are the options that run it, as far as what is to be reported.
func (b faulty) whole() Options {
	options := b.options
	options.sabotage, options.events = b.sabotage, b.events
	if options.events == nil {
		options.Only = []int{}
	}
	options.patience = 40 * time.Minute
	if b.stays == "" {
		options.enough = func(list []string) bool { return containsText(list, b.reports) }
	}
	return options
}

func (b faulty) reported(r *Result) bool {
	if b.stays != "" {
		return containsText(r.Unsettled, b.stays)
	}
	return containsText(r.Broken, b.reports)
}

func containsText(list []string, text string) bool {
	return strings.Contains(strings.Join(list, "\n"), text)
}
