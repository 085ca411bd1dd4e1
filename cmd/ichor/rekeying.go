package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"ichor.maesh.dev/gitsource"
	"ichor.maesh.dev/internal/sealed"
	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/talos"
)

// rekeying is everything that is sealed anew together. Names are relative to the top of the repository, with slashes.
type rekeying struct {
	given      string // the path, as it was given
	place      *repository
	identities *sealed.Identities
	files      []*rekeyFile
	// notes are what a person should know and what stops nothing.
	notes []string
}

// rekeyFile is one sealed file: what it was, what is inside, and what it will be.
type rekeyFile struct {
	name, list         string
	mode               fs.FileMode
	old, plain, sealed []byte
	recipients         []sealed.Recipient
	// before is to how many it is sealed.
	before int
	// opens says that one of the identities is a recipient of the new file.
	opens bool
	// since is the commit that brought the sealed file; unknown says why that isn't known.
	since, unknown string
	added, removed []string
}

// prepare finds, opens, checks and seals everything in memory, so that what can fail has failed before anything is written.
func (r *rekeying) prepare() error {
	names, err := r.find()
	if err != nil {
		return cannot(err, "")
	}
	if len(names) == 0 {
		return cannot(fmt.Errorf("%s holds no *.age file, so there is nothing to seal anew", r.given), "give the path of a fleet repository or a folder of it")
	}
	for _, name := range names {
		file, err := r.open(name)
		if err != nil {
			return err
		}
		r.files = append(r.files, file)
	}
	if err := r.checkBundles(); err != nil {
		return err
	}
	for _, file := range r.files {
		if err := r.seal(file); err != nil {
			return err
		}
	}
	return nil
}

// find gives the sealed files. As for documents, symlinks are not followed and names with a dot at their beginning left out.
func (r *rekeying) find() ([]string, error) {
	var names []string
	err := fs.WalkDir(r.place.tree, r.place.roots[0], func(name string, entry fs.DirEntry, err error) error {
		switch hidden := strings.HasPrefix(entryName(entry, name), ".") && name != r.place.roots[0]; {
		case err != nil:
			return err
		case entry.IsDir() && hidden:
			return fs.SkipDir
		case entry.IsDir() || hidden || path.Ext(name) != ".age":
			return nil
		case !entry.Type().IsRegular():
			r.notes = append(r.notes, fmt.Sprintf("%s is a link and was left out; what it leads to is sealed anew where it stands", name))
			return nil
		}
		names = append(names, name)
		return nil
	})
	return names, err
}

func entryName(entry fs.DirEntry, name string) string {
	if entry == nil {
		return path.Base(name)
	}
	return entry.Name()
}

// open reads a file, what is inside, and the recipients that it is to have.
func (r *rekeying) open(name string) (*rekeyFile, error) {
	file := &rekeyFile{name: name}
	info, err := fs.Stat(r.place.tree, name)
	if err != nil {
		return nil, cannot(err, "")
	}
	if info.Size() > maxSecretFile {
		return nil, cannot(fmt.Errorf("%s has %d bytes, and a sealed file may have %d MiB", name, info.Size(), maxSecretFile>>20), "move it away, or rename it if it is something else")
	}
	file.mode = info.Mode().Perm()
	if file.old, err = fs.ReadFile(r.place.tree, name); err != nil {
		return nil, cannot(err, "")
	}
	if !sealed.IsSealed(file.old) {
		return nil, answerNo(fmt.Errorf("%s is not sealed, whatever its name says; nothing was changed", name), "seal it with 'ichor secrets seal', and replace what is inside if it was ever pushed")
	}
	if file.before, err = sealed.CountRecipients(file.old); err != nil {
		return nil, cannot(fmt.Errorf("%s can't be opened: %w", name, err), "take it from Git's history, or move it away; nothing was changed")
	}
	if file.plain, _, err = r.identities.Open(name, file.old); err != nil {
		return nil, cannot(err, "nothing was changed: files are sealed anew all together or not at all")
	}
	if file.list, file.recipients, err = r.recipientsFor(name); err != nil {
		return nil, err
	}
	return file, nil
}

// recipientsFor gives the recipients.txt beside a file, or in the nearest folder above.
func (r *rekeying) recipientsFor(name string) (string, []sealed.Recipient, error) {
	list, text, err := nearestRecipients(r.place.tree, name)
	if err != nil {
		return "", nil, cannot(fmt.Errorf("to whom %s is to be sealed isn't known: %w", name, err), "put one age public key a line into recipients.txt beside it")
	}
	recipients, err := sealed.ParseRecipients(list, text)
	if err != nil {
		return "", nil, cannot(err, "nothing was changed")
	}
	return list, recipients, nil
}

func nearestRecipients(tree fs.FS, name string) (string, []byte, error) {
	for folder := path.Dir(name); ; folder = path.Dir(folder) {
		list := path.Join(folder, "recipients.txt")
		text, err := fs.ReadFile(tree, list)
		if err == nil || !errors.Is(err, fs.ErrNotExist) {
			return list, text, err
		}
		if folder == "." {
			return "", nil, errors.New("there is no recipients.txt beside it or above")
		}
	}
}

// seal makes the new file, and opens it again where one of the identities is a recipient.
func (r *rekeying) seal(file *rekeyFile) error {
	var err error
	if file.sealed, err = sealed.Seal(file.recipients, file.plain); err != nil {
		return cannot(fmt.Errorf("%s: %w", file.list, err), "nothing was changed")
	}
	again, _, err := r.identities.Open(file.name, file.sealed)
	switch {
	case errors.Is(err, sealed.ErrOtherRecipients):
		return nil
	case err != nil:
		return cannot(fmt.Errorf("sealing %s anew: what came out doesn't open: %w", file.name, err), "nothing was changed")
	case !bytes.Equal(again, file.plain):
		return cannot(fmt.Errorf("sealing %s anew: what came out opens to something else", file.name), "nothing was changed")
	}
	file.opens = true
	return nil
}

// checkBundles refuses a bundle that isn't its cluster's: sealing it would bless a mistake that orphans every backup.
func (r *rekeying) checkBundles() error {
	fleet, _ := schema.Load(r.place.tree, []string{"."})
	bundles := map[string]*talos.Bundle{}
	for _, file := range r.files {
		bundle, err := talos.LoadBundle(file.plain)
		if err != nil {
			continue
		}
		bundles[file.name] = bundle
		if err := r.compareBundle(file, bundle); err != nil {
			return err
		}
	}
	used := map[string]bool{}
	for _, cluster := range fleet.Clusters {
		name, _, err := fleet.ReadRef(cluster.Source.File, cluster.Spec.Secrets)
		if err != nil || !slices.ContainsFunc(r.files, func(f *rekeyFile) bool { return f.name == name }) {
			continue
		}
		used[name] = true
		bundle := bundles[name]
		if bundle == nil {
			return answerNo(fmt.Errorf("%s is the secrets bundle of %s and doesn't open to one; nothing was changed", name, cluster.Metadata.Name), "take it from Git's history")
		}
		if id := schema.ClusterID(bundle.ClusterID()); id != cluster.Spec.ID {
			return answerNo(fmt.Errorf("%s is of cluster %s, and %s says spec.id: %s; nothing was changed", name, id, cluster.Source.File, cluster.Spec.ID),
				"put the bundle of this cluster there: with another one none of its backups can be opened")
		}
	}
	for name := range bundles {
		if !used[name] {
			r.notes = append(r.notes, fmt.Sprintf("%s is a secrets bundle that no cluster here refers to, so its cluster was not compared with a spec.id", name))
		}
	}
	slices.Sort(r.notes)
	return nil
}

// compareBundle compares a bundle with the committed one: spec.id tells the cluster's ID, and only that one tells the secret.
func (r *rekeying) compareBundle(file *rekeyFile, bundle *talos.Bundle) error {
	if r.place.checkout == nil {
		return nil
	}
	head, err := r.place.checkout.Revision("HEAD")
	if err != nil {
		return nil // nothing is committed yet
	}
	committed, err := fs.ReadFile(head.Tree, file.name)
	if errors.Is(err, fs.ErrNotExist) || bytes.Equal(committed, file.old) {
		return nil
	}
	var was *talos.Bundle
	if err == nil {
		var plain []byte
		if plain, _, err = r.identities.Open(file.name, committed); err == nil {
			was, err = talos.LoadBundle(plain)
		}
	}
	if err != nil {
		r.notes = append(r.notes, fmt.Sprintf("%s differs from the committed one, which can't be opened to compare the cluster's secret: %s", file.name, err))
		return nil
	}
	if was.Fingerprint() != bundle.Fingerprint() {
		return answerNo(fmt.Errorf("%s holds another cluster ID, cluster secret or encryption secret than the one that is committed; nothing was changed", file.name),
			"put the committed one back ('git checkout'): with another one none of the cluster's backups can be opened")
	}
	return nil
}

// compareWithGit says who was added and removed since the file was sealed, as far as Git knows.
func (r *rekeying) compareWithGit(ctx context.Context, file *rekeyFile) {
	then, since, err := r.sealedTo(ctx, file)
	if err != nil {
		file.unknown = err.Error()
		return
	}
	file.since = since
	file.added, file.removed = without(file.recipients, then), without(then, file.recipients)
}

// sealedTo gives the recipients that stood in recipients.txt when the sealed file was committed.
func (r *rekeying) sealedTo(ctx context.Context, file *rekeyFile) ([]sealed.Recipient, string, error) {
	if r.place.checkout == nil {
		return nil, "", gitsource.ErrNoCheckout
	}
	head, err := r.place.checkout.Revision("HEAD")
	if err != nil {
		return nil, "", errors.New("nothing is committed yet")
	}
	committed, err := fs.ReadFile(head.Tree, file.name)
	if err != nil || !bytes.Equal(committed, file.old) {
		return nil, "", errors.New("it isn't committed as it stands here")
	}
	brought, err := r.place.checkout.UnchangedSince(ctx, head, file.name)
	if err != nil {
		return nil, "", err
	}
	list, text, err := nearestRecipients(brought.Tree, file.name)
	if err != nil {
		return nil, "", fmt.Errorf("the commit that brought it (%.12s) has no recipients.txt for it", brought.Commit)
	}
	then, err := sealed.ParseRecipients(list, text)
	if err != nil {
		return nil, "", fmt.Errorf("%s can't be read in the commit that brought it (%.12s)", list, brought.Commit)
	}
	if len(then) != file.before {
		return nil, "", fmt.Errorf("the commit that brought it (%.12s) names %d in %s, so it was sealed to others", brought.Commit, len(then), list)
	}
	return then, brought.Commit, nil
}

// without gives the lines of some recipients whose keys are not among others.
func without(some, others []sealed.Recipient) []string {
	var left []string
	for _, one := range some {
		if !slices.ContainsFunc(others, func(other sealed.Recipient) bool { return keyOf(one) == keyOf(other) }) {
			left = append(left, one.Text)
		}
	}
	return left
}

// keyOf is a recipient's line without the comment that may follow an SSH key.
func keyOf(recipient sealed.Recipient) string {
	fields := strings.Fields(recipient.Text)
	return strings.Join(fields[:min(2, len(fields))], " ")
}

// write replaces all files, or puts back those that it had replaced when one can't be.
func (r *rekeying) write(ctx context.Context) error {
	for _, file := range r.files {
		now, err := fs.ReadFile(r.place.tree, file.name)
		if err != nil || !bytes.Equal(now, file.old) {
			return answerNo(fmt.Errorf("%s changed meanwhile; nothing was changed by this command", file.name), "run it again")
		}
	}
	if err := ctx.Err(); err != nil {
		return cannot(fmt.Errorf("it was stopped, and nothing was changed: %w", err), "")
	}
	for n, file := range r.files {
		err := writeWhole(r.path(file), file.sealed, file.mode, true)
		if err == nil {
			err = r.check(file)
		}
		if err != nil {
			return r.undo(r.files[:n+1], fmt.Errorf("writing %s: %w", file.name, err))
		}
	}
	return nil
}

// check reads a file back: it must be what was sealed, and open to what was inside.
func (r *rekeying) check(file *rekeyFile) error {
	written, err := os.ReadFile(r.path(file))
	if err != nil {
		return err
	}
	if !bytes.Equal(written, file.sealed) {
		return errors.New("what stands there is not what was written")
	}
	if !file.opens {
		return nil
	}
	plain, _, err := r.identities.Open(file.name, written)
	if err != nil {
		return err
	}
	if !bytes.Equal(plain, file.plain) {
		return errors.New("it opens to something else than before")
	}
	return nil
}

// undo puts the old files back, as many as it can.
func (r *rekeying) undo(files []*rekeyFile, cause error) error {
	hint := "all files are as they were"
	for _, file := range files {
		if err := writeWhole(r.path(file), file.old, file.mode, true); err != nil {
			cause = fmt.Errorf("%w; and %s can't be put back: %w", cause, file.name, err)
			hint = "take the old files that are named from Git ('git checkout'); the others are as they were"
		}
	}
	return cannot(cause, hint)
}

func (r *rekeying) path(file *rekeyFile) string {
	return filepath.Join(r.place.dir, filepath.FromSlash(file.name))
}
