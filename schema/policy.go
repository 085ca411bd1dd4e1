package schema

// Policy is a team's own set of rules.
type Policy struct {
	APIVersion string     `json:"apiVersion"`
	Kind       string     `json:"kind"`
	Metadata   ObjectMeta `json:"metadata"`
	Spec       PolicySpec `json:"spec"`
	Source     Source     `json:"-"`
}

// PolicySpec lists rules.
type PolicySpec struct {
	// Rules are checked one by one.
	Rules []Rule `json:"rules"`
}

// Rule is one check, in CEL. The built-in rules have the same form.
type Rule struct {
	// Name is what a finding of this rule is called.
	Name string `json:"name" is:"label"`
	// Scope is cluster, machine, backup or operation: what self is.
	Scope string `json:"scope" is:"scope"`
	// Field is the path of the field that a finding points at ("spec.approved"); when not given, the object as a whole.
	Field string `json:"field,omitempty" is:"line"`
	// When is a CEL expression: the rule is asked only where it is true.
	When string `json:"when,omitempty" is:"expression"`
	// Expr is a CEL expression: the rule is kept where it is true.
	Expr string `json:"expr" is:"expression"`
	// Message is a CEL expression that gives a string.
	Message string `json:"message" is:"expression"`
	// Severity is error (the default) or warning.
	Severity string `json:"severity,omitempty" is:"severity"`
}

// PolicyTest holds cases for the rules of a policy, kept beside it. `ichor policy test` runs them; nothing else acts on them.
type PolicyTest struct {
	APIVersion string         `json:"apiVersion"`
	Kind       string         `json:"kind"`
	Metadata   ObjectMeta     `json:"metadata"`
	Spec       PolicyTestSpec `json:"spec"`
	Source     Source         `json:"-"`
}

// PolicyTestSpec lists cases.
type PolicyTestSpec struct {
	// PolicyRef names the policy whose rules are asked. It stands in the same folder, or below it.
	PolicyRef PolicyRef `json:"policyRef"`
	// Cases are run one by one.
	Cases []PolicyCase `json:"cases"`
}

// PolicyRef names a policy.
type PolicyRef struct {
	// Name is the policy's metadata.name.
	Name string `json:"name" is:"label"`
}

// PolicyCase is a small fleet, and what the policy says of it.
type PolicyCase struct {
	// Name says in a sentence what is shown.
	Name string `json:"name" is:"line"`
	// Old are the objects of the base. When it isn't given there is no base, and rules that speak of one are not asked.
	Old []map[string]any `json:"old,omitempty"`
	// New are the objects of the proposal. What an object needs and doesn't say is filled in.
	New []map[string]any `json:"new"`
	// Expect are the findings, all of them and no others. An empty list says that everything passes.
	Expect []ExpectedFinding `json:"expect"`
}

// ExpectedFinding is a finding that a case must give.
type ExpectedFinding struct {
	// Rule is the name of the rule that refuses.
	Rule string `json:"rule" is:"label"`
	// Name is the metadata.name of the object that is refused; when not given, any.
	Name string `json:"name,omitempty" is:"label"`
	// Message is a part of the finding's message; when not given, any message will do.
	Message string `json:"message,omitempty" is:"line"`
}
