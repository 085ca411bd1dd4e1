package reconcile

import (
	"maps"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/talos"
)

// TestOnlyWhatACommitTouchesIsRenderedAgain follows one revision with another, and looks at whose configs are the very same object.
func TestOnlyWhatACommitTouchesIsRenderedAgain(t *testing.T) {
	bundle := newBundle(t)
	const folder = "clusters/prod/"
	cluster := benchCluster("prod", schema.ClusterID(bundle.ClusterID()), 1) + "  patches: {worker: [{file: worker.yaml}]}\n"
	files := map[string]string{
		folder + "cluster.yaml":       cluster,
		folder + "worker.yaml":        "machine: {sysctls: {vm.overcommit_memory: \"1\"}}\n",
		folder + "machines/cp-1.yaml": benchMachine("prod", "cp-1", "controlplane", "10.0.0.1", 1),
		folder + "machines/w-1.yaml":  benchMachine("prod", "w-1", "worker", "10.0.0.2", 2),
		folder + "machines/w-2.yaml":  benchMachine("prod", "w-2", "worker", "10.0.0.3", 3) + "  patches: [{file: own.yaml}]\n",
		folder + "machines/own.yaml":  "machine: {sysctls: {vm.swappiness: \"1\"}}\n",
	}
	comparer := func(changed map[string]string, bundle *talos.Bundle, mark string) *Comparer {
		tree := fstest.MapFS{folder + "secrets.age": {}}
		both := maps.Clone(files)
		maps.Copy(both, changed)
		for name, text := range both {
			tree[name] = &fstest.MapFile{Data: []byte(text)}
		}
		fleet, problems := schema.Load(tree, []string{"."})
		require.Empty(t, problems)
		return NewComparer(fleet, fleet.Cluster("prod"), bundle, nil, mark)
	}
	configs := func(c *Comparer) map[string]*talos.Rendered {
		found := map[string]*talos.Rendered{}
		for _, m := range c.fleet.MachinesOf("prod") {
			rendered, err := c.Render(m, nil, true)
			require.NoError(t, err)
			found[m.Metadata.Name] = rendered
		}
		return found
	}
	all := []string{"cp-1", "w-1", "w-2"}
	for _, c := range []struct {
		name    string
		changed map[string]string
		mark    string
		again   []string
	}{
		{name: "a file that no config is made of", changed: map[string]string{"README.md": "a change"}},
		{name: "the machine", changed: map[string]string{folder + "machines/w-1.yaml": benchMachine("prod", "w-1", "worker", "10.0.0.9", 2)}, again: []string{"w-1"}},
		{name: "a patch of one machine", changed: map[string]string{folder + "machines/own.yaml": "machine: {sysctls: {vm.swappiness: \"2\"}}\n"}, again: []string{"w-2"}},
		{name: "a patch of all workers", changed: map[string]string{folder + "worker.yaml": "machine: {sysctls: {vm.overcommit_memory: \"2\"}}\n"}, again: []string{"w-1", "w-2"}},
		{name: "the cluster", changed: map[string]string{folder + "cluster.yaml": cluster + "  network: {cni: none}\n"}, again: all},
		{name: "the mark", mark: "other", again: all},
	} {
		t.Run(c.name, func(t *testing.T) {
			before, after, fresh := comparer(nil, bundle, "mark"), comparer(c.changed, bundle, nameOr(c.mark, "mark")), comparer(c.changed, bundle, nameOr(c.mark, "mark"))
			was := configs(before)
			after.follow(before)
			is, right := configs(after), configs(fresh)
			var again []string
			for _, name := range all {
				require.Equal(t, string(right[name].Bytes), string(is[name].Bytes), name)
				if is[name] != was[name] {
					again = append(again, name)
				}
			}
			require.Equal(t, c.again, again)
		})
	}
	t.Run("the secrets", func(t *testing.T) {
		before, after := comparer(nil, bundle, "mark"), comparer(nil, newBundle(t), "mark")
		was := configs(before)
		after.follow(before)
		for name, config := range configs(after) {
			require.NotSame(t, was[name], config)
		}
	})
}

// TestTheMarkOfAnotherIchorIsReadOnEveryMachine: a machine that isn't approved, or that Git doesn't have any more, is compared with nothing, and a
// signed removal would wipe it all the same.
func TestTheMarkOfAnotherIchorIsReadOnEveryMachine(t *testing.T) {
	bundle := newBundle(t)
	tree := fstest.MapFS{"prod/secrets.age": {}}
	for name, text := range map[string]string{"cluster.yaml": benchCluster("prod", schema.ClusterID(bundle.ClusterID()), 1), "cp-3.yaml": benchMachine("prod", "cp-3", "controlplane", "10.0.0.13", 3)} {
		tree["prod/"+name] = &fstest.MapFile{Data: []byte(text)}
	}
	fleet, problems := schema.Load(tree, []string{"."})
	require.Empty(t, problems)
	m := fleet.MachinesOf("prod")[0]
	rendered, err := NewComparer(fleet, fleet.Cluster("prod"), bundle, nil, "another").Render(m, nil, true)
	require.NoError(t, err)
	comparer := NewComparer(fleet, fleet.Cluster("prod"), bundle, nil, "mine")
	unapproved := *m
	unapproved.Spec.Approved = false
	for name, in := range map[string]*schema.TalosMachine{"not in Git": nil, "not approved": &unapproved} {
		t.Run(name, func(t *testing.T) {
			s := restorable()
			s.in.Mark = "mine"
			o := s.in.Seen["cp-3"].Observation
			o.Active = rendered.Config
			s.in.Seen["cp-3"] = comparer.seen(in, o)
			s.spec = schema.OperationSpec{Node: &schema.NodeOperation{MachineRef: schema.MachineRef{Name: "cp-3", UUID: "uuid-cp-3"}, Action: schema.ActionRemove, Confirm: "cp-3"}}
			why, _ := refuseRemove(s)
			require.Contains(t, why, "cp-3 bears the mark of another Ichor's state")
			o.Active = nil
			s.in.Seen["cp-3"] = comparer.seen(in, o)
			why, _ = refuseRemove(s)
			require.Contains(t, why, "so whether it bears the mark of another Ichor's state is not known")
			o.Active = rendered.Config
			s.in.Seen["cp-3"] = comparer.seen(in, o)
			refusal := s.checkTarget(&statefile.OperationState{Phase: statefile.OperationPending}, s.spec)
			require.NotNil(t, refusal)
			require.Equal(t, refusedTargetNotManaged, refusal.Reason)
		})
	}
}
