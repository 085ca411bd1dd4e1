package reconcile

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"

	"ichor.maesh.dev/gitsource"
	"ichor.maesh.dev/operation"
	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/statefile"
)

// largestOperation bounds what is read of an operation's file that can't be one: its digest stands in the state all the same.
const largestOperation = 64 << 10

// inboxFull: what isn't read can't be told from what is gone.
const inboxFull = "the inbox holds more files than are read, and only those that were put there last are; take old ones away"

// operationFiles are the operation files of one cluster at one commit.
type operationFiles struct {
	commit string
	files  []Submitted
}

// refusals are verdicts that stay as they are while the revisions and the signers do.
type refusals struct {
	commits string
	signers *operation.AllowedSigners
	by      map[string]*operation.Refusal
}

// under gives the verdicts of those revisions and signers, none at first.
func (r *refusals) under(commits string, signers *operation.AllowedSigners) map[string]*operation.Refusal {
	if r.by == nil || r.commits != commits || r.signers != signers {
		*r = refusals{commits: commits, signers: signers, by: map[string]*operation.Refusal{}}
	}
	return r.by
}

// inboxFiles are those of the inbox, as they were read last.
type inboxFiles struct {
	at time.Time
	// rings is what the bell had said by then.
	rings   uint64
	files   []Submitted
	problem string
	// more: it holds more files than are read.
	more bool
	// away: the store couldn't be reached when it was read last.
	away bool
}

// operations gathers what this pass knows of operations.
func (w *worker) operations(ctx context.Context, desired Cluster, state *statefile.State, head *gitsource.Revision, gitProblem string) *Operations {
	config := w.agent.config
	ops := &Operations{Commit: head.Commit, Stale: gitProblem, Nonce: statefile.NewNonce(), Gone: map[string]bool{}, RunExisting: map[string]bool{},
		Begun: w.begun, Taken: w.taken, Judged: w.judged, Unbegun: w.unbegun}
	for _, name := range config.RunExisting {
		ops.RunExisting[name] = true
	}
	if config.Skew != nil {
		ops.Skew = config.Skew()
	}
	w.signers(ops)
	ops.Refused = w.refused.under(head.Commit+" "+desired.Commit, ops.Signers)
	f := w.agent.history.load(head)
	if w.opFiles.commit != head.Commit {
		w.opFiles = operationFiles{commit: head.Commit, files: gitOperations(f, w.name, desired.Object.Spec.ID)}
	}
	w.readInbox(ctx, state, gitProblem)
	ops.Files = slices.Concat(w.opFiles.files, w.inbox.files)
	if w.inbox.problem != "" {
		ops.Stale = nameOr(ops.Stale, w.inbox.problem)
	} else if w.inbox.more {
		ops.Stale = nameOr(ops.Stale, inboxFull)
	}
	for _, op := range state.Operations {
		if op.Phase != statefile.OperationPending {
			continue
		}
		if op.Source == sourceInbox {
			ops.Gone[placed(op.Source, op.File)] = w.inbox.problem == "" && !w.inbox.more && !slices.ContainsFunc(w.inbox.files, func(s Submitted) bool { return s.shown() == op.File })
		} else if _, err := fs.Stat(head.Tree, op.File); errors.Is(err, fs.ErrNotExist) {
			// A name that acts on terminals stands cleaned in the state.
			ops.Gone[placed(op.Source, op.File)] = !slices.ContainsFunc(w.opFiles.files, func(s Submitted) bool { return s.shown() == op.File })
		}
	}
	return ops
}

// signers reads who may sign, anew each time, so that a corrected file is used without a restart.
func (w *worker) signers(ops *Operations) {
	if w.agent.config.Signers == nil {
		ops.Problem = "this agent carries out no operations, because nobody told it who may sign them; start it with --allowed-signers FILE"
		return
	}
	signers, err := w.agent.config.Signers()
	if err != nil {
		ops.Unread, ops.Problem = true, "who may sign can't be read: "+w.agent.scrubber.Text(err.Error())
		return
	}
	ops.Signers = signers
}

// gitOperations finds the operation files of a cluster in a revision, those that can't be read as operations included.
func gitOperations(f *fleetAt, cluster, id string) []Submitted {
	var files []Submitted
	seen := map[string]bool{}
	add := func(file string, data []byte, digest string, kind schema.OperationKind, expires time.Time) {
		if seen[file] {
			return
		}
		seen[file] = true
		s := Submitted{Source: sourceGit, File: file, Data: data, Digest: digest, Kind: kind, ExpiresAt: expires}
		if _, signature, err := f.fleet.ReadRef(file, schema.FileRef{File: path.Base(file) + operation.SignatureSuffix}); err == nil {
			s.Signature = signature
		}
		files = append(files, s)
	}
	mine := func(owner string) bool {
		return owner == cluster || owner == "" && len(f.fleet.Clusters) == 1 && f.fleet.Clusters[0].Metadata.Name == cluster
	}
	for _, p := range f.problems {
		if p.Kind == schema.KindOperation && !seen[p.File] && mine(p.Cluster) { // a file may have thousands of problems
			if data, err := fs.ReadFile(f.revision.Tree, p.File); err == nil {
				add(p.File, data[:min(len(data), largestOperation)], operation.Digest(data), "", time.Time{})
			}
		}
	}
	for _, op := range f.fleet.Operations {
		ref := op.Spec.ClusterRef
		if ref.Name != cluster && ref.ID != id && !(f.fleet.Cluster(ref.Name) == nil && mine(f.fleet.ClusterFor(op.Source.File, ref.Name))) {
			continue
		}
		if carriedOut(op.Spec) { // what isn't yet is left alone, and said
			add(op.Source.File, op.Raw, operation.Digest(op.Raw), op.Spec.Kind, op.Spec.ExpiresAt)
		}
	}
	return files
}

// inboxDue says whether the inbox is to be listed in this pass: when somebody rang, in each pass while one of its operations waits for its
// start, often while Git can't be read, since that is what the inbox is for, and else now and then: files may be put there by hand.
func (w *worker) inboxDue(ctx context.Context, state *statefile.State, gitProblem string) bool {
	rang, interval := false, w.agent.timing.Inbox
	if w.agent.config.Bell != nil {
		rings, err := w.agent.rings(ctx)
		rang = rings != w.inbox.rings
		w.inbox.rings = rings
		if err == nil && gitProblem == "" && w.inbox.problem == "" {
			interval = w.agent.timing.InboxList
		}
	}
	waiting := slices.ContainsFunc(state.Operations, func(op *statefile.OperationState) bool {
		return op.Phase == statefile.OperationPending && op.Source == sourceInbox
	})
	age := w.agent.clock.Since(w.inbox.at)
	return rang || waiting || w.inbox.at.IsZero() || age < 0 || age >= interval
}

// rings asks the bell, now and then and once for all clusters.
func (a *Agent) rings(ctx context.Context) (uint64, error) {
	a.bell.Lock()
	defer a.bell.Unlock()
	if age := a.clock.Since(a.bell.at); a.bell.at.IsZero() || age < 0 || age >= a.timing.Inbox {
		rings, err := a.config.Bell(ctx)
		if ctx.Err() != nil {
			return a.bell.rings, ctx.Err()
		}
		a.bell.at, a.bell.err = a.clock.Now(), err
		if err == nil {
			a.bell.rings = rings
		}
	}
	return a.bell.rings, a.bell.err
}

// readInbox reads the inbox when it is due. A store that went away since this pass read the state is not said twice: the next pass says it
// of the state, or reads the inbox again.
func (w *worker) readInbox(ctx context.Context, state *statefile.State, gitProblem string) {
	read := w.agent.config.Inbox
	if read == nil {
		return
	}
	if !w.inboxDue(ctx, state, gitProblem) {
		return
	}
	w.inbox.at, w.inbox.problem = w.agent.clock.Now(), ""
	files, more, err := read(ctx, w.name)
	if err != nil {
		w.inbox.problem = w.agent.scrubber.Text(err.Error())
	}
	before := w.inbox.away
	if w.inbox.away = errors.Is(err, statefile.ErrUnavailable); w.inbox.away && !before {
		w.inbox.at = time.Time{}
		return
	}
	w.tell("inbox", w.inbox.problem, func() {
		if w.inbox.problem != "" {
			w.log.Warn("the inbox can't be read", "problem", w.inbox.problem)
		}
	})
	if err != nil {
		return
	}
	w.tell("inbox full", fmt.Sprint(more), func() {
		if more {
			w.log.Warn(inboxFull, "read", len(files))
		}
	})
	w.inbox.files, w.inbox.more = nil, more
	for _, file := range files {
		if file.Problem != "" {
			w.tell("inbox "+file.Key, file.Problem, func() { w.log.Warn("a file of the inbox is passed over", "file", file.Key, "problem", file.Problem) })
			continue
		}
		s := Submitted{Source: sourceInbox, File: file.Key, Data: file.Data, Signature: file.Signature, Digest: operation.Digest(file.Data)}
		if op, refusal := operation.Read(file.Key, file.Data); refusal == nil {
			s.Kind, s.ExpiresAt = op.Spec.Kind, op.Spec.ExpiresAt
		}
		w.inbox.files = append(w.inbox.files, s)
	}
}

// beginOperations makes the audit/once objects of operations that are about to begin. What came of it is decided on in the next pass.
func (w *worker) beginOperations(ctx context.Context, plan Plan) (settled bool, err error) {
	for _, b := range plan.Begin {
		err := w.state.Begin(ctx, b.Name, b.Digest, b.Nonce)
		var before *statefile.AlreadyBegunError
		switch {
		case err == nil:
			w.begun[b.Digest] = b.Nonce
			w.log.Info("the operation begins", "operation", b.Name, "digest", short(b.Digest))
		case errors.As(err, &before):
			w.taken[b.Digest] = before.Error()
		case errors.Is(err, statefile.ErrOtherWriter), errors.Is(err, statefile.ErrNotWriter):
			return false, w.fenced(err)
		case errors.Is(err, statefile.ErrPermission), errors.Is(err, statefile.ErrNewerSchema):
			w.unbegun[unbegun(b.Digest, b.Pause)] = w.agent.scrubber.Text(fmt.Sprintf("the operation %s can't begin: %v", b.Name, err))
		default:
			return false, trouble("StateUnavailable", "the operation %s can't begin: %w", b.Name, err)
		}
		settled = true
	}
	return settled, nil
}

// sayOperations logs what became of operations.
func (w *worker) sayOperations(next *statefile.State) {
	for _, op := range next.Operations {
		w.tell("operation "+op.Digest+op.File, fmt.Sprint(op.Phase, op.Step, op.Pause, op.Refusal), func() {
			args := []any{"operation", op.Name, "digest", short(op.Digest), "phase", op.Phase, "what", strings.TrimSpace(op.Kind + " " + op.Action),
				"target", op.Target, "message", op.Message}
			if op.Step != "" {
				args = append(args, "step", op.Step)
			}
			if op.Phase == statefile.OperationRefused || op.Phase == statefile.OperationPaused {
				w.log.Warn("operation", append(args, "reason", nameOr(op.Refusal, op.FailureReason))...)
				return
			}
			w.log.Info("operation", args...)
		})
	}
}
