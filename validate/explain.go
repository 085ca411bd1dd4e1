package validate

import (
	"fmt"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"ichor.maesh.dev/schema"
)

// ExplainPolicy gives the text of a rule that a policy of the fleet has, with the place where it stands.
func ExplainPolicy(f *schema.Fleet, rule string) (string, bool) {
	var text strings.Builder
	for _, p := range f.Policies {
		for i, r := range p.Spec.Rules {
			if r.Name != rule {
				continue
			}
			at := (&origin{p, i}).place("name", 0)
			fmt.Fprintf(&text, "# %s:%d: a rule of the policy %s\n", at.File, at.Line, p.Metadata.Name)
			writeRule(&text, r)
		}
	}
	return text.String(), text.Len() > 0
}

// ExplainWith gives what explains the built-in rules and those of a fleet's policies.
func (e *Engine) ExplainWith(f *schema.Fleet) func(rule string) (string, bool) {
	return func(rule string) (string, bool) {
		if text, ok := e.Explain(rule); ok {
			return text, true
		}
		return ExplainPolicy(f, rule)
	}
}

// PolicyRules gives the names of the rules of a fleet's policies, each once.
func PolicyRules(f *schema.Fleet) []string {
	var names []string
	for _, p := range f.Policies {
		for _, r := range p.Spec.Rules {
			if !slices.Contains(names, r.Name) {
				names = append(names, r.Name)
			}
		}
	}
	return names
}

// writeRule writes a rule as YAML, its fields in the order of the built-in ones.
func writeRule(out *strings.Builder, r schema.Rule) {
	before := "- "
	for _, f := range []struct{ name, value string }{
		{"name", r.Name}, {"scope", r.Scope}, {"field", r.Field}, {"severity", r.Severity}, {partWhen, r.When}, {partExpr, r.Expr}, {partMessage, r.Message},
	} {
		if f.value == "" {
			continue
		}
		written, err := yaml.Marshal(map[string]string{f.name: f.value})
		if err != nil { // a text can always be written
			continue
		}
		for line := range strings.Lines(string(written)) {
			out.WriteString(before + line)
			before = "  "
		}
	}
}
