package main

import (
	"fmt"
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
		if err := cmd.Flags().Set(flag.Name, value); err != nil {
			failed = cannot(fmt.Errorf("%s: %w", environmentName(flag.Name), err), "correct or unset the variable")
		}
	})
	return failed
}
