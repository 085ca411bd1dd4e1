package soak

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing/fstest"
	"time"

	"ichor.maesh.dev/gitsource"
)

// branch is the branch that is watched: a tree of commits, of which one is its tip. The world's lock guards it.
type branch struct {
	commits []*gitsource.Revision
	parent  map[string]string
	tip     string
}

// push puts a commit on top of the tip.
func (b *branch) push(w *World, subject string, files map[string]string) string {
	tree := fstest.MapFS{}
	for name, text := range files {
		tree[name] = &fstest.MapFile{Data: []byte(text), Mode: 0o644}
	}
	commit := fmt.Sprintf("%016x%024x", w.draw("commit", len(b.commits)), len(b.commits)+1)
	if b.parent == nil {
		b.parent = map[string]string{}
	}
	b.parent[commit] = b.tip
	b.commits = append(b.commits, &gitsource.Revision{Commit: commit, TreeHash: commit, Tree: tree, Committed: time.Now().UTC().Truncate(time.Second),
		Subject: subject, Author: "alice"})
	b.tip = commit
	return commit
}

func (b *branch) at(commit string) *gitsource.Revision {
	for _, r := range b.commits {
		if r.Commit == commit {
			return r
		}
	}
	return nil
}

// clone is a host's clone of the branch; what it holds outlives the process.
type clone struct {
	p *process
	// polled says that this process asked before.
	polled bool
}

var errGitAway = errors.New("the repository gives no answer")

// Poll implements reconcile.Source. It answers on the half minute, so that when exactly it was asked changes nothing.
func (c *clone) Poll(ctx context.Context) (*gitsource.Revision, error) {
	w, h := c.p.w, c.p.host
	grid := w.grid
	gone := time.Since(epoch) - time.Duration(h.number)*time.Second
	wait := grid - gone%grid
	if !c.polled { // the first answer comes at once
		wait, c.polled = 0, true
	}
	select {
	case <-time.After(wait):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if err := c.p.point(ctx, "git", "poll"); err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if h.away != "" {
		w.faults["git away"]++
		return nil, fmt.Errorf("%w: %s", errGitAway, h.away)
	}
	return w.git.at(w.git.tip), nil
}

// Seen implements reconcile.Source: nothing but the last good commit is kept from one process to the next.
func (c *clone) Seen() (*gitsource.Revision, error) { return c.LastGood() }

// LastGood implements reconcile.Source.
func (c *clone) LastGood() (*gitsource.Revision, error) {
	c.p.w.mu.Lock()
	defer c.p.w.mu.Unlock()
	if c.p.host.good == "" {
		return nil, gitsource.ErrNone
	}
	return c.p.w.git.at(c.p.host.good), nil
}

// MarkGood implements reconcile.Source.
func (c *clone) MarkGood(commit string) error {
	if c.p.isDead() {
		return errDead
	}
	c.p.w.mu.Lock()
	defer c.p.w.mu.Unlock()
	c.p.host.good = commit
	return nil
}

// At implements reconcile.Source.
func (c *clone) At(commit string) (*gitsource.Revision, error) {
	c.p.w.mu.Lock()
	defer c.p.w.mu.Unlock()
	if r := c.p.w.git.at(commit); r != nil {
		return r, nil
	}
	return nil, fmt.Errorf("no commit %s", commit)
}

// Object implements reconcile.Source. Commits here bear no signatures.
func (c *clone) Object(commit string) ([]byte, error) {
	return nil, fmt.Errorf("no object of commit %s", commit)
}

// line is the first-parent line from a commit down to its root.
func (b *branch) line(commit string) []string {
	var line []string
	for ; commit != ""; commit = b.parent[commit] {
		line = append(line, commit)
	}
	return line
}

// Since implements reconcile.Source.
func (c *clone) Since(_ context.Context, from, to string) ([]*gitsource.Revision, error) {
	c.p.w.mu.Lock()
	defer c.p.w.mu.Unlock()
	var list []*gitsource.Revision
	for _, commit := range c.p.w.git.line(to) {
		if commit == from {
			slices.Reverse(list)
			return list, nil
		}
		list = append(list, c.p.w.git.at(commit))
	}
	return nil, fmt.Errorf("%s does not descend from %s", to, from)
}

// Descends implements reconcile.Source.
func (c *clone) Descends(_ context.Context, tip, ancestor string) (bool, error) {
	c.p.w.mu.Lock()
	defer c.p.w.mu.Unlock()
	return slices.Contains(c.p.w.git.line(tip), ancestor), nil
}

// Approved implements reconcile.Source.
func (c *clone) Approved(_ context.Context, revision *gitsource.Revision, _ string, approved func(*gitsource.Revision) (bool, error)) (*gitsource.Revision, error) {
	c.p.w.mu.Lock()
	var line []*gitsource.Revision
	for _, commit := range c.p.w.git.line(revision.Commit) {
		line = append(line, c.p.w.git.at(commit))
	}
	c.p.w.mu.Unlock()
	found := revision
	for _, r := range line {
		yes, err := approved(r)
		if err != nil || !yes {
			return found, err
		}
		found = r
	}
	return found, nil
}
