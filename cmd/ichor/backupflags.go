package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"ichor.maesh.dev/backup"
	"ichor.maesh.dev/internal/scrub"
	"ichor.maesh.dev/internal/sealed"
	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/talos"
)

// backupFlags say which cluster's snapshots are meant, where they are, and what opens them.
type backupFlags struct {
	fleet, cluster, backup                    string
	bundle, from                              string
	endpoint, region, ca, addressing, keyFile string
	identities                                []string
	// file is a snapshot on this machine, for the commands that take one.
	file string

	// Made of them:
	scrubber *scrub.Scrubber
	opened   *sealed.Identities
	tree     *schema.Fleet
	secrets  *talos.Bundle
	owner    backup.Owner
	config   statefile.S3Config
}

func (f *backupFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.fleet, "fleet", ".", "a checkout of the fleet repository")
	flags.StringVar(&f.cluster, "cluster", "", "the cluster, where the checkout holds several")
	flags.StringVar(&f.backup, "backup", "", "the TalosEtcdBackup, where the cluster has several")
	flags.StringSliceVar(&f.identities, "age-identity", nil, "file with an age identity or SSH key that opens sealed files (may be repeated)")
	flags.StringVar(&f.bundle, "bundle", "", "the cluster's secrets bundle, sealed or not, instead of the checkout's")
	flags.StringVar(&f.from, "from", "", "where the snapshots are, as s3://bucket/prefix, instead of the checkout's TalosEtcdBackup")
	flags.StringVar(&f.endpoint, "s3-endpoint", "", "with --from: URL of the S3 server, if it isn't AWS's")
	flags.StringVar(&f.region, "s3-region", "", "with --from: region of the bucket")
	flags.StringVar(&f.ca, "s3-ca", "", "with --from: file with the authority of the S3 server's certificate")
	flags.StringVar(&f.addressing, "s3-addressing", "auto", "with --from: how buckets are addressed: auto, path or host")
	flags.StringVar(&f.keyFile, "s3-credentials", "", "file with the S3 keys (accessKeyID, secretAccessKey), sealed or not, instead of the backup's own")
}

// addFile adds the flag for a snapshot that is on this machine.
func (f *backupFlags) addFile(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.file, "file", "", "a snapshot on this machine instead of one in the bucket; then only the bundle is needed")
}

// load reads everything that the flags name. It sends nothing.
func (f *backupFlags) load(cmd *cobra.Command) error {
	f.scrubber = scrub.New(os.Getenv("AWS_ACCESS_KEY_ID"), os.Getenv("AWS_SECRET_ACCESS_KEY"), os.Getenv("AWS_SESSION_TOKEN"))
	err := f.loadAll(cmd)
	f.scrubber.Add(f.opened.Values()...)
	return f.scrub(err)
}

func (f *backupFlags) loadAll(cmd *cobra.Command) (err error) {
	if err := f.check(cmd); err != nil {
		return err
	}
	if f.opened, err = sealed.LoadIdentities(f.identities...); err != nil {
		return cannot(fmt.Errorf("--age-identity: %w", err), "")
	}
	if f.bundle == "" || f.from == "" && f.file == "" {
		f.tree, _ = loadTree(f.fleet)
	}
	if err := f.loadOwner(); err != nil {
		return err
	}
	if f.file != "" {
		return nil
	}
	return f.loadBucket()
}

// check refuses flags that would be ignored.
func (f *backupFlags) check(cmd *cobra.Command) error {
	changed := cmd.Flags().Changed
	for _, name := range []string{"s3-endpoint", "s3-region", "s3-ca", "s3-addressing"} {
		if changed(name) && f.from == "" {
			return usageError(fmt.Errorf("--%s goes with --from; a checkout's TalosEtcdBackup says it itself", name), "give --from s3://bucket/prefix as well")
		}
	}
	switch {
	case f.from != "" && f.bundle == "" && f.cluster == "" && !changed("fleet"):
		return usageError(errors.New("the snapshots of --from can't be opened without the cluster's secrets bundle"), "give --bundle FILE, or a checkout that holds it with --fleet")
	case f.file != "" && f.from != "":
		return usageError(errors.New("--file and --from exclude each other: one is a snapshot on this machine, the other is a bucket"), "give one of them")
	case f.backup != "" && (f.from != "" || f.file != ""):
		return usageError(errors.New("--backup names a bucket, and so does --from or --file"), "give one of them")
	}
	return nil
}

// loadOwner opens the bundle.
func (f *backupFlags) loadOwner() error {
	name, data, want, err := f.readBundle()
	if err != nil {
		return err
	}
	plain, _, err := f.opened.Open(name, data)
	if err != nil {
		return cannot(err, "give --age-identity FILE with the key of one of its recipients")
	}
	f.scrubber.Add(sealed.Scalars(plain)...)
	bundle, err := talos.LoadBundle(plain)
	if err != nil {
		return cannot(fmt.Errorf("%s: %w", name, err), "")
	}
	f.secrets = bundle
	material := bundle.SealingMaterial()
	if f.owner, err = backup.NewOwner(material.ClusterID, material.ClusterSecret, material.EncryptionSecret); err != nil {
		return cannot(fmt.Errorf("%s: %w", name, err), "")
	}
	f.scrubber.Add(f.owner.Passphrase.Secret())
	if want != "" && want != f.owner.ClusterID {
		return answerNo(fmt.Errorf("the bundle %s is of the cluster %s, and the cluster's YAML says spec.id: %s", name, f.owner.ClusterID, want),
			"put the bundle of this cluster there, or correct spec.id")
	}
	return nil
}

// readBundle gives the bundle's file, its bytes, and the spec.id that it must belong to where that is known.
func (f *backupFlags) readBundle() (name string, data []byte, id string, err error) {
	if f.bundle != "" {
		data, err := os.ReadFile(f.bundle)
		if err != nil {
			return "", nil, "", cannot(fmt.Errorf("--bundle: %w", err), "")
		}
		return f.bundle, data, "", nil
	}
	cluster, err := f.findCluster()
	if err != nil {
		return "", nil, "", err
	}
	name, data, err = f.tree.ReadRef(cluster.Source.File, cluster.Spec.Secrets)
	if err != nil {
		return "", nil, "", cannot(err, "")
	}
	return name, data, cluster.Spec.ID, nil
}

func (f *backupFlags) findCluster() (*schema.TalosCluster, error) {
	var names []string
	for _, cluster := range f.tree.Clusters {
		if cluster.Metadata.Name == f.cluster || f.cluster == "" && len(f.tree.Clusters) == 1 {
			return cluster, nil
		}
		names = append(names, cluster.Metadata.Name)
	}
	switch {
	case len(names) == 0:
		return nil, cannot(fmt.Errorf("%s holds no TalosCluster that can be read", f.fleet),
			"name a checkout with --fleet, or give --bundle FILE and --from s3://bucket/prefix; 'ichor validate' says what can't be read")
	case f.cluster == "":
		return nil, usageError(fmt.Errorf("%s holds %d clusters: %s", f.fleet, len(names), strings.Join(names, ", ")), "name one with --cluster")
	}
	return nil, cannot(fmt.Errorf("%s holds no TalosCluster %s; it holds %s", f.fleet, f.cluster, strings.Join(names, ", ")), "name one of them with --cluster")
}

// loadBucket finds out where the bucket is and how to get in.
func (f *backupFlags) loadBucket() (err error) {
	if f.from != "" {
		err = f.bucketOfFlags()
	} else {
		err = f.bucketOfFleet()
	}
	if err != nil {
		return err
	}
	if f.keyFile != "" {
		if err := useS3Keys(&f.config, f.keyFile, f.opened); err != nil {
			return cannot(fmt.Errorf("--s3-credentials %s: %w", f.keyFile, err), "")
		}
	}
	if keys := f.config.Credentials; keys != nil {
		f.scrubber.Add(keys.AccessKeyID, keys.SecretAccessKey, keys.SessionToken)
	}
	return nil
}

func (f *backupFlags) bucketOfFlags() error {
	where, err := statefile.ParseStoreURL(f.from)
	if err != nil || where.Bucket == "" {
		return usageError(fmt.Errorf("--from %s is not the place of a bucket", f.from), "write it as s3://bucket/prefix; a snapshot on this machine is given with --file")
	}
	f.config = statefile.S3Config{Endpoint: f.endpoint, Region: f.region, Bucket: where.Bucket, Prefix: where.Prefix, Addressing: f.addressing}
	if f.ca != "" {
		if f.config.CA, err = os.ReadFile(f.ca); err != nil {
			return cannot(fmt.Errorf("--s3-ca: %w", err), "")
		}
	}
	return nil
}

func (f *backupFlags) bucketOfFleet() error {
	cluster, err := f.findCluster()
	if err != nil {
		return err
	}
	var found []*schema.TalosEtcdBackup
	var names []string
	for _, b := range f.tree.Backups {
		if b.Spec.ClusterRef.Name == cluster.Metadata.Name {
			names = append(names, b.Metadata.Name)
			if f.backup == "" || f.backup == b.Metadata.Name {
				found = append(found, b)
			}
		}
	}
	switch {
	case len(names) == 0:
		return cannot(fmt.Errorf("the cluster %s has no TalosEtcdBackup", cluster.Metadata.Name), "write one, or give --from s3://bucket/prefix")
	case len(found) == 0:
		return cannot(fmt.Errorf("the cluster %s has no TalosEtcdBackup %s; it has %s", cluster.Metadata.Name, f.backup, strings.Join(names, ", ")), "name one of them with --backup")
	case len(found) > 1:
		return usageError(fmt.Errorf("the cluster %s has %d backups: %s", cluster.Metadata.Name, len(names), strings.Join(names, ", ")), "name one with --backup")
	}
	f.backup = found[0].Metadata.Name
	if f.config, err = backup.BucketOf(f.tree, found[0], f.opened); err != nil && f.keyFile == "" {
		return cannot(err, "")
	}
	return nil
}

// destination opens the bucket. It sends nothing yet.
func (f *backupFlags) destination(cmd *cobra.Command) (*backup.Opened, error) {
	opened, err := backup.OpenDestination(cmd.Context(), f.config, f.owner)
	if err != nil {
		return nil, f.scrub(cannot(err, ""))
	}
	return opened, nil
}

// scrub takes every secret out of an error's text and hint.
func (f *backupFlags) scrub(err error) error {
	if err == nil {
		return nil
	}
	var exit *exitError
	if !errors.As(err, &exit) {
		exit = &exitError{code: exitCannot, err: err}
	}
	if exit.err == nil {
		return exit
	}
	return &exitError{code: exit.code, err: f.scrubber.Error(exit.err), hint: f.scrubber.Text(exit.hint)}
}
