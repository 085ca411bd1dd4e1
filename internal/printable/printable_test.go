package printable

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

func TestText(t *testing.T) {
	for name, c := range map[string]struct{ in, want string }{
		"plain text stays":                               {"cp-1 (10.0.0.1): Ready", "cp-1 (10.0.0.1): Ready"},
		"letters of every script stay":                   {"Zürich, 東京, Київ, שלום", "Zürich, 東京, Київ, שלום"},
		"a colour goes":                                  {"\x1b[31mred\x1b[0m", "red"},
		"a cleared screen goes":                          {"a\x1b[2J\x1b[Hb", "ab"},
		"a title goes with its text":                     {"a\x1b]0;owned\x07b", "ab"},
		"a title that ends with ST goes":                 {"a\x1b]0;owned\x1b\\b", "ab"},
		"a hyperlink leaves its words":                   {"\x1b]8;;http://x\x1b\\here\x1b]8;;\x1b\\", "here"},
		"the one-character CSI goes":                     {"a\u009b31mb", "ab"},
		"a character set switch goes":                    {"a\x1b(0b", "ab"},
		"a reset goes":                                   {"a\x1bcb", "ab"},
		"an escape at the end goes":                      {"a\x1b", "a"},
		"an unfinished CSI goes":                         {"a\x1b[31", "a"},
		"an unfinished title loses only its introducer":  {"a\x1b]0;text", "a0;text"},
		"a carriage return can't overwrite":              {"refused\rallowed", "refused allowed"},
		"a line break can't forge a line":                {"a\nb: ok", "a b: ok"},
		"a Windows line break is one space":              {"a\r\nb", "a b"},
		"a tab is a space":                               {"a\tb", "a b"},
		"a backspace goes":                               {"no\b\bok", "nook"},
		"a bell goes":                                    {"a\ab", "ab"},
		"NUL and DEL go":                                 {"a\x00b\x7fc", "abc"},
		"a right-to-left override goes":                  {"abc\u202edef\u202c", "abcdef"},
		"bidirectional isolates go":                      {"\u2066a\u2069", "a"},
		"zero-width characters go":                       {"pro\u200bd\ufeff", "prod"},
		"line and paragraph separators go":               {"a\u2028b\u2029c", "abc"},
		"tag characters that hide text go":               {"a\U000E0041b", "ab"},
		"bytes that are not UTF-8 are shown as replaced": {"a\xffb", "a\ufffdb"},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, c.want, Text(c.in)) })
	}
}

func TestLinesKeepsLines(t *testing.T) {
	require.Equal(t, "a\n\tb\nc", Lines("a\n\tb\r\nc\x1b[0m"))
	require.Equal(t, "a b", Lines("a\rb"))
}

func FuzzText(f *testing.F) {
	for _, seed := range []string{"", "plain", "\x1b[31mred", "\x1b]0;t\x07", "\u202e", "\x9b", "\xc2", "\xc2\x9b", "\x1bP\x1b\x1b"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got := Text(s)
		require.True(t, utf8.ValidString(got))
		for _, r := range got {
			require.False(t, acts(r), "%q still holds %U", got, r)
		}
		require.Equal(t, got, Text(got), "cleaning twice changes nothing")
		require.NotContains(t, Lines(s), "\r")
		require.LessOrEqual(t, strings.Count(Lines(s), "\n"), strings.Count(s, "\n"))
	})
}
