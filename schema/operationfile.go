package schema

import (
	"bytes"
	"fmt"
	"regexp"
	"strings"

	"go.yaml.in/yaml/v4"
)

// MaxOperationSize is the largest file of an operation, in bytes.
const MaxOperationSize = 16 << 10

// operationFile holds the file of an operation to what every reader of YAML reads alike: what was signed must mean one thing
// to the person who read it and to all that act on it.
type operationFile struct {
	name  string
	data  []byte
	lines []int // where each line begins
	found []located
}

// checkOperationFile gives what is wrong with a file that holds an operation, apart from its fields. root is the document
// of the operation.
func checkOperationFile(name string, data []byte, root *yaml.Node) []located {
	f := &operationFile{name: name, data: data, lines: []int{0}}
	if len(data) > MaxOperationSize {
		f.problem(Position{File: name}, "the file has %d bytes, and the file of an operation may have %d", len(data), MaxOperationSize)
		return f.found
	}
	for i, c := range data {
		if c == '\n' {
			f.lines = append(f.lines, i+1)
		}
	}
	// Each check relies on what the one before it has ruled out.
	for _, check := range []func(){f.bytes, func() { f.markers(root) }, func() { f.nodes(root) }, func() { f.comments(root) }} {
		if check(); len(f.found) > 0 {
			return f.found
		}
	}
	return nil
}

func (f *operationFile) problem(at Position, format string, args ...any) {
	f.found = append(f.found, located{at, fmt.Sprintf(format, args...)})
}

// at gives the place of a byte.
func (f *operationFile) at(offset int) Position {
	line := 0
	for line+1 < len(f.lines) && f.lines[line+1] <= offset {
		line++
	}
	return Position{File: f.name, Line: line + 1, Column: offset - f.lines[line] + 1}
}

// bytes refuses the first byte that isn't printable ASCII or a line feed.
func (f *operationFile) bytes() {
	for i, c := range f.data {
		what := ""
		switch {
		case c == '\n' || c >= ' ' && c <= '~':
			continue
		case c == '\r':
			what = "a carriage return; end lines with a line feed alone"
		case c == '\t':
			what = "a tab; use spaces"
		case i == 0 && bytes.HasPrefix(f.data, []byte("\ufeff")):
			what = "a byte order mark; save it without one"
		case c > '~'+1:
			what = fmt.Sprintf("a character beyond ASCII (byte 0x%02x); leave it out, or write it in double quotes as \\u and four digits", c)
		default:
			what = fmt.Sprintf("a control character (byte 0x%02x); leave it out", c)
		}
		f.problem(f.at(i), "the file of an operation is printable ASCII and line feeds, and this is %s", what)
		return
	}
}

// markers refuses what begins or ends documents, but for "---" in the first line.
func (f *operationFile) markers(root *yaml.Node) {
	for i, begin := range f.lines {
		line := f.data[begin:]
		switch {
		case i == 0 && bytes.HasPrefix(line, []byte("---\n")):
		case bytes.HasPrefix(line, []byte("---")), bytes.HasPrefix(line, []byte("...")):
			f.problem(Position{File: f.name, Line: root.Line, Column: root.Column},
				"an operation is alone in its file, and line %d begins or ends a document; give each operation a file of its own", i+1)
			return
		case bytes.HasPrefix(line, []byte("%")):
			f.problem(f.at(begin), "the file of an operation has no directives; leave the line out")
			return
		}
	}
}

// otherBoolean and otherNumber find plain texts that readers of YAML 1.1 take for a boolean or a number.
var (
	otherBoolean = regexp.MustCompile(`^(?i:y|yes|n|no|on|off)$`)
	otherNumber  = regexp.MustCompile(`^[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?$`)
)

// nodes refuses anchors, aliases, tags, merge keys and values that readers differ on.
func (f *operationFile) nodes(n *yaml.Node) {
	at := Position{File: f.name, Line: n.Line, Column: n.Column}
	const means = "the file of an operation means what it says where it says it"
	switch {
	case n.Kind == yaml.AliasNode:
		f.problem(at, "%s, so it has no aliases; write the value of *%s out", means, cut(n.Value))
		return // what it points to is looked at where it stands
	case n.Anchor != "":
		f.problem(at, "%s, so it has no anchors; leave &%s out", means, cut(n.Anchor))
	case n.Style&yaml.TaggedStyle != 0:
		f.problem(at, "%s, so it has no tags; leave %s out", means, shown(n.Tag))
	case n.Kind == yaml.ScalarNode && n.ShortTag() == "!!merge":
		f.problem(at, "%s, so it has no merge keys; write the fields out", means)
	case n.Kind == yaml.ScalarNode && isPlain(n) && otherBoolean.MatchString(n.Value):
		f.problem(at, "%s is a boolean to some readers of YAML and a text to others; write true or false, or put it in quotes", shown(n.Value))
	case n.Kind == yaml.ScalarNode && isPlain(n) && otherNumber.MatchString(n.Value):
		f.problem(at, "%s is a number to some readers of YAML and a text to others; put it in quotes", shown(n.Value))
	case n.Kind == yaml.ScalarNode && n.Style&(yaml.LiteralStyle|yaml.FoldedStyle) != 0 && f.indicator(n):
		f.problem(at, "the file of an operation doesn't say how far a text is indented; leave the digit out, or put the text in quotes")
	}
	for _, child := range n.Content {
		f.nodes(child)
	}
}

func isPlain(n *yaml.Node) bool {
	return n.Style&(yaml.DoubleQuotedStyle|yaml.SingleQuotedStyle|yaml.LiteralStyle|yaml.FoldedStyle) == 0
}

// indicator says whether a block text gives its indentation itself.
func (f *operationFile) indicator(n *yaml.Node) bool {
	header, _, _ := bytes.Cut(f.data[f.offset(n):], []byte("\n"))
	header, _, _ = bytes.Cut(header, []byte(" "))
	return bytes.ContainsAny(header, "0123456789")
}

// offset gives the byte at which a node begins.
func (f *operationFile) offset(n *yaml.Node) int {
	return min(f.lines[min(max(n.Line, 1), len(f.lines))-1]+max(n.Column, 1)-1, len(f.data))
}

// comments refuses a # that isn't inside a text.
func (f *operationFile) comments(root *yaml.Node) {
	inText := make([]bool, len(f.data)+1)
	f.mark(root, inText)
	for i, c := range f.data {
		if c != '#' || inText[i] {
			continue
		}
		if i == 0 || inText[i-1] || strings.IndexByte(" \n,[]{}:?-+&*!|>%@`'\"", f.data[i-1]) >= 0 {
			f.problem(f.at(i), "the file of an operation has no comments, since nothing acts on them; leave it out, or put a text with # in quotes")
			return
		}
	}
}

// mark marks the bytes of quoted and block texts.
func (f *operationFile) mark(n *yaml.Node, inText []bool) {
	begin := f.offset(n)
	end := begin
	switch {
	case n.Kind != yaml.ScalarNode:
	case n.Style&yaml.DoubleQuotedStyle != 0:
		for end = begin + 1; end < len(f.data) && f.data[end] != '"'; end++ {
			if f.data[end] == '\\' {
				end++
			}
		}
		end++
	case n.Style&yaml.SingleQuotedStyle != 0:
		for end = begin + 1; end < len(f.data); end++ {
			if f.data[end] != '\'' {
				continue
			}
			if end+1 >= len(f.data) || f.data[end+1] != '\'' {
				break
			}
			end++
		}
		end++
	case n.Style&(yaml.LiteralStyle|yaml.FoldedStyle) != 0 && strings.TrimSpace(n.Value) != "":
		begin, end = f.blockText(begin)
	}
	for i := begin; i < min(end, len(inText)); i++ {
		inText[i] = true
	}
	for _, child := range n.Content {
		f.mark(child, inText)
	}
}

// blockText gives where the text of a literal or folded scalar begins and ends: the lines behind its header that are
// indented as far as the first of them that isn't blank.
func (f *operationFile) blockText(header int) (begin, end int) {
	at := bytes.IndexByte(f.data[header:], '\n')
	if at < 0 {
		return header, header
	}
	begin = header + at + 1
	end = begin
	depth := -1
	for end < len(f.data) {
		line, _, _ := bytes.Cut(f.data[end:], []byte("\n"))
		text := bytes.TrimLeft(line, " ")
		if len(text) > 0 {
			if indent := len(line) - len(text); depth < 0 {
				depth = indent
			} else if indent < depth {
				break
			}
		}
		end += len(line) + 1
	}
	return begin, min(end, len(f.data))
}
