package validate

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/interpreter"

	"ichor.maesh.dev/schema"
)

const (
	// costLimit bounds one evaluation, in CEL's units of cost (about one a step). A rule over a list of 1,000 machines that
	// looks at ten fields of each costs some 30,000.
	costLimit = 2_000_000
	// timeLimit bounds all evaluations of one rule over a fleet. It only ever ends a rule that the cost doesn't bound.
	timeLimit = time.Minute
	// interruptEvery is how many steps of a loop are made between two looks at the time.
	interruptEvery = 256
)

// rule is a compiled rule.
type rule struct {
	schema.Rule
	info     scopeInfo
	severity Severity
	when     *lazyProgram // nil: always
	expr     *lazyProgram
	message  *lazyProgram
	// needsBase says that the rule speaks of what was, and is evaluated only where there is a base.
	needsBase bool
	// needsCluster says that the rule speaks of the cluster: it is not evaluated on an object whose cluster isn't there,
	// which cluster-exists reports.
	needsCluster bool
	costLimit    uint64
	// origin is where the rule stands, if it is a policy's.
	origin *origin
}

// check evaluates a policy's rule on every object of its scope, one after the other: what it costs is counted in that order.
func (r *rule) check(w *world) []Finding {
	ctx, cancel := context.WithTimeout(context.Background(), timeLimit)
	defer cancel()
	meter := newMeter(w)
	var findings []Finding
	for _, self := range w.objects(r.Scope, r.info) {
		if !r.speaksOf(w, self) || !meter.take(self, ctx) {
			continue
		}
		f, cost := r.judge(ctx, w, self)
		meter.spend(self, cost)
		if f != nil {
			findings = append(findings, *f)
		}
	}
	return append(findings, meter.findings(r)...)
}

// speaksOf says whether the rule is asked of an object: not of one whose cluster isn't there, if it speaks of the cluster.
func (r *rule) speaksOf(w *world, self *object) bool {
	return !r.needsCluster || w.new.of(self.cluster).cluster != nil
}

// objects gives what the rules of a scope are evaluated on.
func (w *world) objects(scope string, info scopeInfo) []*object {
	switch {
	case scope == scopeFile:
		return w.references
	case info.removed:
		var gone []*object
		for _, o := range w.old.objects[info.kind] {
			if w.fleet.isGone(o) {
				gone = append(gone, o)
			}
		}
		return gone
	}
	return w.new.objects[info.kind]
}

// judge evaluates the rule on one object, and gives what that cost. A rule that can't be evaluated is a finding.
func (r *rule) judge(ctx context.Context, w *world, self *object) (*Finding, uint64) {
	e := &evaluation{rule: r, ctx: ctx, vars: &vars{w: w, self: self, info: r.info}}
	if r.when != nil {
		applies, err := e.eval(r.when)
		if err != nil {
			return r.failed(w, self, partWhen, r.when, err), e.cost
		}
		if applies != types.True {
			w.count(r, outcome{spared: 1})
			return nil, e.cost
		}
	}
	holds, err := e.eval(r.expr)
	if err != nil {
		return r.failed(w, self, partExpr, r.expr, err), e.cost
	}
	if holds == types.True {
		w.count(r, outcome{kept: 1})
		return nil, e.cost
	}
	w.count(r, outcome{broken: 1})
	message, err := e.eval(r.message)
	if err != nil {
		return r.failed(w, self, partMessage, r.message, err), e.cost
	}
	f := r.finding(w, self)
	text, ok := message.(types.String)
	if !ok {
		return r.failed(w, self, partMessage, r.message, fmt.Errorf("it gave a %s", message.Type().TypeName())), e.cost
	}
	f.Message = string(text)
	return f, e.cost
}

// evaluation is that of one rule on one object.
type evaluation struct {
	rule *rule
	ctx  context.Context
	vars *vars
	cost uint64
}

func (e *evaluation) eval(part *lazyProgram) (result ref.Val, err error) {
	defer func() {
		if thrown := recover(); thrown != nil {
			err = fmt.Errorf("it broke off: %v", thrown)
		}
	}()
	p, err := part.program()
	if err != nil {
		return nil, err
	}
	var details *cel.EvalDetails
	switch {
	case e.rule.origin != nil:
		result, details, err = p.ContextEval(e.ctx, e.vars)
	case e.ctx.Err() != nil:
		err = e.ctx.Err()
	default: // the cost of one evaluation bounds it, and a built-in rule need not be interrupted before that
		result, details, err = p.Eval(e.vars)
	}
	if spent := details.ActualCost(); spent != nil {
		e.cost += *spent
	}
	var cancelled interpreter.EvalCancelledError
	switch {
	case errors.As(err, &cancelled) && cancelled.Cause == interpreter.CostLimitExceeded:
		e.cost += e.rule.costLimit
		err = fmt.Errorf("it costs more than %d steps; make it look at less", e.rule.costLimit)
	case err != nil && e.ctx.Err() != nil:
		err = fmt.Errorf("it took longer than %s; make it look at less", timeLimit)
	}
	return result, err
}

// failed makes the finding of a rule that could not be evaluated. It is an error whatever the rule's severity: nobody knows
// what the rule would have said. That of a policy's rule points at the policy, where it can be mended.
func (r *rule) failed(w *world, self *object, part string, p *lazyProgram, err error) *Finding {
	f := r.finding(w, self)
	f.Severity = Error
	f.failed = true
	f.Message = fmt.Sprintf("%s could not be judged, so it is refused: the rule's %s failed: %s", self.name, part, err)
	if r.origin != nil {
		f.Position = r.origin.place(part, p.offset(err))
		f.Message = fmt.Sprintf("%s %s could not be judged, so it is refused: the %s of this rule failed: %s%s", self.kind, self.name, part, err, missingHint(err))
	}
	return f
}

// missingHint says how a rule asks for what may be missing.
func missingHint(err error) string {
	if !strings.Contains(err.Error(), "no such key") {
		return ""
	}
	return "; ask for a key that may be missing with a question mark, as in labels[?'tier'].orValue('')"
}

// offset gives the byte of an expression at which it failed; 0 when that isn't known.
func (l *lazyProgram) offset(err error) int {
	var at *types.Err
	p, _ := l.program()
	if p == nil || !errors.As(err, &at) {
		return 0
	}
	if where, known := p.ast.NativeRep().SourceInfo().GetOffsetRange(at.NodeID()); known {
		location := p.ast.NativeRep().SourceInfo().GetLocationByOffset(where.Start)
		return offsetOf(p.ast.Source().Content(), location.Line(), location.Column())
	}
	return 0
}

// finding gives a finding about an object, without its message.
func (r *rule) finding(w *world, self *object) *Finding {
	f := &Finding{
		Rule: r.Name, Severity: r.severity, Kind: self.kind, Name: self.name, Cluster: w.belongsTo(self),
	}
	field := r.Field
	if ref, ok := self.native().(*reference); ok {
		field = ref.Field
	}
	if r.info.removed {
		f.Position = schema.Position{File: self.source.File} // its lines are not in the proposal any more
		return f
	}
	f.Position = place(self.source, field)
	return f
}
