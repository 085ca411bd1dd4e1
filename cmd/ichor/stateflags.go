package main

import (
	"context"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"ichor.maesh.dev/internal/scrub"
	"ichor.maesh.dev/internal/sealed"
	"ichor.maesh.dev/statefile"
)

// stateFlags say where the state is and how to get in.
type stateFlags struct {
	url, credentials, endpoint, region, ca, addressing string
	identities                                         []string
	// requests counts what is asked of the bucket; nil: nobody does.
	requests *statefile.Requests
}

func (f *stateFlags) add(cmd *cobra.Command) {
	f.addPlace(cmd)
	cmd.Flags().StringSliceVar(&f.identities, "age-identity", nil, "file with an age identity that opens sealed files (may be repeated)")
}

// addPlace adds the flags that say where the state is, for a command that has its own for identities.
func (f *stateFlags) addPlace(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.url, "state", "", "where the state is: s3://bucket/prefix or file:///path")
	flags.StringVar(&f.credentials, "state-credentials", "", "file with the S3 keys (accessKeyID, secretAccessKey), sealed or not; else AWS_* is used")
	flags.StringVar(&f.endpoint, "state-endpoint", "", "URL of the S3 server, if it isn't AWS's")
	flags.StringVar(&f.region, "state-region", "", "region of the bucket")
	flags.StringVar(&f.ca, "state-ca", "", "file with the authority of the S3 server's certificate")
	flags.StringVar(&f.addressing, "state-addressing", "auto", "how buckets are addressed: auto, path or host")
}

// load reads the age identities; without any, sealed files can't be opened, and that is no error here.
func (f *stateFlags) load() (*sealed.Identities, error) {
	identities, err := sealed.LoadIdentities(f.identities...)
	if err != nil {
		return nil, fmt.Errorf("--age-identity: %w", err)
	}
	return identities, nil
}

// typed are these flags as they were given, to be typed for another command.
func (f *stateFlags) typed() string {
	text := ""
	for _, flag := range []struct{ name, value string }{{"state", f.url}, {"state-credentials", f.credentials}, {"state-endpoint", f.endpoint}, {"state-region", f.region},
		{"state-ca", f.ca}} {
		if flag.value != "" {
			text += " --" + flag.name + " " + quoted(flag.value)
		}
	}
	if f.addressing != "" && f.addressing != "auto" {
		text += " --state-addressing " + quoted(f.addressing)
	}
	for _, file := range f.identities {
		text += " --age-identity " + quoted(file)
	}
	return text
}

// open opens the store. As agent it takes what only one agent may hold. The keys become known to the scrubber.
func (f *stateFlags) open(ctx context.Context, scrubber *scrub.Scrubber, agent bool) (statefile.Store, error) {
	if f.url == "" {
		return nil, cannot(fmt.Errorf("where the state is was not said"), "give --state s3://bucket/prefix, or --state file:///path to try it")
	}
	where, err := statefile.ParseStoreURL(f.url)
	if err != nil {
		return nil, cannot(fmt.Errorf("--state %s: %w", f.url, err), "write it as s3://bucket/prefix or file:///path")
	}
	if where.Folder != "" {
		if _, err := os.Stat(where.Folder); err != nil && !agent { // who only looks makes no folder out of a slip in its name
			return nil, cannot(fmt.Errorf("--state: %w", err), "name the folder that the agent is started with, or make it where no agent has run so far")
		}
		store, err := statefile.OpenFolder(where.Folder, statefile.FolderOptions{Agent: agent})
		if err != nil {
			return nil, cannot(err, "")
		}
		return store, nil
	}
	config := statefile.S3Config{Endpoint: f.endpoint, Region: f.region, Bucket: where.Bucket, Prefix: where.Prefix, Addressing: f.addressing,
		Requests: f.requests, Use: statefile.BucketOfState}
	if f.ca != "" {
		if config.CA, err = os.ReadFile(f.ca); err != nil {
			return nil, cannot(fmt.Errorf("--state-ca: %w", err), "")
		}
	}
	if f.credentials != "" {
		identities, err := f.load()
		if err == nil {
			err = useS3Keys(&config, f.credentials, identities)
		}
		if err != nil {
			return nil, cannot(fmt.Errorf("--state-credentials %s: %w", f.credentials, err), "")
		}
		scrubber.Add(config.Credentials.SecretAccessKey, config.Credentials.SessionToken)
	}
	scrubber.Add(os.Getenv("AWS_SECRET_ACCESS_KEY"), os.Getenv("AWS_SESSION_TOKEN"))
	store, err := statefile.OpenS3(ctx, config)
	if err != nil {
		return nil, cannot(scrubber.Error(err), "")
	}
	return store, nil
}

func (f *stateFlags) keys() (*statefile.S3Credentials, error) {
	identities, err := f.load()
	if err != nil {
		return nil, err
	}
	return readS3Keys(f.credentials, identities)
}
