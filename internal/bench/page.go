package main

import (
	"fmt"
	"os"
	"strings"
)

// The markers of a page between which the table stands. What is outside of them is written by hand.
const (
	pageBegin = "<!-- bench -->\n"
	pageEnd   = "<!-- /bench -->\n"
)

// writePage puts the table into a page, between its markers.
func (m *measurement) writePage(path string, wanted []row) error {
	if m.Partly {
		return fmt.Errorf("%s stays as it is: its table is of one whole run, and this one left rows out", path)
	}
	page, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	text, err := intoPage(string(page), m.markdown(wanted))
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return os.WriteFile(path, []byte(text), 0o644)
}

// intoPage gives a page with a text between its markers.
func intoPage(page, text string) (string, error) {
	before, rest, begins := strings.Cut(page, pageBegin)
	_, after, ends := strings.Cut(rest, pageEnd)
	if !begins || !ends || strings.Contains(rest, pageBegin) || strings.Contains(after, pageEnd) {
		return "", fmt.Errorf("it must hold the lines %s and %s once each, in this order: the table goes between them", strings.TrimSpace(pageBegin), strings.TrimSpace(pageEnd))
	}
	return before + pageBegin + text + pageEnd + after, nil
}

// markdown is the table as it stands in the page. What was not measured says so.
func (m *measurement) markdown(wanted []row) string {
	var out strings.Builder
	line := func(cells []string) {
		for n, cell := range cells {
			cells[n] = strings.ReplaceAll(cell, "|", "\\|")
		}
		fmt.Fprintf(&out, "| %s |\n", strings.Join(cells, " | "))
	}
	fmt.Fprintf(&out, "%s\n\n", m.title(wanted))
	line(append([]string{}, tableColumns...))
	fmt.Fprintf(&out, "|%s\n", strings.Repeat("---|", len(tableColumns)))
	for _, r := range wanted {
		line(cells(r, m.results[r.pkg]))
	}
	return out.String()
}
