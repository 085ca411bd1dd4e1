package reconcile

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"ichor.maesh.dev/gitsource"
	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/validate"
)

// Source is the branch that is watched; *gitsource.Source is one.
type Source interface {
	Poll(ctx context.Context) (*gitsource.Revision, error)
	Seen() (*gitsource.Revision, error)
	LastGood() (*gitsource.Revision, error)
	MarkGood(commit string) error
	At(commit string) (*gitsource.Revision, error)
	Object(commit string) ([]byte, error)
	Since(ctx context.Context, from, to string) ([]*gitsource.Revision, error)
	Descends(ctx context.Context, tip, ancestor string) (bool, error)
	Approved(ctx context.Context, revision *gitsource.Revision, file string,
		approved func(*gitsource.Revision) (bool, error)) (*gitsource.Revision, error)
}

// Validator judges the step from one fleet to another; *validate.Engine is one.
type Validator interface {
	Check(old, proposed *schema.Fleet, opts ...validate.Option) []validate.Finding
}

// fleetAt is what one revision holds.
type fleetAt struct {
	revision *gitsource.Revision
	fleet    *schema.Fleet
	problems []schema.Problem
	// byName are the clusters of the fleet, so that a pass doesn't look for its machines among all others.
	byName map[string]Cluster
}

func newFleetAt(revision *gitsource.Revision, fleet *schema.Fleet, problems []schema.Problem) *fleetAt {
	return &fleetAt{revision: revision, fleet: fleet, problems: problems, byName: clustersOf(fleet, revision.Commit)}
}

// cluster takes one cluster out of the fleet; its object is nil when it isn't there. Documents that nothing acts on yet are left out, but
// for backups: their destinations may prove a past. Lists are shared: nobody may change them.
func (f *fleetAt) cluster(name string) Cluster {
	return f.byName[name]
}

// history reads and judges revisions. Each cluster stays on its own last good revision, so each has its own walk through the
// commits; what two walks share is computed once.
type history struct {
	source Source
	// commits judges signatures; nil: none are asked for.
	commits       *commitJudge
	validator     Validator
	roots         []string
	allowRewind   bool
	backups       bool
	limit         int // of fleets
	mu            sync.Mutex
	fleets        map[string]*fleetAt
	verdicts      map[[2]string]func() validate.Stopped
	kept          int // verdicts and the findings in them
	rewindAllowed map[string]bool
}

// mostKept is how many verdicts and findings are remembered: some 30 MiB of them, and the verdicts of months where nothing is found.
const mostKept = 1 << 16

func newHistory(source Source, validator Validator, roots []string, allowRewind, backups bool) *history {
	if len(roots) == 0 {
		roots = []string{"."}
	}
	return &history{source: source, validator: validator, roots: roots, allowRewind: allowRewind, backups: backups, limit: 64,
		fleets: map[string]*fleetAt{}, verdicts: map[[2]string]func() validate.Stopped{}, rewindAllowed: map[string]bool{}}
}

// load reads a revision's documents.
func (h *history) load(revision *gitsource.Revision) *fleetAt {
	h.mu.Lock()
	defer h.mu.Unlock()
	if f := h.fleets[revision.Commit]; f != nil {
		return f
	}
	if len(h.fleets) >= h.limit {
		clear(h.fleets)
	}
	fleet, problems := schema.Load(revision.Tree, h.roots)
	f := newFleetAt(revision, fleet, problems)
	h.fleets[revision.Commit] = f
	return f
}

// judge says what the step from base (nil for none) to a revision stops. All clusters ask for the same step, most of them at the same moment,
// when a revision arrives: it is judged once, and the others wait for that. A step that was judged is not read again.
func (h *history) judge(base, revision *gitsource.Revision) validate.Stopped {
	key := [2]string{"", revision.Commit}
	if base != nil {
		key[0] = base.Commit
	}
	h.mu.Lock()
	verdict, known := h.verdicts[key]
	if !known {
		verdict = sync.OnceValue(func() validate.Stopped { return h.judged(base, revision) })
		h.keep(1)
		h.verdicts[key] = verdict
	}
	h.mu.Unlock()
	return verdict()
}

func (h *history) judged(base, revision *gitsource.Revision) validate.Stopped {
	var old *schema.Fleet
	if base != nil {
		old = h.load(base).fleet
	}
	f := h.load(revision)
	findings := h.validator.Check(old, f.fleet, validate.WithProblems(f.problems))
	findings = append(findings, validate.FromProblems(f.problems)...)
	findings = append(findings, leftAlone(f.fleet, h.backups)...)
	stopped := validate.Stops(findings, kindsLeftAlone(h.backups)...)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.keep(len(findings))
	return stopped
}

// keep makes room for so many verdicts and findings more, under the lock.
func (h *history) keep(more int) {
	if h.kept += more; h.kept > mostKept {
		clear(h.verdicts)
		h.kept = more
	}
}

// folded is how far a cluster got through the commits.
type folded struct {
	// head is the newest commit that was judged, empty where the walk judged none; stops are the findings at it.
	head  string
	stops []string
	// good is the newest revision that is legal for the cluster, nil if none is.
	good *fleetAt
	// refused are the findings at the newest commit when that isn't good; empty when it is.
	refused []string
	// notYet are documents of the cluster that are left alone.
	notYet []string
	// verified is the newest commit up to which each was found signed, empty where signatures aren't asked for; unsigned the first that
	// wasn't, and unsignedWhy why.
	verified    string
	unsigned    *gitsource.Revision
	unsignedWhy string
}

// place is where a cluster stands on the branch.
type place struct {
	// applied is the commit that it is on, empty where it is on none; verified the newest one up to which, from applied on, each commit was
	// found signed.
	applied, verified string
	// now is when the rights of signers are judged.
	now time.Time
}

// errRewound says that the newest revision does not descend from the one a cluster is on.
var errRewound = errors.New("history was rewound")

// fold walks a cluster from its last good commit to head, commit by commit, so that two legal steps are not one illegal one. A
// finding of the cluster's own, or one that belongs to none, keeps it where it is; a commit that isn't signed by who may ends the walk, so that
// one on top of it which is doesn't make it good. It goes on where the last walk ended, if that is on the same good commit: a cluster may stay on
// one for weeks while hundreds are pushed.
func (h *history) fold(ctx context.Context, cluster string, on place, head *gitsource.Revision, last folded) (folded, error) {
	if on.applied == "" {
		return h.start(cluster, head, on.now), nil
	}
	if on.applied == head.Commit {
		return folded{good: h.load(head), notYet: documents(h.judge(nil, head), cluster), verified: h.verified(head.Commit)}, nil
	}
	base, err := h.base(ctx, cluster, on.applied, head)
	if err != nil {
		return folded{}, err
	}
	if base == nil {
		began := h.start(cluster, head, on.now)
		if began.good != nil { // one that is refused is no rewind that was let pass
			h.mu.Lock()
			h.rewindAllowed[cluster] = true
			h.mu.Unlock()
		}
		return began, nil
	}
	commits, err := h.source.Since(ctx, on.applied, head.Commit)
	if err != nil {
		return folded{good: h.load(base)}, err
	}
	signed, why := h.signedOf(commits, on)
	result := h.walk(cluster, base, commits[:signed], last)
	if why != "" {
		result.refused, result.unsigned, result.unsignedWhy = []string{why + vouch(result.good.revision.Commit, head.Commit)}, commits[signed], why
	}
	return result, nil
}

// signedOf counts the commits of a line, oldest first, before the first one that isn't signed by who may, and says why that one isn't.
func (h *history) signedOf(commits []*gitsource.Revision, on place) (int, string) {
	for n := h.commits.seenSigned(commits, on.verified); n < len(commits); n++ {
		if why := h.commits.unsigned(commits[n], on.now); why != "" {
			return n, why
		}
	}
	return len(commits), ""
}

// walk judges commits, oldest first, that stand on base.
func (h *history) walk(cluster string, base *gitsource.Revision, commits []*gitsource.Revision, last folded) folded {
	result := folded{verified: h.verified(base.Commit)}
	if last.good != nil && last.good.revision.Commit == base.Commit {
		if n := slices.IndexFunc(commits, func(r *gitsource.Revision) bool { return r.Commit == last.head }); n >= 0 {
			result = folded{head: last.head, stops: last.stops, notYet: last.notYet, verified: h.verified(last.head)}
			commits = commits[n+1:]
		}
	}
	good := base
	for _, revision := range commits {
		stopped := h.judge(good, revision)
		result.head, result.stops, result.verified = revision.Commit, sentences(stopped.Of(cluster)), h.verified(revision.Commit)
		if len(result.stops) == 0 {
			good, result.notYet = revision, documents(stopped, cluster)
		}
	}
	result.good, result.refused = h.load(good), result.stops
	return result
}

// verified is a commit where signatures are asked for, else nothing: what wasn't looked at is not remembered as signed.
func (h *history) verified(commit string) string {
	if h.commits == nil {
		return ""
	}
	return commit
}

// base reads the revision a cluster is on, and refuses a head that doesn't descend from it. Nil: a rewind is allowed, and the
// cluster starts anew from head.
func (h *history) base(ctx context.Context, cluster, from string, head *gitsource.Revision) (*gitsource.Revision, error) {
	descends, err := h.source.Descends(ctx, head.Commit, from)
	if err != nil {
		return nil, err
	}
	if !descends {
		h.mu.Lock()
		allowed := h.allowRewind && !h.rewindAllowed[cluster]
		h.mu.Unlock()
		if allowed {
			return nil, nil
		}
		return nil, fmt.Errorf("%s is on commit %.12s and the newest, %.12s, does not descend from it: %w; push one that does, or start "+
			"once with --allow-rewind", cluster, from, head.Commit, errRewound)
	}
	return h.source.At(from)
}

// start judges a first revision by what one revision can show: its own signature, and itself.
func (h *history) start(cluster string, revision *gitsource.Revision, now time.Time) folded {
	if why := h.commits.unsigned(revision, now); why != "" {
		return folded{refused: []string{why + vouch("", revision.Commit)}, unsigned: revision, unsignedWhy: why}
	}
	stopped := h.judge(nil, revision)
	if stops := stopped.Of(cluster); len(stops) > 0 {
		return folded{refused: sentences(stops)}
	}
	return folded{good: h.load(revision), notYet: documents(stopped, cluster), verified: h.verified(revision.Commit)}
}

func sentences(findings []validate.Finding) []string {
	const most = 20
	var list []string
	for n, f := range findings {
		if n == most {
			return append(list, fmt.Sprintf("and %d more", len(findings)-most))
		}
		list = append(list, f.String())
	}
	return list
}

func documents(stopped validate.Stopped, cluster string) []string {
	var list []string
	for _, f := range stopped.Documents {
		if f.Cluster == cluster && (f.Kind != schema.KindOperation || f.Rule == validate.RuleNotYet) { // an operation that is refused says so itself
			list = append(list, f.Message)
		}
	}
	return list
}

// clusters names the clusters that a revision speaks of, those whose documents can't be read included.
func (f *fleetAt) clusters() []string {
	var names []string
	seen := map[string]bool{}
	add := func(name string) {
		if name != "" && !seen[name] {
			seen[name] = true
			names = append(names, name)
		}
	}
	for _, c := range f.fleet.Clusters {
		add(c.Metadata.Name)
	}
	return names
}
