package gitsource

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/format/packfile"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp/capability"
	"github.com/go-git/go-git/v5/plumbing/storer"
	"github.com/go-git/go-git/v5/plumbing/transport"
	"k8s.io/utils/clock"
)

// Author is whose commits they are.
type Author struct{ Name, Email string }

// ErrNoAuthor says that nobody said whose commits they are.
var ErrNoAuthor = errors.New("a commit has an author, and none is known; set it with 'git config --global user.name' and user.email, or GIT_AUTHOR_NAME and GIT_AUTHOR_EMAIL")

// direct is the road to a URL without a checkout: a clone in a folder that goes away with it.
type direct struct {
	config  Config
	author  Author
	clock   clock.Clock
	folder  string
	sources map[string]*Source
	// current is the source that was read last: its clone holds what a commit is made of.
	current *Source
	// made are the objects that no server has yet.
	made []plumbing.Hash
}

// OpenRemote gives the repository of a config, by URL and with the credentials in it. Branch and Cache are not used: the clone
// stands in a temporary folder until Close. Without an author it can only be read ([ErrNoAuthor]).
func OpenRemote(config Config, author Author, clk clock.Clock) (*Remote, error) {
	folder, err := os.MkdirTemp("", "ichor-git-")
	if err != nil {
		return nil, fmt.Errorf("make a folder for the clone: %w", err)
	}
	d := &direct{config: config, author: author, clock: clk, folder: folder, sources: map[string]*Source{}}
	// What is wrong with the URL or the credentials' flags is said before anything is asked for.
	if _, err := d.source(""); err != nil {
		_ = d.close()
		return nil, err
	}
	return &Remote{road: d, pushed: map[string]bool{}}, nil
}

func (d *direct) source(branch string) (*Source, error) {
	if known := d.sources[branch]; known != nil {
		return known, nil
	}
	config := d.config
	config.Branch, config.Cache, config.Paths = branch, filepath.Join(d.folder, fmt.Sprint(len(d.sources))), nil
	config.AllowRewind = true // what counts is what the branch is now
	opened, err := Open(config, d.clock)
	if err != nil {
		return nil, err
	}
	d.sources[branch] = opened
	return opened, nil
}

func (d *direct) shown() string {
	for _, s := range d.sources {
		return s.location.shown
	}
	return "the repository"
}

func (d *direct) objects() *store { return d.current.store }

func (d *direct) close() error {
	var failed error
	for _, s := range d.sources {
		failed = errors.Join(failed, s.Close())
	}
	return errors.Join(failed, os.RemoveAll(d.folder))
}

func (d *direct) defaultBranch(ctx context.Context) (string, error) {
	s, err := d.source("")
	if err != nil {
		return "", err
	}
	p := &poll{source: s}
	defer p.hangUp()
	if p.creds, err = loadCredentials(s.config, s.location); err != nil {
		return "", atOnce(p.explain(ctx, &credentialError{err}))
	}
	if err := p.list(ctx); err != nil {
		return "", atOnce(p.explain(ctx, err))
	}
	if _, err := p.tip(); err != nil {
		return "", atOnce(p.explain(ctx, err))
	}
	if p.branch == "" {
		return "", fmt.Errorf("%s names no default branch; name the branch that the agent watches", s.location.shown)
	}
	return p.branch, nil
}

func (d *direct) tip(ctx context.Context, branch string, fresh bool) (plumbing.Hash, error) {
	s, err := d.source(branch)
	if err != nil {
		return plumbing.ZeroHash, err
	}
	d.made = nil
	if !fresh {
		if known, err := s.Seen(); err == nil {
			d.current = s
			return plumbing.NewHash(known.Commit), nil
		}
	}
	revision, err := s.Poll(ctx)
	var explained *Error
	switch {
	case errors.As(err, &explained) && explained.Reason == ReasonBranch:
		return plumbing.ZeroHash, nil
	case err != nil:
		return plumbing.ZeroHash, atOnce(err)
	}
	d.current = s
	return plumbing.NewHash(revision.Commit), nil
}

// atOnce takes out of a sentence what speaks of the next poll: a command asks once.
func atOnce(err error) error {
	var explained *Error
	if !errors.As(err, &explained) {
		return err
	}
	message := explained.Message
	for _, later := range []string{"; it is tried again at the next poll", ", it is tried again at the next poll", "; the next poll looks again",
		"; it is read again at the next poll", ", it is read again at the next poll"} {
		message = strings.ReplaceAll(message, later, "")
	}
	return &Error{Reason: explained.Reason, Message: message, cause: explained.cause}
}

func (d *direct) write(kind plumbing.ObjectType, data []byte) (plumbing.Hash, error) {
	hash, err := writeObject(d.current.store.storage, kind, data)
	if err == nil {
		d.made = append(d.made, hash)
	}
	return hash, err
}

// writeObject stores an object beside those that are there.
func writeObject(into storer.EncodedObjectStorer, kind plumbing.ObjectType, data []byte) (plumbing.Hash, error) {
	encoded := into.NewEncodedObject()
	encoded.SetType(kind)
	encoded.SetSize(int64(len(data)))
	writer, err := encoded.Writer()
	if err == nil {
		_, err = writer.Write(data)
		err = errors.Join(err, writer.Close())
	}
	if err != nil {
		return plumbing.ZeroHash, fmt.Errorf("write a Git object: %w", err)
	}
	hash, err := into.SetEncodedObject(encoded)
	if err != nil {
		return plumbing.ZeroHash, fmt.Errorf("write a Git object: %w", err)
	}
	return hash, nil
}

func (d *direct) commit(_ context.Context, tree, parent plumbing.Hash, addition Addition) (plumbing.Hash, error) {
	if d.author.Name == "" || d.author.Email == "" {
		return plumbing.ZeroHash, ErrNoAuthor
	}
	who := object.Signature{Name: d.author.Name, Email: d.author.Email, When: d.clock.Now().UTC().Truncate(time.Second)}
	made := object.Commit{Author: who, Committer: who, Message: addition.Message, TreeHash: tree, ParentHashes: []plumbing.Hash{parent}}
	encoded := &plumbing.MemoryObject{}
	if err := made.Encode(encoded); err != nil {
		return plumbing.ZeroHash, err
	}
	reader, err := encoded.Reader()
	if err != nil {
		return plumbing.ZeroHash, err
	}
	data, err := io.ReadAll(reader)
	if err != nil {
		return plumbing.ZeroHash, err
	}
	if data, err = addition.signed(data); err != nil {
		return plumbing.ZeroHash, err
	}
	return d.write(plumbing.CommitObject, data)
}

func (d *direct) send(ctx context.Context, branch string, old, commit plumbing.Hash) error {
	s := d.current
	p := &poll{source: s, branch: branch}
	var err error
	if p.creds, err = loadCredentials(s.config, s.location); err != nil {
		return atOnce(p.explain(ctx, &credentialError{err}))
	}
	err = d.sendTo(ctx, p.creds, branch, old, commit)
	var refused *refusedPushError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &refused):
		return fmt.Errorf("%s refuses the push to branch %s: %s; if the branch is protected, push to another one with --branch, and merge that",
			d.shown(), branch, p.creds.scrub(refused.text))
	case errors.Is(err, transport.ErrAuthorizationFailed):
		return fmt.Errorf("%s forbids these credentials to push (403); give their owner the right to, or push to another branch", d.shown())
	}
	return atOnce(p.explain(ctx, err))
}

func (d *direct) sendTo(ctx context.Context, creds credentials, branch string, old, commit plumbing.Hash) error {
	s := d.current
	ctx, cancel := context.WithTimeout(ctx, s.config.ListTimeout+s.config.FetchTimeout)
	defer cancel()
	listing, done := context.WithTimeout(ctx, s.config.ListTimeout)
	defer done()
	session, err := s.connectToPush(ctx, listing, creds)
	if err != nil {
		return err
	}
	defer func() { _ = session.Close() }()
	refs, err := session.AdvertisedReferencesContext(listing)
	if err != nil {
		return err
	}
	name := plumbing.NewBranchReferenceName(branch)
	if now := refs.References[name.String()]; now != old {
		return errMoved
	}
	request := packp.NewReferenceUpdateRequestFromCapabilities(refs.Capabilities)
	if !refs.Capabilities.Supports(capability.ReportStatus) {
		return errors.New("the server doesn't say what becomes of a push (report-status), so nothing is pushed to it")
	}
	request.Commands = []*packp.Command{{Name: name, Old: old, New: commit}}
	var pack bytes.Buffer
	// The server has everything else: it has the commit that this one stands on.
	if _, err := packfile.NewEncoder(&pack, s.store.storage, false).Encode(d.made, 0); err != nil {
		return fmt.Errorf("pack the commit: %w", err)
	}
	request.Packfile = io.NopCloser(&pack)
	report, err := session.ReceivePack(ctx, request)
	switch {
	case err == nil && report == nil:
		return io.ErrUnexpectedEOF
	case err == nil || report == nil:
		return err
	}
	for _, status := range report.CommandStatuses {
		if status.Error() != nil {
			return &refusedPushError{status.Status}
		}
	}
	return &refusedPushError{report.UnpackStatus}
}

// refusedPushError is why a server doesn't take a commit, in its own words.
type refusedPushError struct{ text string }

func (e *refusedPushError) Error() string { return e.text }
