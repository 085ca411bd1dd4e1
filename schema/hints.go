package schema

import (
	"fmt"
	"reflect"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"
)

// wanted says what a field that isn't there must be.
func (d *decoder) wanted(of reflect.Type, f field) string {
	for of.Kind() == reflect.Pointer {
		of = of.Elem()
	}
	switch {
	case f.form != nil && f.form.want != "":
		return "; it must be " + f.form.want
	case of == reflect.TypeFor[time.Time](), of.Kind() != reflect.Struct:
		return ""
	}
	var needed []string
	for _, inner := range d.layouts.of(of).fields {
		if inner.required {
			needed = append(needed, inner.name)
		}
	}
	if len(needed) == 0 {
		return ""
	}
	return "; what belongs to it stands below it, indented: " + listed(needed, "and")
}

// mayHoldPatches says whether patches may be named in a field, so that what they name is unknown when it can't be read.
func mayHoldPatches(t reflect.Type) bool {
	switch t {
	case reflect.TypeFor[Patch](), reflect.TypeFor[[]Patch](), reflect.TypeFor[PatchesSpec]():
		return true
	}
	return false
}

// meantTruth is the hint for a text that means true or false elsewhere.
func meantTruth(n *yaml.Node) string {
	switch strings.ToLower(n.Value) {
	case "true", "yes", "on", "y":
		return "; write true, without quotes"
	case "false", "no", "off", "n":
		return "; write false, without quotes"
	}
	return ""
}

// asWritten is the hint for a mapping that has one form or two.
func (d *decoder) asWritten(of reflect.Type, n *yaml.Node) string {
	switch of {
	case reflect.TypeFor[Patch]():
		return "; write it as in file: patches/time.yaml"
	case reflect.TypeFor[FileRef]():
		return "; write it as in {file: secrets.age}"
	case reflect.TypeFor[ClusterRef](), reflect.TypeFor[NameRef]():
		return "; write it as in {name: prod}"
	}
	if n.Kind == yaml.SequenceNode {
		return "; write its fields without dashes"
	}
	return ""
}

// kindOf says what a field wants, for a problem.
func kindOf(into reflect.Value) string {
	switch into.Interface().(type) {
	case time.Time:
		return `a time, as in 2026-11-29T10:00:00Z`
	case Duration:
		return `a duration, as in 10m`
	case IntOrPercent:
		return `a number or a percentage, as in 1 or "25%"`
	}
	switch into.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.Int:
		return "a whole number"
	}
	return "a text"
}

// described says what a node is, for a problem. A text isn't shown: what stands at the wrong place may be a secret.
func described(n *yaml.Node) string {
	switch {
	case n.Kind == yaml.MappingNode:
		return "a mapping"
	case n.Kind == yaml.SequenceNode:
		return "a list"
	case isNull(n):
		return "nothing"
	}
	switch n.ShortTag() {
	case "!!int", "!!float":
		return "the number " + cut(n.Value)
	case "!!bool":
		return n.Value
	case "!!str", "!!timestamp":
		if count := len([]rune(n.Value)); count != 1 {
			return fmt.Sprintf("a text of %d characters", count)
		}
		return "a text of 1 character"
	}
	return "a value with the tag " + shown(n.Tag)
}
