package reconcile

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"strings"
	"time"

	"ichor.maesh.dev/gitsource"
	"ichor.maesh.dev/internal/sealed"
	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/talos"
)

// problem is why a cluster can't be worked on in this pass: a reason and a sentence. It stands in the log and the status, and in
// the state where that can be written.
type problem struct {
	Reason string
	Err    error
}

func (p *problem) Error() string { return p.Err.Error() }
func (p *problem) Unwrap() error { return p.Err }

func trouble(reason string, format string, args ...any) error {
	return &problem{Reason: reason, Err: fmt.Errorf(format, args...)}
}

// errFromMemory says that something is to be done, and that what is known of the state isn't fresh enough for it.
var errFromMemory = errors.New("the state is to be read first")

// pass looks at one cluster once, decides, and does what is due. It returns how soon the next pass should come. Where the last pass found
// nothing to do, the state isn't read again at once, since reads are paid for: what is remembered of it serves to see that there still is
// nothing. As soon as there is something, the pass is made anew with the state as it is in the store.
func (w *worker) pass(ctx context.Context) (time.Duration, error) {
	wait, err := w.passWith(ctx, w.rested())
	if errors.Is(err, errFromMemory) {
		wait, err = w.passWith(ctx, false)
	}
	if err != nil { // the next pass may meet it too, and asks machines and store again
		wait = max(wait, w.agent.timing.Busy)
	}
	return wait, err
}

// rested says whether the last pass found nothing to do, a moment ago.
func (w *worker) rested() bool {
	age := w.agent.clock.Since(w.readAt)
	return w.idle && age >= 0 && age < w.agent.timing.Reread
}

// idle says whether a plan leaves everything as it is.
func (p Plan) idle(state *statefile.State) bool {
	return len(p.Actions) == 0 && len(p.Begin) == 0 && len(p.Backups) == 0 && p.Restore == nil && p.Resolved == nil && !p.Busy && sameState(state, p.Next)
}

// passWith makes a pass with the state as it is in the store, or as it is remembered; errFromMemory then says that this isn't enough.
func (w *worker) passWith(ctx context.Context, remembered bool) (time.Duration, error) {
	w.idle = false
	head, gitProblem := w.agent.head()
	if head == nil {
		return w.agent.timing.Busy, trouble("GitUnavailable", "no revision of the repository is known yet: %s", nameOr(gitProblem, "it is being fetched"))
	}
	if err := w.open(ctx, head); err != nil {
		return w.agent.timing.Busy, err
	}
	state, err := w.ownOr(ctx, remembered)
	if err != nil {
		return w.agent.timing.Busy, err
	}
	desired, next, err := w.desired(ctx, state, head, gitProblem)
	if err != nil {
		return w.agent.timing.Busy, err
	}
	plan, in, err := w.decide(ctx, desired, state, next, w.operations(ctx, desired, state, head, gitProblem))
	if err != nil {
		return w.agent.timing.Busy, err
	}
	idle := plan.idle(state)
	if remembered && !idle {
		return 0, errFromMemory
	}
	w.say(plan, in)
	if err := w.store(ctx, state, plan); err != nil {
		return w.agent.timing.Busy, err
	}
	for _, digest := range plan.Judged {
		w.judged[digest] = true
	}
	maps.Copy(w.refused.by, plan.Refused)
	w.tend(ctx, desired, plan, in)
	if settled, err := w.beginOperations(ctx, plan); err != nil || settled {
		return 0, err
	}
	w.restore(ctx, desired, plan.Restore, in)
	acted, err := w.act(ctx, desired, plan, in)
	switch {
	case err != nil:
		return w.agent.timing.Busy, err
	case acted:
		return 0, nil
	case plan.Busy:
		return w.agent.timing.Busy, nil
	}
	w.idle = idle
	if plan.Held {
		return min(w.agent.timing.Held, w.agent.timing.Steady), nil
	}
	return w.agent.timing.Steady, nil
}

// open makes the handles on the cluster's nodes and state once the secrets bundle can be opened, and again when it changed.
// Where it can't, a newer revision may hold one that can: the next pass does not insist on this one.
func (w *worker) open(ctx context.Context, head *gitsource.Revision) error {
	err := w.openBundle(ctx, head)
	if err != nil {
		w.good = nil
	}
	return err
}

func (w *worker) openBundle(ctx context.Context, head *gitsource.Revision) error {
	f, err := w.standing(ctx, head)
	if err != nil {
		return err
	}
	if w.bundle != nil && w.opened == f {
		return nil
	}
	cluster := f.cluster(w.name).Object
	switch {
	case cluster == nil && w.bundle != nil:
		// It was taken out of Git: what is remembered of it is still written with the bundle that it had.
		return nil
	case cluster == nil:
		return trouble("NoCluster", "commit %.12s holds no TalosCluster %s", f.revision.Commit, w.name)
	}
	identities, err := w.agent.identities()
	if err != nil {
		return trouble("IdentityUnusable", "the age identity can't be used: %w", err)
	}
	bundle, err := OpenBundle(f.fleet, cluster, identities)
	if err != nil {
		reason := "SecretsUnreadable"
		if errors.Is(err, sealed.ErrNoIdentity) || errors.Is(err, sealed.ErrOtherRecipients) {
			reason = "WrongIdentity"
		}
		return trouble(reason, "the secrets bundle of %s can't be opened, so nothing of it is read or done: %w", w.name, err)
	}
	w.agent.scrubber.Add(bundle.Scalars()...)
	w.agent.hideOpened(identities)
	if w.bundle != nil && w.bundle.Same(bundle) {
		w.opened = f
		return nil
	}
	if w.bundle != nil && w.bundle.Fingerprint() != bundle.Fingerprint() {
		return trouble("WrongBundle", "the secrets bundle of %s is another one than before: cluster ID and cluster secret must stay, or every "+
			"backup would be orphaned; put the former one back", w.name)
	}
	if w.state == nil {
		if w.state, err = w.agent.openState(w.name, bundle); err != nil {
			return trouble("StateUnavailable", "the state of %s can't be used: %w", w.name, err)
		}
	}
	if w.nodes != nil {
		w.nodes.Close()
	}
	w.bundle, w.nodes, w.compare, w.opened = bundle, w.agent.openNodes(bundle), nil, f
	return nil
}

// standing is the revision that the bundle is read from: the one the cluster is on, else the newest where that is legal, else
// the last that was, else the newest one before it that is. From that last one no state is made: it may be older than what the cluster is on.
func (w *worker) standing(ctx context.Context, head *gitsource.Revision) (*fleetAt, error) {
	if w.good != nil {
		return w.good, nil
	}
	now := w.agent.clock.Now()
	w.earlier = ""
	result := w.agent.history.start(w.name, head, now)
	if result.good != nil && result.good.cluster(w.name).Object != nil {
		return result.good, nil
	}
	if last, err := w.agent.source.LastGood(); err == nil {
		if f := w.agent.history.load(last); f.cluster(w.name).Object != nil {
			return f, nil
		}
	}
	if len(result.refused) > 0 {
		// The state, where there is one, says what the cluster is on; to open it takes no more than a bundle of this cluster.
		var found *fleetAt
		_, err := w.agent.history.newestThat(head, func(r *gitsource.Revision) bool {
			if w.agent.history.commits.unsigned(r, now) != "" {
				return false // what nobody signed isn't even read
			}
			f := w.agent.history.start(w.name, r, now).good
			if f == nil || f.fleet.Cluster(w.name) == nil {
				return false
			}
			found = f
			return true
		})
		if err == nil {
			w.earlier = fmt.Sprintf("commit %.12s is refused and no earlier one is known: %s", head.Commit, strings.Join(result.refused, "; "))
			return found, nil
		}
		return nil, trouble("RevisionRefused", "commit %.12s is refused and no earlier one is known: %s", head.Commit, strings.Join(result.refused, "; "))
	}
	return nil, trouble("NoCluster", "commit %.12s holds no TalosCluster %s", head.Commit, w.name)
}

// desired walks the commits up to the newest legal one and puts what is remembered of revisions and approvals into next.
func (w *worker) desired(ctx context.Context, state *statefile.State, head *gitsource.Revision, gitProblem string) (Cluster, *statefile.State, error) {
	from := state.Revision.Applied
	if w.good != nil && w.good.revision.Commit != from {
		w.good = nil
	}
	key := [2]string{from, head.Commit}
	on := place{applied: from, verified: state.Revision.Verified, now: state.Time(w.agent.clock.Now())}
	if w.foldKey != key || w.folded.good == nil || w.signedMeanwhile(on.now) {
		result, err := w.agent.history.fold(ctx, w.name, on, head, w.folded)
		if err != nil {
			reason := "GitUnavailable"
			if errors.Is(err, errRewound) {
				reason = "RevisionRewound"
			}
			return Cluster{}, nil, &problem{Reason: reason, Err: err}
		}
		w.folded, w.foldKey = result, key
	}
	result := w.folded
	if result.good == nil {
		return Cluster{}, nil, trouble("RevisionRefused", "commit %.12s is refused and no earlier one is known: %s", head.Commit, strings.Join(result.refused, "; "))
	}
	w.good = result.good
	desired := w.good.cluster(w.name)
	if desired.Object == nil {
		return Cluster{}, nil, w.gone(ctx, state)
	}
	next := cloneState(state)
	setAside(next, desired) // before it is asked since when a machine is approved
	next.Revision.Observed, next.Revision.Problem, next.Revision.NotYet = head.Commit, gitProblem, result.notYet
	next.Revision.Refused, next.Revision.Verified = nil, result.verified
	if len(result.refused) > 0 {
		next.Revision.Refused = &statefile.RefusedRevision{Commit: head.Commit, Findings: result.refused}
	}
	next.SingleAgent = w.agent.config.SingleAgent
	next.Cluster = statefile.ClusterIdentity{Name: w.name, ID: schema.ClusterID(w.bundle.ClusterID()),
		BundleFingerprint: w.bundle.Fingerprint(), CAs: w.bundle.CAs()}
	if w.agent.backups == nil {
		// An agent that takes no backups refuses the documents that ask for them, as if they weren't there.
		desired.Backups = nil
	}
	if err := w.approvals(ctx, desired, next); err != nil {
		return Cluster{}, nil, trouble("GitUnavailable", "when machines were approved can't be read from history: %w", err)
	}
	return desired, next, nil
}

// signedMeanwhile says whether the commit at which the walk ended is judged in another way by now: a signer was added, a key expired, the
// file of signers can be read again.
func (w *worker) signedMeanwhile(now time.Time) bool {
	f := w.folded
	return f.unsigned != nil && w.agent.history.commits.unsigned(f.unsigned, now) != f.unsignedWhy
}

// gone says, in the state too, that a cluster was taken out of Git.
func (w *worker) gone(ctx context.Context, state *statefile.State) error {
	commit := w.good.revision.Commit
	why := trouble("NoCluster", "the TalosCluster %s is no longer in Git (commit %.12s): nothing is done to its machines, which run on as they are",
		w.name, commit)
	next := cloneState(state)
	next.Revision = statefile.RevisionState{Observed: commit, Applied: commit, Verified: w.folded.verified}
	if next.Ready.Reason != "NoCluster" {
		next.Ready = statefile.Condition{Type: "Ready", Reason: "NoCluster", Message: why.Error(), Since: stamp(w.agent.clock.Now())}
	}
	if err := w.store(ctx, state, Plan{Next: next}); err != nil {
		return err
	}
	return why
}

// approvals finds when machines without a time of their own were approved: in the commit that did it.
func (w *worker) approvals(ctx context.Context, desired Cluster, next *statefile.State) error {
	for _, m := range desired.Machines {
		name := m.Metadata.Name
		if !m.Spec.Approved || m.Spec.ApprovalDecision != nil && !m.Spec.ApprovalDecision.At.IsZero() {
			continue
		}
		memory := next.Machines[name]
		if memory != nil && !memory.FirstApproved.IsZero() {
			continue
		}
		found, err := w.agent.source.Approved(ctx, w.good.revision, m.Source.File, func(r *gitsource.Revision) (bool, error) {
			fleet, _ := schema.Load(r.Tree, []string{"."})
			for _, then := range fleet.MachinesOf(w.name) {
				if then.Metadata.Name == name {
					return then.Spec.Approved, nil
				}
			}
			return false, nil
		})
		if err != nil {
			return err
		}
		if memory == nil {
			memory = &statefile.MachineState{}
			next.Machines[name] = memory
		}
		memory.FirstApproved = stamp(found.Committed)
	}
	return nil
}

// decide looks at the machines and decides; a second time with the listing of the backups where the first asks for it.
func (w *worker) decide(ctx context.Context, desired Cluster, state, next *statefile.State, operations *Operations) (Plan, Input, error) {
	identities, err := w.agent.identities()
	if err != nil {
		return Plan{}, Input{}, trouble("IdentityUnusable", "the age identity can't be used: %w", err)
	}
	w.renewComparer(desired, identities)
	w.settleUnsent(next)
	age := w.writerAge()
	in := Input{Cluster: desired, State: next, WriterAge: &age, ages: w.known.note(state, w.agent.clocks.Now()), Timing: w.agent.timing, TrustedNetworks: w.agent.trusted, Mark: w.agent.mark,
		Deferred: w.stillDeferred(), Operations: operations, Restore: w.restoreView(), NodeName: nodeNameIn(w.agent.config.NodeName, w.name),
		LocalAddresses: localAddresses(), RecoverFlags: w.agent.config.RecoverFlags}
	targets := Targets(desired, state)
	if err := w.look(ctx, desired, targets, &in); err != nil {
		return Plan{}, Input{}, err
	}
	plan := Decide(in)
	if plan.NeedKubernetes {
		in.Kubernetes = w.lookAtKubernetes(ctx, desired, &in)
		plan = Decide(in)
	}
	if plan.NeedBackups {
		listing := w.listBackups(ctx, desired)
		in.Backups = &listing
		// Listing may take long, and what hangs on it must rest on what the machines show now.
		if err := w.look(ctx, desired, targets, &in); err != nil {
			return Plan{}, Input{}, err
		}
		plan = Decide(in)
	}
	return plan, in, nil
}

// renewComparer makes the comparer anew for another revision, and for other identities: they may open what could not be opened.
func (w *worker) renewComparer(desired Cluster, identities *sealed.Identities) {
	if w.compare != nil && w.compare.fleet == w.good.fleet && w.compare.identities == identities {
		return
	}
	compare := NewComparer(w.good.fleet, desired.Object, w.bundle, identities, w.agent.mark)
	if w.compare != nil {
		compare.follow(w.compare)
	}
	w.compare = compare
}

// look observes the machines, and compares each with what it should run.
func (w *worker) look(ctx context.Context, desired Cluster, targets []talos.Target, in *Input) error {
	seen := Observe(ctx, w.nodes, targets, w.agent.timing)
	if err := ctx.Err(); err != nil {
		return err
	}
	in.Seen, in.Now = map[string]Seen{}, w.agent.clock.Now()
	for name, o := range seen {
		s := w.compare.seen(desired.Machine(name), o)
		if s.Config.Problem != "" {
			s.Config.Problem = w.agent.scrubber.Text(s.Config.Problem)
		}
		in.Seen[name] = s
	}
	// What sealed patches held is known now; nothing of it may reach a log or the state.
	w.agent.hideOpened(w.compare.identities)
	w.noteCompared(desired, in)
	return nil
}

// noteCompared keeps when each machine was last compared with what it should run.
func (w *worker) noteCompared(desired Cluster, in *Input) {
	compared := make(map[string]time.Time, len(desired.Machines))
	for _, m := range desired.Machines {
		name := m.Metadata.Name
		if in.Seen[name].Config.Wanted != "" {
			compared[name] = in.Now
		} else if before, ok := w.compared[name]; ok {
			compared[name] = before
		}
	}
	w.compared = compared
}

// deferral is a machine whose first config could not be sent: it is left out until a moment, so that the others go on.
type deferral struct {
	why   string
	until time.Time
}

func (w *worker) stillDeferred() map[string]string {
	left := map[string]string{}
	for name, d := range w.deferred {
		if w.agent.clock.Now().Before(d.until) {
			left[name] = d.why
		} else {
			delete(w.deferred, name)
		}
	}
	return left
}

func (w *worker) listBackups(ctx context.Context, desired Cluster) Listing {
	if w.agent.backups == nil {
		return Listing{}
	}
	owner, err := w.owner()
	listing := w.agent.backups.list(ctx, w.good.fleet, desired.Backups, owner, err)
	for name, problem := range listing.Problem {
		listing.Problem[name] = w.agent.scrubber.Text(problem)
	}
	return listing
}

// store writes the decided state where it differs from the one that was read. A pass that changes nothing writes nothing.
func (w *worker) store(ctx context.Context, state *statefile.State, plan Plan) error {
	if sameState(state, plan.Next) {
		return nil
	}
	var events []statefile.Event
	if plan.Resolved != nil {
		events = append(events, statefile.Event{Action: "Resolved", Machine: plan.Resolved.Intent.Machine, Operation: plan.Resolved.Intent.Operation, Message: plan.Resolved.Outcome,
			Details: map[string]string{"call": plan.Resolved.Intent.Action, "nonce": plan.Resolved.Intent.Nonce}})
	}
	if state.Origin != plan.Next.Origin {
		events = append(events, statefile.Event{Action: "OriginDecided", Message: string(plan.Next.Origin)})
	}
	if plan.Next.Bootstrap != nil && plan.Next.Bootstrap.Adopted && state.Bootstrap == nil {
		events = append(events, statefile.Event{Action: "EtcdAdopted", Machine: plan.Next.Bootstrap.Machine,
			Message: "an etcd was found that this state did not bootstrap; none is bootstrapped beside it"})
	}
	events = append(events, operationEvents(state, plan.Next)...)
	next := cloneState(plan.Next)
	reconciled(state, next, stamp(w.agent.clock.Now()))
	err := w.state.Swap(ctx, func(s *statefile.State) error {
		if !sameState(s, state) {
			return errStale
		}
		audit, latest, writer, backups := s.Audit, s.Latest, s.Writer, s.Backups
		keep := cloneState(next)
		*s = *keep
		s.Audit, s.Latest, s.Writer, s.Backups = audit, latest, writer, backups
		for _, order := range plan.Backups {
			if err := order.place(s); err != nil {
				return err
			}
		}
		return nil
	}, events...)
	if err != nil {
		return w.fenced(err)
	}
	return nil
}

// reconciled stamps machines that became Ready, or whose entry changes anyway: a pass that finds nothing new writes nothing.
func reconciled(before, next *statefile.State, now time.Time) {
	for name, m := range next.Machines {
		if m.Ready.Status && (before.Machines[name] == nil || !reflect.DeepEqual(before.Machines[name], m)) {
			m.LastReconciled = now
		}
	}
}

// sameState says whether two states agree in everything a decision rests on. What each write moves by itself is left out, and so is
// what is remembered of backups, which are kept beside the passes.
func sameState(a, b *statefile.State) bool {
	left, right := *a, *b
	for _, s := range []*statefile.State{&left, &right} {
		s.Audit, s.Latest, s.Writer.Since = statefile.AuditHead{}, time.Time{}, time.Time{}
		s.Backups = nil
		if len(s.Machines) == 0 {
			s.Machines = nil
		}
	}
	return reflect.DeepEqual(left, right)
}
