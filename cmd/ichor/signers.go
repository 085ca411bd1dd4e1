package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/pflag"

	"ichor.maesh.dev/internal/signedcommit"
	"ichor.maesh.dev/operation"
	"ichor.maesh.dev/reconcile"
	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/validate"
)

// signerFlags say who may sign operations.
type signerFlags struct{ allowed, revoked string }

func (f *signerFlags) add(flags *pflag.FlagSet) {
	flags.StringVar(&f.allowed, "allowed-signers", "", "file that says who may sign operations, in OpenSSH's format")
	flags.StringVar(&f.revoked, "revoked-signers", "", "file of public keys that may sign no longer, one a line")
}

// load reads the files; nil where none is given.
func (f *signerFlags) load() (*operation.AllowedSigners, error) {
	if f.allowed == "" {
		if f.revoked != "" {
			return nil, usageError(errors.New("--revoked-signers takes rights away, and nobody has any without --allowed-signers"), "give --allowed-signers FILE too")
		}
		return nil, nil
	}
	data, err := os.ReadFile(f.allowed)
	if err != nil {
		return nil, cannot(fmt.Errorf("--allowed-signers: %w", err), "give a file as docs/operations/signing.md describes it")
	}
	signers, err := operation.ParseAllowedSigners(f.allowed, data)
	if err != nil {
		return nil, cannot(fmt.Errorf("--allowed-signers: %w", err), "mend the line; nobody may sign anything until the whole file can be read")
	}
	if f.revoked == "" {
		return signers, nil
	}
	if data, err = os.ReadFile(f.revoked); err != nil {
		return nil, cannot(fmt.Errorf("--revoked-signers: %w", err), "give a file of public keys, one a line; it may be empty")
	}
	if err := signers.Revoke(f.revoked, data); err != nil {
		return nil, cannot(fmt.Errorf("--revoked-signers: %w", err), "give a file of public keys, one a line")
	}
	return signers, nil
}

// commitFlags say whether commits must be signed, and by whom beside the allowed signers.
type commitFlags struct {
	verify  bool
	keyring string
}

func (f *commitFlags) add(flags *pflag.FlagSet) {
	flags.BoolVar(&f.verify, "verify-commits", false,
		"act only upon commits that are signed, by a key of --allowed-signers that may sign for git or one of --git-keyring")
	flags.StringVar(&f.keyring, "git-keyring", "", "file of armoured OpenPGP public keys that may sign commits")
}

// check refuses flags that can't be meant together.
func (f *commitFlags) check(signers *signerFlags) error {
	switch {
	case f.verify && f.keyring == "" && signers.allowed == "":
		return usageError(errors.New("--verify-commits asks for signatures, and nobody was said to be allowed to make them"),
			"give --allowed-signers FILE, --git-keyring FILE, or both")
	case f.keyring != "" && !f.verify:
		return usageError(errors.New("--git-keyring says who may sign commits, and without --verify-commits none need be signed"), "give --verify-commits too")
	}
	return nil
}

// load reads the keyring; nil where none is given.
func (f *commitFlags) load() (*signedcommit.Keyring, error) {
	if f.keyring == "" {
		return nil, nil
	}
	data, err := os.ReadFile(f.keyring)
	if err != nil {
		return nil, cannot(fmt.Errorf("--git-keyring: %w", err), "give a file as gpg --armor --export writes it")
	}
	keyring, err := signedcommit.ParseKeyring(f.keyring, data)
	if err != nil {
		return nil, cannot(fmt.Errorf("--git-keyring: %w", err), "")
	}
	return keyring, nil
}

// loader keeps the allowed signers that were loaded until one of their files changes.
func (f signerFlags) loader() *fileLoader[*operation.AllowedSigners] {
	return &fileLoader[*operation.AllowedSigners]{what: "the files of who may sign", files: []string{f.allowed, f.revoked}, read: f.load}
}

// loader is the same for who may sign commits.
func (f commitFlags) loader(signers signerFlags) *fileLoader[reconcile.CommitSigners] {
	return &fileLoader[reconcile.CommitSigners]{what: "the files of who may sign", files: []string{signers.allowed, signers.revoked, f.keyring}, read: func() (reconcile.CommitSigners, error) {
		var all reconcile.CommitSigners
		var err error
		if all.SSH, err = signers.load(); err != nil {
			return all, err
		}
		all.PGP, err = f.load()
		return all, err
	}}
}

// mustLoad is load where nothing can be said without the allowed signers.
func (f *signerFlags) mustLoad() (*operation.AllowedSigners, error) {
	signers, err := f.load()
	if err == nil && signers == nil {
		err = usageError(errors.New("who may sign isn't known"), "give --allowed-signers FILE")
	}
	return signers, err
}

// checkOperations judges what the rules can't, and says what was checked of signatures.
func (a *app) checkOperations(engine *validate.Engine, f *signerFlags, old *schema.Fleet, proposal validate.Proposal) ([]validate.Finding, error) {
	signers, err := f.load()
	if err != nil {
		return nil, err
	}
	signatures := validate.CheckOperations(old, proposal.Fleet, signers, a.clock.Now())
	switch {
	case signatures.Unchecked > 0:
		fmt.Fprintf(a.err, "not checked, because nobody said who may sign: %s; --allowed-signers FILE has them checked\n",
			counted(signatures.Unchecked, "signature"))
	case signers != nil:
		fmt.Fprintf(a.err, "checked against %s: %s\n", a.clean(f.allowed), counted(signatures.Checked, "signature"))
	}
	return append(signatures.Findings, engine.CheckRemovals(old, proposal.Fleet, proposal.Problems, signers != nil)...), nil
}
