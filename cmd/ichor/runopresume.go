package main

import (
	"github.com/spf13/cobra"

	"ichor.maesh.dev/schema"
)

func (a *app) runOpResumeCommand() *cobra.Command {
	f := &runOpFlags{}
	cmd := a.operationArgument(&cobra.Command{
		Use:   "resume OPERATION",
		Short: "Let a paused operation go on from where it stands",
		Long: `Ends the pause in which an operation is, and no later one. Which pause that is, and the digest of the operation's file, come
from the state (--state), or from what 'ichor op show' says.`,
	}, f, schema.OperationResume)
	cmd.Flags().IntVar(&f.request.Pause, "pause", 0, "the number of the pause that is ended (default: as the state says)")
	return cmd
}

// operationArgument makes a command that takes the name of one operation.
func (a *app) operationArgument(cmd *cobra.Command, f *runOpFlags, kind schema.OperationKind) *cobra.Command {
	cmd.Args = cobra.ExactArgs(1)
	cmd.ValidArgsFunction = a.completeOperations(&f.desk)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		f.request.Kind, f.request.Target = kind, args[0]
		return a.runOp(cmd.Context(), f)
	}
	f.add(cmd)
	cmd.Flags().StringVar(&f.request.Digest, "digest", "", "SHA-256 of the operation's file (default: as the state or Git says)")
	return cmd
}
