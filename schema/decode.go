package schema

import (
	"fmt"
	"reflect"
	"strconv"
	"time"

	"go.yaml.in/yaml/v4"

	"ichor.maesh.dev/internal/printable"
)

// decoder reads one document's nodes into a kind. It goes on after a problem, so that all of them are shown at once.
type decoder struct {
	file    string
	layouts *layouts
	budget  *budget
	root    reflect.Type
	// fields are the positions by path; base is the document's own.
	fields map[string]Position
	base   Position
	// texts are the places of the characters of expressions; lines are those of the file.
	texts    map[string]Text
	lines    *fileLines
	problems []located
	dropped  int
	refs     []reference
	// over is set when a bound is passed: nothing more is read then. lost is set when files may be named in what can't be read.
	over, lost bool
}

// located is a problem at a place, before it is known to whom it belongs.
type located struct {
	at      Position
	message string
}

// reference is a file that a document refers to.
type reference struct {
	from, to string
	at       Position
	patch    bool
}

func (d *decoder) position(n *yaml.Node) Position {
	return Position{File: d.file, Line: n.Line, Column: n.Column}
}

func (d *decoder) problem(at Position, format string, args ...any) {
	if len(d.problems) >= maxProblems {
		d.dropped++
		return
	}
	d.problems = append(d.problems, located{at, fmt.Sprintf(format, args...)})
}

// at gives the position of a field by its path, or of what is around it.
func (d *decoder) at(field string) Position {
	return Source{Position: d.base, Fields: d.fields}.At(field)
}

// spend takes a value off the budget.
func (d *decoder) spend(n *yaml.Node, depth int) bool {
	if d.over {
		return false
	}
	d.budget.document--
	d.budget.file--
	d.budget.text -= len(target(n).Value)
	message := ""
	switch {
	case depth > MaxDepth:
		message = fmt.Sprintf("the document nests more than %d levels deep; make it flatter", MaxDepth)
	case d.budget.document < 0:
		message = fmt.Sprintf("the document holds more than %d names and values once its aliases are followed; split it, or use fewer aliases", MaxValues)
	case d.budget.text < 0:
		message = fmt.Sprintf("the document holds more than %d bytes once its aliases are followed; split it, or use fewer aliases", MaxExpandedSize)
	case d.budget.file < 0:
		d.over = true // the file's problem, and said there
		return false
	default:
		return true
	}
	d.over = true
	d.problems = append(d.problems, located{d.position(n), message}) // listed whatever else is
	return false
}

// value reads a node into a Go value. key is the node's key, or the node itself in a list; at is its path.
func (d *decoder) value(key, n *yaml.Node, into reflect.Value, form field, at string, depth int) {
	if !d.spend(n, depth) {
		return
	}
	n = target(n)
	if n.Kind == yaml.ScalarNode {
		d.fields[at] = d.position(n)
	} else {
		d.fields[at] = d.position(key)
	}
	if into.Kind() == reflect.Pointer {
		into.Set(reflect.New(into.Type().Elem()))
		into = into.Elem()
	}
	switch into.Interface().(type) {
	case Duration, IntOrPercent, time.Time:
		d.scalar(n, into, form, at)
		return
	}
	switch into.Kind() {
	case reflect.Struct:
		d.structure(key, n, into, at, depth)
	case reflect.Slice:
		d.list(n, into, form, at, depth)
	case reflect.Map:
		d.mapping(n, into, form, at, depth)
	default:
		d.scalar(n, into, form, at)
	}
}

// structure reads a mapping with known fields.
func (d *decoder) structure(key, n *yaml.Node, into reflect.Value, at string, depth int) {
	if n.Kind != yaml.MappingNode {
		d.problem(d.position(n), "%s must be a mapping, not %s%s", orDocument(at), described(n), d.asWritten(into.Type(), n))
		d.lost = d.lost || mayHoldPatches(into.Type())
		delete(d.fields, at) // what isn't read has no fields that could agree or not
		return
	}
	entries, ok := d.entries(n, at, depth)
	if !ok {
		return
	}
	shape := d.layouts.of(into.Type())
	given := make([]bool, len(shape.fields))
	empty := make([]*yaml.Node, len(shape.fields))
	for _, e := range entries {
		i, known := shape.byName[e.name]
		if !known {
			if meant, ok := shape.byName[d.unknown(e, at, shape)]; ok {
				given[meant] = true // it is there under another name, and that was said
				d.lost = d.lost || mayHoldPatches(into.Type().Field(shape.fields[meant].index).Type)
			}
			continue
		}
		if isNull(e.value) {
			empty[i] = e.key
			continue // an empty value is as good as none
		}
		given[i] = true
		f := shape.fields[i]
		d.value(e.key, e.value, into.Field(f.index), f, join(at, e.name), depth+1)
	}
	for i, f := range shape.fields {
		switch name := join(at, f.name); {
		case !f.required || given[i] || d.over:
		case empty[i] != nil:
			d.problem(d.position(empty[i]), "%s is empty%s", name, d.wanted(into.Type().Field(f.index).Type, f))
		default:
			d.problem(d.position(key), "%s is missing%s", name, d.wanted(into.Type().Field(f.index).Type, f))
		}
	}
	d.refer(into, at)
}

// unknown refuses a field that isn't known, and gives the name of the one that was meant; empty when that isn't clear.
func (d *decoder) unknown(e entry, at string, shape *layout) string {
	where := at
	if where == "" {
		where = "the document"
	}
	name := shown(e.name)
	if hint := didYouMean(e.name, shape.names); hint != "" {
		d.problem(d.position(e.key), "%s has no field %s%s", where, name, hint)
		return nearest(e.name, shape.names)
	}
	if elsewhere := d.layouts.whereIs(d.root, e.name); elsewhere != "" {
		d.problem(d.position(e.key), "%s has no field %s; it belongs to %s", where, name, parentPath(elsewhere))
		return ""
	}
	d.problem(d.position(e.key), "%s has no field %s; its fields are %s", where, name, listed(shape.names, "and"))
	return ""
}

// refer remembers the file that a reference or patch names.
func (d *decoder) refer(into reflect.Value, at string) {
	name, patch := "", false
	switch v := into.Interface().(type) {
	case FileRef:
		name = v.File
	case Patch:
		name, patch = v.File, true
	}
	if name == "" {
		return
	}
	where := d.at(join(at, "file"))
	to, err := resolveRef(d.file, name)
	if err != nil {
		d.lost = true
		d.problem(where, "%s: %s", join(at, "file"), err)
		return
	}
	d.refs = append(d.refs, reference{from: d.file, to: to, at: where, patch: patch})
}

func (d *decoder) list(n *yaml.Node, into reflect.Value, form field, at string, depth int) {
	if n.Kind != yaml.SequenceNode {
		hint := "write it in brackets"
		if n.Kind == yaml.MappingNode {
			hint = "begin each item with a dash"
		}
		d.problem(d.position(n), "%s must be a list, not %s; %s", at, described(n), hint)
		d.lost = d.lost || mayHoldPatches(into.Type())
		return
	}
	items := reflect.MakeSlice(into.Type(), len(n.Content), len(n.Content))
	for i, item := range n.Content {
		here := at + "[" + strconv.Itoa(i) + "]"
		if isNull(item) {
			d.problem(d.position(item), "%s is empty; leave it out", here)
			continue
		}
		d.value(item, item, items.Index(i), form, here, depth+1)
		if d.over {
			return
		}
	}
	into.Set(items)
}

// mapping reads a mapping with free keys: of strings, or of anything (an inline patch).
func (d *decoder) mapping(n *yaml.Node, into reflect.Value, form field, at string, depth int) {
	entries, ok := d.entries(n, at, depth)
	if !ok {
		return
	}
	if into.Type().Elem().Kind() == reflect.Interface {
		into.Set(reflect.ValueOf(d.freeMapping(entries, at, depth)))
		return
	}
	texts := reflect.MakeMapWithSize(into.Type(), len(entries))
	for _, e := range entries {
		here := join(at, e.name)
		if form.keys != nil {
			if err := form.keys.test(e.name); err != nil {
				d.problem(d.position(e.key), "the key %s in %s can't stand; %s", shown(e.name), at, err)
				continue
			}
		}
		text, before := reflect.New(into.Type().Elem()).Elem(), len(d.problems)+d.dropped
		d.value(e.key, e.value, text, field{form: form.form}, here, depth+1)
		if len(d.problems)+d.dropped == before {
			texts.SetMapIndex(reflect.ValueOf(e.name), text)
		}
	}
	into.Set(texts)
}

// scalar reads a text, a number, a truth value or one of the types that are written as a text.
func (d *decoder) scalar(n *yaml.Node, into reflect.Value, form field, at string) {
	if n.Kind != yaml.ScalarNode {
		hint := ""
		if form.form != nil && form.form.want != "" {
			hint = "; it must be " + form.form.want
		}
		d.problem(d.position(n), "%s must be %s, not %s%s", at, kindOf(into), described(n), hint)
		return
	}
	if n.Style&yaml.TaggedStyle != 0 && n.Tag != "!!str" {
		d.problem(d.position(n), "%s bears the tag %s, and tags are not read; leave it out", at, shown(n.Tag))
		return
	}
	var err error
	switch into.Interface().(type) {
	case time.Time:
		var read time.Time
		if read, err = parseTime(n.Value); err == nil {
			into.Set(reflect.ValueOf(read))
		}
	case Duration:
		var read Duration
		if read, err = parseDuration(n); err == nil {
			into.Set(reflect.ValueOf(read))
		}
	case IntOrPercent:
		var read IntOrPercent
		if read, err = parseIntOrPercent(n); err == nil {
			into.Set(reflect.ValueOf(read))
		}
	default:
		d.plainScalar(n, into, form.form, at)
		return
	}
	if err != nil {
		d.problem(d.position(n), "%s is %s; %s", at, shown(n.Value), err)
	}
}

func (d *decoder) plainScalar(n *yaml.Node, into reflect.Value, form *format, at string) {
	switch into.Kind() {
	case reflect.Bool:
		if n.ShortTag() != "!!bool" {
			d.problem(d.position(n), "%s must be true or false, not %s%s", at, described(n), meantTruth(n))
			return
		}
		into.SetBool(n.Value[0] == 't' || n.Value[0] == 'T')
	case reflect.Int:
		number, err := strconv.Atoi(n.Value)
		if n.ShortTag() != "!!int" || err != nil || strconv.Itoa(number) != n.Value {
			hint := ""
			if n.ShortTag() == "!!str" && err == nil {
				hint = "; write it without quotes"
			}
			d.problem(d.position(n), "%s must be a whole number, not %s%s", at, described(n), hint)
			return
		}
		if form != nil {
			if err := form.testNumber(number); err != nil {
				d.problem(d.position(n), "%s is %d; %s", at, number, err)
				return
			}
		}
		into.SetInt(int64(number))
	case reflect.String:
		d.text(n, into, form, at)
	default:
		panic(fmt.Sprintf("no kind has a field of type %s", into.Type()))
	}
}

func (d *decoder) text(n *yaml.Node, into reflect.Value, form *format, at string) {
	if tag := n.ShortTag(); tag != "!!str" && tag != "!!timestamp" {
		hint := "put it in quotes"
		if form != nil && form.test(n.Value) != nil {
			hint = "it must be " + form.want // quotes alone would not mend it
		}
		d.problem(d.position(n), "%s must be a text, not %s; %s", at, described(n), hint)
		return
	}
	value := n.Value
	if form != nil {
		if err := form.test(value); err != nil {
			d.lost = d.lost || form == d.layouts.formats["path"]
			d.problem(d.position(n), "%s is %s; %s", at, shown(value), err)
			return
		}
		if form.normal != nil {
			value = form.normal(value)
		}
		if form == d.layouts.formats["expression"] {
			d.texts[at] = d.lines.text(d.file, n)
		}
	}
	into.SetString(value)
}

// shown is a value as it may stand in a problem.
func shown(value string) string { return strconv.Quote(cut(value)) }

func cut(value string) string {
	value = printable.Text(value)
	if runes := []rune(value); len(runes) > maxShown {
		return string(runes[:maxShown]) + "…"
	}
	return value
}

// target follows an alias.
func target(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

func isNull(n *yaml.Node) bool {
	n = target(n)
	return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" && n.Style&yaml.TaggedStyle == 0
}
