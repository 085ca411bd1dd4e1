package gitsource

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp"

	"ichor.maesh.dev/internal/wholefile"
)

// Poll asks the server where the branch stands, fetches if it moved, and gives the revision at its tip. While nothing moves
// it gives the same *Revision each time. It returns an *Error, or a *RewoundError when the tip does not descend from the last
// one seen; then Seen and LastGood still give what was there before.
func (s *Source) Poll(ctx context.Context) (*Revision, error) {
	s.polling.Lock()
	defer s.polling.Unlock()
	s.mu.Lock()
	closed := s.closed
	s.mu.Unlock()
	if closed {
		return nil, errors.New("the Git source is closed")
	}
	p := &poll{source: s}
	defer p.hangUp()
	revision, err := p.run(ctx)
	if err != nil {
		return nil, p.explain(ctx, err)
	}
	s.count(func(stats *Stats) { stats.LastSuccess = s.clock.Now() })
	return revision, nil
}

// poll is one Poll.
type poll struct {
	source  *Source
	creds   credentials
	session session
	refs    *packp.AdvRefs
	// branch is the branch's name, as far as the server tells it.
	branch string
	// cloned is set once this poll made the clone anew: what is still broken then is the server's.
	cloned bool
}

func (p *poll) run(parent context.Context) (*Revision, error) {
	s := p.source
	ctx, cancel := context.WithTimeout(parent, s.config.ListTimeout+s.config.FetchTimeout)
	defer cancel()
	var err error
	if p.creds, err = loadCredentials(s.config, s.location); err != nil {
		return nil, &credentialError{err}
	}
	if err := p.list(ctx); err != nil {
		return nil, err
	}
	tip, err := p.tip()
	if err != nil {
		return nil, err
	}
	if revision := s.unmoved(tip); revision != nil {
		return revision, nil
	}
	if again := s.refusedBefore(tip); again != nil {
		return nil, again
	}
	before := packsOf(s.clonePath())
	if err := p.obtain(ctx, tip); err != nil {
		return nil, err
	}
	revision, err := p.accept(ctx, tip)
	var rewound *RewoundError
	if errors.As(err, &rewound) && !p.cloned {
		s.refused = *rewound
		return nil, errors.Join(err, s.dropPacks(before))
	}
	var broken *brokenCacheError
	if errors.As(err, &broken) && !p.cloned {
		if err := p.clone(ctx, tip); err != nil {
			return nil, err
		}
		revision, err = p.accept(ctx, tip)
	}
	if err != nil {
		return nil, err
	}
	p.compact(ctx, tip)
	return revision, nil
}

// compact makes a clone of too many packs anew as one. It fails nothing: the clone as it is serves too.
func (p *poll) compact(ctx context.Context, tip plumbing.Hash) {
	s := p.source
	if p.cloned || countPacks(s.clonePath()) < s.maxPacks {
		return
	}
	s.mu.Lock()
	good := s.record.Good
	s.mu.Unlock()
	// What the server no longer has must not be lost here.
	if good != "" {
		if descends, err := s.history.descends(ctx, tip, plumbing.NewHash(good)); err != nil || !descends {
			return
		}
	}
	_ = p.clone(ctx, tip)
}

// refusedBefore says that a tip was refused before as one that rewinds history, and still is.
func (s *Source) refusedBefore(tip plumbing.Hash) error {
	s.mu.Lock()
	seen := s.record.Seen
	s.mu.Unlock()
	if again := s.refused; again.Tip == tip.String() && again.Seen == seen && s.store.usable() {
		return &again
	}
	return nil
}

// dropPacks removes the packs that came since. What a refused tip brought is of no use, and who can push could fill the disk with one such
// tip after the other.
func (s *Source) dropPacks(before []string) error {
	return s.store.replace(func() error {
		var failed error
		for _, index := range packsOf(s.clonePath()) {
			if !slices.Contains(before, index) {
				failed = errors.Join(failed, os.Remove(index), os.Remove(strings.TrimSuffix(index, ".idx")+".pack"))
			}
		}
		return failed
	})
}

// unmoved gives the current revision if the branch still stands there and the clone can be read.
func (s *Source) unmoved(tip plumbing.Hash) *Revision {
	if !s.store.usable() {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current != nil && s.current.Commit == tip.String() {
		return s.current
	}
	return nil
}

// list begins a conversation and asks where all branches stand.
func (p *poll) list(ctx context.Context) error {
	p.hangUp()
	p.source.count(func(stats *Stats) { stats.Polls++ })
	listing, cancel := context.WithTimeout(ctx, p.source.config.ListTimeout)
	defer cancel()
	opened, err := p.source.connect(ctx, listing, p.creds)
	if err != nil {
		if listing.Err() != nil {
			err = listing.Err()
		}
		return err
	}
	p.session = opened
	if p.refs, err = opened.AdvertisedReferencesContext(listing); err != nil {
		if listing.Err() != nil {
			err = listing.Err()
		}
		return err
	}
	if len(p.refs.Shallows) > 0 {
		return errShallow
	}
	return nil
}

func (p *poll) hangUp() {
	if p.session != nil {
		_ = p.session.Close()
		p.session = nil
	}
}

// tip finds where the branch stands.
func (p *poll) tip() (plumbing.Hash, error) {
	p.branch = p.source.config.Branch
	if p.branch == "" {
		for _, symref := range p.refs.Capabilities.Get("symref") {
			if target, found := strings.CutPrefix(symref, "HEAD:refs/heads/"); found {
				p.branch = target
			}
		}
		if p.refs.Head != nil {
			return *p.refs.Head, nil
		}
		return plumbing.ZeroHash, &branchError{branches: p.branches()}
	}
	if tip, found := p.refs.References["refs/heads/"+p.branch]; found && !tip.IsZero() {
		return tip, nil
	}
	return plumbing.ZeroHash, &branchError{branch: p.branch, branches: p.branches()}
}

func (p *poll) branches() []string {
	var names []string
	for name := range p.refs.References {
		if branch, found := strings.CutPrefix(name, "refs/heads/"); found {
			names = append(names, branch)
		}
	}
	slices.Sort(names)
	return names
}

// obtain has the tip in the clone: it is there already, or it is fetched, or everything is cloned.
func (p *poll) obtain(ctx context.Context, tip plumbing.Hash) error {
	s := p.source
	switch {
	case !s.store.usable():
		return p.clone(ctx, tip)
	case s.store.has(tip):
		return nil
	}
	haves, err := s.haves()
	if err != nil || len(haves) == 0 { // the clone is broken, or lacks what it had
		return p.clone(ctx, tip)
	}
	return p.receive(ctx, tip, haves, s.clonePath())
}

// receive downloads a pack into a repository, and looks at the clone anew.
func (p *poll) receive(ctx context.Context, tip plumbing.Hash, haves []plumbing.Hash, repository string) error {
	s := p.source
	s.count(func(stats *Stats) { stats.Fetches++ })
	fetching, cancel := context.WithTimeout(ctx, s.config.FetchTimeout)
	defer cancel()
	err := receivePack(fetching, p.session, p.refs, tip, haves, repository, s.config.MaxPack)
	p.hangUp()
	switch {
	case err != nil && fetching.Err() != nil:
		return &fetchTimeoutError{limit: s.config.FetchTimeout, cause: fetching.Err()}
	case err != nil:
		return err
	case repository == s.clonePath():
		s.store.reopen()
	}
	return nil
}

// clone makes the clone anew beside the old one, and puts it in its place only when it is whole.
func (p *poll) clone(ctx context.Context, tip plumbing.Hash) error {
	s := p.source
	if p.session == nil { // the first conversation is spent
		if err := p.list(ctx); err != nil {
			return err
		}
		moved, err := p.tip()
		if err != nil {
			return err
		}
		if moved != tip {
			return errMoved
		}
	}
	p.cloned = true
	s.count(func(stats *Stats) { stats.Clones++ })
	fresh := s.newClonePath()
	if err := initRepository(fresh); err != nil {
		return err
	}
	if err := p.receive(ctx, tip, nil, fresh); err != nil {
		_ = os.RemoveAll(fresh)
		return err
	}
	return s.store.replace(func() error {
		if err := os.RemoveAll(s.clonePath()); err != nil {
			return err
		}
		if err := os.Rename(fresh, s.clonePath()); err != nil {
			return err
		}
		return wholefile.SyncFolder(s.config.Cache)
	})
}

// initRepository makes an empty bare repository, in which git itself can look too.
func initRepository(folder string) error {
	if err := os.RemoveAll(folder); err != nil {
		return err
	}
	for _, name := range []string{"objects/pack", "refs/heads"} {
		if err := os.MkdirAll(filepath.Join(folder, filepath.FromSlash(name)), 0o700); err != nil {
			return err
		}
	}
	files := map[string]string{
		"HEAD":   "ref: refs/heads/ichor\n",
		"config": "[core]\n\trepositoryformatversion = 0\n\tbare = true\n",
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
			return err
		}
	}
	return nil
}

// haves names commits that the clone has, so that the server leaves away what it needn't send: the last ones seen and good,
// and some before them in case history was rewound to there.
func (s *Source) haves() ([]plumbing.Hash, error) {
	s.mu.Lock()
	seen, good := s.record.Seen, s.record.Good
	s.mu.Unlock()
	var haves []plumbing.Hash
	for _, start := range []string{seen, good} {
		at := plumbing.NewHash(start)
		if start == "" || !s.store.has(at) {
			continue
		}
		for step := range 256 {
			if step&(step-1) == 0 || step < 16 { // each of the nearest, then ever fewer
				haves = append(haves, at)
			}
			c, err := s.store.commit(at)
			if err != nil {
				return nil, err
			}
			if len(c.parents) == 0 {
				break
			}
			at = c.parents[0]
		}
	}
	return haves, nil
}

// accept checks a tip that is in the clone, and makes it the current revision.
func (p *poll) accept(ctx context.Context, tip plumbing.Hash) (*Revision, error) {
	s := p.source
	rewound, err := p.guard(ctx, tip)
	if err != nil {
		return nil, err
	}
	revision, err := s.revision(tip, nil)
	if err != nil {
		return nil, err
	}
	if err := s.store.survey(ctx, plumbing.NewHash(revision.TreeHash), s.config.MaxFiles); err != nil {
		return nil, err
	}
	if err := checkFolders(revision.Tree, s.config.Paths); err != nil {
		return nil, &pathError{commit: revision.Commit, cause: err}
	}
	if err := wholefile.Write(filepath.Join(s.clonePath(), "HEAD"), []byte(revision.Commit+"\n")); err != nil {
		return nil, err
	}
	err = s.updateRecord(func(r *record) {
		r.Seen = revision.Commit
		if rewound {
			r.Rewound = revision.Commit
		}
	})
	if err != nil {
		return nil, err
	}
	s.rewound = s.rewound || rewound
	s.mu.Lock()
	s.current = revision
	s.mu.Unlock()
	return revision, nil
}

// guard refuses a tip that does not descend from the last one seen. It tells whether it let such a one pass.
func (p *poll) guard(ctx context.Context, tip plumbing.Hash) (rewound bool, err error) {
	s := p.source
	s.mu.Lock()
	seen := s.record.Seen
	s.mu.Unlock()
	if seen == "" {
		return false, nil
	}
	if !s.store.has(plumbing.NewHash(seen)) && s.lost != seen {
		if !p.cloned { // a hole in the clone must not pass for a rewind
			return false, &brokenCacheError{hash: seen, cause: plumbing.ErrObjectNotFound}
		}
		s.lost = seen
	}
	descends, err := s.history.descends(ctx, tip, plumbing.NewHash(seen))
	if err != nil || descends {
		return false, err
	}
	if s.config.AllowRewind && !s.rewound {
		return true, nil
	}
	return false, &RewoundError{Branch: p.branch, Seen: seen, Tip: tip.String(), spent: s.rewound}
}
