package validate

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/schema"
)

func textOf(t *testing.T, r Report, o TextOptions) string {
	t.Helper()
	var out bytes.Buffer
	require.NoError(t, r.WriteText(&out, o))
	return out.String()
}

// pointing is a report of one finding, in a file of that text.
func pointing(text string, line, column int) (Report, TextOptions) {
	return Report{Findings: []Finding{{Rule: "r", Severity: Error, Position: schema.Position{File: "a.yaml", Line: line, Column: column}, Message: "m"}}},
		TextOptions{Source: func(string) []byte { return []byte(text) }}
}

func TestTheLineIsShownWithACaretAtItsColumn(t *testing.T) {
	for name, c := range map[string]struct {
		text         string
		line, column int
		want         string
	}{
		"a plain line":                          {"a: 1\nb: 2\n", 2, 4, "     2 | b: 2\n       |    ^\n"},
		"the first column":                      {"a: 1", 1, 1, "     1 | a: 1\n       | ^\n"},
		"a line as a whole":                     {"a: 1", 1, 0, "     1 | a: 1\n"},
		"Windows line ends":                     {"a: 1\r\nb: 2\r\n", 2, 4, "     2 | b: 2\n       |    ^\n"},
		"a byte order mark is no column":        {"\ufeffa: 1\n", 1, 4, "     1 | a: 1\n       |    ^\n"},
		"wide letters take two columns":         {"名: é x\n", 1, 6, "     1 | 名: é x\n       |       ^\n"},
		"a combining mark takes none":           {"e\u0301: x\n", 1, 5, "     1 | e\u0301: x\n       |    ^\n"},
		"a tab is a blank":                      {"\ta: 1\n", 1, 2, "     1 |  a: 1\n       |  ^\n"},
		"an escape sequence goes":               {"a: \x1b[2Jx\n", 1, 4, "     1 | a: x\n       |    ^\n"},
		"a direction override goes":             {"a: \u202ex y\n", 1, 5, "     1 | a: x y\n       |    ^\n"},
		"a column behind the end is at the end": {"a: 1\n", 1, 99, "     1 | a: 1\n       |     ^\n"},
		"a line that isn't there":               {"a: 1\n", 9, 1, ""},
		"an empty line":                         {"a: 1\n\n", 2, 1, ""},
		"no line":                               {"a: 1\n", 0, 0, ""},
		"what isn't UTF-8":                      {"a: \xff\n", 1, 1, ""},
	} {
		t.Run(name, func(t *testing.T) {
			report, options := pointing(c.text, c.line, c.column)
			_, rest, _ := strings.Cut(textOf(t, report, options), "\n")
			require.Equal(t, c.want, rest)
		})
	}
}

func TestALongLineIsCutAroundItsColumn(t *testing.T) {
	long := strings.Repeat("x", 1000) + "HERE" + strings.Repeat("y", 1000)
	report, options := pointing("k: ["+strings.Repeat("a, ", 500)+"HERE, "+strings.Repeat("b, ", 500)+"]\n", 1, 5+1500)
	lines := strings.Split(textOf(t, report, options), "\n")
	require.Less(t, len([]rune(lines[1])), 140)
	require.Contains(t, lines[1], "…")
	caret := []rune(lines[2])
	require.Equal(t, "HERE", string([]rune(lines[1])[len(caret)-1:len(caret)+3]))

	shown, before := excerpt(long, 1)
	require.Equal(t, strings.Repeat("x", maxLine)+"…", shown)
	require.Zero(t, before)
	shown, _ = excerpt(long, 2004)
	require.Equal(t, "…"+strings.Repeat("y", maxLine), shown)
}

func TestNoLineIsShownThatMayHoldASecret(t *testing.T) {
	for _, line := range []string{
		"token: abcdef.0123456789abcdef", "  bootstrapToken: x", "secret: hunter2", "password: hunter2", "PASSWD: x", "passphrase: x",
		"    key: LS0tLS1CRUdJTi", "crt: LS0t", "- AGE-SECRET-KEY-1QQQ", "# AGE-SECRET-KEY-1QQQ", "-----BEGIN EC PRIVATE KEY-----",
		"accessKeyID: AKIAIOSFODNN7EXAMPLE", "secretAccessKey: x", "access_key: x", "x: wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY1",
		"MIIBdTCCARugAwIBAgIRAMGZqO5b5+ZQkzQ4sH5bA0kwCgYIKoZIzj0EAwIwADAe", "x: 0123456789abcdef0123456789abcdef0123456789abcdeg",
		"authorization: Basic Zm9v", "auth: x", "client-key-data: x", "password: secrets.age",
	} {
		report, options := pointing(line+"\n", 1, 1)
		require.Equal(t, "a.yaml:1:1: error: r: m\n", textOf(t, report, options), line)
	}
	for _, line := range []string{
		"  role: boss", "  secrets: {file: secrets.age}", "  uuid: 4c4c4544-0039-3510-8052-b4c04f4e3732",
		"  install: {image: factory.talos.dev/installer/376567988ad370138ad8b2698212367b8edcb69b5fd68c80be1f2ec7d603b4ba}",
		"  endpoint: https://cluster-1.example.com:6443", "  - file: clusters/prod/patches/a-rather-long-name-of-a-patch.yaml",
	} {
		report, options := pointing(line+"\n", 1, 1)
		require.Contains(t, textOf(t, report, options), " | "+line+"\n")
	}
}

func TestNothingIsShownOfAFileInWhichASecretStands(t *testing.T) {
	source := func(string) []byte { return []byte("a: 1\nb: 2\n") }
	at := func(file string, line int) schema.Position { return schema.Position{File: file, Line: line, Column: 1} }
	report := Report{Findings: []Finding{
		{Rule: "schema", Severity: Error, Position: at("leaked.yaml", 1), Message: "m"},
		{Rule: RuleSecret, Severity: Error, Position: at("leaked.yaml", 2), Message: "m"},
		{Rule: "schema", Severity: Warning, Position: at("other.yaml", 1), Message: "m"},
		{Rule: "schema", Severity: Error, Position: at("sealed.age", 1), Message: "m"},
	}}
	require.Equal(t, `leaked.yaml:1:1: error: schema: m
leaked.yaml:2:1: error: secret-in-clear: m

other.yaml:1:1: warning: schema: m
     1 | a: 1
       | ^

sealed.age:1:1: error: schema: m
`, textOf(t, report, TextOptions{Source: source}))
}

func TestColoursAreAddedOnlyWhereTheyAreAskedFor(t *testing.T) {
	report, options := pointing("a: 1\n", 1, 1)
	require.NotContains(t, textOf(t, report, options), "\x1b")
	options.Colour = true
	require.Equal(t, "\x1b[1ma.yaml:1:1: \x1b[0m\x1b[1;31merror:\x1b[0m r: m\n"+
		"\x1b[2m     1 | \x1b[0ma: 1\n\x1b[2m       | \x1b[0m\x1b[1;31m^\x1b[0m\n", textOf(t, report, options))
}
