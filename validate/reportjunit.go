package validate

import (
	"encoding/xml"
	"fmt"
	"io"
	"path"

	"ichor.maesh.dev/internal/printable"
)

// The elements of JUnit's XML that test reports in CI are made of.
type (
	junitSuites struct {
		XMLName  xml.Name     `xml:"testsuites"`
		Name     string       `xml:"name,attr"`
		Tests    int          `xml:"tests,attr"`
		Failures int          `xml:"failures,attr"`
		Errors   int          `xml:"errors,attr"`
		Time     string       `xml:"time,attr"`
		Suites   []junitSuite `xml:"testsuite"`
	}
	junitSuite struct {
		Name     string      `xml:"name,attr"`
		Tests    int         `xml:"tests,attr"`
		Failures int         `xml:"failures,attr"`
		Errors   int         `xml:"errors,attr"`
		Skipped  int         `xml:"skipped,attr"`
		Time     string      `xml:"time,attr"`
		Cases    []junitCase `xml:"testcase"`
	}
	junitCase struct {
		Name      string        `xml:"name,attr"`
		Class     string        `xml:"classname,attr"`
		Time      string        `xml:"time,attr"`
		Failure   *junitFailure `xml:"failure,omitempty"`
		SystemOut string        `xml:"system-out,omitempty"`
	}
	junitFailure struct {
		Message string `xml:"message,attr"`
		Type    string `xml:"type,attr"`
		Text    string `xml:",chardata"`
	}
)

// WriteJUnit writes the report as JUnit XML: a suite for what was checked, and one for each file with findings. An error is
// a failed case, a warning one that passed and says so. Nothing is timed: times are 0.
func (r Report) WriteJUnit(w io.Writer) error {
	const name = "ichor validate"
	suites := junitSuites{Name: name, Time: "0", Suites: []junitSuite{{Name: name, Time: "0", Tests: 1, Cases: []junitCase{{
		Name: "the repository can be checked", Class: name, Time: "0",
		SystemOut: fmt.Sprintf("files: %d, objects: %d, rules: %d, configs: %d, base: %s", r.Checked.Files, r.Checked.Objects,
			r.Checked.Rules, r.Checked.Rendered, orNone(r.Checked.Base)),
	}}}}}
	for i, f := range r.Findings {
		if i == 0 || f.File != r.Findings[i-1].File {
			suites.Suites = append(suites.Suites, junitSuite{Name: orNone(printable.Text(f.File)), Time: "0"})
		}
		suite := &suites.Suites[len(suites.Suites)-1]
		text, message := printable.Text(f.String()), printable.Text(f.Message)
		one := junitCase{Name: junitName(f), Class: orNone(printable.Text(f.File)), Time: "0"}
		if f.Severity == Error {
			suite.Failures++
			suites.Failures++
			one.Failure = &junitFailure{Message: message, Type: f.Rule, Text: text}
		} else {
			one.SystemOut = text
		}
		suite.Tests++
		suite.Cases = append(suite.Cases, one)
	}
	for _, suite := range suites.Suites {
		suites.Tests += suite.Tests
	}
	text, err := xml.MarshalIndent(suites, "", "  ")
	if err == nil {
		_, err = fmt.Fprintf(w, "%s%s\n", xml.Header, text)
	}
	if err != nil {
		return fmt.Errorf("write the findings: %w", err)
	}
	return nil
}

// junitName names a case so that two findings of a file differ.
func junitName(f Finding) string {
	name := f.Rule
	if f.Name != "" {
		name += " of " + f.Kind + " " + path.Join(f.Cluster, f.Name)
	}
	if f.Line > 0 {
		name += fmt.Sprintf(" in line %d", f.Line)
		if f.Column > 0 {
			name += fmt.Sprintf(", column %d", f.Column)
		}
	}
	return printable.Text(name)
}

func orNone(text string) string {
	if text == "" {
		return "none"
	}
	return text
}
