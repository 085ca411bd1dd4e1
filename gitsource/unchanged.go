package gitsource

import (
	"context"
	"fmt"
	"io/fs"

	"github.com/go-git/go-git/v5/plumbing"

	"ichor.maesh.dev/internal/printable"
)

// UnchangedSince gives the oldest commit of revision's first-parent line since which a file has been, without a break, what it
// is in revision: the commit that brought it. An error when the history ends before, because it was not fetched whole.
func (c *Checkout) UnchangedSince(ctx context.Context, revision *Revision, name string) (*Revision, error) {
	failed := func(err error) error {
		return fmt.Errorf("look for the commit that brought %s: %w", printable.Text(name), err)
	}
	wanted, err := contentHash(revision, name)
	if err != nil {
		return nil, failed(err)
	}
	for at := revision; ; {
		if err := ctx.Err(); err != nil {
			return nil, failed(err)
		}
		commit, err := c.store.commit(plumbing.NewHash(at.Commit))
		if err != nil {
			return nil, failed(err)
		}
		if len(commit.parents) == 0 {
			return at, nil
		}
		older, err := c.store.commit(commit.parents[0])
		if err != nil {
			if c.Shallow() {
				err = fmt.Errorf("the checkout is shallow, and its history ends at %.12s", at.Commit)
			}
			return nil, failed(err)
		}
		parent := c.revision(older)
		if found, err := contentHash(parent, name); err != nil || found != wanted {
			return at, nil
		}
		at = parent
	}
}

// contentHash names the content of a file of a revision.
func contentHash(revision *Revision, name string) (string, error) {
	info, err := fs.Stat(revision.Tree, name)
	if err != nil {
		return "", err
	}
	hash, _ := info.Sys().(string)
	return hash, nil
}
