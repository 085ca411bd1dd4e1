package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
)

// event is a line of `go test -json`, as far as it matters here.
type event struct {
	Action  string
	Package string
	Test    string
	Elapsed float64 // seconds
}

// ran is one run of a package's test binary.
type ran struct {
	open   map[string]bool // the tests that were begun and have not ended
	failed int             // how many ended by failing
	result string          // the package's; empty while it runs
}

// timed is how long a test took.
type timed struct {
	name string
	took time.Duration
}

// verdict is what the events say.
type verdict struct {
	// unstable failed at first and passed when run alone; failed did not pass at last. Both are names of whole tests.
	unstable, failed []string
	// broken says of packages why their runs prove nothing.
	broken []string
	tests  int
	took   []timed
}

func (v verdict) good() bool { return len(v.failed) == 0 && len(v.broken) == 0 }

// judge reads the events of a first run of all packages and of those that followed it. A package's next run begins with its next start.
func judge(events io.Reader) (verdict, error) {
	runs := map[string][]*ran{}
	ends := map[string][]string{} // of each whole test, in the order of its runs
	took := map[string]time.Duration{}
	var v verdict
	lines := bufio.NewScanner(events)
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return v, fmt.Errorf("not an event of go test: %w", err)
		}
		if e.Package == "" {
			continue // of the build
		}
		if e.Action == "start" || runs[e.Package] == nil {
			runs[e.Package] = append(runs[e.Package], &ran{open: map[string]bool{}})
		}
		runs[e.Package][len(runs[e.Package])-1].note(e)
		ended := e.Action == "pass" || e.Action == "fail" || e.Action == "skip"
		if name := e.Package + "." + e.Test; ended && e.Test != "" && !strings.Contains(e.Test, "/") {
			ends[name] = append(ends[name], e.Action)
			took[name] = max(took[name], time.Duration(e.Elapsed*float64(time.Second)))
		}
	}
	if err := lines.Err(); err != nil {
		return v, err
	}
	if len(runs) == 0 {
		return v, fmt.Errorf("it holds no event of any package")
	}
	for _, name := range slices.Sorted(maps.Keys(ends)) {
		v.tests++
		v.took = append(v.took, timed{name, took[name]})
		switch last := ends[name][len(ends[name])-1]; {
		case last == "fail":
			v.failed = append(v.failed, name)
		case slices.Contains(ends[name], "fail"):
			v.unstable = append(v.unstable, name)
		}
	}
	slices.SortStableFunc(v.took, func(a, b timed) int { return cmp.Compare(b.took, a.took) })
	for _, name := range slices.Sorted(maps.Keys(runs)) {
		for _, r := range runs[name] {
			if why := r.broken(); why != "" {
				v.broken = append(v.broken, name+" "+why)
			}
		}
	}
	return v, nil
}

func (r *ran) note(e event) {
	switch e.Action {
	case "run":
		r.open[e.Test] = true
	case "pass", "fail", "skip":
		if e.Test == "" {
			r.result = e.Action
			return
		}
		delete(r.open, e.Test)
		if e.Action == "fail" {
			r.failed++
		}
	}
}

// broken says why a run proves nothing, or nothing.
func (r *ran) broken() string {
	switch {
	case r.result == "":
		return "has no result: it was broken off"
	case len(r.open) > 0:
		return fmt.Sprintf("ended while %s had not: what came after that never ran", strings.Join(slices.Sorted(maps.Keys(r.open)), ", "))
	case r.result == "fail" && r.failed == 0:
		return "failed, and none of its tests did"
	}
	return ""
}

// slowest is how many tests are listed by the time that they took.
const slowest = 15

func (v verdict) print(out io.Writer) {
	fmt.Fprintf(out, "\n%d tests; the slowest:\n", v.tests)
	for _, t := range v.took[:min(slowest, len(v.took))] {
		fmt.Fprintf(out, "  %8.1f s  %s\n", t.took.Seconds(), t.name)
	}
	if len(v.unstable) > 0 {
		fmt.Fprintf(out, "\n*** %d TESTS FAILED AT FIRST AND PASSED WHEN RUN ALONE: %s\n", len(v.unstable), strings.Join(v.unstable, ", "))
		fmt.Fprintln(out, "*** Each is a fault of the test, or of what it tests. Why it failed is above.")
	}
	for _, name := range v.failed {
		fmt.Fprintf(out, "\n*** FAILED: %s\n", name)
	}
	for _, why := range v.broken {
		fmt.Fprintf(out, "\n*** BROKEN: %s\n", why)
	}
}
