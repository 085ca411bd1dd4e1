package validate

import (
	_ "embed"
	"fmt"
	"strings"

	"sigs.k8s.io/yaml"

	"ichor.maesh.dev/schema"
)

//go:embed rules.yaml
var builtin string

// builtinRules reads rules.yaml.
func builtinRules(c *compiler) ([]*rule, error) {
	var policy schema.Policy
	if err := yaml.UnmarshalStrict([]byte(builtin), &policy); err != nil {
		return nil, fmt.Errorf("read the built-in rules: %w", err)
	}
	var rules []*rule
	for _, r := range policy.Spec.Rules {
		if _, known := scopes()[r.Scope]; !known {
			return nil, fmt.Errorf("the built-in rule %s has the scope %q, which there is not", r.Name, r.Scope)
		}
		rules = append(rules, c.later(r))
	}
	return rules, nil
}

// rulesInWords explains the rules that are not written in CEL, in the order in which they are listed.
var rulesInWords = []struct{ name, text string }{
	{RuleSchema, "# Documents must decode: known kinds and fields, none twice, none missing, and values of the right form.\n" +
		"# This is no CEL rule; `ichor schema KIND` prints what is allowed.\n"},
	{RuleConfig, "# A Talos config can be made for each machine from its spec and patches, and Talos's own code finds it valid.\n" +
		"# This is no CEL rule: configs are rendered for it, unless --no-render is given.\n"},
	{RuleSecret, "# No secret stands in a file as anyone can read it: no secrets bundle, machine config with keys, S3 credentials, age\n" +
		"# identity, talosconfig or kubeconfig with a key, and no private key of any kind.\n" +
		"# This is no CEL rule: every file under the path is searched, whatever its name.\n"},
	{RulePolicy, "# The rules of policies must be such that they can be asked: they compile, and each has a name of its own.\n" +
		"# This is no CEL rule: it is asked when the rules are loaded. docs/kinds/policy.md says more.\n"},
	{RuleOperationTimes, "# A new operation can be accepted now: it is not expired, was not made in the future, and doesn't live too long.\n" +
		"# This is no CEL rule: it looks at the clock.\n"},
	{RuleSignature, "# An operation that is new or changed bears the signature of someone who may sign it.\n" +
		"# This is no CEL rule: it asks the files that --allowed-signers and --revoked-signers name.\n"},
	{RuleBothSides, "# An object that the branch and its base both changed since they parted, each in its own way, has no one meaning.\n" +
		"# This is no CEL rule: it is asked while the change is laid over the base.\n"},
}

// Explain gives the text of a built-in rule as it stands in rules.yaml, with the comment above it. A rule that looks at
// several kinds of object has several entries. What isn't CEL is said in words.
func (e *Engine) Explain(rule string) (string, bool) {
	for _, r := range rulesInWords {
		if r.name == rule {
			return r.text, true
		}
	}
	const entry = "  - name: "
	if !strings.Contains(builtin, "\n"+entry+rule+"\n") {
		return "", false
	}
	var found []string
	lines := strings.Split(builtin, "\n")
	for i := 0; i < len(lines); i++ {
		if lines[i] != entry+rule {
			continue
		}
		first, last := i, i+1
		for first > 0 && strings.HasPrefix(lines[first-1], "  #") {
			first--
		}
		for last < len(lines) && strings.HasPrefix(lines[last], "    ") {
			last++
		}
		for _, line := range lines[first:last] {
			found = append(found, strings.TrimPrefix(line, "  "))
		}
	}
	return strings.Join(found, "\n") + "\n", len(found) > 0
}
