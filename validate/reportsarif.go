package validate

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"

	"ichor.maesh.dev/internal/printable"
)

// The parts of SARIF 2.1.0 that a report is made of.
type (
	sarifLog struct {
		Schema  string     `json:"$schema"`
		Version string     `json:"version"`
		Runs    []sarifRun `json:"runs"`
	}
	sarifRun struct {
		Tool        sarifTool         `json:"tool"`
		Invocations []sarifInvocation `json:"invocations"`
		ColumnKind  string            `json:"columnKind"`
		Results     []sarifResult     `json:"results"`
	}
	sarifTool struct {
		Driver sarifDriver `json:"driver"`
	}
	sarifDriver struct {
		Name    string      `json:"name"`
		Version string      `json:"version,omitempty"`
		Rules   []sarifRule `json:"rules"`
	}
	sarifRule struct {
		ID    string     `json:"id"`
		Short sarifText  `json:"shortDescription"`
		Help  *sarifHelp `json:"help,omitempty"`
	}
	sarifText struct {
		Text string `json:"text"`
	}
	sarifHelp struct {
		Text     string `json:"text"`
		Markdown string `json:"markdown"`
	}
	sarifInvocation struct {
		ExecutionSuccessful bool `json:"executionSuccessful"`
	}
	sarifResult struct {
		RuleID       string            `json:"ruleId"`
		RuleIndex    int               `json:"ruleIndex"`
		Level        Severity          `json:"level"`
		Message      sarifText         `json:"message"`
		Locations    []sarifLocation   `json:"locations,omitempty"`
		Fingerprints map[string]string `json:"partialFingerprints"`
	}
	sarifLocation struct {
		Physical sarifPhysical  `json:"physicalLocation"`
		Logical  []sarifLogical `json:"logicalLocations,omitempty"`
	}
	sarifPhysical struct {
		Artifact sarifArtifact `json:"artifactLocation"`
		Region   sarifRegion   `json:"region"`
	}
	sarifArtifact struct {
		URI  string `json:"uri"`
		Base string `json:"uriBaseId"`
	}
	sarifRegion struct {
		Line   int `json:"startLine"`
		Column int `json:"startColumn,omitempty"`
	}
	sarifLogical struct {
		Name string `json:"fullyQualifiedName"`
		Kind string `json:"kind"`
	}
)

const sarifSchemaURI = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"

// WriteSARIF writes the report as SARIF 2.1.0. The rules are listed with what explain says of them.
func (r Report) WriteSARIF(w io.Writer, version string, rules []string, explain func(rule string) (string, bool)) error {
	rules = slices.Clone(rules)
	for _, f := range r.Findings {
		if !slices.Contains(rules, f.Rule) {
			rules = append(rules, f.Rule)
		}
	}
	driver := sarifDriver{Name: "Ichor", Version: version, Rules: []sarifRule{}}
	index := map[string]int{}
	for i, name := range rules {
		index[name] = i
		driver.Rules = append(driver.Rules, describeRule(name, explain))
	}
	results := []sarifResult{}
	seen := map[string]int{}
	for _, f := range r.Findings {
		mark := fingerprint(f)
		seen[mark]++
		results = append(results, sarifResult{
			RuleID: f.Rule, RuleIndex: index[f.Rule], Level: f.Severity, Message: sarifText{printable.Text(f.Message)},
			Locations: sarifLocations(f), Fingerprints: map[string]string{"ichorFinding/v1": fmt.Sprintf("%s:%d", mark, seen[mark])},
		})
	}
	return writeJSON(w, sarifLog{Schema: sarifSchemaURI, Version: "2.1.0", Runs: []sarifRun{{
		Tool: sarifTool{driver}, Invocations: []sarifInvocation{{ExecutionSuccessful: true}},
		ColumnKind: "unicodeCodePoints", Results: results,
	}}})
}

// describeRule gives the comment above a rule as its description, and its whole text as help.
func describeRule(name string, explain func(rule string) (string, bool)) sarifRule {
	text, known := explain(name)
	if !known {
		return sarifRule{ID: name, Short: sarifText{name}}
	}
	text = strings.TrimSpace(printable.Lines(text))
	var comment []string
	for line := range strings.Lines(text) {
		said, isComment := strings.CutPrefix(strings.TrimSpace(line), "#")
		if !isComment {
			break
		}
		comment = append(comment, strings.TrimSpace(said))
	}
	short := name
	if len(comment) > 0 {
		short = strings.Join(comment, " ")
		if first, _, more := strings.Cut(short, ". "); more {
			short = first + "."
		}
	}
	return sarifRule{ID: name, Short: sarifText{short}, Help: &sarifHelp{Text: text, Markdown: "```yaml\n" + text + "\n```"}}
}

// sarifLocations gives where a finding points. One about a whole file points at its first line, since what shows SARIF asks
// for a line.
func sarifLocations(f Finding) []sarifLocation {
	if f.File == "" {
		return nil
	}
	at := sarifLocation{Physical: sarifPhysical{
		Artifact: sarifArtifact{URI: fileURI(f.File), Base: "%SRCROOT%"},
		Region:   sarifRegion{Line: max(f.Line, 1), Column: f.Column},
	}}
	if f.Name != "" {
		name := f.Kind + "/" + f.Name
		if f.Cluster != "" {
			name = f.Cluster + "/" + name
		}
		at.Logical = []sarifLogical{{Name: printable.Text(name), Kind: "resource"}}
	}
	return []sarifLocation{at}
}

// fileURI gives a path as a relative URI.
func fileURI(file string) string {
	parts := strings.Split(file, "/")
	for i, part := range parts {
		parts[i] = strings.ReplaceAll(url.PathEscape(part), ":", "%3A") // a colon would make the first part a scheme
	}
	return strings.Join(parts, "/")
}

// fingerprint finds a finding again after lines have moved: it is of what is wrong with what, not of where that stands.
func fingerprint(f Finding) string {
	what := []string{f.Rule, f.Kind, f.Cluster, f.Name, f.Message}
	if f.Name == "" {
		what = append(what, f.File)
	}
	sum := sha256.Sum256([]byte(strings.Join(what, "\x00")))
	return hex.EncodeToString(sum[:16])
}
