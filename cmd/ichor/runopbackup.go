package main

import (
	"github.com/spf13/cobra"

	"ichor.maesh.dev/schema"
)

func (a *app) runOpBackupCommand() *cobra.Command {
	return a.backupArgument(&cobra.Command{
		Use:   "etcd-backup [BACKUP]",
		Short: "Take one snapshot of etcd now",
		Long: `Asks for one snapshot. BACKUP is the name of the TalosEtcdBackup, which may be left out where the cluster has one only.
'ichor backup now' is the same.`,
	})
}

func (a *app) backupNowCommand() *cobra.Command {
	return a.backupArgument(&cobra.Command{
		Use:   "now [BACKUP]",
		Short: "Take one snapshot of etcd now, by a signed operation",
		Long: `Writes, signs and pushes an operation that asks the agent for one snapshot: the same as 'ichor run-op etcd-backup'. BACKUP is the
name of the TalosEtcdBackup, which may be left out where the cluster has one only.`,
		Example: "  ichor backup now --state s3://ichor/prod --follow",
	})
}

func (a *app) backupArgument(cmd *cobra.Command) *cobra.Command {
	f := &runOpFlags{}
	cmd.Args = cobra.MaximumNArgs(1)
	cmd.ValidArgsFunction = a.completeBackups(&f.desk)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		f.request.Kind = schema.OperationEtcdBackup
		if len(args) == 1 {
			f.request.Target = args[0]
		}
		return a.runOp(cmd.Context(), f)
	}
	f.add(cmd)
	return cmd
}
