package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/internal/s3gateway"
	"ichor.maesh.dev/statefile"
)

// example gives a program out of docs/backups.md.
func example(t *testing.T, name string) string {
	t.Helper()
	page, err := os.ReadFile("../../docs/backups.md")
	require.NoError(t, err)
	found := regexp.MustCompile("(?s)<!-- example: " + regexp.QuoteMeta(name) + " -->\n```[a-z]+\n(.*?)```").FindSubmatch(page)
	require.NotNil(t, found, "docs/backups.md has no example %s", name)
	return string(found[1])
}

// needTools skips where a program is missing, but not where everything is tested.
func needTools(t *testing.T, packages map[string]string) {
	t.Helper()
	for program, pkg := range packages {
		if _, err := exec.LookPath(program); err != nil {
			require.Empty(t, os.Getenv("CI"), "%s is missing: install %s", program, pkg)
			t.Skipf("%s is missing: install %s to run this", program, pkg)
		}
	}
}

// The very lines of docs/backups.md open a stored object with Debian's age, and etcd's own program reads what comes out.
func TestAStoredObjectOpensByHandAsTheDocumentationSays(t *testing.T) {
	needTools(t, map[string]string{"age": "age", "python3": "python3", "script": "bsdutils", "sh": "dash"})
	s := newSite(t, startServer(t, s3gateway.Options{}), "prod").fill(statefile.S3Config{})
	s.write("passphrase.py", example(t, "passphrase.py"))
	run := func(stdin, name string, arguments ...string) string {
		command := exec.Command(name, arguments...)
		command.Dir, command.Stdin = s.dir, strings.NewReader(stdin)
		var out, problem bytes.Buffer
		command.Stdout, command.Stderr = &out, &problem
		require.NoError(t, command.Run(), "%s: %s%s", command, out.String(), problem.String())
		return out.String()
	}
	passphrase := run("", "python3", "passphrase.py", "bundle.yaml")
	require.Equal(t, s.passphrase(s.bundle), strings.TrimSpace(passphrase))

	// age reads a passphrase from a terminal only.
	run(passphrase, "script", "-qec", "age -d -o etcd.snapshot '"+filepath.Join(s.objects, s.newer)+"'", os.DevNull)
	digests := strings.Fields(run("", "sh", "-c", example(t, "check.sh")))
	require.Len(t, digests, 2)
	require.Equal(t, digests[0], digests[1])
	var status struct{ Revision, TotalKey, TotalSize int64 }
	etcdutl := exec.Command("go", "tool", "etcdutl", "snapshot", "status", filepath.Join(s.dir, "etcd.snapshot"), "-w", "json")
	out, err := etcdutl.Output()
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(out, &status))
	require.EqualValues(t, 201, status.Revision)
	require.EqualValues(t, 200, status.TotalKey)

	code, _, stderr := s.run("get", s.newer, "--decrypt", "--out", filepath.Join(s.dir, "by-ichor"))
	require.Equal(t, exitOK, code, stderr)
	one, err := os.ReadFile(filepath.Join(s.dir, "etcd.snapshot"))
	require.NoError(t, err)
	two, err := os.ReadFile(filepath.Join(s.dir, "by-ichor"))
	require.NoError(t, err)
	require.True(t, bytes.Equal(one, two))
}
