package sealed

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"
)

// structural are keys whose values say what a text is and are no secret. Hiding them in every log would hide the versions and
// kinds of everything else.
var structural = []string{"apiVersion", "kind", "op"}

// Scalars gives the values in a YAML or JSON text: every scalar that is not a mapping's key or the value of a structural one,
// as written, and the text as a whole when it is no YAML. Sorted, nothing twice, blank ones left out.
func Scalars(data []byte) []string {
	var values []string
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	for {
		var document yaml.Node
		err := decoder.Decode(&document)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			values = append(values, strings.TrimSpace(string(data)))
			break
		}
		values = collect(&document, values, 0)
	}
	slices.Sort(values)
	values = slices.Compact(values)
	return slices.DeleteFunc(values, func(value string) bool { return strings.TrimSpace(value) == "" })
}

// maxDepth bounds the walk; no config is as deep.
const maxDepth = 200

func collect(node *yaml.Node, values []string, depth int) []string {
	if depth > maxDepth {
		return values
	}
	switch node.Kind {
	case yaml.ScalarNode:
		return append(values, node.Value)
	case yaml.MappingNode:
		for n := 0; n+1 < len(node.Content); n += 2 {
			if node.Content[n+1].Kind == yaml.ScalarNode && slices.Contains(structural, node.Content[n].Value) {
				continue
			}
			values = collect(node.Content[n+1], values, depth+1)
		}
	case yaml.DocumentNode, yaml.SequenceNode:
		for _, child := range node.Content {
			values = collect(child, values, depth+1)
		}
	}
	return values
}
