package schema

import (
	"fmt"
	"io/fs"
	"path"
	"slices"
	"sort"
)

// Load reads every kind under the roots of a repository ("." for all of it): each .yaml and .yml file, several documents
// a file. Symlinks are not followed; names that begin with a dot, what [IgnoreFile] names, and files that a reference
// points to are not read as kinds.
//
// An object that can't be read as it stands is not in the fleet; each reason is a problem, and [Fleet.Broken] names the
// object. Load always ends: all that it reads is bounded, and what passes a bound is a problem.
func Load(tree fs.FS, roots []string, options ...LoadOption) (*Fleet, []Problem) {
	l := newLoad(tree)
	for _, set := range options {
		set(l)
	}
	files, walkProblems := yamlFiles(tree, roots)
	for _, p := range walkProblems {
		l.add(trouble{located: p})
	}
	l.readFiles(files)
	return l.finish()
}

// LoadOption changes what a Load does.
type LoadOption func(*loading)

// Watched gives every file that Load reads to watch as well, so that nobody needs to read it again. It is called by several
// goroutines at once, and must not keep or change the content. A file that is too large or can't be read is not given.
func Watched(watch func(name string, content []byte)) LoadOption {
	return func(l *loading) { l.watch = watch }
}

// Decode reads the documents of one file that stands alone: no references are followed, and nothing but the file's own
// path tells to which cluster it belongs.
func Decode(file string, data []byte) (*Fleet, []Problem) {
	l := newLoad(nil)
	l.file(newFileReader(nil).documents(file, data))
	return l.finish()
}

// loading is what one Load has read so far.
type loading struct {
	fleet *Fleet
	// size, marks and values are those of all files together.
	size, marks, values int
	stopped             bool
	troubles            []trouble
	// kinds are the files that hold one of our documents, and where the first of them stands.
	kinds map[string]Position
	refs  []reference
	// watch sees the content of each file; nil: nobody does.
	watch func(name string, content []byte)
}

// trouble is a problem before it is known to whom it belongs.
type trouble struct {
	located
	id identity
	// foreign is of a document that isn't ours: no trouble if a reference points to its file.
	foreign bool
	// unread is of a file that couldn't be read to its end. mentions are the clusters that it names, and mayRefer says that
	// references may stand in what wasn't read.
	unread, mayRefer bool
	mentions         []string
}

func newLoad(tree fs.FS) *loading {
	return &loading{fleet: &Fleet{Tree: tree, seats: map[string][]string{}}, kinds: map[string]Position{}}
}

func (l *loading) add(t trouble) { l.troubles = append(l.troubles, t) }

// file takes in what came of a file.
func (l *loading) file(read fileRead) {
	l.fleet.Files++
	l.size += read.size
	l.marks += read.marks
	switch {
	case l.size > MaxTotalSize:
		l.stop(Position{File: read.name}, fmt.Sprintf("the YAML files have more than %d bytes together; give fewer roots, or leave files out with %s",
			MaxTotalSize, IgnoreFile))
		return
	case l.marks > MaxTotalMarks:
		l.stop(Position{File: read.name}, fmt.Sprintf("the YAML files hold more than %d commas, colons, brackets, quotes, list items and line breaks together; give fewer roots, or leave files out with %s",
			MaxTotalMarks, IgnoreFile))
		return
	}
	for _, doc := range read.documents {
		if l.document(doc); l.stopped {
			return
		}
	}
	if read.unread != nil {
		l.add(*read.unread)
	}
}

// stop ends the reading. The problem belongs to no cluster, so that it stops all: nobody knows what wasn't read.
func (l *loading) stop(at Position, message string) {
	l.stopped = true
	l.troubles = append(l.troubles, trouble{located: located{at, message}, unread: true, mentions: []string{""}})
}

// document takes in one document, whatever it is.
func (l *loading) document(doc documentRead) {
	if doc.wrong != nil {
		foreign := !doc.id.isOurs()
		l.add(trouble{located: *doc.wrong, id: doc.id, foreign: foreign})
		if !foreign {
			l.ours(doc)
			l.broken(doc)
		}
		return
	}
	l.ours(doc)
	l.refs = append(l.refs, doc.refs...)
	for _, p := range doc.problems {
		l.add(trouble{located: p, id: doc.id, mayRefer: doc.lost})
	}
	if doc.dropped > 0 {
		l.add(trouble{located: located{doc.at, fmt.Sprintf("%d more problems in this document are not listed", doc.dropped)}, id: doc.id})
	}
	if doc.object == nil {
		l.broken(doc)
	} else {
		l.keep(doc.object, doc.source)
	}
	switch l.values += doc.values; {
	case l.values > MaxTotalValues:
		l.stop(doc.at, totalMessage())
	case len(l.troubles) > maxTotalProblems:
		l.stop(doc.at, fmt.Sprintf("there are more than %d problems; what comes after this document was not read", maxTotalProblems))
	}
}

// ours remembers where a document of ours stands, readable or not.
func (l *loading) ours(doc documentRead) {
	id := doc.id
	if _, known := l.kinds[doc.at.File]; !known {
		l.kinds[doc.at.File] = doc.at
	}
	if id.kind == KindCluster && isDNSName(id.name) {
		folder := path.Dir(doc.at.File)
		if !slices.Contains(l.fleet.seats[folder], id.name) {
			l.fleet.seats[folder] = append(l.fleet.seats[folder], id.name)
		}
	}
}

func (l *loading) broken(doc documentRead) {
	l.fleet.Broken = append(l.fleet.Broken, Broken{Position: doc.at, Kind: doc.id.kind, Name: doc.id.name, Cluster: doc.id.clusterRef})
}

func (l *loading) keep(object any, source Source) {
	f := l.fleet
	switch o := object.(type) {
	case *TalosCluster:
		o.Source = source
		f.Clusters = append(f.Clusters, o)
	case *TalosMachine:
		o.Source = source
		f.Machines = append(f.Machines, o)
	case *TalosEtcdBackup:
		o.Source = source
		f.Backups = append(f.Backups, o)
	case *TalosOperation:
		o.Source = source
		f.Operations = append(f.Operations, o)
	case *Policy:
		o.Source = source
		f.Policies = append(f.Policies, o)
	case *PolicyTest:
		o.Source = source
		f.PolicyTests = append(f.PolicyTests, o)
	}
}

// finish settles which foreign files were referred to, and to whom each problem belongs.
func (l *loading) finish() (*Fleet, []Problem) {
	referred := map[string]bool{}
	for _, ref := range l.refs {
		referred[ref.to] = true
		if first, holds := l.kinds[ref.to]; holds {
			l.add(trouble{located: located{ref.at, fmt.Sprintf("the reference points to %s, which holds one of Ichor's kinds in line %d; put what it refers to into a file of its own",
				cut(ref.to), first.Line)}, id: identity{clusterRef: l.fleet.ClusterFor(ref.from, "")}})
		}
	}
	for i := range l.fleet.Broken {
		b := &l.fleet.Broken[i]
		b.Cluster = l.fleet.owner(b.File, identity{kind: b.Kind, name: b.Name, clusterRef: b.Cluster})
	}
	unread := l.unreadFiles(referred)
	var problems []Problem
	for _, t := range l.troubles {
		if t.foreign && referred[t.at.File] && l.kinds[t.at.File] == (Position{}) {
			continue
		}
		if t.foreign && !t.unread && l.explained(t, unread) {
			continue
		}
		problems = append(problems, l.problems(t)...)
	}
	sort.SliceStable(problems, func(i, j int) bool { return problems[i].before(problems[j].Position) })
	return l.fleet, problems
}

// unreadFiles lists the folders of files that may refer to others in what couldn't be read, or that name a
// patch that isn't there, each with the cluster it belongs to.
func (l *loading) unreadFiles(referred map[string]bool) map[string]string {
	unread := map[string]string{}
	for _, t := range l.troubles {
		if t.mayRefer && !referred[t.at.File] {
			unread[path.Dir(t.at.File)] = l.fleet.ClusterFor(t.at.File, "")
		}
	}
	if l.fleet.Tree == nil || !slices.ContainsFunc(l.troubles, func(t trouble) bool { return t.foreign && !t.unread }) {
		return unread
	}
	for _, ref := range l.refs {
		if info, err := lstat(l.fleet.Tree, ref.to); ref.patch && (err != nil || !info.Mode().IsRegular()) {
			unread[path.Dir(ref.from)] = l.fleet.ClusterFor(ref.from, "")
		}
	}
	return unread
}

// explained says whether a foreign document beside or below a file that couldn't be read is likely a patch to which
// that file refers or means to. The file's own problem stops the same cluster, so nothing is let through.
func (l *loading) explained(t trouble, unread map[string]string) bool {
	owner := l.fleet.owner(t.at.File, t.id)
	for _, folder := range append(parents(path.Dir(t.at.File)), path.Dir(t.at.File)) {
		if cluster, ok := unread[folder]; ok && (cluster == "" || cluster == owner) {
			return true
		}
	}
	return false
}

// problems gives a trouble its owner. A file that wasn't read to its end is the problem of every cluster it names.
func (l *loading) problems(t trouble) []Problem {
	owners := []string{l.fleet.owner(t.at.File, t.id)}
	for _, name := range t.mentions {
		if name == "" {
			owners = []string{""}
			break
		}
		if l.fleet.hasSeat(name) && !slices.Contains(owners, name) && owners[0] != "" {
			owners = append(owners, name)
		}
	}
	problems := make([]Problem, len(owners))
	for i, owner := range owners {
		problems[i] = Problem{Position: t.at, Kind: cut(t.id.kind), Name: cut(t.id.name), Cluster: owner, Message: t.message}
	}
	return problems
}

func (p Problem) before(other Position) bool {
	if p.File != other.File {
		return p.File < other.File
	}
	if p.Line != other.Line {
		return p.Line < other.Line
	}
	return p.Column < other.Column
}
