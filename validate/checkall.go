package validate

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
)

// shareSize is how many objects a goroutine judges by a rule before it takes the next share: so few that all are busy to the end.
const shareSize = 250

// checkAll asks built-in rules of every object of their scopes, on all cores. The findings are in the order of the rules and then of
// the objects, whoever was first.
func checkAll(w *world, rules []*rule) []Finding {
	var shares []*share
	var asked []*rule
	for _, r := range rules {
		objects := w.objects(r.Scope, r.info)
		if len(objects) > 0 {
			asked = append(asked, r)
		}
		limit := &ruleTime{}
		defer limit.end()
		for len(objects) > 0 {
			n := min(len(objects), shareSize)
			shares = append(shares, &share{rule: r, objects: objects[:n], limit: limit})
			objects = objects[n:]
		}
	}
	onAllCores(len(asked), func(n int) { asked[n].prepare() })
	onAllCores(len(shares), func(n int) { shares[n].check(w) })
	var findings []Finding
	for _, s := range shares {
		findings = append(findings, s.findings...)
	}
	return findings
}

// onAllCores calls do with each number below count, several at once.
func onAllCores(count int, do func(int)) {
	var next atomic.Int64
	var group sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), count) {
		group.Go(func() {
			for n := next.Add(1); n <= int64(count); n = next.Add(1) {
				do(int(n - 1))
			}
		})
	}
	group.Wait()
}

// share is some of the objects that a rule is asked of.
type share struct {
	rule     *rule
	objects  []*object
	limit    *ruleTime
	findings []Finding
}

func (s *share) check(w *world) {
	ctx := s.limit.begin()
	for _, self := range s.objects {
		if !s.rule.speaksOf(w, self) {
			continue
		}
		if f, _ := s.rule.judge(ctx, w, self); f != nil {
			s.findings = append(s.findings, *f)
		}
	}
}

// ruleTime bounds all evaluations of one rule, from the first one on.
type ruleTime struct {
	once   sync.Once
	ctx    context.Context
	cancel context.CancelFunc
}

func (t *ruleTime) begin() context.Context {
	t.once.Do(func() { t.ctx, t.cancel = context.WithTimeout(context.Background(), timeLimit) })
	return t.ctx
}

func (t *ruleTime) end() {
	if t.cancel != nil {
		t.cancel()
	}
}
