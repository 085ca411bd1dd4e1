package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/tools/txtar"
	testingclock "k8s.io/utils/clock/testing"

	"ichor.maesh.dev/validate"
)

var updateMistakes = flag.Bool("update-mistakes", false, "write what ichor says about each of testdata/mistakes into its file")

// TestEachMistakeIsAnsweredAsItsFileShows puts one mistake at a time into an example, as a branch in a checkout, and compares
// what `ichor validate --base main` says with what the file shows. To be read as a newcomer does: is the message alone enough
// to mend it? See testdata/mistakes/README.md.
func TestEachMistakeIsAnsweredAsItsFileShows(whole *testing.T) {
	files, err := filepath.Glob("testdata/mistakes/*.txtar")
	require.NoError(whole, err)
	require.GreaterOrEqual(whole, len(files), 40)
	checkouts := map[string]string{}
	engine, err := validate.New() // once: compiling the rules costs more than most answers
	require.NoError(whole, err)
	for _, file := range files {
		whole.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			archive, err := txtar.ParseFile(file)
			require.NoError(t, err)
			example := strings.TrimSpace(string(section(archive, "in")))
			if checkouts[example] == "" {
				checkouts[example] = checkoutOf(whole, filepath.Join("..", "..", "examples", example))
			}
			dir := t.TempDir()
			require.NoError(t, os.CopyFS(dir, os.DirFS(checkouts[example])))
			for _, part := range archive.Files {
				makeMistake(t, dir, part)
			}
			said := validateAsNewcomer(t, engine, dir)
			if *updateMistakes {
				keepSaid(t, file, archive, said)
				return
			}
			require.Equal(t, string(section(archive, "output")), said, "if the new words are better: go test ./cmd/ichor -run Mistake -update-mistakes")
		})
	}
}

// checkoutOf commits an example to main.
func checkoutOf(t *testing.T, example string) string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.CopyFS(dir, os.DirFS(example)))
	for _, arguments := range [][]string{{"init", "-q", "--template=", "-b", "main"}, {"add", "-A"}, {"commit", "-q", "-m", "as it stands"},
		{"repack", "-adq"}} {
		git := exec.Command("git", arguments...)
		git.Dir = dir
		git.Env = append(os.Environ(), "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL="+os.DevNull, "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.com",
			"GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.com")
		out, err := git.CombinedOutput()
		require.NoError(t, err, string(out))
	}
	return dir
}

// makeMistake does what a section of a mistake's file asks for. README.md there says what that may be.
func makeMistake(t *testing.T, dir string, part txtar.File) {
	t.Helper()
	verb, name, _ := strings.Cut(part.Name, " ")
	file := filepath.Join(dir, filepath.FromSlash(name))
	switch verb {
	case "in", "output":
	case "delete":
		require.NoError(t, os.Remove(file))
	case "new":
		require.NoFileExists(t, file)
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
		require.NoError(t, os.WriteFile(file, part.Data, 0o644))
	case "quoted":
		var text strings.Builder
		for line := range strings.Lines(string(part.Data)) {
			unquoted, err := strconv.Unquote(strings.TrimSpace(line))
			require.NoError(t, err, line)
			text.WriteString(unquoted)
		}
		require.NoError(t, os.WriteFile(file, []byte(text.String()), 0o644))
	case "edit":
		data, err := os.ReadFile(file)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(file, []byte(edited(t, string(data), string(part.Data))), 0o644))
	default:
		t.Fatalf("there is no section %s", part.Name)
	}
}

// edited replaces each run of lines that begin with - by the run that begins with + after it.
func edited(t *testing.T, text, hunks string) string {
	t.Helper()
	for hunk := range strings.SplitSeq(strings.TrimSpace(hunks), "\n\n") {
		var before, after strings.Builder
		for line := range strings.Lines(hunk + "\n") {
			switch line[0] {
			case '-':
				before.WriteString(line[1:])
			case '+':
				after.WriteString(line[1:])
			default:
				t.Fatalf("a line of an edit begins with - or +, not %q", line)
			}
		}
		require.Equal(t, 1, strings.Count("\n"+text, "\n"+before.String()), "what is to be changed stands there once:\n%s", before.String())
		text = strings.TrimPrefix(strings.Replace("\n"+text, "\n"+before.String(), "\n"+after.String(), 1), "\n")
	}
	return text
}

// whenMistaken is within the times of the operations among the mistakes.
var whenMistaken = time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)

// validateAsNewcomer gives what is printed: the answer, and errors; not the count at the end, which says nothing about a mistake.
func validateAsNewcomer(t *testing.T, engine *validate.Engine, dir string) string {
	t.Helper()
	var out, errs bytes.Buffer
	a := &app{terminal: &terminal{in: strings.NewReader(""), out: &out, err: &errs}, clock: testingclock.NewFakeClock(whenMistaken), getenv: func(string) string { return "" },
		rules: func() (*validate.Engine, error) { return engine, nil }}
	code := a.execute(context.Background(), []string{"validate", "--base", "main", dir})
	text := fmt.Sprintf("exit code %d\n%s", code, strings.ReplaceAll(out.String(), dir, "."))
	if code == exitCannot {
		text += strings.ReplaceAll(errs.String(), dir, ".")
	}
	return text
}

func section(archive *txtar.Archive, name string) []byte {
	if i := slices.IndexFunc(archive.Files, func(f txtar.File) bool { return f.Name == name }); i >= 0 {
		return archive.Files[i].Data
	}
	return nil
}

func keepSaid(t *testing.T, file string, archive *txtar.Archive, said string) {
	t.Helper()
	archive.Files = append(slices.DeleteFunc(archive.Files, func(f txtar.File) bool { return f.Name == "output" }),
		txtar.File{Name: "output", Data: []byte(said)})
	require.NoError(t, os.WriteFile(file, txtar.Format(archive), 0o644))
}
