package schema

import (
	"reflect"
	"strings"
)

// field is one field of a struct as it stands in YAML.
type field struct {
	name     string
	index    int
	required bool
	// form is of the scalar: of the field itself, of a list's items, or of a mapping's values. keys is of a mapping's keys.
	form, keys *format
}

// layout is what a struct looks like in YAML.
type layout struct {
	fields []field
	byName map[string]int
	names  []string
}

// layouts remembers the layout of each struct for the time of one Load.
type layouts struct {
	formats map[string]*format
	byType  map[reflect.Type]*layout
}

func newLayouts() *layouts {
	return &layouts{formats: allFormats(), byType: map[reflect.Type]*layout{}}
}

// of gives a struct's layout. A field without omitempty is required; one named "-" is not read.
func (l *layouts) of(t reflect.Type) *layout {
	if known, ok := l.byType[t]; ok {
		return known
	}
	made := &layout{byName: map[string]int{}}
	for i := range t.NumField() {
		name, options, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		if name == "-" || name == "" {
			continue
		}
		made.byName[name] = len(made.fields)
		made.names = append(made.names, name)
		made.fields = append(made.fields, field{name: name, index: i, required: options != "omitempty",
			form: l.formats[t.Field(i).Tag.Get("is")], keys: l.formats[t.Field(i).Tag.Get("keys")]})
	}
	l.byType[t] = made
	return made
}

// whereIs gives the path at which a field of that name stands somewhere under a struct, if there is exactly one such
// place: the hint for a field that is spelt right and stands at the wrong depth.
func (l *layouts) whereIs(t reflect.Type, name string) string {
	found := ""
	var walk func(t reflect.Type, at string, depth int)
	walk = func(t reflect.Type, at string, depth int) {
		for t.Kind() == reflect.Pointer {
			t = t.Elem()
		}
		if t.Kind() != reflect.Struct || depth > 6 || found == "-" {
			return
		}
		shape := l.of(t)
		for _, f := range shape.fields {
			here := join(at, f.name)
			if f.name == name {
				if found != "" {
					found = "-"
					return
				}
				found = here
			}
			walk(t.Field(f.index).Type, here, depth+1)
		}
	}
	walk(t, "", 0)
	if found == "-" {
		return ""
	}
	return found
}

// join puts a field's name after a path.
func join(at, name string) string {
	if at == "" {
		return name
	}
	return at + "." + name
}

// parentPath gives the path of what a field stands in.
func parentPath(at string) string {
	if i := strings.LastIndexAny(at, ".["); i > 0 {
		return at[:i]
	}
	return ""
}
