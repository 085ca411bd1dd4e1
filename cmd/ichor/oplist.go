package main

import (
	"context"
	"errors"
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"ichor.maesh.dev/gitsource"
	"ichor.maesh.dev/internal/scrub"
	"ichor.maesh.dev/reconcile"
	"ichor.maesh.dev/reconcile/runop"
	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/statefile"
)

// opLookFlags say where operations are looked for.
type opLookFlags struct {
	desk    deskFlags
	state   stateFlags
	cluster string
	output  string
}

func (f *opLookFlags) add(cmd *cobra.Command) {
	f.desk.add(cmd)
	f.state.add(cmd)
	flags := cmd.Flags()
	flags.StringVar(&f.cluster, "cluster", "", "the cluster (default: all)")
	addOutput(flags, &f.output, "text", "json", "yaml")
}

// opListFlags are the command line of op list.
type opListFlags struct {
	opLookFlags
	all bool
}

// opList is the answer of op list in JSON.
type opList struct {
	Operations []runop.Entry `json:"operations"`
}

func (a *app) opListCommand() *cobra.Command {
	f := &opListFlags{}
	cmd := &cobra.Command{
		Use:   "list",
		Short: "Show the operations that the state knows, and those in Git that it doesn't yet",
		Long: `Lists the operations of the state (--state) in the order in which agents first saw them, and after them the files in the
repository that no agent has taken in. One of both is enough.`,
		Example: "  ichor op list --state s3://ichor/prod",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return a.opList(cmd.Context(), f) },
	}
	f.add(cmd)
	cmd.Flags().BoolVar(&f.all, "all", false, "also files in Git whose time is over and that the state doesn't know")
	return cmd
}

// opLook is what was found of operations.
type opLook struct {
	desk     *desk
	store    statefile.Store
	scrubber *scrub.Scrubber
	clusters []reconcile.ClusterStatus
}

func (l *opLook) close() {
	if l.desk != nil {
		l.desk.close()
	}
	if l.store != nil {
		_ = l.store.Close()
	}
}

// fleet is nil where there is no repository here.
func (l *opLook) fleet() *schema.Fleet {
	if l.desk == nil {
		return nil
	}
	return l.desk.fleet
}

// sealer makes what a cluster's state is checked with.
func (l *opLook) sealer(f *stateFlags) func(string) (*statefile.Sealer, error) {
	return func(name string) (*statefile.Sealer, error) {
		if l.desk == nil || l.desk.fleet.Cluster(name) == nil {
			return nil, fmt.Errorf("there is no TalosCluster %s here; give --repo CHECKOUT", name)
		}
		return f.sealerFor(l.desk.fleet, l.desk.fleet.Cluster(name))
	}
}

// lookAtOperations reads the repository, where there is one, and the state, where it is named.
func (a *app) lookAtOperations(ctx context.Context, f *opLookFlags) (*opLook, error) {
	if err := checkOutput(f.output, "text", "json", "yaml"); err != nil {
		return nil, err
	}
	l := &opLook{scrubber: scrub.New()}
	var err error
	l.desk, err = a.openDesk(ctx, &f.desk, false)
	if err != nil && !(errors.Is(err, gitsource.ErrNoCheckout) && f.state.url != "") {
		return nil, err
	}
	if f.state.url == "" {
		fmt.Fprintln(a.err, "the state was not read, so only files in Git are known; --state URL shows what became of them")
		return l, nil
	}
	if err := l.readState(ctx, f); err != nil {
		l.close()
		return nil, err
	}
	return l, nil
}

func (l *opLook) readState(ctx context.Context, f *opLookFlags) (err error) {
	if l.store, err = f.state.open(ctx, l.scrubber, false); err != nil {
		return err
	}
	names, err := statefile.Clusters(ctx, l.store)
	if err != nil {
		return cannot(l.scrubber.Error(err), "")
	}
	reader := reconcile.StatusReader{Store: l.store, Sealer: l.sealer(&f.state)}
	for _, name := range names {
		if f.cluster != "" && name != f.cluster {
			continue
		}
		status, err := reader.Read(ctx, []string{name})
		if err != nil {
			return cannot(l.scrubber.Error(err), "")
		}
		l.clusters = append(l.clusters, status.Clusters...)
	}
	return nil
}

// entries are the operations of the cluster that is asked for, or of all.
func (l *opLook) entries(a *app, f *opLookFlags, all bool) []runop.Entry {
	found := []runop.Entry{}
	for _, entry := range runop.List(l.fleet(), l.clusters, a.clock.Now(), all) {
		if f.cluster == "" || entry.Cluster == f.cluster {
			found = append(found, entry)
		}
	}
	return found
}

func (a *app) opList(ctx context.Context, f *opListFlags) error {
	l, err := a.lookAtOperations(ctx, &f.opLookFlags)
	if err != nil {
		return err
	}
	defer l.close()
	entries := l.entries(a, &f.opLookFlags, f.all)
	if f.output != "text" {
		return a.encode(f.output, opList{entries})
	}
	if len(entries) == 0 {
		fmt.Fprintln(a.err, "there are no operations")
		return nil
	}
	table := tabwriter.NewWriter(a.out, 0, 4, 2, ' ', 0)
	fmt.Fprintln(table, "CLUSTER\tOPERATION\tKIND\tTARGET\tPHASE\tSTEP\tSINCE")
	for _, e := range entries {
		kind, phase, step, since := e.Kind, e.Phase, e.Step, e.FirstSeen
		if e.Action != "" {
			kind += "/" + e.Action
		}
		if !e.Seen {
			phase, since = "(not seen)", "-"
		}
		switch {
		case e.FinishedAt != "":
			step, since = "", e.FinishedAt
		case len(e.Steps) > 0:
			since = e.Steps[len(e.Steps)-1].At
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", a.clean(e.Cluster), a.clean(e.Name), a.clean(kind), a.clean(e.Target), a.clean(phase), a.clean(dash(step)), a.clean(since))
	}
	return table.Flush()
}

// encode prints an answer as JSON or YAML.
func (a *app) encode(output string, answer any) error {
	if output == "json" {
		return reconcile.WriteJSON(a.out, answer)
	}
	text, err := yaml.Marshal(answer)
	if err == nil {
		_, err = a.out.Write(text)
	}
	return err
}
