package docs_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Each test that the threats page names is there.
func TestTheTestsThatTheThreatsPageNamesExist(t *testing.T) {
	page, err := os.ReadFile("threats.md")
	require.NoError(t, err)
	tests := map[string]bool{}
	defined := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)
	require.NoError(t, filepath.WalkDir("..", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, match := range defined.FindAllSubmatch(text, -1) {
			tests[string(match[1])] = true
		}
		return err
	}))
	named := regexp.MustCompile("`((?:Test|Fuzz)\\w+)`").FindAllStringSubmatch(string(page), -1)
	require.Greater(t, len(named), 80)
	for _, match := range named {
		require.True(t, tests[match[1]], "the threats page names %s, and there is no such test", match[1])
	}
}

// Each fuzzer stands on the reliability page, with what it came to or among those that have not run for long.
func TestEachFuzzerStandsOnTheReliabilityPage(t *testing.T) {
	page, err := os.ReadFile("reliability.md")
	require.NoError(t, err)
	_, section, found := strings.Cut(string(page), "\n## Fuzzing\n")
	require.True(t, found)
	defined := regexp.MustCompile(`(?m)^func (Fuzz\w+)\(`)
	count := 0
	require.NoError(t, filepath.WalkDir("..", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, match := range defined.FindAllSubmatch(text, -1) {
			count++
			require.Regexp(t, `\b`+string(match[1])+`\b`, section, "%s is not on the page", path)
		}
		return err
	}))
	require.Greater(t, count, 45)
}
