package talos

import "go.yaml.in/yaml/v4"

// lookUp gives the value at a path of keys, or nil.
func lookUp(node *yaml.Node, keys []string) *yaml.Node {
	_, value := locate(node, keys)
	return value
}

// locate gives the last key of a path of keys and its value, following aliases and merge keys; nil when there is none.
func locate(node *yaml.Node, keys []string) (key, value *yaml.Node) {
	budget := maxVisits
	return locateWithin(node, keys, &budget)
}

// maxVisits bounds a walk that follows aliases, which a few bytes can make endless. What a walk misses that way is caught
// on the patched config (checkOwned).
const maxVisits = 20_000

func locateWithin(node *yaml.Node, keys []string, budget *int) (key, value *yaml.Node) {
	if *budget--; node == nil || *budget < 0 {
		return nil, nil
	}
	switch node.Kind {
	case yaml.AliasNode:
		return locateWithin(node.Alias, keys, budget)
	case yaml.SequenceNode: // the value of a merge key may be a list
		for _, child := range node.Content {
			if key, value := locateWithin(child, keys, budget); key != nil {
				return key, value
			}
		}
		return nil, nil
	case yaml.MappingNode:
	default:
		return nil, nil
	}
	for n := 0; n+1 < len(node.Content); n += 2 {
		key, value := node.Content[n], node.Content[n+1]
		if key.Value == "<<" {
			if key, value := locateWithin(value, keys, budget); key != nil {
				return key, value
			}
		}
		if key.Value != keys[0] {
			continue
		}
		if len(keys) == 1 {
			return key, value
		}
		if key, value := locateWithin(value, keys[1:], budget); key != nil {
			return key, value
		}
	}
	return nil, nil
}

// kindOf gives the kind of a document; the machine config has none.
func kindOf(root *yaml.Node) string {
	if node := lookUp(root, []string{"kind"}); node != nil {
		return node.Value
	}
	return ""
}
