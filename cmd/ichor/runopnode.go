package main

import (
	"github.com/spf13/cobra"

	"ichor.maesh.dev/schema"
)

func (a *app) runOpNodeCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "node", Short: "Act on one machine"}
	cmd.AddCommand(
		a.runOpRebootCommand(),
		a.runOpShutdownCommand(),
		a.runOpRestartServiceCommand(),
		a.runOpDefragCommand(),
		a.runOpForfeitCommand(),
		a.runOpRemoveCommand(),
	)
	return cmd
}

func (a *app) runOpRebootCommand() *cobra.Command {
	return a.machineArgument(&cobra.Command{
		Use:   "reboot MACHINE",
		Short: "Drain a machine, reboot it once, and wait until it is back",
	}, &runOpFlags{}, schema.OperationNode, schema.ActionReboot)
}

func (a *app) runOpShutdownCommand() *cobra.Command {
	return a.machineArgument(&cobra.Command{
		Use:   "shutdown MACHINE",
		Short: "Have a machine drained and shut down; it completes when the machine is back",
	}, &runOpFlags{}, schema.OperationNode, schema.ActionShutdown)
}

func (a *app) runOpRestartServiceCommand() *cobra.Command {
	f := &runOpFlags{}
	cmd := a.machineArgument(&cobra.Command{
		Use:   "restart-service MACHINE",
		Short: "Restart the kubelet of a machine",
		Long: `Restarts a service of Talos: the kubelet, containerd or cri. Talos 1.13 accepts only the kubelet; for the others the operation
pauses with Talos's own sentence.`,
	}, f, schema.OperationNode, schema.ActionRestartService)
	cmd.Flags().StringVar(&f.request.Service, "service", "kubelet", "kubelet, containerd or cri")
	return cmd
}

func (a *app) runOpDefragCommand() *cobra.Command {
	f := &runOpFlags{}
	cmd := a.machineArgument(&cobra.Command{
		Use:   "etcd-defrag MACHINE",
		Short: "Defragment the etcd database of a control plane",
	}, f, schema.OperationNode, schema.ActionEtcdDefrag)
	cmd.Flags().BoolVar(&f.request.AllowLeader, "allow-leader", false, "also where it leads; then writes pause meanwhile")
	return cmd
}

func (a *app) runOpForfeitCommand() *cobra.Command {
	return a.machineArgument(&cobra.Command{
		Use:   "etcd-forfeit-leadership MACHINE",
		Short: "Have another control plane lead etcd",
	}, &runOpFlags{}, schema.OperationNode, schema.ActionEtcdForfeit)
}

func (a *app) runOpRemoveCommand() *cobra.Command {
	f := &runOpFlags{}
	cmd := a.machineArgument(&cobra.Command{
		Use:   "remove MACHINE",
		Short: "Take a machine out of the cluster, and wipe it",
		Long: `Drains a machine, takes it out of etcd, wipes its STATE and EPHEMERAL, powers it off, and deletes its Node. The machine's
name has to be typed. With --gone the machine itself is not touched, because it is off for good.

A machine that Git doesn't have any more is removed by what the state remembers of it (--state), or with --uuid.`,
	}, f, schema.OperationNode, schema.ActionRemove)
	flags := cmd.Flags()
	f.addConfirm(cmd, "machine")
	flags.BoolVar(&f.request.Gone, "gone", false, "the machine is off for good: only its etcd member and its Node are removed")
	flags.StringVar(&f.request.Then, "then", "", "what the machine does at the end: powerOff (the default) or reboot")
	flags.StringVar(&f.request.UUID, "uuid", "", "the machine's UUID, where Git doesn't have it any more")
	return cmd
}
