package main

import (
	"encoding/xml"
	"errors"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestUnitsThatAreNotGosOwnAreKept(t *testing.T) {
	line := "BenchmarkPass-2  1  123456 ns/op  0 fetches/op  7.5 MiB-live  4096 B/op  12 allocs/op\n"
	figures := map[string]float64{}
	if got, want := extraUnits(line, figures), "0 fetches/op, 7.5 MiB-live"; got != want {
		t.Errorf("extraUnits = %q, want %q", got, want)
	}
	if figures["MiB-live"] != 7.5 || figures["allocs/op"] != 12 {
		t.Errorf("the figures are %v", figures)
	}
}

func TestARowThatWasNotMeasuredSaysSo(t *testing.T) {
	results := map[string]result{}
	note("BenchmarkX/a-2  1  3000000 ns/op  2 cpu-ms/op  7 MiB-kept  4096 B/op  12 allocs/op\n", "", results)
	note("BenchmarkX/c-2  1  1000000 ns/op  1 cpu-ms/op\n", "", results)
	note("BenchmarkX/d-2  1  1000000 ns/op\n", "", results)
	note("goos: linux\n", "", results)
	for _, c := range []struct {
		row  row
		want string
	}{
		{row{title: "a", benchmark: "BenchmarkX/a"}, "a|2.0 ms|3.0 ms|4.0 KiB|7 MiB-kept|"},
		{row{title: "a", benchmark: "BenchmarkX/a", peer: "BenchmarkX/b", peerTitle: "b"}, "a|2.0 ms|3.0 ms|4.0 KiB|7 MiB-kept|not measured: b"},
		{row{title: "a", benchmark: "BenchmarkX/a", peer: "BenchmarkX/c", peerTitle: "c"}, "a|2.0 ms|3.0 ms|4.0 KiB|7 MiB-kept|2.00 × c"},
		{row{title: "a", benchmark: "BenchmarkX/a", peer: "BenchmarkX/d", peerTitle: "d"}, "a|2.0 ms|3.0 ms|4.0 KiB|7 MiB-kept|3.00 × d"},
		{row{title: "b", benchmark: "BenchmarkX/b", peer: "BenchmarkX/a", peerTitle: "a"}, "b|not measured||||"},
	} {
		if got := strings.Join(cells(c.row, results)[:6], "|"); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
}

func TestABenchmarkThatFailsLeavesTheOthersAsTheyAre(t *testing.T) {
	results := map[string]result{}
	take := func(line string) { note(line, "", results) }
	err := measure(t.Context(), program{file: "/bin/sh", folder: t.TempDir()}, "", "", take)
	if err == nil || len(results) != 0 {
		t.Errorf("a program that isn't a test's gave %v and %v", err, results)
	}
	p := script(t, "echo 'BenchmarkX/a-2  1  3000000 ns/op'\necho 'it broke' >&2\nexit 1\n")
	err = measure(t.Context(), p, "", "", take)
	if err == nil || errors.Is(err, errDied) || !strings.Contains(err.Error(), "it broke") || results["BenchmarkX/a"].NsPerOp != 3e6 {
		t.Errorf("got %v and %v", err, results)
	}
}

// script is a program that stands in the place of a package's benchmarks.
func script(t *testing.T, text string) program {
	t.Helper()
	file := filepath.Join(t.TempDir(), "bench")
	if err := os.WriteFile(file, []byte("#!/bin/sh\n"+text), 0o700); err != nil {
		t.Fatal(err)
	}
	return program{file: file, folder: t.TempDir()}
}

func TestWhatAProcessThatDiedDidNotComeToIsRunByItself(t *testing.T) {
	rows := []row{{pkg: "p", benchmark: "BenchmarkX/a"}, {pkg: "p", benchmark: "BenchmarkX/b"}, {pkg: "p", benchmark: "BenchmarkX/c", peer: "BenchmarkX/d"},
		{pkg: "p", benchmark: "BenchmarkY/a"}, {pkg: "p", benchmark: "BenchmarkX/alone", alone: true}}
	for name, test := range map[string]struct {
		whole string
		want  []string
	}{
		"it panics":          {"echo 'panic: no such thing'; exit 2", []string{"BenchmarkX/a", "BenchmarkX/c", "BenchmarkX/d"}},
		"it is killed":       {"kill -9 $$", []string{"BenchmarkX/a", "BenchmarkX/c", "BenchmarkX/d"}},
		"one of them failed": {"echo '--- FAIL: BenchmarkX/b'; exit 1", []string{"BenchmarkX/a"}},
	} {
		t.Run(name, func(t *testing.T) {
			// The fourth argument is the pattern. Alone, b fails once more.
			p := script(t, "case \"$4\" in\n'^BenchmarkX$') echo 'BenchmarkX/a-2 1 5 ns/op'; "+test.whole+" ;;\n*/^b*) exit 1 ;;\n"+
				"*/^c*) echo 'BenchmarkX/c-2 1 5 ns/op' ;;\n*/^d*) echo 'BenchmarkX/d-2 1 5 ns/op' ;;\n*) echo unexpected; exit 9 ;;\nesac\n")
			m := &measurement{results: map[string]map[string]result{}}
			err := m.measureName(t.Context(), p, rows, "p", "BenchmarkX", "1x")
			if err == nil || strings.Contains(err.Error(), "unexpected") {
				t.Errorf("got %v", err)
			}
			if got := slices.Sorted(maps.Keys(m.results["p"])); !slices.Equal(got, test.want) {
				t.Errorf("measured %v, want %v", got, test.want)
			}
		})
	}
}

func TestFiguresReadWell(t *testing.T) {
	for _, c := range []struct{ got, want string }{
		{duration(1.5e9), "1.50 s"}, {duration(2.5e6), "2.5 ms"}, {duration(900), "0.9 µs"},
		{size(3 << 20), "3.0 MiB"}, {size(512), "0.5 KiB"},
	} {
		if c.got != c.want {
			t.Errorf("got %q, want %q", c.got, c.want)
		}
	}
}

func TestOnlyTheBenchmarksOfTheTableRun(t *testing.T) {
	table := []row{{pkg: "a", benchmark: "BenchmarkX/1"}, {pkg: "a", benchmark: "BenchmarkX/2", peer: "BenchmarkY"}, {pkg: "b", benchmark: "BenchmarkZ"},
		{pkg: "a", benchmark: "BenchmarkLoad/10_clusters", alone: true}}
	if got, want := together(rowsTitled(table, ""), "a"), []string{"BenchmarkX", "BenchmarkY"}; !slices.Equal(got, want) {
		t.Errorf("together = %q, want %q", got, want)
	}
	if got, want := exactly("BenchmarkLoad/10_clusters"), "^BenchmarkLoad$/^10_clusters$"; got != want {
		t.Errorf("exactly = %q, want %q", got, want)
	}
}

func TestRequestsArePaidForByKind(t *testing.T) {
	got := dollars(map[string]float64{"PutObject/min": 12, "GetObject/min": 1000, "ListObjectsV2/min": 1000, "ListObjectsV2/hour": 60000, "DeleteObject/min": 1000, "Observe/min": 1e6, "cpu-ms/op": 1e6})
	// A month has 43,200 minutes: 87 million at half a cent a thousand, and 43.2 million at 0.04 cents.
	if want := 43.2*2012*0.005 + 43.2*1000*0.0004; math.Abs(got-want) > 1e-6 {
		t.Errorf("dollars = %v, want %v", got, want)
	}
}

func TestWhatGrowsInProportionIsDrawnAlongTheDashedLine(t *testing.T) {
	svg := drawing([]panel{{title: "a < b", x: "machines", lines: []line{{name: "one", points: []point{{10, 10}, {100, 100}, {1000, 1000}}}}}})
	for _, want := range []string{"a &lt; b", `points="60.0,256.0 202.0,148.0 344.0,40.0"`, `<line x1="60.0" y1="256.0" x2="344.0" y2="40.0" stroke="#777777" stroke-dasharray="4 4"/>`, ">1,000</text>"} {
		if !strings.Contains(svg, want) {
			t.Errorf("the drawing lacks %q:\n%s", want, svg)
		}
	}
	if err := xml.Unmarshal([]byte(svg), new(struct {
		XMLName xml.Name `xml:"svg"`
	})); err != nil {
		t.Error(err)
	}
}

func TestEveryMemoryRowNamesASubBenchmarkOnce(t *testing.T) {
	seen := map[string]bool{}
	for _, r := range memoryRows() {
		if seen[r.benchmark] || seen[r.title] {
			t.Errorf("%s is there twice", r.title)
		}
		seen[r.benchmark], seen[r.title] = true, true
	}
	if !seen["BenchmarkSnapshotMemory/get_--decrypt_1024_MiB"] || len(rowsTitled(rows, "memory of backup")) != len(operations)*len(sizes) {
		t.Errorf("the rows are %v", memoryRows())
	}
}
