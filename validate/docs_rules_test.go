package validate

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/schema"
)

// examples are changes that each break one rule; docs/rules.md shows what is said about them.
func examples() map[string]struct{ old, proposed string } {
	const three = `cluster prod
		machine prod/cp-1 controlplane approved
		machine prod/cp-2 controlplane approved
		machine prod/cp-3 controlplane approved
		`
	return map[string]struct{ old, proposed string }{
		"approval-cap": {three + `machine prod/cp-4 controlplane approved`,
			three + `machine prod/cp-4 controlplane approved
			machine prod/cp-5 controlplane approved`},
		"approval-is-later":        {three + `remove prod/cp-4`, three + "machine prod/cp-4 controlplane approved\nremove prod/cp-4"},
		"removal-is-later":         {three, strings.Replace(three, "cp-3 controlplane approved", "cp-3 controlplane approved decided=1h\nremove prod/cp-3", 1)},
		"networks":                 {"-", `cluster prod pods=10.100.0.0/16`},
		"address-in-network":       {"-", "cluster prod\nmachine prod/cp-1 endpoint=10.244.0.11"},
		"windows":                  {"-", `cluster prod reboots=window`},
		"windows-unused":           {"-", `cluster prod window=0_2_*_*_SAT`},
		"backup-inside-cluster":    {"-", "cluster prod\nmachine prod/cp-1 endpoint=10.0.0.11\nbackup prod/hourly endpoint=http://10.0.0.11:9000"},
		"allow-delete-of-another":  {"-", "cluster prod\nmachine prod/cp-2 allow-delete-of=cp-1"},
		"schedulable-needs-worker": {`cluster prod`, `cluster prod schedulable=false`},
		"last-worker": {`cluster prod schedulable=false
			machine prod/w-1 worker approved`, `cluster prod schedulable=false`},
		"control-plane-count": {three, strings.Replace(three, "machine prod/cp-3 controlplane approved", "", 1)},
		"role-immutable":      {"cluster prod\nmachine prod/w-1 worker", "cluster prod\nmachine prod/w-1 controlplane"},
		"uuid-immutable": {"cluster prod\nmachine prod/w-1 uuid=4c4c4544-0039-3510-8052-b4c04f4e3732",
			"cluster prod\nmachine prod/w-1 uuid=4c4c4544-0039-4210-8052-b4c04f4d3132"},
		"cluster-ref-immutable": {"cluster prod\ncluster test\nmachine prod/w-1",
			"cluster prod\ncluster test\nmachine test/w-1 uuid=" + uuidOf("prod", "w-1")},
		"cluster-removal":    {`cluster prod`, ``},
		"talos-version":      {"-", `cluster prod talos=v1.14.0`},
		"kubernetes-version": {"-", `cluster prod kubernetes=v1.37.1`},
		"contract-version":   {"-", `cluster prod talos=v1.12.4 kubernetes=v1.35.2`},
		"talos-upgrade": {`cluster prod talos=v1.11.5 kubernetes=v1.34.1 contract=v1.11`,
			`cluster prod talos=v1.13.6 kubernetes=v1.34.1 contract=v1.11`},
		"kubernetes-upgrade": {`cluster prod kubernetes=v1.36.2`, `cluster prod kubernetes=v1.36.1`},
		"unique-name":        {"-", "cluster prod\nmachine prod/w-1\nmachine prod/w-1 uuid=b endpoint=b file=clusters/prod/machines/copy.yaml"},
		"unique-endpoint":    {"-", "cluster prod\nmachine prod/w-1 endpoint=10.0.0.21\nmachine prod/w-2 endpoint=10.0.0.21:50000"},
		"unique-uuid":        {"-", "cluster prod\nmachine prod/w-1 uuid=4c4c4544-0039-3510-8052-b4c04f4e3732\nmachine prod/w-2 uuid=4C4C4544-0039-3510-8052-B4C04F4E3732"},
		"unique-hostname":    {"-", "cluster prod\nmachine prod/w-1 hostname=worker\nmachine prod/w-2 hostname=worker"},
		"unique-prefix":      {"-", "cluster prod\ncluster test\nbackup prod/hourly prefix=etcd\nbackup test/hourly prefix=/etcd/"},
		"unique-cluster-id":  {"-", "cluster prod id=1f3a9c0d2b4e6f78\ncluster test id=1f3a9c0d2b4e6f78"},
		"cluster-exists":     {"-", "cluster prod\nmachine production/w-1"},
		"file-exists":        {"-", "cluster prod\nmachine prod/w-1 patch=../patches/disk.yaml"},
	}
}

// section is what docs/rules.md says about a rule.
var section = regexp.MustCompile("(?ms)^### `([a-z-]+)`\n\n(.*?)(?:^##|\\z)")

// sections gives the sections of docs/rules.md by rule.
func sections(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile("../docs/rules.md")
	require.NoError(t, err)
	found := map[string]string{}
	for rest := string(text); ; {
		at := section.FindStringSubmatchIndex(rest)
		if at == nil {
			return found
		}
		name := rest[at[2]:at[3]]
		require.NotContains(t, found, name, "docs/rules.md has two sections for %s", name)
		found[name] = rest[at[4]:at[5]]
		rest = rest[at[5]:]
	}
}

// withoutCEL are the rules that are not written in CEL.
func withoutCEL() []string {
	return []string{RuleSchema, RuleBothSides, RuleConfig, RuleSecret, RuleOperationTimes, RuleSignature}
}

func TestEachRuleHasItsSection(t *testing.T) {
	engine, err := New()
	require.NoError(t, err)
	found := sections(t)
	severities := map[string]map[Severity]bool{}
	for _, r := range engine.rules {
		if severities[r.Name] == nil {
			severities[r.Name] = map[Severity]bool{}
		}
		severities[r.Name][r.severity] = true
	}
	for _, name := range withoutCEL() {
		severities[name] = map[Severity]bool{Error: true}
	}
	severities[RulePolicy] = map[Severity]bool{Error: true, Warning: true}
	for name, of := range severities {
		text := found[name]
		require.NotEmpty(t, text, "docs/rules.md has no section ### `%s`", name)
		require.Contains(t, text, "\n\n    ", "docs/rules.md shows no message of %s", name)
		require.Contains(t, text, "\nWay out: ", "docs/rules.md gives no way out of %s", name)
		first, _, _ := strings.Cut(text, ".")
		for severity, word := range map[Severity]string{Error: "Error", Warning: "arning"} {
			require.Equal(t, of[severity], strings.Contains(first, word), "the section of %s begins with its severity: it is %v", name, of)
		}
	}
	for name := range found {
		require.Contains(t, severities, name, "docs/rules.md describes %s, and there is no such rule", name)
	}
}

func TestTheMessagesOfTheDocumentationAreTheProgramsOwn(t *testing.T) {
	engine, err := New()
	require.NoError(t, err)
	found := sections(t)
	for rule, example := range examples() {
		t.Run(rule, func(t *testing.T) {
			var old *schema.Fleet
			if example.old != "-" {
				old = fleetOf(t, example.old)
			}
			for _, f := range engine.Check(old, fleetOf(t, example.proposed)) {
				if f.Rule == rule {
					require.Contains(t, found[rule], "\n    "+f.Message+"\n")
					return
				}
			}
			t.Fatal("the example breaks the rule, and nothing was found")
		})
	}
}
