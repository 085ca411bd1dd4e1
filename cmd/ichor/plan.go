package main

import (
	"context"
	"errors"
	"io"
	"sync"

	"github.com/spf13/cobra"

	"ichor.maesh.dev/internal/scrub"
	"ichor.maesh.dev/internal/sealed"
	"ichor.maesh.dev/reconcile/plan"
	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/talos"
	"ichor.maesh.dev/validate"
)

// exitChanges is how plan ends with --detailed-exitcode where something would change.
const exitChanges = 3

// planFlags are the command line of plan.
type planFlags struct {
	state    stateFlags
	base     string
	output   string
	live     bool
	detailed bool
	trusted  []string
}

func (a *app) planCommand() *cobra.Command {
	f := &planFlags{}
	cmd := &cobra.Command{
		Use:   "plan [PATH]",
		Short: "Show what the agent would do for a change",
		Long: `Lays what a branch changed over the tip of its base, as validate does, and follows the agent's own decisions from the clusters as
the base has them to the end: which machines change and how (secrets are hidden), what needs a reboot, in which order, who joins
etcd, and what a rule refuses. It touches nothing.

With --live it starts from what the machines run now, and asks each whose config changes for a dry run; with --state also from
what the agent remembers. That needs the age identity of the secrets bundle, and writes nothing anywhere.

It ends with 0, with 1 when the change is refused, and with 2 when there could be no plan. --detailed-exitcode gives 3 when
something would change.`,
		Example: `  ichor plan --base origin/main
  ichor plan --base origin/main -o markdown > comment.md
  ichor plan --live --age-identity key.txt --state s3://ichor/prod`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !f.live {
				a.onlyReads()
			}
			path := "."
			if len(args) == 1 {
				path = args[0]
			}
			return a.plan(cmd.Context(), f, path)
		},
	}
	f.state.add(cmd)
	flags := cmd.Flags()
	flags.StringVar(&f.base, "base", "", "revision that the change is meant for: a branch, a tag or a commit")
	addOutput(flags, &f.output, "text", "markdown", "json")
	flags.BoolVar(&f.live, "live", false, "look at the machines, and ask them for dry runs")
	flags.BoolVar(&f.detailed, "detailed-exitcode", false, "end with 3 when something would change")
	flags.StringSliceVar(&f.trusted, "trust-maintenance-network", nil,
		"network (CIDR) that the agent is started with, in which machines get their first config without a fingerprint (may be repeated)")
	return cmd
}

func (a *app) plan(ctx context.Context, f *planFlags, path string) error {
	if err := checkOutput(f.output, "text", "markdown", "json"); err != nil {
		return err
	}
	write := map[string]func(*plan.Report, io.Writer) error{"text": (*plan.Report).WriteText, "markdown": (*plan.Report).WriteMarkdown,
		"json": (*plan.Report).WriteJSON}[f.output]
	// One that the environment gives is for the commands that need it.
	if f.state.url != "" && !f.live && a.getenv(environmentName("state")) == "" {
		return usageError(errors.New("--state is read only with --live"), "give --live too")
	}
	scrubber := scrub.New()
	identities, err := f.state.load()
	if err != nil {
		return cannot(err, "")
	}
	options := plan.Options{Now: a.clock.Now(), Identities: identities, Scrubber: scrubber}
	if options.TrustedNetworks, err = parseNetworks(f.trusted); err != nil {
		return err
	}
	engine, err := a.engine()
	if err != nil {
		return err
	}
	change, err := a.findChange(path, f.base)
	if err != nil {
		return err
	}
	defer change.close()
	if f.live {
		closeState, look, err := f.look(ctx, a, scrubber)
		if err != nil {
			return err
		}
		defer closeState()
		options.Look = look
	}
	asked := plan.Change{Base: change.old, Proposed: change.proposal.Fleet}
	if change.base != nil {
		asked.BaseCommit = change.base.tip.Commit
	}
	if asked.Findings, err = judge(engine, change.old, change.proposal, identities); err != nil {
		return cannot(err, "this is a fault of ichor itself; please report it")
	}
	report, err := plan.Of(ctx, asked, options)
	if err != nil {
		return cannot(err, "")
	}
	if err := write(report, a.out); err != nil {
		return cannot(err, "")
	}
	a.sayAround(change.place)
	if change.base != nil {
		a.sayBase(change.base)
	}
	return f.end(report)
}

// end is how the command ends after it has printed its plan.
func (f *planFlags) end(report *plan.Report) error {
	switch {
	case report.Refused:
		return errNo
	case report.Changes && f.detailed:
		return &exitError{code: exitChanges}
	}
	return nil
}

// judge gives every finding about a change, as validate does.
func judge(engine *validate.Engine, old *schema.Fleet, proposal validate.Proposal, identities *sealed.Identities) ([]validate.Finding, error) {
	findings := append(validate.FromProblems(proposal.Problems), proposal.Findings...)
	findings = append(findings, engine.Check(old, proposal.Fleet, validate.WithProblems(proposal.Problems))...)
	configs, err := validate.RenderConfigs(proposal.Fleet, identities)
	if err != nil {
		return nil, err
	}
	findings = append(findings, configs.Findings...)
	validate.Sort(findings)
	return findings, nil
}

// look opens what --live reads. Nothing is written to it.
func (f *planFlags) look(ctx context.Context, a *app, scrubber *scrub.Scrubber) (func(), *plan.Look, error) {
	var mu sync.Mutex
	var clients []*talos.Client
	closeClients := func() {
		mu.Lock()
		defer mu.Unlock()
		for _, client := range clients {
			_ = client.Close()
		}
	}
	look := &plan.Look{Nodes: func(bundle *talos.Bundle) plan.Nodes {
		client := talos.NewClient(bundle, talos.ClientOptions{Clock: a.clock, Scrubber: scrubber})
		mu.Lock()
		defer mu.Unlock()
		clients = append(clients, client)
		return plan.TalosNodes(client)
	}}
	if f.state.url == "" {
		return closeClients, look, nil
	}
	store, err := f.state.open(ctx, scrubber, false)
	if err != nil {
		return nil, nil, err
	}
	look.Mark = statefile.LocationHash(store)
	look.State = func(ctx context.Context, cluster string, bundle *talos.Bundle) (*statefile.State, error) {
		sealer, err := sealerOf(bundle)
		if err != nil {
			return nil, err
		}
		handle, err := statefile.OpenCluster(store, statefile.Options{Name: cluster, Sealer: sealer, Clock: a.clock})
		if err != nil {
			return nil, err
		}
		state, err := handle.Load(ctx)
		if errors.Is(err, statefile.ErrNotFound) {
			return nil, nil
		}
		return state, err
	}
	return func() {
		closeClients()
		_ = store.Close()
	}, look, nil
}
