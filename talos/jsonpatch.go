package talos

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"
)

// listProblem refuses a patch whose document is a list: a JSON patch, or several documents written as one list.
func listProblem(patch *loadedPatch, root *yaml.Node) error {
	for _, item := range root.Content {
		if lookUp(item, []string{"op"}) != nil {
			if patch.sealed {
				return patch.words(nil, "JSON patches (RFC 6902) are not applied; write a strategic-merge patch")
			}
			return jsonPatchProblem(root)
		}
	}
	return errors.New("a patch is one mapping, or several documents with --- between them, and this is a list")
}

// jsonPatchProblem refuses a JSON patch (RFC 6902) and shows the strategic-merge patch that does the same, as far as
// there is one. Talos refuses JSON patches on configs of several documents, which all configs since contract v1.12 are.
func jsonPatchProblem(root *yaml.Node) error {
	var merged *yaml.Node
	for _, operation := range root.Content {
		step, ok := strategicForm(operation)
		if !ok {
			merged = nil
			break
		}
		merged = mergeNodes(merged, step)
	}
	if merged == nil {
		return errors.New("JSON patches (RFC 6902) are not applied, because Talos refuses them on configs of several documents; write the fields as they stand in the config (strategic merge), and '$patch: delete' in the place of what is to go")
	}
	for _, field := range slices.Sorted(keysOf(owned)) { // whose values are not repeated
		if key, _ := locate(merged, strings.SplitN(field, ".", 3)); key != nil {
			return fmt.Errorf("JSON patches (RFC 6902) are not applied, and %s comes from %s; a patch may not set or delete it", field, owned[field])
		}
	}
	text, err := yaml.Marshal(merged)
	if err != nil {
		return errors.New("JSON patches (RFC 6902) are not applied; write a strategic-merge patch")
	}
	return fmt.Errorf("JSON patches (RFC 6902) are not applied, because Talos refuses them on configs of several documents; write instead: %s", oneLine(text))
}

// oneLine writes YAML in flow style, since an error is one line.
func oneLine(text []byte) string {
	var node yaml.Node
	if yaml.Unmarshal(text, &node) != nil {
		return strings.TrimSpace(string(text))
	}
	flow(&node)
	out, err := yaml.Marshal(&node)
	if err != nil {
		return strings.TrimSpace(string(text))
	}
	return strings.Join(strings.Fields(string(out)), " ")
}

func flow(node *yaml.Node) {
	if node.Kind == yaml.MappingNode || node.Kind == yaml.SequenceNode {
		node.Style = yaml.FlowStyle
	}
	for _, child := range node.Content {
		flow(child)
	}
}

// strategicForm turns one operation into nested keys. Places in lists have no such form, except the end ("-").
func strategicForm(operation *yaml.Node) (*yaml.Node, bool) {
	verb, where := lookUp(operation, []string{"op"}), lookUp(operation, []string{"path"})
	if verb == nil || where == nil || !strings.HasPrefix(where.Value, "/") {
		return nil, false
	}
	value := lookUp(operation, []string{"value"})
	switch verb.Value {
	case "add", "replace":
		if value == nil {
			return nil, false
		}
	case "remove":
		value = mapping("$patch", &yaml.Node{Kind: yaml.ScalarNode, Value: "delete"})
	default:
		return nil, false
	}
	keys := strings.Split(where.Value, "/")[1:]
	for n := len(keys) - 1; n >= 0; n-- {
		key := strings.ReplaceAll(strings.ReplaceAll(keys[n], "~1", "/"), "~0", "~")
		switch {
		case key == "-" && n == len(keys)-1:
			value = &yaml.Node{Kind: yaml.SequenceNode, Content: []*yaml.Node{value}}
		case key == "" || key == "-" || isIndex(key):
			return nil, false
		default:
			value = mapping(key, value)
		}
	}
	return value, true
}

func isIndex(key string) bool {
	_, err := strconv.Atoi(key)
	return err == nil
}

func mapping(key string, value *yaml.Node) *yaml.Node {
	return &yaml.Node{Kind: yaml.MappingNode, Content: []*yaml.Node{{Kind: yaml.ScalarNode, Value: key}, value}}
}

// mergeNodes lays one nest of keys over another.
func mergeNodes(into, from *yaml.Node) *yaml.Node {
	switch {
	case into == nil:
		return from
	case into.Kind == yaml.SequenceNode && from.Kind == yaml.SequenceNode:
		into.Content = append(into.Content, from.Content...)
		return into
	case into.Kind != yaml.MappingNode || from.Kind != yaml.MappingNode:
		return from
	}
	for n := 0; n+1 < len(from.Content); n += 2 {
		found := false
		for m := 0; m+1 < len(into.Content); m += 2 {
			if into.Content[m].Value == from.Content[n].Value {
				into.Content[m+1], found = mergeNodes(into.Content[m+1], from.Content[n+1]), true
			}
		}
		if !found {
			into.Content = append(into.Content, from.Content[n], from.Content[n+1])
		}
	}
	return into
}
