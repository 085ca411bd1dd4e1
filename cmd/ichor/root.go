package main

import (
	"context"
	"sync"

	"github.com/spf13/cobra"
	"k8s.io/utils/clock"

	"ichor.maesh.dev/validate"
)

// app is what every command is given: where to print, what time it is, and the environment.
type app struct {
	*terminal
	clock  clock.WithTickerAndDelayedExecution
	getenv func(string) string
	// releaseSignals has Ctrl-C and SIGTERM end the process at once from then on; nil where nobody holds them.
	releaseSignals func()
	// rules compiles the built-in rules; validate.New unless it is given.
	rules func() (*validate.Engine, error)
}

// engine gives the built-in rules, ready to be asked.
func (a *app) engine() (*validate.Engine, error) {
	compile := a.rules
	if compile == nil {
		compile = validate.New
	}
	return made(compile())
}

// engineForOnce gives the built-in rules to a command that asks them once, and makes them while the caller does something else.
func (a *app) engineForOnce() func() (*validate.Engine, error) {
	compile := a.rules
	if compile == nil {
		compile = validate.NewForOnce
	}
	return async(func() (*validate.Engine, error) { return made(compile()) })
}

func made(engine *validate.Engine, err error) (*validate.Engine, error) {
	if err != nil {
		return nil, cannot(err, "this is a fault of ichor itself; please report it")
	}
	return engine, nil
}

// async begins something, and gives what waits for it.
func async[T any](do func() (T, error)) func() (T, error) {
	once := sync.OnceValues(do)
	go func() { _, _ = once() }()
	return once
}

// onlyReads says that a command writes nothing and leaves nothing behind, so that Ctrl-C may end it at once, wherever it is.
func (a *app) onlyReads() {
	if a.releaseSignals != nil {
		a.releaseSignals()
	}
}

// execute runs one command line and gives the exit code.
func (a *app) execute(ctx context.Context, args []string) int {
	root := a.rootCommand()
	root.SetArgs(args)
	root.SetIn(a.in)
	root.SetOut(a.out)
	root.SetErr(a.err)
	if err := root.ExecuteContext(ctx); err != nil {
		return a.fail(err)
	}
	return exitOK
}

func (a *app) rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "ichor",
		Short: "Manage Talos Linux clusters from a Git repository",
		Long: `Ichor manages Talos Linux Kubernetes clusters from YAML in a Git repository.

An agent pulls the repository, checks it, drives the Talos nodes over their own API,
and keeps what it must remember in a state file in S3. There is nothing to install in the clusters.

Each flag has a twin in the environment: --age-identity is ICHOR_AGE_IDENTITY. What is given on the command line wins.`,
		SilenceUsage:  true,
		SilenceErrors: true,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			return flagsFromEnvironment(cmd, a.getenv)
		},
	}
	root.Flags().Bool("version", false, "print the version, as 'ichor version' does")
	root.RunE = func(cmd *cobra.Command, _ []string) error {
		if asked, _ := cmd.Flags().GetBool("version"); asked {
			return a.printVersion("text")
		}
		return cmd.Help()
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usageError(err, "see '"+cmd.CommandPath()+" --help'")
	})
	root.AddCommand(a.commands()...)
	hinted(root)
	return root
}

// hinted has every command name its help where its arguments make no sense, and has those that only hold others refuse a
// name that isn't among these instead of showing their help as if all was well.
func hinted(cmd *cobra.Command) {
	args := cmd.Args
	if args == nil && cmd.HasSubCommands() {
		args = func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return &unknownCommandError{holder: cmd, name: args[0]}
			}
			return nil
		}
		if cmd.RunE == nil {
			cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
		}
	}
	if args != nil {
		cmd.Args = func(cmd *cobra.Command, given []string) error {
			if err := args(cmd, given); err != nil {
				return mistyped(cmd, given, err)
			}
			return nil
		}
	}
	for _, child := range cmd.Commands() {
		hinted(child)
	}
}

// commands lists every command; each is made in the file of its name.
func (a *app) commands() []*cobra.Command {
	return []*cobra.Command{
		a.agentCommand(),
		a.auditCommand(),
		a.backupCommand(),
		a.discoverCommand(),
		a.initCommand(),
		a.kubeconfigCommand(),
		a.opCommand(),
		a.planCommand(),
		a.policyCommand(),
		a.restoreCommand(),
		a.runOpCommand(),
		a.schemaCommand(),
		a.secretsCommand(),
		a.stateCommand(),
		a.statusCommand(),
		a.talosconfigCommand(),
		a.validateCommand(),
		a.versionCommand(),
	}
}
