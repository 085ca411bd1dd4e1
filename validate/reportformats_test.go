package validate

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/joshdk/go-junit"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/schema"
)

// awkward is a report in which every text tries to break out of its place.
func awkward() Report {
	at := func(file string, line, column int) schema.Position {
		return schema.Position{File: file, Line: line, Column: column}
	}
	return Report{Findings: []Finding{
		{Rule: "cluster-removal", Severity: Error, Message: "belongs to no file"},
		{Rule: "r", Severity: Error, Position: at("a b:c,d%.yaml", 0, 0), Message: "100% \r\n::error::forged"},
		{Rule: "r", Severity: Error, Position: at("a.yaml", 3, 5), Kind: "TalosMachine", Name: "cp-1", Cluster: "prod",
			Message: "it's <wrong> & \"more\"]]>\x1b[31m\x00\u202e\uffff"},
		{Rule: "r", Severity: Error, Position: at("a.yaml", 3, 5), Kind: "TalosMachine", Name: "cp-1", Cluster: "prod", Message: "twice"},
		{Rule: "r", Severity: Error, Position: at("a.yaml", 7, 5), Kind: "TalosMachine", Name: "cp-1", Cluster: "prod", Message: "twice"},
		{Rule: "w", Severity: Warning, Position: at("dir/\n\x1b\xff.yaml", 4, 0), Message: "only a warning"},
	}, Checked: Checked{Files: 2, Objects: 3, Rules: 4}}
}

// A reader of the log must not meet a control character, whatever the format.
func TestNoFormatLetsControlCharactersThrough(t *testing.T) {
	for name, write := range writers() {
		var out bytes.Buffer
		require.NoError(t, write(awkward(), &out), name)
		for _, r := range out.String() {
			require.False(t, r < ' ' && r != '\n' && r != '\t' || r == 0x7f || r == '\u202e', "%s holds %U: %q", name, r, out.String())
		}
	}
}

func writers() map[string]func(Report, *bytes.Buffer) error {
	return map[string]func(Report, *bytes.Buffer) error{
		"text":   func(r Report, out *bytes.Buffer) error { return r.WriteText(out, TextOptions{}) },
		"json":   func(r Report, out *bytes.Buffer) error { return r.WriteJSON(out) },
		"github": func(r Report, out *bytes.Buffer) error { return r.WriteGitHub(out) },
		"junit":  func(r Report, out *bytes.Buffer) error { return r.WriteJUnit(out) },
		"sarif": func(r Report, out *bytes.Buffer) error {
			return r.WriteSARIF(out, "v1", []string{"r"}, func(string) (string, bool) { return "", false })
		},
	}
}

func TestGitHubGetsOneCommandAFinding(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, awkward().WriteGitHub(&out))
	require.Equal(t, `::error title=cluster-removal::belongs to no file
::error file=a b%3Ac%2Cd%25.yaml,title=r::100%25  ::error::forged
::error file=a.yaml,line=3,col=5,title=r::it's <wrong> & "more"]]>`+"\uffff"+`
::error file=a.yaml,line=3,col=5,title=r::twice
::error file=a.yaml,line=7,col=5,title=r::twice
::warning file=dir/ `+"\ufffd"+`.yaml,line=4,title=w::only a warning
`, out.String())
	require.Equal(t, "%25%0D%0A:,", escapeData("%\r\n:,"))
	require.Equal(t, "%25%0D%0A%3A%2C", escapeProperty("%\r\n:,"))
}

func TestSARIFIsWhatItsSchemaSays(t *testing.T) {
	compiled := sarifSchema(t)
	engine, err := New()
	require.NoError(t, err)
	for name, report := range map[string]Report{"awkward": awkward(), "empty": {}} {
		var out bytes.Buffer
		require.NoError(t, report.WriteSARIF(&out, "v1.2.3", engine.Rules(), engine.Explain))
		document, err := jsonschema.UnmarshalJSON(bytes.NewReader(out.Bytes()))
		require.NoError(t, err)
		require.NoError(t, compiled.Validate(document), name)
	}
	broken, err := jsonschema.UnmarshalJSON(strings.NewReader(`{"version": "2.1.0", "runs": [{"tool": {"driver": {}}}]}`))
	require.NoError(t, err)
	require.Error(t, compiled.Validate(broken), "the schema refuses something")
}

func sarifSchema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "sarif-schema-2.1.0.json"))
	require.NoError(t, err)
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	require.NoError(t, err)
	compiler := jsonschema.NewCompiler()
	compiler.AssertFormat()
	require.NoError(t, compiler.AddResource("sarif.json", document))
	compiled, err := compiler.Compile("sarif.json")
	require.NoError(t, err)
	return compiled
}

func TestSARIFSaysWhereAndWhy(t *testing.T) {
	engine, err := New()
	require.NoError(t, err)
	var out bytes.Buffer
	require.NoError(t, awkward().WriteSARIF(&out, "v1.2.3", engine.Rules(), engine.Explain))
	var log sarifLog
	require.NoError(t, json.Unmarshal(out.Bytes(), &log))
	run := log.Runs[0]
	require.Equal(t, "v1.2.3", run.Tool.Driver.Version)
	for _, rule := range run.Tool.Driver.Rules {
		if rule.ID == "approval-cap" {
			require.Equal(t, "At most count + 1 control planes may be approved: one more than etcd is meant to have, so that one can be replaced.", rule.Short.Text)
			require.Contains(t, rule.Help.Text, "expr: staying(approved(machines")
		}
	}
	seen := map[string]bool{}
	for i, result := range run.Results {
		require.Equal(t, result.RuleID, run.Tool.Driver.Rules[result.RuleIndex].ID)
		mark := result.Fingerprints["ichorFinding/v1"]
		require.False(t, seen[mark], "result %d has the fingerprint of another", i)
		seen[mark] = true
	}
	require.Empty(t, run.Results[0].Locations)
	require.Equal(t, sarifPhysical{sarifArtifact{"a%20b%3Ac%2Cd%25.yaml", "%SRCROOT%"}, sarifRegion{Line: 1}}, run.Results[1].Locations[0].Physical)
	require.Equal(t, sarifRegion{3, 5}, run.Results[2].Locations[0].Physical.Region)
	require.Equal(t, "prod/TalosMachine/cp-1", run.Results[2].Locations[0].Logical[0].Name)
	require.Equal(t, Warning, run.Results[5].Level)
	require.Equal(t, "dir/%0A%1B%FF.yaml", run.Results[5].Locations[0].Physical.Artifact.URI)
}

func TestAFindingKeepsItsFingerprintWhenItsLineMoves(t *testing.T) {
	f := Finding{Rule: "r", Kind: "TalosMachine", Cluster: "prod", Name: "cp-1", Message: "m", Position: schema.Position{File: "a.yaml", Line: 3}}
	moved, other := f, f
	moved.File, moved.Line = "b.yaml", 9
	other.Name = "cp-2"
	require.Equal(t, fingerprint(f), fingerprint(moved))
	require.NotEqual(t, fingerprint(f), fingerprint(other))
}

func TestJUnitIsReadBackByAParserOfItsOwn(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, awkward().WriteJUnit(&out))
	suites, err := junit.Ingest(out.Bytes())
	require.NoError(t, err)
	var names []string
	failed, passed := 0, 0
	for _, suite := range suites {
		names = append(names, suite.Name)
		failed += suite.Totals.Failed
		passed += suite.Totals.Passed
	}
	require.Equal(t, []string{"ichor validate", "none", "a b:c,d%.yaml", "a.yaml", "dir/ \ufffd.yaml"}, names)
	require.Equal(t, 5, failed)
	require.Equal(t, 2, passed, "the check itself, and the warning")
	require.Equal(t, "it's <wrong> & \"more\"]]>\ufffd", suites[3].Tests[0].Message)
	require.Contains(t, suites[4].Tests[0].SystemOut, "warning: w: only a warning")

	var counts junitSuites
	require.NoError(t, xml.Unmarshal(out.Bytes(), &counts))
	require.Equal(t, 7, counts.Tests)
	require.Equal(t, 5, counts.Failures)

	out.Reset()
	require.NoError(t, Report{}.WriteJUnit(&out))
	suites, err = junit.Ingest(out.Bytes())
	require.NoError(t, err)
	require.Len(t, suites, 1, "a report without a test would look like one that never ran")
	require.Equal(t, 1, suites[0].Totals.Passed)
}
