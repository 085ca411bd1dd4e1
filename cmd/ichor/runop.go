package main

import (
	"errors"

	"github.com/spf13/cobra"

	"ichor.maesh.dev/reconcile/runop"
	"ichor.maesh.dev/schema"
)

func (a *app) runOpCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "run-op",
		Short: "Write, sign and push an operation: a reboot, a removal, a backup, ...",
		Long: `Writes the file of an operation, says what it would do and what speaks against it, asks, signs it, and pushes exactly two
files to the branch that the agent watches: operations/<name>.yaml and its signature. The checkout that it is started in is not
touched, whatever is changed in it. The agent does the rest, once.

The fleet is read at the tip of that branch. With --state what runs or is paused is known too, and --follow shows how it goes on.`,
		Example: `  ichor run-op node reboot w-1 --state s3://ichor/prod --follow
  ichor run-op node remove w-1 --dry-run
  ichor run-op resume 20261129-reboot-w-1 --state s3://ichor/prod`,
	}
	cmd.AddCommand(a.runOpNodeCommand(), a.runOpBackupCommand(), a.runOpRestoreCommand(), a.runOpAdoptCommand(), a.runOpBootstrapCommand(), a.runOpResumeCommand(), a.runOpCancelCommand())
	return cmd
}

// runOpFlags are the command line of every run-op.
type runOpFlags struct {
	desk    deskFlags
	state   stateFlags
	signers signerFlags
	follow  followFlags
	sign    opSignFlags
	request runop.Request
	// restore is of an etcd-restore, else nil.
	restore *restoreOpFlags

	confirm, branch, output              string
	yes, dryRun, noPush, print, viaState bool
}

func (f *runOpFlags) add(cmd *cobra.Command) {
	f.desk.add(cmd)
	f.state.add(cmd)
	flags := cmd.Flags()
	f.signers.add(flags)
	f.follow.add(cmd)
	flags.StringVar(&f.request.Cluster, "cluster", "", "the cluster, where the repository holds several and the target doesn't say which")
	flags.StringVar(&f.request.Reason, "reason", "", "why, shown beside the operation")
	flags.DurationVar(&f.request.Life, "expires", runop.DefaultLife, "how long it may wait for its start: at most 168h, and 24h where it wipes or rewinds")
	flags.StringVar(&f.sign.key, "key", "", "private key to sign with, or public key or certificate to pick one of the SSH agent")
	flags.StringVar(&f.sign.certificate, "certificate", "", "certificate to show for the key, as in id_ed25519-cert.pub")
	flags.BoolVarP(&f.yes, "yes", "y", false, "don't ask; never in the place of a name that must be typed")
	flags.BoolVar(&f.dryRun, "dry-run", false, "say what it would do and end; with 1 where something speaks against it")
	addOutput(flags, &f.output, "text", "json")
	outputOnlyWith(flags, "dry-run")
	flags.BoolVar(&f.noPush, "no-push", false, "write the two files into the checkout, and commit nothing")
	flags.BoolVar(&f.print, "print", false, "print the file and don't sign it: for someone else's key, with 'ichor op sign'")
	flags.StringVar(&f.branch, "branch", "", "push to another branch, which has to be merged into the watched one")
	flags.BoolVar(&f.viaState, "via-state", false, "put the two files into the state's inbox, for the day when Git is down")
}

// addConfirm adds the flag for what must be typed.
func (f *runOpFlags) addConfirm(cmd *cobra.Command, what string) {
	cmd.Flags().StringVar(&f.confirm, "confirm", "", "the "+what+"'s name, which is asked for otherwise")
}

// check refuses flags that exclude each other.
func (f *runOpFlags) check(a *app) error {
	if err := checkOutput(f.output, "text", "json"); err != nil {
		return err
	}
	if f.restore != nil {
		if err := f.restore.check(); err != nil {
			return err
		}
	}
	ways := 0
	for _, chosen := range []bool{f.noPush, f.print, f.viaState, f.branch != ""} {
		if chosen {
			ways++
		}
	}
	switch {
	case ways > 1:
		return usageError(errors.New("--no-push, --print, --via-state and --branch each say where the operation goes"), "give one of them")
	case f.output == "json" && !f.dryRun:
		return usageError(errors.New("-o json prints a plan, and is for --dry-run"), "leave it out, or give --dry-run")
	case f.viaState && f.state.url == "":
		return usageError(errors.New("--via-state needs to know where the state is"), "give --state s3://bucket/prefix or file:///path")
	case f.follow.follow && (f.noPush || f.print || f.dryRun):
		return usageError(errors.New("there is nothing to follow: nothing is handed in"), "leave --follow out")
	case f.follow.follow && f.state.url == "" && f.follow.agent == "":
		return usageError(errors.New("--follow reads the state, and where that is was not said"), "give --state URL, or --agent URL of a running agent, as in http://127.0.0.1:4246")
	}
	return nil
}

// machineArgument makes a command that takes the name of one machine, and completes it.
func (a *app) machineArgument(cmd *cobra.Command, f *runOpFlags, kind schema.OperationKind, action string) *cobra.Command {
	cmd.Args = cobra.ExactArgs(1)
	cmd.ValidArgsFunction = a.completeMachines(&f.desk, action)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		f.request.Kind, f.request.Action, f.request.Target = kind, action, args[0]
		return a.runOp(cmd.Context(), f)
	}
	f.add(cmd)
	return cmd
}
