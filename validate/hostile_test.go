package validate

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/schema"
)

// chained binds each of n names to an expression of the one before it.
func chained(n int, first, next, last string) string {
	text := strings.ReplaceAll(last, "@", fmt.Sprintf("t%d", n))
	for i := n; i > 0; i-- {
		text = fmt.Sprintf("cel.bind(t%d, %s, %s)", i, strings.ReplaceAll(next, "@", fmt.Sprintf("t%d", i-1)), text)
	}
	return fmt.Sprintf("cel.bind(t0, %s, %s)", first, text)
}

// hostile are expressions that try to take for ever, or all memory.
func hostile() map[string]string {
	wide := "@ + @ + @ + @ + @ + @ + @ + @ + @ + @ + @ + @ + @ + @ + @ + @"
	elements := "[@, @, @, @, @, @, @, @, @, @, @, @, @, @, @, @]"
	return map[string]string{
		"a text that doubles":              chained(60, "self.metadata.name", "@ + @", "@.size() > 0"),
		"a text that grows sixteenfold":    chained(8, "self.metadata.name", wide, "@.size() > 0"),
		"a text joined to itself":          chained(8, "self.metadata.name", elements+".join()", "@.size() > 0"),
		"a text joined to itself, deep":    chained(60, "self.metadata.name", "[@, @].join(@)", "@.size() > 0"),
		"a text formatted into itself":     chained(8, "self.metadata.name", "'%s%s%s%s%s%s%s%s'.format([@, @, @, @, @, @, @, @])", "@.size() > 0"),
		"a text replaced in itself":        chained(6, "self.metadata.name + 'xxxxxxxxxxxxxxxx'", "@.replace('', @)", "@.size() > 0"),
		"a list that doubles":              chained(60, "machines", "@ + @", "@.all(m, m.metadata.name != 'zzz')"),
		"a list that doubles, compared":    chained(40, "[self.metadata.name]", "@ + @", "@ == @ + []"),
		"a list of lists, compared":        chained(8, "[self.metadata.name]", elements, "@ == dyn(["+strings.Repeat("[", 8)+strings.Repeat("]", 8)+"]) || @ == @.map(x, x)"),
		"a list of lists, flattened":       chained(8, "[self.metadata.name]", elements, "dyn(@).flatten(9).size() > 0"),
		"windows of windows":               "machines.all(m, machines.all(n, !alwaysOpen('*/7 * 29 2 *', duration('1h'))))",
		"a long range":                     "lists.range(1000000000).size() > 0",
		"ranges of ranges":                 "lists.range(1000).map(a, lists.range(100000)).size() > 0",
		"distinct of many":                 "lists.range(100000).distinct().size() > 0",
		"sets of many":                     "sets.contains(lists.range(100000), lists.range(100000))",
		"comprehensions in comprehensions": nested(9, "[1,2,3,4,5,6,7,8,9,10]"),
		"machines, machines and machines":  nested(3, "machines"),
		"a map of maps as a type":          chained(200, "{'a': 'b'}", "{@: @}", "@.size() > 0"),
		"a deep list":                      strings.Repeat("[", 200) + "1" + strings.Repeat("]", 200) + ".size() > 0",
		"a deeper list":                    strings.Repeat("[", 4000) + "1" + strings.Repeat("]", 4000) + ".size() > 0",
		"many brackets":                    strings.Repeat("(", 4000) + "true" + strings.Repeat(")", 4000),
		"a long or":                        strings.Repeat("self.metadata.name == 'x' || ", 500) + "true",
		"a large regular expression":       "self.metadata.name.matches('((((a{30}){30}){1}){1})')",
		"an evil regular expression":       "machines.all(m, (m.metadata.name + 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa').matches('(a+)+$'))",
		"a made regular expression":        chained(7, "'(a|b){9}'", "'(' + @ + '){9}'", "self.metadata.name.matches(@)"),
		"a search in long texts":           chained(14, "'ab'", "@ + @", "@.indexOf(@.substring(1) + 'c') > 0 && lists.range(1000).all(i, @.lastIndexOf('ac') < i)"),
		"sorting what was sorted":          "lists.range(50000).sort().sort().sort().size() > 0",
	}
}

func nested(depth int, list string) string {
	text := "true"
	for i := range depth {
		text = fmt.Sprintf("%s.all(v%d, %s)", list, i, text)
	}
	return text
}

func TestAHostileRuleEndsInAFindingAndTakesNeitherTimeNorMemory(t *testing.T) {
	var text strings.Builder
	text.WriteString("cluster a\n")
	for i := range 200 {
		fmt.Fprintf(&text, "machine a/m%d\n", i)
	}
	f := fleetOf(t, text.String())
	for name, expr := range hostile() {
		t.Run(name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			start := worked()
			c, err := newCompiler()
			require.NoError(t, err)
			engine := &Engine{compiler: c, policies: newPolicyCache()}
			f.Policies = []*schema.Policy{{Spec: schema.PolicySpec{Rules: []schema.Rule{{Name: "r", Scope: "cluster", Expr: expr, Message: "'m'"}}}}}
			findings := engine.Check(nil, f)
			runtime.ReadMemStats(&after)
			t.Logf("%v, %d MiB, %.300v", worked()-start, (after.TotalAlloc-before.TotalAlloc)>>20, findings)
			require.Less(t, (after.TotalAlloc-before.TotalAlloc)>>20, uint64(600))
			require.Less(t, worked()-start, timeLimit/2)
		})
	}
}
