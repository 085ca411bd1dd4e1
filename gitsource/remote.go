package gitsource

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"

	"github.com/go-git/go-git/v5/plumbing"

	"ichor.maesh.dev/internal/printable"
	"ichor.maesh.dev/internal/signedcommit"
)

// pushAttempts is how often files are put on a branch's tip anew when others push to it meanwhile.
const pushAttempts = 5

// Errors of [Remote.Add] that callers act on.
var (
	// ErrTaken says that the branch holds another file of that name.
	ErrTaken = errors.New("the branch holds another file of that name")
	// ErrMoving says that the branch moved each time, and nothing was pushed.
	ErrMoving = errors.New("the branch moved at each attempt")
)

// Addition is files that come to a branch in one commit. They are new: nothing is replaced.
type Addition struct {
	// Files are contents by path, slash-separated from the top of the repository.
	Files map[string][]byte
	// Message is the commit's.
	Message string
	// Sign signs the object of the commit, where the user's own git doesn't; nil: then it isn't signed.
	Sign func(object []byte) ([]byte, error)
}

// Added says what became of an [Addition].
type Added struct {
	// Commit is the one that was pushed, and Onto what it stands on. Commit is empty where the files were there already, with the
	// same bytes: an attempt before whose answer was lost.
	Commit, Onto string
	// Attempts counts the pushes: more than one where others pushed meanwhile.
	Attempts int
}

// Remote is a repository somewhere else, to which files can be added.
type Remote struct {
	road road
	// pushed are the branches that were pushed to: what was seen of them before is old.
	pushed map[string]bool
}

// road is a way to a repository: with the user's own git, or without any.
type road interface {
	// shown is the repository's URL without anything secret.
	shown() string
	defaultBranch(ctx context.Context) (string, error)
	// tip fetches the newest commit of a branch; zero where there is no such branch. Where it needn't be fresh, what was seen
	// last serves.
	tip(ctx context.Context, branch string, fresh bool) (plumbing.Hash, error)
	// objects reads what was fetched, and write stores an object beside it.
	objects() *store
	write(kind plumbing.ObjectType, data []byte) (plumbing.Hash, error)
	commit(ctx context.Context, tree, parent plumbing.Hash, addition Addition) (plumbing.Hash, error)
	// send has the branch point to a commit if it points to old still (zero: if it isn't there).
	send(ctx context.Context, branch string, old, commit plumbing.Hash) error
	close() error
}

// Shown is the repository's URL without anything secret.
func (r *Remote) Shown() string { return r.road.shown() }

// DefaultBranch asks for the branch that the server names as its own.
func (r *Remote) DefaultBranch(ctx context.Context) (string, error) { return r.road.defaultBranch(ctx) }

// Close gives up what it holds.
func (r *Remote) Close() error { return r.road.close() }

// Tip fetches the newest commit of a branch as it stood when the server was asked for it first; nil where there is no such branch.
func (r *Remote) Tip(ctx context.Context, branch string) (*Revision, error) {
	if err := checkBranch(branch); err != nil {
		return nil, err
	}
	hash, err := r.road.tip(ctx, branch, r.pushed[branch])
	if err != nil || hash.IsZero() {
		return nil, err
	}
	objects := r.road.objects()
	found, err := objects.commit(hash)
	if err != nil {
		return nil, fmt.Errorf("read commit %.12s of %s: %w", hash, r.Shown(), err)
	}
	return &Revision{Commit: hash.String(), Committed: found.committed, Author: found.author, Subject: found.subject, TreeHash: found.tree.String(),
		Tree: &treeFS{store: objects, root: found.tree, when: found.committed, maxBlob: Config{}.withDefaults().MaxBlob}}, nil
}

func checkBranch(branch string) error {
	if err := plumbing.NewBranchReferenceName(branch).Validate(); err != nil || branch == "" || branch == "HEAD" {
		return fmt.Errorf("%q is no branch name; give it as in main or release/1.2", printable.Text(branch))
	}
	return nil
}

// Add puts files on the tip of a branch, in one commit that holds nothing else. A branch that isn't there begins at the tip of
// base. Where others push meanwhile it is done again on their commit.
func (r *Remote) Add(ctx context.Context, branch, base string, addition Addition) (*Added, error) {
	if err := errors.Join(checkBranch(branch), checkBranch(base)); err != nil {
		return nil, err
	}
	for name := range addition.Files {
		if !fs.ValidPath(name) || name == "." {
			return nil, fmt.Errorf("%q is no path of a file in a repository", printable.Text(name))
		}
	}
	added := &Added{}
	for {
		// A push says by itself that the branch has moved since.
		old, err := r.road.tip(ctx, branch, r.pushed[branch])
		if err != nil {
			return nil, err
		}
		onto := old
		if old.IsZero() {
			if onto, err = r.road.tip(ctx, base, true); err != nil {
				return nil, err
			}
			if onto.IsZero() {
				return nil, fmt.Errorf("%s has neither a branch %s nor %s, on which it could begin", r.Shown(), branch, base)
			}
		}
		there, err := r.there(onto, addition)
		if err != nil || there {
			return added, err
		}
		commit, err := r.make(ctx, onto, addition)
		if err != nil {
			return nil, err
		}
		added.Attempts++
		r.pushed[branch] = true
		failed := r.road.send(ctx, branch, old, commit)
		if failed == nil {
			added.Commit, added.Onto = commit.String(), onto.String()
			return added, nil
		}
		if ctx.Err() != nil {
			return nil, fmt.Errorf("%w; whether it was pushed isn't known: look at branch %s", failed, branch)
		}
		// The answer may have been lost, or someone was faster: what the branch holds now tells.
		now, err := r.road.tip(ctx, branch, true)
		switch {
		case err != nil:
			return nil, fmt.Errorf("%w (and whether it was pushed isn't known: %w)", failed, err)
		case now == commit:
			added.Commit, added.Onto = commit.String(), onto.String()
			return added, nil
		case now == old:
			return nil, failed
		case added.Attempts == pushAttempts:
			return nil, fmt.Errorf("pushing to branch %s of %s: %w (%d attempts); try again", branch, r.Shown(), ErrMoving, added.Attempts)
		}
	}
}

// there says whether a commit holds all of the files, with these bytes. [ErrTaken] where it holds another of that name.
func (r *Remote) there(at plumbing.Hash, addition Addition) (bool, error) {
	objects := r.road.objects()
	found, err := objects.commit(at)
	if err != nil {
		return false, fmt.Errorf("read commit %.12s of %s: %w", at, r.Shown(), err)
	}
	tree := &treeFS{store: objects, root: found.tree, maxBlob: Config{}.withDefaults().MaxBlob}
	same := 0
	for name, data := range addition.Files {
		held, err := tree.ReadFile(name)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err == nil && bytes.Equal(held, data):
			same++
		default:
			return false, fmt.Errorf("%s at %.12s: %w", name, at, ErrTaken)
		}
	}
	return same == len(addition.Files), nil
}

// make makes the commit: the files, the folders that hold them, and nothing else.
func (r *Remote) make(ctx context.Context, onto plumbing.Hash, addition Addition) (plumbing.Hash, error) {
	failed := func(err error) (plumbing.Hash, error) {
		return plumbing.ZeroHash, fmt.Errorf("make a commit on %.12s of %s: %w", onto, r.Shown(), err)
	}
	found, err := r.road.objects().commit(onto)
	if err != nil {
		return failed(err)
	}
	tree := found.tree
	for _, name := range slices.Sorted(maps.Keys(addition.Files)) {
		blob, err := r.road.write(plumbing.BlobObject, addition.Files[name])
		if err != nil {
			return failed(err)
		}
		if tree, err = r.put(tree, name, blob); err != nil {
			return failed(err)
		}
	}
	commit, err := r.road.commit(ctx, tree, onto, addition)
	if err != nil {
		return failed(err)
	}
	return commit, nil
}

// signed gives the object of a commit with its signature.
func (a Addition) signed(object []byte) ([]byte, error) {
	if a.Sign == nil {
		return object, nil
	}
	signature, err := a.Sign(object)
	if err != nil {
		return nil, fmt.Errorf("sign the commit: %w", err)
	}
	return signedcommit.WithSignature(object, signature), nil
}

// put gives a folder with one file more, at a path below it.
func (r *Remote) put(tree plumbing.Hash, name string, blob plumbing.Hash) (plumbing.Hash, error) {
	var entries []rawEntry
	if !tree.IsZero() {
		data, err := r.road.objects().read(tree, plumbing.TreeObject, maxMeta)
		if err != nil {
			return plumbing.ZeroHash, err
		}
		if entries, err = readEntries(data); err != nil {
			return plumbing.ZeroHash, err
		}
	}
	first, rest := name, ""
	if at := bytes.IndexByte([]byte(name), '/'); at >= 0 {
		first, rest = name[:at], name[at+1:]
	}
	at := slices.IndexFunc(entries, func(e rawEntry) bool { return e.name == first })
	entry := rawEntry{mode: "100644", name: first, hash: blob}
	if rest != "" {
		below := plumbing.ZeroHash
		if at >= 0 {
			if !entries[at].folder() {
				return plumbing.ZeroHash, fmt.Errorf("%s is no folder there, so %s can't stand in it", printable.Text(first), path.Base(name))
			}
			below = entries[at].hash
		}
		held, err := r.put(below, rest, blob)
		if err != nil {
			return plumbing.ZeroHash, err
		}
		entry = rawEntry{mode: "40000", name: first, hash: held}
	}
	if at >= 0 {
		entries[at] = entry
	} else {
		entries = append(entries, entry)
	}
	return r.road.write(plumbing.TreeObject, writeEntries(entries))
}

// rawEntry is a name in a folder as Git stores it. What isn't understood here is kept.
type rawEntry struct {
	mode, name string
	hash       plumbing.Hash
}

func (e rawEntry) folder() bool { return e.mode == "40000" || e.mode == "040000" }

// sortName is what Git sorts folders by: as if their names ended in a slash.
func (e rawEntry) sortName() string {
	if e.folder() {
		return e.name + "/"
	}
	return e.name
}

func readEntries(data []byte) ([]rawEntry, error) {
	var entries []rawEntry
	for len(data) > 0 {
		mode, rest, found := bytes.Cut(data, []byte{' '})
		name, rest, ended := bytes.Cut(rest, []byte{0})
		if !found || !ended || len(rest) < 20 {
			return nil, errors.New("a folder isn't in Git's format")
		}
		entries = append(entries, rawEntry{mode: string(mode), name: string(name), hash: plumbing.Hash(rest[:20])})
		data = rest[20:]
	}
	return entries, nil
}

func writeEntries(entries []rawEntry) []byte {
	slices.SortStableFunc(entries, func(a, b rawEntry) int { return bytes.Compare([]byte(a.sortName()), []byte(b.sortName())) })
	var out bytes.Buffer
	for _, e := range entries {
		out.WriteString(e.mode + " " + e.name + "\x00")
		out.Write(e.hash[:])
	}
	return out.Bytes()
}
