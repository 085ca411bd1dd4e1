package main

import (
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"ichor.maesh.dev/backup"
	"ichor.maesh.dev/internal/bytesize"
)

func (a *app) backupVerifyCommand() *cobra.Command {
	f := &backupFlags{}
	var output string
	cmd := &cobra.Command{
		Use:   "verify [NAME]",
		Short: "Read a snapshot whole and check it, keeping nothing",
		Long: `Reads a snapshot (the newest without a name), compares it with the digest in the index, opens it with the passphrase that the
bundle gives, checks etcd's own trailer and reads the revision. Nothing is kept. It proves that the bytes are what was stored; that
they make an etcd again is what 'ichor backup drill' proves.

It ends with 1 when the snapshot is no good or not there, and 2 when that can't be told.`,
		Example: `  ichor backup verify --fleet . --cluster prod --age-identity key.txt
  ichor backup verify --bundle secrets.yaml --file etcd-20261129T100000Z.snapshot.age`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkOutput(output, "text", "json"); err != nil {
				return err
			}
			return a.verifyBackup(cmd, f, args, output)
		},
	}
	f.add(cmd)
	f.addFile(cmd)
	addOutput(cmd.Flags(), &output, "text", "json")
	return cmd
}

// backupAnswer is what verify and get print as JSON.
type backupAnswer struct {
	Name       string `json:"name"`
	Size       int64  `json:"size,omitempty"`
	SealedSize int64  `json:"sealedSize"`
	SHA256     string `json:"sha256"`
	Revision   int64  `json:"revision,omitempty"`
	// Listed says that the sealed index lists it with this very digest.
	Listed bool   `json:"listed"`
	File   string `json:"file,omitempty"`
}

func (a *app) verifyBackup(cmd *cobra.Command, f *backupFlags, args []string, output string) error {
	source, err := f.open(a, cmd, args)
	if err != nil {
		return err
	}
	defer source.close()
	size, revision, err := backup.VerifySealed(source.Checked, f.owner.Passphrase)
	if err == nil && source.listed != nil {
		err = source.listed.Agrees(size, revision)
	}
	if err != nil {
		return f.refuse(fmt.Errorf("verifying %s: %w", source.name, err))
	}
	answer := backupAnswer{Name: source.name, Size: size, SealedSize: source.size, SHA256: source.SHA256(), Revision: revision, Listed: source.listed != nil}
	if output == "json" {
		return json.NewEncoder(a.out).Encode(answer)
	}
	fmt.Fprintf(a.out, "%s is whole: %s, revision %d, SHA-256 of the stored object %s%s\n", a.clean(answer.Name), bytesize.Text(size), revision, answer.SHA256, listedText(answer.Listed))
	return nil
}

func listedText(listed bool) string {
	if listed {
		return ", as the index lists it"
	}
	return "; it is not in the index"
}
