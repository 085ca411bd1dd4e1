package schema

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Git itself says what a pattern leaves out; the test asks it about each pair.
func TestIgnorePatternsMeanWhatTheyMeanToGit(t *testing.T) {
	git, err := exec.LookPath("git")
	require.NoError(t, err, "the test asks git what its patterns mean")
	paths := []string{"a.yaml", "b.yaml", "a/a.yaml", "a/b/c.yaml", "a/x/b/c.yaml", "a/x/y/b/c.yaml", "foo/bar.yaml", "x/foo/bar.yaml", "foo.yaml",
		"deep/foo/a/b.yaml", "ab.yaml", "a b.yaml", "#x.yaml", "!x.yaml", "[x].yaml", "x].yaml", "-.yaml", "été.yaml", "a-b.yaml", "7.yaml", "^.yaml", "trail .yaml", "back\\slash.yaml"}
	patterns := []string{"a.yaml", "/a.yaml", "a", "a/", "/a/", "*.yaml", "a/*", "a/**", "a/**/c.yaml", "a/**/b/c.yaml", "**/c.yaml", "**/b/c.yaml", "foo", "foo/bar.yaml",
		"/foo", "**/foo/bar.yaml", "foo/**/b.yaml", "?.yaml", "[ab].yaml", "[!a].yaml", "[^a].yaml", "[a^].yaml", "[a-b].yaml", "a?.yaml", "\\#x.yaml", "#x.yaml", "\\!x.yaml", "a\\ b.yaml",
		"a b.yaml", "[[]x].yaml", "[]x]*.yaml", "*", "**", "/*", "/**", "*/a.yaml", "*/*/c.yaml", "a/b/", "été.yaml", "ét*", "[[:digit:]].yaml", "[![:alpha:]].yaml", "[a\\-z].yaml", "[\\]x]*", "[a-]*", "x/**/bar.yaml", "a*b.yaml", "**/", "a**b.yaml", "a.yaml   ", "/",
		"[-a].yaml", "a[-]b.yaml", "back\\\\slash.yaml", "[", "a["}

	dir := t.TempDir()
	run := func(stdin string, args ...string) string {
		command := exec.Command(git, args...)
		command.Dir = dir
		command.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null")
		command.Stdin = strings.NewReader(stdin)
		out, err := command.Output()
		if exit, ok := err.(*exec.ExitError); ok && exit.ExitCode() == 1 {
			err = nil // nothing is ignored
		}
		require.NoError(t, err)
		return string(out)
	}
	run("", "init", "-q")
	for _, p := range paths {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, p)), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(dir, p), nil, 0o600))
	}
	for _, pattern := range append(patterns, "*.yaml\n!a.yaml", "a/\n!a/b/", "/*\n!/foo", "*\n!*/\n!c.yaml") {
		require.NoError(t, os.WriteFile(filepath.Join(dir, ".gitignore"), []byte(pattern+"\n"), 0o600))
		ignored := run(strings.Join(paths, "\x00"), "check-ignore", "-z", "--stdin", "--no-index")
		var want, got []string
		for _, p := range strings.Split(ignored, "\x00") {
			if p != "" {
				want = append(want, p)
			}
		}
		parsed := parseAll(t, pattern)
		for _, p := range paths {
			if leftOut(parsed, p) {
				got = append(got, p)
			}
		}
		require.ElementsMatch(t, want, got, "pattern %q", pattern)
	}
}

func parseAll(t *testing.T, text string) []ignorePattern {
	t.Helper()
	var all []ignorePattern
	for _, line := range strings.Split(text, "\n") {
		p, ok, err := parseIgnore(".", line)
		require.NoError(t, err)
		if ok {
			all = append(all, p)
		}
	}
	return all
}

// leftOut walks down to a file as the walker does: what stands in a folder that is left out is left out.
func leftOut(patterns []ignorePattern, file string) bool {
	for _, folder := range parents(file)[1:] {
		if ignores(patterns, folder, true) {
			return true
		}
	}
	return ignores(patterns, file, false)
}

func FuzzIgnore(f *testing.F) {
	for _, seed := range []string{"a", "/a/", "!b", "**/a", "a/**", "[a-z]", "[]", "[!]]", `\`, `a\ `, "#", "[[:alpha:]]", "[z-a]"} {
		f.Add(seed, "a/b.yaml")
	}
	f.Fuzz(func(t *testing.T, line, name string) {
		if strings.Contains(line, "\n") {
			return
		}
		if p, ok, err := parseIgnore(".", line); err == nil && ok {
			ignores([]ignorePattern{p}, name, false)
		}
	})
}
