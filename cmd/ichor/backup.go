package main

import "github.com/spf13/cobra"

func (a *app) backupCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "backup",
		Short: "List, fetch, check and try the snapshots of a cluster's etcd",
		Long: `Works on the snapshots that the agent stores, from the bucket and the cluster's secrets bundle alone: no agent, no
cluster and no state is needed. Only 'now' is for the agent: it asks for a snapshot, by a signed operation.

Where the bucket is, and how to get in, comes from a checkout of the fleet repository (--fleet, --cluster, --backup), or from
the command line (--from s3://bucket/prefix, --bundle FILE). Without credentials of their own the AWS_* environment serves.`,
	}
	cmd.AddCommand(a.backupListCommand(), a.backupNowCommand(), a.backupGetCommand(), a.backupVerifyCommand(), a.backupDrillCommand())
	return cmd
}
