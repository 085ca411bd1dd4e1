package validate

import (
	"fmt"
	"slices"
	"strings"

	"ichor.maesh.dev/schema"
)

// Engine holds the rules, compiled. It may be used by several goroutines at once.
type Engine struct {
	compiler *compiler
	rules    []*rule
	policies *policyCache
}

// Option changes what a Check does.
type Option func(*options)

type options struct {
	skip     []string
	problems []schema.Problem
}

// Without leaves rules out by name.
func Without(rules ...string) Option {
	return func(o *options) { o.skip = append(o.skip, rules...) }
}

// WithProblems names what could not be decoded in the proposed fleet. An object that only can't be read isn't taken for one
// that was removed.
func WithProblems(problems []schema.Problem) Option {
	return func(o *options) { o.problems = append(o.problems, problems...) }
}

// New compiles the built-in rules. An error is a fault of this program.
func New() (*Engine, error) {
	engine, err := NewForOnce()
	if err != nil {
		return nil, err
	}
	for _, r := range engine.rules {
		if err := r.ready(); err != nil {
			return nil, fmt.Errorf("compile the built-in rules: %w", err)
		}
	}
	return engine, nil
}

// NewForOnce is New for a program that checks once and ends: each part of a rule is compiled when it is first asked for.
func NewForOnce() (*Engine, error) {
	compiler, err := newCompiler()
	if err != nil {
		return nil, err
	}
	rules, err := builtinRules(compiler)
	if err != nil {
		return nil, err
	}
	return &Engine{compiler: compiler, rules: rules, policies: newPolicyCache()}, nil
}

// Check evaluates the rules, those of the proposal's policies included, over the step from old to proposed. Old may be nil:
// then only the rules that one revision can answer are evaluated. The findings are sorted by place.
func (e *Engine) Check(old, proposed *schema.Fleet, opts ...Option) []Finding {
	var o options
	for _, set := range opts {
		set(&o)
	}
	w := newWorld(e.compiler.set, old, proposed, o.problems)
	policies, findings := e.policyRules(proposed)
	asked := func(r *rule) bool { return !slices.Contains(o.skip, r.Name) && (old != nil || !r.needsBase) }
	findings = append(findings, checkAll(w, kept(e.rules, asked))...)
	for _, r := range kept(policies, asked) {
		findings = append(findings, r.check(w)...)
	}
	if w.hasBase {
		findings = append(findings, e.loosened(w, policies, findings)...)
	}
	findings = append(findings, e.introduced(w, policies, findings)...)
	Sort(findings)
	return findings
}

// kept gives the rules that a test passes.
func kept(rules []*rule, test func(*rule) bool) []*rule {
	var passed []*rule
	for _, r := range rules {
		if test(r) {
			passed = append(passed, r)
		}
	}
	return passed
}

// RulesEvaluated counts the rules that Check evaluates on a fleet with or without a base.
func (e *Engine) RulesEvaluated(f *schema.Fleet, hasBase bool, opts ...Option) int {
	var o options
	for _, set := range opts {
		set(&o)
	}
	names := map[string]bool{}
	policies, _ := e.policyRules(f)
	for _, r := range slices.Concat(e.rules, policies) {
		if (hasBase || !r.needsBase) && !slices.Contains(o.skip, r.Name) {
			names[r.Name] = true
		}
	}
	return len(names)
}

// Rules gives the names of the built-in rules: in the order of rules.yaml, then those that are not written in CEL.
func (e *Engine) Rules() []string {
	var names []string
	for _, r := range e.rules {
		if !slices.Contains(names, r.Name) {
			names = append(names, r.Name)
		}
	}
	for _, r := range rulesInWords {
		names = append(names, r.name)
	}
	return names
}

// place gives where a field stands: the field itself, else the nearest field around it, else the object.
func place(source *schema.Source, field string) schema.Position {
	for field != "" {
		if at, ok := source.Fields[field]; ok {
			return at
		}
		field = field[:max(0, strings.LastIndexAny(field, ".["))]
	}
	return source.Position
}
