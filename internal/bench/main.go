// Command bench is what `make bench` runs: it runs the benchmarks of the packages in one go and prints one table, each
// figure beside its peer where it has one, so that the ratio holds on any machine. docs/benchmarks.md explains each row.
//
// What is measured is kept in a file as it comes (-keep), and -from makes a table, a plot and the page's table of it without measuring anew:
//
//	go run ./internal/bench -from bin/bench.jsonl -write docs/benchmarks.md -plot docs/fleet.svg
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/tools/benchmark/parse"

	"ichor.maesh.dev/internal/cputime"
)

// row is one line of the table: a benchmark, what its figures mean, and the benchmark it is compared with.
type row struct {
	title, pkg, benchmark string
	// peer is another benchmark of the same run; the ratio of their times is printed.
	peer, peerTitle string
	// alone says that the benchmark runs in a process of its own, slow that it is left out by -quick.
	alone, slow bool
	// load is the fleet of a row that measures a fleet: clusters, machines in each, agents.
	load [3]int
}

// options are the command line.
type options struct {
	benchtime, only, plot, keep, from, write string
	quick                                    bool
}

// check refuses what makes no sense together.
func (o options) check() error {
	switch {
	case o.write != "" && (o.only != "" || o.quick):
		return errors.New("-write puts the table of one whole run into the page: leave -only and -quick out")
	case o.from != "" && o.keep != "":
		return errors.New("-from measures nothing, so -keep would keep nothing: give one of them")
	}
	return nil
}

func main() {
	var o options
	flag.StringVar(&o.benchtime, "benchtime", "1x", "how often each benchmark runs, as go test -benchtime takes it")
	flag.StringVar(&o.only, "only", "", "run the rows whose title holds this text")
	flag.BoolVar(&o.quick, "quick", false, "leave out the rows that take minutes")
	flag.StringVar(&o.plot, "plot", "", "write what a fleet costs against its size to this file, as an SVG")
	flag.StringVar(&o.keep, "keep", "", "keep what is measured in this file, line by line as it comes")
	flag.StringVar(&o.from, "from", "", "measure nothing, and take what a run kept in this file")
	flag.StringVar(&o.write, "write", "", "put the table into this page, between its markers")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) error {
	if err := o.check(); err != nil {
		return err
	}
	wanted := rowsTitled(rows, o.only)
	if o.quick {
		wanted = slices.DeleteFunc(wanted, func(r row) bool { return r.slow })
	}
	m := &measurement{Began: time.Now().UTC(), Conditions: conditions(), Partly: o.only != "" || o.quick, results: map[string]map[string]result{}}
	var failed error
	if o.from != "" {
		if err := m.read(o.from); err != nil {
			return err
		}
	} else {
		var err error
		if failed, err = m.make(ctx, o, wanted); err != nil {
			return err
		}
	}
	err := m.print(os.Stdout, wanted)
	if o.plot != "" {
		if wrote := os.WriteFile(o.plot, []byte(loadPlot(wanted, m.results)), 0o644); wrote != nil {
			err = errors.Join(err, fmt.Errorf("writing the plot: %w", wrote))
		}
	}
	if o.write != "" {
		err = errors.Join(err, m.writePage(o.write, wanted))
	}
	if o.keep != "" && !m.Partly {
		fmt.Fprintf(os.Stderr, "the page takes this run over with:\n  go run ./internal/bench -from %s -write docs/benchmarks.md -plot docs/fleet.svg\n", o.keep)
	}
	return errors.Join(failed, err)
}

// cells are one line of the table. What wasn't measured says so.
func cells(r row, results map[string]result) []string {
	got, ok := results[r.benchmark]
	if !ok {
		return []string{r.title, "not measured", "", "", "", "", ""}
	}
	against := ""
	if peer, ok := results[r.peer]; ok {
		against = fmt.Sprintf("%.2f × %s", ratio(got, peer), r.peerTitle)
	} else if r.peer != "" {
		against = "not measured: " + r.peerTitle
	}
	more := got.extra
	if r.load[0] > 0 {
		more = loadFigures(got)
	}
	processor := ""
	if ms, known := got.figures[cputime.Unit]; known {
		processor = duration(ms * 1e6)
	}
	return []string{r.title, processor, duration(got.NsPerOp), size(got.AllocedBytesPerOp), more, against, got.busy}
}

// ratio compares by processor time where both have it, since other work that runs beside them lengthens times by the clock.
func ratio(a, b result) float64 {
	if mine, other := a.figures[cputime.Unit], b.figures[cputime.Unit]; mine > 0 && other > 0 {
		return mine / other
	}
	return a.NsPerOp / b.NsPerOp
}

// conditions says what it is measured on.
func conditions() string {
	text := fmt.Sprintf("%d processors", runtime.NumCPU())
	if about, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		if _, rest, found := strings.Cut(string(about), "model name"); found {
			name, _, _ := strings.Cut(rest, "\n")
			text += " (" + strings.Trim(name, " \t:") + ")"
		}
	}
	return text + ", " + runtime.Version()
}

// loadAverage is how many processes wanted to run in the last minute, as the system counts them; empty where it doesn't say.
func loadAverage() string {
	load, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return ""
	}
	return strings.Fields(string(load))[0]
}

// rowsTitled gives the rows whose title holds a text.
func rowsTitled(rows []row, text string) []row {
	return slices.DeleteFunc(slices.Clone(rows), func(r row) bool { return !strings.Contains(r.title, text) })
}

// result is one benchmark's figures; extra holds the units that the benchmark reports itself, figures the same as numbers.
type result struct {
	parse.Benchmark
	extra   string
	figures map[string]float64
	busy    string // the load average when it had run
}

// together are the benchmarks of a package that are in the table, and their peers, by what comes before the first slash: they run in one process. Those that
// run alone are left out.
func together(rows []row, pkg string) []string {
	var names []string
	for _, r := range rows {
		if r.alone || r.pkg != pkg {
			continue
		}
		for _, benchmark := range []string{r.benchmark, r.peer} {
			name, _, _ := strings.Cut(benchmark, "/")
			if name != "" && !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	return names
}

// exactly is what go test -bench takes for one benchmark and no other.
func exactly(benchmark string) string {
	parts := strings.Split(benchmark, "/")
	for n, part := range parts {
		parts[n] = "^" + regexp.QuoteMeta(part) + "$"
	}
	return strings.Join(parts, "/")
}

// measureRows runs the benchmarks of rows and their peers, by package, then by name. What fails leaves the others as they are: each name has a process
// of its own, and what a process that died didn't come to is run by itself.
func (m *measurement) measureRows(ctx context.Context, wanted []row, benchtime string) error {
	folder, err := os.MkdirTemp("", "ichor-bench-*")
	if err != nil {
		return fmt.Errorf("making a folder for what is built: %w", err)
	}
	defer os.RemoveAll(folder)
	built := map[string]program{}
	var failed []error
	for n, r := range wanted {
		if _, is := built[r.pkg]; !is {
			fmt.Fprintf(os.Stderr, "building the benchmarks of %s\n", r.pkg)
			if built[r.pkg], err = build(ctx, r.pkg, filepath.Join(folder, fmt.Sprint(n))); err != nil {
				failed = append(failed, err)
				continue
			}
			for _, name := range together(wanted, r.pkg) {
				failed = append(failed, m.measureName(ctx, built[r.pkg], wanted, r.pkg, name, benchtime))
			}
		}
		if !r.alone || built[r.pkg].file == "" {
			continue
		}
		for _, benchmark := range []string{r.benchmark, r.peer} {
			if _, known := m.results[r.pkg][benchmark]; !known && benchmark != "" {
				failed = append(failed, measure(ctx, built[r.pkg], exactly(benchmark), benchtime, m.taker(r.pkg)))
			}
		}
	}
	return errors.Join(failed...)
}

// errDied is in the error of a process that ended before it had run all.
var errDied = errors.New("it died")

// measureName runs all that is below a name.
func (m *measurement) measureName(ctx context.Context, p program, wanted []row, pkg, name, benchtime string) error {
	err := measure(ctx, p, exactly(name), benchtime, m.taker(pkg))
	if !errors.Is(err, errDied) || ctx.Err() != nil {
		return err
	}
	tried := map[string]bool{}
	for _, r := range wanted {
		for _, benchmark := range []string{r.benchmark, r.peer} {
			_, known := m.results[pkg][benchmark]
			if r.pkg != pkg || r.alone || known || tried[benchmark] || !strings.HasPrefix(benchmark, name+"/") {
				continue
			}
			tried[benchmark] = true
			err = errors.Join(err, measure(ctx, p, exactly(benchmark), benchtime, m.taker(pkg)))
		}
	}
	return err
}

// program is the test program of a package, and the folder that it runs in.
type program struct{ file, folder string }

// build makes the test program of a package.
func build(ctx context.Context, pkg, file string) (program, error) {
	folder, err := exec.CommandContext(ctx, "go", "list", "-f", "{{.Dir}}", pkg).Output()
	if err != nil {
		return program{}, fmt.Errorf("finding %s: %w", pkg, err)
	}
	if out, err := exec.CommandContext(ctx, "go", "test", "-c", "-ldflags=-s -w", "-o", file, pkg).CombinedOutput(); err != nil {
		return program{}, fmt.Errorf("building the benchmarks of %s: %w\n%s", pkg, err, out)
	}
	return program{file, strings.TrimSpace(string(folder))}, nil
}

// measure runs benchmarks of a package and gives each line that it prints to take, as soon as it is there.
func measure(ctx context.Context, p program, pattern, benchtime string, take func(line string)) error {
	cmd := exec.CommandContext(ctx, p.file, "-test.run", "^$", "-test.bench", pattern, "-test.benchmem", "-test.benchtime", benchtime, "-test.timeout", "120m")
	cmd.Dir = p.folder
	out, in := io.Pipe()
	cmd.Stdout, cmd.Stderr = in, in
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("%s: %w", strings.Join(cmd.Args, " "), err)
	}
	ended := make(chan error, 1)
	go func() {
		ended <- cmd.Wait()
		in.Close()
	}()
	var said strings.Builder
	lines := bufio.NewReader(out)
	for {
		line, err := lines.ReadString('\n')
		said.WriteString(line)
		take(line)
		if err != nil {
			break
		}
	}
	if err := <-ended; err != nil {
		if text := "\n" + said.String(); strings.Contains(text, "\npanic: ") || strings.Contains(text, "\nfatal error: ") || cmd.ProcessState.ExitCode() < 0 {
			err = errors.Join(errDied, err)
		}
		return fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, said.String())
	}
	return nil
}

// note puts a line of a benchmark's output into results if it holds one.
func note(line, busy string, results map[string]result) (name string, is bool) {
	parsed, err := parse.ParseLine(line)
	if err != nil {
		return "", false // not a line of results
	}
	name = parsed.Name
	if cut := strings.LastIndexByte(name, '-'); cut > 0 {
		name = name[:cut] // the number of processors
	}
	got := result{Benchmark: *parsed, figures: map[string]float64{}, busy: busy}
	got.extra = extraUnits(line, got.figures)
	results[name] = got
	return name, true
}

// show prints a result as it comes, since all of them take long.
func show(name string, got result) {
	figures := []string{duration(got.NsPerOp)}
	if ms, known := got.figures[cputime.Unit]; known {
		figures = append(figures, duration(ms*1e6)+" of processor time")
	}
	if got.extra != "" {
		figures = append(figures, got.extra)
	}
	fmt.Fprintf(os.Stderr, "%s: %s\n", name, strings.Join(figures, ", "))
}

// extraUnits gives the figures of a result line that have no column of their own, and puts all into figures.
func extraUnits(line string, figures map[string]float64) string {
	known := map[string]bool{"ns/op": true, "B/op": true, "allocs/op": true, "MB/s": true, cputime.Unit: true}
	fields := strings.Fields(line)
	var extra []string
	for i := 2; i+1 < len(fields); i += 2 {
		unit := fields[i+1]
		if value, err := strconv.ParseFloat(fields[i], 64); err == nil {
			figures[unit] = value
		}
		if !known[unit] {
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
