package main

import (
	"github.com/spf13/cobra"

	"ichor.maesh.dev/schema"
)

func (a *app) runOpAdoptCommand() *cobra.Command {
	return a.machineArgument(&cobra.Command{
		Use:   "adopt MACHINE",
		Short: "Let Ichor change a machine that it did not configure",
		Long:  "Permits that the config of a running machine becomes what Git says. 'ichor plan --live' shows what would change.",
	}, &runOpFlags{}, schema.OperationAdopt, "")
}
