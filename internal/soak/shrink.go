package soak

// mostRuns bounds how often a history that failed is run again.
const mostRuns = 60

// shrink lets ever fewer events of a history happen that failed, as long as it fails in the same way, and gives the shortest with its options. Run
// runs it.
func shrink(failed *Result, options Options, run func(Options) *Result) (*Result, Options) {
	kept := options.Only
	if kept == nil {
		for n := range failed.Events {
			kept = append(kept, n+1)
		}
	}
	alike := func(r *Result) bool { return len(r.Broken) > 0 == (len(failed.Broken) > 0) && r.Failed() }
	shortest, runs := failed, 0
	for size := (len(kept) + 1) / 2; size > 0; size /= 2 {
		for at := 0; at < len(kept) && runs < mostRuns; {
			fewer := options
			fewer.Only = append(append([]int{}, kept[:at]...), kept[min(at+size, len(kept)):]...) // not nil where none is left, which would be all
			runs++
			if r := run(fewer); alike(r) {
				shortest, kept = r, fewer.Only
				continue
			}
			at += size
		}
	}
	options.Only = kept
	return shortest, options
}
