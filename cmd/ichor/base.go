package main

import (
	"errors"
	"fmt"

	"ichor.maesh.dev/gitsource"
	"ichor.maesh.dev/schema"
)

// baseRevision is what the change is meant for.
type baseRevision struct {
	name, how string
	tip, fork *gitsource.Revision
	// head is the commit that is checked out.
	head *gitsource.Revision
}

// findBase gives the revision that the change is compared with; nil when none is given and none can be guessed.
func (a *app) findBase(name string, place *repository) (*baseRevision, error) {
	candidates := []candidate{{revision: name}}
	if name == "" {
		candidates = guessBase(ciVariables{a.getenv})
	}
	if len(candidates) == 0 {
		return nil, nil
	}
	if place.checkout == nil {
		if name == "" {
			return nil, nil
		}
		return nil, cannot(errors.New("--base needs a Git checkout, and there is none"), "check the repository out with git")
	}
	head, err := place.checkout.Revision("HEAD")
	if err != nil {
		return nil, cannot(err, "commit something first, or leave --base out")
	}
	for _, c := range candidates {
		var tip *gitsource.Revision
		if tip, err = place.checkout.Revision(c.revision); err != nil {
			continue
		}
		base := &baseRevision{name: c.revision, how: c.how(), tip: tip, fork: tip, head: head}
		if c.pushed {
			return base, nil
		}
		if base.fork, err = place.checkout.Parted(head, tip); err != nil {
			return nil, cannot(err, c.fetched(place.checkout.Shallow()))
		}
		return base, nil
	}
	last := candidates[len(candidates)-1]
	return nil, cannot(fmt.Errorf("the base can't be read%s: %w", last.how(), err), last.fetched(place.checkout.Shallow()))
}

// load reads the base's tip, and what the branch started from. What can't be read there is no concern of this change.
func (b *baseRevision) load(place *repository) (tip, fork *schema.Fleet) {
	tip, _ = place.load(b.tip.Tree)
	if b.fork.Commit == b.tip.Commit {
		return tip, tip
	}
	fork, _ = place.load(b.fork.Tree)
	return tip, fork
}

// sayBase says what the change was compared with.
func (a *app) sayBase(base *baseRevision) {
	if base == nil {
		fmt.Fprintln(a.err, "there was no base to compare with, so only what one revision can show was checked; --base REVISION judges the change too")
		return
	}
	rest := ""
	switch {
	case base.head.Commit == base.tip.Commit:
		rest = "; that is what is checked out, so only what isn't committed was judged as a change"
	case base.fork.Commit != base.tip.Commit:
		rest = fmt.Sprintf("; the branch left it at %.12s, and what changed there since is counted in", base.fork.Commit)
	}
	fmt.Fprintf(a.err, "compared with %s (%.12s)%s%s\n", a.clean(base.name), base.tip.Commit, base.how, rest)
}
