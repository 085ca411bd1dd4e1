package schema

import (
	"math"
	"reflect"

	"go.yaml.in/yaml/v4"
)

// freeMapping reads what has no fields of its own here: an inline patch, a disk selector. It gives what JSON can hold:
// map[string]any, []any, string, bool, int64, uint64 and float64, and nil.
func (d *decoder) freeMapping(entries []entry, at string, depth int) map[string]any {
	made := make(map[string]any, len(entries))
	for _, e := range entries {
		made[e.name] = d.free(e.value, join(at, e.name), depth+1)
		if d.over {
			break
		}
	}
	return made
}

func (d *decoder) free(n *yaml.Node, at string, depth int) any {
	if !d.spend(n, depth) {
		return nil
	}
	n = target(n)
	switch n.Kind {
	case yaml.MappingNode:
		entries, ok := d.entries(n, at, depth)
		if !ok {
			return nil
		}
		return d.freeMapping(entries, at, depth)
	case yaml.SequenceNode:
		items := make([]any, 0, min(len(n.Content), MaxValues))
		for _, item := range n.Content {
			items = append(items, d.free(item, at+"[]", depth+1))
			if d.over {
				break
			}
		}
		return items
	default:
		return d.freeScalar(n, at)
	}
}

func (d *decoder) freeScalar(n *yaml.Node, at string) any {
	if n.Style&yaml.TaggedStyle != 0 && n.Tag != "!!str" {
		d.problem(d.position(n), "%s bears the tag %s, and tags are not read; leave it out", cut(at), shown(n.Tag))
		return nil
	}
	switch n.ShortTag() {
	case "!!null":
		return nil
	case "!!bool", "!!int", "!!float":
		var made any
		if err := n.Decode(&made); err != nil {
			d.problem(d.position(n), "%s can't be read as a number or truth value; put it in quotes", cut(at))
			return nil
		}
		return d.jsonNumber(n, made, at)
	default: // a text; a date is one too
		return n.Value
	}
}

// jsonNumber gives a number in a type that JSON and CEL take.
func (d *decoder) jsonNumber(n *yaml.Node, made any, at string) any {
	switch v := reflect.ValueOf(made); v.Kind() {
	case reflect.Int, reflect.Int64:
		return v.Int()
	case reflect.Uint64:
		return v.Uint()
	case reflect.Float64:
		if math.IsNaN(v.Float()) || math.IsInf(v.Float(), 0) {
			d.problem(d.position(n), "%s is %s, which no config can hold; put it in quotes if it is a text", cut(at), shown(n.Value))
			return nil
		}
		return v.Float()
	default:
		return made
	}
}
