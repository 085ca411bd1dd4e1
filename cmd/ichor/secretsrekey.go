package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"ichor.maesh.dev/internal/sealed"
)

// rekeyFlags are the command line of secrets rekey.
type rekeyFlags struct {
	identities []string
	yes        bool
	output     string
}

// rekeyAnswer is one file in -o json. Since and the changes are null where Git doesn't tell.
type rekeyAnswer struct {
	File           string   `json:"file"`
	RecipientsFile string   `json:"recipientsFile"`
	Recipients     int      `json:"recipients"`
	Before         int      `json:"recipientsBefore"`
	Since          *string  `json:"since"`
	Added          []string `json:"added"`
	Removed        []string `json:"removed"`
	// Opened says whether the new file was opened by one of the identities and compared.
	Opened bool `json:"opened"`
}

func (a *app) secretsRekeyCommand() *cobra.Command {
	f := &rekeyFlags{}
	cmd := &cobra.Command{
		Use:   "rekey [PATH]",
		Short: "Seal everything anew to the recipients that recipients.txt names now",
		Long: `Opens every *.age file under PATH and seals it anew to the recipients.txt beside it, or in the nearest folder above. What is
inside stays the same, byte for byte. All files are opened before the first one is written, and what fails leaves all as they were.

It shows who is added and who is removed, and asks. An age file doesn't say to whom it is sealed, so that is taken from Git:
from recipients.txt as it was in the commit that brought the sealed file. Where Git doesn't tell, that is said.

Who is removed can still open the versions in Git's history. If they must not know the secrets any more, the secrets
themselves have to be replaced.`,
		Example: `  ichor secrets rekey --age-identity key.txt
  ichor secrets rekey clusters/prod --age-identity key.txt --yes`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			path := "."
			if len(args) > 0 {
				path = args[0]
			}
			return a.secretsRekey(cmd.Context(), f, path)
		},
	}
	flags := cmd.Flags()
	flags.StringSliceVar(&f.identities, "age-identity", nil, "file with an age identity or SSH key that opens the files (may be repeated)")
	flags.BoolVar(&f.yes, "yes", false, "don't ask")
	addOutput(flags, &f.output, "text", "json")
	return cmd
}

func (a *app) secretsRekey(ctx context.Context, f *rekeyFlags, path string) error {
	if err := checkOutput(f.output, "text", "json"); err != nil {
		return err
	}
	identities, err := sealed.LoadIdentities(f.identities...)
	if err != nil {
		return cannot(fmt.Errorf("--age-identity: %w", err), "")
	}
	place, err := findRepository(path)
	if err != nil {
		return err
	}
	defer func() { _ = place.close() }()
	r := &rekeying{given: path, place: place, identities: identities}
	if err := r.prepare(); err != nil {
		return err
	}
	for _, file := range r.files {
		r.compareWithGit(ctx, file)
	}
	a.sayRekey(r)
	if err := a.agree(ctx, f.yes, fmt.Sprintf("seal %s anew?", counted(len(r.files), "file"))); err != nil {
		return err
	}
	if err := r.write(ctx); err != nil {
		return err
	}
	return a.sayRekeyed(f, r)
}

// sayRekey shows what would change, before it does.
func (a *app) sayRekey(r *rekeying) {
	removed := false
	for _, file := range r.files {
		fmt.Fprintf(a.err, "%s is sealed to %s, and %s names %d\n", a.clean(file.name), counted(file.before, "recipient"), a.clean(file.list), len(file.recipients))
		switch {
		case file.unknown != "":
			fmt.Fprintf(a.err, "  to whom isn't known: %s\n", a.clean(file.unknown))
		case len(file.added)+len(file.removed) == 0:
			fmt.Fprintf(a.err, "  the same as when it was sealed (%.12s)\n", file.since)
		}
		for _, one := range file.added {
			fmt.Fprintf(a.err, "  added:   %s\n", a.clean(one))
		}
		for _, one := range file.removed {
			fmt.Fprintf(a.err, "  removed: %s\n", a.clean(one))
		}
		if !file.opens {
			fmt.Fprintf(a.err, "  none of the identities given is among those recipients: you could not open it afterwards\n")
		}
		removed = removed || len(file.removed) > 0
	}
	for _, one := range r.notes {
		fmt.Fprintln(a.err, a.clean(one))
	}
	if removed {
		fmt.Fprintln(a.err, "who is removed can still open what is in Git's history: replace the secrets themselves if they must not know them")
	}
}

// agree asks a yes or no.
func (a *app) agree(ctx context.Context, yes bool, question string) error {
	if yes {
		return nil
	}
	if !a.interactive {
		return cannot(errors.New("nobody is there to be asked, and nothing was changed"), "give --yes")
	}
	fmt.Fprintf(a.err, "%s [y/N] ", question)
	answer, err := a.readLine(ctx)
	if err != nil {
		return cannot(fmt.Errorf("there was no answer, and nothing was changed: %w", err), "")
	}
	if !slices.Contains([]string{"y", "yes"}, strings.ToLower(answer)) {
		return answerNo(errors.New("nothing was changed"), "")
	}
	return nil
}

func (a *app) sayRekeyed(f *rekeyFlags, r *rekeying) error {
	answers := []rekeyAnswer{}
	for _, file := range r.files {
		answer := rekeyAnswer{File: file.name, RecipientsFile: file.list, Recipients: len(file.recipients), Before: file.before, Opened: file.opens}
		if file.unknown == "" {
			answer.Since, answer.Added, answer.Removed = &file.since, append([]string{}, file.added...), append([]string{}, file.removed...)
		}
		answers = append(answers, answer)
		if f.output == "json" {
			continue
		}
		checked := "it opens to the same bytes as before"
		if !file.opens {
			checked = "whether it opens can't be tried with these identities"
		}
		fmt.Fprintf(a.out, "%s is sealed to %s; %s\n", a.clean(file.name), counted(len(file.recipients), "recipient"), checked)
	}
	if f.output == "json" {
		encoder := json.NewEncoder(a.out)
		encoder.SetIndent("", "  ")
		return encoder.Encode(answers)
	}
	if r.place.checkout != nil {
		fmt.Fprintln(a.err, "commit the sealed files together with recipients.txt")
	}
	return nil
}
