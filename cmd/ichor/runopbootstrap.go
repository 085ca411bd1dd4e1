package main

import (
	"github.com/spf13/cobra"

	"ichor.maesh.dev/schema"
)

func (a *app) runOpBootstrapCommand() *cobra.Command {
	f := &runOpFlags{}
	cmd := a.machineArgument(&cobra.Command{
		Use:   "bootstrap MACHINE",
		Short: "Let etcd begin anew where there may have been one",
		Long: `Permits the bootstrap of a cluster whose past isn't known: a state that was lost, or snapshots that are there. To keep what an
etcd held, restore a snapshot instead. The cluster's name has to be typed.`,
	}, f, schema.OperationBootstrap, "")
	f.addConfirm(cmd, "cluster")
	return cmd
}
