package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
)

// candidate is a revision that may be the base, and what of CI says so.
type candidate struct {
	revision string
	// source is the variable, or the field of the event, that names it; empty when the person gave it.
	source string
	// branch is the branch at the remote that it is, if it is one.
	branch string
	// pushed says that the revision is what stood there before a push: it is compared with what stands there now, wherever
	// the two parted, so that a push that takes back what was there is seen.
	pushed bool
}

func (c candidate) how() string {
	if c.source == "" {
		return ""
	}
	return ", guessed from " + c.source
}

// fetched gives the command that brings what is missing of the base.
func (c candidate) fetched(shallow bool) string {
	deepen := ""
	if shallow {
		deepen = "--unshallow "
	}
	switch {
	case c.branch != "":
		return fmt.Sprintf("run `git fetch %sorigin +refs/heads/%s:refs/remotes/origin/%s`%s", deepen, c.branch, c.branch, history(shallow))
	case c.pushed:
		return "run `git fetch --depth=1 origin " + c.revision + "`; if the server doesn't have it any more (after a forced push), say with --base what is to be compared"
	case shallow && c.source != "":
		return "run `git fetch --unshallow origin " + c.revision + "`" + history(shallow)
	case shallow:
		return "run `git fetch --unshallow origin`" + history(shallow)
	}
	return "run `git fetch origin`, and check the name"
}

func history(shallow bool) string {
	if !shallow {
		return ""
	}
	return ", or have CI check out the whole history (fetch-depth: 0 on GitHub and Gitea, GIT_DEPTH: 0 on GitLab)"
}

// ciVariables are the environment of a CI system.
type ciVariables struct{ getenv func(string) string }

// branch gives the candidates for a branch that a variable names.
func (v ciVariables) branch(variable string) []candidate {
	return branchCandidates(v.getenv(variable), variable)
}

func branchCandidates(name, source string) []candidate {
	name = strings.TrimPrefix(name, "refs/heads/")
	if name == "" {
		return nil
	}
	return []candidate{
		{revision: "refs/remotes/origin/" + name, source: source, branch: name},
		{revision: "refs/heads/" + name, source: source, branch: name},
	}
}

// before gives the candidate for the commit that stood on a branch before a push, else, for a new branch, those for the
// default branch.
func before(commit, source, branch, defaultBranch, defaultSource string) []candidate {
	switch {
	case strings.Trim(commit, "0") != "":
		return []candidate{{revision: commit, source: source, pushed: true}}
	case commit != "" && branch != defaultBranch:
		return branchCandidates(defaultBranch, defaultSource)
	}
	return nil
}

// guessBase names what CI says the change is meant for, best first. Only variables that the systems document are asked.
func guessBase(v ciVariables) []candidate {
	for _, system := range []func() []candidate{v.gitHub, v.gitLab, v.woodpecker, v.drone} {
		if candidates := system(); len(candidates) > 0 {
			return candidates
		}
	}
	if v.getenv("BUILDKITE") == "true" && v.getenv("BUILDKITE_PULL_REQUEST") != "false" {
		return v.branch("BUILDKITE_PULL_REQUEST_BASE_BRANCH")
	}
	// Azure Pipelines, Bitbucket Pipelines and Jenkins set these for pull requests only.
	for _, variable := range []string{"SYSTEM_PULLREQUEST_TARGETBRANCH", "BITBUCKET_PR_DESTINATION_BRANCH", "CHANGE_TARGET"} {
		if candidates := v.branch(variable); len(candidates) > 0 {
			return candidates
		}
	}
	return nil
}

// gitHub is GitHub Actions, and those of Gitea and Forgejo. A pull request names its base in a variable; a merge queue and a
// push in the event only.
func (v ciVariables) gitHub() []candidate {
	if candidates := v.branch("GITHUB_BASE_REF"); len(candidates) > 0 {
		return candidates
	}
	if v.getenv("GITHUB_ACTIONS") != "true" {
		return nil
	}
	event, err := readGitHubEvent(v.getenv("GITHUB_EVENT_PATH"))
	if err != nil {
		return nil
	}
	switch v.getenv("GITHUB_EVENT_NAME") {
	case "merge_group":
		var candidates []candidate
		if event.MergeGroup.BaseSHA != "" {
			candidates = []candidate{{revision: event.MergeGroup.BaseSHA, source: "merge_group.base_sha of the event"}}
		}
		return append(candidates, branchCandidates(event.MergeGroup.BaseRef, "merge_group.base_ref of the event")...)
	case "push":
		branch, isBranch := strings.CutPrefix(event.Ref, "refs/heads/")
		if !isBranch {
			return nil
		}
		return before(event.Before, "before of the push event", branch, event.Repository.DefaultBranch,
			"repository.default_branch of the push event, since the branch is new")
	}
	return nil
}

type gitHubEvent struct {
	Ref        string `json:"ref"`
	Before     string `json:"before"`
	Repository struct {
		DefaultBranch string `json:"default_branch"`
	} `json:"repository"`
	MergeGroup struct {
		BaseSHA string `json:"base_sha"`
		BaseRef string `json:"base_ref"`
	} `json:"merge_group"`
}

func readGitHubEvent(name string) (event gitHubEvent, err error) {
	const limit = 16 << 20
	file, err := os.Open(name)
	if err != nil {
		return event, err
	}
	defer file.Close()
	return event, json.NewDecoder(io.LimitReader(file, limit)).Decode(&event)
}

// gitLab names the target's commit for merged results only, and else its branch. Outside of merge requests it names what a
// push found.
func (v ciVariables) gitLab() []candidate {
	const commit = "CI_MERGE_REQUEST_TARGET_BRANCH_SHA"
	var candidates []candidate
	if revision := v.getenv(commit); revision != "" {
		candidates = append(candidates, candidate{revision: revision, source: commit})
	}
	candidates = append(candidates, v.branch("CI_MERGE_REQUEST_TARGET_BRANCH_NAME")...)
	if len(candidates) > 0 || v.getenv("GITLAB_CI") != "true" || v.getenv("CI_COMMIT_BRANCH") == "" {
		return candidates
	}
	return before(v.getenv("CI_COMMIT_BEFORE_SHA"), "CI_COMMIT_BEFORE_SHA", v.getenv("CI_COMMIT_BRANCH"),
		v.getenv("CI_DEFAULT_BRANCH"), "CI_DEFAULT_BRANCH, since CI_COMMIT_BEFORE_SHA is of a new branch")
}

func (v ciVariables) woodpecker() []candidate {
	if v.getenv("CI") != "woodpecker" || !strings.HasPrefix(v.getenv("CI_PIPELINE_EVENT"), "pull_request") {
		return nil
	}
	return v.branch("CI_COMMIT_TARGET_BRANCH")
}

func (v ciVariables) drone() []candidate {
	if v.getenv("DRONE") != "true" {
		return nil
	}
	switch v.getenv("DRONE_BUILD_EVENT") {
	case "pull_request":
		return v.branch("DRONE_TARGET_BRANCH")
	case "push":
		return before(v.getenv("DRONE_COMMIT_BEFORE"), "DRONE_COMMIT_BEFORE", v.getenv("DRONE_BRANCH"), v.getenv("DRONE_REPO_BRANCH"),
			"DRONE_REPO_BRANCH, since the branch is new")
	}
	return nil
}
