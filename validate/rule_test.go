package validate

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/schema"
)

func TestAPolicyOfATeamIsJudgedAsItsAuthorMeantIt(t *testing.T) {
	engine := mustEngine(t, schema.Rule{
		Name: "prod-is-ha", Scope: "cluster", When: "self.metadata.?labels.tier.orValue('') == 'prod'",
		Expr: "self.spec.controlPlane.count >= 3", Message: "'prod needs three control planes'", Severity: "error",
	})
	small := fleetOf(t, `cluster a count=1`)
	require.Empty(t, engine.Check(nil, small), "without the label the rule doesn't apply")
	small.Clusters[0].Metadata.Labels = map[string]string{"tier": "test"}
	require.Empty(t, engine.Check(nil, small))
	small.Clusters[0].Metadata.Labels["tier"] = "prod"
	require.Equal(t, []Finding{{
		Rule: "prod-is-ha", Severity: Error, Position: schema.Position{File: "clusters/a/cluster.yaml", Line: 1, Column: 1},
		Kind: "TalosCluster", Name: "a", Cluster: "a", Message: "prod needs three control planes",
	}}, engine.Check(nil, small))
	small.Clusters[0].Spec.ControlPlane.Count = 3
	require.Empty(t, engine.Check(nil, small))
}

func TestARuleThatFailsIsAFindingAndNeverAPass(t *testing.T) {
	good := schema.Rule{Name: "r", Scope: "cluster", Expr: "true", Message: "'m'", Severity: "warning"}
	for name, c := range map[string]struct {
		change func(*schema.Rule)
		want   string
	}{
		"in expr": {func(r *schema.Rule) { r.Expr = "self.metadata.labels['tier'] == 'x'" },
			"a could not be judged, so it is refused: the rule's expr failed: no such key: tier"},
		"in when": {func(r *schema.Rule) { r.When = "machines[3].spec.approved" },
			"a could not be judged, so it is refused: the rule's when failed: index out of bounds: 3"},
		"in message": {func(r *schema.Rule) { r.Expr, r.Message = "false", "self.metadata.labels['tier']" },
			"a could not be judged, so it is refused: the rule's message failed: no such key: tier"},
		"of arithmetic": {func(r *schema.Rule) { r.Expr = "1 / (self.spec.controlPlane.count - 3) == 0" },
			"a could not be judged, so it is refused: the rule's expr failed: division by zero"},
		"of a version": {func(r *schema.Rule) { r.Expr = "semver(self.metadata.name).major() == 1" },
			`a could not be judged, so it is refused: the rule's expr failed: "a" is not a version, as in v1.13.6: No Major.Minor.Patch elements found`},
	} {
		t.Run(name, func(t *testing.T) {
			r := good
			c.change(&r)
			findings := mustEngine(t, r).Check(nil, fleetOf(t, `cluster a`))
			require.Len(t, findings, 1)
			require.Equal(t, c.want, findings[0].Message)
			require.Equal(t, Error, findings[0].Severity, "nobody knows what the rule would have said, so a warning won't do")
		})
	}
}

func TestARuleThatRunsAwayIsAFinding(t *testing.T) {
	const everyPair = "machines.all(a, machines.all(b, machines.all(c, a.metadata.name + b.metadata.name != c.metadata.name)))"
	var text strings.Builder
	text.WriteString("cluster a\n")
	for i := range 300 {
		fmt.Fprintf(&text, "machine a/m%d\n", i)
	}
	f := fleetOf(t, text.String())
	for name, r := range map[string]schema.Rule{
		"in expr":    {Name: "r", Scope: "cluster", Expr: everyPair, Message: "'m'"},
		"in when":    {Name: "r", Scope: "cluster", When: everyPair, Expr: "true", Message: "'m'"},
		"in message": {Name: "r", Scope: "cluster", Expr: "false", Message: everyPair + " ? 'a' : 'b'"},
		"by doubling a text": {Name: "r", Scope: "cluster", Message: "'m'",
			Expr: doubling(40)},
	} {
		t.Run(name, func(t *testing.T) {
			engine, err := engineOf(t, costLimit, r)
			require.NoError(t, err)
			start := worked()
			findings := engine.Check(nil, f)
			require.Len(t, findings, 1)
			if name == "by doubling a text" {
				require.Contains(t, findings[0].Message, "+ would handle or make too much at once")
				return
			}
			require.Contains(t, findings[0].Message, "it costs more than 2000000 steps; make it look at less")
			require.Less(t, worked()-start, timeLimit/2)
		})
	}
}

// doubling gives an expression that doubles a text n times and more.
func doubling(n int) string {
	return chained(max(1, min(n/4, maxNesting)), "self.metadata.name", strings.Repeat("@ + ", 15)+"@", "@.size() > 0")
}

func TestARuleIsStoppedByTimeToo(t *testing.T) {
	engine, err := engineOf(t, 1<<60, schema.Rule{Name: "r", Scope: "cluster", Message: "'m'",
		Expr: "machines.all(a, machines.all(b, machines.all(c, machines.all(d, a.metadata.name != 'x'))))"})
	require.NoError(t, err)
	var text strings.Builder
	text.WriteString("cluster a\n")
	for i := range 500 {
		fmt.Fprintf(&text, "machine a/m%d\n", i)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	w := newWorld(engine.compiler.set, nil, fleetOf(t, text.String()), nil)
	f, _ := engine.rules[0].judge(ctx, w, w.new.objects[schema.KindCluster][0])
	require.NotNil(t, f)
	require.Contains(t, f.Message, "it took longer than 1m0s; make it look at less")
}

func TestAWrongRuleDoesNotCompile(t *testing.T) {
	good := schema.Rule{Name: "r", Scope: "machine", Expr: "true", Message: "'m'"}
	for name, c := range map[string]struct {
		change func(*schema.Rule)
		want   string
	}{
		"a misspelt field":                        {func(r *schema.Rule) { r.Expr = "self.spec.aproved" }, `there is no field aproved in self.spec; did you mean "approved"?`},
		"a misspelt variable":                     {func(r *schema.Rule) { r.Expr = "slef.spec.approved" }, "there is nothing called slef; a rule of scope machine may name backups, cluster, fleet, machines, oldBackups"},
		"a misspelt list":                         {func(r *schema.Rule) { r.Expr = "machnies.size() > 0" }, `there is nothing called machnies; did you mean "machines"?`},
		"an expr that always runs away":           {func(r *schema.Rule) { r.Expr = strings.ReplaceAll(doubling(40), "self.metadata.name", "'0123456789'") }, "expr costs at least"},
		"a message without quotes":                {func(r *schema.Rule) { r.Message = "every machine is\n approved" }, `; message is an expression too, so a plain text needs quotes of its own: message: "'every machine is approved'"`},
		"a message of one word":                   {func(r *schema.Rule) { r.Message = "cluster" }, `message gives a TalosCluster and must give a string; message is an expression too, so a plain text needs quotes of its own: message: "'cluster'"`},
		"a misspelt field of a list's machine":    {func(r *schema.Rule) { r.Expr = "machines.all(m, m.spec.aproved)" }, `there is no field aproved in m.spec; did you mean "approved"?`},
		"a misspelt field of the old object":      {func(r *schema.Rule) { r.Expr = "oldSelf.?spec.aproved.orValue(false)" }, `there is no field aproved in oldSelf.?spec; did you mean "approved"?`},
		"a field of the wrong type":               {func(r *schema.Rule) { r.Expr = "self.spec.approved == 'yes'" }, "no matching overload"},
		"an expr that is no bool":                 {func(r *schema.Rule) { r.Expr = "self.spec.role" }, "expr gives a string and must give a bool"},
		"a when that is no bool":                  {func(r *schema.Rule) { r.When = "1" }, "when gives a int and must give a bool"},
		"a message that is no text":               {func(r *schema.Rule) { r.Message = "1" }, "message gives a int and must give a string"},
		"no expr":                                 {func(r *schema.Rule) { r.Expr = "" }, "expr doesn't compile"},
		"a broken expr":                           {func(r *schema.Rule) { r.Expr = "self." }, "Syntax error"},
		"an unknown scope":                        {func(r *schema.Rule) { r.Scope = "node" }, `there is no scope "node"`},
		"an unknown severity":                     {func(r *schema.Rule) { r.Severity = "fatal" }, `severity is "fatal"; use error or warning`},
		"a broken regular expression":             {func(r *schema.Rule) { r.Expr = "self.metadata.name.matches('(')" }, "invalid matches argument"},
		"oldSelf read as if it were always there": {func(r *schema.Rule) { r.Expr = "oldSelf.approved" }, "there is no field approved in oldSelf; its fields are apiVersion, kind, metadata, spec"},
		"making an object":                        {func(r *schema.Rule) { r.Expr = "TalosMachine{kind: 'x'} == self" }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := good
			c.change(&r)
			engine, err := engineOf(t, costLimit, r)
			if c.want == "" { // it compiles, and then fails
				require.NoError(t, err)
				require.Contains(t, engine.Check(nil, fleetOf(t, "cluster a\nmachine a/b"))[0].Message, "a rule can't make a TalosMachine")
				return
			}
			require.ErrorContains(t, err, c.want)
			require.ErrorContains(t, err, "rule r: ")
		})
	}
}

// TestEnvironment evaluates expressions over a machine cp-1 of a cluster, in the middle of a change.
func TestEnvironment(t *testing.T) {
	old := fleetOf(t, `cluster a count=1
		machine a/cp-1 controlplane approved
		machine a/gone worker approved
		cluster b`)
	now := fleetOf(t, `cluster a
		machine a/cp-1 controlplane approved hostname=One uuid=`+uuidOf("a", "cp-1")+` patch=x.yaml
		machine a/cp-2 controlplane approved
		machine a/cp-3 controlplane
		machine a/w-1 worker approved
		machine b/w-2 worker approved
		cluster b
		backup a/hourly
		remove a/cp-2`)
	now.Machines[0].Spec.ApprovalDecision = &schema.ApprovalDecision{At: morning, By: "alice"}
	now.Machines[0].Spec.Install = &schema.MachineInstall{DiskSelector: map[string]any{"size": "> 100GB", "n": 3.0}}
	now.Clusters[0].Spec.Rollout.Windows = []schema.Window{{Schedule: "0 2 * * SAT", Duration: schema.Duration(4 * time.Hour)}}
	now.Machines[0].Spec.Patches = append(now.Machines[0].Spec.Patches, schema.Patch{Inline: map[string]any{"machine": map[string]any{"a": true}}})

	expressions := []string{
		"self.metadata.name == 'cp-1' && self.spec.clusterRef.name == 'a' && self.spec.role == 'controlplane' && self.kind == 'TalosMachine'",
		"oldSelf.hasValue() && oldSelf.value().spec.hostname == '' && !has(oldSelf.value().spec.hostname)",
		"oldSelf.?spec.hostname.orValue('none') == 'none' && oldSelf.?spec.role.orValue('') == 'controlplane'",
		"oldSelf != optional.of(self) && oldSelf == oldSelf && self == self && self != machines[1]",
		"cluster.metadata.name == 'a' && cluster.spec.controlPlane.count == 3 && oldCluster.value().spec.controlPlane.count == 1",
		"cluster.spec.controlPlane.schedulable && oldCluster.?spec.controlPlane.schedulable.orValue(false)",
		"cluster.spec.contract == 'v1.13' && cluster.spec.rollout.reboots == 'automatic' && cluster.spec.rollout.drain.timeout == duration('10m')",
		"cluster.spec.rollout.windows.all(w, isCron(w.schedule) && w.duration == duration('4h'))",
		"machines.size() == 4 && machines.map(m, m.metadata.name) == ['cp-1', 'cp-2', 'cp-3', 'w-1']",
		"oldMachines.size() == 2 && 'gone' in oldMachines.map(m, m.metadata.name)",
		"backups.size() == 1 && oldBackups.size() == 0 && backups[0].spec.schedule == '0 * * * *'",
		"operations.size() == 1 && oldOperations == [] && operations[0].spec.node.then == 'powerOff'",
		"operations[0].spec.expiresAt - operations[0].spec.createdAt == duration('1h')",
		"names(approved(machines, 'controlplane')) == 'cp-1 and cp-2' && names(approved(machines, 'worker')) == 'w-1'",
		"names(approved(oldMachines, 'controlplane')) == 'cp-1' && names(approved(machines, 'nothing')) == 'none'",
		"names(approved(machines.filter(m, m.metadata.name != 'cp-1'), 'controlplane')) == 'cp-2'",
		"names(staying(machines, operations)) == 'cp-1, cp-3 and w-1' && names(staying(machines, oldOperations)) == names(machines)",
		"removing(operations, machines[1]) && !removing(operations, self) && !removing([], machines[1])",
		"fleet.hasCluster('a') && fleet.hasCluster('b') && !fleet.hasCluster('c') && !fleet.hasCluster('')",
		"fleet.machinesWithUUID(self.spec.uuid.upperAscii()) == [self] && fleet.machinesWithUUID('') == []",
		"fleet.oldMachinesWithUUID(self.spec.uuid).size() == 1",
		"fleet.rivals('uuid', self).size() == 0 && fleet.rivals('endpoint', cluster).size() == 0",
		"file(self) == 'clusters/a/machines/cp-1.yaml' && file(cluster) == 'clusters/a/cluster.yaml'",
		"counted(0, 'worker') == 'no workers' && counted(1, 'worker') == '1 worker' && counted(12, 'worker') == '12 workers'",
		"self.spec.approvalDecision.at == timestamp('2026-11-29T10:00:00Z') && self.spec.approvalDecision.by == 'alice'",
		"self.spec.?approvalDecision.at.hasValue() && !machines[1].spec.?approvalDecision.hasValue() && machines[1].spec.approvalDecision.by == ''",
		"self.spec.install.diskSelector.size == '> 100GB' && self.spec.install.diskSelector['n'] == 3.0",
		"self.spec.patches[0].file == 'x.yaml' && self.spec.patches[1].inline.machine.a == true && !has(self.spec.patches[1].file)",
		"!has(self.metadata.labels) && self.metadata.labels.size() == 0 && !('x' in self.metadata.labels) && self.metadata.labels[?'x'] == optional.none()",
		"isSemver('v1.13.6') && isSemver('1.13.6-alpha.1') && !isSemver('1.13') && !isSemver('latest')",
		"semver('v1.13.6').isLessThan(semver('v1.13.10')) && semver('v1.14.0').isGreaterThan(semver('v1.13.9')) && semver('v1.0.0') == semver('1.0.0')",
		"semver('v1.13.6').minor() == 13 && semver('v1.13.6').major() == 1 && semver('v1.13.6').patch() == 6 && semver('v2.0.0').compareTo(semver('v10.0.0')) == -1",
		"semver('v1.13.0-alpha.1').isLessThan(semver('v1.13.0'))",
		"isCron('0 2 * * SAT') && isCron('*/5 1-3,7 * JAN *') && !isCron('0 2 * *') && !isCron('@hourly') && !isCron('CRON_TZ=UTC 0 2 * * *') && !isCron('TZ=') && !isCron('60 * * * *') && !isCron('')",
		"nextCron('0 2 * * SAT', timestamp('2026-11-29T10:00:00Z')) == timestamp('2026-12-05T02:00:00Z')",
		"isCIDR('10.0.0.0/8') && !isCIDR('10.0.0.0') && cidr('10.0.0.0/8').containsIP('10.1.2.3') && !cidr('10.0.0.0/8').containsIP('11.1.2.3') && isIP('fd00::1')",
		"cidr('10.0.0.0/8').containsCIDR('10.96.0.0/12')",
		"type(self) == TalosMachine && dyn(self).spec.role == 'controlplane'",
		"math.least(3, 1) == 1 && sets.contains(['a', 'b'], ['a']) && 'a,b'.split(',').size() == 2",
	}
	for _, expression := range expressions {
		t.Run(expression, func(t *testing.T) {
			engine := mustEngine(t, schema.Rule{Name: "r", Scope: "machine", When: "self.metadata.name == 'cp-1'", Expr: expression, Message: "'it is false'"})
			for _, f := range engine.Check(old, now) {
				t.Error(f.Message)
			}
		})
	}
}

// FuzzRule checks that no rule, however odd, does more than fail.
func FuzzRule(f *testing.F) {
	engine, err := New()
	require.NoError(f, err)
	for _, r := range engine.rules {
		f.Add(r.Scope, r.When, r.Expr, r.Message)
	}
	f.Add("machine", "", "machines.all(a, machines.all(b, a == b))", "self")
	f.Add("cluster", "true", doubling(30), "names(machines)")
	f.Add("operation", "", "[[[[[[1]]]]]][0][0][0][0][0][9] == 1", "''")
	f.Add("fleet", "", "fleet", "fleet")
	f.Add("file", "", "{'a': self}['a'].file.matches('(a+)+$')", "optional.of(self).value().name")
	c := engine.compiler
	c.costLimit = 10_000
	old := func(t *testing.T) *schema.Fleet { return fleetOf(t, "cluster a\nmachine a/m approved\nmachine a/n") }
	f.Fuzz(func(t *testing.T, scope, when, expr, message string) {
		compiled, faults := c.compile(schema.Rule{Name: "r", Scope: scope, When: when, Expr: expr, Message: message})
		if len(faults) > 0 {
			return
		}
		probe := &Engine{compiler: c, rules: []*rule{compiled}, policies: newPolicyCache()}
		now := fleetOf(t, "cluster a\nmachine a/m patch=x\nremove a/m\nbackup a/b")
		for _, finding := range probe.Check(old(t), now) {
			require.NotEmpty(t, finding.Rule)
		}
	})
}
