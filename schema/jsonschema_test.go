package schema

import (
	"bytes"
	"encoding/json"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

// schemas compiles the JSON Schema of each kind.
func schemas(t *testing.T) map[string]*jsonschema.Schema {
	t.Helper()
	compiled := map[string]*jsonschema.Schema{}
	for _, kind := range Kinds() {
		text, err := JSONSchema(kind)
		require.NoError(t, err)
		document, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
		require.NoError(t, err)
		compiler := jsonschema.NewCompiler()
		compiler.AssertFormat()
		require.NoError(t, compiler.AddResource(kind+".json", document))
		compiled[kind], err = compiler.Compile(kind + ".json")
		require.NoError(t, err)
	}
	return compiled
}

// accepts says whether the JSON Schema of the kind that a YAML document names takes it. A kind that there is no schema
// for is refused.
func accepts(t *testing.T, compiled map[string]*jsonschema.Schema, document string) error {
	t.Helper()
	text, err := yaml.YAMLToJSON([]byte(document))
	require.NoError(t, err)
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	require.NoError(t, err)
	kind := KindMachine
	if fields, ok := value.(map[string]any); ok {
		if named, ok := fields["kind"].(string); ok && isKind(named) {
			kind = named
		}
	}
	return compiled[kind].Validate(value)
}

func TestTheJSONSchemaTakesWhatDecodingTakes(t *testing.T) {
	compiled := schemas(t)
	documents := strings.Split(fullYAML, "\n---\n")
	documents = append(documents, clusterYAML, machineYAML, backupYAML, operationYAML, policyYAML, restoreYAML(),
		edited(operationYAML, "action: reboot", "action: shutdown"),
		clusterYAML+"  rollout: {maxUnavailableWorkers: 3}\n",
		clusterYAML+"  rollout: {maxUnavailableWorkers: \"3\"}\n",
		clusterYAML+"  rollout: {drain: {timeout: 1h30m}}\n")
	for _, document := range documents {
		_, problems := loadAll(map[string]string{"a.yaml": document})
		requireClean(t, problems)
		require.NoError(t, accepts(t, compiled, document), document)
	}
}

func TestTheJSONSchemaRefusesWhatDecodingRefusesOfTheStructure(t *testing.T) {
	compiled := schemas(t)
	for _, c := range refusals() {
		if !c.structural {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			require.Error(t, accepts(t, compiled, c.document))
		})
	}
}

func TestEveryFieldHasADescription(t *testing.T) {
	for _, kind := range Kinds() {
		text, err := JSONSchema(kind)
		require.NoError(t, err)
		var made struct {
			Defs map[string]struct {
				Description string
				Properties  map[string]struct{ Description string }
			} `json:"$defs"`
			Description string
		}
		require.NoError(t, json.Unmarshal(text, &made))
		require.NotEmpty(t, made.Description)
		for name, definition := range made.Defs {
			require.NotEmpty(t, definition.Description, name)
			for field, property := range definition.Properties {
				require.NotEmpty(t, property.Description, "%s.%s", name, field)
				require.NotContains(t, property.Description, "\n")
			}
		}
	}
}

func TestThereIsNoJSONSchemaOfAnUnknownKind(t *testing.T) {
	_, err := JSONSchema("TalosClustr")
	require.EqualError(t, err, `there is no kind "TalosClustr"; did you mean "TalosCluster"?`)
}

// A pattern must mean the same to Go and to an editor's ECMAScript: no classes or flags that only one of them knows.
func TestPatternsAreOfTheCommonSubset(t *testing.T) {
	goOnly := regexp.MustCompile(`\(\?|\\[pPzAQEhHCaKG]|\[\[:`)
	for name, f := range newFormats() {
		if f.pattern == "" {
			continue
		}
		require.NotRegexp(t, goOnly, f.pattern, name)
		require.NotEmpty(t, f.want, name)
	}
}

// Each tag of a field must name a format, or a misspelt one would check nothing.
func TestEveryFormatThatAFieldNamesExists(t *testing.T) {
	formats, used := newFormats(), map[string]bool{"label": true}
	for _, kind := range Kinds() {
		m := &schemaMaker{layouts: newLayouts(), types: map[string]reflect.Type{}}
		m.collect(reflect.TypeOf(newObject(kind)).Elem())
		for name, structure := range m.types {
			for i := range structure.NumField() {
				f := structure.Field(i)
				for _, tag := range []string{"is", "keys"} {
					if format := f.Tag.Get(tag); format != "" {
						require.Contains(t, formats, format, "%s.%s", name, f.Name)
						used[format] = true
					}
				}
				needsFormat := f.Type.Kind() == reflect.String && f.Type != reflect.TypeFor[IntOrPercent]() && f.Name != "APIVersion" && f.Name != "Kind"
				require.False(t, needsFormat && f.Tag.Get("is") == "", "%s.%s is a text that nothing checks", name, f.Name)
			}
		}
	}
	for name := range formats {
		require.True(t, used[name], "no field is a %s", name)
	}
}

func TestTheDescriptionsAreThoseOfTheSource(t *testing.T) {
	described, err := descriptions(typesSource, operationSource)
	require.NoError(t, err)
	require.Equal(t, "count is how many control planes the cluster has: 1, 3 or 5.", described["ControlPlaneSpec.Count"])
	require.Equal(t, "pause counts the operation's pauses from 1.", described["ResumeOperation.Pause"])
	require.Greater(t, len(described), 130)
}
