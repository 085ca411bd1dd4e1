package schema

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"

	"ichor.maesh.dev/internal/printable"
)

// document is one YAML document of a file, before it is known what it is.
type document struct {
	root  *yaml.Node
	at    Position
	lines *fileLines
}

// parse takes a file's documents apart. Documents without content are left out. What was read before an error is given
// with it.
func parse(file string, data []byte) ([]document, *located) {
	whole := Position{File: file}
	if at, message := notText(data); message != "" {
		where := Position{File: file, Line: bytes.Count(data[:at], []byte("\n")) + 1}
		where.Column = utf8.RuneCount(data[bytes.LastIndexByte(data[:at], '\n')+1:at]) + 1
		return nil, &located{where, message}
	}
	if at := oddBreak(data); at >= 0 {
		where := Position{File: file, Line: bytes.Count(data[:at], []byte("\n")) + 1, Column: 1}
		return nil, &located{where, "the file holds a line break that YAML knows and editors don't (a bare carriage return, U+0085, U+2028 or U+2029); end lines with a line feed"}
	}
	loader, err := yaml.NewLoader(bytes.NewReader(data))
	if err != nil {
		return nil, &located{whole, "the file can't be read as YAML: " + printable.Text(err.Error())}
	}
	var documents []document
	in := newLines(data)
	for count := 0; ; count++ {
		if count == MaxDocuments {
			return documents, &located{whole, fmt.Sprintf("the file holds more than %d documents; split it", MaxDocuments)}
		}
		var node yaml.Node
		err := load(loader, &node)
		if errors.Is(err, io.EOF) {
			return documents, nil
		}
		if err != nil {
			return documents, syntaxProblem(file, data, err)
		}
		root := &node
		if node.Kind == yaml.DocumentNode {
			root = node.Content[0]
		}
		if isNull(root) {
			continue
		}
		documents = append(documents, document{root, Position{File: file, Line: root.Line, Column: root.Column}, in})
	}
}

// notText says where a file is no UTF-8 text, and what it may be; empty when it is.
func notText(data []byte) (at int, message string) {
	if bytes.HasPrefix(data, []byte("\xfe\xff")) || bytes.HasPrefix(data, []byte("\xff\xfe")) {
		return 0, "the file is UTF-16 text; save it as UTF-8"
	}
	zero := bytes.IndexByte(data, 0)
	if zero < 0 && utf8.Valid(data) {
		return 0, ""
	}
	for i := 0; i < len(data); {
		r, size := utf8.DecodeRune(data[i:])
		switch {
		case r == 0:
			return i, "the file holds a NUL byte, as UTF-16 text and binary files do; save it as UTF-8 text"
		case r == utf8.RuneError && size == 1:
			return i, "the file is not UTF-8 text; save it as UTF-8"
		}
		i += size
	}
	return 0, ""
}

// oddBreak finds what YAML takes for the end of a line and Git and editors don't, so that a line's number would mean
// another line to them; -1 when there is none.
func oddBreak(data []byte) int {
	for i, c := range data {
		switch {
		case c == '\r' && (i+1 == len(data) || data[i+1] != '\n'),
			c == 0xc2 && bytes.HasPrefix(data[i:], []byte("\u0085")),
			c == 0xe2 && (bytes.HasPrefix(data[i:], []byte("\u2028")) || bytes.HasPrefix(data[i:], []byte("\u2029"))):
			return i
		}
	}
	return -1
}

// load reads the next document. The parser reads foreign bytes: what it can't bear is a problem of the file and not the
// end of the agent.
func load(loader *yaml.Loader, into *yaml.Node) (err error) {
	defer func() {
		if thrown := recover(); thrown != nil {
			err = fmt.Errorf("the parser gave up: %v", thrown)
		}
	}()
	return loader.Load(into)
}

// syntaxProblem turns the parser's error into a sentence with a place.
func syntaxProblem(file string, data []byte, err error) *located {
	at, text := place(err, data)
	at.File = file
	switch {
	case strings.Contains(text, "exceeded max depth"):
		text = fmt.Sprintf("the document nests more than %d levels deep; make it flatter", MaxDepth)
	case conflict(data) > 0:
		at.Line, at.Column = conflict(data), 1
		return &located{at, "the file holds the marks of a merge conflict; choose one of the two sides, and take the marks out"}
	default:
		if hint := slip(data, at, text); hint != "" {
			return &located{at, "the file is not YAML: " + cutTo(printable.Text(text), 300) + "; " + hint}
		}
	}
	return &located{at, "the file is not YAML: " + cutTo(printable.Text(text), 300)}
}

// place takes the parser's error apart. Its types are not exported and their lines count from 0 in errors of the parser
// and from 1 in errors of the scanner, so they are read by reflection; TestSyntaxErrorsAreSaidWithTheirPlace holds it.
func place(err error, data []byte) (Position, string) {
	failed := reflect.Indirect(reflect.ValueOf(err))
	if cause := errors.Unwrap(err); cause != nil && failed.Kind() == reflect.Struct && failed.FieldByName("Offset").IsValid() {
		before := data[:min(int(failed.FieldByName("Offset").Int()), len(data))]
		return Position{Line: bytes.Count(before, []byte("\n")) + 1, Column: 1}, cause.Error()
	}
	if failed.Kind() != reflect.Struct || !failed.FieldByName("Mark").IsValid() {
		return Position{}, strings.TrimPrefix(err.Error(), "yaml: ")
	}
	mark := func(name string) Position {
		m := failed.FieldByName(name)
		return Position{Line: int(m.FieldByName("Line").Int()), Column: int(m.FieldByName("Column").Int()) + 1}
	}
	at, context := mark("Mark"), mark("ContextMark")
	text, around := failed.FieldByName("Message").String(), failed.FieldByName("ContextMessage").String()
	switch {
	case strings.HasPrefix(text, "unknown anchor"):
		at.Column-- // this one counts both from 1
	case failed.Type().Name() == "ParserError":
		at.Line++
		context.Line++
	}
	if around != "" && context.Line != at.Line {
		return at, fmt.Sprintf("%s, %s that begins in line %d", text, around, context.Line)
	}
	if around != "" {
		return at, text + ", " + around
	}
	return at, text
}

func cutTo(text string, most int) string {
	if runes := []rune(text); len(runes) > most {
		return string(runes[:most]) + "…"
	}
	return text
}

// identity is what a document says about itself, as far as it can be made out without reading it whole.
type identity struct {
	apiVersion, kind, name, clusterRef string
	apiVersionAt, kindAt               Position
}

// identify reads a document's identity. It follows aliases and gives empty for what isn't a text.
func identify(doc document) identity {
	var id identity
	id.apiVersion, id.apiVersionAt = textAt(doc, "apiVersion")
	id.kind, id.kindAt = textAt(doc, "kind")
	id.name, _ = textAt(doc, "metadata", "name")
	id.clusterRef, _ = textAt(doc, "spec", "clusterRef", "name")
	return id
}

// textAt gives a text in the document by its path, and where it stands (else where the document begins).
func textAt(doc document, path ...string) (string, Position) {
	node := doc.root
	for _, name := range path {
		node = target(node)
		if node.Kind != yaml.MappingNode {
			return "", doc.at
		}
		var found *yaml.Node
		for i := 0; i+1 < len(node.Content) && found == nil; i += 2 {
			if key := target(node.Content[i]); key.Kind == yaml.ScalarNode && key.Value == name {
				found = node.Content[i+1]
			}
		}
		if found == nil {
			return "", doc.at
		}
		node = found
	}
	if node = target(node); node.Kind != yaml.ScalarNode || isNull(node) {
		return "", doc.at
	}
	return node.Value, Position{File: doc.at.File, Line: node.Line, Column: node.Column}
}

// isOurs says whether a document means to be one of the kinds: it names our group, or one of our kinds without another
// group. Everything else is foreign, and a file that holds only foreign documents may be what a reference points to.
func (id identity) isOurs() bool {
	group, _, hasGroup := strings.Cut(id.apiVersion, "/")
	if hasGroup && (group == "ichor.maesh.dev" || nearest(group, []string{"ichor.maesh.dev"}) != "") {
		return true
	}
	return isKind(id.kind) && (id.apiVersion == "" || !hasGroup)
}

func isKind(kind string) bool {
	switch kind {
	case KindCluster, KindMachine, KindBackup, KindOperation, KindPolicy, KindPolicyTest:
		return true
	}
	return false
}

// wrongKind says what is wrong with a document's apiVersion or kind, and where; "" when nothing is.
func (id identity) wrongKind(doc document) (string, Position) {
	switch {
	case target(doc.root).Kind != yaml.MappingNode:
		return fmt.Sprintf("the document is %s, not one of Ichor's kinds; %s", described(target(doc.root)), foreignHint), doc.at
	case id.apiVersion == APIVersion && isKind(id.kind):
		return "", Position{}
	case id.apiVersion == APIVersion && id.kind == "":
		return fmt.Sprintf("kind is missing; it must be %s", either(Kinds())), doc.at
	case id.apiVersion == APIVersion:
		return fmt.Sprintf("there is no kind %s%s", shown(id.kind), suggestedKind(id.kind)), id.kindAt
	case id.apiVersion == "" && (isKind(id.kind) || nearest(id.kind, Kinds()) != ""):
		return fmt.Sprintf("apiVersion is missing; write apiVersion: %s", APIVersion), doc.at
	case id.isOurs():
		return fmt.Sprintf("apiVersion is %s; the only one that is read is %s", shown(id.apiVersion), APIVersion), id.apiVersionAt
	case id.apiVersion == "" && id.kind == "":
		return "the document has neither apiVersion nor kind, so it is not one of Ichor's kinds; " + foreignHint, doc.at
	default:
		return fmt.Sprintf("apiVersion %s, kind %s is not one of Ichor's kinds; %s", shown(id.apiVersion), shown(id.kind),
			foreignHint), doc.at
	}
}

const foreignHint = "if it is a Talos patch, name its file in a list of patches; else leave it out with " + IgnoreFile

func suggestedKind(kind string) string {
	if hint := didYouMean(kind, Kinds()); hint != "" {
		return hint
	}
	return "; the kinds are " + strings.Join(Kinds(), ", ")
}
