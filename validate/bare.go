package validate

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"

	"ichor.maesh.dev/schema"
)

// exampleName is what an object is called that has no name.
const exampleName = "example"

// bareFields gives an object of a kind that says no more than it must.
func bareFields(kind, name, cluster string) map[string]any {
	spec := map[string]any{}
	ref := map[string]any{"name": cluster}
	switch kind {
	case schema.KindCluster:
		spec = map[string]any{
			"id": bareID(name), "endpoint": "https://" + name + ".example.com:6443", "talosVersion": "v1.13.6", "kubernetesVersion": "v1.36.2",
			"controlPlane": map[string]any{"count": 3}, "secrets": map[string]any{"file": "secrets.age"},
		}
	case schema.KindMachine:
		spec = map[string]any{"clusterRef": ref, "role": "worker", "endpoint": name + ".example.com", "uuid": bareUUID(cluster + "/" + name)}
	case schema.KindBackup:
		spec = map[string]any{"clusterRef": ref, "destination": map[string]any{
			"s3": map[string]any{"endpoint": "https://s3.example.com", "bucket": "backups", "prefix": cluster},
		}}
	case schema.KindOperation:
		ref["id"] = bareID(cluster)
		spec = map[string]any{"clusterRef": ref, "createdAt": "2026-01-01T00:00:00Z", "expiresAt": "2026-01-01T12:00:00Z"}
	}
	return map[string]any{"apiVersion": schema.APIVersion, "kind": kind, "metadata": map[string]any{"name": name}, "spec": spec}
}

func bareID(name string) string {
	sum := sha256.Sum256([]byte(name))
	return fmt.Sprintf("%x", sum[:8])
}

func bareUUID(name string) string {
	sum := sha256.Sum256([]byte(name))
	return fmt.Sprintf("%x-%x-%x-%x-%x", sum[:4], sum[4:6], sum[6:8], sum[8:10], sum[10:16])
}

// filled lays what is given over what an object must say. An operation without a kind is a reboot of the machine of that name.
func filled(given map[string]any, cluster string) map[string]any {
	kind, _ := given["kind"].(string)
	name := textIn(given, "metadata", "name")
	if name == "" {
		name = exampleName
	}
	if named := textIn(given, "spec", "clusterRef", "name"); named != "" {
		cluster = named
	}
	bare := bareFields(kind, name, cluster)
	if kind == schema.KindOperation && textIn(given, "spec", "kind") == "" {
		spec := bare["spec"].(map[string]any)
		spec["kind"] = schema.OperationNode
		spec["node"] = map[string]any{"action": "reboot", "machineRef": map[string]any{"name": name, "uuid": bareUUID(cluster + "/" + name)}}
	}
	return overlaid(bare, given)
}

// overlaid gives the fields of one mapping with those of another over them, mapping by mapping.
func overlaid(under, over map[string]any) map[string]any {
	result := maps.Clone(under)
	for name, value := range over {
		below, isMap := under[name].(map[string]any)
		above, both := value.(map[string]any)
		if isMap && both {
			result[name] = overlaid(below, above)
			continue
		}
		result[name] = value
	}
	return result
}

// textIn gives a text in nested mappings, empty when there is none.
func textIn(m map[string]any, path ...string) string {
	for _, name := range path[:len(path)-1] {
		m, _ = m[name].(map[string]any)
	}
	text, _ := m[path[len(path)-1]].(string)
	return text
}

// decodeFilled reads one such object as if it stood in a file.
func decodeFilled(file string, object map[string]any) (*schema.Fleet, []schema.Problem, error) {
	data, err := json.Marshal(object)
	if err != nil {
		return nil, nil, fmt.Errorf("write the object as JSON: %w", err)
	}
	fleet, problems := schema.Decode(file, data)
	return fleet, problems, nil
}

// add puts the objects of another fleet into this one.
func add(to, from *schema.Fleet) {
	to.Clusters = append(to.Clusters, from.Clusters...)
	to.Machines = append(to.Machines, from.Machines...)
	to.Backups = append(to.Backups, from.Backups...)
	to.Operations = append(to.Operations, from.Operations...)
}
