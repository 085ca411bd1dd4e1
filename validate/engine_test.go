package validate

import (
	"fmt"
	"io/fs"
	"strings"
	"sync"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/schema"
)

// engineOf compiles rules of a test's own.
func engineOf(t *testing.T, limit uint64, rules ...schema.Rule) (*Engine, error) {
	t.Helper()
	c, err := newCompiler()
	require.NoError(t, err)
	c.costLimit = limit
	engine := &Engine{compiler: c, policies: newPolicyCache()}
	for _, r := range rules {
		compiled, faults := c.compile(r)
		if err := asError(r, faults); err != nil {
			return nil, err
		}
		engine.rules = append(engine.rules, compiled)
	}
	return engine, nil
}

func mustEngine(t *testing.T, rules ...schema.Rule) *Engine {
	t.Helper()
	engine, err := engineOf(t, costLimit, rules...)
	require.NoError(t, err)
	return engine
}

func TestWithoutABaseOnlyWhatOneRevisionCanShowIsChecked(t *testing.T) {
	always := schema.Rule{Name: "always", Scope: "machine", Expr: "false", Message: "'m'"}
	for expression, needsBase := range map[string]bool{
		"machines.size() == 0":                                                 false,
		"cluster.spec.controlPlane.count == 0":                                 false,
		"oldSelf.hasValue() && false":                                          true,
		"oldCluster.hasValue() && false":                                       true,
		"oldMachines.size() < 0":                                               true,
		"oldBackups.size() < 0":                                                true,
		"oldOperations.size() < 0":                                             true,
		"fleet.oldMachinesWithUUID(self.spec.uuid).size() < 0":                 true,
		"fleet.machinesWithUUID(self.spec.uuid).size() < 0":                    false,
		"machines.all(oldSelf, false)":                                         false,
		"machines.all(m, m.metadata.name == 'x' && oldSelf != optional.of(m))": true,
	} {
		t.Run(expression, func(t *testing.T) {
			r := always
			r.Expr = expression
			engine := mustEngine(t, r, always)
			f := fleetOf(t, "cluster a\nmachine a/b")
			want := 2
			if needsBase {
				want = 1
			}
			require.Len(t, engine.Check(nil, f), want)
			require.Len(t, engine.Check(&schema.Fleet{}, f), 2)
		})
	}
	engine, err := New()
	require.NoError(t, err)
	require.Greater(t, engine.RulesEvaluated(&schema.Fleet{}, true), engine.RulesEvaluated(&schema.Fleet{}, false))
	inCEL := len(engine.Rules()) - len(rulesInWords)
	require.Equal(t, inCEL, engine.RulesEvaluated(&schema.Fleet{}, true))
	require.Equal(t, inCEL-1, engine.RulesEvaluated(&schema.Fleet{}, true, Without("windows-unused")))
}

func TestAFindingPointsAtTheField(t *testing.T) {
	at := func(line int) schema.Position {
		return schema.Position{File: "clusters/a/cluster.yaml", Line: line, Column: 3}
	}
	f := fleetOf(t, `cluster a`)
	f.Clusters[0].Source.Fields = map[string]schema.Position{
		"spec": at(5), "spec.controlPlane": at(7), "spec.controlPlane.count": at(8), "spec.patches.all[0]": at(9),
	}
	for field, line := range map[string]int{
		"":                              1,
		"spec.controlPlane.count":       8,
		"spec.controlPlane.schedulable": 7,
		"spec.network.cni":              5,
		"spec.patches.all[0].file":      9,
		"spec.patches.all[1].file":      5,
		"metadata.name":                 1,
	} {
		t.Run(field, func(t *testing.T) {
			engine := mustEngine(t, schema.Rule{Name: "r", Scope: "cluster", Field: field, Expr: "false", Message: "'m'"})
			require.Equal(t, line, engine.Check(nil, f)[0].Line)
		})
	}
}

func TestMessagesNameTheThingTheNumberAndTheWayOut(t *testing.T) {
	engine, err := New()
	require.NoError(t, err)
	for _, c := range []struct{ rule, old, new, want string }{
		{"approval-cap", `cluster prod count=3
			machine prod/cp-1 controlplane approved
			machine prod/cp-2 controlplane approved
			machine prod/cp-3 controlplane approved
			machine prod/cp-4 controlplane approved`, `cluster prod count=3
			machine prod/cp-1 controlplane approved
			machine prod/cp-2 controlplane approved
			machine prod/cp-3 controlplane approved
			machine prod/cp-4 controlplane approved
			machine prod/cp-5 controlplane approved`,
			"clusters/prod/machines/cp-5.yaml:1:1: error: approval-cap: cp-5 can't be approved: 5 control planes would be approved " +
				"(cp-1, cp-2, cp-3, cp-4 and cp-5) and count is 3, so at most 4 may be; raise spec.controlPlane.count in " +
				"clusters/prod/cluster.yaml or remove one first"},
		{"control-plane-count", `cluster prod
			machine prod/cp-1 controlplane approved
			machine prod/cp-2 controlplane approved
			machine prod/cp-3 controlplane approved`, `cluster prod
			machine prod/cp-1 controlplane approved
			machine prod/cp-2 controlplane approved`,
			"clusters/prod/machines/cp-3.yaml: error: control-plane-count: cp-3 can't be deleted: that leaves 2 approved control planes " +
				"and count is 3; approve a replacement first, or lower spec.controlPlane.count in clusters/prod/cluster.yaml, or set the " +
				"annotation ichor.maesh.dev/allow-delete: cp-3 on it in an earlier change"},
		{"unique-endpoint", `cluster prod`, `cluster prod
			machine prod/a endpoint=10.0.0.1
			cluster test
			machine test/b endpoint=10.0.0.1:50000`,
			"clusters/prod/machines/a.yaml:1:1: error: unique-endpoint: a can't have the endpoint 10.0.0.1: b of cluster test has it " +
				"(clusters/test/machines/b.yaml); give each machine its own"},
	} {
		t.Run(c.rule, func(t *testing.T) {
			findings := engine.Check(fleetOf(t, c.old), fleetOf(t, c.new))
			require.NotEmpty(t, findings)
			require.Equal(t, c.want, findings[0].String())
		})
	}
}

func TestWhatCannotBeReadWasNotRemoved(t *testing.T) {
	engine, err := New()
	require.NoError(t, err)
	old := fleetOf(t, `cluster prod
		machine prod/cp-1 controlplane approved
		machine prod/cp-2 controlplane approved
		machine prod/cp-3 controlplane approved`)
	now := fleetOf(t, `cluster prod
		machine prod/cp-1 controlplane approved
		machine prod/cp-2 controlplane approved`)
	require.NotEmpty(t, engine.Check(old, now))
	broken := schema.Problem{Position: schema.Position{File: "clusters/prod/machines/cp-3.yaml"}, Message: "unknown field"}
	require.Empty(t, engine.Check(old, now, WithProblems([]schema.Problem{broken})))

	noCluster := fleetOf(t, `machine prod/cp-1 controlplane approved
		machine prod/cp-2 controlplane approved
		machine prod/cp-3 controlplane approved`)
	require.Len(t, engine.Check(old, noCluster), 4, "the removal, and three machines without a cluster")
	broken = schema.Problem{Position: schema.Position{File: "clusters/prod/cluster.yaml"}, Message: "unknown field"}
	require.Empty(t, engine.Check(old, noCluster, WithProblems([]schema.Problem{broken})))
	broken = schema.Problem{Position: schema.Position{File: "elsewhere.yaml"}, Kind: schema.KindCluster, Name: "prod", Message: "unknown field"}
	require.Empty(t, engine.Check(nil, noCluster, WithProblems([]schema.Problem{broken})))
}

func TestAFileIsLookedUpOnce(t *testing.T) {
	tree := &countingFS{MapFS: fstest.MapFS{"clusters/a/patches/all.yaml": {}}}
	var text strings.Builder
	text.WriteString("cluster a\n")
	for i := range 100 {
		fmt.Fprintf(&text, "machine a/m%d patch=../patches/all.yaml\n", i)
	}
	f := fleetOf(t, text.String())
	f.Tree = tree
	engine, err := New()
	require.NoError(t, err)
	require.Empty(t, engine.Check(nil, f))
	require.Equal(t, 1, tree.opened)
}

type countingFS struct {
	fstest.MapFS
	opened int
}

func (c *countingFS) Open(name string) (fs.File, error) {
	if strings.HasSuffix(name, "all.yaml") {
		c.opened++
	}
	return c.MapFS.Open(name)
}

func TestExplain(t *testing.T) {
	engine, err := New()
	require.NoError(t, err)
	for _, rule := range engine.Rules() {
		text, ok := engine.Explain(rule)
		require.True(t, ok, rule)
		require.True(t, strings.HasPrefix(text, "# "), "%s has no comment above it:\n%s", rule, text)
		entries := 0
		for _, r := range engine.rules {
			if r.Name == rule {
				entries++
			}
		}
		require.Equal(t, entries, strings.Count(text, "- name: "+rule+"\n"))
		require.Equal(t, entries, strings.Count(text, "\n  expr: "))
		require.NotContains(t, text, "\n\n")
	}
	for _, rule := range []string{RuleSchema, RuleBothSides, RuleOperationTimes, RuleSignature} {
		text, ok := engine.Explain(rule)
		require.True(t, ok)
		require.Contains(t, text, "This is no CEL rule")
	}
	_, ok := engine.Explain("no-such-rule")
	require.False(t, ok)
	_, ok = engine.Explain("")
	require.False(t, ok)
}

func TestAFindingBelongsToTheClusterItNamesElseToTheNearest(t *testing.T) {
	machine := func(cluster string) *fstest.MapFile {
		return &fstest.MapFile{Data: []byte(fmt.Sprintf(machineYAML, cluster, "w-1", "worker", "10.0.0.1", "4c4c4544-0039-3510-8052-b4c04f4e3732"))}
	}
	cluster := func(name string, number int) *fstest.MapFile {
		return &fstest.MapFile{Data: []byte(fmt.Sprintf(clusterYAML, name, number))}
	}
	engine, err := New()
	require.NoError(t, err)
	for name, c := range map[string]struct {
		file, ref, want string
	}{
		"a misspelt cluster, below its cluster's folder": {"clusters/prod/machines/w-1.yaml", "prdo", "prod"},
		"another cluster's machine, in a wrong folder":   {"clusters/prod/machines/w-1.yaml", "test", "test"},
		"a misspelt cluster, in no cluster's folder":     {"machines/w-1.yaml", "prdo", "prdo"},
		"a misspelt cluster, above two clusters":         {"clusters/w-1.yaml", "prdo", "prdo"},
	} {
		t.Run(name, func(t *testing.T) {
			fleet, problems := schema.Load(fstest.MapFS{
				"clusters/prod/cluster.yaml": cluster("prod", 1), "clusters/test/cluster.yaml": cluster("test", 2), c.file: machine(c.ref),
			}, []string{"."})
			require.Empty(t, problems)
			for _, f := range engine.Check(nil, fleet) {
				if f.Kind == schema.KindMachine { // its cluster, or its patch
					require.Equal(t, c.want, f.Cluster, f.Message)
				}
			}
		})
	}
}

func TestAnEngineServesSeveralAtOnce(t *testing.T) {
	engine, err := New()
	require.NoError(t, err)
	old := fleetOf(t, "cluster prod\nmachine prod/cp-1 controlplane approved")
	now := fleetOf(t, "cluster prod count=2\nmachine prod/cp-1 worker approved")
	want := engine.Check(old, now)
	require.NotEmpty(t, want)
	var group sync.WaitGroup
	answers := make([][]Finding, 8)
	for i := range answers {
		group.Go(func() { answers[i] = engine.Check(old, now) })
	}
	group.Wait()
	for _, got := range answers {
		require.Equal(t, want, got)
	}
}
