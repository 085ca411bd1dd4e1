package validate

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestTheDocumentationNamesWhatThereIs keeps docs/rules.md whole.
func TestTheDocumentationNamesWhatThereIs(t *testing.T) {
	text, err := os.ReadFile("../docs/rules.md")
	require.NoError(t, err)
	docs := string(text)
	engine, err := New()
	require.NoError(t, err)
	for _, rule := range append(engine.Rules(), RuleSchema, RuleBothSides, RulePolicy) {
		require.Contains(t, docs, "`"+rule+"`")
	}
	for scope := range scopes() {
		require.Contains(t, docs, "`"+scope+"`")
	}
	envs := engine.compiler.envs
	for _, v := range envs[scopeMachine].Variables() {
		if !strings.Contains(v.Name(), ".") {
			require.Contains(t, docs, "`"+v.Name()+"`")
		}
	}
	for name, function := range envs[scopeMachine].Functions() {
		for _, overload := range function.OverloadDecls() {
			if ours(overload.ID()) {
				require.Regexp(t, "[`.]"+name+`\(`, docs)
			}
		}
	}
}

// ours says whether an overload is one that package validate declares.
func ours(overload string) bool {
	for _, prefix := range []string{"approved_", "staying_", "removing_", "fleet_", "names_", "file_", "counted_", "semver_", "is_semver", "is_cron", "next_cron", "release_", "talos_releases", "kubernetes_releases", "upgrade_problem",
		"overlapping_", "network_of", "host_", "always_open", "digest_"} {
		if strings.HasPrefix(overload, prefix) {
			return true
		}
	}
	return false
}
