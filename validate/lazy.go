package validate

import (
	"regexp"
	"sync"

	"github.com/google/cel-go/common/types"

	"ichor.maesh.dev/schema"
)

// lazyProgram is a part of a rule that is compiled when it is first asked for. Several goroutines may ask at once.
type lazyProgram struct {
	once    sync.Once
	compile func() (*program, error)
	made    *program
	err     error
}

func (l *lazyProgram) program() (*program, error) {
	l.once.Do(func() { l.made, l.err = l.compile() })
	return l.made, l.err
}

// compiled gives a part that is compiled already.
func compiled(p *program) *lazyProgram {
	return &lazyProgram{compile: func() (*program, error) { return p, nil }}
}

// later gives a built-in rule, none of whose parts is compiled before it is asked for: most are asked of nothing in a fleet, and the
// message of a rule that everything keeps is needed by nobody.
func (c *compiler) later(r schema.Rule) *rule {
	made := &rule{Rule: r, info: scopes()[r.Scope], severity: Severity(r.SeverityOrError()), costLimit: c.costLimit}
	part := func(name, source string, want *types.Type) *lazyProgram {
		return &lazyProgram{compile: func() (*program, error) {
			p, faults := c.program(made, name, source, want)
			return p, asError(r, faults)
		}}
	}
	if r.When != "" {
		made.when = part(partWhen, r.When, types.BoolType)
	}
	made.expr = part(partExpr, r.Expr, types.BoolType)
	made.message = part(partMessage, r.Message, types.StringType)
	for _, source := range []string{r.When, r.Expr, r.Message} {
		source = literals.ReplaceAllString(source, "''")
		made.needsBase = made.needsBase || speaksOfBase.MatchString(source)
		made.needsCluster = made.needsCluster || speaksOfCluster.MatchString(source)
	}
	made.needsBase = made.needsBase || made.info.removed
	return made
}

// prepare compiles what every object needs. What can't be compiled is said when it is asked for.
func (r *rule) prepare() {
	for _, part := range []*lazyProgram{r.when, r.expr} {
		if part != nil {
			_, _ = part.program()
		}
	}
}

// ready compiles what isn't yet.
func (r *rule) ready() error {
	for _, part := range []*lazyProgram{r.when, r.expr, r.message} {
		if part == nil {
			continue
		}
		if _, err := part.program(); err != nil {
			return err
		}
	}
	return nil
}

// What a rule speaks of is read out of its text, which is ours. TestWhatABuiltInRuleSpeaksOfIsReadOutOfItsText compares it with what
// the compiler finds.
var (
	literals        = regexp.MustCompile(`'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"`)
	speaksOfBase    = regexp.MustCompile(`\bold(?:Self|Cluster|Machines|Backups|Operations|MachinesWithUUID|OperationsIn)\b`)
	speaksOfCluster = regexp.MustCompile(`(?:^|[^.\w])cluster\b`)
)
