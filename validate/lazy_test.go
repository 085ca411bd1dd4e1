package validate

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/schema"
)

func TestWhatABuiltInRuleSpeaksOfIsReadOutOfItsText(t *testing.T) {
	engine, err := New()
	require.NoError(t, err)
	for _, r := range engine.rules {
		compiled, faults := engine.compiler.compile(r.Rule)
		require.Empty(t, faults, r.Name)
		require.Equal(t, compiled.needsBase, r.needsBase, "%s of %s: base", r.Name, r.Scope)
		require.Equal(t, compiled.needsCluster, r.needsCluster, "%s of %s: cluster", r.Name, r.Scope)
		require.Equal(t, compiled.severity, r.severity, r.Name)
		require.Equal(t, compiled.when == nil, r.when == nil, r.Name)
	}
}

func TestAnEngineForOnceFindsWhatAnEngineThatStaysFinds(t *testing.T) {
	stays, err := New()
	require.NoError(t, err)
	once, err := NewForOnce()
	require.NoError(t, err)
	base := fleetOf(t, "cluster a\nmachine a/1 approved\nmachine a/2 approved")
	now := fleetOf(t, "cluster a\nmachine a/1 approved\nmachine a/1 approved\nmachine b/3\nremove a/9\nbackup a/b")
	for _, old := range []*schema.Fleet{nil, base} {
		want := stays.Check(old, now)
		require.NotEmpty(t, want)
		require.Equal(t, want, once.Check(old, now))
		require.Equal(t, stays.RulesEvaluated(now, old != nil), once.RulesEvaluated(now, old != nil))
	}
}

func TestABuiltInRuleThatCannotBeCompiledIsALoudFinding(t *testing.T) {
	c, err := newCompiler()
	require.NoError(t, err)
	for _, r := range []schema.Rule{
		{Name: "r", Scope: "machine", When: "slef.x", Expr: "true", Message: "'m'"},
		{Name: "r", Scope: "machine", Expr: "slef.x", Message: "'m'"},
		{Name: "r", Scope: "machine", Expr: "false", Message: "slef.x"},
	} {
		engine := &Engine{compiler: c, rules: []*rule{c.later(r)}, policies: newPolicyCache()}
		found := engine.Check(nil, fleetOf(t, "cluster a\nmachine a/b"))
		require.Len(t, found, 1)
		require.Equal(t, Error, found[0].Severity)
		require.Contains(t, found[0].Message, "slef")
	}
}

func TestFindingsKeepTheirOrderHoweverManyGoroutinesJudge(t *testing.T) {
	var text strings.Builder
	text.WriteString("cluster a\n")
	for n := range 3*shareSize + 7 {
		fmt.Fprintf(&text, "machine a/m%d approved\nmachine a/m%d approved\n", n, n)
	}
	fleet := fleetOf(t, text.String())
	engine, err := New()
	require.NoError(t, err)
	check := func(cores int) []Finding {
		before := runtime.GOMAXPROCS(cores)
		defer runtime.GOMAXPROCS(before)
		w := newWorld(engine.compiler.set, nil, fleet, nil)
		return checkAll(w, kept(engine.rules, func(r *rule) bool { return !r.needsBase }))
	}
	alone := check(1)
	require.Greater(t, len(alone), 6*shareSize)
	for range 5 {
		require.Equal(t, alone, check(8))
	}
}
