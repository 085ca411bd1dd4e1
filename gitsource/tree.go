package gitsource

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"sort"
	"strings"

	"github.com/go-git/go-git/v5/plumbing"
)

// maxDepth bounds how deep folders may stand in each other.
const maxDepth = 64

// entry is a name in a folder.
type entry struct {
	name string
	mode fs.FileMode // ModeDir, ModeSymlink, or 0 with permissions
	hash plumbing.Hash
}

// dir is a folder of a commit: its files, links and folders sorted by name. Submodules are left out.
type dir struct {
	entries []entry
	// refused is why no checkout may hold this folder, empty if one may. It is the first such name, not a failure to read:
	// a history may hold it.
	refused string
}

func (d *dir) find(name string) (entry, bool) {
	i := sort.Search(len(d.entries), func(i int) bool { return d.entries[i].name >= name })
	if i < len(d.entries) && d.entries[i].name == name {
		return d.entries[i], true
	}
	return entry{}, false
}

// decodeTree reads a tree object: mode, space, name, NUL, 20 bytes of hash, again and again.
func decodeTree(data []byte) (*dir, error) {
	d := &dir{}
	for len(data) > 0 {
		mode, rest, found := bytes.Cut(data, []byte{' '})
		if !found || len(mode) > 6 {
			return nil, &refusedTreeError{"a folder isn't in Git's format"}
		}
		name, rest, found := bytes.Cut(rest, []byte{0})
		if !found || len(rest) < 20 {
			return nil, &refusedTreeError{"a folder ends in the middle of a name"}
		}
		e := entry{name: string(name), hash: plumbing.Hash(rest[:20])}
		data = rest[20:]
		if d.refused == "" {
			d.refused = refuseName(e.name)
		}
		switch strings.TrimLeft(string(mode), "0") {
		case "40000":
			e.mode = fs.ModeDir | 0o555
		case "120000":
			e.mode = fs.ModeSymlink | 0o777
		case "160000": // a submodule: another repository's business
			continue
		case "100755":
			e.mode = 0o555
		case "100644", "100664":
			e.mode = 0o444
		default:
			return nil, &refusedTreeError{fmt.Sprintf("%q is neither file, folder, link nor submodule", e.name)}
		}
		d.entries = append(d.entries, e)
	}
	// Git sorts folders as if their names ended in a slash.
	sort.Slice(d.entries, func(i, j int) bool { return d.entries[i].name < d.entries[j].name })
	for i := 1; i < len(d.entries); i++ {
		if d.entries[i].name == d.entries[i-1].name && d.refused == "" {
			d.refused = fmt.Sprintf("the name %q stands twice in one folder", d.entries[i].name)
		}
	}
	return d, nil
}

// refuseName says why no checkout may have a file or folder of that name; empty if one may. Git refuses the same ones.
func refuseName(name string) string {
	switch {
	case name == "":
		return "a name is empty"
	case name == "." || name == "..":
		return fmt.Sprintf("the name %q leads out of its folder", name)
	case strings.Contains(name, "/"):
		return fmt.Sprintf("the name %q holds a slash", name)
	case strings.EqualFold(strings.TrimRight(name, " ."), ".git") || strings.EqualFold(name, "git~1"):
		return fmt.Sprintf("the name %q stands for Git's own folder", name)
	}
	return ""
}

// refusedTreeError says why a revision can't be used as a whole.
type refusedTreeError struct{ what string }

func (e *refusedTreeError) Error() string { return e.what }

// survey walks a whole tree, and refuses it if any name in it is refused or if it is too big. It reads no files. Folders are counted too:
// a few that stand in each other many times are billions on the way through them, also without a file.
func (s *store) survey(ctx context.Context, tree plumbing.Hash, maxFiles int) error {
	files, folders := 0, 0
	var walk func(hash plumbing.Hash, at string, depth int) error
	walk = func(hash plumbing.Hash, at string, depth int) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		if folders++; folders > maxFiles {
			return &refusedTreeError{fmt.Sprintf("it has more than %d folders", maxFiles)}
		}
		d, err := s.dir(hash)
		if err != nil {
			return err
		}
		if d.refused != "" {
			where := "at its top"
			if at != "" {
				where = fmt.Sprintf("in %q", at)
			}
			return &refusedTreeError{fmt.Sprintf("%s, %s", d.refused, where)}
		}
		if depth > maxDepth {
			return &refusedTreeError{fmt.Sprintf("folders stand more than %d deep in each other", maxDepth)}
		}
		for _, e := range d.entries {
			if !e.mode.IsDir() {
				if files++; files > maxFiles {
					return &refusedTreeError{fmt.Sprintf("it has more than %d files", maxFiles)}
				}
				if !s.has(e.hash) {
					return &brokenCacheError{hash: e.hash.String(), cause: plumbing.ErrObjectNotFound}
				}
				continue
			}
			if err := walk(e.hash, join(at, e.name), depth+1); err != nil {
				return err
			}
		}
		return nil
	}
	return walk(tree, "", 0)
}

func join(folder, name string) string {
	if folder == "" || folder == "." {
		return name
	}
	return folder + "/" + name
}
