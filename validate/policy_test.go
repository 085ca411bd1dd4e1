package validate

import (
	"fmt"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/schema"
)

// policyOf makes a policy of rules, each the YAML of its fields.
func policyOf(name string, rules ...string) string {
	text := "apiVersion: ichor.maesh.dev/v1alpha1\nkind: Policy\nmetadata: {name: " + name + "}\nspec:\n  rules:\n"
	for _, r := range rules {
		text += "  - " + strings.ReplaceAll(strings.TrimSpace(r), "\n", "\n    ") + "\n"
	}
	return text
}

// withPolicies adds the policies of files to a fleet. What Load says of them must be nothing.
func withPolicies(t *testing.T, f *schema.Fleet, files map[string]string) *schema.Fleet {
	t.Helper()
	tree := fstest.MapFS{}
	for name, text := range files {
		tree[name] = &fstest.MapFile{Data: []byte(text)}
	}
	loaded, problems := schema.Load(tree, []string{"."})
	require.Empty(t, problems)
	f.Policies = append(f.Policies, loaded.Policies...)
	return f
}

func newEngine(t *testing.T) *Engine {
	t.Helper()
	engine, err := New()
	require.NoError(t, err)
	return engine
}

const isHA = `name: prod-is-ha
scope: cluster
field: spec.controlPlane.count
when: "self.metadata.?labels.tier.orValue('') == 'prod'"
expr: "self.spec.controlPlane.count >= 3"
message: "self.metadata.name + ' needs three control planes'"`

func TestThePoliciesOfTheProposalAreAsked(t *testing.T) {
	f := withPolicies(t, fleetOf(t, "cluster a count=1\ncluster b count=1"), map[string]string{"policies/ha.yaml": policyOf("ha", isHA)})
	f.Clusters[0].Metadata.Labels = map[string]string{"tier": "prod"}
	findings := newEngine(t).Check(nil, f)
	require.Equal(t, []Finding{{
		Rule: "prod-is-ha", Severity: Error, Position: schema.Position{File: "clusters/a/cluster.yaml", Line: 1, Column: 1},
		Kind: "TalosCluster", Name: "a", Cluster: "a", Message: "a needs three control planes",
	}}, findings)
	stopped := Stops(findings)
	require.Len(t, stopped.Of("a"), 1)
	require.Empty(t, stopped.Of("b"), "the other cluster goes on")
	require.Equal(t, newEngine(t).RulesEvaluated(&schema.Fleet{}, true)+1, newEngine(t).RulesEvaluated(f, true))
}

func TestAPolicyThatCannotBeAskedStopsAllAtItsOwnLineAndColumn(t *testing.T) {
	for name, c := range map[string]struct{ rule, at, want string }{
		"a misspelt field, folded": {
			"name: r\nscope: cluster\nexpr: >-\n  self.metadata.name != 'x'\n  && self.spec.controlplane.count >= 3\nmessage: \"'m'\"",
			"clusters/a/p.yaml:10:20", `expr doesn't compile: there is no field controlplane in self.spec; did you mean "controlPlane"?`},
		"a misspelt field, literal": {
			"name: r\nscope: machine\nexpr: |\n  self.metadata.name != 'x'\n\n    && self.spec.aproved\nmessage: \"'m'\"",
			"clusters/a/p.yaml:11:22", `there is no field aproved in self.spec; did you mean "approved"?`},
		"a misspelt field after an escape": {
			"name: r\nscope: machine\nmessage: \"'m'\"\nexpr: \"self.metadata.name != \\\"x\\\" && self.spec.aproved\"",
			"clusters/a/p.yaml:9:53", `there is no field aproved in self.spec; did you mean "approved"?`},
		"a wrong when": {
			"name: r\nscope: machine\nwhen: self.spec.approved =\nexpr: \"true\"\nmessage: \"'m'\"",
			"clusters/a/p.yaml:8:30", "when doesn't compile: a single =; two values are compared with =="},
		"one equals sign": {
			"name: r\nscope: machine\nexpr: \"self.metadata.name = 'a'\"\nmessage: \"'m'\"",
			"clusters/a/p.yaml:8:31", "expr doesn't compile: a single =; two values are compared with =="},
		"a plain message": {
			"name: r\nscope: machine\nexpr: \"true\"\nmessage: every machine is approved",
			"clusters/a/p.yaml:9:20", `so a plain text needs quotes of its own: message: "'every machine is approved'"`},
		"a built-in rule's name": {
			"name: approval-cap\nscope: machine\nexpr: \"true\"\nmessage: \"'m'\"",
			"clusters/a/p.yaml:6:11", "the name approval-cap is that of a built-in rule; give this one another"},
		"the name of a rule that isn't in CEL": {
			"name: schema\nscope: machine\nexpr: \"true\"\nmessage: \"'m'\"",
			"clusters/a/p.yaml:6:11", "the name schema is that of a built-in rule"},
	} {
		t.Run(name, func(t *testing.T) {
			f := withPolicies(t, fleetOf(t, "cluster a\ncluster b"), map[string]string{"clusters/a/p.yaml": policyOf("p", c.rule)})
			findings := newEngine(t).Check(nil, f)
			require.NotEmpty(t, findings)
			require.Equal(t, RulePolicy, findings[0].Rule)
			require.Contains(t, findings[0].String(), c.at+": error: policy: ")
			require.Contains(t, findings[0].Message, c.want)
			require.NotEmpty(t, Stops(findings).Of("b"), "nobody knows what the rule says of b, wherever it stands")
		})
	}
}

func TestARuleThatCannotBeJudgedIsAnErrorOfItsObjectsClusterAndPointsAtThePolicy(t *testing.T) {
	rule := "name: r\nscope: machine\nseverity: warning\nexpr: >-\n  true &&\n  self.metadata.labels['tier'] == 'x'\nmessage: \"'m'\""
	f := withPolicies(t, fleetOf(t, "cluster a\nmachine a/m\ncluster b\nmachine b/n"), map[string]string{"policies/p.yaml": policyOf("p", rule)})
	f.Machines[1].Metadata.Labels = map[string]string{"tier": "x"}
	findings := newEngine(t).Check(nil, f)
	require.Len(t, findings, 1)
	require.Equal(t, "policies/p.yaml:11:27: error: r: TalosMachine m could not be judged, so it is refused: the expr of this rule failed: no such key: tier; "+
		"ask for a key that may be missing with a question mark, as in labels[?'tier'].orValue('')",
		findings[0].String())
	require.Equal(t, "a", findings[0].Cluster)
	require.Empty(t, Stops(findings).Of("b"))
}

func TestTwoRulesOfOneNameAreAFinding(t *testing.T) {
	f := withPolicies(t, fleetOf(t, "cluster a count=1"), map[string]string{
		"policies/a.yaml": policyOf("a", isHA), "policies/b.yaml": policyOf("b", isHA)})
	f.Clusters[0].Metadata.Labels = map[string]string{"tier": "prod"}
	findings := newEngine(t).Check(nil, f)
	require.Equal(t, "policies/b.yaml:6:11: error: policy: the name prod-is-ha is that of a rule of the policy a too (policies/a.yaml:6); give one of them another",
		findings[2].String())
	require.Len(t, findings, 3, "both are asked all the same")
}

func TestTheRulesOfAllPoliciesAreBounded(t *testing.T) {
	var rules []string
	for i := range maxPolicyRules + 2 {
		rules = append(rules, fmt.Sprintf("{name: r%d, scope: backup, expr: \"true\", message: \"'m'\"}", i))
	}
	f := withPolicies(t, fleetOf(t, "cluster a"), map[string]string{"p.yaml": policyOf("p", rules...)})
	findings := newEngine(t).Check(nil, f)
	require.Len(t, findings, 1)
	require.Contains(t, findings[0].String(), "p.yaml:1006:12: error: policy: the policies have more than 1000 rules together")
}
