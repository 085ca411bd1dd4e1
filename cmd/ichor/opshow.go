package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"ichor.maesh.dev/operation"
	"ichor.maesh.dev/reconcile"
	"ichor.maesh.dev/reconcile/runop"
	"ichor.maesh.dev/statefile"
)

// opShowFlags are the command line of op show.
type opShowFlags struct {
	opLookFlags
	follow followFlags
}

func (a *app) opShowCommand() *cobra.Command {
	f := &opShowFlags{}
	cmd := &cobra.Command{
		Use:   "show NAME",
		Short: "Show an operation: its file, its signer, its steps, and what to type next",
		Long: `Shows all that the state (--state) and the repository know of an operation: what it does, who signed it, each step with its
time, each call with its outcome, why it paused, and the commands by which it goes on or ends. --follow goes on to show each new
step until it is over or paused.`,
		Example:           "  ichor op show 20261129-reboot-w-1 --state s3://ichor/prod --follow",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.completeOperations(&f.desk),
		RunE:              func(cmd *cobra.Command, args []string) error { return a.opShow(cmd.Context(), f, args[0]) },
	}
	f.add(cmd)
	f.follow.add(cmd)
	outputNotWith(cmd.Flags(), "follow")
	return cmd
}

func (a *app) opShow(ctx context.Context, f *opShowFlags, name string) error {
	if f.follow.follow && f.state.url == "" && f.follow.agent == "" {
		return usageError(fmt.Errorf("--follow reads the state, and where that is was not said"), "give --state URL, or --agent URL of a running agent, as in http://127.0.0.1:4246")
	}
	if f.follow.follow && f.output != "text" {
		return usageError(fmt.Errorf("--follow prints a line a step, and not %s", f.output), "leave --follow or -o out")
	}
	l, err := a.lookAtOperations(ctx, &f.opLookFlags)
	if err != nil {
		return err
	}
	defer l.close()
	entry, err := l.find(a, &f.opLookFlags, name)
	if err != nil {
		return err
	}
	var status *reconcile.ClusterStatus
	if n := slices.IndexFunc(l.clusters, func(c reconcile.ClusterStatus) bool { return c.Name == entry.Cluster }); n >= 0 {
		status = &l.clusters[n]
	}
	var events []statefile.Event
	if entry.Seen {
		sealer, _ := l.sealer(&f.state)(entry.Cluster) // without one it is not checked, as for the state
		report, err := statefile.VerifyAudit(ctx, l.store, sealer, entry.Cluster)
		if err != nil {
			fmt.Fprintf(a.err, "the audit can't be read: %s\n", a.clean(l.scrubber.Error(err).Error()))
		} else {
			events = report.Events
		}
	}
	detail := runop.Describe(entry, status, events)
	if f.output != "text" {
		return a.encode(f.output, detail)
	}
	a.printOperation(detail)
	if !f.follow.follow {
		return nil
	}
	look := f.follow.askAgent(entry.Cluster)
	if f.follow.agent == "" {
		look = lookInto(l.store, entry.Cluster, l.sealer(&f.state), l.scrubber.Error)
	}
	fmt.Fprintln(a.out)
	return a.followOperation(ctx, &f.follow, look, entry.Cluster, entry.Name, entry.Digest)
}

// find gives the operation of a name: the accepted one where several files bore it.
func (l *opLook) find(a *app, f *opLookFlags, name string) (runop.Entry, error) {
	var found []runop.Entry
	for _, entry := range l.entries(a, f, true) {
		if entry.Name == name {
			found = append(found, entry)
		}
	}
	if accepted := slices.DeleteFunc(slices.Clone(found), func(e runop.Entry) bool { return !e.Seen || e.Phase == string(statefile.OperationRefused) }); len(accepted) > 0 {
		found = accepted
	}
	switch len(found) {
	case 0:
		return runop.Entry{}, answerNo(fmt.Errorf("there is no operation %s", a.clean(name)), "'ichor op list' names those that there are")
	case 1:
		return found[0], nil
	}
	var clusters []string
	for _, entry := range found {
		clusters = append(clusters, entry.Cluster+" (digest "+shortCommit(entry.Digest)+")")
	}
	if len(slices.Compact(slices.Sorted(slices.Values(clustersOf(found))))) == 1 {
		return found[len(found)-1], nil // the newest file of that name
	}
	return runop.Entry{}, usageError(fmt.Errorf("%d operations are called %s: %s", len(found), a.clean(name), a.clean(strings.Join(clusters, ", "))), "name the cluster with --cluster")
}

func clustersOf(entries []runop.Entry) []string {
	var names []string
	for _, entry := range entries {
		names = append(names, entry.Cluster)
	}
	return names
}

func (a *app) printOperation(d runop.Detail) {
	line := func(title, text string) {
		if text != "" {
			fmt.Fprintf(a.out, "  %-9s %s\n", title+":", a.clean(text))
		}
	}
	kind := d.Kind
	if d.Action != "" {
		kind += "/" + d.Action
	}
	title := d.Name + " of " + d.Cluster
	if kind != "" { // of a file that was refused as it stood nothing is known
		title += ": " + kind + " " + d.Target
	}
	fmt.Fprintln(a.out, a.clean(title))
	line("does", d.Does)
	if d.Seen {
		line("stands", runop.Sentence(d.OperationStatus))
		if d.Phase == string(statefile.OperationRefused) {
			line("way out", wayOut(operation.Reason(d.FailureReason)))
		}
	} else {
		line("stands", "no agent has taken it in yet")
	}
	if d.WayOut != "" {
		line("by hand", "stop the agent and type: "+d.WayOut)
	}
	line("file", strings.TrimSpace(d.Source+" "+d.File))
	line("digest", d.Digest)
	line("signer", d.Signer)
	line("expires", d.ExpiresAt)
	line("seen", d.FirstSeen)
	line("started", d.StartedAt)
	line("finished", d.FinishedAt)
	if d.Pause > 0 {
		line("pauses", fmt.Sprint(d.Pause))
	}
	a.printCourse(d)
	if len(d.Next) > 0 {
		fmt.Fprintln(a.out, "next:")
		for _, command := range d.Next {
			fmt.Fprintf(a.out, "  %s\n", a.clean(command))
		}
	}
}

// printCourse prints what has been done of an operation, and what is under way.
func (a *app) printCourse(d runop.Detail) {
	if len(d.Steps) > 0 {
		fmt.Fprintln(a.out, "steps:")
		for _, step := range d.Steps {
			fmt.Fprintf(a.out, "  %s  %s\n", a.clean(step.At), a.clean(step.Name))
		}
	}
	if len(d.Events) > 0 {
		fmt.Fprintln(a.out, "events:")
		for _, event := range d.Events {
			text := event.Action + " " + event.Machine + " " + eventText(event.Message, event.Details)
			fmt.Fprintf(a.out, "  %s  %s\n", a.clean(event.At), a.clean(strings.Join(strings.Fields(text), " ")))
		}
	}
	if d.Intent != nil {
		fmt.Fprintf(a.out, "under way: %s on %s since %s\n", a.clean(d.Intent.Action), a.clean(d.Intent.Machine), a.clean(d.Intent.Since))
	}
}
