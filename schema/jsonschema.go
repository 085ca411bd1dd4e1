package schema

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"reflect"
	"strings"
	"time"

	"github.com/invopop/jsonschema"
)

// The sources of the kinds, where the descriptions come from: an installed binary has no source beside it.
var (
	//go:embed types.go
	typesSource string
	//go:embed operation.go
	operationSource string
	//go:embed policy.go
	policySource string
)

// Kinds lists the kinds of a fleet repository in the order in which they are documented.
func Kinds() []string {
	return []string{KindCluster, KindMachine, KindBackup, KindOperation, KindPolicy, KindPolicyTest}
}

// JSONSchema gives the JSON Schema (draft 2020-12) of a kind, for editors. It takes all that [Load] takes, and refuses
// what Load refuses of a document's structure: fields that aren't known or are missing, wrong types, values that aren't
// among a field's choices or don't have its form. What it can't say (two fields that must agree) Load says. Only a field
// that is there and empty, which Load takes for one that isn't, is refused here.
func JSONSchema(kind string) ([]byte, error) {
	if !isKind(kind) {
		return nil, fmt.Errorf("there is no kind %s%s", shown(kind), suggestedKind(kind))
	}
	described, err := descriptions(typesSource, operationSource, policySource)
	if err != nil {
		return nil, err
	}
	m := &schemaMaker{layouts: newLayouts(), descriptions: described, types: map[string]reflect.Type{}}
	return m.make(kind)
}

// schemaMaker makes one JSON Schema.
type schemaMaker struct {
	layouts      *layouts
	descriptions map[string]string // by "Type" or "Type.Field"
	types        map[string]reflect.Type
}

func (m *schemaMaker) make(kind string) ([]byte, error) {
	object := reflect.TypeOf(newObject(kind)).Elem()
	m.collect(object)
	reflector := &jsonschema.Reflector{ExpandedStruct: true, Mapper: mapped}
	made := reflector.ReflectFromType(object)
	made.ID = jsonschema.ID("https://ichor.maesh.dev/schema/v1alpha1/" + kind + ".json")
	made.Title = kind
	m.refine(made, object)
	for name, definition := range made.Definitions {
		m.refine(definition, m.types[name])
	}
	fixed(made, "apiVersion", APIVersion, "The version of the kinds.")
	fixed(made, "kind", kind, "The kind of this document.")
	if operation := made.Definitions["OperationSpec"]; operation != nil {
		operation.AllOf = bodyConditions()
	}
	clusterID(made, kind == KindOperation)
	if patch := made.Definitions["Patch"]; patch != nil {
		patch.OneOf = []*jsonschema.Schema{{Required: []string{"file"}}, {Required: []string{"inline"}}}
	}
	if install := made.Definitions["MachineInstall"]; install != nil {
		install.Not = &jsonschema.Schema{Required: []string{"disk", "diskSelector"}}
	}
	text, err := json.MarshalIndent(made, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("can't write the JSON Schema of %s: %w", kind, err)
	}
	return append(text, '\n'), nil
}

// collect remembers each struct under a type by its name.
func (m *schemaMaker) collect(t reflect.Type) {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct || m.types[t.Name()] != nil || t == reflect.TypeFor[time.Time]() {
		return
	}
	m.types[t.Name()] = t
	for _, f := range m.layouts.of(t).fields {
		m.collect(t.Field(f.index).Type)
	}
}

// mapped gives the schema of the types that are written as something else than they are.
func mapped(t reflect.Type) *jsonschema.Schema {
	switch t {
	case reflect.TypeFor[Duration]():
		return &jsonschema.Schema{Type: "string", Pattern: `^([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+$`, Examples: []any{"10m"}}
	case reflect.TypeFor[IntOrPercent]():
		return &jsonschema.Schema{OneOf: []*jsonschema.Schema{{Type: "integer", Minimum: "1"},
			{Type: "string", Pattern: `^([1-9][0-9]*|([1-9][0-9]?|100)%)$`}}}
	case reflect.TypeFor[time.Time]():
		return &jsonschema.Schema{Type: "string", Format: "date-time",
			Pattern: `^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}([.,][0-9]+)?(Z|[+-][0-9]{2}:[0-9]{2})$`}
	}
	return nil
}

// refine adds the formats and the descriptions of a struct's fields.
func (m *schemaMaker) refine(s *jsonschema.Schema, t reflect.Type) {
	if t == nil {
		return
	}
	s.Description = m.descriptions[t.Name()]
	for _, f := range m.layouts.of(t).fields {
		property, ok := s.Properties.Get(f.name)
		if !ok {
			continue
		}
		if text := m.descriptions[t.Name()+"."+t.Field(f.index).Name]; text != "" {
			property.Description = text
		}
		value := property
		switch {
		case property.Items != nil:
			value = property.Items
		case property.AdditionalProperties != nil && f.form != nil:
			value = property.AdditionalProperties
		}
		apply(value, f.form)
		if f.keys != nil {
			property.PropertyNames = &jsonschema.Schema{Pattern: f.keys.pattern}
		}
	}
}

// apply puts a format into a value's schema.
func apply(s *jsonschema.Schema, f *format) {
	if f == nil {
		return
	}
	s.Pattern = f.pattern
	if f.longest > 0 {
		most := uint64(f.longest)
		s.MaxLength = &most
	}
	for _, value := range f.enum {
		s.Enum = append(s.Enum, value)
	}
	for _, value := range f.ints {
		s.Enum = append(s.Enum, value)
	}
	if s.Type == "integer" && f.ints == nil {
		s.Minimum = json.Number(fmt.Sprint(f.least))
	}
}

// fixed says that a field has one value.
func fixed(s *jsonschema.Schema, name string, value any, description string) {
	if property, ok := s.Properties.Get(name); ok {
		property.Const = value
		property.Description = description
	}
}

// clusterID makes the cluster's ID required in the reference of an operation, and takes it out of every other.
func clusterID(s *jsonschema.Schema, required bool) {
	ref := s.Definitions["ClusterRef"]
	switch {
	case ref == nil:
	case required:
		ref.Required = append(ref.Required, "id")
	default:
		ref.Properties.Delete("id")
	}
}

// bodyConditions says that an operation has exactly the body of its kind.
func bodyConditions() []*jsonschema.Schema {
	kinds := []OperationKind{OperationNode, OperationEtcdBackup, OperationEtcdRestore, OperationAdopt, OperationBootstrap,
		OperationResume, OperationCancel}
	var all []*jsonschema.Schema
	for _, kind := range kinds {
		is := jsonschema.NewProperties()
		is.Set("kind", &jsonschema.Schema{Const: string(kind)})
		others := jsonschema.NewProperties()
		for _, other := range kinds {
			if other != kind {
				others.Set(other.Body(), jsonschema.FalseSchema)
			}
		}
		all = append(all, &jsonschema.Schema{If: &jsonschema.Schema{Properties: is, Required: []string{"kind"}},
			Then: &jsonschema.Schema{Properties: others, Required: []string{kind.Body()}}})
	}
	return all
}

// descriptions reads the comments of the types and fields in Go files. A comment begins with the Go name, as Go has it;
// here the field's name in YAML takes its place.
func descriptions(sources ...string) (map[string]string, error) {
	found := map[string]string{}
	for _, source := range sources {
		file, err := parser.ParseFile(token.NewFileSet(), "", source, parser.ParseComments)
		if err != nil {
			return nil, fmt.Errorf("can't read the descriptions of the kinds: %w", err)
		}
		for _, declaration := range file.Decls {
			if general, ok := declaration.(*ast.GenDecl); ok && general.Tok == token.TYPE {
				describeTypes(found, general)
			}
		}
	}
	return found, nil
}

func describeTypes(found map[string]string, general *ast.GenDecl) {
	for _, spec := range general.Specs {
		named := spec.(*ast.TypeSpec)
		if structure, ok := named.Type.(*ast.StructType); ok {
			found[named.Name.Name] = sentence(general.Doc.Text())
			describeFields(found, named.Name.Name, structure)
		}
	}
}

func describeFields(found map[string]string, owner string, structure *ast.StructType) {
	for _, f := range structure.Fields.List {
		if f.Doc == nil || f.Tag == nil || len(f.Names) != 1 {
			continue
		}
		goName := f.Names[0].Name
		name, _, _ := strings.Cut(reflect.StructTag(strings.Trim(f.Tag.Value, "`")).Get("json"), ",")
		text := sentence(f.Doc.Text())
		if rest, ok := strings.CutPrefix(text, goName+" "); ok {
			text = name + " " + rest
		}
		found[owner+"."+goName] = text
	}
}

// sentence puts a comment's lines into one.
func sentence(text string) string { return strings.Join(strings.Fields(text), " ") }
