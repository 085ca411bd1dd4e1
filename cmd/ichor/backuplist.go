package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"ichor.maesh.dev/backup"
	"ichor.maesh.dev/internal/bytesize"
)

func (a *app) backupListCommand() *cobra.Command {
	f := &backupFlags{}
	var output string
	cmd := &cobra.Command{
		Use:   "list",
		Short: "Show the snapshots of a cluster and whether something is wrong with them",
		Long: `Lists the bucket and compares it with the sealed index, newest first. Marks: missing (the index lists it, and the bucket
doesn't hold it as it was stored), deleting (retention has let it go), unlisted (it says it is this cluster's, and the index
doesn't know it), foreign (another cluster's, or nobody knows whose).

It ends with 1 when a snapshot is missing or foreign, when the index can't be trusted, and when there is no snapshot.`,
		Example: `  ichor backup list --fleet . --cluster prod --age-identity key.txt
  ichor backup list --bundle secrets.age --age-identity key.txt --from s3://talos-backups/prod --s3-endpoint https://s3.example.com`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkOutput(output, "table", "json"); err != nil {
				return err
			}
			return a.listBackups(cmd, f, output)
		},
	}
	f.add(cmd)
	addOutput(cmd.Flags(), &output, "table", "json")
	return cmd
}

// backupList is list's answer in JSON.
type backupList struct {
	Location string `json:"location"`
	Cluster  string `json:"cluster"`
	// Index is "checked", "missing", or why it can't be trusted.
	Index     string           `json:"index"`
	Restoring bool             `json:"restoreMarker"`
	Snapshots []listedSnapshot `json:"snapshots"`
}

// listedSnapshot is a snapshot in a list; those that the index doesn't know have a name, a time and a size alone.
type listedSnapshot struct {
	Name              string              `json:"name"`
	Time              time.Time           `json:"time"`
	AgeSeconds        int64               `json:"ageSeconds"`
	Size              int64               `json:"size,omitempty"`
	SealedSize        int64               `json:"sealedSize"`
	SHA256            string              `json:"sha256,omitempty"`
	Revision          int64               `json:"revision,omitempty"`
	Member            string              `json:"member,omitempty"`
	TalosVersion      string              `json:"talosVersion,omitempty"`
	KubernetesVersion string              `json:"kubernetesVersion,omitempty"`
	Drill             *backup.DrillResult `json:"drill,omitempty"`
	// State is "listed", "missing", "deleting", "unlisted" or "foreign".
	State string `json:"state"`
}

func (a *app) listBackups(cmd *cobra.Command, f *backupFlags, output string) error {
	if err := f.load(cmd); err != nil {
		return err
	}
	destination, err := f.destination(cmd)
	if err != nil {
		return err
	}
	defer func() { _ = destination.Close() }()
	contents, err := destination.Look(cmd.Context())
	if err != nil {
		return f.refuse(err)
	}
	answer := backupList{Location: destination.Location(), Cluster: f.owner.ClusterID, Index: "checked", Restoring: contents.Marker,
		Snapshots: listedOf(contents, a.clock.Now())}
	switch {
	case contents.IndexProblem != nil:
		answer.Index = f.scrubber.Text(contents.IndexProblem.Error())
	case !contents.Indexed:
		answer.Index = "missing"
	}
	if output == "json" {
		encoder := json.NewEncoder(a.out)
		encoder.SetIndent("", "  ")
		err = encoder.Encode(answer)
	} else if len(answer.Snapshots) > 0 {
		err = a.printBackups(answer)
	}
	if err != nil {
		return cannot(err, "")
	}
	return f.refuse(problemOf(answer, contents))
}

// problemOf is what is wrong with a destination as a whole.
func problemOf(answer backupList, contents backup.Contents) error {
	var problems []string
	if contents.IndexProblem != nil {
		problems = append(problems, answer.Index)
	} else if !contents.Indexed && len(answer.Snapshots) > 0 {
		problems = append(problems, "the index etcd-index.json is gone, which proves what is this cluster's: find out who can write the bucket")
	}
	if missing := contents.Missing(); len(missing) > 0 {
		problems = append(problems, fmt.Sprintf("%d listed snapshots are gone or were changed, first %s: find out who can write the bucket", len(missing), missing[0]))
	}
	if foreign := contents.Foreign; len(foreign) > 0 {
		problems = append(problems, fmt.Sprintf("%d snapshots are not this cluster's, first %s: move them away, or give this backup a prefix of its own", len(foreign), foreign[0]))
	}
	switch {
	case len(problems) > 0:
		return answerNo(errors.New(strings.Join(problems, "; ")), "docs/backups.md says what each means")
	case len(answer.Snapshots) == 0:
		return answerNo(fmt.Errorf("%s holds no snapshot", answer.Location), "is this the bucket and the prefix? Without a slash at the end, prod and prod-2 are two prefixes")
	}
	return nil
}

// listedOf puts what the index lists and what else is there into one list, newest first.
func listedOf(contents backup.Contents, now time.Time) []listedSnapshot {
	list := []listedSnapshot{}
	for _, s := range contents.Snapshots {
		one := listedSnapshot{Name: s.Name, Time: s.Time, Size: s.Size, SealedSize: s.SealedSize, SHA256: s.SHA256, Revision: s.Revision, Member: s.Member,
			TalosVersion: s.TalosVersion, KubernetesVersion: s.KubernetesVersion, Drill: s.Drill, State: "listed"}
		switch {
		case s.Deleting:
			one.State = "deleting"
		case s.Missing:
			one.State = "missing"
		}
		list = append(list, one)
	}
	add := func(names []string, state string) {
		for _, name := range names {
			at, _ := backup.ParseName(name)
			list = append(list, listedSnapshot{Name: name, Time: at, SealedSize: contents.Sizes[name], State: state})
		}
	}
	add(contents.Unlisted, "unlisted")
	add(contents.Foreign, "foreign")
	for n := range list {
		list[n].AgeSeconds = int64(now.Sub(list[n].Time).Seconds())
	}
	slices.SortStableFunc(list, func(x, y listedSnapshot) int { return strings.Compare(y.Name, x.Name) })
	return list
}

func (a *app) printBackups(answer backupList) error {
	table := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "NAME\tAGE\tSIZE\tREVISION\tTALOS\tKUBERNETES\tDRILLED\tSTATE")
	for _, s := range answer.Snapshots {
		size, revision := bytesize.Text(s.SealedSize), "-"
		if s.Revision > 0 {
			size, revision = bytesize.Text(s.Size), fmt.Sprint(s.Revision)
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", s.Name, shortAge(time.Duration(s.AgeSeconds)*time.Second), size, revision,
			dash(a.clean(s.TalosVersion)), dash(a.clean(s.KubernetesVersion)), drilledText(s.Drill), s.State)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if answer.Restoring {
		fmt.Fprintln(a.err, "a restore's marker (etcd-restore.marker.json) stands beside the snapshots")
	}
	return nil
}

func drilledText(d *backup.DrillResult) string {
	switch {
	case d == nil:
		return "no"
	case !d.Passed:
		return "FAILED " + d.At.UTC().Format(time.DateOnly)
	}
	return d.At.UTC().Format(time.DateOnly)
}

func dash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

// shortAge is an age as kubectl shows it: its two largest units.
func shortAge(age time.Duration) string {
	switch {
	case age < 0:
		return "in the future"
	case age < time.Minute:
		return fmt.Sprintf("%ds", int(age.Seconds()))
	case age < time.Hour:
		return fmt.Sprintf("%dm", int(age.Minutes()))
	case age < 48*time.Hour:
		return fmt.Sprintf("%dh%02dm", int(age.Hours()), int(age.Minutes())%60)
	}
	return fmt.Sprintf("%dd%dh", int(age.Hours())/24, int(age.Hours())%24)
}
