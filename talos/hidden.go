package talos

import (
	"maps"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"
)

// minHiddenValue is the length of the shortest value of a sealed patch that is hidden wherever else it appears too.
const minHiddenValue = 6

// hiddenPaths are the values that came from sealed patches: the places where they went, and long ones themselves. What
// stands in such a place is hidden whoever put it there, since an older value of the same patch is as secret.
type hiddenPaths struct {
	paths  map[string]bool
	values map[string]bool
	// all are all values in lower case, for words.
	all []string
}

// step between list items in a path: lists are merged, so an item's number means nothing.
const anyItem = "[]"

// add notes every value in a patch document.
func (h *hiddenPaths) add(document *yaml.Node) {
	root := content(document)
	if root == nil {
		return
	}
	if h.paths == nil {
		h.paths, h.values = map[string]bool{}, map[string]bool{}
	}
	budget := maxVisits
	h.walk(root, yamlID(root), &budget)
}

// walk notes the values under node; where it has to give up, the whole place is hidden.
func (h *hiddenPaths) walk(node *yaml.Node, path string, budget *int) {
	if *budget--; *budget < 0 {
		h.paths[path] = true
		return
	}
	switch node.Kind {
	case yaml.AliasNode:
		h.walk(node.Alias, path, budget)
	case yaml.MappingNode:
		for n := 0; n+1 < len(node.Content); n += 2 {
			if node.Content[n].Value == "<<" {
				h.walk(node.Content[n+1], path, budget)
				continue
			}
			h.walk(node.Content[n+1], join(path, node.Content[n].Value), budget)
		}
	case yaml.SequenceNode:
		for _, child := range node.Content {
			h.walk(child, join(path, anyItem), budget)
		}
	case yaml.ScalarNode:
		h.paths[path] = true
		h.all = append(h.all, strings.ToLower(node.Value))
		if len(node.Value) >= minHiddenValue {
			h.values[node.Value] = true
		}
	}
}

// covers says whether the value at path must be hidden. A place inside or around a hidden one is hidden too: the encoder
// may write a value in another shape than the patch did.
func (h *hiddenPaths) covers(path, value string) bool {
	if len(h.paths) == 0 {
		return false
	}
	for at := path; ; {
		if h.paths[at] {
			return true
		}
		cut := strings.LastIndex(at, pathSeparator)
		if cut < 0 {
			break
		}
		at = at[:cut]
	}
	for hidden := range h.values {
		if strings.Contains(value, hidden) {
			return true
		}
	}
	return false
}

// with gives what both hide.
func (h hiddenPaths) with(other hiddenPaths) hiddenPaths {
	both := hiddenPaths{paths: maps.Clone(h.paths), values: maps.Clone(h.values), all: slices.Concat(h.all, other.all)}
	if both.paths == nil {
		both.paths, both.values = map[string]bool{}, map[string]bool{}
	}
	maps.Copy(both.paths, other.paths)
	maps.Copy(both.values, other.values)
	return both
}

// words hides, in a text that may quote values or parts of them, every word that occurs in a value of a sealed patch.
func (h *hiddenPaths) words(text string) string {
	if len(h.all) == 0 {
		return text
	}
	const minWord = 3
	return word.ReplaceAllStringFunc(text, func(found string) string {
		lower := strings.ToLower(found)
		if len(found) >= minWord && slices.ContainsFunc(h.all, func(value string) bool { return strings.Contains(value, lower) }) {
			return "(hidden)"
		}
		return found
	})
}

var word = regexp.MustCompile(`[\pL\pN]+`)

const pathSeparator = "\x00"

func join(path, key string) string { return path + pathSeparator + key }

// yamlID names a document as documentID does. What names a document is not itself hidden.
func yamlID(root *yaml.Node) string {
	kind := kindOf(root)
	if kind == "" {
		return ""
	}
	if name := lookUp(root, []string{"name"}); name != nil && name.Kind == yaml.ScalarNode {
		return kind + "/" + name.Value
	}
	return kind
}
