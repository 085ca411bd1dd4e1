package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"ichor.maesh.dev/backup"
	"ichor.maesh.dev/backup/drill"
)

// backupDrillFlags are the command line of backup drill.
type backupDrillFlags struct {
	backupFlags
	spool, output string
	noRecord      bool
}

func (a *app) backupDrillCommand() *cobra.Command {
	f := &backupDrillFlags{}
	cmd := &cobra.Command{
		Use:   "drill [NAME]",
		Short: "Prove a snapshot by restoring it on this machine",
		Long: `Fetches a snapshot (the newest without a name), checks it, restores it into a temporary etcd data folder with etcd's own code,
and counts what is in it. No cluster is touched. The result is written beside the snapshot in the sealed index, where the agent and
retention find it; --no-record leaves it out, for keys that may only read.

It takes twice the snapshot's size of disk (--spool), for as long as it runs. It ends with 1 when the snapshot can't be restored, and 2
when that can't be told.`,
		Example: `  ichor backup drill --fleet . --cluster prod --age-identity key.txt
  ichor backup drill --bundle secrets.yaml --file etcd-20261129T100000Z.snapshot.age`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkOutput(f.output, "text", "json"); err != nil {
				return err
			}
			return a.drillBackup(cmd, f, args)
		},
	}
	f.add(cmd)
	f.addFile(cmd)
	flags := cmd.Flags()
	flags.StringVar(&f.spool, "spool", "", "a private folder with room for the work (default: in the user's cache folder)")
	flags.BoolVar(&f.noRecord, "no-record", false, "don't write the result into the index")
	addOutput(flags, &f.output, "text", "json")
	return cmd
}

// drillAnswer is drill's answer in JSON.
type drillAnswer struct {
	Name     string             `json:"name"`
	Drill    backup.DrillResult `json:"drill"`
	Listed   bool               `json:"listed"`
	Recorded bool               `json:"recorded"`
}

func (a *app) drillBackup(cmd *cobra.Command, f *backupDrillFlags, args []string) error {
	if f.spool == "" {
		cache, err := cacheFolder("")
		if err != nil {
			return cannot(errors.New("no cache folder is known to work in"), "give --spool FOLDER")
		}
		f.spool = filepath.Join(cache, "spool")
	}
	spool, err := backup.OpenSpool(f.spool)
	if err != nil {
		return cannot(err, "give another folder with --spool")
	}
	source, err := f.open(a, cmd, args)
	if err != nil {
		return err
	}
	defer source.close()
	result, err := f.run(cmd, source, spool, a)
	if err != nil {
		return f.refuse(fmt.Errorf("drilling %s: %w", source.name, err))
	}
	answer := drillAnswer{Name: source.name, Drill: result, Listed: source.listed != nil}
	var unrecorded error
	if answer.Listed && !f.noRecord {
		unrecorded = source.destination.NoteDrill(cmd.Context(), source.name, result)
		answer.Recorded = unrecorded == nil
	}
	if err := a.printDrill(f.output, answer); err != nil {
		return cannot(err, "")
	}
	switch {
	case !result.Passed:
		err = answerNo(fmt.Errorf("the drill of %s failed: %s", source.name, result.Problem), "take another snapshot from 'ichor backup list', and drill that")
		if unrecorded != nil {
			err = answerNo(fmt.Errorf("the drill of %s failed: %s; and that could not be written into the index: %w", source.name, result.Problem, unrecorded), "")
		}
		return f.refuse(err)
	case unrecorded != nil:
		return f.refuse(cannot(fmt.Errorf("the drill of %s passed, and that could not be written into the index: %w", source.name, unrecorded),
			"with keys that may only read, give --no-record"))
	}
	return nil
}

// run drills; a snapshot that is no good is a result, and an error says that nobody knows.
func (f *backupDrillFlags) run(cmd *cobra.Command, source *backupSource, spool *backup.Spool, a *app) (backup.DrillResult, error) {
	size := source.size
	if source.listed != nil {
		size = source.listed.Size
	}
	plain, err := backup.OpenChecked(source.Checked, f.owner.Passphrase)
	var counts drill.Counts
	if err == nil {
		counts, err = drill.Run(cmd.Context(), plain, size, spool)
	}
	result := backup.DrillResult{At: a.clock.Now().UTC(), Passed: err == nil, Revision: counts.Revision, Keys: counts.Keys, Resources: counts.Resources}
	var failed *drill.FailedError
	if errors.As(err, &failed) || backup.Bad(err) {
		result.Problem, err = f.scrubber.Text(err.Error()), nil
	}
	return result, err
}

func (a *app) printDrill(output string, answer drillAnswer) error {
	if output == "json" {
		return json.NewEncoder(a.out).Encode(answer)
	}
	if !answer.Drill.Passed {
		return nil // what is wrong is said as the error
	}
	fmt.Fprintf(a.out, "%s was restored: revision %d, %d keys", a.clean(answer.Name), answer.Drill.Revision, answer.Drill.Keys)
	switch {
	case answer.Recorded:
		fmt.Fprintln(a.out, "; the index says so now")
	default:
		fmt.Fprintln(a.out, "; the index was not changed")
	}
	table := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
	for _, name := range slices.Sorted(maps.Keys(answer.Drill.Resources)) {
		fmt.Fprintf(table, "  %s\t%d\n", a.clean(name), answer.Drill.Resources[name])
	}
	return table.Flush()
}
