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
		r := row{title: fmt.Sprintf("load: %d clusters of %d machines", shape[0], shape[1]), pkg: "ichor.maesh.dev/reconcile", benchmark: loadBenchmark(shape),
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

func loadBenchmark(shape [3]int) string {
	name := fmt.Sprintf("BenchmarkLoad/%d_clusters_of_%d_machines", shape[0], shape[1])
	if shape[2] > 1 {
		name += fmt.Sprintf("_%d_agents", shape[2])
	}
	return name
}

// loadPlot draws what one agent costs against the machines that it looks after: many clusters of ten, and one cluster.
func loadPlot(rows []row, found map[string]map[string]result) string {
	panels := []panel{{title: "one pass: processor time, ms"}, {title: "kept in memory, MiB"}, {title: "S3 requests, US dollars a month"}}
	for n := range panels {
		panels[n].x = "machines"
		panels[n].lines = []line{{name: "clusters of 10 machines"}, {name: "one cluster"}}
	}
	for _, r := range rows {
		got, measured := found[r.pkg][r.benchmark]
		if !measured || r.load[2] != 1 {
			continue
		}
		into := 0
		if r.load[0] == 1 {
			into = 1
		}
		for n, y := range []float64{got.figures["cpu-ms/op"], got.figures["kept-MiB"], dollars(got.figures)} {
			l := &panels[n].lines[into]
			l.points = append(l.points, point{float64(r.load[0] * r.load[1]), y})
		}
	}
	for _, p := range panels {
		for _, l := range p.lines {
			slices.SortFunc(l.points, func(a, b point) int { return cmp.Compare(a.x, b.x) })
		}
	}
	return drawing(panels)
}

// loadFigures are the figures of a load row, in the order in which they are read.
func loadFigures(r result) string {
	var parts []string
	for _, f := range []struct{ unit, format string }{
		{"cpu-ms/op", "%.0f ms of processor time"}, {"kept-MiB", "%.0f MiB kept by an agent"}, {"peak-MiB", "%.0f MiB at most, with the stubs"},
		{"s-first", "first start %.1f s"}, {"s-restart", "restart %.1f s"}, {"s-commit", "a commit %.1f s"}, {"requests-commit", "%.0f requests for it"},
		{"Observe/min", "%.0f looks at machines a minute"}, {"Dial", "%.0f calls"}, {"ls-remote/min", "%.2g questions to Git a minute"},
		{"GetObject/min", "%.1f GET"}, {"PutObject/min", "%.1f PUT"}, {"ListObjectsV2/min", "%.1f LIST"}, {"ListObjectsV2/hour", "a minute, and %.0f LIST an hour"},
	} {
		if value, is := r.figures[f.unit]; is {
			parts = append(parts, fmt.Sprintf(f.format, value))
		}
	}
	return strings.Join(append(parts, fmt.Sprintf("%.2f dollars a month", dollars(r.figures))), ", ")
}
