package schema

import (
	"bytes"
	"fmt"
	"io/fs"
	"maps"
	"reflect"
	"regexp"
	"runtime"
	"slices"
	"sync"
)

// maxReaders is how many files are read at once at most, and readAhead how many may wait until those before them were
// taken in: each may hold as much as one file may.
const (
	maxReaders = 4
	readAhead  = 4
)

// readFiles reads files, several at once, and takes them in one by one in their order, so that what comes of them doesn't
// depend on who was first. It ends early when a bound on all of them together is passed.
func (l *loading) readFiles(names []string) {
	type job struct {
		name string
		read chan fileRead
	}
	work, order, done := make(chan job), make(chan job, readAhead), make(chan struct{})
	var group sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), maxReaders, len(names)) {
		group.Go(func() {
			reader := newFileReader(l.fleet.Tree)
			reader.watch = l.watch
			for j := range work {
				j.read <- reader.file(j.name)
			}
		})
	}
	group.Go(func() {
		defer close(order)
		defer close(work)
		for _, name := range names {
			j := job{name, make(chan fileRead, 1)}
			select {
			case work <- j:
			case <-done:
				return
			}
			select {
			case order <- j:
			case <-done:
				return
			}
		}
	})
	for j := range order {
		if l.file(<-j.read); l.stopped {
			break
		}
	}
	close(done)
	group.Wait()
}

// fileRead is what came of one file.
type fileRead struct {
	name        string
	size, marks int
	documents   []documentRead
	// unread is why the file wasn't read to its end.
	unread *trouble
}

// documentRead is what came of one document.
type documentRead struct {
	at Position
	id identity
	// wrong is why the document is none of ours, or none that can be read.
	wrong *located
	// object is nil when something is wrong with it.
	object   any
	source   Source
	refs     []reference
	problems []located
	dropped  int
	// lost says that files may be named in what couldn't be read.
	lost bool
	// values is how many names and values it holds.
	values int
}

// fileReader reads files, each by itself. One is used by one goroutine only.
type fileReader struct {
	tree    fs.FS
	layouts *layouts
	budget  *budget
	watch   func(name string, content []byte)
}

func newFileReader(tree fs.FS) *fileReader {
	return &fileReader{tree: tree, layouts: newLayouts(), budget: &budget{}}
}

// file reads a file of the tree.
func (r *fileReader) file(name string) fileRead {
	data, err := readBounded(r.tree, name, MaxFileSize)
	if err != nil {
		return fileRead{name: name, unread: &trouble{
			located: located{Position{File: name}, fmt.Sprintf("can't read the file: %s", err)}, foreign: true, unread: true,
		}}
	}
	if r.watch != nil {
		r.watch(name, data)
	}
	return r.documents(name, data)
}

// documents reads what stands in a file.
func (r *fileReader) documents(name string, data []byte) fileRead {
	read := fileRead{name: name, size: len(data), marks: Marks(data)}
	unread := func(p located) {
		read.unread = &trouble{located: p, foreign: true, unread: true, mentions: mentionedClusters(data)}
	}
	if len(data) > MaxFileSize || read.marks > MaxMarks {
		unread(located{Position{File: name}, fmt.Sprintf("the file holds more than %d bytes, or %d commas, colons, brackets, quotes, list items and line breaks; split it",
			MaxFileSize, MaxMarks)})
		return read
	}
	documents, problem := parse(name, data)
	r.budget.nextFile()
	problems := 0
	for _, doc := range documents {
		got := r.document(doc, data)
		read.documents = append(read.documents, got)
		if r.budget.file < 0 {
			problem = &located{doc.at, fmt.Sprintf("the file's documents hold more than %d names and values once their aliases are followed; split it, or use fewer aliases", MaxFileValues)}
			break
		}
		if problems += len(got.problems); problems > maxTotalProblems {
			break // what takes the file in stops there too
		}
	}
	if problem != nil {
		unread(*problem)
		read.unread.mayRefer = bytes.Contains(data, []byte(KindCluster)) || bytes.Contains(data, []byte(KindMachine))
	}
	return read
}

// document reads one document, whatever it is. data is the whole file.
func (r *fileReader) document(doc document, data []byte) documentRead {
	read := documentRead{at: doc.at, id: identify(doc)}
	if message, at := read.id.wrongKind(doc); message != "" {
		read.wrong = &located{at, message}
		return read
	}
	r.budget.nextDocument()
	object := newObject(read.id.kind)
	d := &decoder{file: doc.at.File, layouts: r.layouts, budget: r.budget, base: doc.at, fields: map[string]Position{},
		texts: map[string]Text{}, lines: doc.lines,
		root: reflect.TypeOf(object).Elem()}
	if operation, ok := object.(*TalosOperation); ok {
		operation.Raw = data
		d.problems = checkOperationFile(doc.at.File, data, doc.root)
	}
	if len(d.problems) == 0 { // the fields of a file that isn't read alike by everyone say nothing
		d.structure(doc.root, target(doc.root), reflect.ValueOf(object).Elem(), "", 0)
		if !d.over {
			d.check(object)
			if len(d.problems) == 0 {
				read.object = object
			}
		}
	}
	read.source = Source{Position: doc.at, Fields: d.fields, Texts: d.texts}
	read.refs, read.problems, read.dropped, read.lost = d.refs, d.problems, d.dropped, d.lost
	read.values = MaxValues - r.budget.document
	return read
}

// newObject makes an empty object of a kind.
func newObject(kind string) any {
	switch kind {
	case KindCluster:
		return &TalosCluster{}
	case KindMachine:
		return &TalosMachine{}
	case KindBackup:
		return &TalosEtcdBackup{}
	case KindOperation:
		return &TalosOperation{}
	case KindPolicyTest:
		return &PolicyTest{}
	default:
		return &Policy{}
	}
}

// mentionedClusters finds the clusters that a file names which can't be read as YAML: its problem belongs to each of
// them too, since their machines may stand in the part that wasn't read. A policy speaks of all clusters: one that may stand
// there makes the problem that of none.
func mentionedClusters(data []byte) []string {
	if regexp.MustCompile(policyText).Match(data) {
		return []string{""}
	}
	names := map[string]bool{}
	for _, match := range regexp.MustCompile(clusterRefText).FindAllSubmatch(data, -1) {
		names[string(match[1])] = true
	}
	return slices.Sorted(maps.Keys(names))
}

// policyText finds a Policy in text that need not be YAML.
const policyText = `(?m)\bkind["']?[ \t]*:[ \t]*["']?Policy["']?[ \t]*(?:[,}#\r]|$)`

// clusterRefText finds a clusterRef in text that need not be YAML.
const clusterRefText = `clusterRef["']?\s*:\s*\{?\s*["']?name["']?\s*:\s*["']?(` + labelPattern + `)`
