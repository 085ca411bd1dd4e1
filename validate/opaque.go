package validate

import (
	"fmt"
	"reflect"

	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
)

// opaque is the part of a CEL value that rules may pass on and ask, but not take apart.
type opaque struct{ celType *types.Type }

// ConvertToNative is refused.
func (o opaque) ConvertToNative(t reflect.Type) (any, error) {
	return nil, fmt.Errorf("a %s can't be made a %s", o.celType.TypeName(), t)
}

// ConvertToType gives the type only.
func (o opaque) ConvertToType(t ref.Type) ref.Val {
	if t == types.TypeType {
		return o.celType
	}
	return types.NewErr("a %s can't be made a %s", o.celType.TypeName(), t.TypeName())
}

// Type implements ref.Val.
func (o opaque) Type() ref.Type { return o.celType }
