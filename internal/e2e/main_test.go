package e2e

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"ichor.maesh.dev/internal/s3gateway"
)

// program is the built ichor, made once by TestMain.
var program string

func TestMain(m *testing.M) {
	s3gateway.RunIfChild()
	os.Exit(buildAndRun(m))
}

// sideBySide is how many tests run at once unless -parallel says otherwise: most of their time they wait.
const sideBySide = "4"

func buildAndRun(m *testing.M) int {
	if err := flag.Set("test.parallel", sideBySide); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	flag.Parse()
	dir, err := os.MkdirTemp("", "ichor-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	defer os.RemoveAll(dir)
	program = filepath.Join(dir, "ichor")
	build := exec.Command("go", "build", "-ldflags=-w", "-o", program, "ichor.maesh.dev/cmd/ichor")
	build.Stdout, build.Stderr = os.Stderr, os.Stderr
	if err := build.Run(); err != nil {
		fmt.Fprintln(os.Stderr, "building ichor:", err)
		return 2
	}
	return m.Run()
}
