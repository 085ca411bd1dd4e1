package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestWhatDoesNotCompileForASystemIsFoundThere(t *testing.T) {
	for _, test := range []struct {
		name, file, content, system, wants string
	}{
		{"what compiles everywhere", "all.go", "package main\n\nfunc main() {}\n", "windows/amd64", ""},
		{"a call that the system doesn't have", "all.go", "package main\n\nimport \"syscall\"\n\nfunc main() { syscall.Sync() }\n", "windows/amd64", "undefined: syscall.Sync"},
		{"the same where it has it", "all.go", "package main\n\nimport \"syscall\"\n\nfunc main() { syscall.Sync() }\n", "linux/amd64", ""},
		{"no file for the system", "all_linux.go", "package main\n\nfunc main() {}\n", "darwin/arm64", "build constraints exclude all Go files"},
		{"a size of another machine", "all.go", "package main\n\nconst large int = 1 << 40\n\nfunc main() { _ = large }\n", "linux/386", "overflows"},
		{"what is no Go", "all.go", "package main\n\nfunc main( {}\n", "linux/amd64", "expected"},
	} {
		t.Run(test.name, func(t *testing.T) {
			folder := t.TempDir()
			require.NoError(t, os.WriteFile(filepath.Join(folder, "go.mod"), []byte("module example.com/tried\n\ngo 1.24\n"), 0o600))
			require.NoError(t, os.WriteFile(filepath.Join(folder, test.file), []byte(test.content), 0o600))
			problems, err := check(folder, ".", test.system)
			require.NoError(t, err)
			if test.wants == "" {
				require.Empty(t, problems)
				return
			}
			require.NotEmpty(t, problems)
			require.Contains(t, problems[0], test.wants)
		})
	}
}

func TestASystemHasTwoParts(t *testing.T) {
	_, err := check(".", ".", "windows")
	require.EqualError(t, err, `"windows" is no GOOS/GOARCH`)
}
