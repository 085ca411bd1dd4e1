package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"ichor.maesh.dev/internal/printable"
	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/validate"
)

func (a *app) policyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "policy",
		Short: "Work with a team's own rules",
	}
	cmd.AddCommand(a.policyTestCommand())
	return cmd
}

// policyTestFlags are the command line of policy test.
type policyTestFlags struct {
	output string
	strict bool
}

func (a *app) policyTestCommand() *cobra.Command {
	f := &policyTestFlags{}
	cmd := &cobra.Command{
		Use:   "test PATH...",
		Short: "Run the cases that are kept beside policies",
		Long: `Runs the cases of every PolicyTest at the paths: a file with tests, a file with policies (then the tests of these), or a folder
and all below it. Each case is a small fleet and the findings that the policy must give on it.

It ends with 0 when every case gives what it expects (there may be warnings) or a folder holds no case, 1 when a case gives
something else, and 2 when a path can't be read or a file holds no case.`,
		Example: "  ichor policy test policies\n  ichor policy test policies/house.yaml",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			if err := checkOutput(f.output, "text", "json"); err != nil {
				return err
			}
			engine, err := a.engine()
			if err != nil {
				return err
			}
			report := &policyReport{Cases: []validate.CaseResult{}, Findings: []validate.Finding{}}
			for _, arg := range args {
				if err := a.runPolicyTests(report, engine, arg); err != nil {
					return err
				}
			}
			return a.printPolicyReport(f, report)
		},
	}
	addOutput(cmd.Flags(), &f.output, "text", "json")
	cmd.Flags().BoolVar(&f.strict, "strict", false, "take warnings for errors")
	return cmd
}

// policyReport is the answer of policy test.
type policyReport struct {
	Cases    []validate.CaseResult `json:"cases"`
	Findings []validate.Finding    `json:"findings"`
}

// runPolicyTests runs the tests at a path.
func (a *app) runPolicyTests(r *policyReport, engine *validate.Engine, at string) error {
	place, err := findRepository(at)
	if err != nil {
		return err
	}
	defer func() { _ = place.close() }()
	wanted, folder := place.roots[0], place.roots[0]
	if ext := filepath.Ext(wanted); ext == ".yaml" || ext == ".yml" {
		folder = path.Dir(wanted)
	}
	fleet, problems := schema.Load(place.tree, []string{folder})
	within := func(file string) bool { return folder == wanted || file == wanted }
	for _, p := range problems {
		if within(p.File) && (p.Kind == "" || p.Kind == schema.KindPolicy || p.Kind == schema.KindPolicyTest) {
			r.Findings = append(r.Findings, validate.FromProblems([]schema.Problem{p})...)
		}
	}
	tested, ran := map[string]bool{}, 0
	named := map[string]bool{}
	for _, p := range fleet.Policies {
		named[p.Metadata.Name] = named[p.Metadata.Name] || within(p.Source.File)
	}
	for _, test := range fleet.PolicyTests {
		if !within(test.Source.File) && !named[test.Spec.PolicyRef.Name] {
			continue
		}
		result := engine.RunTest(fleet, test)
		r.Cases = append(r.Cases, result.Cases...)
		r.Findings = append(r.Findings, result.Findings...)
		tested[test.Spec.PolicyRef.Name] = true
		ran++
	}
	switch isFolder := folder == wanted; {
	case ran > 0 || len(r.Findings) > 0:
	case isFolder:
		fmt.Fprintf(a.err, "%s holds no PolicyTest, so no case was run; docs/kinds/policytest.md shows one\n", a.clean(at))
	default:
		return cannot(fmt.Errorf("%s holds no PolicyTest, so there is nothing to run", at), "docs/kinds/policytest.md shows one")
	}
	for _, p := range fleet.Policies {
		if within(p.Source.File) && !tested[p.Metadata.Name] {
			r.Findings = append(r.Findings, validate.Finding{Rule: validate.RulePolicy, Severity: validate.Warning, Position: p.Source.Position,
				Kind: schema.KindPolicy, Name: p.Metadata.Name, Message: fmt.Sprintf("no PolicyTest names the policy %s; write one beside it", p.Metadata.Name)})
		}
	}
	return nil
}

func (a *app) printPolicyReport(f *policyTestFlags, r *policyReport) error {
	failed, errorCount, warnings := 0, 0, 0
	for _, c := range r.Cases {
		if !c.OK {
			failed++
		}
	}
	for i := range r.Findings {
		if f.strict {
			r.Findings[i].Severity = validate.Error
		}
		if r.Findings[i].Severity == validate.Error {
			errorCount++
		} else {
			warnings++
		}
	}
	if f.output == "json" {
		text, err := json.MarshalIndent(r, "", "  ")
		if err != nil {
			return cannot(fmt.Errorf("write the results: %w", err), "")
		}
		fmt.Fprintln(a.out, printable.Lines(string(text)))
	} else {
		a.printCases(r)
	}
	fmt.Fprintf(a.err, "%s, %d failed; %s, %s\n", counted(len(r.Cases), "case"), failed, counted(errorCount, "error"), counted(warnings, "warning"))
	if failed > 0 || errorCount > 0 {
		return errNo
	}
	return nil
}

func (a *app) printCases(r *policyReport) {
	line := func(format string, args ...any) { fmt.Fprintln(a.out, printable.Text(fmt.Sprintf(format, args...))) }
	for _, c := range r.Cases {
		if c.OK {
			line("ok    %s", c.Name)
			continue
		}
		line("FAIL  %s (%s:%d)", c.Name, c.File, c.Line)
		for _, m := range c.Missing {
			line("      expected: %s", expectation(m))
		}
		for _, u := range c.Unexpected {
			line("      got:      %s on %s %s: %s", u.Rule, u.Kind, u.Name, u.Message)
		}
		if len(c.Unexpected) == 0 {
			line("      got:      nothing")
		}
		if len(c.Missing) == 0 {
			line("      expected: nothing")
		}
		if len(c.NotAsked) > 0 {
			line("      not asked, because the case has no old and they speak of it: %s", strings.Join(c.NotAsked, ", "))
		}
	}
	for _, f := range r.Findings {
		line("%s", f.String())
	}
}

// expectation says what a case expects.
func expectation(e schema.ExpectedFinding) string {
	text := e.Rule
	if e.Name != "" {
		text += " on " + e.Name
	}
	if e.Message != "" {
		text += fmt.Sprintf(", with %q in its message", e.Message)
	}
	return text
}

// explainRule prints a built-in rule, or one of the policies under a path.
func (a *app) explainRule(engine *validate.Engine, rule, at string) error {
	if text, ok := engine.Explain(rule); ok {
		fmt.Fprint(a.out, text)
		return nil
	}
	known := engine.Rules()
	place, err := findRepository(at)
	if err != nil {
		return err
	}
	defer func() { _ = place.close() }()
	fleet, _ := schema.Load(place.tree, place.roots)
	if text, ok := validate.ExplainPolicy(fleet, rule); ok {
		fmt.Fprintln(a.out, strings.TrimRight(printable.Lines(text), "\n"))
		return nil
	}
	if own := validate.PolicyRules(fleet); len(own) > 0 {
		known = append(own, known...)
	}
	return usageError(errors.New("there is no rule "+printable.Text(rule)), "the rules are "+printable.Text(strings.Join(known, ", "))+
		"; those of policies are looked for under PATH")
}
