package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"ichor.maesh.dev/gitsource"
	"ichor.maesh.dev/internal/foldertree"
	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/validate"
)

// change is what is judged: a proposal, and the revision that it is meant for where one is known.
type change struct {
	place *repository
	// base and old are nil where there is nothing to compare with.
	base     *baseRevision
	old      *schema.Fleet
	proposal validate.Proposal
}

func (c *change) close() { _ = c.place.close() }

// findChange reads the documents under path, and lays what the branch changed over the tip of its base.
func (a *app) findChange(path, baseName string, options ...schema.LoadOption) (*change, error) {
	place, err := findRepository(path)
	if err != nil {
		return nil, err
	}
	c := &change{place: place}
	if c.base, err = a.findBase(baseName, place); err != nil {
		c.close()
		return nil, err
	}
	fleet, problems := place.load(place.tree, options...)
	c.proposal = validate.Proposal{Fleet: fleet, Problems: problems}
	if c.base != nil {
		var fork *schema.Fleet
		c.old, fork = c.base.load(place)
		c.proposal = validate.Propose(fork, c.old, fleet, problems)
	}
	if fleet.Files == 0 && (c.old == nil || c.old.Files == 0) && len(problems) == 0 {
		c.close()
		return nil, cannot(fmt.Errorf("%s holds no .yaml or .yml file, so there is nothing to check", path), "give the path of a fleet repository")
	}
	return c, nil
}

// load reads the documents of a tree: those under the roots, and those around them that speak of them.
func (r *repository) load(tree fs.FS, options ...schema.LoadOption) (*schema.Fleet, []schema.Problem) {
	fleet, problems := schema.Load(tree, slices.Concat(r.roots, r.around), options...)
	return validate.TrimAround(fleet, problems, r.around)
}

// sayAround says what was read that nobody asked for.
func (a *app) sayAround(place *repository) {
	if len(place.around) > 0 {
		fmt.Fprintf(a.err, "read as well, because what stands there speaks of %s too: %s\n", a.clean(place.roots[0]), a.clean(strings.Join(place.around, ", ")))
	}
}

// repository is where the documents are read from.
type repository struct {
	dir   string // the top, on the disk
	tree  fs.FS
	roots []string
	// around are folders whose policies and operations speak of what stands under the roots.
	around   []string
	checkout *gitsource.Checkout // nil outside of Git
	close    func() error
}

// findRepository gives the checkout that a path is in, or the folder alone where there is none. Names are relative to the top
// of it, and references reach no farther.
func findRepository(path string) (*repository, error) {
	full, err := filepath.Abs(path)
	if err == nil {
		full, err = filepath.EvalSymlinks(full)
	}
	if err != nil {
		return nil, cannot(fmt.Errorf("%s can't be read: %w", path, err), "give the path of a fleet repository")
	}
	folder := full
	if info, err := os.Stat(full); err == nil && !info.IsDir() {
		folder = filepath.Dir(full)
	}
	top := folder
	checkout, err := gitsource.OpenCheckout(folder)
	switch {
	case errors.Is(err, gitsource.ErrNoCheckout):
	case err != nil:
		return nil, cannot(err, "")
	default:
		if top, err = filepath.EvalSymlinks(checkout.Dir); err != nil {
			return nil, cannot(fmt.Errorf("%s can't be read: %w", checkout.Dir, err), "")
		}
	}
	below, err := filepath.Rel(top, full)
	if err != nil {
		return nil, cannot(fmt.Errorf("%s can't be read: %w", path, err), "")
	}
	if checkout == nil {
		if err := refuseAllOfADisk(path, top, mostOutsideOfGit); err != nil {
			return nil, err
		}
	}
	tree, err := foldertree.Open(top)
	if err != nil {
		return nil, cannot(fmt.Errorf("%s can't be read: %w", top, err), "")
	}
	part := filepath.ToSlash(below)
	return &repository{dir: top, tree: tree, roots: []string{part}, around: validate.Around(tree, part), checkout: checkout, close: tree.Close}, nil
}

// mostOutsideOfGit is how many files and folders a place may hold that is in no Git checkout. A fleet of a thousand machines has a few thousand.
const mostOutsideOfGit = 50_000

// refuseAllOfADisk refuses a folder that was hardly meant: a home, or the root of the disk. All of it would be read, for minutes.
func refuseAllOfADisk(path, top string, most int) error {
	entries := 0
	err := filepath.WalkDir(top, func(_ string, _ fs.DirEntry, _ error) error {
		if entries++; entries > most {
			return fs.SkipAll
		}
		return nil // what can't be read is said by who reads it
	})
	if err != nil {
		return cannot(fmt.Errorf("%s can't be read: %w", path, err), "")
	}
	if entries > most {
		return cannot(fmt.Errorf("%s is in no Git checkout and holds more than %d files and folders, so it is hardly a fleet repository; nothing was read", path, most),
			"start it in a checkout of the fleet repository, or give the path of one")
	}
	return nil
}
