package gitsource

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/config"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/go-git/go-git/v5/storage/filesystem"

	"ichor.maesh.dev/internal/printable"
)

// ErrNoCheckout says that a folder is in no Git checkout.
var ErrNoCheckout = errors.New("it is in no Git checkout")

// Checkout is a repository that someone has checked out on this machine. It is only read.
type Checkout struct {
	// Dir is the folder at the top of the checkout.
	Dir     string
	git     *git.Repository
	store   *store
	maxBlob int64
}

// OpenCheckout finds the checkout that a folder is in. [ErrNoCheckout] when it is in none.
func OpenCheckout(folder string) (*Checkout, error) {
	folder, err := filepath.Abs(folder)
	if err != nil {
		return nil, fmt.Errorf("find the checkout of %s: %w", folder, err)
	}
	repository, err := git.PlainOpenWithOptions(folder, &git.PlainOpenOptions{DetectDotGit: true, EnableDotGitCommonDir: true})
	if errors.Is(err, git.ErrRepositoryNotExists) {
		return nil, fmt.Errorf("%s: %w", folder, ErrNoCheckout)
	}
	if err != nil {
		return nil, fmt.Errorf("open the checkout of %s: %w", folder, err)
	}
	worktree, err := repository.Worktree()
	if err != nil {
		return nil, fmt.Errorf("open the checkout of %s: %w", folder, err)
	}
	storage, ok := repository.Storer.(*filesystem.Storage)
	if !ok {
		return nil, fmt.Errorf("open the checkout of %s: its storage is a %T", folder, repository.Storer)
	}
	s := &store{folder: folder, storage: storage, commits: map[plumbing.Hash]*commit{}, dirs: map[plumbing.Hash]*dir{}}
	return &Checkout{Dir: worktree.Filesystem.Root(), git: repository, store: s, maxBlob: Config{}.withDefaults().MaxBlob}, nil
}

// Revision gives what a name means to Git: a branch, a tag, a commit, HEAD~2, origin/main.
func (c *Checkout) Revision(name string) (*Revision, error) {
	hash, err := c.git.ResolveRevision(plumbing.Revision(name))
	if err != nil {
		return nil, fmt.Errorf("the checkout has no revision %s: %w", printable.Text(name), err)
	}
	found, err := c.store.commit(*hash)
	if err != nil {
		return nil, fmt.Errorf("read revision %s: %w", printable.Text(name), err)
	}
	return c.revision(found), nil
}

func (c *Checkout) revision(found *commit) *Revision {
	return &Revision{
		Commit: found.hash.String(), Committed: found.committed, Author: found.author, Subject: found.subject,
		TreeHash: found.tree.String(),
		Tree:     &treeFS{store: c.store, root: found.tree, when: found.committed, maxBlob: c.maxBlob},
	}
}

// Parted gives the revision at which two have parted: their newest common ancestor.
func (c *Checkout) Parted(a, b *Revision) (*Revision, error) {
	if a.Commit == b.Commit {
		return a, nil
	}
	failed := func(err error) error {
		if c.Shallow() {
			err = errors.New("the checkout is shallow, so their history isn't here")
		}
		return fmt.Errorf("find where %.12s and %.12s parted: %w", a.Commit, b.Commit, err)
	}
	first, err := object.GetCommit(c.git.Storer, plumbing.NewHash(a.Commit))
	if err != nil {
		return nil, failed(err)
	}
	second, err := object.GetCommit(c.git.Storer, plumbing.NewHash(b.Commit))
	if err != nil {
		return nil, failed(err)
	}
	ancestors, err := first.MergeBase(second)
	if err != nil {
		return nil, failed(err)
	}
	if len(ancestors) == 0 {
		return nil, failed(errors.New("they have no common ancestor"))
	}
	found, err := c.store.commit(ancestors[0].Hash)
	if err != nil {
		return nil, failed(err)
	}
	return c.revision(found), nil
}

// Shallow says whether the history ends early because it was not fetched whole.
func (c *Checkout) Shallow() bool {
	shallow, err := c.git.Storer.Shallow()
	return err == nil && len(shallow) > 0
}

// RemoteURL gives the URL of a remote as the checkout's configuration has it, for who pushes without the user's git. An empty name
// is the remote of the branch that is checked out, else origin.
func (c *Checkout) RemoteURL(name string) (string, error) {
	settings, err := c.git.ConfigScoped(config.LocalScope)
	if err != nil {
		return "", fmt.Errorf("read the configuration of %s: %w", c.Dir, err)
	}
	if name == "" {
		name = "origin"
		if head, err := c.git.Reference(plumbing.HEAD, false); err == nil {
			if branch := settings.Branches[head.Target().Short()]; branch != nil && settings.Remotes[branch.Remote] != nil {
				name = branch.Remote
			}
		}
	}
	remote := settings.Remotes[name]
	if remote == nil || len(remote.URLs) == 0 {
		return "", fmt.Errorf("the checkout %s has no remote %s, so there is nowhere to push to; add it with 'git remote add origin URL'", c.Dir, printable.Text(name))
	}
	return remote.URLs[0], nil
}

// Author is who the configuration of Git says commits are of, in the checkout and for the user. Empty where it says nothing.
func (c *Checkout) Author(ctx context.Context) Author {
	if author := authorByGit(ctx, "-C", c.Dir, "config"); author != (Author{}) {
		return author
	}
	settings, err := c.git.ConfigScoped(config.SystemScope)
	if err != nil {
		return Author{}
	}
	return Author{Name: settings.User.Name, Email: settings.User.Email}
}

// UserAuthor is Author where there is no checkout.
func UserAuthor(ctx context.Context) Author {
	if author := authorByGit(ctx, "config", "--global"); author != (Author{}) {
		return author
	}
	settings, err := config.LoadConfig(config.GlobalScope)
	if err != nil {
		return Author{}
	}
	return Author{Name: settings.User.Name, Email: settings.User.Email}
}

// authorByGit asks git itself, which knows all places of its configuration. Empty where it isn't installed.
func authorByGit(ctx context.Context, arguments ...string) Author {
	get := func(key string) string {
		out, err := exec.CommandContext(ctx, "git", append(slices.Clone(arguments), "--get", key)...).Output()
		if err != nil {
			return ""
		}
		return strings.TrimSpace(string(out))
	}
	return Author{Name: get("user.name"), Email: get("user.email")}
}
