package gitsource

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"

	"github.com/go-git/go-git/v5/plumbing/format/gitignore"
)

// LeftOut says which of the files of a checkout Git leaves out: those that a .gitignore on the way to them, or
// .git/info/exclude, names and that were not added all the same. Names are relative to the top, with slashes.
func (c *Checkout) LeftOut(names []string) (map[string]bool, error) {
	index, err := c.git.Storer.Index()
	if err != nil {
		return nil, fmt.Errorf("read the index of the checkout %s: %w", c.Dir, err)
	}
	added := map[string]bool{}
	for _, entry := range index.Entries {
		added[entry.Name] = true
	}
	top, err := os.OpenRoot(c.Dir)
	if err != nil {
		return nil, fmt.Errorf("open the checkout %s: %w", c.Dir, err)
	}
	defer func() { _ = top.Close() }()
	read := map[string][]gitignore.Pattern{}
	left := map[string]bool{}
	for _, name := range names {
		if added[name] {
			continue
		}
		patterns, err := ignorePatterns(top, name, read)
		if err != nil {
			return nil, err
		}
		left[name] = gitignore.NewMatcher(patterns).Match(strings.Split(name, "/"), false)
	}
	return left, nil
}

// ignorePatterns gives the patterns that hold for a name, those of the nearest folder last.
func ignorePatterns(top *os.Root, name string, read map[string][]gitignore.Pattern) ([]gitignore.Pattern, error) {
	patterns, err := ignoreFile(top, ".git/info/exclude", nil, read)
	if err != nil {
		return nil, err
	}
	var domain []string
	for _, part := range strings.Split(name, "/") {
		own, err := ignoreFile(top, path.Join(path.Join(domain...), ".gitignore"), domain, read)
		if err != nil {
			return nil, err
		}
		patterns = append(patterns[:len(patterns):len(patterns)], own...)
		domain = append(domain[:len(domain):len(domain)], part)
	}
	return patterns, nil
}

func ignoreFile(top *os.Root, file string, domain []string, read map[string][]gitignore.Pattern) ([]gitignore.Pattern, error) {
	if known, ok := read[file]; ok {
		return known, nil
	}
	const limit = 1 << 20
	var patterns []gitignore.Pattern
	info, err := top.Lstat(file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err == nil && (!info.Mode().IsRegular() || info.Size() > limit): // Git reads no links here either
	default:
		data, err := top.ReadFile(file)
		if err != nil && !strings.HasPrefix(file, ".git/") { // .git may be a file
			return nil, fmt.Errorf("read %s: %w", file, err)
		}
		lines := bufio.NewScanner(bytes.NewReader(data))
		lines.Buffer(nil, limit)
		for lines.Scan() {
			if line := lines.Text(); strings.TrimSpace(line) != "" && !strings.HasPrefix(line, "#") {
				patterns = append(patterns, gitignore.ParsePattern(strings.TrimSuffix(line, "\r"), domain))
			}
		}
	}
	read[file] = patterns
	return patterns, nil
}
