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

	"ichor.maesh.dev/internal/sealed"
	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/talos"
)

// maxSecretFile bounds what is sealed or imported.
const maxSecretFile = 4 << 20

// secretsFlags are what the commands that seal a file have in common.
type secretsFlags struct {
	out        string
	recipients string
	output     string
	force      bool
}

func (a *app) secretsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "secrets",
		Short: "Make, import, seal and re-seal secrets",
		Long: `Everything secret in a fleet repository is sealed with age to the recipients in recipients.txt beside it:
one age or SSH public key a line. What these commands write is sealed before it touches the disk.`,
	}
	cmd.AddCommand(a.secretsGenerateCommand(), a.secretsImportCommand(), a.secretsSealCommand(), a.secretsRekeyCommand())
	return cmd
}

func (f *secretsFlags) add(cmd *cobra.Command, out string) {
	flags := cmd.Flags()
	flags.StringVar(&f.out, "out", out, "the sealed file to write")
	flags.StringVar(&f.recipients, "recipients", "", "file with the recipients, one a line (default: recipients.txt beside the sealed file)")
	addOutput(flags, &f.output, "text", "json")
}

func (a *app) secretsGenerateCommand() *cobra.Command {
	f := &secretsFlags{}
	var contract string
	cmd := &cobra.Command{
		Use:   "generate",
		Short: "Make the secrets bundle of a new cluster, sealed",
		Long: `Makes new secrets for a cluster (authorities, tokens, keys), writes them sealed, and says the cluster's spec.id.
It never overwrites a file: the backups of a cluster can be opened with its own bundle only.`,
		Example: "  ichor secrets generate --out clusters/prod/secrets.age",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if err := checkOutput(f.output, "text", "json"); err != nil {
				return err
			}
			bundle, err := talos.GenerateBundle(contract)
			if err != nil {
				return cannot(err, "")
			}
			return a.writeBundle(f, bundle, "")
		},
	}
	f.add(cmd, "secrets.age")
	cmd.Flags().StringVar(&contract, "contract", schema.DefaultContract, "the Talos version whose config generation the cluster uses")
	return cmd
}

func (a *app) secretsImportCommand() *cobra.Command {
	f := &secretsFlags{}
	var identities []string
	cmd := &cobra.Command{
		Use:   "import FILE",
		Short: "Seal the secrets of a cluster that exists",
		Long: `Takes the secrets of a running cluster from talosctl's secrets.yaml or from the machine config of one of its control
planes, writes them sealed, and says the cluster's spec.id and, from a machine config, the spec.contract that fits it.
FILE may be sealed itself; - reads standard input.`,
		Example: `  ichor secrets import secrets.yaml --out clusters/prod/secrets.age
  talosctl -n 10.0.0.11 get machineconfig v1alpha1 -o jsonpath='{.spec}' | ichor secrets import - --out clusters/prod/secrets.age`,
		Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			if err := checkOutput(f.output, "text", "json"); err != nil {
				return err
			}
			data, err := a.readSecret(args[0])
			if err != nil {
				return err
			}
			keys, err := sealed.LoadIdentities(identities...)
			if err != nil {
				return cannot(err, "")
			}
			plain, wasSealed, err := keys.Open(args[0], data)
			if err != nil {
				return cannot(err, "")
			}
			bundle, err := talos.ImportBundle(plain)
			if err != nil {
				return answerNo(fmt.Errorf("%s: %w", args[0], err), "")
			}
			if err := a.writeBundle(f, bundle, talos.ContractOf(plain)); err != nil {
				return err
			}
			a.warnPlain(args[0], wasSealed)
			return nil
		},
	}
	f.add(cmd, "secrets.age")
	cmd.Flags().StringSliceVar(&identities, "age-identity", nil, "file with an age identity or SSH key, if FILE is sealed (may be repeated)")
	return cmd
}

func (a *app) secretsSealCommand() *cobra.Command {
	f := &secretsFlags{}
	cmd := &cobra.Command{
		Use:   "seal FILE",
		Short: "Seal any file: S3 credentials, a patch that holds a secret",
		Long: `Seals FILE to the recipients and writes it beside FILE with the ending .age, or to --out. - reads standard input, and then
--out is needed. FILE itself stays as it is: delete it, and never commit it.`,
		Example: "  ichor secrets seal clusters/prod/s3.yaml",
		Args:    cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			if err := checkOutput(f.output, "text", "json"); err != nil {
				return err
			}
			if f.out == "" && args[0] == "-" {
				return usageError(errors.New("standard input has no name to derive the sealed file's from"), "give --out FILE")
			}
			if f.out == "" {
				f.out = strings.TrimSuffix(args[0], filepath.Ext(args[0])) + ".age"
			}
			if sameFile(args[0], f.out) {
				return usageError(fmt.Errorf("%s would be written over itself", args[0]), "give another file with --out, or rename it first: the ending .age is for sealed files")
			}
			data, err := a.readSecret(args[0])
			if err != nil {
				return err
			}
			if sealed.IsSealed(data) {
				return answerNo(fmt.Errorf("%s is sealed already", args[0]), "to seal it to those that recipients.txt names now, use 'ichor secrets rekey'")
			}
			count, err := f.write(data)
			if err != nil {
				return err
			}
			if err := a.saySealed(f, secretsAnswer{File: f.out, Recipients: count}); err != nil {
				return err
			}
			a.warnPlain(args[0], false)
			return nil
		},
	}
	f.add(cmd, "")
	cmd.Flags().BoolVar(&f.force, "force", false, "replace the sealed file if it exists")
	return cmd
}

// secretsAnswer is what the commands print.
type secretsAnswer struct {
	File       string `json:"file"`
	Recipients int    `json:"recipients"`
	// ID is what TalosCluster.spec.id must hold.
	ID string `json:"id,omitempty"`
	// Contract is what TalosCluster.spec.contract should be, where a machine config told.
	Contract string `json:"contract,omitempty"`
}

// writeBundle seals a bundle and says what the cluster's YAML must say of it.
func (a *app) writeBundle(f *secretsFlags, bundle *talos.Bundle, contract string) error {
	text, err := bundle.Marshal()
	if err != nil {
		return cannot(err, "")
	}
	count, err := f.write(text)
	if err != nil {
		return err
	}
	return a.saySealed(f, secretsAnswer{File: f.out, Recipients: count, ID: schema.ClusterID(bundle.ClusterID()), Contract: contract})
}

func (a *app) saySealed(f *secretsFlags, answer secretsAnswer) error {
	if f.output == "json" {
		return json.NewEncoder(a.out).Encode(answer)
	}
	fmt.Fprintf(a.err, "%s is sealed to %s\n", a.clean(answer.File), counted(answer.Recipients, "recipient"))
	if answer.ID != "" {
		fmt.Fprintf(a.out, "spec.id: %s\n", answer.ID)
	}
	if answer.Contract != "" {
		fmt.Fprintf(a.out, "spec.contract: %s\n", answer.Contract)
	}
	return nil
}

func (a *app) warnPlain(file string, wasSealed bool) {
	if file != "-" && !wasSealed {
		fmt.Fprintf(a.err, "%s still holds it in the clear: delete it, and never commit it\n", a.clean(file))
	}
}

// write seals data and writes it as a whole or not at all; it gives the number of recipients.
func (f *secretsFlags) write(data []byte) (int, error) {
	if !f.force {
		if _, err := os.Lstat(f.out); err == nil {
			return 0, answerNo(fmt.Errorf("%s exists, and what is in it may be the only copy", f.out), "write to another file with --out, or move it away")
		}
	}
	list := f.recipients
	if list == "" {
		list = filepath.Join(filepath.Dir(f.out), "recipients.txt")
	}
	text, err := os.ReadFile(list)
	if err != nil {
		return 0, cannot(fmt.Errorf("to whom %s is to be sealed isn't known: %w", f.out, err), "put one age public key a line into "+list+", or name a file with --recipients")
	}
	recipients, err := sealed.ParseRecipients(list, text)
	if err != nil {
		return 0, cannot(err, "")
	}
	sealedText, err := sealed.Seal(recipients, data)
	if err != nil {
		return 0, cannot(err, "")
	}
	if err := writeWhole(f.out, sealedText, 0o644, f.force); err != nil {
		return 0, cannot(fmt.Errorf("writing %s: %w", f.out, err), "")
	}
	return len(recipients), nil
}

// sameFile says whether two names are of one file that is there.
func sameFile(a, b string) bool {
	one, err := os.Stat(a)
	if err != nil {
		return false
	}
	other, err := os.Stat(b)
	return err == nil && os.SameFile(one, other)
}

func (a *app) readSecret(name string) ([]byte, error) {
	source := a.in
	if name != "-" {
		file, err := os.Open(name)
		if err != nil {
			return nil, cannot(err, "")
		}
		defer file.Close()
		source = file
	}
	data, err := io.ReadAll(io.LimitReader(source, maxSecretFile+1))
	if err != nil {
		return nil, cannot(fmt.Errorf("reading %s: %w", name, err), "")
	}
	if len(data) > maxSecretFile {
		return nil, cannot(fmt.Errorf("%s has more than %d MiB", name, maxSecretFile>>20), "")
	}
	if len(strings.TrimSpace(string(data))) == 0 {
		return nil, cannot(fmt.Errorf("%s is empty", name), "")
	}
	return data, nil
}
