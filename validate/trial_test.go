package validate

import (
	"testing"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/schema"
)

func TestARuleThatWouldFailLaterFailsTheChangeThatBringsIt(t *testing.T) {
	objects := "cluster a\nmachine a/m"
	policies := func(expr string) map[string]string {
		return map[string]string{"p.yaml": policyOf("p", "name: r\nscope: machine\nexpr: \""+expr+"\"\nmessage: \"'m'\"")}
	}
	old := fleetOf(t, objects)
	for name, c := range map[string]struct{ expr, want string }{
		"on a machine that is new": {"oldSelf.value().spec.role == self.spec.role",
			"the rule r would fail if every object were new: TalosMachine m could not be judged"},
		"where something was there before": {"oldMachines.size() == 0 || oldMachines[5].spec.approved",
			"the rule r would fail if every object were as it was: TalosMachine m could not be judged"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, base := range []*schema.Fleet{nil, old} {
				findings := newEngine(t).Check(base, withPolicies(t, fleetOf(t, objects), policies(c.expr)))
				require.Len(t, findings, 1)
				if findings[0].Rule == RulePolicy {
					require.Contains(t, findings[0].Message, c.want)
					require.Equal(t, "p.yaml", findings[0].File)
					require.Len(t, Stops(findings).All, 1)
				} else {
					require.Contains(t, findings[0].Message, "could not be judged", "it failed already")
				}
			}
			before := withPolicies(t, fleetOf(t, objects), policies(c.expr))
			require.NotContains(t, rulesOf(newEngine(t).Check(before, before)), RulePolicy, "what was there before is not tried again")
		})
	}
	good := policies("oldSelf.?spec.role.orValue(self.spec.role) == self.spec.role")
	require.Empty(t, newEngine(t).Check(old, withPolicies(t, fleetOf(t, objects), good)))
}

func rulesOf(findings []Finding) []string {
	var names []string
	for _, f := range findings {
		names = append(names, f.Rule)
	}
	return names
}

func TestANewRuleThatIsAskedOfNothingIsAWarning(t *testing.T) {
	with := func() *schema.Fleet {
		return withPolicies(t, fleetOf(t, "cluster a"), map[string]string{"p.yaml": policyOf("p", isHA)})
	}
	findings := newEngine(t).Check(fleetOf(t, "cluster a"), with())
	require.Len(t, findings, 1)
	require.Equal(t, Warning, findings[0].Severity)
	require.Contains(t, findings[0].String(), "p.yaml:6:11: warning: policy: the rule prod-is-ha is new here and is asked of nothing: there is no TalosCluster")
	require.Empty(t, newEngine(t).Check(with(), with()))
	require.Empty(t, newEngine(t).Check(nil, with()), "without a base nobody knows that it is new")
}

func TestARuleThatGoesWithWhatItForbadeIsAWarning(t *testing.T) {
	labelled := func(count string, policies map[string]string) *schema.Fleet {
		f := withPolicies(t, fleetOf(t, "cluster a count="+count), policies)
		f.Clusters[0].Metadata.Labels = map[string]string{"tier": "prod"}
		return f
	}
	ha := map[string]string{"p.yaml": policyOf("p", isHA)}
	findings := newEngine(t).Check(labelled("3", ha), labelled("1", nil))
	require.Len(t, findings, 1)
	require.Equal(t, "clusters/a/cluster.yaml:1:1: warning: prod-is-ha: by the rule as it was before this change: a needs three control planes; "+
		"let the rule change alone, and what it forbade in a later change", findings[0].String())
	require.Empty(t, newEngine(t).Check(labelled("3", ha), labelled("3", nil)), "a rule may go")
	findings = newEngine(t).Check(labelled("3", ha), labelled("1", ha))
	require.Len(t, findings, 1)
	require.Equal(t, Error, findings[0].Severity)
}
