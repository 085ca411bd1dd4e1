package validate

import (
	"fmt"
	"math/bits"
	"reflect"
	"regexp/syntax"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/functions"
	"github.com/google/cel-go/common/operators"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
	"github.com/google/cel-go/interpreter"

	"ichor.maesh.dev/schema"
)

const (
	// maxWork bounds what one call of a function may handle, in characters and elements. CEL counts the cost of a call when it is
	// over and can't interrupt one, and a text replaced in itself, or lists of lists that are compared, are a few characters of a
	// rule.
	maxWork = 2_000_000
	// maxList bounds how long a list of two lists may be: CEL counts the elements of such a list anew each time.
	maxList = 100_000
	// maxText bounds a text that a call makes.
	maxText = 1_000_000
	// maxRegexProgram bounds the steps of a regular expression once it is compiled; it takes that many for each character.
	maxRegexProgram = 500
	// workPerStep is how much work costs a step.
	workPerStep = 10
)

// bounded gives the functions of an environment, each refusing to begin what is too much.
func bounded(env *cel.Env) ([]*functions.Overload, error) {
	var all []*functions.Overload
	for name, declared := range env.Functions() {
		if !isHeavy(name) {
			continue
		}
		bindings, err := declared.Bindings()
		if err != nil {
			return nil, fmt.Errorf("bound the function %s: %w", name, err)
		}
		for _, b := range bindings {
			all = append(all, boundedOverload(name, b))
		}
	}
	return all, nil
}

func boundedOverload(name string, b *functions.Overload) *functions.Overload {
	made := *b
	if b.Unary != nil {
		made.Unary = func(a ref.Val) ref.Val {
			if work(name, a) > maxWork {
				return tooMuch(name)
			}
			return b.Unary(a)
		}
	}
	if b.Binary != nil {
		made.Binary = func(a, c ref.Val) ref.Val {
			if work(name, a, c) > maxWork {
				return tooMuch(name)
			}
			return b.Binary(a, c)
		}
	}
	if b.Function != nil {
		made.Function = func(args ...ref.Val) ref.Val {
			if work(name, args...) > maxWork {
				return tooMuch(name)
			}
			return b.Function(args...)
		}
	}
	return &made
}

func tooMuch(name string) ref.Val {
	shown := map[string]string{operators.Add: "+", operators.Equals: "==", operators.NotEquals: "!=", operators.In: "in"}[name]
	if shown == "" {
		shown = name
	}
	return types.NewErr("%s would handle or make too much at once: more than %d characters and elements, a text of %d characters, a list of %d elements or "+
		"a regular expression of %d steps; make it look at less", shown, maxWork, maxText, maxList, maxRegexProgram)
}

// isHeavy says whether what a function does grows with what it is given.
func isHeavy(name string) bool {
	switch name {
	case operators.Add, operators.In, operators.OldIn, "replace", "matches", "indexOf", "lastIndexOf", "join", "format", "distinct", "sort",
		"@sortByAssociatedKeys", "lists.range", "flatten", "reverse", "split", "sets.contains", "sets.intersects", "sets.equivalent", "strings.quote":
		return true
	}
	return false
}

// work says how much a call would handle.
func work(name string, args ...ref.Val) uint64 {
	of := func(i int) uint64 {
		if i >= len(args) {
			return 1
		}
		return weight(args[i], maxWork+1)
	}
	switch name {
	case operators.Add:
		return addition(args)
	case "replace":
		return madeText(times(of(0), of(2)+1) + of(1))
	case "matches":
		if text, ok := args[len(args)-1].(types.String); ok && regexSteps(string(text)) > maxRegexProgram {
			return maxWork + 1
		}
		return of(0) + of(1)
	case "format":
		return madeText(of(0) + of(1))
	case "indexOf", "lastIndexOf":
		return times(of(0), min(of(1), of(0)))/8 + of(0)
	case "join":
		return madeText(of(0) + times(size(args[0]), of(1)))
	case "distinct":
		return times(of(0), size(args[0]))
	case "sets.contains", "sets.intersects", "sets.equivalent":
		return times(of(0), size(args[1])) + times(of(1), size(args[0]))
	case "sort", "@sortByAssociatedKeys":
		return times(of(0), uint64(bits.Len64(size(args[0]))))
	case "lists.range":
		if n, ok := args[0].(types.Int); ok && n > 0 {
			return uint64(n)
		}
		return 1
	}
	total := uint64(0)
	for i := range args {
		total += of(i)
	}
	return total
}

// addition is the work of +. What a comprehension collects grows in place.
func addition(args []ref.Val) uint64 {
	if len(args) != 2 {
		return 1
	}
	if _, grows := args[0].(traits.MutableLister); grows {
		return 1
	}
	if _, isList := args[0].(traits.Lister); isList {
		if size(args[0])+size(args[1]) > maxList {
			return maxWork + 1
		}
		return size(args[0]) + size(args[1])
	}
	return madeText(weight(args[0], maxWork+1) + weight(args[1], maxWork+1))
}

// madeText is the work of a call that makes so long a text.
func madeText(length uint64) uint64 {
	if length > maxText {
		return maxWork + 1
	}
	return length
}

// regexSteps counts the steps of a regular expression; none where it isn't one, which whoever compiles it says.
func regexSteps(text string) int {
	const longest = 4096
	if len(text) > longest {
		return maxRegexProgram + 1
	}
	parsed, err := syntax.Parse(text, syntax.Perl)
	if err != nil {
		return 0
	}
	compiled, err := syntax.Compile(parsed.Simplify())
	if err != nil {
		return 0
	}
	return len(compiled.Inst)
}

func size(v ref.Val) uint64 {
	if sizer, ok := v.(traits.Sizer); ok {
		if n, ok := sizer.Size().(types.Int); ok {
			return uint64(n)
		}
	}
	return 1
}

func times(a, b uint64) uint64 {
	if high, low := bits.Mul64(a, b); high == 0 {
		return min(low, maxWork+1)
	}
	return maxWork + 1
}

// weight counts the characters and elements of a value with all that is in it, up to a limit.
func weight(v ref.Val, limit uint64) uint64 {
	switch value := v.(type) {
	case types.String:
		return uint64(len(value)) + 1
	case types.Bytes:
		return uint64(len(value)) + 1
	case *object:
		return value.weigh()
	case traits.Mapper:
		total := uint64(1)
		for it := value.Iterator(); total < limit && it.HasNext() == types.True; {
			key := it.Next()
			total += weight(key, limit-total) + weight(value.Get(key), limit-total)
		}
		return total
	case traits.Lister:
		total := uint64(1)
		for it := value.Iterator(); total < limit && it.HasNext() == types.True; {
			total += weight(it.Next(), limit-total)
		}
		return total
	}
	return 1
}

// weigh counts what an object holds, once.
func (o *object) weigh() uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.weight == 0 {
		o.weight = reflectWeight(o.value)
	}
	return o.weight
}

func reflectWeight(v reflect.Value) uint64 {
	switch v.Kind() {
	case reflect.String:
		return uint64(v.Len()) + 1
	case reflect.Pointer, reflect.Interface:
		if v.IsNil() {
			return 1
		}
		return reflectWeight(v.Elem())
	case reflect.Struct:
		total := uint64(1)
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() && v.Type().Field(i).Tag.Get("json") != "-" {
				total += reflectWeight(v.Field(i))
			}
		}
		return total
	case reflect.Slice:
		total := uint64(1)
		for i := range v.Len() {
			total += reflectWeight(v.Index(i))
		}
		return total
	case reflect.Map:
		total := uint64(1)
		for it := v.MapRange(); it.Next(); {
			total += reflectWeight(it.Key()) + reflectWeight(it.Value())
		}
		return total
	}
	return 1
}

// boundedEquality takes the place of == and !=, which are no functions.
type boundedEquality struct {
	interpreter.InterpretableCall
	left, right interpreter.InterpretableV2
	negated     bool
}

func boundEquality(i interpreter.InterpretableV2) (interpreter.InterpretableV2, error) {
	call, ok := i.(interpreter.InterpretableCall)
	if !ok || call.Function() != operators.Equals && call.Function() != operators.NotEquals {
		return i, nil
	}
	sides := call.Args() // which makes a list of them each time
	if len(sides) != 2 {
		return i, nil
	}
	return &boundedEquality{call, sides[0], sides[1], call.Function() == operators.NotEquals}, nil
}

// Exec implements interpreter.InterpretableV2.
func (e *boundedEquality) Exec(frame *interpreter.ExecutionFrame) ref.Val {
	left, right := e.left.Exec(frame), e.right.Exec(frame)
	if types.IsUnknownOrError(left) {
		return left
	}
	if types.IsUnknownOrError(right) {
		return right
	}
	if work(operators.Equals, left, right) > maxWork {
		return types.LabelErrNode(e.ID(), tooMuch(e.Function()))
	}
	equal := types.Equal(left, right)
	if is, ok := equal.(types.Bool); ok && e.negated {
		return !is
	}
	return equal
}

// Eval implements interpreter.Interpretable.
func (e *boundedEquality) Eval(vars interpreter.Activation) ref.Val {
	return e.Exec(interpreter.AsFrame(vars))
}

// workCosts counts the cost of what CEL takes for a single step and isn't.
type workCosts struct{}

// CallCost implements interpreter.ActualCostEstimator.
func (workCosts) CallCost(function, _ string, args []ref.Val, _ ref.Val) *uint64 {
	cost, known := callSteps[function]
	switch function {
	case operators.Equals, operators.NotEquals, operators.In, operators.OldIn, operators.Add, "format":
		cost, known = work(function, args...)/workPerStep+1, true
	case "overlapping":
		cost, known = times(size(args[0]), size(args[0])+10), true
	case "digest":
		cost, known = digestSteps(args), true
	}
	if !known {
		return nil
	}
	return &cost
}

// callSteps is what a call of a function takes in steps, as measured: a step is some 0.4 µs.
var callSteps = map[string]uint64{
	"alwaysOpen": 1500, "nextCron": 80, "isCron": 20, "upgradeProblem": 40, "inside": 40, "networkOf": 40,
	"rivals": 25, "machinesWithUUID": 15, oldMachinesWithUUID: 15, "targets": 15,
	"cidr": 5, "isCIDR": 5, "ip": 5, "isIP": 5, "semver": 5, "isSemver": 5, "matches": 10,
}

// digestSteps is what it takes to hash an operation's file.
func digestSteps(args []ref.Val) uint64 {
	if o, ok := args[0].(*object); ok {
		if op, ok := o.native().(*schema.TalosOperation); ok {
			return uint64(len(op.Raw))/100 + 5
		}
	}
	return 1
}
