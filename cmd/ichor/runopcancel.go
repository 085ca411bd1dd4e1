package main

import (
	"github.com/spf13/cobra"

	"ichor.maesh.dev/schema"
)

func (a *app) runOpCancelCommand() *cobra.Command {
	return a.operationArgument(&cobra.Command{
		Use:   "cancel OPERATION",
		Short: "End an operation that waits or is paused",
		Long: `Ends an operation that waits for its turn or is paused; what it did stays done. One that has not started is also ended by the removal
of its file. The digest of its file comes from the state (--state), from Git, or with --digest.`,
	}, &runOpFlags{}, schema.OperationCancel)
}
