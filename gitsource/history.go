package gitsource

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"sync"

	"github.com/go-git/go-git/v5/plumbing"
)

// cachedChanges bounds how many changed names a history remembers.
const cachedChanges = 500_000

// history answers questions about how commits follow each other.
type history struct {
	store *store

	mu sync.Mutex
	// changes is, by commit, what its first parent had at the names that it changed.
	changes map[plumbing.Hash][]change
	names   int // in changes
}

// change is a name at which a commit differs from its first parent. Old is zero where the parent had no file there.
type change struct {
	path string
	old  plumbing.Hash
}

func newHistory(s *store) *history {
	return &history{store: s, changes: map[plumbing.Hash][]change{}}
}

// descends tells whether ancestor is tip or is reached from it over any parents.
func (h *history) descends(ctx context.Context, tip, ancestor plumbing.Hash) (bool, error) {
	if tip == ancestor {
		return true, nil
	}
	if !h.store.has(ancestor) {
		return false, nil
	}
	seen := map[plumbing.Hash]bool{tip: true}
	for queue := []plumbing.Hash{tip}; len(queue) > 0; queue = queue[1:] {
		if err := ctx.Err(); err != nil {
			return false, err
		}
		c, err := h.store.commit(queue[0])
		if err != nil {
			return false, err
		}
		for _, parent := range c.parents {
			if parent == ancestor {
				return true, nil
			}
			if !seen[parent] {
				seen[parent] = true
				queue = append(queue, parent)
			}
		}
	}
	return false, nil
}

// since gives the commits of to's first-parent line that descend from from, oldest first. See Source.Since.
func (h *history) since(ctx context.Context, from, to plumbing.Hash) ([]plumbing.Hash, error) {
	if from == to {
		return nil, nil
	}
	if from.IsZero() || !h.store.has(from) {
		return []plumbing.Hash{to}, nil
	}
	var line []plumbing.Hash
	for at := to; ; {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		line = append(line, at)
		c, err := h.store.commit(at)
		if err != nil {
			return nil, err
		}
		if len(c.parents) == 0 {
			break
		}
		if at = c.parents[0]; at == from {
			slices.Reverse(line)
			return line, nil
		}
	}
	return h.sinceMerge(ctx, from, line)
}

// sinceMerge is since where from came into to's first-parent line by a merge: only the commits from that merge on were made
// on top of from.
func (h *history) sinceMerge(ctx context.Context, from plumbing.Hash, line []plumbing.Hash) ([]plumbing.Hash, error) {
	// Descending is monotonous along the line, so the oldest that descends can be searched for by halves.
	low, high := 0, len(line) // line[low-1] descends, line[high] does not
	for low < high {
		middle := (low + high) / 2
		descends, err := h.descends(ctx, line[middle], from)
		if err != nil {
			return nil, err
		}
		if descends {
			low = middle + 1
		} else {
			high = middle
		}
	}
	if low == 0 { // a rewind that was allowed
		return line[:1], nil
	}
	line = line[:low]
	slices.Reverse(line)
	return line, nil
}

// errIncomparable says that two commits can't be compared whole. Who can push can have made them so, and no later commit mends a history.
var errIncomparable = errors.New("the commits can't be compared")

// changed gives the names at which a commit differs from its first parent, and what stood there before; errIncomparable.
func (h *history) changed(ctx context.Context, c *commit) ([]change, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if list, found := h.changes[c.hash]; found {
		return list, nil
	}
	parent, err := h.store.commit(c.parents[0])
	if err != nil {
		return nil, err
	}
	comparing := &comparison{ctx: ctx, history: h}
	err = comparing.compare("", parent.tree, c.tree, 0)
	var refused *refusedTreeError
	if errors.As(err, &refused) {
		err = errIncomparable
	}
	if err != nil {
		return nil, err
	}
	if h.names+len(comparing.list) > cachedChanges {
		clear(h.changes)
		h.names = 0
	}
	h.changes[c.hash] = comparing.list
	h.names += len(comparing.list)
	return comparing.list, nil
}

// comparison is what two commits differ in, as far as it is found.
type comparison struct {
	ctx     context.Context //nolint:containedctx // of one call
	history *history
	list    []change
	// seen counts the names that were looked at.
	seen int
}

// compare appends what differs between two folders, either of which may be zero (absent). Equal folders are not looked into.
func (c *comparison) compare(at string, was, is plumbing.Hash, depth int) error {
	if was == is {
		return nil
	}
	if err := c.ctx.Err(); err != nil {
		return err
	}
	if depth > maxDepth {
		return errIncomparable
	}
	old, err := c.history.folder(was)
	if err != nil {
		return err
	}
	now, err := c.history.folder(is)
	if err != nil {
		return err
	}
	if c.seen += 1 + len(old) + len(now); c.seen > cachedChanges {
		return errIncomparable
	}
	for len(old) > 0 || len(now) > 0 {
		var a, b entry
		switch {
		case len(now) == 0 || (len(old) > 0 && old[0].name < now[0].name):
			a, old = old[0], old[1:]
		case len(old) == 0 || now[0].name < old[0].name:
			b, now = now[0], now[1:]
		default:
			a, b, old, now = old[0], now[0], old[1:], now[1:]
		}
		if err := c.compareEntries(at, a, b, depth); err != nil {
			return err
		}
	}
	return nil
}

func (c *comparison) compareEntries(at string, was, is entry, depth int) error {
	name := join(at, max(was.name, is.name)) // they are equal, or one is empty
	var wasFolder, isFolder, wasFile, isFile plumbing.Hash
	if was.mode.IsDir() {
		wasFolder = was.hash
	} else if was.mode.IsRegular() {
		wasFile = was.hash
	}
	if is.mode.IsDir() {
		isFolder = is.hash
	} else if is.mode.IsRegular() {
		isFile = is.hash
	}
	if wasFile != isFile {
		c.list = append(c.list, change{path: name, old: wasFile})
	}
	return c.compare(name, wasFolder, isFolder, depth+1)
}

func (h *history) folder(hash plumbing.Hash) ([]entry, error) {
	if hash.IsZero() {
		return nil, nil
	}
	d, err := h.store.dir(hash)
	if err != nil {
		return nil, err
	}
	return d.entries, nil
}

// approved walks back from from while the object that stands in file there is approved. See Source.Approved. Narrow gives a
// commit with nothing but some files.
func (h *history) approved(ctx context.Context, from plumbing.Hash, file string,
	narrow func(at plumbing.Hash, files ...string) (*Revision, error), approved func(*Revision) (bool, error),
) (plumbing.Hash, error) {
	revision, err := narrow(from, file)
	if err != nil {
		return from, err
	}
	if yes, err := approved(revision); err != nil || !yes {
		if err == nil {
			err = fmt.Errorf("%s at %.12s does not hold what was said to be approved there", file, from)
		}
		return from, err
	}
	for at := from; ; {
		if err := ctx.Err(); err != nil {
			return at, err
		}
		c, err := h.store.commit(at)
		if err != nil {
			return at, err
		}
		if len(c.parents) == 0 {
			return at, nil
		}
		parent := c.parents[0]
		candidates, err := h.candidates(ctx, c, file)
		if err != nil {
			return at, err
		}
		if candidates == nil { // the file is the same in the parent
			at = parent
			continue
		}
		before, err := firstApproved(parent, candidates, narrow, approved)
		if err != nil || before == "" {
			return at, err
		}
		at, file = parent, before
	}
}

// candidates gives the files in which c's first parent may hold an object that stands in file in c: that file first, then the
// others that c changed or removed. Nil means that c left the file as it was; then the parent holds it there too.
// Where the two can't be compared whole it is that file alone.
func (h *history) candidates(ctx context.Context, c *commit, file string) ([]string, error) {
	list, err := h.changed(ctx, c)
	if errors.Is(err, errIncomparable) {
		return h.sameFile(c, file)
	}
	if err != nil {
		return nil, err
	}
	if !slices.ContainsFunc(list, func(ch change) bool { return ch.path == file }) {
		return nil, nil
	}
	candidates := []string{}
	for _, ch := range list {
		switch {
		case ch.old.IsZero():
		case ch.path == file:
			candidates = slices.Insert(candidates, 0, ch.path)
		default:
			candidates = append(candidates, ch.path)
		}
	}
	return candidates, nil
}

// sameFile is candidates by that file alone.
func (h *history) sameFile(c *commit, file string) ([]string, error) {
	parent, err := h.store.commit(c.parents[0])
	if err != nil {
		return nil, err
	}
	was, errWas := (&treeFS{store: h.store, root: parent.tree}).lookup("compare", file)
	is, errIs := (&treeFS{store: h.store, root: c.tree}).lookup("compare", file)
	if errWas == nil && errIs == nil && was.hash == is.hash {
		return nil, nil
	}
	return []string{file}, nil
}

// firstApproved gives the first of the files that holds the approved object, "" if none does.
func firstApproved(at plumbing.Hash, files []string, narrow func(plumbing.Hash, ...string) (*Revision, error), approved func(*Revision) (bool, error)) (string, error) {
	for _, file := range files {
		revision, err := narrow(at, file)
		if err != nil {
			return "", err
		}
		yes, err := approved(revision)
		if err != nil {
			return "", err
		}
		if yes {
			return file, nil
		}
	}
	return "", nil
}

// withIgnoreFiles adds to files the .ichorignore files that may name them.
func withIgnoreFiles(files []string) map[string]bool {
	only := map[string]bool{}
	for _, file := range files {
		only[file] = true
		for folder := path.Dir(file); ; folder = path.Dir(folder) {
			only[join(folder, ".ichorignore")] = true
			if folder == "." {
				break
			}
		}
	}
	return only
}

var _ fs.FS = (*treeFS)(nil)
