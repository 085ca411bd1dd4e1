package validate

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"ichor.maesh.dev/schema"
)

// Severity says whether a finding stops anything.
type Severity string

// The severities.
const (
	Error   Severity = "error"
	Warning Severity = "warning"
)

// Rules that callers treat in their own way.
const (
	// RuleSchema is the rule of problems found while decoding.
	RuleSchema = "schema"
	// RuleSecret is the rule of a secret that stands in the repository in the clear. Nothing is shown of a file that has one.
	RuleSecret = "secret-in-clear"
	// RuleApprovalCap refuses a change before it is merged. In the agent it refuses nothing: there the hold does its work.
	RuleApprovalCap = "approval-cap"
	// RulePolicy is the rule of policies that can't be asked.
	RulePolicy = "policy"
	// RuleNotYet refuses one document, and nothing else: its kind is read, and nothing acts on it yet.
	RuleNotYet = "not-yet"
)

// Finding is one thing that is wrong, where, and the way out. Its JSON form is stable.
type Finding struct {
	Rule     string   `json:"rule"`
	Severity Severity `json:"severity"`
	schema.Position
	Kind string `json:"kind,omitempty"`
	Name string `json:"name,omitempty"`
	// Cluster is the cluster that the finding belongs to; empty when it belongs to none.
	Cluster string `json:"cluster,omitempty"`
	Message string `json:"message"`
	// failed says that the rule could not be evaluated.
	failed bool
}

// MarshalJSON writes every field, also the empty ones, so that a reader never asks whether a key is there.
func (f Finding) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		Rule     string   `json:"rule"`
		Severity Severity `json:"severity"`
		File     string   `json:"file"`
		Line     int      `json:"line"`
		Column   int      `json:"column"`
		Kind     string   `json:"kind"`
		Name     string   `json:"name"`
		Cluster  string   `json:"cluster"`
		Message  string   `json:"message"`
	}{f.Rule, f.Severity, f.File, f.Line, f.Column, f.Kind, f.Name, f.Cluster, f.Message})
}

// String gives the finding as "file:line:col: severity: rule: message"; what isn't known is left out.
func (f Finding) String() string {
	var place strings.Builder
	if f.File != "" {
		place.WriteString(f.File + ":")
		if f.Line > 0 {
			fmt.Fprintf(&place, "%d:", f.Line)
			if f.Column > 0 {
				fmt.Fprintf(&place, "%d:", f.Column)
			}
		}
		place.WriteString(" ")
	}
	return fmt.Sprintf("%s%s: %s: %s", place.String(), f.Severity, f.Rule, f.Message)
}

// FromProblems turns what could not be decoded into findings.
func FromProblems(problems []schema.Problem) []Finding {
	findings := make([]Finding, 0, len(problems))
	for _, p := range problems {
		findings = append(findings, Finding{
			Rule: RuleSchema, Severity: Error, Position: p.Position,
			Kind: p.Kind, Name: p.Name, Cluster: p.Cluster, Message: p.Message,
		})
	}
	return findings
}

// Sort orders findings by place, then rule, then message.
func Sort(findings []Finding) {
	slices.SortStableFunc(findings, func(a, b Finding) int {
		return cmp.Or(
			cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column),
			cmp.Compare(a.Rule, b.Rule), cmp.Compare(a.Message, b.Message),
		)
	})
}
