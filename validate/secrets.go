package validate

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"runtime"
	"slices"
	"strings"
	"sync"

	"ichor.maesh.dev/internal/cleartext"
	"ichor.maesh.dev/internal/printable"
	"ichor.maesh.dev/schema"
)

// Bounds of the search for secrets: a Git tree of a few hundred bytes can name billions of files.
const (
	maxSecretFiles   = 1_000_000
	maxSecretFolders = 64
)

// Secrets is what came of the search for secrets in the clear.
type Secrets struct {
	Findings []Finding
	// Partly are files that are so large that only their beginning was searched, Unread those that can't be read; sorted.
	Partly, Unread []string
}

// FindSecrets searches every file under the roots for secrets in the clear, whatever its name: dot-files too, and files that
// .ichorignore names. Git's own folders and symlinks are left out. A finding belongs to the nearest cluster up the path.
func FindSecrets(tree fs.FS, roots []string, fleet *schema.Fleet) Secrets {
	return NewSecretSearch().Finish(tree, roots, fleet)
}

// SecretSearch is a search for secrets that files may be given to while others read them, so that none is opened twice.
type SecretSearch struct {
	mu    sync.Mutex
	found map[string][]cleartext.Found // of each file that was searched
	// partly and unread are as in Secrets.
	partly, unread []string
}

// NewSecretSearch begins a search.
func NewSecretSearch() *SecretSearch { return &SecretSearch{found: map[string][]cleartext.Found{}} }

// File searches a whole file that was read already. Several goroutines may call it, before Finish; data is not kept.
func (s *SecretSearch) File(name string, data []byte) { s.add(name, cleartext.Search(data)) }

func (s *SecretSearch) add(name string, found []cleartext.Found) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.found[name] = found
}

// Finish searches what is left under the roots, as FindSecrets does, and gives what was found in all of it.
func (s *SecretSearch) Finish(tree fs.FS, roots []string, fleet *schema.Fleet) Secrets {
	w := &secretWalk{search: s, tree: tree, seen: map[string]bool{}, left: maxSecretFiles}
	names := make(chan string)
	var group sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		group.Go(func() {
			for name := range names {
				s.read(tree, name)
			}
		})
	}
	w.each = func(name string) {
		if !w.done(name) {
			names <- name
		}
	}
	for _, root := range roots {
		if name := path.Clean(root); fs.ValidPath(name) { // another is a problem of the reading of kinds
			w.walk(name, 0)
		}
	}
	close(names)
	group.Wait()
	return s.secrets(fleet)
}

// secrets turns what was found into findings.
func (s *SecretSearch) secrets(fleet *schema.Fleet) Secrets {
	result := Secrets{Partly: s.partly, Unread: s.unread}
	documents := documentsOf(fleet)
	for name, found := range s.found {
		for _, secret := range found {
			result.Findings = append(result.Findings, Finding{
				Rule: RuleSecret, Severity: Error, Cluster: fleet.ClusterFor(name, ""),
				Position: schema.Position{File: name, Line: secret.Line, Column: secret.Column}, Message: secretMessage(name, secret, documents[name]),
			})
		}
	}
	Sort(result.Findings)
	slices.Sort(result.Partly)
	slices.Sort(result.Unread)
	return result
}

// secretWalk lists the files under the roots.
type secretWalk struct {
	search *SecretSearch
	tree   fs.FS
	seen   map[string]bool
	left   int
	each   func(name string)
}

// done says whether a file was searched already.
func (w *secretWalk) done(name string) bool {
	w.search.mu.Lock()
	defer w.search.mu.Unlock()
	_, done := w.search.found[name]
	return done
}

// walk takes the files at or under a name.
func (w *secretWalk) walk(name string, depth int) {
	if w.seen[name] {
		return
	}
	w.seen[name] = true
	info, err := lstat(w.tree, name)
	switch {
	case err != nil:
		if depth > 0 || !errors.Is(err, fs.ErrNotExist) {
			w.search.cannotRead(name)
		}
	case info.IsDir():
		w.folder(name, depth)
	case info.Mode().IsRegular():
		w.each(name)
	}
}

func (w *secretWalk) folder(name string, depth int) {
	entries, err := fs.ReadDir(w.tree, name)
	if w.left -= len(entries); err != nil || w.left < 0 || depth > maxSecretFolders {
		w.search.cannotRead(name)
		return
	}
	for _, entry := range entries {
		here := path.Join(name, entry.Name())
		switch {
		case strings.EqualFold(entry.Name(), ".git"):
		case entry.IsDir():
			if !w.seen[here] {
				w.seen[here] = true
				w.folder(here, depth+1)
			}
		case entry.Type().IsRegular() && !w.seen[here]:
			w.each(here)
		}
	}
}

// documentsOf gives the files of a fleet that hold documents of Ichor's kinds, those that can't be read included.
func documentsOf(fleet *schema.Fleet) map[string]bool {
	files := map[string]bool{}
	for _, c := range fleet.Clusters {
		files[c.Source.File] = true
	}
	for _, m := range fleet.Machines {
		files[m.Source.File] = true
	}
	for _, b := range fleet.Backups {
		files[b.Source.File] = true
	}
	for _, o := range fleet.Operations {
		files[o.Source.File] = true
	}
	for _, p := range fleet.Policies {
		files[p.Source.File] = true
	}
	for _, p := range fleet.PolicyTests {
		files[p.Source.File] = true
	}
	for _, b := range fleet.Broken {
		files[b.File] = files[b.File] || b.Kind != ""
	}
	return files
}

func (s *SecretSearch) cannotRead(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unread = append(s.unread, name)
}

// read searches a file of the tree.
func (s *SecretSearch) read(tree fs.FS, name string) {
	file, err := tree.Open(name)
	if err != nil {
		s.cannotRead(name)
		return
	}
	found, whole, err := cleartext.Read(file)
	_ = file.Close()
	if err != nil {
		s.cannotRead(name)
		return
	}
	s.add(name, found)
	if !whole {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.partly = append(s.partly, name)
	}
}

// secretMessage says what stands there and the way out, and nothing of the secret.
func secretMessage(name string, secret cleartext.Found, isDocument bool) string {
	what := string(secret.What)
	if secret.More > 0 && secret.What != cleartext.Bundle && secret.What != cleartext.MachineConfig {
		what = fmt.Sprintf("%s, and %d more", what, secret.More)
	}
	shown := printable.Text(name)
	if isDocument {
		return fmt.Sprintf("%s in the clear, among documents of Ichor: take it out, put it into a file of its own, seal that with 'ichor secrets seal FILE', and name the sealed file here; "+
			"once pushed it must be regarded as leaked, so replace it as well", what)
	}
	return fmt.Sprintf("%s in the clear: %s; once pushed it must be regarded as leaked, so replace it as well", what, secretWayOut(shown, secret.What))
}

func secretWayOut(name string, what cleartext.What) string {
	switch what {
	case cleartext.Bundle, cleartext.S3Credentials:
		return fmt.Sprintf("seal it with 'ichor secrets seal %s', name the sealed file instead, and delete this one", name)
	case cleartext.MachineConfig:
		return fmt.Sprintf("if it is a patch, seal it with 'ichor secrets seal %s' and name the sealed file; a whole config is rendered from the sealed secrets and doesn't belong here ('ichor secrets import' takes the secrets from it); then delete this file", name)
	case cleartext.AgeIdentity:
		return "keep it outside of the repository, make a new one, and seal the files to that with 'ichor secrets rekey'"
	case cleartext.Talosconfig:
		return "delete it; 'ichor talosconfig' makes one that is valid for a short time"
	case cleartext.Kubeconfig:
		return "delete it, and keep it outside of the repository"
	}
	return "keep it outside of the repository, or seal what it is part of with 'ichor secrets seal'"
}
