// Command table prints the rows that `make crash` collected as the table of docs/reliability.md.
//
//	go run ./internal/crashmatrix/table bin/crash.jsonl
package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"ichor.maesh.dev/internal/crashmatrix"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: table FILE")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "table:", err)
		os.Exit(1)
	}
}

// run prints the table of a file. It is an error where a run did not end right, or not all points were killed at.
func run(path string, out io.Writer) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var rows []crashmatrix.Row
	for n, line := range bytes.Split(bytes.TrimSpace(data), []byte("\n")) {
		var row crashmatrix.Row
		if err := json.Unmarshal(line, &row); err != nil {
			return fmt.Errorf("%s, line %d: %w", path, n+1, err)
		}
		rows = append(rows, row)
	}
	slices.SortStableFunc(rows, func(a, b crashmatrix.Row) int {
		return cmp.Or(cmp.Compare(a.World, b.World), cmp.Compare(a.Procedure, b.Procedure))
	})
	return write(out, rows)
}

func write(out io.Writer, rows []crashmatrix.Row) error {
	var sum crashmatrix.Row
	var partly error
	fmt.Fprintln(out, "| procedure | on | points found | killed at | runs | failures | seed |")
	fmt.Fprintln(out, "|---|---|---:|---:|---:|---:|---:|")
	for _, r := range rows {
		seed := "-"
		if r.Seed != 0 {
			seed = fmt.Sprint(r.Seed)
		}
		fmt.Fprintf(out, "| %s | %s | %d | %d | %d | %d | %s |\n", r.Procedure, r.World, r.Points, r.Killed, r.Runs, r.Failures, seed)
		sum.Points, sum.Killed, sum.Runs, sum.Failures = sum.Points+r.Points, sum.Killed+r.Killed, sum.Runs+r.Runs, sum.Failures+r.Failures
		if r.Killed < r.Points {
			partly = fmt.Errorf("%s was killed at %d of its %d points only", r.Procedure, r.Killed, r.Points)
		}
	}
	fmt.Fprintf(out, "| **all** | | **%d** | **%d** | **%d** | **%d** | |\n", sum.Points, sum.Killed, sum.Runs, sum.Failures)
	if sum.Failures > 0 {
		return errors.Join(partly, fmt.Errorf("%d runs did not end right", sum.Failures))
	}
	return partly
}
