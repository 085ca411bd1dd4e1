package main

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"

	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/validate"
)

// reportFormats are the forms in which validate prints its findings.
func reportFormats() []string { return []string{"text", "json", "github", "sarif", "junit"} }

// printReport prints the findings to standard output or into a file, and to standard error how many they are and what they
// rest on.
func (a *app) printReport(engine *validate.Engine, fleet *schema.Fleet, f *validateFlags, report validate.Report, change *change) error {
	if f.strict {
		for i := range report.Findings {
			report.Findings[i].Severity = validate.Error
		}
	}
	if err := a.writeReport(engine, fleet, f, report, change); err != nil {
		return err
	}
	errorCount, warnings := report.Count()
	fmt.Fprintf(a.err, "%s, %s; checked: %s, %s, %s by %s, %d of %d rules\n", counted(errorCount, "error"), counted(warnings, "warning"),
		counted(report.Checked.Files, "file"), counted(report.Checked.Objects, "object"),
		counted(report.Checked.Rendered, "config"), counted(report.Checked.Renderings, "rendering"), report.Checked.Rules, engine.RulesEvaluated(fleet, true))
	if f.noRender {
		fmt.Fprintln(a.err, "no config was rendered (--no-render), so a patch that Talos would refuse was not looked for")
	}
	a.sayAround(change.place)
	a.sayBase(change.base)
	if errorCount > 0 {
		return errNo
	}
	return nil
}

func (a *app) writeReport(engine *validate.Engine, fleet *schema.Fleet, f *validateFlags, report validate.Report, change *change) error {
	write := func(w io.Writer) error {
		switch f.output {
		case "json":
			return report.WriteJSON(w)
		case "github":
			return report.WriteGitHub(w)
		case "sarif":
			return report.WriteSARIF(w, readVersion().Version, append(engine.Rules(), validate.PolicyRules(fleet)...), engine.ExplainWith(fleet))
		case "junit":
			return report.WriteJUnit(w)
		default:
			return report.WriteText(w, validate.TextOptions{Source: change.source, Colour: f.outputFile == "" && a.colours()})
		}
	}
	if f.outputFile == "" {
		if err := write(a.out); err != nil {
			return cannot(err, "")
		}
		return nil
	}
	var text bytes.Buffer
	err := write(&text)
	if err == nil {
		err = writeWhole(f.outputFile, text.Bytes(), 0o644, true)
	}
	if err != nil {
		return cannot(fmt.Errorf("the findings can't be written to %s: %w", f.outputFile, err), "give another --output-file")
	}
	return nil
}

// source gives a file as it was judged; nil when that is no one text. Where the branch and its base both changed a file,
// nobody knows in which of the two an object's line counts.
func (c *change) source(file string) []byte {
	judged := readSource(c.proposal.Fleet.Tree, file)
	if judged == nil || c.base == nil {
		return judged
	}
	tip, fork := readSource(c.base.tip.Tree, file), readSource(c.base.fork.Tree, file)
	if tip == nil || bytes.Equal(tip, fork) || bytes.Equal(tip, judged) {
		return judged
	}
	return nil
}

// readSource reads a file of which lines are shown; nil when it can't be read, or is longer than any that is decoded.
func readSource(tree fs.FS, file string) []byte {
	if info, err := fs.Lstat(tree, file); err != nil || !info.Mode().IsRegular() || info.Size() > schema.MaxFileSize {
		return nil
	}
	data, err := fs.ReadFile(tree, file)
	if err != nil {
		return nil
	}
	return data
}

// colours says whether what goes to standard output may be coloured.
func (a *app) colours() bool {
	return a.printsToTerminal() && a.getenv("NO_COLOR") == "" && a.getenv("TERM") != "dumb"
}
