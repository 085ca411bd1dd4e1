package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"golang.org/x/term"

	"ichor.maesh.dev/internal/printable"
)

// The rules of what is printed:
//
//   - answers go to standard output, and nothing else does: a command's output can be piped;
//   - progress, warnings and errors go to standard error;
//   - what came from a repository, a node or a bucket has its control characters taken out first;
//   - colours are for a terminal only, and NO_COLOR and TERM=dumb turn them off;
//   - a secret is never printed.

// terminal is where a command reads and prints.
type terminal struct {
	in          io.Reader
	out, err    io.Writer
	interactive bool // a person can answer a question
}

func newTerminal(in, out, err *os.File) *terminal {
	return &terminal{
		in: in, out: out, err: err,
		interactive: term.IsTerminal(int(in.Fd())) && term.IsTerminal(int(err.Fd())),
	}
}

// clean takes out of a text what could do something to a terminal.
func (t *terminal) clean(text string) string { return printable.Text(text) }

// checkOutput refuses a form of output that a command doesn't have.
func checkOutput(output string, forms ...string) error {
	if slices.Contains(forms, output) {
		return nil
	}
	last := len(forms) - 1
	return usageError(fmt.Errorf("-o %s is not known", output), "use "+strings.Join(forms[:last], ", ")+" or "+forms[last])
}
