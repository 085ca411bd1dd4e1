package main

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"ichor.maesh.dev/internal/s3gateway"
)

// credentialsFile holds the keys of the S3 server's only account, beside its data.
const credentialsFile = "s3-credentials.json"

// s3Credentials has the field names of a sealed s3.age.
type s3Credentials struct {
	AccessKeyID     string `json:"accessKeyID"`
	SecretAccessKey string `json:"secretAccessKey"`
}

func newS3() *cobra.Command {
	var (
		dir, listen string
		buckets     []string
	)

	cmd := &cobra.Command{
		Use:   "s3 --dir DIR",
		Short: "Serve a folder as S3, with conditional writes, until stopped",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			abs, err := filepath.Abs(dir)
			if err != nil {
				return fmt.Errorf("finding %s: %w", dir, err)
			}

			keys, err := credentials(abs)
			if err != nil {
				return err
			}

			cmd.Printf("S3 on http://%s, region %s, buckets in %s, keys in %s\n", listen, s3gateway.Region, filepath.Join(abs, "buckets"),
				filepath.Join(abs, credentialsFile))

			return s3gateway.Serve(cmd.Context(), s3gateway.Options{
				Dir: filepath.Join(abs, "buckets"), Listen: listen, Access: keys.AccessKeyID, Secret: keys.SecretAccessKey, Buckets: buckets,
			})
		},
	}
	cmd.Flags().StringVar(&dir, "dir", "", "folder for buckets and keys; made if it isn't there")
	cmd.Flags().StringVar(&listen, "listen", "127.0.0.1:9000", "host:port to listen on")
	cmd.Flags().StringArrayVar(&buckets, "bucket", []string{"ichor"}, "bucket to make if it isn't there; may be given several times")
	cmd.MarkFlagRequired("dir") //nolint:errcheck // the flag exists

	return cmd
}

// credentials reads the server's keys, or makes them at its first start.
func credentials(dir string) (s3Credentials, error) {
	path := filepath.Join(dir, credentialsFile)

	var keys s3Credentials

	data, err := os.ReadFile(path)

	switch {
	case errors.Is(err, os.ErrNotExist):
		keys = s3Credentials{AccessKeyID: "talossim", SecretAccessKey: rand.Text()}

		if data, err = json.MarshalIndent(keys, "", "  "); err != nil {
			return keys, fmt.Errorf("encoding the S3 keys: %w", err)
		}

		if err := os.MkdirAll(dir, 0o700); err != nil {
			return keys, fmt.Errorf("making the S3 server's folder: %w", err)
		}

		if err := os.WriteFile(path, append(data, '\n'), 0o600); err != nil {
			return keys, fmt.Errorf("writing the S3 keys: %w", err)
		}

		return keys, nil
	case err != nil:
		return keys, fmt.Errorf("reading the S3 keys: %w", err)
	}

	if err := json.Unmarshal(data, &keys); err != nil || keys.AccessKeyID == "" || keys.SecretAccessKey == "" {
		return keys, fmt.Errorf("%s doesn't hold accessKeyID and secretAccessKey; delete it to have new keys made", path)
	}

	return keys, nil
}
