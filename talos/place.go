package talos

import (
	"path"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"

	"ichor.maesh.dev/schema"
)

// spot is a place in the text of a patch; zero where none is known.
type spot struct{ line, column int }

func spotOf(node *yaml.Node) spot { return spot{node.Line, node.Column} }

// inlinePatch is where an inline patch stands.
type inlinePatch struct {
	at     schema.Position
	source schema.Source
	read   func(fromFile string, ref schema.FileRef) (string, []byte, error)
}

// position gives the place in the repository of a spot in an inline patch, whose text is written anew: the file it stands in
// is read again, and the same path of keys followed in it. The inline field itself where that leads nowhere.
func (i *inlinePatch) position(nodes []*yaml.Node, where spot) schema.Position {
	if i.read == nil || where == (spot{}) || len(nodes) == 0 {
		return i.at
	}
	_, data, err := i.read(i.source.File, schema.FileRef{File: path.Base(i.source.File)})
	if err != nil {
		return i.at
	}
	documents, err := yamlDocuments(data)
	if err != nil {
		return i.at
	}
	steps, ok := pathTo(content(nodes[0]), where, 0)
	if !ok {
		return i.at
	}
	for _, document := range documents {
		inside := valueAt(document, spot{i.at.Line, i.at.Column}, 0)
		if inside == nil {
			continue
		}
		if found := follow(inside, steps); found != nil {
			return schema.Position{File: i.at.File, Line: found.Line, Column: found.Column}
		}
	}
	return i.at
}

// maxNesting bounds walks down a document; no config is as deep.
const maxNesting = 100

// pathTo gives the steps from node to the last thing that begins at or before a spot in its line; keys by name, items by number.
func pathTo(node *yaml.Node, where spot, depth int) ([]string, bool) {
	if node == nil || depth > maxNesting {
		return nil, false
	}
	hits := func(n *yaml.Node) bool {
		return n.Line == where.line && (where.column == 0 || n.Column == where.column)
	}
	switch node.Kind {
	case yaml.MappingNode:
		for n := 0; n+1 < len(node.Content); n += 2 {
			key, value := node.Content[n], node.Content[n+1]
			if hits(key) || value.Kind == yaml.ScalarNode && hits(value) {
				return []string{key.Value}, true
			}
			if steps, ok := pathTo(value, where, depth+1); ok {
				return append([]string{key.Value}, steps...), true
			}
		}
	case yaml.SequenceNode:
		for n, item := range node.Content {
			step := strconv.Itoa(n)
			if item.Kind == yaml.ScalarNode && hits(item) {
				return []string{step}, true
			}
			if steps, ok := pathTo(item, where, depth+1); ok {
				return append([]string{step}, steps...), true
			}
		}
	}
	return nil, false
}

// follow goes down the steps as far as they lead, and gives the last key or item; nil when the first leads nowhere.
func follow(node *yaml.Node, steps []string) *yaml.Node {
	var last *yaml.Node
	for _, step := range steps {
		if node != nil && node.Kind == yaml.AliasNode {
			node = node.Alias
		}
		if node == nil {
			return last
		}
		var next *yaml.Node
		switch node.Kind {
		case yaml.MappingNode:
			key, value := locate(node, []string{step})
			if key == nil {
				return last
			}
			last, next = key, value
		case yaml.SequenceNode:
			n, err := strconv.Atoi(step)
			if err != nil || n >= len(node.Content) {
				return last
			}
			last, next = node.Content[n], node.Content[n]
		default:
			return last
		}
		node = next
	}
	return last
}

// valueAt gives the value of the key that stands exactly there.
func valueAt(node *yaml.Node, where spot, depth int) *yaml.Node {
	if depth > maxNesting {
		return nil
	}
	if node.Kind == yaml.MappingNode {
		for n := 0; n+1 < len(node.Content); n += 2 {
			if spotOf(node.Content[n]) == where {
				return node.Content[n+1]
			}
		}
	}
	for _, child := range node.Content {
		if found := valueAt(child, where, depth+1); found != nil {
			return found
		}
	}
	return nil
}

// problem places an error in the patch. What is sealed has no lines that a reader of the file could look up.
func (p *loadedPatch) problem(where spot, err error) error {
	position := schema.Position{File: p.name, Line: where.line, Column: where.column}
	switch {
	case p.inline != nil:
		position = p.inline.position(p.nodes, where)
	case p.sealed:
		position.Line, position.Column = 0, 0
		if where.line > 0 {
			return &RenderError{Position: position, Message: err.Error() + " (line " + strconv.Itoa(where.line) + " of what it opens to)", Err: err}
		}
	}
	return &RenderError{Position: position, Message: err.Error(), Err: err}
}

// fieldSpot gives the place of a field by its path, or of the nearest field around it that the patch has.
func (p *loadedPatch) fieldSpot(field string) spot {
	steps := strings.Split(strings.Trim(field, "'."), ".")
	for n, step := range steps {
		steps[n] = strings.Trim(step, "[]")
	}
	for _, document := range p.nodes {
		if found := follow(content(document), steps); found != nil {
			return spotOf(found)
		}
	}
	return spot{}
}

// spotOfLine gives the place of the first thing in a line.
func (p *loadedPatch) spotOfLine(line int) spot {
	for _, document := range p.nodes {
		root := content(document)
		if steps, ok := pathTo(root, spot{line: line}, 0); ok {
			if found := follow(root, steps); found != nil && found.Line == line {
				return spotOf(found)
			}
		}
	}
	return spot{line: line}
}

// firstSpot is where the patch begins to say something.
func (p *loadedPatch) firstSpot() spot {
	for _, document := range p.nodes {
		if root := content(document); root != nil && root.Kind == yaml.MappingNode && len(root.Content) > 0 {
			return spotOf(root.Content[0])
		}
	}
	return spot{}
}

// spotOfValue gives the place of the value that a complaint quotes, or of the document that it names; else where the patch
// begins.
func (p *loadedPatch) spotOfValue(complaint string) spot {
	budget := maxVisits
	for _, document := range p.nodes {
		if found := quoted(content(document), complaint, &budget); found != nil {
			return spotOf(found)
		}
	}
	for _, document := range p.nodes {
		root := content(document)
		if id := yamlID(root); id != "" && strings.Contains(complaint, id) {
			return spotOf(root)
		}
	}
	return p.firstSpot()
}

// quoted finds the value that stands in a text in quotation marks.
func quoted(node *yaml.Node, text string, budget *int) *yaml.Node {
	if *budget--; node == nil || *budget < 0 {
		return nil
	}
	if node.Kind == yaml.ScalarNode && node.Value != "" && strings.Contains(text, strconv.Quote(node.Value)) {
		return node
	}
	step := 1
	first := 0
	if node.Kind == yaml.MappingNode {
		first, step = 1, 2
	}
	for n := first; n < len(node.Content); n += step {
		if found := quoted(node.Content[n], text, budget); found != nil {
			return found
		}
	}
	return nil
}

var (
	lineThen  = regexp.MustCompile(`line (\d+): `)
	lineAlone = regexp.MustCompile(`line (\d+)`)
)

// lineIn gives the line that an error of the YAML parser or of the loader speaks of; 0 when it speaks of none.
func lineIn(text string) int {
	match := lineThen.FindStringSubmatch(text)
	if match == nil {
		match = lineAlone.FindStringSubmatch(text)
	}
	if match == nil {
		return 0
	}
	line, err := strconv.Atoi(match[1])
	if err != nil {
		return 0
	}
	return line
}
