package schema

import (
	"fmt"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/require"
)

// policyWith gives a policy whose expr is written in YAML as given, from column 11 of line 7 on.
func policyWith(expr string) string {
	return "apiVersion: ichor.maesh.dev/v1alpha1\nkind: Policy\nmetadata: {name: p}\nspec:\n  rules:\n  - name: r\n    expr: " + expr +
		"\n    scope: cluster\n    message: \"'m'\"\n"
}

func TestACharacterOfAnExpressionIsFoundHoweverYAMLWroteIt(t *testing.T) {
	for name, written := range map[string]string{
		"plain":                            "self.a == @b",
		"plain, over several lines":        "self.a\n      == 1 &&\n\n      @b",
		"single quotes":                    "'self.a == ''x'' && @b'",
		"single quotes over several lines": "'self.a == ''x''\n      && @b'",
		"double quotes":                    `"self.a == \"x\" && @b"`,
		"double quotes and escapes":        `"\x73elf\u002ea\x20==\n\t\U0001F600\\ && @b"`,
		"double quotes, a line continued":  "\"self.a ==\\\n      'x' && \\\n      @b\"",
		"literal":                          "|\n      self.a ==\n        'x'\n\n      && @b",
		"literal, with a comment":          "|- # why\n      self.a == @b",
		"literal, indent given":            "|2\n        self.a == @b",
		"folded":                           ">-\n      self.a ==\n      'x' # no comment\n\n        && @b",
		"folded, more indented":            ">\n      self.a\n          && c\n      && @b",
		"with an anchor":                   "&all self.a == @b",
		"with a tag and an anchor":         "!!str &all \"self.a == @b\"",
		"letters of two bytes before it":   "\"'äöü' == @b\"",
	} {
		t.Run(name, func(t *testing.T) {
			text := policyWith(written)
			for _, prefix := range []string{"", "\ufeff"} {
				for _, end := range []string{"\n", "\r\n"} {
					file := prefix + strings.ReplaceAll(text, "\n", end)
					fleet, problems := Decode("p.yaml", []byte(file))
					require.Empty(t, problems)
					found := fleet.Policies[0]
					offset := strings.Index(found.Spec.Rules[0].Expr, "@")
					at := found.Source.Texts["spec.rules[0].expr"].At(offset)
					lines := strings.Split(text, "\n")
					require.Equal(t, "p.yaml", at.File)
					require.Equal(t, "@", string([]rune(lines[at.Line-1])[at.Column-1]), "%v", at)
				}
			}
		})
	}
}

func TestTheEndOfAnExpressionIsBehindItsLastCharacter(t *testing.T) {
	fleet, problems := Decode("p.yaml", []byte(policyWith("self.  ")))
	require.Empty(t, problems)
	text := fleet.Policies[0].Source.Texts["spec.rules[0].expr"]
	require.Equal(t, Position{File: "p.yaml", Line: 7, Column: 11}, text.At(0))
	require.Equal(t, Position{File: "p.yaml", Line: 7, Column: 16}, text.At(5))
	require.Equal(t, Position{File: "p.yaml", Line: 7, Column: 16}, text.At(500))
	require.Equal(t, Position{File: "p.yaml", Line: 7, Column: 11}, text.At(-1))
	require.Equal(t, Position{}, Text{}.At(3))
}

// FuzzText holds that a place inside an expression is always one of the file.
func FuzzText(f *testing.F) {
	for _, written := range []string{"a", "'it''s'", `"\x41\n\u00e9"`, "|\n      a\n       b", ">-\n      a\n      b", "&a !!str x"} {
		f.Add(written)
	}
	f.Fuzz(func(t *testing.T, written string) {
		text := policyWith(written)
		fleet, _ := Decode("p.yaml", []byte(text))
		for _, p := range fleet.Policies {
			for i, r := range p.Spec.Rules {
				found := p.Source.Texts[fmt.Sprintf("spec.rules[%d].expr", i)]
				for offset, c := range r.Expr {
					at := found.At(offset)
					require.Positive(t, at.Line)
					require.LessOrEqual(t, at.Line, strings.Count(text, "\n")+1)
					if at.Line == 7 && !unicode.IsSpace(c) {
						require.LessOrEqual(t, at.Column, len([]rune(strings.Split(text, "\n")[6]))+1)
					}
				}
			}
		}
	})
}
