package plan

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"ichor.maesh.dev/reconcile"
	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/talos"
)

// look makes the input of what the machines run now and of what is remembered. close ends the connections.
func (c *clusterPlan) look(ctx context.Context, in *reconcile.Input, bundle *talos.Bundle) (closeNodes func(), err error) {
	look := c.options.Look
	known := false
	if look.State != nil {
		if in.State, err = look.State(ctx, c.name, bundle); err != nil {
			return nil, fmt.Errorf("the state of %s can't be read: %w", c.name, err)
		}
		known = in.State != nil
	}
	if !known {
		in.State = &statefile.State{SchemaVersion: statefile.SchemaVersion, Writer: statefile.Writer{ID: "plan", Epoch: 1, Since: in.Now}}
	}
	c.nodes = look.Nodes(bundle)
	seen := reconcile.Observe(ctx, c.nodes, reconcile.Targets(in.Cluster, in.State), in.Timing)
	if err := ctx.Err(); err != nil {
		c.nodes.Close()
		return nil, err
	}
	if !known {
		c.remember(in, seen)
	}
	in.Now = c.options.Now
	in.Seen = map[string]reconcile.Seen{}
	for name, o := range seen {
		s := reconcile.Seen{Observation: o}
		if m := in.Cluster.Machine(name); m != nil && o.Mode != talos.ModeUnknown && m.Spec.Approved {
			s.Config = c.after.compare.View(m, o)
		}
		in.Seen[name] = s
	}
	reconcile.Approve(in.State, in.Cluster, in.Now)
	return func() { c.nodes.Close() }, nil
}

// remember puts into an empty state what can be told from the machines themselves: those that bear an Ichor's mark are taken for
// this one's.
func (c *clusterPlan) remember(in *reconcile.Input, seen map[string]talos.Observation) {
	in.State.Machines = map[string]*statefile.MachineState{}
	marks := map[string]bool{}
	for name, o := range seen {
		mark := talos.StateAnnotationOf(o.Active)
		if o.Mode != talos.ModeConfigured || mark == "" {
			continue
		}
		marks[mark] = true
		in.State.Machines[name] = &statefile.MachineState{Managed: true, ConfigDigest: o.ActiveDigest, PersistentDigest: o.PersistentDigest}
		in.State.Origin = statefile.OriginNew
	}
	switch {
	case c.options.Look.State != nil:
		c.note("the state holds nothing of %s yet", c.name)
		return
	case len(marks) == 0:
		c.note("without --state it isn't known what the agent remembers of %s", c.name)
		return
	}
	found := slices.Sorted(maps.Keys(marks))
	in.Mark = found[0]
	c.after.compare = reconcile.NewComparer(c.change.Proposed, c.after.cluster.Object, c.bundle, c.options.Identities, in.Mark)
	c.note("without --state it isn't known what the agent remembers of %s: machines that bear the mark of the state %s are taken for its own", c.name, in.Mark)
}

// dryRuns puts what the machines showed into the plan, and asks those whose config changes what they would say to it.
func (c *clusterPlan) dryRuns(ctx context.Context, in reconcile.Input) error {
	if c.options.Look == nil {
		return nil
	}
	var group sync.WaitGroup
	for n := range c.out.Machines {
		m := &c.out.Machines[n]
		s, looked := in.Seen[m.Name]
		if !looked {
			continue
		}
		m.Live = &Live{Mode: cmp.Or(string(s.Mode), "unreachable"), Stage: s.Stage, Ready: s.Ready, TalosVersion: c.clean(s.TalosVersion), Problem: c.clean(s.Problem)}
		if m.Outcome != OutcomeLive && m.Outcome != OutcomeReboot && (m.Outcome != OutcomeWaiting || m.Diff == "") {
			m.Live.DryRun = "not-sent"
			continue
		}
		if why := notAsked(in, m.Name, s); why != "" {
			m.Live.DryRun, m.Live.DryRunMessage = "not-sent", c.clean(why)
			continue
		}
		group.Go(func() { c.dryRun(ctx, in, m, s) })
	}
	group.Wait()
	return ctx.Err()
}

// notAsked says why a machine gets no dry run.
func notAsked(in reconcile.Input, name string, s reconcile.Seen) string {
	view := s.Config
	switch {
	case s.Mode != talos.ModeConfigured:
		return name + " is in maintenance mode, where nothing authenticates it"
	case view.Owner != "" && view.Owner != in.Mark:
		return fmt.Sprintf("%s bears the mark of another Ichor's state (%s)", name, view.Owner)
	case view.Persistent != "" && view.Persistent != view.Active:
		return fmt.Sprintf("%s runs another config than it stores: a dry run could take back what is tried", name)
	case view.Problem != "" || view.Wanted == "":
		return "its config can't be rendered"
	}
	return ""
}

func (c *clusterPlan) dryRun(ctx context.Context, in reconcile.Input, m *Machine, s reconcile.Seen) {
	declared := in.Cluster.Machine(m.Name)
	rendered, err := c.after.compare.Render(declared, s.Active, true)
	if err == nil {
		bounded, cancel := context.WithTimeout(ctx, in.Timing.Call)
		defer cancel()
		err = c.nodes.DryRun(bounded, talos.Target{Name: m.Name, Endpoint: declared.Spec.Endpoint}, declared.Spec.UUID, rendered.Bytes, s.Config.NeedsReboot)
	}
	switch {
	case err == nil:
		m.Live.DryRun = "ok"
		return
	case errors.Is(err, talos.ErrNotSent):
		m.Live.DryRun = "not-sent"
	case talos.Classify(err) == talos.OutcomeRefused:
		m.Live.DryRun = "refused"
	default:
		m.Live.DryRun = "unknown"
	}
	m.Live.DryRunMessage = c.clean(err.Error())
}
