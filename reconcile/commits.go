package reconcile

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"ichor.maesh.dev/gitsource"
	"ichor.maesh.dev/internal/signedcommit"
	"ichor.maesh.dev/operation"
)

// CommitSigners are those whose signature a commit must bear to be acted upon.
type CommitSigners struct {
	// SSH are the lines of allowed signers, PGP the OpenPGP keys; either may be nil.
	SSH *operation.AllowedSigners
	PGP *signedcommit.Keyring
}

// Names lists who they are, for people.
func (s CommitSigners) Names() []string {
	var list []string
	if s.SSH != nil {
		list = append(list, s.SSH.CommitSigners()...)
	}
	if s.PGP != nil {
		for _, key := range s.PGP.Keys() {
			list = append(list, key.String()+" with OpenPGP")
		}
	}
	return list
}

// judge says why a commit object isn't one that may be acted upon; empty when it may.
func (s CommitSigners) judge(object []byte, r *gitsource.Revision, now time.Time) string {
	commit, err := signedcommit.Parse(object)
	if err != nil {
		return "it is not a commit as Git writes them: " + err.Error()
	}
	if commit.Tree != r.TreeHash || !slices.Equal(commit.Parents, r.Parents) {
		return "it can be read in two ways, so what was signed may not be what would be acted upon"
	}
	switch commit.Format {
	case signedcommit.SSH:
		if s.SSH == nil {
			return "it is signed with an SSH key, and no allowed signers are given (--allowed-signers)"
		}
		if _, refusal := s.SSH.VerifyCommit(commit.Payload, commit.Signature, now); refusal != nil {
			return refusal.Message
		}
		return ""
	case signedcommit.OpenPGP:
		if s.PGP == nil {
			return "it is signed with OpenPGP, and no keyring is given (--git-keyring)"
		}
		if _, err := s.PGP.Verify(commit.Payload, commit.Signature, now); err != nil {
			return err.Error()
		}
		return ""
	case signedcommit.X509:
		return "it is signed with an X.509 certificate, and those are not read; sign with an SSH or OpenPGP key"
	}
	return "it is not signed"
}

// commitJudge says which commits may be acted upon. Nil: all of them, because nobody asked for signatures.
type commitJudge struct {
	source  Source
	signers func() (CommitSigners, error)
}

// unsigned says why a commit is not acted upon, in a sentence without the way out; empty when it is.
func (j *commitJudge) unsigned(r *gitsource.Revision, now time.Time) string {
	if j == nil {
		return ""
	}
	why := ""
	if signers, err := j.signers(); err != nil {
		why = fmt.Sprintf("who may sign commits can't be read: %v", err)
	} else if object, err := j.source.Object(r.Commit); err != nil {
		why = err.Error()
	} else if why = signers.judge(object, r, now); why == "" {
		return ""
	}
	return fmt.Sprintf("commit-signature: commit %.12s by %s (%s) is not acted upon, nor is what stands on it: %s", r.Commit, nameOr(r.Author, "nobody"),
		nameOr(r.Subject, "no subject"), why)
}

// vouch is the way out of an unsigned commit: good is what the cluster is on, head the newest commit.
func vouch(good, head string) string {
	if good == "" {
		return "; push a commit on top of it that is signed by who may"
	}
	return fmt.Sprintf("; who may sign looks at it and vouches for it, or undoes it, with a signed merge on top of %.12s: git checkout %.12s && git merge -S "+
		"--no-ff %.12s (with -s ours to undo it), and pushes that", good, good, head)
}

// seenSigned counts the commits of a line, oldest first, that need no further look, because the one up to which each was found signed is
// among them.
func (j *commitJudge) seenSigned(line []*gitsource.Revision, verified string) int {
	if j == nil || verified == "" {
		return 0
	}
	return 1 + slices.IndexFunc(line, func(r *gitsource.Revision) bool { return r.Commit == verified })
}

// mostBack is how many commits are looked at for one that can be believed, from the newest on.
const mostBack = 5000

// errUntrusted says that no commit of a branch's recent history can be believed.
var errUntrusted = errors.New("no commit of the branch may be acted upon")

// newestThat gives the newest commit on head's first-parent line of which is says yes; errUntrusted if none of the last ones is.
func (h *history) newestThat(head *gitsource.Revision, is func(*gitsource.Revision) bool) (*gitsource.Revision, error) {
	at := head
	for range mostBack {
		if is(at) {
			return at, nil
		}
		if len(at.Parents) == 0 {
			break
		}
		parent, err := h.source.At(at.Parents[0])
		if err != nil {
			return nil, err
		}
		at = parent
	}
	return nil, errUntrusted
}

// trusted is the newest commit on head's first-parent line that is signed by who may: what it says of which clusters there are is
// believed. Why says why head itself isn't; it is empty when it is.
func (h *history) trusted(head *gitsource.Revision, now time.Time) (trusted *gitsource.Revision, why string) {
	if why = h.commits.unsigned(head, now); why == "" {
		return head, ""
	}
	trusted, err := h.newestThat(head, func(r *gitsource.Revision) bool { return h.commits.unsigned(r, now) == "" })
	if err != nil {
		return nil, why
	}
	return trusted, why
}
