package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// environmentName gives the variable that is a flag's twin: --age-identity is ICHOR_AGE_IDENTITY.
func environmentName(flag string) string {
	return "ICHOR_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// flagsFromEnvironment sets every flag that was not given from its ICHOR_* twin. A list is separated by commas, but where an entry may hold some: then
// the twin gives one.
func flagsFromEnvironment(cmd *cobra.Command, getenv func(string) string) error {
	var failed error
	cmd.Flags().VisitAll(func(flag *pflag.Flag) {
		if flag.Changed || flag.Name == "help" || flag.Name == "version" || failed != nil {
			return
		}
		value := getenv(environmentName(flag.Name))
		if value == "" {
			return
		}
		if apart, err := outputApart(cmd, flag, value); apart || err != nil {
			failed = err
			return
		}
		if err := cmd.Flags().Set(flag.Name, value); err != nil {
			failed = cannot(fmt.Errorf("%s: %w", environmentName(flag.Name), err), "correct or unset the variable")
		}
	})
	return failed
}

// outputApart says whether the form of output in the environment is not for this command: it has no such form, or none with the flags that were given. The
// twin is set for all commands at once, so that is no mistake; what no command has is one.
func outputApart(cmd *cobra.Command, flag *pflag.Flag, value string) (bool, error) {
	forms := flag.Annotations[formsNote]
	if forms == nil {
		return false, nil
	}
	given := func(note string) bool {
		names := flag.Annotations[note]
		return len(names) == 1 && cmd.Flags().Lookup(names[0]).Value.String() == "true"
	}
	if slices.Contains(forms, value) {
		return flag.Annotations[onlyWithNote] != nil && !given(onlyWithNote) || given(notWithNote), nil
	}
	if all := allForms(cmd.Root()); !slices.Contains(all, value) {
		return false, usageError(fmt.Errorf("%s: -o %s is not known to any command", environmentName(flag.Name), value), "use "+listed(all)+", or unset the variable")
	}
	return true, nil
}

// allForms are the forms of output that commands have.
func allForms(cmd *cobra.Command) []string {
	var all []string
	if flag := cmd.Flags().Lookup("output"); flag != nil {
		all = append(all, flag.Annotations[formsNote]...)
	}
	for _, child := range cmd.Commands() {
		all = append(all, allForms(child)...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}
