package validate

import (
	"fmt"

	"ichor.maesh.dev/schema"
)

// introduced tries the rules that a change brings, so that one that is wrong fails the change that brings it and not another
// change a week later: as if every object were new, and as if none had changed. What such a rule would refuse then is no
// finding; that it can't be judged is one, and belongs to none. A rule that is asked of nothing is a warning.
func (e *Engine) introduced(w *world, rules []*rule, findings []Finding) []Finding {
	known := map[schema.Rule]bool{}
	for _, p := range w.old.fleet.Policies {
		for _, r := range p.Spec.Rules {
			known[r] = true
		}
	}
	failed := map[string]bool{}
	for _, f := range findings {
		failed[f.Rule] = failed[f.Rule] || f.failed
	}
	var fresh []*rule
	for _, r := range rules {
		if !known[r.Rule] && !failed[r.Name] {
			fresh = append(fresh, r)
		}
	}
	if len(fresh) == 0 {
		return nil
	}
	trials := []struct {
		how string
		w   *world
	}{
		{"were new", newWorld(e.compiler.set, nil, w.new.fleet, nil)},
		{"were as it was", newWorld(e.compiler.set, w.new.fleet, w.new.fleet, nil)},
	}
	var found []Finding
	for _, r := range fresh {
		said := outcome{}
		for _, t := range trials {
			if f := firstFailure(r.check(t.w)); f != nil {
				f.Rule, f.Cluster = RulePolicy, ""
				f.Message = fmt.Sprintf("the rule %s would fail if every object %s: %s", r.Name, t.how, f.Message)
				found = append(found, *f)
				break
			}
			said = *t.w.outcome(r)
		}
		if o := w.outcome(r); w.hasBase && said.kept+said.broken+o.kept+o.broken == 0 {
			f := r.origin.finding("name", 0, "the rule %s is new here and is asked of nothing: there is no %s for which its when holds; see that it means what it should, as with a PolicyTest",
				r.Name, r.info.kind)
			f.Severity = Warning
			found = append(found, f)
		}
	}
	return found
}

func firstFailure(findings []Finding) *Finding {
	for _, f := range findings {
		if f.failed {
			return &f
		}
	}
	return nil
}

// loosened warns of what a change breaks that was refused before it: a rule that goes, or is changed, in the same change as
// what it forbade.
func (e *Engine) loosened(w *world, rules []*rule, findings []Finding) []Finding {
	current := map[schema.Rule]bool{}
	for _, r := range rules {
		current[r.Rule] = true
	}
	type refusal struct{ rule, kind, cluster, name string }
	refused := map[refusal]bool{}
	for _, f := range findings {
		refused[refusal{f.Rule, f.Kind, f.Cluster, f.Name}] = true
	}
	before, _ := e.policyRules(w.old.fleet)
	var found []Finding
	for _, r := range before {
		if current[r.Rule] || r.severity != Error {
			continue
		}
		for _, f := range r.check(w) {
			if f.failed || refused[refusal{f.Rule, f.Kind, f.Cluster, f.Name}] {
				continue
			}
			f.Severity = Warning
			f.Message = fmt.Sprintf("by the rule as it was before this change: %s; let the rule change alone, and what it forbade in a later change", f.Message)
			found = append(found, f)
		}
	}
	return found
}
