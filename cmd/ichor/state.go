package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os/user"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"ichor.maesh.dev/internal/scrub"
	"ichor.maesh.dev/statefile"
)

func (a *app) stateCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "state",
		Short: "Work on the state that the agent keeps",
	}
	cmd.AddCommand(a.stateAcceptCommand())
	return cmd
}

// stateAcceptFlags are the command line of state accept.
type stateAcceptFlags struct {
	statusFlags
	cache, reason, confirm string
}

func (a *app) stateAcceptCommand() *cobra.Command {
	f := &stateAcceptFlags{}
	cmd := &cobra.Command{
		Use:   "accept CLUSTER --state URL --age-identity FILE",
		Short: "Go on from a state that was rolled back",
		Long: `An agent that finds a state older than one that was seen before does nothing for the cluster (StateRolledBack): what was
done since isn't remembered, and would be done again. Find out how the state came to be old (a bucket restored from a copy, a
deleted version), and what the machines did meanwhile. Then this command takes the state that is there as the one to go on from.
That, and who decided it, goes into the audit. A forged state can't be accepted.`,
		Example: "  ichor state accept prod --state s3://ichor/prod --age-identity agent.key --reason \"bucket restored from Sunday's copy\"",
		Args:    cobra.ExactArgs(1),
		RunE:    func(cmd *cobra.Command, args []string) error { return a.acceptState(cmd.Context(), f, args[0]) },
	}
	f.state.add(cmd)
	flags := cmd.Flags()
	flags.StringVar(&f.fleet, "fleet", ".", "checkout of the fleet repository, for the secrets bundle that the state is sealed with")
	flags.StringVar(&f.cache, "cache", "", "the agent's cache folder on this machine, if it has one (default: the user's cache folder)")
	flags.StringVar(&f.reason, "reason", "", "what happened, for the audit")
	flags.StringVar(&f.confirm, "confirm", "", "the cluster's name, which is asked for otherwise")
	return cmd
}

func (a *app) acceptState(ctx context.Context, f *stateAcceptFlags, name string) error {
	scrubber := scrub.New()
	cache, err := cacheFolder(f.cache)
	if err != nil {
		return err
	}
	store, err := f.state.open(ctx, scrubber, false)
	if err != nil {
		return err
	}
	defer store.Close()
	sealer, err := f.sealer(name)
	if err != nil {
		return cannot(fmt.Errorf("the state of %s can't be sealed: %w", name, scrubber.Error(err)), "give --age-identity, and --fleet with a checkout")
	}
	open := func(cache string) (*statefile.Cluster, error) {
		return statefile.OpenCluster(store, statefile.Options{Name: name, Sealer: sealer, WriterID: statefile.NewNonce(), CacheDir: cache, Clock: a.clock})
	}
	// Without the cache nothing is refused for its age, so this shows what would be accepted.
	plain, err := open("")
	if err != nil {
		return cannot(scrubber.Error(err), "")
	}
	state, err := plain.Load(ctx)
	if errors.Is(err, statefile.ErrNotFound) {
		return answerNo(fmt.Errorf("%s has no state, so there is nothing to accept", name), "the agent makes a new one, and adopts what runs")
	}
	if err != nil {
		return cannot(scrubber.Error(err), "")
	}
	_, generation := plain.Known()
	a.showOldState(name, state, generation)
	if err := a.confirmName(ctx, name, f.confirm, "accept this state"); err != nil {
		return err
	}
	handle, err := open(filepath.Join(cache, "state"))
	if err != nil {
		return cannot(scrubber.Error(err), "")
	}
	accepted, err := handle.Accept(ctx, whoIsHere(), f.reason)
	if err != nil {
		return cannot(scrubber.Error(err), "")
	}
	fmt.Fprintf(a.out, "accepted the state of %s: generation %d, now %d (the highest that is known of was %d); agents go on from it by themselves\n",
		name, accepted.Found, accepted.Now, accepted.Highest)
	return nil
}

// showOldState says on standard error what the state is that would be gone on from.
func (a *app) showOldState(name string, state *statefile.State, generation uint64) {
	fmt.Fprintf(a.err, "the state of %s: generation %d, last written %s, revision %s applied, %d machines, audit event %d\n", a.clean(name), generation,
		state.Latest.UTC().Format(time.RFC3339), shortCommit(state.Revision.Applied), len(state.Machines), state.Audit.Sequence)
	if state.Intent != nil {
		fmt.Fprintf(a.err, "  begun: %s on %s, at %s\n", a.clean(state.Intent.Action), a.clean(state.Intent.Machine), state.Intent.At.UTC().Format(time.RFC3339))
	}
	if state.Bootstrap == nil {
		fmt.Fprintln(a.err, "  it knows of no bootstrap: if the cluster was bootstrapped since, put a newer state back instead")
	}
}

// confirmName goes on only when the name was typed, on the command line or now.
func (a *app) confirmName(ctx context.Context, name, given, what string) error {
	if given == "" && a.interactive {
		fmt.Fprintf(a.err, "type the cluster's name to %s: ", what)
		var err error
		if given, err = a.readLine(ctx); err != nil {
			return cannot(fmt.Errorf("no name was typed, and nothing was changed: %w", err), "")
		}
	}
	switch given {
	case name:
		return nil
	case "":
		return cannot(fmt.Errorf("this needs the cluster's name to %s", what), "give --confirm "+name)
	}
	return cannot(fmt.Errorf("%q is not the cluster's name %s; nothing was changed", given, name), "")
}

// readLine waits for a line, or for Ctrl-C.
func (a *app) readLine(ctx context.Context) (string, error) {
	type answer struct {
		line string
		err  error
	}
	answers := make(chan answer, 1)
	go func() {
		line, err := bufio.NewReader(a.in).ReadString('\n')
		answers <- answer{line, err}
	}()
	select {
	case <-ctx.Done():
		return "", ctx.Err()
	case got := <-answers:
		if got.err != nil && got.line == "" {
			return "", got.err
		}
		return strings.TrimSpace(got.line), nil
	}
}

// whoIsHere names the person for the audit; it proves nothing.
func whoIsHere() string {
	who, err := user.Current()
	if err != nil {
		return "unknown"
	}
	return who.Username
}
