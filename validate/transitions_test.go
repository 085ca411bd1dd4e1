package validate

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/schema"
)

// TestTransitions reads testdata/transitions.txt, which says what each change of a fleet comes to.
func TestTransitions(t *testing.T) {
	engine, err := New()
	require.NoError(t, err)
	text, err := os.ReadFile("testdata/transitions.txt")
	require.NoError(t, err)
	tables := strings.Split(string(text), "\n== ")[1:]
	require.Greater(t, len(tables), 10)
	for _, table := range tables {
		title, rest, _ := strings.Cut(table, "\n")
		fleet, lines, found := strings.Cut(rest, "\n\n")
		require.True(t, found, title)
		for _, line := range strings.Split(strings.TrimSpace(lines), "\n") {
			edits, want, found := strings.Cut(line, ": ")
			require.True(t, found, line)
			t.Run(title+": "+edits, func(t *testing.T) {
				proposed := fleetOf(t, fleet)
				for _, edit := range strings.Split(edits, ", ") {
					apply(t, proposed, edit)
				}
				var got []string
				for _, f := range engine.Check(fleetOf(t, fleet), proposed, Without(RuleNotYet)) {
					require.NotContains(t, f.Message, "could not be judged")
					got = append(got, f.Rule+" "+f.Name)
				}
				if got == nil {
					got = []string{"passes"}
				}
				require.ElementsMatch(t, strings.Split(want, ", "), got)
			})
		}
	}
}

// apply makes one edit of the cluster prod.
func apply(t *testing.T, f *schema.Fleet, edit string) {
	t.Helper()
	verb, name, _ := strings.Cut(edit, " ")
	is := func(m *schema.TalosMachine) bool { return m.Metadata.Name == name && m.Spec.ClusterRef.Name == "prod" }
	machine := func() *schema.TalosMachine {
		at := slices.IndexFunc(f.Machines, is)
		require.GreaterOrEqual(t, at, 0, edit)
		return f.Machines[at]
	}
	prod := f.Cluster("prod")
	switch verb {
	case "approve":
		machine().Spec.Approved = true
	case "unapprove":
		machine().Spec.Approved = false
	case "renew":
		machine().Spec.ApprovalDecision = &schema.ApprovalDecision{At: morning.AddDate(0, 0, 1)}
	case "re-role":
		m := machine()
		m.Spec.Role = map[schema.Role]schema.Role{schema.RoleWorker: schema.RoleControlPlane, schema.RoleControlPlane: schema.RoleWorker}[m.Spec.Role]
	case "move":
		machine().Spec.ClusterRef.Name = "test"
	case "rename-file":
		machine().Source.File = "elsewhere/" + name + ".yaml"
	case "twice":
		second := *machine()
		second.Source.File = "clusters/prod/copy.yaml"
		f.Machines = append(f.Machines, &second)
	case "add":
		role := "controlplane"
		if strings.HasPrefix(name, "w") {
			role = "worker"
		}
		f.Machines = append(f.Machines, fleetOf(t, "machine prod/"+name+" "+role).Machines...)
	case "delete":
		machine()
		f.Machines = slices.DeleteFunc(f.Machines, is)
	case "remove":
		f.Operations = append(f.Operations, fleetOf(t, "remove prod/"+name).Operations...)
	case "remove-gone":
		f.Operations = append(f.Operations, fleetOf(t, "remove prod/"+name+" gone").Operations...)
	case "delete-remove":
		f.Operations = slices.DeleteFunc(f.Operations, func(o *schema.TalosOperation) bool { return o.Metadata.Name == "remove-"+name })
	case "count":
		require.NotNil(t, prod, edit)
		_, err := fmt.Sscan(name, &prod.Spec.ControlPlane.Count)
		require.NoError(t, err)
	case "schedulable", "unschedulable":
		require.NotNil(t, prod, edit)
		is := verb == "schedulable"
		prod.Spec.ControlPlane.Schedulable = &is
	case "delete-cluster":
		f.Clusters = slices.DeleteFunc(f.Clusters, func(c *schema.TalosCluster) bool { return c == prod })
	default:
		t.Fatalf("what is %q?", edit)
	}
}
