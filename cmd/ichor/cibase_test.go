package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/utils/clock"

	"ichor.maesh.dev/internal/gittest"
)

const ciCluster = `apiVersion: ichor.maesh.dev/v1alpha1
kind: TalosCluster
metadata: {name: prod}
spec:
  id: 1f3a9c0d2b4e6f78
  endpoint: https://10.0.0.10:6443
  talosVersion: v1.13.6
  kubernetesVersion: v1.36.2
  secrets: {file: secrets.age}
  controlPlane: {count: 1}
  install: {image: factory.talos.dev/installer/abc, disk: /dev/sda}
`

// ciHistory is a fleet's repository: main has two commits since topic left it.
type ciHistory struct {
	*gittest.Repository
	first, main, topic, merge string
}

func newCIHistory(t *testing.T) ciHistory {
	r := gittest.New(t)
	h := ciHistory{Repository: r}
	h.first = r.Commit(gittest.Files{"cluster.yaml": ciCluster, "secrets.age": "x\n"})
	h.topic = r.Write(gittest.Commit{Branch: "topic", Parents: []string{h.first}, Files: gittest.Files{"cluster.yaml": nil}})
	r.Commit(gittest.Files{"README.md": "1\n"})
	h.main = r.Commit(gittest.Files{"README.md": "2\n"})
	h.merge = r.Write(gittest.Commit{Branch: "merged", Parents: []string{h.main, h.topic}, Files: gittest.Files{"cluster.yaml": nil}})
	r.Git("update-ref", "refs/pull/7/merge", h.merge)
	r.Git("update-ref", "-d", "refs/heads/merged")
	r.Git("config", "uploadpack.allowAnySHA1InWant", "true")
	return h
}

// checkout fetches one ref into a new folder and checks it out detached, as CI systems do; depth 0 is all of it.
func (h ciHistory) checkout(t *testing.T, ref, depth string) string {
	folder := filepath.Join(t.TempDir(), "work")
	gitRun(t, ".", "init", "--quiet", folder)
	gitRun(t, folder, "remote", "add", "origin", h.URL())
	fetch := []string{"fetch", "--quiet", "--no-tags"}
	if depth != "" {
		fetch = append(fetch, "--depth="+depth)
	}
	gitRun(t, folder, append(fetch, "origin", ref)...)
	gitRun(t, folder, "checkout", "--quiet", "--detach", "FETCH_HEAD")
	return folder
}

func gitRun(t *testing.T, folder string, arguments ...string) {
	t.Helper()
	command := exec.Command("git", append([]string{"-C", folder}, arguments...)...)
	command.Env = append(os.Environ(), "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL="+os.DevNull)
	output, err := command.CombinedOutput()
	require.NoError(t, err, "git %s: %s", arguments, output)
}

// validated is what `ichor validate` gave.
type validated struct {
	code        int
	out, errors string
}

func validateIn(t *testing.T, folder string, environment map[string]string) validated {
	t.Helper()
	var out, errors bytes.Buffer
	app := &app{terminal: &terminal{in: strings.NewReader(""), out: &out, err: &errors}, clock: clock.RealClock{},
		getenv: func(name string) string { return environment[name] }}
	code := app.execute(t.Context(), []string{"validate", "--no-render", folder})
	return validated{code, out.String(), errors.String()}
}

// event writes the event that started a workflow of GitHub.
func event(t *testing.T, content any) string {
	text, err := json.Marshal(content)
	require.NoError(t, err)
	name := filepath.Join(t.TempDir(), "event.json")
	require.NoError(t, os.WriteFile(name, text, 0o600))
	return name
}

type fields = map[string]any

// Each system names the base in its own way. The topic deletes the cluster, which only a comparison with the base can see.
func TestEachCISystemNamesTheBase(t *testing.T) {
	h := newCIHistory(t)
	const zeros = "0000000000000000000000000000000000000000"
	pushed := func(before string) string {
		return event(t, fields{"ref": "refs/heads/topic", "before": before, "repository": fields{"default_branch": "main"}})
	}
	github := func(name, path string) map[string]string {
		return map[string]string{"GITHUB_ACTIONS": "true", "GITHUB_EVENT_NAME": name, "GITHUB_EVENT_PATH": path}
	}
	full := h.checkout(t, "refs/heads/topic", "")
	gitRun(t, full, "fetch", "--quiet", "origin", "+refs/heads/main:refs/remotes/origin/main")
	for name, c := range map[string]struct {
		environment map[string]string
		want        string
	}{
		"a pull request of GitHub, Gitea or Forgejo": {map[string]string{"GITHUB_BASE_REF": "main"}, "refs/remotes/origin/main (" + h.main[:12] + "), guessed from GITHUB_BASE_REF; the branch left it at " + h.first[:12]},
		"a merge queue of GitHub":                    {github("merge_group", event(t, fields{"merge_group": fields{"base_sha": h.main, "base_ref": "refs/heads/main"}})), h.main + " (" + h.main[:12] + "), guessed from merge_group.base_sha of the event; the branch"},
		"a push to GitHub":                           {github("push", pushed(h.first)), h.first + " (" + h.first[:12] + "), guessed from before of the push event\n"},
		"a new branch on GitHub":                     {github("push", pushed(zeros)), "refs/remotes/origin/main (" + h.main[:12] + "), guessed from repository.default_branch of the push event"},
		"a merge request of GitLab":                  {map[string]string{"GITLAB_CI": "true", "CI_MERGE_REQUEST_TARGET_BRANCH_NAME": "main", "CI_COMMIT_BEFORE_SHA": zeros}, "guessed from CI_MERGE_REQUEST_TARGET_BRANCH_NAME"},
		"merged results of GitLab":                   {map[string]string{"GITLAB_CI": "true", "CI_MERGE_REQUEST_TARGET_BRANCH_SHA": h.main, "CI_MERGE_REQUEST_TARGET_BRANCH_NAME": "main"}, "guessed from CI_MERGE_REQUEST_TARGET_BRANCH_SHA"},
		"a push to GitLab":                           {map[string]string{"GITLAB_CI": "true", "CI_COMMIT_BEFORE_SHA": h.first, "CI_COMMIT_BRANCH": "topic", "CI_DEFAULT_BRANCH": "main"}, "guessed from CI_COMMIT_BEFORE_SHA\n"},
		"a new branch on GitLab":                     {map[string]string{"GITLAB_CI": "true", "CI_COMMIT_BEFORE_SHA": zeros, "CI_COMMIT_BRANCH": "topic", "CI_DEFAULT_BRANCH": "main"}, "guessed from CI_DEFAULT_BRANCH"},
		"Woodpecker":                                 {map[string]string{"CI": "woodpecker", "CI_PIPELINE_EVENT": "pull_request", "CI_COMMIT_TARGET_BRANCH": "main"}, "guessed from CI_COMMIT_TARGET_BRANCH"},
		"a pull request in Drone":                    {map[string]string{"DRONE": "true", "DRONE_BUILD_EVENT": "pull_request", "DRONE_TARGET_BRANCH": "main"}, "guessed from DRONE_TARGET_BRANCH"},
		"a push in Drone":                            {map[string]string{"DRONE": "true", "DRONE_BUILD_EVENT": "push", "DRONE_COMMIT_BEFORE": h.first, "DRONE_BRANCH": "topic", "DRONE_REPO_BRANCH": "main"}, "guessed from DRONE_COMMIT_BEFORE\n"},
		"Buildkite":                                  {map[string]string{"BUILDKITE": "true", "BUILDKITE_PULL_REQUEST": "7", "BUILDKITE_PULL_REQUEST_BASE_BRANCH": "main"}, "guessed from BUILDKITE_PULL_REQUEST_BASE_BRANCH"},
		"Azure":                                      {map[string]string{"SYSTEM_PULLREQUEST_TARGETBRANCH": "refs/heads/main"}, "guessed from SYSTEM_PULLREQUEST_TARGETBRANCH"},
		"Bitbucket":                                  {map[string]string{"BITBUCKET_PR_DESTINATION_BRANCH": "main"}, "guessed from BITBUCKET_PR_DESTINATION_BRANCH"},
		"Jenkins":                                    {map[string]string{"CHANGE_TARGET": "main"}, "guessed from CHANGE_TARGET"},
	} {
		t.Run(name, func(t *testing.T) {
			got := validateIn(t, full, c.environment)
			require.Equal(t, exitNo, got.code, got.errors)
			require.Contains(t, got.out, "cluster.yaml: error: cluster-removal: prod can't be removed")
			require.Contains(t, got.errors, "compared with ")
			require.Contains(t, got.errors, c.want)
		})
	}
	for name, environment := range map[string]map[string]string{
		"no CI":                          {},
		"a tag on GitHub":                github("push", event(t, fields{"ref": "refs/tags/v1", "before": zeros, "repository": fields{"default_branch": "main"}})),
		"the first push to GitHub":       github("push", event(t, fields{"ref": "refs/heads/main", "before": zeros, "repository": fields{"default_branch": "main"}})),
		"a schedule on GitHub":           github("schedule", event(t, fields{})),
		"an event that can't be read":    github("push", "nowhere"),
		"a pipeline by hand in GitLab":   {"GITLAB_CI": "true", "CI_COMMIT_BEFORE_SHA": zeros, "CI_COMMIT_BRANCH": "main", "CI_DEFAULT_BRANCH": "main"},
		"a push in Woodpecker":           {"CI": "woodpecker", "CI_PIPELINE_EVENT": "push", "CI_COMMIT_TARGET_BRANCH": "main"},
		"no pull request in Buildkite":   {"BUILDKITE": "true", "BUILDKITE_PULL_REQUEST": "false", "BUILDKITE_PULL_REQUEST_BASE_BRANCH": ""},
		"variables of a system not used": {"CI_COMMIT_BEFORE_SHA": h.first, "DRONE_COMMIT_BEFORE": h.first, "CI_COMMIT_TARGET_BRANCH": "main"},
	} {
		t.Run(name, func(t *testing.T) {
			require.Empty(t, guessBase(ciVariables{func(name string) string { return environment[name] }}))
		})
	}
}

// A checkout that lacks the base ends with 2 and names the command that brings it. The command is run here, and then
// the change is judged.
func TestTheCommandThatFetchesTheBaseWorks(t *testing.T) {
	h := newCIHistory(t)
	push := func(before string) map[string]string {
		return map[string]string{"GITHUB_ACTIONS": "true", "GITHUB_EVENT_NAME": "push", "GITHUB_EVENT_PATH": event(t,
			fields{"ref": "refs/heads/topic", "before": before, "forced": true, "repository": fields{"default_branch": "main"}})}
	}
	pull := map[string]string{"GITHUB_BASE_REF": "main"}
	for name, c := range map[string]struct {
		ref, depth  string
		environment map[string]string
		want        string
	}{
		"a shallow checkout of the merge commit of a pull request": {"refs/pull/7/merge", "1", pull, "git fetch --unshallow origin +refs/heads/main:refs/remotes/origin/main"},
		"a shallow checkout of the branch":                         {"refs/heads/topic", "1", pull, "git fetch --unshallow origin +refs/heads/main:refs/remotes/origin/main"},
		"a checkout of the branch with its history":                {"refs/heads/topic", "", pull, "git fetch origin +refs/heads/main:refs/remotes/origin/main"},
		"a push onto a branch of which only the tip was fetched":   {"refs/heads/topic", "1", push(h.first), "git fetch --depth=1 origin " + h.first},
		"a forced push over a commit that no branch has":           {"refs/heads/topic", "", push(h.main), "git fetch --depth=1 origin " + h.main},
		"a merge request of GitLab, whose clones are shallow": {"refs/heads/topic", "1",
			map[string]string{"GITLAB_CI": "true", "CI_MERGE_REQUEST_TARGET_BRANCH_NAME": "main"}, "git fetch --unshallow origin +refs/heads/main:refs/remotes/origin/main"},
	} {
		t.Run(name, func(t *testing.T) {
			folder := h.checkout(t, c.ref, c.depth)
			got := validateIn(t, folder, c.environment)
			require.Equal(t, exitCannot, got.code)
			require.Empty(t, got.out)
			require.Contains(t, got.errors, "the base can't be read, guessed from ")
			require.Contains(t, got.errors, "run `"+c.want+"`")
			gitRun(t, folder, append([]string{"-c", "protocol.file.allow=always"}, strings.Fields(c.want)[1:]...)...)

			got = validateIn(t, folder, c.environment)
			require.Equal(t, exitNo, got.code, got.errors)
			require.Contains(t, got.out, "cluster-removal")
		})
	}
}

// Both tips may be there while where they parted isn't.
func TestAShallowHistoryIsNoReasonToGuess(t *testing.T) {
	h := newCIHistory(t)
	folder := h.checkout(t, "refs/heads/topic", "1")
	gitRun(t, folder, "fetch", "--quiet", "--depth=1", "origin", "+refs/heads/main:refs/remotes/origin/main")
	got := validateIn(t, folder, map[string]string{"GITHUB_BASE_REF": "main"})
	require.Equal(t, exitCannot, got.code)
	require.Contains(t, got.errors, "the checkout is shallow, so their history isn't here")
	require.Contains(t, got.errors, "run `git fetch --unshallow origin +refs/heads/main:refs/remotes/origin/main`")
}

// The merge commit of a pull request holds the base: what parted them is the base's tip.
func TestTheMergeCommitOfAPullRequestIsComparedWithItsBase(t *testing.T) {
	h := newCIHistory(t)
	folder := h.checkout(t, "refs/pull/7/merge", "")
	gitRun(t, folder, "fetch", "--quiet", "origin", "+refs/heads/main:refs/remotes/origin/main")
	got := validateIn(t, folder, map[string]string{"GITHUB_BASE_REF": "main"})
	require.Equal(t, exitNo, got.code, got.errors)
	require.Contains(t, got.out, "cluster-removal")
	require.Contains(t, got.errors, "compared with refs/remotes/origin/main ("+h.main[:12]+"), guessed from GITHUB_BASE_REF\n")
}

// pull_request_target checks the base itself out: nothing of the pull request is judged, and that must not look like a pass.
func TestThatTheBaseItselfIsCheckedOutIsSaid(t *testing.T) {
	h := newCIHistory(t)
	folder := h.checkout(t, "refs/heads/main", "")
	gitRun(t, folder, "fetch", "--quiet", "origin", "+refs/heads/main:refs/remotes/origin/main")
	got := validateIn(t, folder, map[string]string{"GITHUB_BASE_REF": "main"})
	require.Equal(t, exitOK, got.code, got.errors)
	require.Contains(t, got.errors, "; that is what is checked out, so only what isn't committed was judged as a change")
}
