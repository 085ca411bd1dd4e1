package validate

import (
	"reflect"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"

	"ichor.maesh.dev/operation"
	"ichor.maesh.dev/schema"
)

const oldOperationsIn = "oldOperationsIn"

// operations declares what is asked of operations.
func (l *library) operations() []cel.EnvOption {
	signed := l.set.celType(reflect.TypeFor[schema.TalosOperation]())
	machines := types.NewListType(l.set.celType(reflect.TypeFor[schema.TalosMachine]()))
	return []cel.EnvOption{
		cel.Function("targets", cel.MemberOverload("fleet_targets", []*cel.Type{fleetType(), signed}, machines,
			cel.BinaryBinding(func(of, named ref.Val) ref.Val {
				f, ok := of.(*fleet)
				o, isObject := named.(*object)
				if !ok || !isObject {
					return types.MaybeNoSuchOverloadErr(of)
				}
				return f.targets(o).val()
			}))),
		cel.Function(oldOperationsIn, cel.MemberOverload("fleet_"+oldOperationsIn, []*cel.Type{fleetType(), types.StringType}, types.NewListType(signed),
			cel.BinaryBinding(func(of, file ref.Val) ref.Val {
				f, ok := of.(*fleet)
				name, isText := file.(types.String)
				if !ok || !isText {
					return types.MaybeNoSuchOverloadErr(of)
				}
				return f.old.operationsIn(string(name)).val()
			}))),
		cel.Function("digest", cel.Overload("digest_operation", []*cel.Type{signed}, types.StringType,
			cel.UnaryBinding(func(of ref.Val) ref.Val {
				o, ok := of.(*object)
				if !ok {
					return types.MaybeNoSuchOverloadErr(of)
				}
				op, ok := o.native().(*schema.TalosOperation)
				if !ok {
					return types.MaybeNoSuchOverloadErr(of)
				}
				return types.String(operation.Digest(op.Raw))
			}))),
	}
}
