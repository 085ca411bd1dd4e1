package validate

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/schema"
)

func TestStops(t *testing.T) {
	a := Finding{Rule: "x", Severity: Error, Cluster: "a"}
	none := Finding{Rule: "x", Severity: Error}
	warning := Finding{Rule: "x", Severity: Warning, Cluster: "b"}
	held := Finding{Rule: RuleApprovalCap, Severity: Error, Cluster: "b"}
	document := Finding{Rule: RuleNotYet, Severity: Error, Cluster: "b"}
	policy := Finding{Rule: RuleNotYet, Severity: Error}

	s := Stops([]Finding{a, warning, held, document, policy})
	require.Equal(t, []Finding{a}, s.Of("a"))
	require.Empty(t, s.Of("b"), "a warning, a held approval and a refused document stop nothing")
	require.Equal(t, []Finding{held}, s.Held)
	require.Equal(t, []Finding{document, policy}, s.Documents)
	require.Empty(t, s.All)

	s = Stops([]Finding{a, none})
	require.Equal(t, []Finding{a, none}, s.Of("a"))
	require.Equal(t, []Finding{none}, s.Of("b"), "what belongs to none stops all")
	require.Empty(t, Stops(nil).Of("a"))
}

func TestADocumentThatNothingActsOnStopsNothing(t *testing.T) {
	engine, err := New()
	require.NoError(t, err)
	f := fleetOf(t, `cluster prod
		machine prod/cp-1 controlplane approved
		machine prod/cp-2 controlplane approved
		machine prod/cp-3 controlplane approved
		backup prod/hourly
		backup nowhere/hourly
		remove prod/cp-1
		remove prod/cp-1`)
	findings := engine.Check(fleetOf(t, `cluster prod
		machine prod/cp-1 controlplane approved
		machine prod/cp-2 controlplane approved
		machine prod/cp-3 controlplane approved`), f)
	findings = append(findings, FromProblems([]schema.Problem{{Kind: schema.KindBackup, Message: "bad"}})...)
	rules := map[string]bool{}
	for _, finding := range findings {
		rules[finding.Rule] = true
	}
	require.Equal(t, map[string]bool{"cluster-exists": true, "control-plane-count": true, "unique-name": true, RuleSchema: true}, rules)
	s := Stops(findings, schema.KindBackup, schema.KindOperation)
	require.Empty(t, s.All)
	require.Empty(t, s.Clusters)
	require.Len(t, s.Documents, len(findings))

	s = Stops(findings)
	require.Empty(t, s.Documents, "where every kind is acted on, each finding counts")
	require.NotEmpty(t, s.Of("prod"))
	require.Empty(t, Stops(FromProblems([]schema.Problem{{Kind: schema.KindPolicyTest, Message: "bad"}})).All, "a test stops nothing")
}

func TestReport(t *testing.T) {
	report := Report{
		Findings: []Finding{{Rule: "r", Severity: Error, Position: schema.Position{File: "a.yaml", Line: 3, Column: 5},
			Kind: "TalosMachine", Name: "cp-1", Cluster: "prod", Message: "it's <wrong>\x1b[31m & more"}},
		Checked: Checked{Files: 2, Objects: 3, Rules: 4, Base: "main"},
	}
	var out bytes.Buffer
	require.NoError(t, report.WriteText(&out, TextOptions{}))
	require.Equal(t, "a.yaml:3:5: error: r: it's <wrong> & more\n", out.String())

	out.Reset()
	require.NoError(t, report.WriteJSON(&out))
	require.JSONEq(t, `{
		"findings": [{"rule": "r", "severity": "error", "file": "a.yaml", "line": 3, "column": 5, "kind": "TalosMachine",
			"name": "cp-1", "cluster": "prod", "message": "it's <wrong>\u001b[31m & more"}],
		"checked": {"files": 2, "objects": 3, "rules": 4, "rendered": 0, "base": "main"}}`, out.String())
	var back Report
	require.NoError(t, json.Unmarshal(out.Bytes(), &back))
	require.Equal(t, report, back)

	out.Reset()
	report.Findings[0].Message = "\u202egnp.exe \u009b31m \U000e0001 é 漢"
	require.NoError(t, report.WriteJSON(&out))
	require.Contains(t, out.String(), `\u202egnp.exe \u009b31m \udb40\udc01 é 漢`)
	require.NoError(t, json.Unmarshal(out.Bytes(), &back))
	require.Equal(t, report, back)

	out.Reset()
	require.NoError(t, Report{}.WriteJSON(&out))
	require.JSONEq(t, `{"findings": [], "checked": {"files": 0, "objects": 0, "rules": 0, "rendered": 0, "base": ""}}`, out.String())
	one, err := json.Marshal(Finding{})
	require.NoError(t, err)
	require.JSONEq(t, `{"rule": "", "severity": "", "file": "", "line": 0, "column": 0, "kind": "", "name": "", "cluster": "", "message": ""}`, string(one))
}

func TestAFindingWithoutALineNamesTheFile(t *testing.T) {
	for want, at := range map[string]schema.Position{
		"error: r: m":             {},
		"a.yaml: error: r: m":     {File: "a.yaml"},
		"a.yaml:3: error: r: m":   {File: "a.yaml", Line: 3},
		"a.yaml:3:4: error: r: m": {File: "a.yaml", Line: 3, Column: 4},
	} {
		require.Equal(t, want, Finding{Rule: "r", Severity: Error, Position: at, Message: "m"}.String())
	}
}
