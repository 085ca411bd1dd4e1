package validate

import (
	"fmt"
	"reflect"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/ext"

	"ichor.maesh.dev/schema"
)

// The scopes of rules: what self is. A removed… scope sees the objects of the base that the proposal no longer has.
const (
	scopeCluster        = "cluster"
	scopeMachine        = "machine"
	scopeBackup         = "backup"
	scopeOperation      = "operation"
	scopePolicy         = "policy"
	scopeFile           = "file"
	scopeRemovedCluster = "removedCluster"
	scopeRemovedMachine = "removedMachine"
)

// scopeInfo says what a scope's objects are and which variables its rules have.
type scopeInfo struct {
	kind    string
	self    reflect.Type
	removed bool // the objects are of the base
	owned   bool // the objects belong to a cluster
	paired  bool // there is an oldSelf
}

func scopes() map[string]scopeInfo {
	cluster, machine := reflect.TypeFor[schema.TalosCluster](), reflect.TypeFor[schema.TalosMachine]()
	return map[string]scopeInfo{
		scopeCluster:        {schema.KindCluster, cluster, false, true, true},
		scopeMachine:        {schema.KindMachine, machine, false, true, true},
		scopeBackup:         {schema.KindBackup, reflect.TypeFor[schema.TalosEtcdBackup](), false, true, true},
		scopeOperation:      {schema.KindOperation, reflect.TypeFor[schema.TalosOperation](), false, true, true},
		scopePolicy:         {schema.KindPolicy, reflect.TypeFor[schema.Policy](), false, false, true},
		scopeFile:           {"", reflect.TypeFor[reference](), false, false, false},
		scopeRemovedCluster: {schema.KindCluster, cluster, true, false, false},
		scopeRemovedMachine: {schema.KindMachine, machine, true, true, false},
	}
}

// newEnvs gives the CEL environment of each scope.
func newEnvs(set *typeSet) (map[string]*cel.Env, error) {
	known, err := knownReleases()
	if err != nil {
		return nil, err
	}
	base, err := cel.NewEnv(
		cel.Types(set.all()...),
		cel.OptionalTypes(),
		cel.DefaultUTCTimeZone(true),
		cel.ExtendedValidations(),
		cel.ASTValidators(cel.ValidateComprehensionNestingLimit(5)),
		cel.EagerlyValidateDeclarations(true),
		ext.Strings(), ext.Lists(), ext.Sets(), ext.Bindings(), ext.Math(), ext.TwoVarComprehensions(), ext.Network(),
		cel.Lib(&library{set: set, releases: known}),
		cel.Variable("fleet", fleetType()),
	)
	if err != nil {
		return nil, fmt.Errorf("make the environment of the rules: %w", err)
	}
	envs := map[string]*cel.Env{}
	for name, s := range scopes() {
		if envs[name], err = base.Extend(variables(set, s)...); err != nil {
			return nil, fmt.Errorf("make the environment of the rules of scope %s: %w", name, err)
		}
	}
	return envs, nil
}

// variables declares what the rules of a scope may name, apart from fleet.
func variables(set *typeSet, s scopeInfo) []cel.EnvOption {
	self := set.celType(s.self)
	declared := []cel.EnvOption{cel.Variable("self", self)}
	if s.paired {
		declared = append(declared, cel.Variable("oldSelf", types.NewOptionalType(self)))
	}
	if !s.owned {
		return declared
	}
	cluster := set.celType(reflect.TypeFor[schema.TalosCluster]())
	declared = append(declared, cel.Variable("cluster", cluster), cel.Variable("oldCluster", types.NewOptionalType(cluster)))
	for variable, of := range map[string]reflect.Type{
		"machines": reflect.TypeFor[schema.TalosMachine](), "backups": reflect.TypeFor[schema.TalosEtcdBackup](),
		"operations": reflect.TypeFor[schema.TalosOperation](),
	} {
		listType := types.NewListType(set.celType(of))
		declared = append(declared, cel.Variable(variable, listType), cel.Variable(oldName(variable), listType))
	}
	return declared
}

// oldName gives the twin of a variable: oldMachines for machines.
func oldName(variable string) string {
	return "old" + string(variable[0]-'a'+'A') + variable[1:]
}

// isOld says whether a variable speaks of the base.
func isOld(variable string) bool {
	switch variable {
	case "oldSelf", "oldCluster", "oldMachines", "oldBackups", "oldOperations":
		return true
	}
	return false
}

// vars are the variables of one evaluation.
type vars struct {
	w    *world
	self *object
	info scopeInfo
}

// ResolveName gives a variable's value; only what a rule asks for is made.
func (v *vars) ResolveName(name string) (any, bool) {
	now, before := v.w.new.of(v.self.cluster), v.w.old.of(v.self.cluster)
	switch name {
	case "self":
		return v.self, true
	case "oldSelf":
		return optional(v.w.old.find(v.self.kind, v.self.key)), true
	case "cluster":
		return now.cluster, now.cluster != nil
	case "oldCluster":
		return optional(before.cluster), true
	case "machines":
		return now.machines.val(), true
	case "oldMachines":
		return before.machines.val(), true
	case "backups":
		return now.backups.val(), true
	case "oldBackups":
		return before.backups.val(), true
	case "operations":
		return now.operations.val(), true
	case "oldOperations":
		return before.operations.val(), true
	case "fleet":
		return v.w.fleet, true
	}
	return nil, false
}

// Parent implements cel.Activation.
func (v *vars) Parent() cel.Activation { return nil }
