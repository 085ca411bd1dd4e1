package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/rhysd/actionlint"
	"github.com/rogpeppe/go-internal/testscript"
	"sigs.k8s.io/yaml"
)

// steps is a command for scripts: `steps WORKFLOW DIR` writes what a CI workflow runs into DIR, as scripts that bash runs as that
// CI does. Of GitHub's each step is a script, named after the step in lower case with dashes; of GitLab's the job is one.
func steps(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: steps WORKFLOW DIR")
	}
	text := []byte(ts.ReadFile(args[0]))
	scripts := map[string]string{}
	if filepath.Base(args[0]) == ".gitlab-ci.yml" {
		var file struct {
			Ichor struct {
				BeforeScript []string `json:"before_script"`
				Script       []string `json:"script"`
			} `json:"ichor"`
		}
		ts.Check(yaml.Unmarshal(text, &file))
		scripts["job"] = strings.Join(append(file.Ichor.BeforeScript, file.Ichor.Script...), "\n")
	} else {
		workflow, failures := actionlint.Parse(text)
		if len(failures) > 0 {
			ts.Fatalf("%s: %v", args[0], failures)
		}
		for _, job := range workflow.Jobs {
			for _, step := range job.Steps {
				if run, ok := step.Exec.(*actionlint.ExecRun); ok {
					scripts[strings.ReplaceAll(strings.ToLower(step.Name.Value), " ", "-")] = run.Run.Value
				}
			}
		}
	}
	dir := ts.MkAbs(args[1])
	ts.Check(os.MkdirAll(dir, 0o755))
	for name, script := range scripts {
		// Both runners have bash end at the first command that fails, within a pipe too.
		ts.Check(os.WriteFile(filepath.Join(dir, name), fmt.Appendf(nil, "#!/usr/bin/env bash\nset -eo pipefail\n%s\n", script), 0o755))
	}
}
