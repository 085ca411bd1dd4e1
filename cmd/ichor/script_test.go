package main

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"ichor.maesh.dev/backup/drill"
	"ichor.maesh.dev/backup/revision"
	"ichor.maesh.dev/internal/s3gateway"
)

func TestMain(m *testing.M) {
	s3gateway.RunIfChild()
	drill.RunIfChild()
	revision.RunIfChild()
	testscript.Main(m, map[string]func(){
		"ichor": func() {
			code := run()
			notePeak()
			os.Exit(code)
		},
	})
}

// peakFile names where the command, run by a test, leaves what the kernel knows of its memory.
const peakFile = "ICHOR_TEST_PEAK"

// notePeak is how a test learns the command's own peak: what a process's parent is told of it counts the parent's memory in, which the
// new process shares until it becomes the command.
func notePeak() {
	if file := os.Getenv(peakFile); file != "" {
		if status, err := os.ReadFile("/proc/self/status"); err == nil {
			_ = os.WriteFile(file, status, 0o600) // a test that finds none fails
		}
	}
}

// TestScripts runs every command as a person would: testdata/script/<command>_*.txtar.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"machines": machines, "ready": ready, "dated": dated, "steps": steps,
			"bucket": bucket, "snapshot": snapshot, "openbundle": openBundle, "flip": flip},
	})
}

// dated writes times of now into files: "dated FILE..." puts the present hour in the place of NOW, and a day later in that of LATER.
func dated(ts *testscript.TestScript, _ bool, files []string) {
	hour := time.Now().UTC().Truncate(time.Hour)
	for _, file := range files {
		text := strings.NewReplacer("NOW", hour.Format(time.RFC3339), "LATER", hour.Add(24*time.Hour).Format(time.RFC3339)).Replace(ts.ReadFile(file))
		ts.Check(os.WriteFile(ts.MkAbs(file), []byte(text), 0o644))
	}
}
