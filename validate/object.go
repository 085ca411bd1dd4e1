package validate

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
	"github.com/siderolabs/talos/pkg/machinery/constants"

	"ichor.maesh.dev/schema"
)

// structType makes a Go struct of package schema a CEL type of the same name, its fields named as in YAML. So a rule with a
// misspelt field fails to compile, and an absent field reads as its default instead of failing at run time.
type structType struct {
	*types.Type
	names  []string
	fields map[string]*fieldInfo
}

type fieldInfo struct {
	*types.FieldType
	position int // of the field among the struct's CEL fields
	index    int // of the field in the Go struct
	fallback any // what an absent field reads as
}

// fallbacks are the defaults of optional fields, where they aren't Go's zero value: Ichor's own, and Talos's for networks.
func fallbacks() map[string]any {
	return map[string]any{
		"ControlPlaneSpec.schedulable":      schema.ClusterSpec{}.ControlPlanesSchedulable(),
		"ClusterSpec.contract":              schema.DefaultContract,
		"NetworkSpec.podSubnets":            []string{constants.DefaultIPv4PodNet},
		"NetworkSpec.serviceSubnets":        []string{constants.DefaultIPv4ServiceNet},
		"NetworkSpec.dnsDomain":             constants.DefaultDNSDomain,
		"RolloutSpec.reboots":               string(schema.RolloutSpec{}.RebootPolicy()),
		"RolloutSpec.maxUnavailableWorkers": "1",
		"DrainSpec.timeout":                 schema.DefaultDrainTimeout,
		"BackupSpec.schedule":               schema.DefaultBackupSchedule,
		"Retention.keepLast":                schema.DefaultKeepLast,
		"S3Destination.addressing":          schema.S3Destination{}.AddressingStyle(),
		"NodeOperation.then":                schema.NodeOperation{}.ThenAction(),
		"RestoreOperation.revisionBump":     schema.RestoreOperation{}.BumpsRevision(),
		"Rule.severity":                     schema.Rule{}.SeverityOrError(),
	}
}

// typeSet knows the CEL type of each struct that can be reached from the kinds.
type typeSet struct {
	byGo      map[reflect.Type]*structType
	byName    map[string]*structType
	fallbacks map[string]any
	adapter   types.Adapter
}

// newTypeSet derives the types of all kinds, and of a reference to a file.
func newTypeSet() (*typeSet, error) {
	registry, err := types.NewRegistry()
	if err != nil {
		return nil, fmt.Errorf("make a registry of CEL types: %w", err)
	}
	set := &typeSet{byGo: map[reflect.Type]*structType{}, byName: map[string]*structType{}, fallbacks: fallbacks(), adapter: registry}
	for _, root := range []any{
		schema.TalosCluster{}, schema.TalosMachine{}, schema.TalosEtcdBackup{}, schema.TalosOperation{}, schema.Policy{}, reference{},
	} {
		if _, err := set.add(reflect.TypeOf(root)); err != nil {
			return nil, err
		}
	}
	return set, nil
}

// all gives the types in a stable order, as cel.Types takes them.
func (s *typeSet) all() []any {
	var list []*structType
	for _, t := range s.byGo {
		list = append(list, t)
	}
	slices.SortFunc(list, func(a, b *structType) int { return strings.Compare(a.TypeName(), b.TypeName()) })
	registered := make([]any, len(list))
	for i, t := range list {
		registered[i] = t
	}
	return registered
}

// celType gives the CEL type that an object of Go type goType has.
func (s *typeSet) celType(goType reflect.Type) *types.Type { return s.byGo[goType].Type }

func (s *typeSet) add(goType reflect.Type) (*structType, error) {
	if known := s.byGo[goType]; known != nil {
		return known, nil
	}
	t := &structType{
		Type:   types.NewObjectType(goType.Name()),
		fields: map[string]*fieldInfo{},
	}
	s.byGo[goType], s.byName[goType.Name()] = t, t
	for i := range goType.NumField() {
		f := goType.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if !f.IsExported() || name == "" || name == "-" {
			continue
		}
		fieldType, err := s.typeOf(f.Type)
		if err != nil {
			return nil, fmt.Errorf("field %s of %s: %w", name, goType.Name(), err)
		}
		position := len(t.names)
		t.names = append(t.names, name)
		t.fields[name] = &fieldInfo{
			position: position, index: i, fallback: s.fallbacks[goType.Name()+"."+name],
			FieldType: &types.FieldType{
				Type:    fieldType,
				IsSet:   func(o any) bool { return isObject(o) && o.(*object).isSet(name) },
				GetFrom: func(o any) (any, error) { return getFrom(o, name) },
			},
		}
	}
	return t, nil
}

// typeOf gives the CEL type of a Go type.
func (s *typeSet) typeOf(t reflect.Type) (*types.Type, error) {
	switch t {
	case reflect.TypeFor[time.Time]():
		return types.TimestampType, nil
	case reflect.TypeFor[schema.Duration](), reflect.TypeFor[time.Duration]():
		return types.DurationType, nil
	}
	switch t.Kind() {
	case reflect.Bool:
		return types.BoolType, nil
	case reflect.String:
		return types.StringType, nil
	case reflect.Int, reflect.Int64:
		return types.IntType, nil
	case reflect.Interface:
		return types.DynType, nil
	case reflect.Pointer:
		return s.typeOf(t.Elem())
	case reflect.Slice:
		elem, err := s.typeOf(t.Elem())
		if err != nil {
			return nil, err
		}
		return types.NewListType(elem), nil
	case reflect.Map:
		elem, err := s.typeOf(t.Elem())
		if err != nil {
			return nil, err
		}
		return types.NewMapType(types.StringType, elem), nil
	case reflect.Struct:
		added, err := s.add(t)
		if err != nil {
			return nil, err
		}
		return added.Type, nil
	}
	return nil, fmt.Errorf("a Go %s has no CEL type here", t)
}

// ReflectType is nil: objects are made by typeSet.object only.
func (t *structType) ReflectType() reflect.Type { return nil }

// FieldNames gives the names of the fields as in YAML.
func (t *structType) FieldNames() []string { return t.names }

// FindFieldType gives a field's type.
func (t *structType) FindFieldType(name string) (*types.FieldType, bool) {
	f, ok := t.fields[name]
	if !ok {
		return nil, false
	}
	return f.FieldType, true
}

// NewValue refuses: rules look at objects and don't make any.
func (t *structType) NewValue(types.Adapter, map[string]ref.Val) ref.Val {
	return types.NewErr("a rule can't make a %s", t.TypeName())
}

// Adapt is never called, since ReflectType is nil.
func (t *structType) Adapt(_ types.Adapter, value any) ref.Val {
	return types.NewErr("a %T can't be used in a rule", value)
}

// object is a struct as CEL sees it. Fields are converted once, when first read. An object is used by one Check only, by
// several goroutines of it.
type object struct {
	set    *typeSet
	t      *structType
	value  reflect.Value // the struct
	mu     sync.Mutex    // of the two that follow
	fields []ref.Val
	weight uint64 // once it was asked for
	// The rest is set for the objects of a repository only, not for the structs inside them.
	key
	kind   string
	source *schema.Source
	holds  []holding // what must be the object's alone, once it was asked for
}

// key finds an object: by cluster and name, within its kind. The cluster is empty for the kinds that belong to none.
type key struct{ cluster, name string }

// object wraps a pointer to a struct of a known type.
func (s *typeSet) object(pointer any) *object {
	return s.wrap(reflect.ValueOf(pointer).Elem())
}

func (s *typeSet) wrap(value reflect.Value) *object {
	t := s.byGo[value.Type()]
	return &object{set: s, t: t, value: value, fields: make([]ref.Val, len(t.names))}
}

func isObject(o any) bool {
	_, ok := o.(*object)
	return ok
}

func getFrom(o any, name string) (any, error) {
	if !isObject(o) {
		return nil, fmt.Errorf("no such field: %s", name)
	}
	return o.(*object).field(o.(*object).t.fields[name]), nil
}

// isSet says whether a field has a value: given in YAML, or its default. An empty value counts as not given, since the Go
// value doesn't tell the two apart.
func (o *object) isSet(name string) bool {
	f, ok := o.t.fields[name]
	return ok && (f.fallback != nil || !o.value.Field(f.index).IsZero())
}

// isAbsent says whether a field holds nothing: an empty list means what an absent one means.
func isAbsent(value reflect.Value) bool {
	return value.IsZero() || value.Kind() == reflect.Slice && value.Len() == 0
}

func (o *object) field(f *fieldInfo) ref.Val {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.fields[f.position] == nil {
		value := o.value.Field(f.index)
		if f.fallback != nil && isAbsent(value) {
			o.fields[f.position] = o.set.adapter.NativeToValue(f.fallback)
		} else {
			o.fields[f.position] = o.set.convert(value)
		}
	}
	return o.fields[f.position]
}

// convert gives the CEL value of a Go value of a type that typeOf knows.
func (s *typeSet) convert(v reflect.Value) ref.Val {
	switch value := v.Interface().(type) {
	case time.Time:
		return types.Timestamp{Time: value}
	case schema.Duration:
		return types.Duration{Duration: time.Duration(value)}
	case map[string]string:
		return types.NewStringStringMap(s.adapter, value)
	}
	switch v.Kind() {
	case reflect.Bool:
		return types.Bool(v.Bool())
	case reflect.String:
		return types.String(v.String())
	case reflect.Int, reflect.Int64:
		return types.Int(v.Int())
	case reflect.Pointer:
		if v.IsNil() {
			return s.convert(reflect.Zero(v.Type().Elem()))
		}
		return s.convert(v.Elem())
	case reflect.Struct:
		return s.wrap(v)
	case reflect.Slice:
		elems := make([]ref.Val, v.Len())
		for i := range elems {
			elems[i] = s.convert(v.Index(i))
		}
		return types.NewRefValList(s.adapter, elems)
	}
	return s.adapter.NativeToValue(v.Interface())
}

// ConvertToNative is refused: objects stay in their rules.
func (o *object) ConvertToNative(t reflect.Type) (any, error) {
	return nil, fmt.Errorf("a %s can't be made a %s", o.t.TypeName(), t)
}

// ConvertToType implements ref.Val.
func (o *object) ConvertToType(t ref.Type) ref.Val {
	switch t.TypeName() {
	case types.TypeType.TypeName():
		return o.t.Type
	case o.t.TypeName():
		return o
	}
	return types.NewErr("a %s can't be made a %s", o.t.TypeName(), t.TypeName())
}

// Equal compares what YAML says, not where it stands.
func (o *object) Equal(other ref.Val) ref.Val {
	that, ok := other.(*object)
	if !ok || o.t != that.t {
		return types.False
	}
	for _, f := range o.t.fields {
		if o.field(f).Equal(that.field(f)) != types.True {
			return types.False
		}
	}
	return types.True
}

// Get implements traits.Indexer.
func (o *object) Get(index ref.Val) ref.Val {
	name, ok := index.(types.String)
	if !ok {
		return types.MaybeNoSuchOverloadErr(index)
	}
	f, ok := o.t.fields[string(name)]
	if !ok {
		return types.NewErr("no such field: %s", name)
	}
	return o.field(f)
}

// IsSet implements traits.FieldTester.
func (o *object) IsSet(field ref.Val) ref.Val {
	name, ok := field.(types.String)
	if !ok {
		return types.MaybeNoSuchOverloadErr(field)
	}
	return types.Bool(o.isSet(string(name)))
}

// Type implements ref.Val.
func (o *object) Type() ref.Type { return o.t.Type }

// Value implements ref.Val: an object is its own value, so that field access comes back here.
func (o *object) Value() any { return o }

// IsZeroValue implements traits.Zeroer, which optional.ofNonZeroValue asks.
func (o *object) IsZeroValue() bool { return o.value.IsZero() }

var (
	_ types.StructTypeDescriptor = (*structType)(nil)
	_ traits.Indexer             = (*object)(nil)
	_ traits.FieldTester         = (*object)(nil)
	_ traits.Zeroer              = (*object)(nil)
)
