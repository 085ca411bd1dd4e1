package validate

import (
	"bytes"
	"io/fs"
	"path"

	"ichor.maesh.dev/schema"
)

// overlay shows the files that a merge would give: a file that the branch changed since the fork as it is on the branch, all
// others as they are on the base. It is for looking up files, not for walking.
type overlay struct {
	fork, base, branch fs.FS
	known              map[string]bool // whether a file comes from the base
}

func newOverlay(fork, base, branch fs.FS) *overlay {
	return &overlay{fork: fork, base: base, branch: branch, known: map[string]bool{}}
}

// fromBase says whether the branch left a file as it was at the fork.
func (o *overlay) fromBase(name string) bool {
	is, known := o.known[name]
	if !known {
		is = sameFile(o.fork, o.branch, name)
		o.known[name] = is
	}
	return is
}

// same says whether a file is the same on the branch and on the base.
func (o *overlay) same(name string) bool { return sameFile(o.branch, o.base, name) }

func (o *overlay) of(name string) fs.FS {
	if o.fromBase(name) {
		return o.base
	}
	return o.branch
}

// Open implements fs.FS.
func (o *overlay) Open(name string) (fs.File, error) { return o.of(name).Open(name) }

// Lstat implements fs.ReadLinkFS. A folder is one wherever it is one.
func (o *overlay) Lstat(name string) (fs.FileInfo, error) {
	for _, tree := range []fs.FS{o.branch, o.base} {
		if info, err := lstat(tree, name); err == nil && info.IsDir() {
			return info, nil
		}
	}
	return lstat(o.of(name), name)
}

// ReadLink implements fs.ReadLinkFS.
func (o *overlay) ReadLink(name string) (string, error) { return fs.ReadLink(o.of(name), name) }

// lstat looks at a name without following a symlink.
func lstat(tree fs.FS, name string) (fs.FileInfo, error) {
	if _, ok := tree.(fs.ReadLinkFS); ok {
		return fs.Lstat(tree, name)
	}
	entries, err := fs.ReadDir(tree, path.Dir(name))
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if e.Name() == path.Base(name) {
			return e.Info()
		}
	}
	return nil, fs.ErrNotExist
}

// sameFile says whether a file is there in both trees with the same content, or in neither.
func sameFile(a, b fs.FS, name string) bool {
	infoA, errA := lstat(a, name)
	infoB, errB := lstat(b, name)
	if errA != nil || errB != nil {
		return errA != nil && errB != nil
	}
	if infoA.Mode().Type() != infoB.Mode().Type() {
		return false
	}
	if !infoA.Mode().IsRegular() {
		return infoA.IsDir()
	}
	if infoA.Size() != infoB.Size() || infoA.Size() > schema.MaxRefSize {
		return false
	}
	dataA, errA := fs.ReadFile(a, name)
	dataB, errB := fs.ReadFile(b, name)
	return errA == nil && errB == nil && bytes.Equal(dataA, dataB)
}
