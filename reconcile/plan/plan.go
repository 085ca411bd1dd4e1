package plan

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"ichor.maesh.dev/internal/printable"
	"ichor.maesh.dev/internal/scrub"
	"ichor.maesh.dev/internal/sealed"
	"ichor.maesh.dev/reconcile"
	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/talos"
	"ichor.maesh.dev/validate"
)

// Change is what is planned for.
type Change struct {
	// Base is what the clusters stand at, nil when that isn't known: then they are taken for new.
	Base       *schema.Fleet
	BaseCommit string
	Proposed   *schema.Fleet
	Findings   []validate.Finding
}

// Options are how a plan is made.
type Options struct {
	Now        time.Time
	Identities *sealed.Identities
	// Scrubber learns what must not be shown.
	Scrubber *scrub.Scrubber
	// TrustedNetworks are those that the agent is started with; nil where that isn't known.
	TrustedNetworks []netip.Prefix
	// Look, if set, makes the plan from what the machines run.
	Look *Look
}

// Look is how the machines of a cluster are looked at, and what is remembered of them. Nothing is written.
type Look struct {
	Nodes func(bundle *talos.Bundle) Nodes
	// State gives what is remembered of a cluster, nil when there is nothing; nil where no state was given. Mark is the state's.
	State func(ctx context.Context, cluster string, bundle *talos.Bundle) (*statefile.State, error)
	Mark  string
}

// Nodes reaches the machines of one cluster: to look, and for dry runs.
type Nodes interface {
	Observe(ctx context.Context, target talos.Target) talos.Observation
	// DryRun asks the machine what it would say to a config. It is sent only where the machine on that connection has this UUID and
	// runs what it stores.
	DryRun(ctx context.Context, target talos.Target, uuid string, config []byte, staged bool) error
	Close() error
}

// unknownMark stands in configs for the hash of the state's location, which isn't known without a state.
const unknownMark = "hash-of-the-state"

// Of makes the plan of a change.
func Of(ctx context.Context, change Change, options Options) (*Report, error) {
	if options.Scrubber == nil {
		options.Scrubber = scrub.New()
	}
	p := &planner{change: change, options: options, stopped: reconcile.StoppedBy(change.Findings),
		report: &Report{Base: change.BaseCommit, Live: options.Look != nil, Findings: change.Findings, Notes: []string{}, Clusters: []Cluster{}}}
	if p.report.Findings == nil {
		p.report.Findings = []validate.Finding{}
	}
	for _, name := range p.clusters() {
		cluster, err := p.cluster(ctx, name)
		if err != nil {
			return nil, options.Scrubber.Error(err)
		}
		p.report.Clusters = append(p.report.Clusters, cluster)
	}
	p.conclude()
	return p.report, nil
}

type planner struct {
	change  Change
	options Options
	stopped validate.Stopped
	report  *Report
	standIn *talos.Bundle
}

// clusters are the clusters of both sides, in the order of the proposal.
func (p *planner) clusters() []string {
	var names []string
	for _, fleet := range []*schema.Fleet{p.change.Proposed, p.change.Base} {
		if fleet == nil {
			continue
		}
		for _, c := range fleet.Clusters {
			if !slices.Contains(names, c.Metadata.Name) {
				names = append(names, c.Metadata.Name)
			}
		}
	}
	return names
}

func (p *planner) cluster(ctx context.Context, name string) (Cluster, error) {
	c := &clusterPlan{planner: p, name: name, out: Cluster{Name: name, Change: "same", Refused: []string{}, Steps: []Step{}, Machines: []Machine{},
		Reboots: []Reboot{}, Backups: []Document{}, Operations: []Operation{}, Notes: []string{},
		Etcd: Etcd{Joins: []string{}, Removed: []string{}, Members: []string{}}}}
	var before *schema.TalosCluster
	if p.change.Base != nil {
		before = p.change.Base.Cluster(name)
	}
	after := p.change.Proposed.Cluster(name)
	c.refusals()
	switch {
	case len(c.out.Refused) > 0:
		c.out.Reason, c.out.Message = "RevisionRefused", "the agent would stay on the revision before, and nothing would be done for this change"
	case after == nil:
		c.removed()
	default:
		if before == nil && p.options.Look == nil {
			c.out.Change = "new"
		}
		if err := c.plan(ctx, before); err != nil {
			return Cluster{}, err
		}
	}
	c.documents()
	if c.out.Change == "same" && c.changes() {
		c.out.Change = "changed"
	}
	return c.out, nil
}

// clusterPlan is the plan of one cluster in the making.
type clusterPlan struct {
	*planner
	name string
	out  Cluster
	// before and after are the two sides, without the sealed patches that can't be opened here.
	before, after side
	hasBase       bool
	// bundle is the one that the change has, and nodes reach the machines where they are looked at.
	bundle *talos.Bundle
	nodes  Nodes
}

// side is a cluster in one of the two fleets, with what renders its configs.
type side struct {
	cluster reconcile.Cluster
	compare *reconcile.Comparer
	// closed are the sealed patches of each machine that can't be opened here: their names and digests.
	closed map[string][]string
}

func (c *clusterPlan) refusals() {
	for _, f := range c.stopped.Of(c.name) {
		c.out.Refused = append(c.out.Refused, c.options.Scrubber.Text(f.Rule+": "+f.Message))
	}
}

// removed is a cluster that is taken out of Git.
func (c *clusterPlan) removed() {
	c.out.Change, c.out.Reason = "removed", "NoCluster"
	c.out.Message = "the TalosCluster is no longer in Git: nothing is done to its machines, which run on as they are"
	for _, m := range c.change.Base.MachinesOf(c.name) {
		c.out.Machines = append(c.out.Machines, Machine{Name: m.Metadata.Name, Role: string(m.Spec.Role), Address: m.Spec.Endpoint,
			Outcome: OutcomeUnmanaged, Reason: "NoCluster", Message: m.Metadata.Name + " runs on as it is"})
	}
	c.out.Counts.Unmanaged = len(c.out.Machines)
}

// plan puts together what the agent would look at, and follows its decisions.
func (c *clusterPlan) plan(ctx context.Context, before *schema.TalosCluster) error {
	c.hasBase = before != nil
	oldBundle, newBundle, real, blocked, err := c.bundles(before)
	if err != nil || blocked {
		return err
	}
	c.bundle = newBundle
	mark := unknownMark
	if look := c.options.Look; look != nil && look.Mark != "" {
		mark = look.Mark
	}
	c.after = c.side(c.change.Proposed, c.change.BaseCommit+"+", newBundle, mark)
	if c.hasBase {
		c.before = c.side(c.change.Base, c.change.BaseCommit, oldBundle, mark)
	}
	in := reconcile.Input{Cluster: c.after.cluster, Now: c.options.Now, Timing: reconcile.DefaultTiming(), Mark: mark,
		TrustedNetworks: c.options.TrustedNetworks, Backups: &reconcile.Listing{}}
	var started map[string]string
	if c.options.Look != nil {
		if !real {
			return fmt.Errorf("the machines of %s can't be looked at: its secrets bundle can't be opened; give --age-identity, or leave --live out", c.name)
		}
		closeNodes, err := c.look(ctx, &in, newBundle)
		if err != nil {
			return err
		}
		defer closeNodes()
	} else {
		started = c.imagine(&in)
	}
	forecast := reconcile.Foretell(in)
	c.options.Scrubber.Add(c.options.Identities.Values()...)
	c.describe(in, forecast, started)
	return c.dryRuns(ctx, in)
}

// imagine is the cluster as it stands at the base, every machine that is new or not approved there waiting in maintenance mode. It
// gives what was said of each machine before the change.
func (c *clusterPlan) imagine(in *reconcile.Input) map[string]string {
	started := map[string]string{}
	in.State, in.Seen = &statefile.State{SchemaVersion: statefile.SchemaVersion,
		Writer: statefile.Writer{ID: "plan", Epoch: 1, Since: in.Now}}, map[string]reconcile.Seen{}
	stood := map[string]reconcile.Seen{} // by UUID
	if c.hasBase {
		configs := map[string]reconcile.ConfigView{}
		for _, m := range c.before.cluster.Machines {
			configs[m.Metadata.Name] = c.before.compare.View(m, waiting(m))
		}
		base := *in
		base.Cluster = c.before.cluster
		settled := reconcile.Settled(base, configs)
		in.State = settled.State
		for _, m := range c.before.cluster.Machines {
			name := m.Metadata.Name
			seen := settled.Seen[name]
			if rendered, err := c.before.compare.Render(m, nil, true); err == nil && seen.Mode == talos.ModeConfigured {
				seen.Active, seen.Persistent = rendered.Config, rendered.Config
			}
			stood[strings.ToLower(m.Spec.UUID)] = seen
			if c.after.cluster.Machine(name) == nil {
				in.Seen[name] = seen
			}
			started[name] = c.standing(m, settled.State.Machines[name])
		}
	}
	for _, m := range c.after.cluster.Machines {
		name := m.Metadata.Name
		seen, known := stood[strings.ToLower(m.Spec.UUID)]
		if !known || seen.Mode != talos.ModeConfigured {
			in.Seen[name] = reconcile.Waiting(m, c.after.compare.View(m, waiting(m)))
			continue
		}
		seen.Config = c.after.compare.View(m, seen.Observation)
		if why := c.closedDiffer(name, m.Spec.UUID); why != "" {
			seen.Config.Problem = why
		}
		in.Seen[name] = seen
	}
	reconcile.Approve(in.State, in.Cluster, in.Now)
	if in.TrustedNetworks == nil {
		in.TrustedNetworks = []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}
	}
	return started
}

// standing is what is said of a machine at the base: pauses count there too.
func (c *clusterPlan) standing(m *schema.TalosMachine, memory *statefile.MachineState) string {
	if _, paused := m.Metadata.Annotations[schema.AnnotationPaused]; paused {
		return "Paused"
	}
	if _, paused := c.before.cluster.Object.Metadata.Annotations[schema.AnnotationPaused]; paused {
		return "Paused"
	}
	if memory == nil {
		return ""
	}
	return memory.Ready.Reason
}

func waiting(m *schema.TalosMachine) talos.Observation {
	return talos.Observation{Mode: talos.ModeMaintenance, UUID: m.Spec.UUID}
}

// side makes one side, leaving out the sealed patches that can't be opened here unless the machines are looked at.
func (c *clusterPlan) side(fleet *schema.Fleet, commit string, bundle *talos.Bundle, mark string) side {
	s := side{cluster: reconcile.ClusterOf(fleet, c.name, commit), closed: map[string][]string{}}
	if c.options.Look == nil {
		c.leaveOutSealed(fleet, &s)
	}
	s.compare = reconcile.NewComparer(fleet, s.cluster.Object, bundle, c.options.Identities, mark)
	return s
}

// note adds a sentence to the cluster once.
func (c *clusterPlan) note(format string, args ...any) {
	text := c.options.Scrubber.Text(fmt.Sprintf(format, args...))
	if !slices.Contains(c.out.Notes, text) {
		c.out.Notes = append(c.out.Notes, text)
	}
}

// bundles opens the secrets bundle of both sides. Where it can't be opened, secrets that are made up stand for it on both sides, so
// that nothing differs by them. blocked says that the agent would do nothing because of it.
func (c *clusterPlan) bundles(before *schema.TalosCluster) (old, proposed *talos.Bundle, real, blocked bool, err error) {
	proposed, err = reconcile.OpenBundle(c.change.Proposed, c.change.Proposed.Cluster(c.name), c.options.Identities)
	closed := errors.Is(err, sealed.ErrNoIdentity) || errors.Is(err, sealed.ErrOtherRecipients)
	switch {
	case closed:
		if c.standIn == nil {
			if c.standIn, err = talos.GenerateBundle(validate.StandInContract); err != nil {
				return nil, nil, false, false, fmt.Errorf("making secrets to render configs with: %w", err)
			}
		}
		c.note("the secrets bundle can't be opened here, so configs are rendered with made-up secrets on both sides; the diff shows no secret either way")
		if c.bundleChanged(before) {
			c.note("the file of the secrets bundle changed: whether the bundle in it did can't be told from here (give --age-identity); the agent refuses another cluster's")
		}
		return c.standIn, c.standIn, false, false, nil
	case err != nil:
		c.refuse("secrets", "the agent could do nothing: "+err.Error())
		return nil, nil, false, true, nil
	}
	c.options.Scrubber.Add(proposed.Scalars()...)
	if before == nil {
		return proposed, proposed, true, false, nil
	}
	old, err = reconcile.OpenBundle(c.change.Base, before, c.options.Identities)
	if err != nil {
		if c.bundleChanged(before) {
			c.note("the secrets bundle of the base can't be opened here, so the one of this change stands for both")
		}
		return proposed, proposed, true, false, nil
	}
	c.options.Scrubber.Add(old.Scalars()...)
	if old.Fingerprint() != proposed.Fingerprint() {
		c.refuse("WrongBundle", "the secrets bundle is another one than before: cluster ID and cluster secret must stay, or every backup would be "+
			"orphaned; put the former one back")
		return nil, nil, false, true, nil
	}
	return old, proposed, true, false, nil
}

func (c *clusterPlan) refuse(reason, message string) {
	c.out.Reason, c.out.Message = "RevisionRefused", "nothing would be done for this change"
	c.out.Refused = append(c.out.Refused, c.options.Scrubber.Text(reason+": "+message))
}

// bundleChanged says whether the file that holds the bundle is another one than at the base.
func (c *clusterPlan) bundleChanged(before *schema.TalosCluster) bool {
	if before == nil {
		return false
	}
	after := c.change.Proposed.Cluster(c.name)
	_, was, errBefore := c.change.Base.ReadRef(before.Source.File, before.Spec.Secrets)
	_, is, errAfter := c.change.Proposed.ReadRef(after.Source.File, after.Spec.Secrets)
	return errBefore != nil || errAfter != nil || string(was) != string(is)
}

// clean makes a text from elsewhere fit to be shown.
func (p *planner) clean(text string) string { return p.options.Scrubber.Text(text) }

// cleanLines is clean for texts of several lines.
func (p *planner) cleanLines(text string) string {
	return p.options.Scrubber.String(printable.Lines(text))
}
