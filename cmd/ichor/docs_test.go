package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/utils/clock"
)

// TestEachCommandThatThePagesShowIsOne types what the pages tell people to type, as far as flags and arguments go.
func TestEachCommandThatThePagesShowIsOne(t *testing.T) {
	var pages []string
	for _, pattern := range []string{"../../README.md", "../../docs/*.md", "../../docs/*/*.md", "../../examples/*.md", "../../examples/*/*.md"} {
		found, err := filepath.Glob(pattern)
		require.NoError(t, err)
		require.NotEmpty(t, found, pattern)
		pages = append(pages, found...)
	}
	shown := 0
	for _, page := range pages {
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		for _, line := range commandsIn(string(text)) {
			shown++
			words := shellWords(line)
			command, rest, err := (&app{terminal: &terminal{}, clock: clock.RealClock{}}).rootCommand().Find(words[1:])
			require.NoError(t, err, "%s: %s", page, line)
			require.NoError(t, command.ParseFlags(rest), "%s: %s", page, line)
			if !slices.Contains(words, "…") { // what is left out may be the arguments
				require.NoError(t, command.ValidateArgs(command.Flags().Args()), "%s: %s", page, line)
			}
		}
	}
	require.Greater(t, shown, 80, "the pages are full of commands")
}

// commandsIn gives the command lines of ichor that stand in the indented blocks of a page, each on one line.
func commandsIn(page string) []string {
	var commands []string
	for line := range strings.Lines(strings.ReplaceAll(page, "\\\n", " ")) {
		indented, is := strings.CutPrefix(line, "    ")
		if is && strings.HasPrefix(indented, "ichor ") {
			commands = append(commands, strings.TrimSpace(indented))
		}
	}
	return commands
}

// shellWords splits a line as a shell does, up to what isn't an argument any more: a comment, a pipe, a redirection, the next command.
func shellWords(line string) []string {
	var words []string
	var quote rune
	word, begun := "", false
	for _, r := range line + " " {
		switch {
		case quote != 0 && r == quote:
			quote = 0
		case quote != 0:
			word += string(r)
		case r == '\'' || r == '"':
			quote, begun = r, true
		case r == ' ' || r == '\t':
			if begun {
				words = append(words, word)
			}
			word, begun = "", false
		default:
			word, begun = word+string(r), true
		}
	}
	end := slices.IndexFunc(words, func(w string) bool {
		return strings.HasPrefix(w, "#") || slices.Contains([]string{"|", ">", "&&", ";"}, w)
	})
	if end >= 0 {
		words = words[:end]
	}
	return words
}
