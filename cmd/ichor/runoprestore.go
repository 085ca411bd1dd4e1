package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"ichor.maesh.dev/backup"
	"ichor.maesh.dev/internal/bytesize"
	"ichor.maesh.dev/internal/sealed"
	"ichor.maesh.dev/reconcile"
	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/talos"
	"ichor.maesh.dev/validate"
)

// restoreOpFlags are the flags of an etcd-restore beside those of every run-op.
type restoreOpFlags struct {
	snapshot, digest, localDataLoss, keyFile, spool string
	without                                         []string
	bump, acceptUnlisted, noFetch, noLook           bool
	timeScale                                       float64
}

func (f *restoreOpFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.snapshot, "snapshot", "", "the snapshot's name, as 'ichor backup list' shows it (default: the newest; on a terminal the newest ones are shown to choose from)")
	flags.StringVar(&f.digest, "sha256", "", "the snapshot's SHA-256 as it is stored, where the bucket can't be read from here; with --snapshot")
	flags.StringArrayVar(&f.without, "without", nil, "a control plane that is off for good: not restored on, and not waited for (may be repeated)")
	flags.StringVar(&f.localDataLoss, "local-data-loss", "", `"accepted": what pods keep on control planes that are wiped may be lost; asked for where pods may run there`)
	flags.BoolVar(&f.bump, "revision-bump", true, "raise etcd's revision, so that clients that live through this are told to read everything anew")
	flags.BoolVar(&f.acceptUnlisted, "accept-unlisted", false, "also a snapshot that the sealed index doesn't list")
	flags.BoolVar(&f.noFetch, "no-fetch", false, "don't fetch the snapshot to look into it; the agent does in any case before anything is changed")
	flags.BoolVar(&f.noLook, "no-look", false, "don't ask the control planes how they stand; the agent does in any case")
	flags.StringVar(&f.keyFile, "s3-credentials", "", "file with the S3 keys of the backups (accessKeyID, secretAccessKey), sealed or not, instead of the backup's own")
	flags.StringVar(&f.spool, "spool", "", "a private folder with room for the snapshot (default: in the user's cache folder)")
	flags.Float64Var(&f.timeScale, "time-scale", 1, "how many times as fast the time of the machines runs; for simulated ones only")
}

func (a *app) runOpRestoreCommand() *cobra.Command {
	f := &runOpFlags{restore: &restoreOpFlags{}}
	cmd := &cobra.Command{
		Use:   "etcd-restore [BACKUP]",
		Short: "Put a snapshot in the place of a live cluster's etcd",
		Long: `Asks the agent to restore a snapshot into a cluster that lives. Everything that was written to its Kubernetes API since is lost.
BACKUP is the name of the TalosEtcdBackup, which may be left out where the cluster has one only. The cluster's name has to be typed.

It says which of the two ways would be taken and why, what is lost, how long it takes, and how it is ended by hand. 'ichor restore --live'
is the same, and follows it to its end. For a cluster that is gone there is 'ichor restore --recover-cluster'.`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: a.completeBackups(&f.desk),
		RunE: func(cmd *cobra.Command, args []string) error {
			f.request.Kind = schema.OperationEtcdRestore
			if len(args) == 1 {
				f.request.Target = args[0]
			}
			return a.runOp(cmd.Context(), f)
		},
	}
	f.add(cmd)
	f.restore.add(cmd)
	f.addConfirm(cmd, "cluster")
	return cmd
}

// checkRestore refuses flags of a restore that make no sense.
func (f *restoreOpFlags) check() error {
	switch {
	case f.localDataLoss != "" && f.localDataLoss != "accepted":
		return usageError(fmt.Errorf("--local-data-loss %q says nothing", f.localDataLoss), "give --local-data-loss accepted, or leave it out and be asked")
	case f.digest != "" && f.snapshot == "":
		return usageError(errors.New("--sha256 is of one snapshot, and which one was not said"), "give --snapshot NAME")
	}
	if _, ok := backup.ParseName(f.snapshot); f.snapshot != "" && !ok {
		return usageError(fmt.Errorf("%q is not the name of a snapshot; one is like etcd-20261129T100000Z.snapshot.age", f.snapshot), "'ichor backup list' names them")
	}
	return nil
}

// prepareRestore finds the snapshot, looks into it and at the machines, and asks for what must be said before the file is written.
func (r *runOpRun) prepareRestore(ctx context.Context) error {
	f := r.f.restore
	r.known = &reconcile.RestoreKnown{Now: r.clock.Now(), RecoverFlags: r.recoverFlags()}
	bundle, opened, err := r.openSecrets()
	if err != nil && f.digest == "" {
		return cannot(fmt.Errorf("the snapshots can't be read without the cluster's secrets: %w", r.scrubber.Error(err)),
			"give --age-identity FILE; or --snapshot NAME with --sha256 HEX, as 'ichor backup list -o json' says elsewhere")
	}
	r.known.NotAsked, r.known.NotOpened = "the cluster's secrets can't be opened here", "the cluster's secrets can't be opened here"
	restore := &r.f.request.Restore
	restore.Without, restore.LocalDataLoss, restore.PlainRevision, restore.AcceptUnlisted = f.without, f.localDataLoss, !f.bump, f.acceptUnlisted
	restore.Snapshot = schema.SnapshotRef{Name: f.snapshot, SHA256: f.digest}
	r.f.request.Confirm = r.target.Cluster.Name()
	if bundle != nil {
		if err := r.readSnapshot(ctx, bundle, opened); err != nil {
			return r.scrubber.Error(err)
		}
		r.lookAtMachines(ctx, bundle)
	} else {
		r.known.Unlisted = "the index was not read"
		restore.AcceptUnlisted = f.acceptUnlisted
	}
	if r.known.Mark == "" && r.store != nil {
		r.known.Mark = r.mark()
	}
	r.storesInside()
	r.supposeLocalDataLoss()
	return nil
}

// openSecrets opens the bundle of the cluster, as it stands in Git.
func (r *runOpRun) openSecrets() (*talos.Bundle, *sealed.Identities, error) {
	opened, err := r.f.state.load()
	if err != nil {
		return nil, nil, err
	}
	bundle, err := reconcile.OpenBundle(r.desk.fleet, r.target.Cluster.Object, opened)
	r.scrubber.Add(opened.Values()...)
	if err != nil {
		return nil, nil, err
	}
	r.scrubber.Add(bundle.Scalars()...)
	return bundle, opened, nil
}

// storesInside says which stores lie inside of the cluster that is restored: while it is away, nobody reaches them.
func (r *runOpRun) storesInside() {
	cluster := r.target.Cluster
	alone := &schema.Fleet{Clusters: []*schema.TalosCluster{cluster.Object}, Machines: cluster.Machines}
	if s3 := r.target.Backup.Spec.Destination.S3; s3 != nil {
		if is := validate.Inside(alone, s3.Endpoint); is != "" {
			r.known.Inside = append(r.known.Inside, fmt.Sprintf("the snapshots are kept at %s, which is %s: it goes away in the restore, and the restore can't read them then; "+
				"copy the snapshot elsewhere first ('ichor backup get') and use ichor restore --recover-cluster --file", s3.Endpoint, is))
		}
	}
	if r.store == nil {
		return
	}
	if host := storeHost(r.store); host != "" {
		if is := validate.Inside(alone, host); is != "" {
			r.known.Inside = append(r.known.Inside, fmt.Sprintf("the state is kept at %s, which is %s: it goes away in the restore, and the agent stops until it is back; keep it outside",
				host, is))
		}
	}
}

// recoverFlags are those with which 'ichor restore --recover-cluster' reaches what this command reaches.
func (r *runOpRun) recoverFlags() string {
	fleet := "CHECKOUT"
	if r.desk.checkout != nil {
		fleet = quoted(r.desk.checkout.Dir)
	}
	text := "--fleet " + fleet + r.f.state.typed()
	if scale := r.f.restore.timeScale; scale != 1 {
		text += " --time-scale " + strconv.FormatFloat(scale, 'g', -1, 64)
	}
	return text
}

// supposeLocalDataLoss writes into the file that what pods keep on control planes may be lost, where a person is there to be asked for it. It is
// asked for when they have read which machines that is about.
func (r *runOpRun) supposeLocalDataLoss() {
	restore := &r.f.request.Restore
	if !r.target.Cluster.Object.Spec.ControlPlanesSchedulable() || restore.LocalDataLoss != "" || !r.interactive || r.f.dryRun || r.f.output == "json" {
		return
	}
	restore.LocalDataLoss, r.supposed = "accepted", true
}

// askLocalDataLoss has it typed that what pods keep on control planes may be lost.
func (r *runOpRun) askLocalDataLoss(ctx context.Context) error {
	fmt.Fprintf(r.err, "pods may run on the control planes of %s, and what they keep on the disks of those that are wiped is lost, as said above under what is lost.\n"+
		"type accepted to go on: ", r.clean(r.target.Cluster.Name()))
	answer, err := r.readLine(ctx)
	if err != nil && !errors.Is(err, io.EOF) {
		return cannot(fmt.Errorf("nothing was signed: %w", err), "")
	}
	if strings.TrimSpace(answer) != "accepted" {
		return answerNo(errors.New("that is not accepted; nothing was signed"), "move what they keep first; without it nothing can be restored live")
	}
	return nil
}

// chooseSnapshot shows the newest snapshots and asks for one. Enter takes the first.
func (r *runOpRun) chooseSnapshot(ctx context.Context, list []backup.Snapshot) (backup.Snapshot, error) {
	const most = 12
	shown := list[:min(len(list), most)]
	table := tabwriter.NewWriter(r.err, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "\tSNAPSHOT\tAGE\tSIZE\tREVISION\tDRILLED")
	for n, s := range shown {
		fmt.Fprintf(table, "%d\t%s\t%s\t%s\t%d\t%s\n", n+1, s.Name, shortAge(r.clock.Since(s.Time)), bytesize.Text(s.Size), s.Revision, drilledText(s.Drill))
	}
	if err := table.Flush(); err != nil {
		return backup.Snapshot{}, err
	}
	if more := len(list) - len(shown); more > 0 {
		fmt.Fprintf(r.err, "and %d older ones: 'ichor backup list' names them, and --snapshot takes one\n", more)
	}
	fmt.Fprint(r.err, "which one? [1] ")
	answer, err := r.readLine(ctx)
	if err != nil && !errors.Is(err, io.EOF) {
		return backup.Snapshot{}, cannot(fmt.Errorf("nothing was signed: %w", err), "")
	}
	answer = strings.TrimSpace(answer)
	if answer == "" {
		return shown[0], nil
	}
	n, err := strconv.Atoi(answer)
	if err != nil || n < 1 || n > len(shown) {
		return backup.Snapshot{}, answerNo(fmt.Errorf("%q is none of these; nothing was signed", answer), "give its number, or its name with --snapshot")
	}
	return shown[n-1], nil
}

// restoreWait is how long this command waits for the machines: each look is bounded, and those that don't answer are said.
const restoreWait = 20 * time.Second
