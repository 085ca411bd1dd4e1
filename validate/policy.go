package validate

import (
	"context"
	"fmt"
	"sync"

	"ichor.maesh.dev/schema"
)

const (
	// maxPolicyRules is how many rules all policies may have together.
	maxPolicyRules = 1000
	// clusterCostLimit bounds what one rule of a policy costs over all objects of one cluster, and fleetCostLimit what all
	// such rules cost over a fleet. They are counted in steps and not in time, so that every machine decides alike.
	clusterCostLimit = 5_000_000
	fleetCostLimit   = 50_000_000
)

// origin is where a policy's rule stands.
type origin struct {
	policy *schema.Policy
	index  int
}

func (o *origin) path(field string) string { return fmt.Sprintf("spec.rules[%d].%s", o.index, field) }

// place gives the place of a byte of one of the rule's fields.
func (o *origin) place(field string, offset int) schema.Position {
	path := o.path(field)
	if text, ok := o.policy.Source.Texts[path]; ok {
		return text.At(offset)
	}
	return place(&o.policy.Source, path)
}

func (o *origin) finding(field string, offset int, format string, args ...any) Finding {
	return Finding{
		Rule: RulePolicy, Severity: Error, Position: o.place(field, offset), Kind: schema.KindPolicy, Name: o.policy.Metadata.Name,
		Message: fmt.Sprintf(format, args...),
	}
}

// policyRules compiles the policies of a fleet. What can't be asked is a finding that belongs to no cluster, so that it stops
// all: nobody knows what the rule would have said of each.
func (e *Engine) policyRules(f *schema.Fleet) ([]*rule, []Finding) {
	var rules []*rule
	var findings []Finding
	first := map[string]*origin{}
	for _, p := range f.Policies {
		for i, r := range p.Spec.Rules {
			o := &origin{p, i}
			if len(first) == maxPolicyRules {
				return rules, append(findings, o.finding("name", 0,
					"the policies have more than %d rules together, and this one and those after it are not asked; have fewer", maxPolicyRules))
			}
			if _, builtin := e.Explain(r.Name); builtin {
				findings = append(findings, o.finding("name", 0, "the name %s is that of a built-in rule; give this one another", r.Name))
				continue
			}
			if other := first[r.Name]; other != nil {
				findings = append(findings, o.finding("name", 0, "the name %s is that of a rule of the policy %s too (%s:%d); give one of them another",
					r.Name, other.policy.Metadata.Name, other.policy.Source.File, other.place("name", 0).Line))
			} else {
				first[r.Name] = o
			}
			compiled, faults := e.policies.compile(e.compiler, r)
			for _, fault := range faults {
				findings = append(findings, o.finding(fault.part, fault.offset, "the rule %s can't be asked: %s", r.Name, fault.text))
			}
			if compiled != nil {
				own := *compiled
				own.origin = o
				rules = append(rules, &own)
			}
		}
	}
	return rules, findings
}

// policyCache remembers compiled rules: the agent judges commit after commit, and few of them change a policy.
type policyCache struct {
	mu    sync.Mutex
	known map[schema.Rule]compiledRule
}

type compiledRule struct {
	rule   *rule
	faults []fault
}

func newPolicyCache() *policyCache { return &policyCache{known: map[schema.Rule]compiledRule{}} }

func (c *policyCache) compile(with *compiler, r schema.Rule) (*rule, []fault) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if found, ok := c.known[r]; ok {
		return found.rule, found.faults
	}
	if len(c.known) >= 2*maxPolicyRules {
		clear(c.known)
	}
	compiled, faults := with.compile(r)
	c.known[r] = compiledRule{compiled, faults}
	return compiled, faults
}

// meter bounds what one rule costs.
type meter struct {
	w       *world
	spent   map[string]uint64 // by cluster
	asked   map[string]int
	refused map[string][]*object
	order   []string
	late    bool
}

func newMeter(w *world) *meter {
	return &meter{w: w, spent: map[string]uint64{}, asked: map[string]int{}, refused: map[string][]*object{}}
}

// take says whether a rule may still be asked of an object.
func (m *meter) take(self *object, ctx context.Context) bool {
	m.late = m.late || ctx.Err() != nil
	cluster := m.w.belongsTo(self)
	if !m.late && m.spent[cluster] < clusterCostLimit && m.w.spent < fleetCostLimit {
		m.asked[cluster]++
		return true
	}
	if m.refused[cluster] == nil {
		m.order = append(m.order, cluster)
	}
	m.refused[cluster] = append(m.refused[cluster], self)
	return false
}

func (m *meter) spend(self *object, cost uint64) {
	m.spent[m.w.belongsTo(self)] += cost
	m.w.spent += cost
}

// findings says, once for each cluster, that a rule was not asked of all its objects.
func (m *meter) findings(r *rule) []Finding {
	var findings []Finding
	for _, cluster := range m.order {
		left := m.refused[cluster]
		why := fmt.Sprintf("asking it of one after the other costs more than %d steps; make it look at less, or ask it once, of the cluster (scope: cluster)",
			clusterCostLimit)
		switch {
		case m.late:
			why = fmt.Sprintf("it took longer than %s; make it look at less", timeLimit)
		case m.spent[cluster] < clusterCostLimit:
			why = fmt.Sprintf("the rules of all policies cost more than %d steps over this repository; make them look at less", fleetCostLimit)
		}
		findings = append(findings, Finding{
			Rule: r.Name, Severity: Error, Position: r.origin.place(partExpr, 0), Kind: left[0].kind, Name: left[0].name, Cluster: cluster, failed: true,
			Message: fmt.Sprintf("%s and %d more could not be judged, so they are refused: this rule was asked of %d, and %s",
				left[0].name, len(left)-1, m.asked[cluster], why),
		})
	}
	return findings
}
