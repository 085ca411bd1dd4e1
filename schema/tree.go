package schema

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"

	"ichor.maesh.dev/internal/printable"
)

// ReadRef reads the file that ref names, relative to the file it stands in. It gives the file's path from the
// repository's root. A reference that leaves the repository, passes through a symlink, or names something that isn't a
// regular file of at most [MaxRefSize] bytes is an error.
func (f *Fleet) ReadRef(fromFile string, ref FileRef) (name string, data []byte, err error) {
	name, err = resolveRef(fromFile, ref.File)
	if err != nil {
		return "", nil, err
	}
	if f.Tree == nil {
		return name, nil, fmt.Errorf("can't read %s, to which %s refers: this file was read without its repository", printable.Text(name), printable.Text(fromFile))
	}
	data, err = readRegular(f.Tree, name, MaxRefSize)
	if err != nil {
		return name, nil, fmt.Errorf("can't read %s, to which %s refers: %w", printable.Text(name), printable.Text(fromFile), err)
	}
	return name, data, nil
}

// MeantRef gives the reference that was probably meant by one that names no file: the same path where it begins at the top of the
// repository, or a file beside with nearly that name. It is empty when there is none.
func (f *Fleet) MeantRef(fromFile, ref string) string {
	name, err := resolveRef(fromFile, ref)
	if err != nil || f.Tree == nil {
		return ""
	}
	if info, err := lstat(f.Tree, path.Clean(ref)); err == nil && info.Mode().IsRegular() && !strings.HasPrefix(path.Clean(ref), "../") {
		return relativeTo(path.Dir(fromFile), path.Clean(ref))
	}
	entries, err := fs.ReadDir(f.Tree, path.Dir(name))
	if err != nil {
		return ""
	}
	var beside []string
	for _, entry := range entries {
		if entry.Type().IsRegular() {
			beside = append(beside, entry.Name())
		}
	}
	near := nearest(path.Base(name), beside)
	if near == "" || nearest(stem(name), []string{stem(near)}) == "" {
		return "" // the ending alone makes no two names alike
	}
	return path.Join(path.Dir(ref), near)
}

// stem is a file's name without its folder and its ending.
func stem(name string) string { return strings.TrimSuffix(path.Base(name), path.Ext(name)) }

// relativeTo gives a path of the repository as it is written in a folder of it.
func relativeTo(folder, name string) string {
	up := ""
	for folder != "." && !strings.HasPrefix(name, folder+"/") {
		folder, up = path.Dir(folder), up+"../"
	}
	if folder != "." {
		name = strings.TrimPrefix(name, folder+"/")
	}
	return up + name
}

// resolveRef gives the path of a reference from the repository's root.
func resolveRef(fromFile, ref string) (string, error) {
	shown := printable.Text(ref)
	switch {
	case ref == "":
		return "", errors.New("the reference is empty; name a file relative to the one it stands in")
	case path.IsAbs(ref) || strings.Contains(ref, "\\"):
		return "", fmt.Errorf("%q is not a relative path; name a file relative to the one it stands in, with forward slashes", shown)
	case strings.ContainsRune(ref, 0):
		return "", fmt.Errorf("%q holds a NUL byte, which no file name does", shown)
	}
	name := path.Join(path.Dir(fromFile), ref)
	if name == ".." || strings.HasPrefix(name, "../") {
		return "", fmt.Errorf("%q leaves the repository; put the file into it", shown)
	}
	if name == "." || strings.HasSuffix(ref, "/") {
		return "", fmt.Errorf("%q is a folder, not a file", shown)
	}
	if first, _, _ := strings.Cut(name, "/"); strings.EqualFold(first, ".git") {
		return "", fmt.Errorf("%q is Git's own folder, which is not part of the repository's files", shown)
	}
	return name, nil
}

// readRegular reads a file after looking at each step of the way to it, so that no symlink is followed.
func readRegular(tree fs.FS, name string, limit int64) ([]byte, error) {
	for i := 0; i < len(name); i++ {
		if name[i] != '/' {
			continue
		}
		info, err := lstat(tree, name[:i])
		if err != nil {
			return nil, err
		}
		switch {
		case info.Mode().IsRegular():
			return nil, fmt.Errorf("%s is not a folder", printable.Text(name[:i]))
		case !info.IsDir():
			return nil, notRegular(name[:i], info)
		}
	}
	info, err := lstat(tree, name)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, notRegular(name, info)
	}
	return readBounded(tree, name, limit)
}

func notRegular(name string, info fs.FileInfo) error {
	switch {
	case info.Mode()&fs.ModeSymlink != 0:
		return fmt.Errorf("%s is a symlink, and symlinks are not followed; put the file itself there", printable.Text(name))
	case info.IsDir():
		return fmt.Errorf("%s is a folder, not a file; name a file in it", printable.Text(name))
	default:
		return fmt.Errorf("%s is not a regular file", printable.Text(name))
	}
}

// readBounded reads at most limit bytes, whatever the size that the file claims to have.
func readBounded(tree fs.FS, name string, limit int64) (data []byte, err error) {
	file, err := tree.Open(name)
	if err != nil {
		return nil, plainPathError(err)
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	size := int64(0)
	if info, err := file.Stat(); err == nil {
		size = info.Size()
	}
	if size > limit {
		return nil, tooLarge(size, limit)
	}
	// Room for what the file says that it holds, and for the read that finds its end.
	content := bytes.NewBuffer(make([]byte, 0, size+bytes.MinRead))
	if _, err := content.ReadFrom(io.LimitReader(file, limit+1)); err != nil {
		return nil, plainPathError(err)
	}
	data = content.Bytes()
	if int64(len(data)) > limit {
		return nil, tooLarge(int64(len(data)), limit)
	}
	return data, nil
}

func tooLarge(size, limit int64) error {
	return fmt.Errorf("the file has %d bytes or more, and at most %d are read", size, limit)
}

// lstat looks at a name without following a symlink, in a tree that need not know how to.
func lstat(tree fs.FS, name string) (fs.FileInfo, error) {
	if _, ok := tree.(fs.ReadLinkFS); ok {
		info, err := fs.Lstat(tree, name)
		return info, plainPathError(err)
	}
	if name == "." {
		info, err := fs.Stat(tree, name)
		return info, plainPathError(err)
	}
	entries, err := fs.ReadDir(tree, path.Dir(name))
	if err != nil {
		return nil, plainPathError(err)
	}
	for _, entry := range entries {
		if entry.Name() == path.Base(name) {
			return entry.Info()
		}
	}
	return nil, fs.ErrNotExist
}

// plainPathError leaves the path out of an error: the caller names it, and a temporary folder's name helps nobody.
func plainPathError(err error) error {
	var pathError *fs.PathError
	if errors.As(err, &pathError) {
		return pathError.Err
	}
	return err
}
