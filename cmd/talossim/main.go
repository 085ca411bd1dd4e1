// Command talossim runs simulated Talos nodes on loopback addresses, as internal/talossim makes them, and a real S3 server over
// a folder: enough to try Ichor on one machine. docs/talossim.md says how.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

func main() {
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

// run is main with a return value, so that tests can call the program as a function.
func run(args []string, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()

	root := newRoot()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)

	if err := root.ExecuteContext(ctx); err != nil {
		fmt.Fprintf(stderr, "talossim: %v\n", err) //nolint:errcheck // there is nobody else to tell

		return 1
	}

	return 0
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:           "talossim",
		Short:         "Simulated Talos nodes, and an S3 server, on this machine",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddCommand(newUp(), newCtl(), newS3())

	return root
}
