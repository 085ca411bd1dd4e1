package main

import (
	"encoding/xml"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

var someRows = []row{{title: "a", pkg: "p", benchmark: "BenchmarkX/a"}, {title: "b|c", pkg: "p", benchmark: "BenchmarkX/b", peer: "BenchmarkX/a", peerTitle: "a"}}

func someRun() *measurement {
	return &measurement{Began: time.Date(2026, 12, 1, 1, 2, 3, 0, time.UTC), Conditions: "2 processors, go1.26.8", results: map[string]map[string]result{}}
}

func TestWhatWasKeptGivesTheSameTable(t *testing.T) {
	file := filepath.Join(t.TempDir(), "bench.jsonl")
	keep, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	m := someRun()
	m.keep = keep
	m.write(m)
	m.taker("p")("goos: linux\n")
	m.taker("p")("BenchmarkX/a-2  1  3000000 ns/op  2 cpu-ms/op  7 MiB-kept\n")
	if err := keep.Close(); err != nil || m.unkept != nil {
		t.Fatal(err, m.unkept)
	}
	read := someRun()
	read.Began, read.Conditions = time.Time{}, ""
	if err := read.read(file); err != nil {
		t.Fatal(err)
	}
	if got, want := read.markdown(someRows), m.markdown(someRows); got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}

	// A run that was killed may leave half a line, which is no reason to lose the others.
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for content, want := range map[string]string{
		string(text) + `{"package":"p","li`: "",
		"":                                  "line 1",
		"{}\n":                              "line 1",
		string(text) + "{\n":                "line 3",
		string(text) + `{"package":"p","line":"PASS"}` + "\n": "holds no result",
	} {
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		err := someRun().read(file)
		if (want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q gave %v, want %q", content, err, want)
		}
	}
}

func TestTheTableGoesBetweenTheMarkersOfThePage(t *testing.T) {
	m := someRun()
	m.results["p"] = map[string]result{}
	note("BenchmarkX/a-2  1  3000000 ns/op  2 cpu-ms/op  7 MiB-kept  4096 B/op\n", "9.6", m.results["p"])
	page := filepath.Join(t.TempDir(), "page.md")
	write := func(text string) {
		if err := os.WriteFile(page, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("above\n\n" + pageBegin + "an older table\n" + pageEnd + "\nbelow\n")
	for range 2 { // a second time changes nothing
		if err := m.writePage(page, someRows); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		want := "above\n\n" + pageBegin + `Measured on 2026-12-01 in one run of ` + "`make bench`" + `: 2 processors, go1.26.8, a load average of 10.

| what | processor time | time | allocated | more | against | load average |
|---|---|---|---|---|---|---|
| a | 2.0 ms | 3.0 ms | 4.0 KiB | 7 MiB-kept |  | 9.6 |
| b\|c | not measured |  |  |  |  |  |
` + pageEnd + "\nbelow\n"
		if string(got) != want {
			t.Errorf("got %s\nwant %s", got, want)
		}
	}
	for _, text := range []string{"no markers", pageBegin, pageEnd + pageBegin, pageBegin + pageEnd + pageBegin + pageEnd} {
		write(text)
		if err := m.writePage(page, someRows); err == nil {
			t.Errorf("%q was taken", text)
		}
		if got, _ := os.ReadFile(page); string(got) != text {
			t.Errorf("%q became %q", text, got)
		}
	}
}

func TestARunThatLeftRowsOutIsNotPutIntoThePage(t *testing.T) {
	dir := t.TempDir()
	file, page := filepath.Join(dir, "bench.jsonl"), filepath.Join(dir, "page.md")
	for path, text := range map[string]string{file: `{"began":"2026-12-01T01:53:51Z","conditions":"c","partly":true}` + "\n", page: pageBegin + pageEnd} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	m := someRun()
	if err := m.read(file); err != nil {
		t.Fatal(err)
	}
	if err := m.writePage(page, someRows); err == nil || !strings.Contains(err.Error(), "left rows out") {
		t.Errorf("got %v", err)
	}
}

func TestTheTitleSaysWhatTheMachineDidBesides(t *testing.T) {
	for want, loads := range map[string][]string{"go1.26.8.": {"", ""}, "go1.26.8, a load average of 3.": {"3.1", ""}, "go1.26.8, load averages of 3 to 18.": {"17.6", "3.1"}} {
		m := someRun()
		m.results["p"] = map[string]result{"BenchmarkX/a": {busy: loads[0]}, "BenchmarkX/b": {busy: loads[1]}}
		if got := m.title(someRows); !strings.HasSuffix(got, want) {
			t.Errorf("got %q, want %q at its end", got, want)
		}
	}
	if got := []string{counted(1, "cluster"), counted(300, "machine"), counted(1000, "cluster")}; strings.Join(got, "; ") != "1 cluster; 300 machines; 1,000 clusters" {
		t.Errorf("got %q", got)
	}
}

func TestThePageOfTheBenchmarksHasItsMarkers(t *testing.T) {
	page, err := os.ReadFile("../../docs/benchmarks.md")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := intoPage(string(page), ""); err != nil {
		t.Error(err)
	}
}

func TestThePagesTableIsOfOneWholeRun(t *testing.T) {
	for name, test := range map[string]struct {
		o    options
		want string
	}{
		"a whole run":          {options{keep: "a", write: "b", plot: "c"}, ""},
		"one that was made":    {options{from: "a", write: "b"}, ""},
		"a part of the rows":   {options{write: "b", only: "load"}, "one whole run"},
		"the quick ones":       {options{write: "b", quick: true}, "one whole run"},
		"kept from what is so": {options{from: "a", keep: "b"}, "measures nothing"},
	} {
		if err := test.o.check(); (test.want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v, want %q", name, err, test.want)
		}
	}
}

// Figures as those of 1,000 clusters are, which take an hour to measure.
func TestAThousandClustersAreDrawnInsideOfTheirPanels(t *testing.T) {
	wanted, found := loadRows(), map[string]map[string]result{}
	for _, r := range wanted {
		if found[r.pkg] == nil {
			found[r.pkg] = map[string]result{}
		}
		machines := float64(r.load[0] * r.load[1])
		note(fmt.Sprintf("%s-2  1  5 ns/op  %f cpu-ms/op  %f cpu-s-commit  %f cpu-s-restart  %f kept-MiB\n", r.benchmark, 0.14*machines, 0.0011*machines, 0.0037*machines, 3.6+0.04*machines),
			"", found[r.pkg])
	}
	svg := loadPlot(wanted, found)
	var drawn struct {
		ViewBox string `xml:"viewBox,attr"`
		Panels  []struct {
			Circles []struct {
				X float64 `xml:"cx,attr"`
				Y float64 `xml:"cy,attr"`
			} `xml:"circle"`
			Lines []struct {
				Points string `xml:"points,attr"`
			} `xml:"polyline"`
		} `xml:"g"`
		Texts []struct {
			X    float64 `xml:"x,attr"`
			Text string  `xml:",chardata"`
		} `xml:"text"`
	}
	if err := xml.Unmarshal([]byte(svg), &drawn); err != nil {
		t.Fatal(err)
	}
	if len(drawn.Panels) != 4 {
		t.Fatalf("%d panels", len(drawn.Panels))
	}
	for n, p := range drawn.Panels {
		if len(p.Circles) != len(loadShapes) || len(p.Lines) != 2 {
			t.Errorf("panel %d has %d points and %d lines", n, len(p.Circles), len(p.Lines))
		}
		for _, at := range p.Circles {
			if at.X < marginLeft || at.X > marginLeft+plotWidth || at.Y < marginTop || at.Y > marginTop+plotHeight {
				t.Errorf("panel %d: %v is outside of it", n, at)
			}
		}
	}
	width, err := strconv.ParseFloat(strings.Fields(drawn.ViewBox)[2], 64)
	if err != nil {
		t.Fatal(err)
	}
	if len(drawn.Texts) != 4 || !strings.Contains(svg, ">10,000</text>") {
		t.Errorf("the legend is %v", drawn.Texts)
	}
	for _, text := range drawn.Texts {
		if text.X+6.5*float64(len(text.Text)) > width {
			t.Errorf("%q ends beyond the drawing", text.Text)
		}
	}
}
