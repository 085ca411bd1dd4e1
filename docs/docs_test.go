// Package docs_test holds that the pages can be found.
package docs_test

import (
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTheIndexNamesEveryPage(t *testing.T) {
	index, err := os.ReadFile("README.md")
	require.NoError(t, err)
	pages, err := filepath.Glob("*.md")
	require.NoError(t, err)
	kinds, err := filepath.Glob("kinds/*.md")
	require.NoError(t, err)
	for _, page := range append(pages, kinds...) {
		if page != "README.md" {
			require.Contains(t, string(index), "]("+filepath.ToSlash(page)+")")
		}
	}
}

// Who takes over finds each folder of code in the picture of the whole.
func TestTheArchitectureNamesEveryPackage(t *testing.T) {
	page, err := os.ReadFile("architecture.md")
	require.NoError(t, err)
	for _, pattern := range []string{"../*/*.go", "../cmd/*/*.go", "../internal/*/*.go"} {
		files, err := filepath.Glob(pattern)
		require.NoError(t, err)
		require.NotEmpty(t, files, pattern)
		for _, file := range files {
			folder := strings.TrimPrefix(filepath.ToSlash(filepath.Dir(file)), "../")
			require.Regexp(t, "`"+regexp.QuoteMeta(folder)+"/?`", string(page))
		}
	}
}

// Every link from one file of the repository to another leads somewhere. docs/kinds holds the anchors, too.
func TestEveryLinkLeads(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)#:\s]+)(?:#[^)]*)?\)`)
	for _, pattern := range []string{"*.md", "kinds/*.md", "operations/*.md", "../*.md", "../examples/*.md", "../examples/*/*.md"} {
		pages, err := filepath.Glob(pattern)
		require.NoError(t, err)
		require.NotEmpty(t, pages, pattern)
		for _, page := range pages {
			text, err := os.ReadFile(page)
			require.NoError(t, err)
			for _, match := range link.FindAllStringSubmatch(string(text), -1) {
				_, err := os.Stat(path.Join(path.Dir(filepath.ToSlash(page)), match[1]))
				require.NoError(t, err, "%s links to %s", page, match[1])
			}
		}
	}
}
