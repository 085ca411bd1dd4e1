package architecture

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"strings"
	"testing"
)

const module = "ichor.maesh.dev/"

// allowed says, for each package at the top of the tree, which of the project's packages it may import, besides small
// packages of internal/ (never the simulator). What is not listed may import nothing. docs/architecture.md explains it.
var allowed = map[string][]string{
	"schema":    {},
	"gitsource": {"schema"},
	"operation": {"schema"},
	"talos":     {"schema"},
	"kube":      {"schema"},
	"statefile": {"schema"},
	"validate":  {"schema", "talos", "operation"},
	"backup":    {"schema", "statefile"},
	"reconcile": {"schema", "validate", "gitsource", "operation", "talos", "kube", "backup", "statefile", "recovery"},
	"recovery":  {"schema", "talos", "kube", "backup", "statefile"},
	"web":       {"schema", "validate", "gitsource", "operation", "talos", "kube", "backup", "statefile", "reconcile"},
	"cmd/ichor": {"schema", "validate", "gitsource", "operation", "talos", "kube", "backup", "statefile", "reconcile", "web", "recovery"},
	"examples":  {"schema", "validate"},
}

// simulation are the packages that only tests, the simulator's own command and the benchmarks may import: they bring a
// whole etcd and a whole S3 server.
var simulation = []string{"internal/talossim", "internal/s3gateway", "internal/gittest"}

// mayUseSimulation lists who may.
var mayUseSimulation = []string{"internal/talossim", "internal/s3gateway", "internal/gittest", "cmd/talossim", "internal/bench", "internal/demo", "internal/soak", "test/kube/harness"}

type listed struct {
	ImportPath string
	Imports    []string
}

func listPackages(t *testing.T) []listed {
	t.Helper()
	cmd := exec.Command("go", "list", "-e", "-json=ImportPath,Imports", module+"...")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var packages []listed
	for decoder := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p listed
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			return packages
		} else if err != nil {
			t.Fatal(err)
		}
		packages = append(packages, p)
	}
}

func TestImportsRunDownwardsOnly(t *testing.T) {
	packages := listPackages(t)
	if len(packages) < 5 {
		t.Fatalf("only %d packages were found; the test looks at the wrong place", len(packages))
	}
	for _, p := range packages {
		from := strings.TrimPrefix(p.ImportPath, module)
		for _, imported := range p.Imports {
			if to, own := strings.CutPrefix(imported, module); own {
				if reason := forbidden(from, to); reason != "" {
					t.Errorf("%s imports %s: %s", from, to, reason)
				}
			}
		}
	}
}

// forbidden says why from may not import to, or nothing.
func forbidden(from, to string) string {
	if within(to, simulation) && !within(from, mayUseSimulation) {
		return "the simulation is for tests and its own command"
	}
	if strings.HasPrefix(to, "internal/") {
		return ""
	}
	if strings.HasPrefix(from, "internal/") {
		if within(from, mayUseSimulation) {
			return ""
		}
		if to == "schema" {
			return ""
		}
		return "a small internal package is below all others"
	}
	if strings.HasPrefix(from, "cmd/talossim") {
		return ""
	}
	for top, may := range allowed {
		if from != top && !strings.HasPrefix(from, top+"/") {
			continue
		}
		if to == top || strings.HasPrefix(to, top+"/") || within(to, may) {
			return ""
		}
		return "it is not below it"
	}
	return "its place in the tree is not known to this test"
}

func within(path string, tops []string) bool {
	for _, top := range tops {
		if path == top || strings.HasPrefix(path, top+"/") {
			return true
		}
	}
	return false
}

func TestTheRuleKnowsUpFromDown(t *testing.T) {
	for _, c := range []struct {
		name, from, to string
		ok             bool
	}{
		{"reconcile composes statefile", "reconcile", "statefile", true},
		{"schema imports nothing", "schema", "talos", false},
		{"statefile does not know reconcile", "statefile", "reconcile", false},
		{"talos does not know the simulator", "talos", "internal/talossim", false},
		{"anyone may use a small internal package", "talos", "internal/scrub", true},
		{"a small internal package knows schema at most", "internal/scrub", "talos", false},
		{"validate renders with talos", "validate", "talos", true},
		{"the command knows no S3 server", "cmd/ichor", "internal/s3gateway", false},
		{"a new top package must be placed first", "plugins", "schema", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := forbidden(c.from, c.to); (got == "") != c.ok {
				t.Errorf("forbidden(%s, %s) = %q", c.from, c.to, got)
			}
		})
	}
}
