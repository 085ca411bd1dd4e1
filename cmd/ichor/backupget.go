package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"ichor.maesh.dev/backup"
	"ichor.maesh.dev/internal/bytesize"
	"ichor.maesh.dev/internal/diskspace"
)

// backupGetFlags are the command line of backup get.
type backupGetFlags struct {
	backupFlags
	out, output string
	decrypt     bool
}

func (a *app) backupGetCommand() *cobra.Command {
	f := &backupGetFlags{}
	cmd := &cobra.Command{
		Use:   "get [NAME]",
		Short: "Fetch a snapshot into a file",
		Long: `Fetches a snapshot (the newest without a name) as it is stored, sealed, or with --decrypt as Talos streamed it: etcd's database
with its trailer, which 'talosctl bootstrap --recover-from' and 'etcdutl snapshot restore' take. That file holds every Secret of the
cluster in the clear.

The file is there as a whole and checked, or not at all; it is readable by you alone, and never replaces another.`,
		Example: `  ichor backup get --fleet . --cluster prod --age-identity key.txt
  ichor backup get etcd-20261129T100000Z.snapshot.age --decrypt --out etcd.snapshot --fleet . --age-identity key.txt`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkOutput(f.output, "text", "json"); err != nil {
				return err
			}
			return a.getBackup(cmd, f, args)
		},
	}
	f.add(cmd)
	f.addFile(cmd)
	flags := cmd.Flags()
	flags.BoolVar(&f.decrypt, "decrypt", false, "write the plaintext, which holds every Secret of the cluster in the clear")
	flags.StringVar(&f.out, "out", "", "the file to write (default: the snapshot's name, without .age when decrypted)")
	addOutput(flags, &f.output, "text", "json")
	return cmd
}

func (a *app) getBackup(cmd *cobra.Command, f *backupGetFlags, args []string) error {
	if f.file != "" && !f.decrypt {
		return usageError(errors.New("--file without --decrypt would only copy the file"), "give --decrypt")
	}
	if err := refuseExisting(f.out); err != nil {
		return err
	}
	source, err := f.open(a, cmd, args)
	if err != nil {
		return err
	}
	defer source.close()
	if f.out == "" {
		f.out = filepath.Base(source.name)
		if f.decrypt {
			f.out = strings.TrimSuffix(f.out, ".age")
		}
	}
	if err := refuseExisting(f.out); err != nil {
		return err
	}
	if err := needRoom(filepath.Dir(f.out), source.size); err != nil {
		return f.refuse(err)
	}
	answer := backupAnswer{Name: source.name, SealedSize: source.size, Listed: source.listed != nil, File: f.out}
	err = writeStream(f.out, 0o600, false, func(w io.Writer) error {
		var plain io.Reader = source.Checked
		if f.decrypt {
			var err error
			if plain, err = backup.OpenChecked(source.Checked, f.owner.Passphrase); err != nil {
				return err
			}
		}
		size, err := io.Copy(w, plain)
		if f.decrypt {
			answer.Size = size
		}
		return err
	})
	if err != nil {
		return f.refuse(fmt.Errorf("getting %s, of which nothing was kept: %w", source.name, err))
	}
	answer.SHA256 = source.SHA256()
	if f.output == "json" {
		return json.NewEncoder(a.out).Encode(answer)
	}
	what := "sealed as it is stored"
	if f.decrypt {
		what = "IN THE CLEAR, with every Secret of the cluster"
	}
	fmt.Fprintf(a.out, "%s: %s; SHA-256 of the stored object %s%s\n", a.clean(f.out), what, answer.SHA256, listedText(answer.Listed))
	return nil
}

func refuseExisting(file string) error {
	if file == "" {
		return nil
	}
	if _, err := os.Lstat(file); err == nil {
		return answerNo(fmt.Errorf("%s exists, and is not replaced", file), "write to another file with --out, or move it away")
	}
	return nil
}

// needRoom refuses at once what would fill the disk in the end.
func needRoom(folder string, size int64) error {
	free, err := diskspace.Free(folder)
	if err != nil {
		return cannot(err, "name a folder that is there with --out")
	}
	if free < size {
		return cannot(fmt.Errorf("the snapshot has %s, and %s has room for %s", bytesize.Text(size), folder, bytesize.Text(free)), "make room, or write elsewhere with --out")
	}
	return nil
}
