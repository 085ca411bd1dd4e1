// Package kinds_test holds that the pages about the kinds agree with the program.
package kinds_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/schema"
)

// page reads the page of a kind.
func page(t *testing.T, kind string) string {
	t.Helper()
	data, err := os.ReadFile(strings.ToLower(kind) + ".md")
	require.NoError(t, err)
	return string(data)
}

// What is read is bounded by what the table says.
func TestTheTableOfBoundsIsThatOfTheProgram(t *testing.T) {
	data, err := os.ReadFile("README.md")
	require.NoError(t, err)
	_, table, found := strings.Cut(string(data), "\n## Bounds\n")
	require.True(t, found)
	for _, c := range []struct {
		row  string
		want []string
	}{
		{"a YAML file", []string{mebibytes(schema.MaxFileSize), counted(schema.MaxDocuments), counted(schema.MaxMarks)}},
		{"all YAML files under the roots", []string{mebibytes(schema.MaxTotalSize), counted(schema.MaxTotalMarks)}},
		{"a document", []string{counted(schema.MaxDepth), counted(schema.MaxValues), mebibytes(schema.MaxExpandedSize)}},
		{"all documents of a file", []string{counted(schema.MaxFileValues)}},
		{"all documents", []string{counted(schema.MaxTotalValues)}},
		{"a file that `file:` points to", []string{mebibytes(schema.MaxRefSize)}},
	} {
		_, row, found := strings.Cut(table, "| "+c.row+" |")
		require.True(t, found, c.row)
		row, _, _ = strings.Cut(row, "\n")
		for _, want := range c.want {
			require.Contains(t, row, want, c.row)
		}
	}
}

func mebibytes(n int) string { return fmt.Sprintf("%d MiB", n>>20) }

// counted writes a number as pages do: 300,000.
func counted(n int) string {
	if n < 1000 {
		return strconv.Itoa(n)
	}
	return fmt.Sprintf("%s,%03d", counted(n/1000), n%1000)
}

func matches(pattern, text string) bool { return regexp.MustCompile(pattern).MatchString(text) }

var yamlBlock = regexp.MustCompile("(?s)```yaml\n(.*?)```")

func TestTheExampleOfEachPageIsRead(t *testing.T) {
	pages, err := filepath.Glob("*.md")
	require.NoError(t, err)
	require.Len(t, pages, len(schema.Kinds())+1)
	for _, name := range pages {
		data, err := os.ReadFile(name)
		require.NoError(t, err)
		blocks := yamlBlock.FindAllStringSubmatch(string(data), -1)
		require.NotEmpty(t, blocks, name)
		for _, block := range blocks {
			_, problems := schema.Load(fstest.MapFS{"example.yaml": {Data: []byte(block[1])}}, []string{"."})
			require.Empty(t, problems, name)
		}
	}
}

// Every field of a kind stands in its page, as code: those of spec in a heading, those below it in its section.
func TestEachPageNamesEveryField(t *testing.T) {
	for _, kind := range schema.Kinds() {
		text, err := schema.JSONSchema(kind)
		require.NoError(t, err)
		var made struct {
			Defs map[string]struct {
				Properties map[string]any
			} `json:"$defs"`
			Properties map[string]struct {
				Ref string `json:"$ref"`
			}
		}
		require.NoError(t, json.Unmarshal(text, &made))
		spec := strings.TrimPrefix(made.Properties["spec"].Ref, "#/$defs/")
		require.NotEmpty(t, made.Defs[spec].Properties)
		about := page(t, kind)
		for field := range made.Defs[spec].Properties {
			require.True(t, matches(`(?m)^### .*spec\.`+field+`\b`, about), "%s has no heading for spec.%s", kind, field)
		}
		for name, definition := range made.Defs {
			if name == "ObjectMeta" {
				continue
			}
			for field := range definition.Properties {
				require.True(t, matches(`(?m)^### .*spec\.`+field+`\b|\x60([^\x60\n]*[. {])?`+field+`\b[^\x60\n]*\x60`, about),
					"the page of %s doesn't name %s of %s", kind, field, name)
			}
		}
	}
}

// What all kinds have stands in the page about all kinds.
func TestTheFieldsOfAllKindsAreNamed(t *testing.T) {
	data, err := os.ReadFile("README.md")
	require.NoError(t, err)
	for _, field := range []string{"apiVersion", "kind", "metadata.name", "metadata.labels", "metadata.annotations"} {
		require.Contains(t, string(data), "`"+field+"`")
	}
	for _, annotation := range []string{schema.AnnotationPaused, schema.AnnotationAllowDelete} {
		require.Contains(t, string(data), "`"+annotation)
	}
}

var reason = regexp.MustCompile(`(?:[vV]erdict\{|problem\{|return |Reason: *|reason :?= |trouble\(|conditionRefused = )"([A-Z][A-Za-z]+)"`)

// Every reason that the agent gives stands in a table of the pages.
func TestEveryReasonIsExplained(t *testing.T) {
	sources, err := filepath.Glob("../../reconcile/*.go")
	require.NoError(t, err)
	require.NotEmpty(t, sources, "the test looks at the wrong place")
	keeping, err := filepath.Glob("../../backup/keeper/*.go")
	require.NoError(t, err)
	require.NotEmpty(t, keeping, "the test looks at the wrong place")
	sources = append(sources, keeping...)
	explained := page(t, schema.KindCluster) + page(t, schema.KindMachine) + page(t, schema.KindBackup)
	for _, name := range sources {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		source, err := os.ReadFile(name)
		require.NoError(t, err)
		for _, match := range reason.FindAllStringSubmatch(string(source), -1) {
			require.True(t, matches(`(?m)^\|.*\x60`+match[1]+`\x60.*\|`, explained), "%s gives the reason %s, and no page explains it", name, match[1])
		}
	}
}

func TestLinksBetweenPagesLead(t *testing.T) {
	pages, err := filepath.Glob("*.md")
	require.NoError(t, err)
	for _, name := range pages {
		data, err := os.ReadFile(name)
		require.NoError(t, err)
		for _, link := range regexp.MustCompile(`\]\(([^)#:]*)(?:#([^)]*))?\)`).FindAllStringSubmatch(string(data), -1) {
			file := link[1]
			if file == "" {
				file = name
			}
			_, err := os.Stat(file)
			require.NoError(t, err, "%s links to %s", name, file)
			if link[2] == "" {
				continue
			}
			linked, err := os.ReadFile(file)
			require.NoError(t, err)
			require.Contains(t, anchors(string(linked)), link[2], "%s links to %s#%s", name, file, link[2])
		}
	}
}

// anchors gives the anchors of a page's headings, as GitHub makes them.
func anchors(text string) []string {
	var all []string
	for _, heading := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(text, -1) {
		anchor := strings.ToLower(heading[1])
		anchor = regexp.MustCompile(`[^\w\- ]`).ReplaceAllString(anchor, "")
		all = append(all, strings.ReplaceAll(anchor, " ", "-"))
	}
	return all
}
