// Command servers is Kubernetes's own kube-apiserver, kube-controller-manager and kube-scheduler in one file, for the
// tests: `servers kube-apiserver --etcd-servers=...`. A server runs until its standard input closes. It is a module of its own because Kubernetes can only be built with
// replacements of its parts, which must not reach the module that is shipped.
package main

import (
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
	"k8s.io/component-base/cli"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
)

// Only the command that is asked for is made: they share one registry of feature gates and versions a process.
var commands = map[string]func() *cobra.Command{
	"kube-apiserver":          apiserver.NewAPIServerCommand,
	"kube-controller-manager": controllermanager.NewControllerManagerCommand,
	"kube-scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
}

func main() {
	if len(os.Args) < 2 || commands[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "usage: servers kube-apiserver|kube-controller-manager|kube-scheduler [flags]")
		os.Exit(2)
	}
	command := commands[os.Args[1]]()
	os.Args = os.Args[1:]
	go endWithParent()
	os.Exit(cli.Run(command))
}

// endWithParent ends the process when its standard input closes: the test that started it is gone, however it ended.
func endWithParent() {
	_, _ = io.Copy(io.Discard, os.Stdin) // an error is an end too
	os.Exit(1)
}
