package validate

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/checker"
	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/functions"
	"github.com/google/cel-go/common/operators"
	"github.com/google/cel-go/common/overloads"
	"github.com/google/cel-go/common/types"

	"ichor.maesh.dev/schema"
)

// compiler compiles rules.
type compiler struct {
	set       *typeSet
	envs      map[string]*cel.Env
	bounded   []*functions.Overload
	costLimit uint64
}

// The parts of a rule, named as their fields.
const (
	partWhen    = "when"
	partExpr    = "expr"
	partMessage = "message"
)

// fault is what is wrong with a part of a rule, and at which byte of it.
type fault struct {
	part   string
	offset int
	text   string
}

// maxFaults is how many faults of one part are said.
const maxFaults = 5

// compile type-checks a rule and makes it ready, or gives what is wrong with it.
func (c *compiler) compile(r schema.Rule) (*rule, []fault) {
	info, known := scopes()[r.Scope]
	if !known {
		return nil, []fault{{part: "scope", text: fmt.Sprintf("there is no scope %q; use cluster, machine, backup or operation", r.Scope)}}
	}
	made := &rule{Rule: r, info: info, severity: Severity(r.SeverityOrError()), costLimit: c.costLimit, needsBase: info.removed}
	if made.severity != Error && made.severity != Warning {
		return nil, []fault{{part: "severity", text: fmt.Sprintf("severity is %q; use error or warning", r.Severity)}}
	}
	var faults []fault
	program := func(part, source string, want *types.Type) *lazyProgram {
		p, wrong := c.program(made, part, source, want)
		faults = append(faults, wrong...)
		if p == nil {
			return nil
		}
		made.notice(p.ast)
		return compiled(p)
	}
	if r.When != "" {
		made.when = program(partWhen, r.When, types.BoolType)
	}
	made.expr = program(partExpr, r.Expr, types.BoolType)
	made.message = program(partMessage, r.Message, types.StringType)
	if len(faults) > 0 {
		return nil, faults
	}
	return made, nil
}

// program is an expression that can be evaluated.
type program struct {
	cel.Program
	ast *cel.Ast
}

func (c *compiler) program(r *rule, part, source string, want *types.Type) (*program, []fault) {
	env := c.envs[r.Scope]
	wrong := func(offset int, format string, args ...any) []fault {
		return []fault{{part, offset, fmt.Sprintf(format, args...) + quotingHint(part, source)}}
	}
	parsed, issues := env.Parse(source)
	if issues.Err() != nil {
		return nil, c.faults(r, part, source, nil, issues)
	}
	if nesting(parsed.NativeRep().Expr()) > maxNesting {
		return nil, wrong(0, "%s nests more than %d macros (all, exists, map, filter, cel.bind, ...) in each other; make it flatter", part, maxNesting)
	}
	checked, issues := env.Check(parsed)
	if issues.Err() != nil {
		return nil, c.faults(r, part, source, parsed, issues)
	}
	if id, large := largeRegex(checked); large {
		location := checked.NativeRep().SourceInfo().GetStartLocation(id)
		return nil, wrong(offsetOf(source, location.Line(), location.Column()), "%s has a regular expression of more than %d steps; write a smaller one", part, maxRegexProgram)
	}
	if got := checked.OutputType(); !got.IsExactType(want) {
		return nil, wrong(0, "%s gives a %s and must give a %s", part, got, want)
	}
	if estimate, err := env.EstimateCost(checked, unknownSizes{}); err != nil {
		return nil, wrong(0, "nobody can say what %s costs: %v", part, err)
	} else if estimate.Min > c.costLimit {
		return nil, wrong(0, "%s costs at least %d steps whatever it looks at, and %d are allowed; make it do less", part, estimate.Min, c.costLimit)
	}
	// Function() would refuse a second implementation of what is declared already; bounding one is a second implementation.
	//lint:ignore SA1019 there is no other way to put one in the place of another
	bound := cel.Functions(c.bounded...)
	made, err := env.Program(checked,
		cel.EvalOptions(cel.OptOptimize), cel.CostTracking(workCosts{}), cel.CostLimit(c.costLimit), cel.InterruptCheckFrequency(interruptEvery),
		bound, cel.CustomDecoratorV2(boundEquality))
	if err != nil {
		return nil, wrong(0, "%s: %v", part, err)
	}
	return &program{made, checked}, nil
}

// maxNesting bounds how deep macros nest. Each may double a type, and the type check looks at all of it.
const maxNesting = 12

// nesting gives how deep macros nest in an expression.
func nesting(e ast.Expr) int {
	deepest := 0
	below := func(children ...ast.Expr) {
		for _, child := range children {
			deepest = max(deepest, nesting(child))
		}
	}
	switch e.Kind() {
	case ast.CallKind:
		below(e.AsCall().Args()...)
		if e.AsCall().IsMemberFunction() {
			below(e.AsCall().Target())
		}
	case ast.ComprehensionKind:
		c := e.AsComprehension()
		below(c.IterRange(), c.AccuInit(), c.LoopCondition(), c.LoopStep(), c.Result())
		deepest++
	case ast.ListKind:
		below(e.AsList().Elements()...)
	case ast.MapKind:
		for _, entry := range e.AsMap().Entries() {
			below(entry.AsMapEntry().Key(), entry.AsMapEntry().Value())
		}
	case ast.SelectKind:
		below(e.AsSelect().Operand())
	case ast.StructKind:
		for _, field := range e.AsStruct().Fields() {
			below(field.AsStructField().Value())
		}
	}
	return deepest
}

// largeRegex finds a regular expression that is written out and too large.
func largeRegex(checked *cel.Ast) (id int64, found bool) {
	ast.PostOrderVisit(checked.NativeRep().Expr(), ast.NewExprVisitor(func(e ast.Expr) {
		if e.Kind() != ast.CallKind || e.AsCall().FunctionName() != overloads.Matches || len(e.AsCall().Args()) == 0 {
			return
		}
		args := e.AsCall().Args()
		last := args[len(args)-1]
		if last.Kind() != ast.LiteralKind {
			return
		}
		if text, ok := last.AsLiteral().(types.String); ok && regexSteps(string(text)) > maxRegexProgram {
			id, found = last.ID(), true
		}
	}))
	return id, found
}

// notice remembers what a rule speaks of.
func (r *rule) notice(checked *cel.Ast) {
	for _, reference := range checked.NativeRep().ReferenceMap() {
		r.needsBase = r.needsBase || isOld(reference.Name)
		r.needsCluster = r.needsCluster || reference.Name == "cluster"
		for _, overload := range reference.OverloadIDs {
			r.needsBase = r.needsBase || overload == "fleet_"+oldMachinesWithUUID || overload == "fleet_"+oldOperationsIn
		}
	}
}

// faults turns what the compiler says into sentences with their places.
func (c *compiler) faults(r *rule, part, source string, parsed *cel.Ast, issues *cel.Issues) []fault {
	var faults []fault
	for _, issue := range issues.Errors() {
		if len(faults) == maxFaults {
			break
		}
		offset := offsetOf(source, issue.Location.Line(), issue.Location.Column())
		text := issue.Message
		if name, ok := quoted(text, "undefined field '"); ok {
			offset = skipDot(source, offset)
			text = c.noField(r, parsed, issue.ExprID, name)
		} else if name, ok := quoted(text, "undeclared reference to '"); ok {
			text = c.noName(r, name)
		}
		if strings.Contains(text, "token recognition error at: '=") {
			// What comes after it makes no sense either, and isn't the mistake.
			return append(faults, fault{part, offset, fmt.Sprintf("%s doesn't compile: a single =; two values are compared with ==", part)})
		}
		faults = append(faults, fault{part, offset, fmt.Sprintf("%s doesn't compile: %s%s", part, text, quotingHint(part, source))})
	}
	if len(faults) == 0 {
		faults = append(faults, fault{part, 0, fmt.Sprintf("%s doesn't compile: %v", part, issues.Err())})
	}
	return faults
}

// quotingHint says how a plain sentence is written where an expression is due.
func quotingHint(part, source string) string {
	const longest = 60
	text := strings.Join(strings.Fields(source), " ")
	if part != partMessage || strings.ContainsAny(text, `'"+`) || text == "" {
		return ""
	}
	if runes := []rune(text); len(runes) > longest {
		text = string(runes[:longest]) + "…"
	}
	return fmt.Sprintf("; message is an expression too, so a plain text needs quotes of its own: message: \"'%s'\"", text)
}

func quoted(text, before string) (string, bool) {
	_, after, found := strings.Cut(text, before)
	name, _, closed := strings.Cut(after, "'")
	return name, found && closed
}

// offsetOf gives the byte at a line, which counts from 1, and a column in characters, which counts from 0.
func offsetOf(source string, line, column int) int {
	offset := 0
	for ; line > 1; line-- {
		next := strings.IndexByte(source[offset:], '\n')
		if next < 0 {
			break
		}
		offset += next + 1
	}
	for i := range source[offset:] {
		if column == 0 || source[offset+i] == '\n' {
			return offset + i
		}
		column--
	}
	return len(source)
}

// skipDot moves from the dot before a field to the field.
func skipDot(source string, offset int) int {
	return offset + len(source[offset:]) - len(strings.TrimLeft(source[offset:], ".?[ \t\r\n"))
}

// noField says that a field isn't there, and which one may be meant.
func (c *compiler) noField(r *rule, parsed *cel.Ast, id int64, name string) string {
	owner, of := "an object", (*structType)(nil)
	ast.PostOrderVisit(parsed.NativeRep().Expr(), ast.NewExprVisitor(func(e ast.Expr) {
		if e.ID() != id {
			return
		}
		switch e.Kind() {
		case ast.SelectKind:
			owner, of = c.owner(r, e.AsSelect().Operand())
		case ast.CallKind: // of an optional
			if args := e.AsCall().Args(); len(args) > 0 {
				owner, of = c.owner(r, args[0])
			}
		}
	}))
	if of == nil {
		return fmt.Sprintf("there is no field %s in %s%s", name, owner, schema.DidYouMean(name, c.set.fieldNames()))
	}
	hint := schema.DidYouMean(name, of.names)
	if hint == "" {
		hint = "; its fields are " + strings.Join(of.names, ", ")
	}
	return fmt.Sprintf("there is no field %s in %s%s", name, owner, hint)
}

// noName says that there is no such variable or function, and which one may be meant.
func (c *compiler) noName(r *rule, name string) string {
	hint := schema.DidYouMean(name, c.names(r.Scope))
	if hint == "" {
		hint = fmt.Sprintf("; a rule of scope %s may name %s", r.Scope, strings.Join(c.variables(r.Scope), ", "))
	}
	return fmt.Sprintf("there is nothing called %s%s", name, hint)
}

// owner gives the path of an expression that is one, and the type of what stands there.
func (c *compiler) owner(r *rule, e ast.Expr) (string, *structType) {
	switch e.Kind() {
	case ast.IdentKind:
		name := e.AsIdent()
		for _, v := range c.envs[r.Scope].Variables() {
			if v.Name() == name {
				return name, c.set.named(v.Type())
			}
		}
		return name, nil
	case ast.SelectKind:
		return c.below(r, e.AsSelect().Operand(), ".", e.AsSelect().FieldName())
	case ast.CallKind:
		if call := e.AsCall(); call.FunctionName() == operators.OptSelect && len(call.Args()) == 2 && call.Args()[1].Kind() == ast.LiteralKind {
			return c.below(r, call.Args()[0], ".?", fmt.Sprint(call.Args()[1].AsLiteral().Value()))
		}
	}
	return "an object", nil
}

func (c *compiler) below(r *rule, operand ast.Expr, dot, field string) (string, *structType) {
	path, of := c.owner(r, operand)
	if of == nil || of.fields[field] == nil {
		return path + dot + field, nil
	}
	return path + dot + field, c.set.named(of.fields[field].Type)
}

// named gives the struct behind a type, or behind an optional of it.
func (s *typeSet) named(t *types.Type) *structType {
	if t.Kind() == types.OpaqueKind && len(t.Parameters()) == 1 {
		t = t.Parameters()[0]
	}
	return s.byName[t.TypeName()]
}

// fieldNames gives the names of all fields of all types.
func (s *typeSet) fieldNames() []string {
	var names []string
	for _, t := range s.byGo {
		names = append(names, t.names...)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// variables gives the variables of a scope.
func (c *compiler) variables(scope string) []string {
	var names []string
	for _, v := range c.envs[scope].Variables() {
		if c.set.byName[v.Name()] == nil && !strings.Contains(v.Name(), ".") {
			names = append(names, v.Name())
		}
	}
	slices.Sort(names)
	return names
}

// names gives what a rule of a scope may call by name.
func (c *compiler) names(scope string) []string {
	names := c.variables(scope)
	for name := range c.envs[scope].Functions() {
		if !strings.ContainsAny(name, "_@") {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// asError gives faults as one error about a rule, nil when there is none.
func asError(r schema.Rule, faults []fault) error {
	var all []error
	for _, f := range faults {
		all = append(all, fmt.Errorf("rule %s: %s", r.Name, f.text))
	}
	return errors.Join(all...)
}

func newCompiler() (*compiler, error) {
	set, err := newTypeSet()
	if err != nil {
		return nil, err
	}
	envs, err := newEnvs(set)
	if err != nil {
		return nil, err
	}
	heavy, err := bounded(envs[scopeCluster])
	if err != nil {
		return nil, err
	}
	return &compiler{set: set, envs: envs, bounded: heavy, costLimit: costLimit}, nil
}

// unknownSizes says of nothing how large it is.
type unknownSizes struct{}

// EstimateSize implements checker.CostEstimator.
func (unknownSizes) EstimateSize(checker.AstNode) *checker.SizeEstimate { return nil }

// EstimateCallCost implements checker.CostEstimator.
func (unknownSizes) EstimateCallCost(_, _ string, _ *checker.AstNode, _ []checker.AstNode) *checker.CallEstimate {
	return nil
}
