package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"ichor.maesh.dev/schema"
)

// liveRestore is `ichor restore --live`: run-op etcd-restore under the name that a person looks for, which is followed to its end. Its flags
// are those of run-op; where restore has one of the same name, that one's value is taken over.
type liveRestore struct {
	cmd    *cobra.Command
	flags  *runOpFlags
	getenv func(string) string
}

// addLive adds to restore the flags that --live takes and --recover-cluster doesn't.
func (a *app) addLive(restore *cobra.Command) *liveRestore {
	l := &liveRestore{cmd: &cobra.Command{}, flags: &runOpFlags{restore: &restoreOpFlags{}}, getenv: a.getenv}
	l.flags.add(l.cmd)
	l.flags.restore.add(l.cmd)
	l.flags.addConfirm(l.cmd, "cluster")
	l.cmd.Flags().VisitAll(func(flag *pflag.Flag) {
		if restore.Flags().Lookup(flag.Name) == nil {
			added := *flag
			added.Usage = "with --live: " + flag.Usage
			restore.Flags().AddFlag(&added)
		}
	})
	return l
}

// only says whether a flag belongs to --live alone.
func (l *liveRestore) only(restore *cobra.Command, name string) bool {
	mine, both := l.cmd.Flags().Lookup(name), restore.Flags().Lookup(name)
	return mine != nil && both != nil && mine.Value == both.Value
}

// refuseLive refuses what only --live takes.
func (l *liveRestore) refuseLive(restore *cobra.Command) error {
	return l.refuse(restore, func(name string) bool { return l.only(restore, name) }, "--live, a restore that the agent makes")
}

// refuse refuses the first flag given on the command line that belongs to the other restore. One that the environment gives is for whoever
// needs it.
func (l *liveRestore) refuse(restore *cobra.Command, belongs func(name string) bool, to string) error {
	var wrong string
	restore.Flags().Visit(func(flag *pflag.Flag) {
		if wrong == "" && belongs(flag.Name) && l.getenv(environmentName(flag.Name)) == "" {
			wrong = flag.Name
		}
	})
	if wrong == "" {
		return nil
	}
	return usageError(fmt.Errorf("--%s goes with %s", wrong, to), "leave it out; docs/recovery.md says which of the two restores it is")
}

// run takes the flags over and runs the operation.
func (a *app) restoreLive(ctx context.Context, restore *cobra.Command, l *liveRestore) error {
	recovers := []string{"wipe", "control-plane", "trust-maintenance-network", "start-over", "work", "file", "bundle", "from", "s3-endpoint", "s3-region", "s3-ca", "s3-addressing"}
	if err := l.refuse(restore, func(name string) bool { return slices.Contains(recovers, name) }, "--recover-cluster, for a cluster that is gone"); err != nil {
		return err
	}
	var failed error
	restore.Flags().Visit(func(flag *pflag.Flag) {
		mine := l.cmd.Flags().Lookup(flag.Name)
		if mine == nil || mine.Value == flag.Value || failed != nil {
			return
		}
		if list, ok := flag.Value.(pflag.SliceValue); ok {
			failed = mine.Value.(pflag.SliceValue).Replace(list.GetSlice())
		} else {
			failed = mine.Value.Set(flag.Value.String())
		}
	})
	if failed != nil {
		return usageError(failed, "")
	}
	f := l.flags
	given := restore.Flags()
	if given.Changed("fleet") && !given.Changed("repo") {
		f.desk.repo = given.Lookup("fleet").Value.String()
	}
	if f.restore.snapshot == "latest" {
		f.restore.snapshot = ""
	}
	f.request.Kind, f.request.Target = schema.OperationEtcdRestore, given.Lookup("backup").Value.String()
	ends := f.noPush || f.print || f.dryRun
	if !given.Changed("follow") {
		f.follow.follow = !ends
	}
	if f.follow.follow && !ends && f.state.url == "" && f.follow.agent == "" {
		return usageError(errors.New("a restore is followed to its end, and where the state is was not said"),
			"give --state URL, or --agent URL of a running agent, as in http://127.0.0.1:4246; --follow=false only hands it in")
	}
	return a.runOp(ctx, f)
}
