package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"ichor.maesh.dev/backup"
	"ichor.maesh.dev/backup/revision"
	"ichor.maesh.dev/internal/sealed"
	"ichor.maesh.dev/reconcile"
	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/talos"
)

// readSnapshot finds the snapshot in the bucket's sealed index, and looks into it.
func (r *runOpRun) readSnapshot(ctx context.Context, bundle *talos.Bundle, opened *sealed.Identities) error {
	destination, err := r.openBackups(ctx, bundle, opened)
	if err != nil {
		return r.withoutBucket(err)
	}
	defer func() { _ = destination.Close() }()
	contents, err := destination.Look(ctx)
	if err != nil {
		return r.withoutBucket(err)
	}
	if contents.Marker {
		fmt.Fprintf(r.err, "warning: a restore's marker stands beside the snapshots (%s): one is under way, or was broken off; 'ichor status' says which\n", r.clean(destination.Location()))
	}
	if err := r.pickSnapshot(ctx, destination, contents); err != nil {
		return err
	}
	return r.openSnapshot(ctx, destination)
}

// withoutBucket goes on without the bucket where the snapshot was said with its digest.
func (r *runOpRun) withoutBucket(err error) error {
	err = r.scrubber.Error(err)
	if r.f.restore.digest == "" {
		return cannot(fmt.Errorf("the snapshots can't be read: %w", err), "mend that; or give --snapshot NAME with --sha256 HEX, as 'ichor backup list -o json' says elsewhere")
	}
	r.known.Unlisted = "the bucket can't be read from here: " + err.Error()
	r.known.NotOpened = "the bucket can't be read from here"
	return nil
}

// openBackups opens the destination of the backup.
func (r *runOpRun) openBackups(ctx context.Context, bundle *talos.Bundle, opened *sealed.Identities) (*backup.Opened, error) {
	material := bundle.SealingMaterial()
	owner, err := backup.NewOwner(material.ClusterID, material.ClusterSecret, material.EncryptionSecret)
	if err != nil {
		return nil, err
	}
	r.passphrase = owner.Passphrase
	r.scrubber.Add(owner.Passphrase.Secret())
	config, err := backup.BucketOf(r.desk.fleet, r.target.Backup, opened)
	if err != nil && r.f.restore.keyFile == "" {
		return nil, err
	}
	if file := r.f.restore.keyFile; file != "" {
		if err := useS3Keys(&config, file, opened); err != nil {
			return nil, fmt.Errorf("--s3-credentials %s: %w", file, err)
		}
	}
	if keys := config.Credentials; keys != nil {
		r.scrubber.Add(keys.AccessKeyID, keys.SecretAccessKey, keys.SessionToken)
	}
	r.scrubber.Add(os.Getenv("AWS_SECRET_ACCESS_KEY"), os.Getenv("AWS_SESSION_TOKEN"))
	return backup.OpenDestination(ctx, config, owner)
}

// readS3Keys reads a file with S3 keys, sealed or not.
func readS3Keys(file string, opened *sealed.Identities) (*statefile.S3Credentials, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	if data, _, err = opened.Open(file, data); err != nil {
		return nil, err
	}
	return statefile.ParseS3Credentials(data)
}

// useS3Keys has a bucket opened with the keys in a file. The authority beside them serves where no other is given.
func useS3Keys(config *statefile.S3Config, file string, opened *sealed.Identities) (err error) {
	if config.Credentials, err = readS3Keys(file, opened); err != nil {
		return err
	}
	if len(config.CA) == 0 {
		config.CA = config.Credentials.CA
	}
	return nil
}

// pickSnapshot settles which snapshot it is, and what is known of it.
func (r *runOpRun) pickSnapshot(ctx context.Context, destination *backup.Opened, contents backup.Contents) error {
	f, ref := r.f.restore, &r.f.request.Restore.Snapshot
	list := restorable(contents)
	var found backup.Snapshot
	var err error
	switch {
	case f.snapshot != "":
		found, err = contents.Find(f.snapshot)
	case contents.IndexProblem != nil:
		return answerNo(fmt.Errorf("which snapshot is the newest of this cluster can't be told: %w", contents.IndexProblem), "find out who can write the bucket (docs/backups.md); name one with --snapshot to use it all the same")
	case len(list) == 0:
		return answerNo(fmt.Errorf("%s holds no snapshot of this cluster that its index lists", destination.Location()), "'ichor backup list' says what is there")
	case r.interactive && f.digest == "" && r.f.confirm == "" && len(list) > 1 && !r.f.dryRun:
		found, err = r.chooseSnapshot(ctx, list)
		if err != nil {
			return err
		}
	default:
		found = list[0]
	}
	switch {
	case err == nil && f.digest != "" && f.digest != found.SHA256:
		return answerNo(fmt.Errorf("the index lists %s with the SHA-256 %s, and --sha256 is %s", found.Name, found.SHA256, f.digest), "leave --sha256 out, or name the snapshot that is meant")
	case err == nil:
		ref.Name, ref.SHA256, r.known.Snapshot = found.Name, found.SHA256, &found
	case backup.Bad(err):
		return answerNo(fmt.Errorf("%s: %w", f.snapshot, err), "take another snapshot: 'ichor backup list' names them")
	default:
		if err := r.unlisted(ctx, destination, contents); err != nil {
			return err
		}
	}
	for n := range list {
		if list[n].Name > ref.Name {
			r.known.Newer++
		}
		if list[n].Drill != nil && list[n].Drill.Passed && r.known.Proved == nil {
			r.known.Proved = &list[n]
		}
	}
	return nil
}

// restorable are the listed snapshots that are there, the newest first.
func restorable(contents backup.Contents) []backup.Snapshot {
	var list []backup.Snapshot
	for _, s := range contents.Snapshots {
		if !s.Missing && !s.Deleting {
			list = append(list, s)
		}
	}
	return list
}

// unlisted takes a snapshot that the index doesn't list: its digest is that of what is there.
func (r *runOpRun) unlisted(ctx context.Context, destination *backup.Opened, contents backup.Contents) error {
	f, ref := r.f.restore, &r.f.request.Restore.Snapshot
	if _, there := contents.Sizes[f.snapshot]; !there {
		return answerNo(fmt.Errorf("%s holds no snapshot %s", destination.Location(), f.snapshot), "'ichor backup list' names what is there; retention may have let it go")
	}
	r.known.Unlisted = "the index doesn't list it"
	switch {
	case contents.IndexProblem != nil:
		r.known.Unlisted = r.scrubber.Text(contents.IndexProblem.Error())
	case !contents.Indexed:
		r.known.Unlisted = "there is no index"
	}
	if ref.SHA256 != "" {
		return nil
	}
	body, err := destination.Fetch(ctx, f.snapshot, "")
	if err != nil {
		return cannot(err, "")
	}
	checked := backup.Check(r.progress(f.snapshot, contents.Sizes[f.snapshot], body), "")
	defer func() { _ = checked.Close() }()
	if _, _, err := backup.VerifySealed(checked, r.passphrase); err != nil {
		return answerNo(fmt.Errorf("%s: %w", f.snapshot, err), "take another snapshot: 'ichor backup list' names them")
	}
	ref.SHA256 = checked.SHA256()
	return nil
}

// openSnapshot fetches the snapshot and looks into it. A snapshot that is no good ends the command; what hinders the look only is said.
func (r *runOpRun) openSnapshot(ctx context.Context, destination *backup.Opened) error {
	ref := r.f.request.Restore.Snapshot
	if r.f.restore.noFetch {
		r.known.NotOpened = "--no-fetch"
		return nil
	}
	contents, err := r.lookInto(ctx, destination, ref)
	var bad *revision.BadError
	switch {
	case err == nil:
		r.known.Opened, r.known.NotOpened = &contents.Counts, ""
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.As(err, &bad), backup.Bad(err):
		return answerNo(fmt.Errorf("%s: %w", ref.Name, err), "take another snapshot: 'ichor backup list' names them, and 'ichor backup drill' proves one")
	}
	r.known.NotOpened = r.scrubber.Text(err.Error())
	return nil
}

func (r *runOpRun) lookInto(ctx context.Context, destination *backup.Opened, ref schema.SnapshotRef) (revision.Contents, error) {
	folder := r.f.restore.spool
	if folder == "" {
		cache, err := cacheFolder("")
		if err != nil {
			return revision.Contents{}, errors.New("no cache folder is known to work in: give --spool FOLDER")
		}
		folder = filepath.Join(cache, "spool")
	}
	spool, err := backup.OpenSpool(folder)
	if err != nil {
		return revision.Contents{}, err
	}
	body, err := destination.Fetch(ctx, ref.Name, "")
	if err != nil {
		return revision.Contents{}, err
	}
	size := int64(0)
	if r.known.Snapshot != nil {
		size = r.known.Snapshot.SealedSize
	}
	checked := backup.Check(r.progress(ref.Name, size, body), ref.SHA256)
	defer func() { _ = checked.Close() }()
	plain, err := backup.OpenChecked(checked, r.passphrase)
	if err != nil {
		return revision.Contents{}, err
	}
	ready, err := revision.Prepare(ctx, plain, size, spool, func(int64) (int64, error) { return 0, nil })
	if err != nil {
		return revision.Contents{}, err
	}
	return ready.Before, ready.Close()
}

// lookAtMachines asks the control planes how they stand. Where none answers, the way to them may be what is missing.
func (r *runOpRun) lookAtMachines(ctx context.Context, bundle *talos.Bundle) {
	if r.f.restore.noLook {
		r.known.NotAsked = "--no-look"
		return
	}
	client := talos.NewClient(bundle, talos.ClientOptions{Clock: r.clock, Scrubber: r.scrubber})
	defer func() { _ = client.Close() }()
	state := r.state
	if state == nil {
		state = &statefile.State{}
	}
	var targets []talos.Target
	for _, target := range reconcile.Targets(r.target.Cluster, state) {
		if target.ControlPlane {
			targets = append(targets, target)
		}
	}
	observed := r.lookTwice(ctx, reconcile.TalosNodes(client), targets)
	for _, o := range observed {
		if o.Mode != talos.ModeUnknown {
			r.known.Seen, r.known.NotAsked = reconcile.SeenForRestore(observed), ""
			return
		}
	}
	r.known.NotAsked = "no control plane answers this machine"
}

// lookTwice looks at machines, and once more at those that didn't tell all: one slow answer shall not decide what is shown.
func (r *runOpRun) lookTwice(ctx context.Context, nodes reconcile.Observer, targets []talos.Target) map[string]talos.Observation {
	look := func(targets []talos.Target) map[string]talos.Observation {
		bounded, cancel := context.WithTimeout(ctx, restoreWait)
		defer cancel()
		return reconcile.Observe(bounded, nodes, targets, reconcile.DefaultTiming())
	}
	toldAll := func(o talos.Observation) bool { return o.Mode != talos.ModeUnknown && o.Problem == "" }
	observed := look(targets)
	again := slices.DeleteFunc(slices.Clone(targets), func(t talos.Target) bool { return toldAll(observed[t.Name]) })
	if len(again) == 0 || ctx.Err() != nil {
		return observed
	}
	fmt.Fprintf(r.err, "%s didn't tell all: asked once more\n", r.clean(targetNames(again)))
	for name, o := range look(again) {
		if o.Mode != talos.ModeUnknown || observed[name].Mode == talos.ModeUnknown { // a part of an answer is more than none
			observed[name] = o
		}
	}
	return observed
}

func targetNames(targets []talos.Target) string {
	var names []string
	for _, t := range targets {
		names = append(names, t.Name)
	}
	return strings.Join(names, ", ")
}

// mark is the hash of the state's location, which managed machines bear.
func (r *runOpRun) mark() string { return statefile.LocationHash(r.store) }
