package schema

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"ichor.maesh.dev/internal/printable"
)

// walker finds the YAML files under the roots.
type walker struct {
	tree    fs.FS
	entries int
	seen    map[string]bool
	// ignored holds the patterns that hold in a folder: its own behind those of the folders around it.
	ignored  map[string][]ignorePattern
	files    []string
	problems []located
}

// errTooMany ends a walk.
var errTooMany = fmt.Errorf("more than %d files and folders are under the roots; give fewer roots", maxEntries)

// yamlFiles lists every YAML file under the roots, each once, in the order of the roots and then of their paths.
// Symlinks, names that begin with a dot, and what an ignore file names are left out.
func yamlFiles(tree fs.FS, roots []string) ([]string, []located) {
	w := &walker{tree: tree, seen: map[string]bool{}, ignored: map[string][]ignorePattern{}}
	for _, root := range roots {
		at := Position{File: root}
		name, err := cleanRoot(root)
		if err == nil {
			at.File = name
			err = w.root(name)
		}
		if err != nil {
			w.problems = append(w.problems, located{at, err.Error()})
		}
		if errors.Is(err, errTooMany) {
			break
		}
	}
	return w.files, w.problems
}

func cleanRoot(root string) (string, error) {
	name := path.Clean("./" + root)
	if path.IsAbs(root) || name == ".." || strings.HasPrefix(name, "../") || strings.Contains(root, "\\") {
		return "", fmt.Errorf("the root %s is not a path inside the repository; give it relative to the repository's top", shown(root))
	}
	return name, nil
}

// root walks a folder, or takes a file.
func (w *walker) root(name string) error {
	info, err := w.plainPath(name)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		if !isYAML(name) {
			return fmt.Errorf("the root %s is neither a folder nor a YAML file", printable.Text(name))
		}
		w.take(name)
		return nil
	}
	if err := w.readIgnores(name); err != nil {
		return err
	}
	return w.folder(name, 0)
}

// plainPath looks at a root and at each folder on the way to it.
func (w *walker) plainPath(name string) (fs.FileInfo, error) {
	for i := 0; i < len(name); i++ {
		if name[i] != '/' {
			continue
		}
		if info, err := lstat(w.tree, name[:i]); err == nil && !info.IsDir() {
			return nil, notRegular(name[:i], info)
		}
	}
	info, err := lstat(w.tree, name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("there is no %s in the repository; check the roots that were given", printable.Text(name))
	case err != nil:
		return nil, fmt.Errorf("can't read %s: %w", printable.Text(name), err)
	case !info.IsDir() && !info.Mode().IsRegular():
		return nil, notRegular(name, info)
	}
	return info, nil
}

// readIgnores reads the ignore files of the folders around a root. Those below it are read on the way.
func (w *walker) readIgnores(root string) error {
	for _, folder := range parents(root) {
		if err := w.readIgnore(folder); err != nil {
			return err
		}
	}
	return nil
}

// parents lists the folders around a name, from the top.
func parents(name string) []string {
	if name == "." {
		return nil
	}
	all := []string{"."}
	for i := range len(name) {
		if name[i] == '/' {
			all = append(all, name[:i])
		}
	}
	return all
}

func (w *walker) readIgnore(folder string) error {
	if _, done := w.ignored[folder]; done {
		return nil
	}
	var patterns []ignorePattern
	if folder != "." {
		patterns = w.ignored[path.Dir(folder)]
	}
	own, err := readIgnore(w.tree, folder)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("can't read %s: %w", printable.Text(path.Join(folder, IgnoreFile)), err)
	}
	w.ignored[folder] = append(slices.Clip(patterns), own...)
	return nil
}

// folder walks a folder.
func (w *walker) folder(name string, depth int) error {
	if w.seen[name] {
		return nil
	}
	w.seen[name] = true
	if depth > maxFolders {
		return fmt.Errorf("folders nest more than %d deep at %s", maxFolders, cut(name))
	}
	entries, err := fs.ReadDir(w.tree, name)
	if err != nil {
		return fmt.Errorf("can't read the folder %s: %w", printable.Text(name), plainPathError(err))
	}
	if w.entries += len(entries); w.entries > maxEntries {
		return errTooMany
	}
	if err := w.readOwnIgnore(name, entries); err != nil {
		return err
	}
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), ".") {
			continue
		}
		here := path.Join(name, entry.Name())
		if ignores(w.ignored[name], here, entry.IsDir()) {
			continue
		}
		switch {
		case entry.IsDir():
			if err := w.folder(here, depth+1); err != nil {
				return err
			}
		case entry.Type().IsRegular() && isYAML(here):
			w.take(here)
		}
	}
	return nil
}

// readOwnIgnore reads a folder's ignore file only if the folder lists one, since most don't.
func (w *walker) readOwnIgnore(folder string, entries []fs.DirEntry) error {
	if slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return e.Name() == IgnoreFile }) {
		return w.readIgnore(folder)
	}
	if _, known := w.ignored[folder]; !known && folder != "." {
		w.ignored[folder] = w.ignored[path.Dir(folder)]
	}
	return nil
}

func (w *walker) take(name string) {
	if !w.seen[name] {
		w.seen[name] = true
		w.files = append(w.files, name)
	}
}

func isYAML(name string) bool {
	extension := path.Ext(name)
	return extension == ".yaml" || extension == ".yml"
}
