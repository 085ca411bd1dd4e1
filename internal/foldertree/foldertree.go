// Package foldertree reads the files of a folder, and nothing outside of it, as [os.Root] does. Where os.Root opens every folder on the
// way to each file, a [Tree] keeps the folders open that it was in last.
package foldertree

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"sync"
)

// keptFolders is how many folders are kept open at most: a walk is in a few at a time, one for each goroutine that reads.
const keptFolders = 32

// Tree is a folder's files. It may be used by several goroutines at once.
type Tree struct {
	tree
	root *os.Root

	mu     sync.Mutex
	open   map[string]*os.Root
	oldest []string // the names of those in open, in the order in which they were opened
}

// tree is what the file system of an os.Root can do.
type tree interface {
	fs.ReadDirFS
	fs.ReadFileFS
	fs.StatFS
	fs.ReadLinkFS
}

// Open opens a folder of the disk.
func Open(dir string) (*Tree, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	return &Tree{tree: filesOf(root), root: root, open: map[string]*os.Root{}}, nil
}

// filesOf gives the file system of a root; os promises that it has these methods.
func filesOf(root *os.Root) tree { return root.FS().(tree) }

// Open implements fs.FS.
func (t *Tree) Open(name string) (fs.File, error) {
	if folder := path.Dir(name); folder != "." && fs.ValidPath(name) {
		if in := t.folder(folder); in != nil {
			if file, err := filesOf(in).Open(path.Base(name)); err == nil {
				return file, nil
			}
			// A link may lead out of the folder and still not out of the tree, another goroutine may have closed the folder, or there
			// is no such file: the whole path tells.
		}
	}
	return t.tree.Open(name)
}

// folder gives a folder that is kept open; nil when it can't be opened.
func (t *Tree) folder(name string) *os.Root {
	t.mu.Lock()
	defer t.mu.Unlock()
	if known := t.open[name]; known != nil {
		return known
	}
	opened, err := t.root.OpenRoot(name)
	if err != nil {
		return nil
	}
	if len(t.oldest) == keptFolders {
		_ = t.open[t.oldest[0]].Close() // it was only read
		delete(t.open, t.oldest[0])
		t.oldest = t.oldest[1:]
	}
	t.open[name], t.oldest = opened, append(t.oldest, name)
	return opened
}

// Close closes the tree. Files that are open stay so.
func (t *Tree) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	var errs []error
	for _, folder := range t.open {
		errs = append(errs, folder.Close())
	}
	clear(t.open)
	t.oldest = nil
	return errors.Join(append(errs, t.root.Close())...)
}
