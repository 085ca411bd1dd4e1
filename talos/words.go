package talos

import (
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/agnivade/levenshtein"
	"go.yaml.in/yaml/v4"

	"github.com/siderolabs/talos/pkg/machinery/config/configloader"
	"github.com/siderolabs/talos/pkg/machinery/config/types/v1alpha1"
)

// unknownKeys is how the loader begins its list of fields that a document has and Talos doesn't know.
const unknownKeys = "unknown keys found during decoding:"

var (
	unregistered = regexp.MustCompile(`"([^"]*)" "([^"]*)": not registered`)
	wrongType    = regexp.MustCompile("(?s)^cannot (?:construct|unmarshal) !!(\\w+)(?: `(.*)`)? into (\\S+)$")
	documentHead = regexp.MustCompile(`^error decoding document \S* \(line \d+\): `)
)

// loaderProblem says in plain words, and where, why Talos's loader doesn't take a patch.
func loaderProblem(patch *loadedPatch, err error) (spot, string) {
	text := err.Error()
	if strings.Contains(text, unknownKeys) {
		return unknownProblem(patch)
	}
	if match := unregistered.FindStringSubmatch(text); match != nil {
		return patch.spotOfValue(fmt.Sprintf("%q", match[1])),
			fmt.Sprintf("Talos has no documents of kind %q with apiVersion %q", match[1], match[2])
	}
	where := patch.spotOfLine(lineIn(text))
	switch {
	case strings.Contains(text, "missing apiVersion"):
		return where, "the document has a kind and no apiVersion; Talos's own is v1alpha1"
	case strings.Contains(text, "missing kind"):
		return where, "the document has no kind; only the machine config itself, with machine: and cluster:, has none"
	}
	for _, list := range []string{"construct errors:", "unmarshal errors:"} {
		if _, listed, ok := strings.Cut(text, list); ok {
			return where, typeProblems(listed)
		}
	}
	return where, strings.TrimPrefix(documentHead.ReplaceAllString(text, ""), "decode error: ")
}

// typeProblems says which values have the wrong type: the first without its line, which the place tells.
func typeProblems(listed string) string {
	var said []string
	for _, line := range strings.Split(strings.TrimSpace(listed), "\n") {
		line = strings.TrimSpace(line)
		head, rest, ok := strings.Cut(line, ": ")
		if !ok || !strings.HasPrefix(head, "line ") {
			head, rest = "", line
		}
		if match := wrongType.FindStringSubmatch(rest); match != nil {
			rest = fmt.Sprintf("%s stands where %s is due", yamlName(match[1], match[2]), goName(match[3]))
		}
		if len(said) > 0 && head != "" {
			rest += " (" + head + ")"
		}
		said = append(said, rest)
	}
	return strings.Join(said, "; ")
}

func yamlName(tag, value string) string {
	names := map[string]string{"seq": "a list", "map": "a mapping", "int": "the number", "float": "the number", "bool": "the boolean",
		"str": "the text", "null": "nothing", "timestamp": "the time"}
	name, ok := names[tag]
	if !ok {
		name = "!!" + tag
	}
	if value != "" {
		name += fmt.Sprintf(" %q", value)
	}
	return name
}

func goName(kind string) string {
	kind = strings.TrimLeft(kind, "*")
	switch {
	case strings.HasPrefix(kind, "map["), strings.HasSuffix(kind, ".Args"):
		return "a mapping"
	case strings.HasPrefix(kind, "[]"), strings.HasSuffix(kind, "List"):
		return "a list"
	case kind == "bool":
		return "true or false"
	case kind == "string":
		return "text"
	case strings.HasPrefix(kind, "int"), strings.HasPrefix(kind, "uint"), strings.HasPrefix(kind, "float"):
		return "a number"
	}
	if dot := strings.LastIndexByte(kind, '.'); dot >= 0 {
		kind = kind[dot+1:]
	}
	return "a " + kind
}

// maxNamed bounds how many unknown fields are named.
const maxNamed = 5

// unknownProblem names the fields that Talos doesn't know, and where the first of them stands.
func unknownProblem(patch *loadedPatch) (spot, string) {
	budget := maxVisits
	for _, document := range patch.nodes {
		root := content(document)
		found := unknownFields(documentType(root), root, "", &budget)
		if len(found) == 0 {
			continue
		}
		var names []string
		for _, f := range found[:min(len(found), maxNamed)] {
			names = append(names, f.path+f.hint)
		}
		more := ""
		if len(found) > maxNamed {
			more = fmt.Sprintf(" and %d more", len(found)-maxNamed)
		}
		of := "the machine config"
		if id := yamlID(root); id != "" {
			of = id
		}
		return found[0].spot, fmt.Sprintf("Talos knows no field %s%s in %s", strings.Join(names, ", "), more, of)
	}
	return patch.firstSpot(), "it has fields that Talos doesn't know"
}

// documentType gives the type that Talos reads a document into; nil when it has none.
func documentType(root *yaml.Node) reflect.Type {
	kind := kindOf(root)
	if kind == "" {
		return reflect.TypeFor[v1alpha1.Config]()
	}
	head, err := yaml.Marshal(map[string]string{"apiVersion": scalarAt(root, "apiVersion"), "kind": kind})
	if err != nil {
		return nil
	}
	loaded, err := configloader.NewFromBytes(head)
	if err != nil || len(loaded.Documents()) != 1 {
		return nil
	}
	return reflect.TypeOf(loaded.Documents()[0])
}

func scalarAt(root *yaml.Node, key string) string {
	if value := lookUp(root, []string{key}); value != nil {
		return value.Value
	}
	return ""
}

type unknownField struct {
	path, hint string
	spot       spot
}

var unmarshaler = reflect.TypeFor[yaml.Unmarshaler]()

// unknownFields lists the keys that have no field in the type.
func unknownFields(kind reflect.Type, node *yaml.Node, above string, budget *int) []unknownField {
	for kind != nil && kind.Kind() == reflect.Pointer {
		kind = kind.Elem()
	}
	if node != nil && node.Kind == yaml.AliasNode {
		node = node.Alias
	}
	if *budget--; kind == nil || node == nil || *budget < 0 || above != "" && reflect.PointerTo(kind).Implements(unmarshaler) {
		return nil
	}
	var found []unknownField
	switch {
	case node.Kind == yaml.SequenceNode && kind.Kind() == reflect.Slice:
		for n, item := range node.Content {
			found = append(found, unknownFields(kind.Elem(), item, fmt.Sprintf("%s[%d]", above, n), budget)...)
		}
	case node.Kind == yaml.MappingNode && kind.Kind() == reflect.Map:
		for n := 0; n+1 < len(node.Content); n += 2 {
			found = append(found, unknownFields(kind.Elem(), node.Content[n+1], under(above, node.Content[n].Value), budget)...)
		}
	case node.Kind == yaml.MappingNode && kind.Kind() == reflect.Struct:
		found = unknownKeysOf(kind, node, above, budget)
	}
	return found
}

func under(above, key string) string {
	if above == "" {
		return key
	}
	return above + "." + key
}

func unknownKeysOf(kind reflect.Type, node *yaml.Node, above string, budget *int) []unknownField {
	known := yamlFields(kind)
	if known == nil {
		return nil
	}
	var found []unknownField
	for n := 0; n+1 < len(node.Content); n += 2 {
		key, value := node.Content[n], node.Content[n+1]
		if key.Value == "<<" || key.Value == "$patch" && value.Value == "delete" {
			continue
		}
		if field, ok := known[key.Value]; ok {
			found = append(found, unknownFields(field, value, under(above, key.Value), budget)...)
			continue
		}
		hint := ""
		if near := nearestField(key.Value, known); near != "" {
			hint = fmt.Sprintf(" (did you mean %s?)", near)
		}
		found = append(found, unknownField{under(above, key.Value), hint, spotOf(key)})
	}
	return found
}

// yamlFields gives the fields of a struct by their names in YAML; nil where it takes any name.
func yamlFields(kind reflect.Type) map[string]reflect.Type {
	fields := map[string]reflect.Type{}
	for _, field := range reflect.VisibleFields(kind) {
		name, options, _ := strings.Cut(field.Tag.Get("yaml"), ",")
		switch {
		case strings.Contains(options, "inline") && field.Type.Kind() == reflect.Map:
			return nil
		case name != "" && name != "-":
			fields[name] = field.Type
		}
	}
	return fields
}

// nearestField gives the field that was probably meant; none when two are equally near.
func nearestField(word string, fields map[string]reflect.Type) string {
	best, found := len(word)/3+1, ""
	for _, field := range slices.Sorted(maps.Keys(fields)) {
		switch distance := levenshtein.ComputeDistance(strings.ToLower(word), strings.ToLower(field)); {
		case distance < best:
			best, found = distance, field
		case distance == best && found != "":
			found = ""
		}
	}
	return found
}
