package gitsource

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"time"

	"github.com/go-git/go-git/v5/plumbing"
)

// treeFS is a commit's files as a file system. Nothing is followed: a symlink is an entry of its own.
type treeFS struct {
	store   *store
	root    plumbing.Hash
	when    time.Time
	maxBlob int64
	// only, if not nil, is the set of files that are there; all others are as if they were not.
	only map[string]bool
}

var (
	_ fs.ReadDirFS  = (*treeFS)(nil)
	_ fs.ReadFileFS = (*treeFS)(nil)
	_ fs.StatFS     = (*treeFS)(nil)
	_ fs.ReadLinkFS = (*treeFS)(nil)
)

var (
	errIsLink   = errors.New("is a symbolic link, and links are not followed")
	errIsFolder = errors.New("is a folder")
)

func (t *treeFS) Open(name string) (fs.File, error) {
	e, err := t.lookup("open", name)
	if err != nil {
		return nil, err
	}
	if e.mode.IsDir() {
		return &openDir{tree: t, path: name, entry: e}, nil
	}
	data, err := t.content("open", name, e)
	if err != nil {
		return nil, err
	}
	return &openFile{Reader: bytes.NewReader(data), info: t.info(e, int64(len(data)))}, nil
}

// ReadFile reads a whole file.
func (t *treeFS) ReadFile(name string) ([]byte, error) {
	e, err := t.lookup("read", name)
	if err != nil {
		return nil, err
	}
	return t.content("read", name, e)
}

// Stat tells about a file; of a symlink it tells about the link.
func (t *treeFS) Stat(name string) (fs.FileInfo, error) {
	e, err := t.lookup("stat", name)
	if err != nil {
		return nil, err
	}
	return t.sized("stat", name, e)
}

// Lstat is Stat: no link is followed.
func (t *treeFS) Lstat(name string) (fs.FileInfo, error) { return t.Stat(name) }

// ReadLink gives what a symlink says. Nothing of this package goes there.
func (t *treeFS) ReadLink(name string) (string, error) {
	e, err := t.lookup("readlink", name)
	if err != nil {
		return "", err
	}
	if e.mode.Type() != fs.ModeSymlink {
		return "", &fs.PathError{Op: "readlink", Path: name, Err: fs.ErrInvalid}
	}
	data, err := t.store.read(e.hash, plumbing.BlobObject, 4096)
	if err != nil {
		return "", &fs.PathError{Op: "readlink", Path: name, Err: err}
	}
	return string(data), nil
}

// ReadDir lists a folder, sorted by name.
func (t *treeFS) ReadDir(name string) ([]fs.DirEntry, error) {
	e, err := t.lookup("readdir", name)
	if err != nil {
		return nil, err
	}
	return t.list(name, e)
}

func (t *treeFS) list(name string, e entry) ([]fs.DirEntry, error) {
	if !e.mode.IsDir() {
		return nil, &fs.PathError{Op: "readdir", Path: name, Err: errors.New("is not a folder")}
	}
	d, err := t.folder(e.hash)
	if err != nil {
		return nil, &fs.PathError{Op: "readdir", Path: name, Err: err}
	}
	list := make([]fs.DirEntry, 0, len(d.entries))
	for _, child := range d.entries {
		if path := join(name, child.name); t.shows(path, child) {
			list = append(list, dirEntry{tree: t, path: path, entry: child})
		}
	}
	return list, nil
}

// folder gives a folder, unless a name in it is refused: then what a path means is no longer certain.
func (t *treeFS) folder(hash plumbing.Hash) (*dir, error) {
	d, err := t.store.dir(hash)
	if err == nil && d.refused != "" {
		err = &refusedTreeError{d.refused}
	}
	return d, err
}

// shows tells whether the file system has that entry, given that the commit does.
func (t *treeFS) shows(path string, e entry) bool {
	if t.only == nil {
		return true
	}
	if !e.mode.IsDir() {
		return t.only[path]
	}
	for file := range t.only {
		if strings.HasPrefix(file, path+"/") {
			return true
		}
	}
	return false
}

func (t *treeFS) lookup(op, name string) (entry, error) {
	if !fs.ValidPath(name) {
		return entry{}, &fs.PathError{Op: op, Path: name, Err: fs.ErrInvalid}
	}
	at := entry{name: ".", mode: fs.ModeDir | 0o555, hash: t.root}
	if name == "." {
		return at, nil
	}
	path := ""
	for part := range strings.SplitSeq(name, "/") {
		if !at.mode.IsDir() {
			return entry{}, &fs.PathError{Op: op, Path: name, Err: fs.ErrNotExist}
		}
		d, err := t.folder(at.hash)
		if err != nil {
			return entry{}, &fs.PathError{Op: op, Path: name, Err: err}
		}
		next, found := d.find(part)
		path = join(path, part)
		if !found || !t.shows(path, next) {
			return entry{}, &fs.PathError{Op: op, Path: name, Err: fs.ErrNotExist}
		}
		at = next
	}
	return at, nil
}

func (t *treeFS) content(op, name string, e entry) ([]byte, error) {
	switch {
	case e.mode.IsDir():
		return nil, &fs.PathError{Op: op, Path: name, Err: errIsFolder}
	case e.mode.Type() == fs.ModeSymlink:
		return nil, &fs.PathError{Op: op, Path: name, Err: errIsLink}
	}
	data, err := t.store.read(e.hash, plumbing.BlobObject, t.maxBlob)
	if err != nil {
		return nil, &fs.PathError{Op: op, Path: name, Err: err}
	}
	return data, nil
}

func (t *treeFS) info(e entry, size int64) fileInfo {
	return fileInfo{entry: e, size: size, when: t.when}
}

func (t *treeFS) sized(op, name string, e entry) (fs.FileInfo, error) {
	if e.mode.IsDir() {
		return t.info(e, 0), nil
	}
	size, err := t.store.size(e.hash)
	if err != nil {
		return nil, &fs.PathError{Op: op, Path: name, Err: err}
	}
	return t.info(e, size), nil
}

type fileInfo struct {
	entry entry
	size  int64
	when  time.Time
}

func (i fileInfo) Name() string       { return i.entry.name }
func (i fileInfo) Size() int64        { return i.size }
func (i fileInfo) Mode() fs.FileMode  { return i.entry.mode }
func (i fileInfo) ModTime() time.Time { return i.when }
func (i fileInfo) IsDir() bool        { return i.entry.mode.IsDir() }

// Sys gives the hash of the content, as a string of hex.
func (i fileInfo) Sys() any { return i.entry.hash.String() }

type dirEntry struct {
	tree  *treeFS
	path  string
	entry entry
}

func (d dirEntry) Name() string               { return d.entry.name }
func (d dirEntry) IsDir() bool                { return d.entry.mode.IsDir() }
func (d dirEntry) Type() fs.FileMode          { return d.entry.mode.Type() }
func (d dirEntry) Info() (fs.FileInfo, error) { return d.tree.sized("stat", d.path, d.entry) }
func (d dirEntry) String() string             { return fs.FormatDirEntry(d) }

type openFile struct {
	*bytes.Reader
	info fileInfo
}

func (f *openFile) Stat() (fs.FileInfo, error) { return f.info, nil }
func (f *openFile) Close() error               { return nil }

type openDir struct {
	tree  *treeFS
	path  string
	entry entry
	// list is what is still to be given; nil before the first ReadDir.
	list []fs.DirEntry
	read bool
}

func (d *openDir) Stat() (fs.FileInfo, error) { return d.tree.info(d.entry, 0), nil }
func (d *openDir) Close() error               { return nil }

func (d *openDir) Read([]byte) (int, error) {
	return 0, &fs.PathError{Op: "read", Path: d.path, Err: errIsFolder}
}

func (d *openDir) ReadDir(n int) ([]fs.DirEntry, error) {
	if !d.read {
		list, err := d.tree.list(d.path, d.entry)
		if err != nil {
			return nil, err
		}
		d.list, d.read = list, true
	}
	if n <= 0 {
		all := d.list
		d.list = nil
		return all, nil
	}
	if len(d.list) == 0 {
		return nil, io.EOF
	}
	part := d.list[:min(n, len(d.list))]
	d.list = d.list[len(part):]
	return part, nil
}

// checkFolders tells the first of paths that isn't a folder of the tree.
func checkFolders(tree fs.FS, paths []string) error {
	for _, path := range paths {
		clean := strings.Trim(path, "/")
		if clean == "" {
			clean = "."
		}
		info, err := fs.Stat(tree, clean)
		switch {
		case err == nil && info.IsDir():
		case err == nil:
			return fmt.Errorf("%q is a file; give a folder", path)
		case errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrInvalid):
			return fmt.Errorf("%q isn't there; push it, or give another by --path", path)
		default:
			return err
		}
	}
	return nil
}
