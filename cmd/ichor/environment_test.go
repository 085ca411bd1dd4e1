package main

import (
	"io"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
	"k8s.io/utils/clock"
)

func TestTheFormOfOutputInTheEnvironmentIsForTheCommandsThatHaveIt(t *testing.T) {
	for name, test := range map[string]struct{ line, value, want string }{
		"a command that has it":                         {"status", "json", "json"},
		"what is said on the command line wins":         {"status -o yaml", "json", "yaml"},
		"a table is text where there is no table":       {"version", "table", "text"},
		"a form of another command":                     {"plan", "sarif", "text"},
		"and that one has it":                           {"validate", "sarif", "sarif"},
		"machines are printed as YAML":                  {"discover 10.0.0.1", "text", "yaml"},
		"an operation prints a plan for --dry-run only": {"run-op node reboot w-1", "json", "text"},
		"and does so there":                             {"run-op node reboot w-1 --dry-run", "json", "json"},
		"a restore that the agent makes":                {"restore --live", "json", "text"},
		"its plan":                                      {"restore --live --dry-run", "json", "json"},
		"a restore of a cluster that is lost":           {"restore --recover-cluster", "json", "text"},
		"an operation that is shown":                    {"op show x", "json", "json"},
		"an operation that is followed":                 {"op show x --follow", "json", "text"},
		"a command that prints one thing":               {"kubeconfig prod", "json", ""},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := parsed(t, test.line)
			require.NoError(t, flagsFromEnvironment(cmd, func(key string) string { return map[string]string{"ICHOR_OUTPUT": test.value}[key] }))
			if flag := cmd.Flags().Lookup("output"); test.want != "" {
				require.Equal(t, test.want, flag.Value.String())
			} else {
				require.Nil(t, flag)
			}
		})
	}
	err := flagsFromEnvironment(parsed(t, "status"), func(key string) string { return map[string]string{"ICHOR_OUTPUT": "xml"}[key] })
	require.EqualError(t, err, "ICHOR_OUTPUT: -o xml is not known to any command")
}

func parsed(t *testing.T, line string) *cobra.Command {
	t.Helper()
	cmd, rest, err := (&app{terminal: &terminal{out: io.Discard, err: io.Discard}, clock: clock.RealClock{}}).rootCommand().Find(strings.Fields(line))
	require.NoError(t, err)
	require.NoError(t, cmd.ParseFlags(rest))
	return cmd
}

func TestEveryCommandNotesItsFormsOfOutput(t *testing.T) {
	var look func(cmd *cobra.Command) int
	look = func(cmd *cobra.Command) (found int) {
		if flag := cmd.Flags().Lookup("output"); flag != nil {
			found++
			require.NotEmpty(t, flag.Annotations[formsNote], cmd.CommandPath())
			require.Equal(t, flag.DefValue, flag.Annotations[formsNote][0], cmd.CommandPath())
		}
		for _, child := range cmd.Commands() {
			found += look(child)
		}
		return found
	}
	require.Greater(t, look(parsed(t, "")), 20)
}
