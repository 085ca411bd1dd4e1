package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"ichor.maesh.dev/internal/printable"
	"ichor.maesh.dev/internal/talossim/apid"
)

// actions are what can be done to a machine, with what it does.
func actions() map[string]string {
	return map[string]string{
		"power-cycle": "cut a machine's power and start it again at once",
		"power-off":   "cut a machine's power",
		"power-on":    "start a machine that is off",
		"partition":   "pull a machine's network cable: nothing passes and nobody is told",
		"heal":        "plug the cable in again and make it fast",
		"slow":        "delay everything that a machine sends",
	}
}

func newCtl() *cobra.Command {
	cmd := &cobra.Command{Use: "ctl", Short: "Do something to a machine of a running talossim or to its etcd, or read its journal"}

	var dir string

	cmd.PersistentFlags().StringVar(&dir, "dir", "", "folder of the running talossim")
	cmd.MarkPersistentFlagRequired("dir") //nolint:errcheck // the flag exists

	for action, short := range actions() {
		var delay time.Duration

		sub := &cobra.Command{
			Use:   action + " NODE",
			Short: strings.ToUpper(short[:1]) + short[1:],
			Args:  cobra.ExactArgs(1),
			RunE: func(cmd *cobra.Command, args []string) error {
				return ask(cmd.Context(), dir, args[0], action, delay)
			},
		}
		if action == "slow" {
			sub.Flags().DurationVar(&delay, "delay", 200*time.Millisecond, "how long each write takes")
		}

		cmd.AddCommand(sub)
	}

	cmd.AddCommand(newJournal(&dir), newEtcd(&dir))

	return cmd
}

func newJournal(dir *string) *cobra.Command {
	var (
		output   string
		method   string
		accepted bool
	)

	cmd := &cobra.Command{
		Use:   "journal NODE",
		Short: "Every call that a node got: caller, answer, and whether the node took it",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if args[0] != filepath.Base(args[0]) || strings.HasPrefix(args[0], ".") {
				return fmt.Errorf("%s is not a machine's name", printable.Text(args[0]))
			}

			entries, err := apid.ReadJournal(filepath.Join(*dir, args[0], apid.JournalFile))
			if errors.Is(err, os.ErrNotExist) {
				return fmt.Errorf("%s has no machine %s that was ever called", *dir, printable.Text(args[0]))
			}

			if err != nil {
				return err
			}

			entries = slices.DeleteFunc(entries, func(e apid.Entry) bool {
				return accepted && !e.Accepted || method != "" && !strings.HasSuffix(e.Method, "/"+method)
			})

			return printJournal(cmd, output, entries)
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "text", "text or json (one object a line)")
	cmd.Flags().StringVar(&method, "method", "", "only calls of this method, for example Reset")
	cmd.Flags().BoolVar(&accepted, "accepted", false, "only calls that changed something")

	return cmd
}

func printJournal(cmd *cobra.Command, output string, entries []apid.Entry) error {
	switch output {
	case "json":
		encoder := json.NewEncoder(cmd.OutOrStdout())
		for _, e := range entries {
			if err := encoder.Encode(e); err != nil {
				return fmt.Errorf("printing the journal: %w", err)
			}
		}

		return nil
	case "text":
	default:
		return fmt.Errorf("--output is text or json, not %s", printable.Text(output))
	}

	w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 4, 2, ' ', 0)
	fmt.Fprintln(w, "SEQ\tTIME\tBOOT\tCALLER\tMETHOD\tANSWER\tTOOK\tREQUEST") //nolint:errcheck // Flush tells

	for _, e := range entries {
		took := ""
		if e.Accepted {
			took = "yes"
		} else if e.Mutating {
			took = "no"
		}

		fmt.Fprintf(w, "%d\t%s\t%.8s\t%s\t%s\t%s\t%s\t%s\n", e.Seq, e.Time.Format("15:04:05.000"), e.BootID, printable.Text(caller(e)), //nolint:errcheck // likewise
			e.Method[strings.LastIndexByte(e.Method, '/')+1:], printable.Text(strings.TrimSpace(e.Code+" "+e.Text+" "+e.Note)), took, request(e))
	}

	return w.Flush()
}

func caller(e apid.Entry) string {
	if e.Caller.Maintenance {
		return "maintenance"
	}

	return strings.Join(e.Caller.Organization, ",")
}

func request(e apid.Entry) string {
	if len(e.Request) == 0 {
		return ""
	}

	raw, err := json.Marshal(e.Request)
	if err != nil {
		return ""
	}

	return printable.Text(string(raw))
}
