package scaffold_test

import (
	"io"
	"os"
	"strings"
	"testing"

	"github.com/rhysd/actionlint"
	"github.com/stretchr/testify/require"
	"golang.org/x/mod/modfile"
	"sigs.k8s.io/yaml"

	"ichor.maesh.dev/internal/scaffold"
)

func workflow(t *testing.T, system scaffold.CI) []byte {
	t.Helper()
	text, err := system.Workflow("v1.2.3")
	require.NoError(t, err)
	require.Contains(t, string(text), "go install ichor.maesh.dev/cmd/ichor@v1.2.3\n")
	require.NotContains(t, string(text), "[[ ", "nothing of the template is left")
	return text
}

// actionlint knows GitHub's syntax, the inputs of its actions, and the types of its expressions.
func TestTheGitHubWorkflowIsOneThatGitHubTakes(t *testing.T) {
	linter, err := actionlint.NewLinter(io.Discard, &actionlint.LinterOptions{})
	require.NoError(t, err)
	lint := func(text string) []*actionlint.Error {
		found, err := linter.Lint(scaffold.GitHub.File(), []byte(text), nil)
		require.NoError(t, err)
		return found
	}
	text := string(workflow(t, scaffold.GitHub))
	require.Empty(t, lint(text))
	// This linter knows the inputs of the actions' versions before these, which are the same.
	text = strings.NewReplacer("actions/checkout@v5", "actions/checkout@v4", "actions/setup-go@v6", "actions/setup-go@v5").Replace(text)
	require.Empty(t, lint(text))
	for _, mistake := range [][2]string{{"runs-on:", "run-on:"}, {"fetch-depth", "fetchdepth"}, {"github.event_name == 'pull_request'", "github.eventname == 'pull_request'"}, {"contents: read", "contents: reed"}} {
		require.Contains(t, text, mistake[0])
		require.NotEmpty(t, lint(strings.Replace(text, mistake[0], mistake[1], 1)), "the linter sees %s", mistake[1])
	}
}

func TestTheGitHubWorkflowRunsForForksAndMayOnlyRead(t *testing.T) {
	parsed, failures := actionlint.Parse(workflow(t, scaffold.GitHub))
	require.Empty(t, failures)
	require.Len(t, parsed.Permissions.Scopes, 1)
	require.Equal(t, "read", parsed.Permissions.Scopes["contents"].Value.Value)
	for _, event := range parsed.On {
		require.NotEqual(t, "pull_request_target", event.EventName(), "it would run what a fork wrote, with the rights of this repository")
	}
	require.NotContains(t, string(workflow(t, scaffold.GitHub)), "secrets.")
	for _, step := range parsed.Jobs["ichor"].Steps {
		if run, ok := step.Exec.(*actionlint.ExecRun); ok {
			require.NotContains(t, run.Run.Value, "${{", "what others wrote never becomes part of a script")
		}
	}
}

// gitlab is what the GitLab file may hold. The names are those of GitLab's reference, and a name that isn't here fails the test.
type gitlab struct {
	Workflow struct {
		Rules []struct {
			If string `json:"if"`
		} `json:"rules"`
	} `json:"workflow"`
	Ichor struct {
		Image         string            `json:"image"`
		Timeout       string            `json:"timeout"`
		Interruptible bool              `json:"interruptible"`
		Variables     map[string]string `json:"variables"`
		BeforeScript  []string          `json:"before_script"`
		Script        []string          `json:"script"`
		Artifacts     struct {
			When     string            `json:"when"`
			ExposeAs string            `json:"expose_as"`
			Paths    []string          `json:"paths"`
			Reports  map[string]string `json:"reports"`
		} `json:"artifacts"`
	} `json:"ichor"`
}

func TestTheGitLabFileIsOneThatGitLabTakes(t *testing.T) {
	var file gitlab
	require.NoError(t, yaml.UnmarshalStrict(workflow(t, scaffold.GitLab), &file))
	require.Len(t, file.Workflow.Rules, 2)
	require.Equal(t, "0", file.Ichor.Variables["GIT_DEPTH"], "the whole history is fetched, and every branch")
	require.NotEmpty(t, file.Ichor.Image)
	require.NotEmpty(t, file.Ichor.Script)
	// GitLab refuses expose_as without paths, with a name of other characters, and with patterns in the paths.
	require.Regexp(t, `^[\w ]{1,100}$`, file.Ichor.Artifacts.ExposeAs)
	require.Equal(t, []string{"plan.md"}, file.Ichor.Artifacts.Paths)
	require.Equal(t, map[string]string{"junit": "validate.xml"}, file.Ichor.Artifacts.Reports)
	require.Equal(t, "always", file.Ichor.Artifacts.When, "a report is wanted most when the job failed")
}

// go install takes a command of another module only where that module replaces and excludes nothing.
func TestGoCanInstallTheCommandThatTheWorkflowsInstall(t *testing.T) {
	data, err := os.ReadFile("../../go.mod")
	require.NoError(t, err)
	module, err := modfile.Parse("go.mod", data, nil)
	require.NoError(t, err)
	require.Equal(t, "ichor.maesh.dev", module.Module.Mod.Path)
	require.Empty(t, module.Replace)
	require.Empty(t, module.Exclude)
	require.FileExists(t, "../../cmd/ichor/main.go")
}
