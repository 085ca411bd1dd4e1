package validate

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"ichor.maesh.dev/schema"
)

// CaseResult is what came of one case of a PolicyTest.
type CaseResult struct {
	schema.Position
	Name string `json:"name"`
	OK   bool   `json:"ok"`
	// Missing were expected and did not come; Unexpected came and were not.
	Missing    []schema.ExpectedFinding `json:"missing"`
	Unexpected []Finding                `json:"unexpected"`
	// NotAsked are the rules that were not asked, because they speak of a base and the case gives none.
	NotAsked []string `json:"notAsked"`
}

// TestResult is what came of a PolicyTest.
type TestResult struct {
	Cases []CaseResult
	// Findings say why a case can't be run, and, as warnings, what the cases don't show.
	Findings []Finding
}

// RunTest runs the cases of a test against the rules of the policy it names, which is looked for in the fleet.
func (e *Engine) RunTest(f *schema.Fleet, test *schema.PolicyTest) TestResult {
	run := &testRun{engine: e, test: test, outcomes: map[*rule]*outcome{}}
	var policies []*schema.Policy
	for _, p := range f.Policies {
		if p.Metadata.Name == test.Spec.PolicyRef.Name {
			policies = append(policies, p)
		}
	}
	if len(policies) == 0 {
		run.problem("spec.policyRef.name", "there is no Policy %s in the folder of this test, or below it; mend the name, or keep the two together",
			test.Spec.PolicyRef.Name)
		return run.result
	}
	rules, findings := e.policyRules(&schema.Fleet{Policies: policies})
	run.rules = rules
	run.result.Findings = append(run.result.Findings, findings...)
	for i := range test.Spec.Cases {
		run.runCase(i)
	}
	if len(findings) == 0 {
		run.judgeCoverage()
	}
	return run.result
}

// testRun is the run of one test.
type testRun struct {
	engine   *Engine
	test     *schema.PolicyTest
	rules    []*rule
	result   TestResult
	outcomes map[*rule]*outcome
	unread   bool
}

func (t *testRun) problem(field, format string, args ...any) {
	t.unread = true
	t.result.Findings = append(t.result.Findings, Finding{
		Rule: RulePolicy, Severity: Error, Position: place(&t.test.Source, field), Kind: schema.KindPolicyTest, Name: t.test.Metadata.Name,
		Message: fmt.Sprintf(format, args...),
	})
}

func (t *testRun) runCase(index int) {
	c := t.test.Spec.Cases[index]
	path := fmt.Sprintf("spec.cases[%d]", index)
	proposed, ok := t.fleet(path+".new", c.New)
	if !ok {
		return
	}
	var old *schema.Fleet
	if _, given := t.test.Source.Fields[path+".old"]; given {
		if old, ok = t.fleet(path+".old", c.Old); !ok {
			return
		}
	}
	result := CaseResult{Position: place(&t.test.Source, path+".name"), Name: c.Name, Missing: []schema.ExpectedFinding{}, Unexpected: []Finding{}, NotAsked: []string{}}
	w := newWorld(t.engine.compiler.set, old, proposed, nil)
	var got []Finding
	for _, r := range t.rules {
		if old == nil && r.needsBase {
			result.NotAsked = append(result.NotAsked, r.Name)
			continue
		}
		got = append(got, r.check(w)...)
		t.count(r, w.outcome(r))
	}
	Sort(got)
	result.Missing, result.Unexpected = match(c.Expect, got)
	result.OK = len(result.Missing) == 0 && len(result.Unexpected) == 0
	t.result.Cases = append(t.result.Cases, result)
}

func (t *testRun) count(r *rule, o *outcome) {
	if t.outcomes[r] == nil {
		t.outcomes[r] = &outcome{}
	}
	t.outcomes[r].spared += o.spared
	t.outcomes[r].kept += o.kept
	t.outcomes[r].broken += o.broken
}

// fleet makes a fleet of the objects of a case. A cluster that is named and not given is made up.
func (t *testRun) fleet(path string, objects []map[string]any) (*schema.Fleet, bool) {
	made := &schema.Fleet{}
	cluster := exampleName
	for _, given := range objects {
		if given["kind"] == schema.KindCluster {
			if name := textIn(given, "metadata", "name"); name != "" {
				cluster = name
				break
			}
		}
	}
	good := true
	for i, given := range objects {
		at := fmt.Sprintf("%s[%d]", path, i)
		kind, _ := given["kind"].(string)
		if !slices.Contains([]string{schema.KindCluster, schema.KindMachine, schema.KindBackup, schema.KindOperation}, kind) {
			t.problem(at, "the object %d of %s needs a kind: %s, %s, %s or %s", i+1, path,
				schema.KindCluster, schema.KindMachine, schema.KindBackup, schema.KindOperation)
			good = false
			continue
		}
		one, problems, err := decodeFilled(t.test.Source.File, filled(given, cluster))
		if err != nil {
			t.problem(at, "%s can't be read: %s", kind, err)
			good = false
			continue
		}
		for _, p := range problems {
			t.problem(at, "%s can't stand so: %s", kind, p.Message)
			good = false
		}
		add(made, one)
	}
	t.engine.addClusters(made, t.test.Source.File)
	return made, good
}

// addClusters makes up the clusters that are named and aren't there.
func (e *Engine) addClusters(f *schema.Fleet, file string) {
	w := newSide(e.compiler.set, f)
	for _, name := range slices.Sorted(maps.Keys(w.scopes)) {
		if w.scopes[name].cluster == nil && name != "" {
			if one, problems, err := decodeFilled(file, bareFields(schema.KindCluster, name, "")); err == nil && len(problems) == 0 {
				add(f, one)
			}
		}
	}
}

// match pairs what was expected with what came. A rule that could not be judged is never what was expected.
func match(expected []schema.ExpectedFinding, got []Finding) ([]schema.ExpectedFinding, []Finding) {
	missing, unexpected := []schema.ExpectedFinding{}, []Finding{}
	left := slices.Clone(got)
	// What is said most narrowly is paired first, so that a wide expectation doesn't take its finding away.
	narrow := slices.Clone(expected)
	slices.SortStableFunc(narrow, func(a, b schema.ExpectedFinding) int { return breadth(a) - breadth(b) })
	for _, want := range narrow {
		at := slices.IndexFunc(left, func(f Finding) bool {
			return !f.failed && f.Rule == want.Rule && (want.Name == "" || f.Name == want.Name) && strings.Contains(f.Message, want.Message)
		})
		if at < 0 {
			missing = append(missing, want)
			continue
		}
		left = slices.Delete(left, at, at+1)
	}
	return missing, append(unexpected, left...)
}

func breadth(e schema.ExpectedFinding) int {
	wide := 0
	if e.Name == "" {
		wide++
	}
	if e.Message == "" {
		wide++
	}
	return wide
}

// judgeCoverage warns of rules that the cases show from one side only.
func (t *testRun) judgeCoverage() {
	if t.unread {
		return
	}
	for _, r := range t.rules {
		o := t.outcomes[r]
		warn := func(format string, args ...any) {
			f := r.origin.finding("name", 0, format, args...)
			f.Severity = Warning
			t.result.Findings = append(t.result.Findings, f)
		}
		switch {
		case o == nil || o.broken == 0:
			warn("the rule %s refuses nothing in its cases; add one in which it does", r.Name)
		case o.kept+o.spared == 0:
			warn("the rule %s refuses everything in its cases; add one that passes", r.Name)
		}
	}
}
