package backup

import (
	"context"
	"errors"
	"fmt"

	"ichor.maesh.dev/internal/sealed"
	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/statefile"
)

// NewOwner makes of what a secrets bundle holds what a destination needs of it: the bundle's cluster.id and cluster.secret, and the
// encryption secret that seals are made with.
func NewOwner(clusterID, clusterSecret, encryptionSecret string) (Owner, error) {
	passphrase, err := NewPassphrase(clusterID, clusterSecret)
	if err != nil {
		return Owner{}, err
	}
	sealer, err := statefile.NewSealer(clusterID, encryptionSecret, "")
	if err != nil {
		return Owner{}, err
	}
	return Owner{ClusterID: schema.ClusterID(clusterID), Passphrase: passphrase, Sealer: sealer}, nil
}

// BucketOf gives the bucket of a backup as its document and the files that it names say. Without credentials of its own the result has
// none, and the caller says whose serve. What comes out of sealed files is remembered by the identities, for scrubbers. Errors name the
// file and quote nothing of it.
func BucketOf(fleet *schema.Fleet, b *schema.TalosEtcdBackup, identities *sealed.Identities) (statefile.S3Config, error) {
	s3 := b.Spec.Destination.S3
	if s3 == nil {
		return statefile.S3Config{}, fmt.Errorf("the backup %s has no destination.s3", b.Metadata.Name)
	}
	config := statefile.S3Config{Endpoint: s3.Endpoint, Region: s3.Region, Bucket: s3.Bucket, Prefix: s3.Prefix, Addressing: s3.Addressing}
	read := func(ref schema.FileRef) (string, []byte, error) {
		name, data, err := fleet.ReadRef(b.Source.File, ref)
		if err != nil {
			return "", nil, err
		}
		data, _, err = identities.Open(name, data)
		return name, data, err
	}
	if s3.Credentials != nil {
		name, data, err := read(*s3.Credentials)
		if err != nil {
			return statefile.S3Config{}, fmt.Errorf("the credentials of the backup %s: %w", b.Metadata.Name, err)
		}
		if config.Credentials, err = statefile.ParseS3Credentials(data); err != nil {
			return statefile.S3Config{}, fmt.Errorf("the credentials of the backup %s: %s: %w", b.Metadata.Name, name, err)
		}
		config.CA = config.Credentials.CA
	}
	if s3.CA != nil {
		_, data, err := read(*s3.CA)
		if err != nil {
			return statefile.S3Config{}, fmt.Errorf("the authority of the backup %s: %w", b.Metadata.Name, err)
		}
		config.CA = data
	}
	return config, nil
}

// Opened is a destination with the bucket that it is in. Close gives up the connections.
type Opened struct {
	*Destination
	bucket *statefile.Bucket
}

// Close gives up the connections.
func (o *Opened) Close() error { return o.bucket.Close() }

// OpenDestination opens a destination; it sends nothing yet.
func OpenDestination(ctx context.Context, config statefile.S3Config, owner Owner) (*Opened, error) {
	if owner.ClusterID == "" {
		return nil, errors.New("a backup's destination can't be opened without the cluster's secrets bundle")
	}
	bucket, err := statefile.OpenBucket(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("opening the bucket of the backup: %w", err)
	}
	return &Opened{NewDestination(bucket, config.Prefix, owner), bucket}, nil
}
