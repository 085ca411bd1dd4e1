package plan

import (
	"cmp"
	"fmt"
	"slices"
	"sort"
	"strings"

	"ichor.maesh.dev/reconcile"
	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/talos"
)

// describe puts a forecast into words. started is what was said of each machine before the change; nil where the machines were
// looked at.
func (c *clusterPlan) describe(in reconcile.Input, f reconcile.Forecast, started map[string]string) {
	c.out.Reason, c.out.Message = f.End.Next.Ready.Reason, c.clean(f.End.Next.Ready.Message)
	did := map[string][]reconcile.ActionKind{}
	for _, step := range f.Steps {
		c.out.Steps = append(c.out.Steps, c.step(step, in))
		switch {
		case step.Action == nil:
			c.out.Etcd.Joins = append(c.out.Etcd.Joins, step.Machine)
			continue
		case step.Refused != "":
			continue
		case step.Action.Kind == reconcile.ActBootstrap:
			c.out.Etcd.Bootstrap = step.Machine
		case step.Action.Kind == reconcile.ActRemoveMember:
			c.out.Etcd.Removed = append(c.out.Etcd.Removed, step.Machine)
		}
		did[step.Machine] = append(did[step.Machine], step.Action.Kind)
	}
	if f.Unfinished {
		c.note("the plan of %s is broken off after %d steps, because it did not come to an end", c.name, len(f.Steps))
	}
	end := in
	end.State, end.Seen = f.End.Next, f.Seen
	c.out.Etcd.Members, _, _, _ = reconcile.Members(end)
	if c.out.Etcd.Members == nil {
		c.out.Etcd.Members = []string{}
	}
	slices.Sort(c.out.Etcd.Members)
	for _, name := range machineNames(in, f) {
		m := c.machine(in, f, name, did[name], started)
		c.out.Machines = append(c.out.Machines, m)
		c.count(m)
	}
	c.reboots(end)
	c.assumptions(in, f)
}

// machineNames are the machines of a plan: control planes first, each by name, those that only the state knows last.
func machineNames(in reconcile.Input, f reconcile.Forecast) []string {
	var names, gone []string
	for name := range f.End.Next.Machines {
		if in.Cluster.Machine(name) == nil {
			gone = append(gone, name)
		} else {
			names = append(names, name)
		}
	}
	sort.Slice(names, func(i, j int) bool {
		a, b := in.Cluster.Machine(names[i]), in.Cluster.Machine(names[j])
		if a.Spec.Role != b.Spec.Role {
			return a.Spec.Role == schema.RoleControlPlane
		}
		return names[i] < names[j]
	})
	slices.Sort(gone)
	return append(names, gone...)
}

// machine is what happens to one machine.
func (c *clusterPlan) machine(in reconcile.Input, f reconcile.Forecast, name string, did []reconcile.ActionKind, started map[string]string) Machine {
	memory := f.End.Next.Machines[name]
	m := Machine{Name: name, Role: memory.Role, Address: memory.Address, Reason: memory.Ready.Reason, Message: c.clean(memory.Ready.Message)}
	declared := in.Cluster.Machine(name)
	if declared == nil {
		m.Outcome = OutcomeUnmanaged
		return m
	}
	seen := in.Seen[name]
	view := seen.Config
	was, known := started[name]
	m.Upgrade = c.clean(view.Upgrade)
	m.Outcome = outcome(did, m.Reason, view)
	if m.Outcome == OutcomeWaiting && known && was == m.Reason && (view.Diff == "" || !declared.Spec.Approved) {
		m.Outcome = OutcomeNothing // as it was before the change
	}
	if seen.Mode == talos.ModeConfigured && c.options.Look == nil {
		switch {
		case view.Problem != "":
			m.Outcome, m.Message = OutcomeUnknown, c.clean(view.Problem)
		case view.Active == "":
			m.Outcome, m.Message = OutcomeUnknown, fmt.Sprintf("the config that %s has at the base can't be rendered, so what changes can't be told", name)
		}
	}
	if seen.Mode == talos.ModeConfigured && view.Active != "" && view.Active != view.Wanted && view.Problem == "" && declared.Spec.Approved {
		m.Diff, m.RebootBecause = c.diff(declared, seen), c.clean(view.Why)
	}
	if (m.Upgrade != "" || m.Diff != "") && m.Outcome == OutcomeNothing {
		m.Outcome = OutcomeWaiting
	}
	return m
}

// outcome is what the calls that are made to a machine, and what is said of it in the end, come to.
func outcome(did []reconcile.ActionKind, reason string, view reconcile.ConfigView) Outcome {
	switch {
	case slices.Contains(did, reconcile.ActFirstConfig):
		return OutcomeFirstConfig
	case slices.Contains(did, reconcile.ActStage), reason == "RebootRequired":
		return OutcomeReboot
	case slices.Contains(did, reconcile.ActTry), slices.Contains(did, reconcile.ActConfirm):
		return OutcomeLive
	case reason == "Ready", reason == "Joining", reason == "WaitingForBootstrap" && view.Diff == "":
		return OutcomeNothing
	}
	return OutcomeWaiting
}

// diff is how the config of a machine changes, with what came from a sealed patch of either side hidden.
func (c *clusterPlan) diff(m *schema.TalosMachine, seen reconcile.Seen) string {
	wanted, err := c.after.compare.Render(m, seen.Active, true)
	if err != nil {
		return ""
	}
	var before *talos.Rendered
	if c.hasBase {
		for _, was := range c.before.cluster.Machines {
			if strings.EqualFold(was.Spec.UUID, m.Spec.UUID) {
				before, _ = c.before.compare.Render(was, nil, true)
			}
		}
	}
	text, err := talos.DiffSince(seen.Active, wanted, before)
	if err != nil {
		return ""
	}
	return c.cleanLines(text)
}

func (c *clusterPlan) count(m Machine) {
	counts := &c.out.Counts
	switch m.Outcome {
	case OutcomeFirstConfig:
		counts.FirstConfig++
	case OutcomeLive:
		counts.Live++
	case OutcomeReboot:
		counts.Reboot++
	case OutcomeWaiting:
		counts.Waiting++
	case OutcomeUnknown:
		counts.Unknown++
	case OutcomeUnmanaged:
		counts.Unmanaged++
	default:
		counts.Nothing++
	}
}

// step is one step in words.
func (c *clusterPlan) step(s reconcile.Step, in reconcile.Input) Step {
	step := Step{Action: string(s.Event), Machine: s.Machine, Refused: c.clean(s.Refused)}
	if s.Action == nil {
		step.Sentence = s.Machine + " joins etcd: as a learner first, and then as a voter"
		return step
	}
	step.Action, step.Via = string(s.Action.Kind), s.Action.Via
	sentence := c.clean(s.Action.Why)
	switch s.Action.Kind {
	case reconcile.ActFirstConfig:
		sentence = fmt.Sprintf("%s gets its first config: Talos is installed, and it boots from its disk", s.Machine)
	case reconcile.ActTry:
		sentence = fmt.Sprintf("%s tries its changed config, which it takes back by itself unless it answers", s.Machine)
	case reconcile.ActConfirm:
		sentence = fmt.Sprintf("%s keeps its changed config", s.Machine)
	case reconcile.ActStage:
		sentence = fmt.Sprintf("%s stores its changed config for its next boot (%s can't change while it runs)", s.Machine,
			cmp.Or(c.clean(in.Seen[s.Machine].Config.Why), "it"))
	case reconcile.ActBootstrap:
		sentence = fmt.Sprintf("etcd is bootstrapped on %s: %s", s.Machine, c.clean(s.Action.Why))
	case reconcile.ActReset:
		sentence = fmt.Sprintf("EPHEMERAL of %s is wiped and it reboots: %s", s.Machine, c.clean(s.Action.Why))
	case reconcile.ActCordon:
		sentence = fmt.Sprintf("%s takes no more pods", s.Machine)
	case reconcile.ActEvict:
		sentence = fmt.Sprintf("the pods on %s are moved away, as far as their budgets let them go, in at most %s", s.Machine, in.Cluster.Object.Spec.Rollout.Drain.Limit())
	case reconcile.ActUncordon:
		sentence = fmt.Sprintf("%s takes pods again", s.Machine)
	case reconcile.ActReboot:
		sentence = fmt.Sprintf("%s reboots: %s", s.Machine, c.clean(s.Action.Why))
	case reconcile.ActRemoveMember:
		sentence = fmt.Sprintf("the etcd member of %s is removed over %s: %s", s.Machine, s.Action.Via, c.clean(s.Action.Why))
	}
	step.Sentence = sentence
	return step
}

// reboots lists the machines that reboot, in the order of the steps, and those that have to.
func (c *clusterPlan) reboots(end reconcile.Input) {
	rollout := c.after.cluster.Object.Spec.Rollout
	drain := rollout.Drain.Limit()
	for _, step := range c.out.Steps {
		if kind := reconcile.ActionKind(step.Action); step.Refused == "" && (kind == reconcile.ActReboot || kind == reconcile.ActReset) {
			c.out.Reboots = append(c.out.Reboots, Reboot{Machine: step.Machine, When: "now", Because: step.Sentence, Drain: drain.String(),
				Message: c.etcdMeanwhile(end, step.Machine)})
		}
	}
	policy := rollout.Reboots
	if policy == "" {
		policy = schema.RebootsAutomatic
	}
	for _, m := range c.out.Machines {
		if m.Reason != "RebootRequired" {
			continue
		}
		message := fmt.Sprintf("it waits (rollout.reboots is %s): %s", policy, m.Message)
		c.out.Reboots = append(c.out.Reboots, Reboot{Machine: m.Name, When: "waiting", Because: m.RebootBecause, Drain: drain.String(),
			Message: joined("; ", message, c.etcdMeanwhile(end, m.Name))})
	}
}

// etcdMeanwhile says what a reboot of a machine means for etcd.
func (c *clusterPlan) etcdMeanwhile(end reconcile.Input, name string) string {
	m := end.Cluster.Machine(name)
	if m == nil || m.Spec.Role != schema.RoleControlPlane || !slices.Contains(c.out.Etcd.Members, name) {
		return ""
	}
	_, voters, healthy, need := reconcile.Members(end)
	switch {
	case voters == 1:
		return "the Kubernetes API goes away until it is back, since it is the only etcd member"
	case healthy-1 < need:
		return fmt.Sprintf("etcd would have %d healthy voters of %d and needs %d, so its reboot is refused", healthy-1, voters, need)
	}
	return fmt.Sprintf("etcd has %d of %d members meanwhile and needs %d", healthy-1, voters, need)
}

// assumptions names what the plan takes for granted.
func (c *clusterPlan) assumptions(in reconcile.Input, f reconcile.Forecast) {
	first, unproven := 0, []string{}
	for _, m := range c.out.Machines {
		if m.Outcome != OutcomeFirstConfig {
			continue
		}
		first++
		if declared := in.Cluster.Machine(m.Name); declared.Spec.Fingerprint == "" {
			unproven = append(unproven, m.Name)
		}
	}
	if c.options.Look != nil {
		return
	}
	if first > 0 {
		c.note("machines that are new here are taken to wait in maintenance mode, with their install disk there and empty")
	}
	if len(unproven) > 0 && c.options.TrustedNetworks == nil {
		c.note("no spec.fingerprint stands on %s: first configs are sent only where the agent is started with --trust-maintenance-network for "+
			"their network", list(unproven))
	}
	if c.out.Etcd.Bootstrap != "" && len(in.Cluster.Backups) > 0 {
		c.note("etcd is bootstrapped only where the destinations of the backups hold no snapshot: one would prove a past")
	}
	c.overCap()
}

// overCap says what Git alone can't tell of a base with more control planes than places.
func (c *clusterPlan) overCap() {
	if !c.hasBase {
		return
	}
	approved := 0
	for _, m := range c.before.cluster.Machines {
		if m.Spec.Approved && m.Spec.Role == schema.RoleControlPlane {
			approved++
		}
	}
	if count := c.before.cluster.Object.Spec.ControlPlane.Count; approved > count+1 {
		c.note("%d control planes are approved at the base and count is %d: each is taken for an etcd member, and not for one that is held; "+
			"--live tells", approved, count)
	}
}

// changes says whether anything would happen to the cluster.
func (c *clusterPlan) changes() bool {
	n := c.out.Counts
	return len(c.out.Steps) > 0 || n.FirstConfig+n.Live+n.Reboot+n.Waiting+n.Unknown+n.Unmanaged > 0 || len(c.out.Backups) > 0 ||
		len(c.out.Operations) > 0
}

func joined(separator string, parts ...string) string {
	return strings.Join(slices.DeleteFunc(parts, func(s string) bool { return s == "" }), separator)
}

// list names a few and counts the rest.
func list(names []string) string {
	const most = 8
	if len(names) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
	}
	return strings.Join(names, ", ")
}
