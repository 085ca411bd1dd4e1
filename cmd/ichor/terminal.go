package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/pflag"
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

// What is noted at a flag -o: the forms that the command has, and the flag without which, or with which, it has none but the first.
const (
	formsNote    = "forms"
	onlyWithNote = "forms-only-with"
	notWithNote  = "forms-not-with"
)

// addOutput adds the flag -o. The first form is the one that is printed where none is asked for.
func addOutput(flags *pflag.FlagSet, to *string, forms ...string) {
	flags.StringVarP(to, "output", "o", forms[0], listed(forms))
	flags.Lookup("output").Annotations = map[string][]string{formsNote: forms}
}

// outputOnlyWith says that -o means something only where another flag is given, outputNotWith that it means nothing there.
func outputOnlyWith(flags *pflag.FlagSet, other string) {
	flag := flags.Lookup("output")
	flag.Usage = "with --" + other + ": " + flag.Usage
	flag.Annotations[onlyWithNote] = []string{other}
}

func outputNotWith(flags *pflag.FlagSet, other string) {
	flags.Lookup("output").Annotations[notWithNote] = []string{other}
}

// listed is "text", or "text or json", or "text, json or yaml".
func listed(forms []string) string {
	last := len(forms) - 1
	if last == 0 {
		return forms[0]
	}
	return strings.Join(forms[:last], ", ") + " or " + forms[last]
}

// checkOutput refuses a form of output that a command doesn't have.
func checkOutput(output string, forms ...string) error {
	if slices.Contains(forms, output) {
		return nil
	}
	return usageError(fmt.Errorf("-o %s is not known", output), "use "+listed(forms))
}
