package schema

import (
	"strings"

	"go.yaml.in/yaml/v4"
)

// entry is a field of a mapping.
type entry struct {
	name       string
	key, value *yaml.Node
}

// entries lists a mapping's fields, with those of merge keys (<<) behind its own. Fields that are given twice are
// problems. Each is taken off the budget here, used or not.
func (d *decoder) entries(n *yaml.Node, at string, depth int) ([]entry, bool) {
	if n.Kind != yaml.MappingNode {
		d.problem(d.position(n), "%s must be a mapping, not %s", orDocument(at), described(n))
		return nil, false
	}
	if n.Style&yaml.TaggedStyle != 0 {
		d.problem(d.position(n), "%s bears the tag %s, and tags are not read; leave it out", orDocument(at), shown(n.Tag))
		return nil, false
	}
	own := make([]entry, 0, len(n.Content)/2)
	have := make(map[string]*yaml.Node, len(n.Content)/2)
	var merges []*yaml.Node
	glued := false
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		name := target(key)
		if !d.spend(name, depth) {
			return nil, false
		}
		before, twice := have[name.Value]
		switch {
		case name.Kind == yaml.ScalarNode && name.ShortTag() == "!!merge":
			merges = append(merges, value)
		case name.Kind != yaml.ScalarNode || isNull(name):
			d.problem(d.position(key), "a field's name in %s must be a text, not %s", orDocument(at), described(name))
		case glued && (twice || name.Value == "apiVersion"):
		case at == "" && (twice && name.Value == "apiVersion" || strings.HasPrefix(name.Value, "---")):
			glued = true
			d.problem(d.position(key), "another document seems to begin here; put --- on a line of its own before it")
		case twice:
			d.problem(d.position(key), "%s is given twice; the first is in line %d", cut(join(at, name.Value)), before.Line)
		default:
			have[name.Value] = key
			own = append(own, entry{name.Value, key, value})
		}
	}
	for _, merge := range merges {
		own = d.merge(own, have, merge, at, depth)
	}
	return own, !d.over
}

// merge adds the fields of a merged mapping, or of a list of them, that aren't there yet.
func (d *decoder) merge(own []entry, have map[string]*yaml.Node, merged *yaml.Node, at string, depth int) []entry {
	if !d.spend(merged, depth) {
		return own
	}
	const want = "the merge key << in %s takes a mapping or a list of them, not %s"
	switch from := target(merged); from.Kind {
	case yaml.SequenceNode:
		for _, each := range from.Content {
			if target(each).Kind != yaml.MappingNode {
				d.problem(d.position(each), want, orDocument(at), described(target(each)))
				continue
			}
			own = d.merge(own, have, each, at, depth+1)
		}
	case yaml.MappingNode:
		more, _ := d.entries(from, at, depth+1)
		for _, e := range more {
			if have[e.name] == nil {
				have[e.name] = e.key
				own = append(own, e)
			}
		}
	default:
		d.problem(d.position(merged), want, orDocument(at), described(from))
	}
	return own
}

func orDocument(at string) string {
	if at == "" {
		return "the document"
	}
	return at
}
