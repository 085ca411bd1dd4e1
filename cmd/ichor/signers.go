package main

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/spf13/pflag"

	"ichor.maesh.dev/operation"
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

// signerLoader keeps the allowed signers that were loaded until one of their files changes.
type signerLoader struct {
	flags signerFlags

	mu     sync.Mutex
	stamp  string
	loaded *operation.AllowedSigners
}

func (l *signerLoader) load() (*operation.AllowedSigners, error) {
	stamp := ""
	for _, file := range []string{l.flags.allowed, l.flags.revoked} {
		if file == "" {
			continue
		}
		info, err := os.Stat(file)
		if err != nil {
			return nil, fmt.Errorf("the files of allowed and revoked signers: %w", err)
		}
		stamp += fmt.Sprintf("%s %d %d\n", file, info.Size(), info.ModTime().UnixNano())
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.loaded != nil && l.stamp == stamp {
		return l.loaded, nil
	}
	loaded, err := l.flags.load()
	if err != nil {
		return nil, err
	}
	l.loaded, l.stamp = loaded, stamp
	return loaded, nil
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
