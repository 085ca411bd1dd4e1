package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// measurement is one run: where and when it was made, and the results of each package by their benchmark's name.
type measurement struct {
	Began      time.Time `json:"began"`
	Conditions string    `json:"conditions"`
	// Partly says that some rows were left out.
	Partly bool `json:"partly,omitempty"`

	results map[string]map[string]result
	keep    io.Writer
	// unkept is why what was measured could not be kept.
	unkept error
}

// kept is a line of the file of a run after the first, which is the measurement's own.
type kept struct {
	Package     string `json:"package"`
	Line        string `json:"line"`
	LoadAverage string `json:"loadAverage"`
}

// make measures rows. What failed there is given apart from what kept it from being begun.
func (m *measurement) make(ctx context.Context, o options, wanted []row) (failed, err error) {
	if o.keep != "" {
		file, err := os.Create(o.keep)
		if err != nil {
			return nil, fmt.Errorf("keeping what is measured: %w", err)
		}
		defer file.Close()
		m.keep = file
		m.write(m)
	}
	failed = m.measureRows(ctx, wanted, o.benchtime)
	return failed, m.unkept
}

// write puts a line into the file of the run, at once: a run takes hours, and may not come to its end.
func (m *measurement) write(line any) {
	if m.keep == nil || m.unkept != nil {
		return
	}
	if err := json.NewEncoder(m.keep).Encode(line); err != nil {
		m.unkept = fmt.Errorf("keeping what is measured: %w", err)
	}
}

// taker gives what takes the lines that the benchmarks of a package print.
func (m *measurement) taker(pkg string) func(line string) {
	if m.results[pkg] == nil {
		m.results[pkg] = map[string]result{}
	}
	return func(line string) {
		busy := loadAverage()
		if name, is := note(line, busy, m.results[pkg]); is {
			show(name, m.results[pkg][name])
			m.write(kept{pkg, strings.TrimSpace(line), busy})
		}
	}
}

// read takes what a run kept. A last line that is cut off, of a run that was killed, is left out.
func (m *measurement) read(path string) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	m.Began, m.Partly = time.Time{}, false
	whole := data[:bytes.LastIndexByte(data, '\n')+1]
	for n, line := range bytes.Split(bytes.TrimSpace(whole), []byte("\n")) {
		if n == 0 {
			if err := json.Unmarshal(line, m); err != nil || m.Began.IsZero() {
				return fmt.Errorf("%s, line 1: it doesn't say when the run began; it is not what -keep wrote", path)
			}
			continue
		}
		var one kept
		if err := json.Unmarshal(line, &one); err != nil {
			return fmt.Errorf("%s, line %d: %w", path, n+1, err)
		}
		if m.results[one.Package] == nil {
			m.results[one.Package] = map[string]result{}
		}
		if _, is := note(one.Line, one.LoadAverage, m.results[one.Package]); !is {
			return fmt.Errorf("%s, line %d: %q holds no result", path, n+1, one.Line)
		}
	}
	return nil
}

// columns of the table.
var tableColumns = []string{"what", "processor time", "time", "allocated", "more", "against", "load average"}

// print prints the table for a terminal.
func (m *measurement) print(out io.Writer, wanted []row) error {
	fmt.Fprintln(out, m.title(wanted))
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, strings.Join(tableColumns, "\t"))
	for _, r := range wanted {
		fmt.Fprintln(table, strings.Join(cells(r, m.results[r.pkg]), "\t"))
	}
	return table.Flush()
}

// title says when and on what it was measured, and what the machine did besides: a time on a busy one says little, ratios do.
func (m *measurement) title(wanted []row) string {
	low, high := math.Inf(1), math.Inf(-1)
	for _, r := range wanted {
		if load, err := strconv.ParseFloat(m.results[r.pkg][r.benchmark].busy, 64); err == nil {
			low, high = min(low, load), max(high, load)
		}
	}
	text := fmt.Sprintf("Measured on %s in one run of `make bench`: %s", m.Began.UTC().Format(time.DateOnly), m.Conditions)
	switch {
	case math.Round(low) == math.Round(high):
		text += fmt.Sprintf(", a load average of %.0f", low)
	case low < high:
		text += fmt.Sprintf(", load averages of %.0f to %.0f", low, high)
	}
	return text + "."
}
