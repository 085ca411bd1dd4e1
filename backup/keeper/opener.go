package keeper

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"

	"ichor.maesh.dev/backup"
	"ichor.maesh.dev/internal/scrub"
	"ichor.maesh.dev/internal/sealed"
	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/statefile"
)

// Place is an open destination.
type Place struct {
	*backup.Destination
	// Key changes with everything that decides who asks for what.
	Key   string
	Close func() error
}

// Opener opens the destination of a backup; *Places is one. It sends nothing yet. Its errors say what to do.
type Opener interface {
	Open(ctx context.Context, fleet *schema.Fleet, b *schema.TalosEtcdBackup, owner backup.Owner) (*Place, error)
}

// Places opens the destinations that an agent may use.
type Places struct {
	// Identities gives what opens sealed files.
	Identities func() (*sealed.Identities, error)
	Scrubber   *scrub.Scrubber
	// StateLocation is where the state is: no destination may be there.
	StateLocation string
	// Own are the destinations for which the agent's own keys serve, and Keys those keys; nil: the AWS_* environment, else the instance's.
	Own  []statefile.StoreURL
	Keys *statefile.S3Credentials
	// Requests counts what is asked of the buckets; nil: nobody does.
	Requests *statefile.Requests
}

// ParseOwn reads the values of --backup-destination.
func ParseOwn(list []string) ([]statefile.StoreURL, error) {
	var own []statefile.StoreURL
	for _, text := range list {
		where, err := statefile.ParseStoreURL(text)
		if err != nil || where.Bucket == "" {
			return nil, fmt.Errorf("the destination %s is no bucket; write it as s3://bucket/prefix", text)
		}
		own = append(own, where)
	}
	return own, nil
}

// Open opens a destination.
func (p *Places) Open(ctx context.Context, fleet *schema.Fleet, b *schema.TalosEtcdBackup, owner backup.Owner) (*Place, error) {
	identities, err := p.Identities()
	if err != nil {
		return nil, &problem{"CredentialsUnreadable", fmt.Errorf("the age identity can't be used: %w", err)}
	}
	config, err := backup.BucketOf(fleet, b, identities)
	p.Scrubber.Add(identities.Values()...)
	if err != nil {
		return nil, &problem{"CredentialsUnreadable", fmt.Errorf("the destination can't be opened: %w", err)}
	}
	if config.Credentials == nil {
		if !slices.Contains(p.Own, statefile.StoreURL{Bucket: config.Bucket, Prefix: strings.Trim(config.Prefix, "/")}) {
			return nil, &problem{"CredentialsUnreadable", fmt.Errorf("the backup names no credentials, and this agent's own serve only where it was told "+
				"so: give spec.destination.s3.credentials, or start the agent with --backup-destination s3://%s/%s", config.Bucket, config.Prefix)}
		}
		config.Credentials = p.Keys
	}
	if c := config.Credentials; c != nil {
		p.Scrubber.Add(c.SecretAccessKey, c.SessionToken)
	}
	config.Requests, config.Use = p.Requests, statefile.BucketOfBackups
	opened, err := backup.OpenDestination(ctx, config, owner)
	if err != nil {
		return nil, &problem{"DestinationUnusable", err}
	}
	if Within(opened.Location(), p.StateLocation) {
		return nil, &problem{"DestinationUnusable", errors.Join(fmt.Errorf("the destination %s is where the agent's state is: whoever may write snapshots could "+
			"write the state; give another bucket, or another prefix", opened.Location()), opened.Close())}
	}
	return &Place{Destination: opened.Destination, Key: key(config), Close: opened.Close}, nil
}

// Within says whether a location is another one, or below it.
func Within(location, other string) bool {
	return strings.HasPrefix(strings.TrimRight(location, "/")+"/", strings.TrimRight(other, "/")+"/")
}

// key tells two configs apart without holding their keys.
func key(c statefile.S3Config) string {
	sum := sha256.New()
	for _, part := range []string{c.Endpoint, c.Region, c.Bucket, c.Prefix, c.Addressing, string(c.CA)} {
		fmt.Fprintf(sum, "%d:%s,", len(part), part)
	}
	if k := c.Credentials; k != nil {
		fmt.Fprintf(sum, "%d:%s,%d:%s,%d:%s", len(k.AccessKeyID), k.AccessKeyID, len(k.SecretAccessKey), k.SecretAccessKey, len(k.SessionToken), k.SessionToken)
	}
	return hex.EncodeToString(sum.Sum(nil))
}
