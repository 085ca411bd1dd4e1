package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"ichor.maesh.dev/internal/printable"
	"ichor.maesh.dev/internal/scrub"
	"ichor.maesh.dev/internal/sealed"
	"ichor.maesh.dev/reconcile"
	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/talos"
)

// statusFlags are the command line of status.
type statusFlags struct {
	state  stateFlags
	output string
	follow bool
	fleet  string
}

func (a *app) statusCommand() *cobra.Command {
	f := &statusFlags{}
	cmd := &cobra.Command{
		Use:   "status --state URL [CLUSTER...]",
		Short: "Show how the clusters stand and what each thing waits for",
		Long: `Reads the state and prints it. No agent is needed, and nothing is written.

With --age-identity and a checkout of the fleet repository (--fleet, or the folder it is started in) the state's seal
is checked; without, the status says "seal not checked". It ends with 0 when all clusters are Ready, and 1 when not.`,
		Example: "  ichor status --state s3://ichor/prod\n  ichor status --state s3://ichor/prod prod --follow",
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkOutput(f.output, "table", "json", "yaml"); err != nil {
				return err
			}
			if f.follow {
				return a.followStatus(cmd.Context(), f, args)
			}
			return a.showStatus(cmd.Context(), f, args)
		},
	}
	f.state.add(cmd)
	flags := cmd.Flags()
	addOutput(flags, &f.output, "table", "json", "yaml")
	flags.BoolVarP(&f.follow, "follow", "f", false, "print again whenever something changes, until Ctrl-C")
	flags.StringVar(&f.fleet, "fleet", ".", "checkout of the fleet repository, for the secrets bundle that the seal is checked with")
	return cmd
}

func (a *app) showStatus(ctx context.Context, f *statusFlags, clusters []string) error {
	status, err := f.read(ctx, clusters)
	if err != nil {
		return err
	}
	if err := a.printStatus(f.output, status); err != nil {
		return err
	}
	for _, c := range status.Clusters {
		if !c.Ready {
			return errNo
		}
	}
	return nil
}

// followStatus prints the status whenever it differs from what was printed last.
func (a *app) followStatus(ctx context.Context, f *statusFlags, clusters []string) error {
	ticker := a.clock.NewTicker(2 * time.Second)
	defer ticker.Stop()
	last, failed := "", ""
	for {
		status, err := f.read(ctx, clusters)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && err.Error() != failed:
			failed = err.Error()
			fmt.Fprintf(a.err, "ichor: %s\n", a.clean(failed))
		case err == nil:
			text, _ := json.Marshal(status)
			if string(text) != last {
				if last != "" && f.output == "table" {
					fmt.Fprintln(a.out)
				}
				if err := a.printStatus(f.output, status); err != nil {
					return err
				}
			}
			last, failed = string(text), ""
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C():
		}
	}
}

// read reads the state of the named clusters, or of all.
func (f *statusFlags) read(ctx context.Context, clusters []string) (*reconcile.Status, error) {
	scrubber := scrub.New()
	store, err := f.state.open(ctx, scrubber, false)
	if err != nil {
		return nil, err
	}
	defer store.Close()
	if len(clusters) == 0 {
		if clusters, err = statefile.Clusters(ctx, store); err != nil {
			return nil, cannot(scrubber.Error(err), "")
		}
	}
	if len(clusters) == 0 {
		return nil, answerNo(errors.New("the state holds no cluster"), "start ichor agent on it first")
	}
	status, err := reconcile.StatusReader{Store: store, Sealer: f.sealer}.Read(ctx, clusters)
	if err != nil {
		return nil, cannot(scrubber.Error(err), "")
	}
	return status, nil
}

// sealer makes the sealer of a cluster from a checkout and an identity.
func (f *statusFlags) sealer(name string) (*statefile.Sealer, error) {
	if len(f.state.identities) == 0 {
		return nil, errors.New("no --age-identity was given")
	}
	identities, err := f.state.load()
	if err != nil {
		return nil, err
	}
	bundle, err := bundleFromCheckout(f.fleet, name, identities)
	if err != nil {
		return nil, err
	}
	return sealerOf(bundle)
}

// bundleFromCheckout opens the secrets bundle of a cluster from a checkout of the fleet repository.
func bundleFromCheckout(folder, name string, identities *sealed.Identities) (*talos.Bundle, error) {
	fleet, _ := loadTree(folder)
	cluster := fleet.Cluster(name)
	if cluster == nil {
		return nil, fmt.Errorf("%s holds no TalosCluster %s; give --fleet CHECKOUT", folder, name)
	}
	file, data, err := fleet.ReadRef(cluster.Source.File, cluster.Spec.Secrets)
	if err != nil {
		return nil, err
	}
	plain, _, err := identities.Open(file, data)
	if err != nil {
		return nil, err
	}
	return talos.LoadBundle(plain)
}

func (a *app) printStatus(output string, status *reconcile.Status) error {
	switch output {
	case "json":
		return reconcile.WriteJSON(a.out, status)
	case "yaml":
		text, err := yaml.Marshal(status)
		if err != nil {
			return err
		}
		_, err = a.out.Write(text)
		return err
	}
	for n, c := range status.Clusters {
		if n > 0 {
			fmt.Fprintln(a.out)
		}
		a.printCluster(c)
	}
	return nil
}

// printCluster prints one cluster: how it stands, its revision, and a line a machine.
func (a *app) printCluster(c reconcile.ClusterStatus) {
	fmt.Fprintf(a.out, "cluster %s: %s\n", a.clean(c.Name), a.clean(c.Reason))
	fmt.Fprintf(a.out, "  %s\n", a.clean(c.Message))
	fmt.Fprintf(a.out, "  revision %s applied", shortCommit(c.Revision.Applied))
	if c.Revision.Observed != c.Revision.Applied {
		fmt.Fprintf(a.out, ", %s is the newest", shortCommit(c.Revision.Observed))
	}
	fmt.Fprintf(a.out, "; seal %s\n", a.clean(c.Seal))
	if r := c.Revision.Refused; r != nil {
		fmt.Fprintf(a.out, "  commit %s is refused:\n", shortCommit(r.Commit))
		for _, finding := range r.Findings {
			fmt.Fprintf(a.out, "    %s\n", a.clean(finding))
		}
	}
	if c.Revision.Problem != "" {
		fmt.Fprintf(a.out, "  %s\n", a.clean(c.Revision.Problem))
	}
	for _, document := range c.Revision.NotYet {
		fmt.Fprintf(a.out, "  %s\n", a.clean(document))
	}
	if c.Waiting != nil {
		fmt.Fprintf(a.out, "  waiting for %s on %s since %s\n", a.clean(c.Waiting.Action), a.clean(c.Waiting.Machine), a.clean(c.Waiting.Since))
	}
	table := tabwriter.NewWriter(a.out, 0, 4, 2, ' ', 0)
	fmt.Fprintln(table, "  MACHINE\tROLE\tADDRESS\tTALOS\tREADY\tREASON")
	for _, m := range c.Machines {
		fmt.Fprintf(table, "  %s\t%s\t%s\t%s\t%t\t%s\n", a.clean(m.Name), a.clean(m.Role), a.clean(m.Address), a.clean(m.TalosVersion), m.Ready, a.clean(m.Reason))
	}
	table.Flush()
	said := map[string]bool{}
	for _, m := range c.Machines {
		if !m.Ready && m.Message != "" && !said[m.Message] && !strings.Contains(c.Message, m.Message) {
			said[m.Message] = true
			fmt.Fprintf(a.out, "  %s\n", a.clean(m.Message))
		}
	}
	a.printOperationStatus(c, said)
	a.printBackupStatus(c.Backups)
}

// mostOperations is how many operations that are over a table names.
const mostOperations = 5

// printOperationStatus prints a line an operation: those that go on or wait, and the last few that are over. What was said of a
// machine already isn't said again.
func (a *app) printOperationStatus(c reconcile.ClusterStatus, said map[string]bool) {
	var shown []reconcile.OperationStatus
	ended := 0
	for _, op := range slices.Backward(c.Operations) {
		if op.FinishedAt != "" {
			if ended++; ended > mostOperations {
				continue
			}
		}
		shown = append(shown, op)
	}
	if len(shown) == 0 {
		return
	}
	slices.Reverse(shown)
	table := tabwriter.NewWriter(a.out, 0, 4, 2, ' ', 0)
	fmt.Fprintln(table, "  OPERATION\tWHAT\tTARGET\tPHASE\tSTEP\tSTARTED")
	for _, op := range shown {
		phase, step := op.Phase, op.Step
		if statefile.OperationPhase(op.Phase).Over() {
			step = ""
		}
		if op.Phase == "Refused" && op.FailureReason != "" {
			phase += " (" + op.FailureReason + ")"
		}
		fmt.Fprintf(table, "  %s\t%s\t%s\t%s\t%s\t%s\n", a.clean(op.Name), a.clean(strings.TrimSpace(op.Kind+" "+op.Action)), a.clean(op.Target), a.clean(phase),
			a.clean(dash(step)), a.clean(dash(op.StartedAt)))
	}
	table.Flush()
	for _, op := range shown {
		if op.Message != "" && op.Phase != "Completed" && !said[op.Message] {
			fmt.Fprintf(a.out, "  %s: %s\n", a.clean(op.Name), a.clean(op.Message))
		}
		if op.WayOut != "" {
			fmt.Fprintf(a.out, "  %s: to end it by hand, stop the agent and type: %s\n", a.clean(op.Name), a.clean(op.WayOut))
		}
	}
	if ended > mostOperations {
		fmt.Fprintf(a.out, "  %s over; 'ichor op list' names all\n", isOrAre(ended-mostOperations, "more operation"))
	}
	if c.OperationsRefusedMore > 0 {
		fmt.Fprintf(a.out, "  %s refused longer ago; they are only counted, and the audit names them\n", isOrAre(c.OperationsRefusedMore, "more operation"))
	}
}

// isOrAre is "1 pod is" and "2 pods are".
func isOrAre(n int, what string) string {
	if n == 1 {
		return counted(n, what) + " is"
	}
	return counted(n, what) + " are"
}

// printBackupStatus prints a line a backup, and its sentence.
func (a *app) printBackupStatus(backups []reconcile.BackupStatus) {
	if len(backups) == 0 {
		return
	}
	table := tabwriter.NewWriter(a.out, 0, 4, 2, ' ', 0)
	fmt.Fprintln(table, "  BACKUP\tREADY\tREASON\tLAST SUCCESS\tSNAPSHOTS\tLAST DRILL")
	for _, b := range backups {
		drilled := "(none)"
		if b.Drill != nil {
			drilled = map[bool]string{true: "passed ", false: "failed "}[b.Drill.Passed] + b.Drill.At.UTC().Format(time.RFC3339)
		}
		success := b.LastSuccess
		if success == "" {
			success = "(none)"
		}
		fmt.Fprintf(table, "  %s\t%t\t%s\t%s\t%d\t%s\n", a.clean(b.Name), b.Ready, a.clean(b.Reason), a.clean(success), len(b.Snapshots), drilled)
	}
	table.Flush()
	for _, b := range backups {
		if !b.Ready {
			fmt.Fprintf(a.out, "  %s: %s\n", a.clean(b.Name), a.clean(b.Message))
		}
	}
}

// shortCommit is the beginning of a commit's name, fit for a terminal: a state whose seal isn't checked may hold anything.
func shortCommit(commit string) string {
	commit = printable.Text(commit)
	if len(commit) > 12 {
		return commit[:12]
	}
	if commit == "" {
		return "(none)"
	}
	return commit
}
