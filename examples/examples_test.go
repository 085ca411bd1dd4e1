// Package examples_test holds that each example works as it stands.
package examples_test

import (
	"bytes"
	"encoding/pem"
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/talos"
	"ichor.maesh.dev/validate"
)

// repositories lists the folders here: each is a repository.
func repositories(t *testing.T) []string {
	t.Helper()
	entries, err := os.ReadDir(".")
	require.NoError(t, err)
	var names []string
	for _, entry := range entries {
		if entry.IsDir() {
			names = append(names, entry.Name())
		}
	}
	require.Len(t, names, 3, "a new example is to be named in README.md")
	return names
}

func TestEveryExampleIsReadAndValid(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)
	engine, err := validate.New()
	require.NoError(t, err)
	for _, name := range repositories(t) {
		t.Run(name, func(t *testing.T) {
			require.Contains(t, string(readme), "["+name+"]("+name+")")
			requireAboutEveryFile(t, name)
			fleet, problems := schema.Load(os.DirFS(name), []string{"."})
			require.Empty(t, problems)
			require.NotEmpty(t, fleet.Clusters)
			require.NotEmpty(t, fleet.Machines)
			findings := engine.Check(nil, fleet)
			require.Empty(t, findings)
		})
	}
}

// requireAboutEveryFile holds that an example's README says of each file there what it is. A name in it may end in a pattern.
func requireAboutEveryFile(t *testing.T, example string) {
	t.Helper()
	readme, err := os.ReadFile(path.Join(example, "README.md"))
	require.NoError(t, err)
	var patterns []string
	for _, row := range regexp.MustCompile(`(?m)^\| (.*?) \|`).FindAllStringSubmatch(string(readme), -1) {
		folder := ""
		for _, name := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(row[1], -1) {
			if !strings.Contains(name[1], "/") && !strings.HasPrefix(name[1], ".") {
				name[1] = path.Join(folder, name[1]) // beside the one before
			}
			folder = path.Dir(name[1])
			patterns = append(patterns, name[1])
		}
	}
	used := map[string]bool{}
	err = fs.WalkDir(os.DirFS(example), ".", func(name string, entry fs.DirEntry, err error) error {
		require.NoError(t, err)
		if entry.IsDir() || name == "README.md" {
			return nil
		}
		named := false
		for _, pattern := range patterns {
			matches, err := path.Match(pattern, name)
			require.NoError(t, err)
			if matches || strings.HasSuffix(pattern, "/") && strings.HasPrefix(name, pattern) {
				named, used[pattern] = true, true
			}
		}
		require.True(t, named, "%s/README.md doesn't say what %s is", example, name)
		return nil
	})
	require.NoError(t, err)
	for _, pattern := range patterns {
		require.True(t, used[pattern], "%s/README.md speaks of %s, and there is no such file", example, pattern)
	}
}

// What an editor says about an example is what the program says.
func TestTheJSONSchemasTakeEveryExample(t *testing.T) {
	compiler := jsonschema.NewCompiler()
	for _, kind := range schema.Kinds() {
		text, err := schema.JSONSchema(kind)
		require.NoError(t, err)
		document, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
		require.NoError(t, err)
		require.NoError(t, compiler.AddResource(kind+".json", document))
	}
	checked := 0
	for _, name := range repositories(t) {
		fleet, _ := schema.Load(os.DirFS(name), []string{"."})
		for _, file := range files(fleet) {
			text, err := os.ReadFile(path.Join(name, file))
			require.NoError(t, err)
			for _, document := range strings.Split(string(text), "\n---\n") {
				asJSON, err := yaml.YAMLToJSON([]byte(document))
				require.NoError(t, err)
				value, err := jsonschema.UnmarshalJSON(bytes.NewReader(asJSON))
				require.NoError(t, err)
				compiled, err := compiler.Compile(value.(map[string]any)["kind"].(string) + ".json")
				require.NoError(t, err)
				require.NoError(t, compiled.Validate(value), "%s/%s", name, file)
				checked++
			}
		}
	}
	require.Equal(t, 20, checked)
}

// files lists the files of a fleet's objects, each once.
func files(f *schema.Fleet) []string {
	var all []string
	add := func(s schema.Source) {
		if !slices.Contains(all, s.File) {
			all = append(all, s.File)
		}
	}
	for _, c := range f.Clusters {
		add(c.Source)
	}
	for _, m := range f.Machines {
		add(m.Source)
	}
	for _, b := range f.Backups {
		add(b.Source)
	}
	for _, p := range f.Policies {
		add(p.Source)
	}
	return all
}

// Talos's own code takes the config of every machine, patches and all, with secrets made for the test.
func TestEveryMachineOfAnExampleRenders(t *testing.T) {
	bundle, err := talos.GenerateBundle("v1.13")
	require.NoError(t, err)
	for _, name := range repositories(t) {
		fleet, _ := schema.Load(os.DirFS(name), []string{"."})
		for _, m := range fleet.Machines {
			rendered, err := talos.Render(fleet.Cluster(m.Spec.ClusterRef.Name), m, bundle, talos.RenderOptions{Read: fleet.ReadRef})
			require.NoError(t, err, "%s: %s", name, m.Metadata.Name)
			require.NotEmpty(t, rendered.Bytes)
		}
	}
}

func TestEveryReferenceOfAnExampleCanBeRead(t *testing.T) {
	for _, name := range repositories(t) {
		fleet, _ := schema.Load(os.DirFS(name), []string{"."})
		for _, c := range fleet.Clusters {
			for _, ref := range clusterRefs(c) {
				_, data, err := fleet.ReadRef(c.Source.File, schema.FileRef{File: ref})
				require.NoError(t, err)
				require.NotEmpty(t, data)
			}
		}
		for _, b := range fleet.Backups {
			for _, ref := range []*schema.FileRef{b.Spec.Destination.S3.Credentials, b.Spec.Destination.S3.CA} {
				if ref != nil {
					_, _, err := fleet.ReadRef(b.Source.File, *ref)
					require.NoError(t, err)
				}
			}
		}
	}
}

func clusterRefs(c *schema.TalosCluster) []string {
	refs := []string{c.Spec.Secrets.File}
	for _, patches := range [][]schema.Patch{c.Spec.Patches.All, c.Spec.Patches.ControlPlane, c.Spec.Patches.Worker} {
		for _, p := range patches {
			if p.File != "" {
				refs = append(refs, p.File)
			}
		}
	}
	return refs
}

// The sealed files can't be opened by anyone, and nothing here is a secret in the clear.
func TestNoExampleHoldsASecret(t *testing.T) {
	identity := regexp.MustCompile(`(?i)AGE-SECRET-KEY-|BEGIN [A-Z ]*PRIVATE KEY|secretAccessKey:\s*\S`)
	sealed := 0
	err := fs.WalkDir(os.DirFS("."), ".", func(name string, entry fs.DirEntry, err error) error {
		require.NoError(t, err)
		if !entry.Type().IsRegular() || strings.HasSuffix(name, ".go") {
			return nil
		}
		data, err := os.ReadFile(name)
		require.NoError(t, err)
		require.NotRegexp(t, identity, string(data), name)
		if path.Ext(name) == ".age" {
			sealed++
			block, rest := pem.Decode(data)
			require.NotNil(t, block, name)
			require.Equal(t, "AGE ENCRYPTED FILE", block.Type)
			require.Empty(t, bytes.TrimSpace(rest))
			require.True(t, bytes.HasPrefix(block.Bytes, []byte("age-encryption.org/v1\n")))
			recipients, err := os.ReadFile(path.Join(path.Dir(name), "recipients.txt"))
			require.NoError(t, err)
			require.Contains(t, string(recipients), "\nage1")
		}
		return nil
	})
	require.NoError(t, err)
	require.Equal(t, 6, sealed)
}
