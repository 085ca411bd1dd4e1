// Command bench is what `make bench` runs: it runs the benchmarks of the packages in one go and prints one table, each
// figure beside its peer where it has one, so that the ratio holds on any machine. docs/benchmarks.md explains each row.
package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"text/tabwriter"

	"golang.org/x/tools/benchmark/parse"
)

// row is one line of the table: a benchmark, what its figures mean, and the benchmark it is compared with.
type row struct {
	title, pkg, benchmark string
	// peer is another benchmark of the same run; the ratio of their times is printed.
	peer, peerTitle string
}

func main() {
	count := flag.String("benchtime", "1x", "how often each benchmark runs, as go test -benchtime takes it")
	only := flag.String("only", "", "run the rows whose title holds this text")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *count, *only); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, benchtime, only string) error {
	results := map[string]map[string]result{}
	wanted := rowsTitled(rows, only)
	for _, r := range wanted {
		if results[r.pkg] != nil {
			continue
		}
		fmt.Fprintf(os.Stderr, "running the benchmarks of %s\n", r.pkg)
		measured, err := measure(ctx, r.pkg, pattern(wanted, r.pkg), benchtime)
		if err != nil {
			return err
		}
		results[r.pkg] = measured
	}
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "what\ttime\tallocated\tmore\tagainst")
	for _, r := range wanted {
		got, ok := results[r.pkg][r.benchmark]
		if !ok {
			return fmt.Errorf("%s has no benchmark %s, or it failed", r.pkg, r.benchmark)
		}
		against := ""
		if r.peer != "" {
			peer, ok := results[r.pkg][r.peer]
			if !ok {
				return fmt.Errorf("%s has no benchmark %s, or it failed", r.pkg, r.peer)
			}
			against = fmt.Sprintf("%.2f × %s", got.NsPerOp/peer.NsPerOp, r.peerTitle)
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", r.title, duration(got.NsPerOp), size(got.AllocedBytesPerOp), got.extra, against)
	}
	return table.Flush()
}

// rowsTitled gives the rows whose title holds a text.
func rowsTitled(rows []row, text string) []row {
	return slices.DeleteFunc(slices.Clone(rows), func(r row) bool { return !strings.Contains(r.title, text) })
}

// result is one benchmark's figures; extra holds the units that the benchmark reports itself.
type result struct {
	parse.Benchmark
	extra string
}

// pattern is what go test -bench takes for the benchmarks of a package that are in the table, and their peers.
func pattern(rows []row, pkg string) string {
	var names []string
	for _, r := range rows {
		for _, benchmark := range []string{r.benchmark, r.peer} {
			name, _, _ := strings.Cut(benchmark, "/")
			if r.pkg == pkg && name != "" && !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	return "^(" + strings.Join(names, "|") + ")$"
}

// measure runs benchmarks of a package and gives them by name.
func measure(ctx context.Context, pkg, pattern, benchtime string) (map[string]result, error) {
	cmd := exec.CommandContext(ctx, "go", "test", "-run", "^$", "-bench", pattern, "-benchmem", "-benchtime", benchtime, "-timeout", "30m", pkg)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, out.String())
	}
	results := map[string]result{}
	for line := range strings.Lines(out.String()) {
		parsed, err := parse.ParseLine(line)
		if err != nil {
			continue // not a line of results
		}
		name := parsed.Name
		if cut := strings.LastIndexByte(name, '-'); cut > 0 {
			name = name[:cut] // the number of processors
		}
		results[name] = result{Benchmark: *parsed, extra: extraUnits(line)}
	}
	return results, nil
}

// extraUnits gives the figures of a result line whose units are not Go's own.
func extraUnits(line string) string {
	known := map[string]bool{"ns/op": true, "B/op": true, "allocs/op": true, "MB/s": true}
	fields := strings.Fields(line)
	var extra []string
	for i := 2; i+1 < len(fields); i += 2 {
		if unit := fields[i+1]; !known[unit] {
			extra = append(extra, fields[i]+" "+unit)
		}
	}
	return strings.Join(extra, ", ")
}

func duration(ns float64) string {
	switch {
	case ns >= 1e9:
		return fmt.Sprintf("%.2f s", ns/1e9)
	case ns >= 1e6:
		return fmt.Sprintf("%.1f ms", ns/1e6)
	default:
		return fmt.Sprintf("%.1f µs", ns/1e3)
	}
}

func size(bytes uint64) string {
	if bytes >= 1<<20 {
		return fmt.Sprintf("%.1f MiB", float64(bytes)/(1<<20))
	}
	return fmt.Sprintf("%.1f KiB", float64(bytes)/(1<<10))
}
