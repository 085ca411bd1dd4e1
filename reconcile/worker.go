package reconcile

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"time"

	"ichor.maesh.dev/backup/keeper"
	"ichor.maesh.dev/kube"
	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/talos"
)

// worker runs one cluster.
type worker struct {
	agent *Agent
	name  string
	log   *slog.Logger
	wake  chan struct{}

	// The rest belongs to the goroutine that runs the cluster.
	good    *fleetAt
	opened  *fleetAt // the bundle was last opened from
	bundle  *talos.Bundle
	state   StateStore
	nodes   Nodes
	compare *Comparer
	foldKey [2]string
	folded  folded
	// earlier is why the bundle was opened from an earlier commit than the newest, of which nobody knows whether the cluster was on it:
	// no state is made with it. Empty where it wasn't.
	earlier string
	// owned says that this process is the writer, token under which lease it became that, lostTo under which it was ousted.
	// epoch is the writer's number.
	owned  bool
	token  uint64
	lostTo uint64
	epoch  uint64
	// quietSince is since when who ousted this process has written nothing, quietAt the state's generation then; 0: it was not looked at yet.
	quietSince statefile.Instant
	quietAt    uint64
	// ownedAt is when this process became the writer, readAt when it began to read the state last.
	ownedAt statefile.Instant
	readAt  time.Time
	known   knownMoments
	// unsent are the nonces of the last intents whose calls this process did not make.
	unsent []string
	// idle says that the last pass found nothing to do.
	idle bool
	said map[string]string
	// deferred are machines that could not be given their first config.
	deferred map[string]deferral

	// kube is the way to the cluster's Kubernetes API, and what the last round of a drain left.
	kube struct {
		api     Kubernetes
		servers []string
		bundle  *talos.Bundle
		drain   *kube.Drain
		drainOf string
	}

	// opFiles are the operation files of the newest revision, inbox those given without Git. begun, taken and judged are what this
	// process found out of operations, as Operations has it.
	opFiles      operationFiles
	inbox        inboxFiles
	begun, taken map[string]string
	judged       map[string]bool
	unbegun      map[string]string
	refused      refusals

	// keeper keeps the cluster's backups, apart from the passes.
	keeper *keeper.Keeper
	// due does what is due for them, where the agent makes one pass.
	due func(context.Context)

	// restoration is the restore that this process drives; nil: none.
	restoration *restoration

	passes PassCount
	// compared is replaced, never changed: reports share it.
	compared map[string]time.Time

	mu   sync.Mutex
	last ClusterReport
}

func newWorker(a *Agent, name string) *worker {
	return &worker{agent: a, name: name, log: a.log.With("cluster", name), wake: make(chan struct{}, 1), said: map[string]string{},
		deferred: map[string]deferral{}, begun: map[string]string{}, taken: map[string]string{}, judged: map[string]bool{}, unbegun: map[string]string{},
		last: ClusterReport{Name: name, Blocked: true, Ready: statefile.Condition{Reason: "Starting", Message: "no pass was made yet"}}}
}

func (w *worker) poke() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// run makes passes until ctx ends.
func (w *worker) run(ctx context.Context) {
	defer w.close()
	for ctx.Err() == nil {
		wait := w.once(ctx)
		if wait <= 0 {
			continue
		}
		timer := w.agent.clock.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-timer.C():
		case <-w.wake:
		}
		timer.Stop()
	}
}

func (w *worker) close() {
	w.dropRestore()
	if w.keeper != nil {
		w.keeper.Close()
	}
	if w.nodes != nil {
		w.nodes.Close()
	}
}

// once makes one pass, keeps what came of it, and says what is new. A pass that panics is a failed pass of this cluster
// alone.
func (w *worker) once(ctx context.Context) (wait time.Duration) {
	wait = w.agent.timing.Busy
	defer w.agent.scrubber.Recover(func(text string) {
		w.keep(trouble("InternalError", "the pass failed: %s", text))
	})
	began := w.agent.clock.Now()
	next, err := w.pass(ctx)
	if w.keeper != nil && !w.owned {
		w.keeper.Stop() // another process is the writer, or may soon be
	}
	if ctx.Err() != nil {
		return next
	}
	w.passes.Count++
	w.passes.Spent += w.agent.clock.Since(began)
	if err == nil {
		w.passes.LastWhole = w.agent.clock.Now()
	}
	w.keep(err)
	if w.good != nil {
		w.agent.reached(w.name, w.good.revision.Commit)
	}
	return next
}

// keep notes how the cluster stands after a pass.
func (w *worker) keep(err error) {
	report := ClusterReport{Name: w.name, Passes: w.passes, Compared: w.compared}
	if w.state != nil {
		report.State, _ = w.state.Known()
	}
	var why *problem
	switch {
	case errors.As(err, &why):
		report.Blocked = true
		report.Ready = statefile.Condition{Reason: why.Reason, Message: w.agent.scrubber.Text(why.Error())}
	case errors.Is(err, errStale):
		return
	case err != nil:
		report.Blocked = true
		report.Ready = statefile.Condition{Reason: "Failed", Message: w.agent.scrubber.Text(err.Error())}
	case report.State != nil:
		report.Ready = report.State.Ready
	}
	if report.Blocked {
		w.tell("pass", sameCause(report.Ready), func() {
			w.log.Warn("the pass ended early", "reason", report.Ready.Reason, "message", report.Ready.Message)
		})
	} else if w.said["pass"] != "" {
		delete(w.said, "pass")
		w.log.Info("passes are whole again")
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last = report
}

// sameCause is a text that stays the same while the cause does: a store that can't be reached is one cause, whatever was
// asked of it, and also where the lease ended meanwhile.
func sameCause(c statefile.Condition) string {
	if c.Reason == "StateUnavailable" && strings.Contains(c.Message, statefile.ErrUnavailable.Error()) {
		return c.Reason
	}
	return c.Reason + ": " + c.Message
}

func (w *worker) report() ClusterReport {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.last
}

// tell logs what is new under a key.
func (w *worker) tell(key, text string, log func()) {
	if w.said[key] != text {
		w.said[key] = text
		log()
	}
}

// say logs what a decision found, where it differs from what was said before.
func (w *worker) say(plan Plan, in Input) {
	next := plan.Next
	w.tell("cluster", next.Ready.Reason+next.Ready.Message, func() {
		w.log.Info("cluster", "ready", next.Ready.Status, "reason", next.Ready.Reason, "message", next.Ready.Message)
	})
	for name, m := range next.Machines {
		w.tell("machine "+name, m.Ready.Reason+m.Ready.Message, func() {
			w.log.Info("machine", "machine", name, "ready", m.Ready.Status, "reason", m.Ready.Reason, "message", m.Ready.Message)
		})
	}
	w.sayOperations(next)
	if r := next.Revision.Refused; r != nil {
		w.tell("refused", r.Commit+strings.Join(r.Findings, ""), func() {
			w.log.Error("the newest revision is refused for this cluster, which stays on the last good one", "commit", r.Commit,
				"applied", next.Revision.Applied, "findings", strings.Join(r.Findings, "; "))
		})
	}
	if list := strings.Join(next.Revision.NotYet, "; "); list != "" {
		w.tell("notyet", list, func() { w.log.Warn("documents are left alone", "documents", list) })
	}
	if plan.Resolved != nil {
		w.log.Info("resolved", "action", plan.Resolved.Intent.Action, "machine", plan.Resolved.Intent.Machine, "outcome", plan.Resolved.Outcome)
	}
}
