package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// loadShapes are the fleets that BenchmarkLoad puts agents over: clusters, machines in each, agents.
var loadShapes = [][3]int{{10, 10, 1}, {100, 10, 1}, {300, 10, 1}, {1000, 10, 1}, {1, 10, 1}, {1, 100, 1}, {1, 300, 1}, {1, 1000, 1}, {1000, 10, 4}}

// loadRows are what a fleet costs the agents that look after it. Each shape runs in a process of its own, so that its memory is its own.
func loadRows() []row {
	var all []row
	for _, shape := range loadShapes {
		r := row{title: fmt.Sprintf("load: %s of %s", counted(shape[0], "cluster"), counted(shape[1], "machine")), pkg: "ichor.maesh.dev/reconcile", benchmark: loadBenchmark(shape),
			alone: true, slow: shape[0]*shape[1] > 1000, load: shape}
		if shape[2] > 1 {
			r.title += fmt.Sprintf(", %d agents", shape[2])
			shape[2] = 1
			r.peer, r.peerTitle = loadBenchmark(shape), "one agent"
		}
		all = append(all, r)
	}
	return all
}

// counted is "1 cluster", "10 clusters" or "1,000 clusters".
func counted(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	text := fmt.Sprint(n)
	if len(text) > 3 {
		text = text[:len(text)-3] + "," + text[len(text)-3:]
	}
	return text + " " + what + "s"
}

func loadBenchmark(shape [3]int) string {
	name := fmt.Sprintf("BenchmarkLoad/%d_clusters_of_%d_machines", shape[0], shape[1])
	if shape[2] > 1 {
		name += fmt.Sprintf("_%d_agents", shape[2])
	}
	return name
}

// loadPlot draws what a fleet costs against its machines: clusters of ten with one agent, one cluster, and clusters of ten with four agents.
func loadPlot(rows []row, found map[string]map[string]result) string {
	drawn := []struct {
		title string
		of    func(map[string]float64) float64
	}{
		{"a pass at rest: processor time, ms", func(f map[string]float64) float64 { return f["cpu-ms/op"] }},
		{"a commit: processor time, s", func(f map[string]float64) float64 { return f["cpu-s-commit"] }},
		{"a restart: processor time, s", func(f map[string]float64) float64 { return f["cpu-s-restart"] }},
		{"kept in memory by an agent, MiB", func(f map[string]float64) float64 { return f["kept-MiB"] }},
	}
	var panels []panel
	for _, d := range drawn {
		p := panel{title: d.title, x: "machines", lines: []line{{name: "clusters of 10 machines"}, {name: "one cluster"}, {name: "clusters of 10, four agents"}}}
		for _, r := range rows {
			got, measured := found[r.pkg][r.benchmark]
			if !measured || r.load[0] == 0 {
				continue
			}
			into := &p.lines[0]
			switch {
			case r.load[2] > 1:
				into = &p.lines[2]
			case r.load[0] == 1:
				into = &p.lines[1]
			}
			into.points = append(into.points, point{float64(r.load[0] * r.load[1]), d.of(got.figures)})
		}
		for _, l := range p.lines {
			slices.SortFunc(l.points, func(a, b point) int { return cmp.Compare(a.x, b.x) })
		}
		panels = append(panels, p)
	}
	return drawing(panels)
}

// loadFigures are the figures of a load row, in the order in which they are read.
func loadFigures(r result) string {
	var parts []string
	for _, f := range []struct{ unit, format string }{
		{"cpu-s-first", "first start %.1f s of processor time"}, {"cpu-s-restart", "restart %.1f s"}, {"cpu-s-commit", "a commit %.1f s"}, {"requests-commit", "%.0f requests for it"},
		{"kept-MiB", "%.0f MiB kept by an agent"}, {"peak-MiB", "%.0f MiB at most, with the stubs"},
		{"Observe/min", "%.0f looks at machines a minute"}, {"Dial", "%.0f calls"}, {"ls-remote/min", "%.2g questions to Git a minute"},
		{"GetObject/min", "%.1f GET a minute"}, {"PutObject/min", "%.1f PUT a minute"}, {"ListObjectsV2/min", "%.1f LIST a minute"}, {"ListObjectsV2/hour", "%.0f LIST an hour"},
	} {
		if value, is := r.figures[f.unit]; is {
			parts = append(parts, fmt.Sprintf(f.format, value))
		}
	}
	return strings.Join(append(parts, fmt.Sprintf("%.2f dollars a month", dollars(r.figures))), ", ")
}
