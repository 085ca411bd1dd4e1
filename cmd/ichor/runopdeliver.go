package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"ichor.maesh.dev/gitsource"
	"ichor.maesh.dev/operation"
	"ichor.maesh.dev/statefile"
)

// signDraft signs the draft, and has the signature judged as the agent judges it where it is known who may sign.
func (r *runOpRun) signDraft(ctx context.Context, signers *operation.AllowedSigners) ([]byte, error) {
	signer, err := r.signer(ctx, &r.f.sign)
	if err != nil {
		return nil, err
	}
	signature, err := operation.Sign(r.draft.Data, r.plan.Namespace, signer)
	if stopped := ctx.Err(); stopped != nil {
		return nil, cannot(fmt.Errorf("it was stopped, and nothing was pushed: %w", stopped), "")
	}
	if err != nil {
		return nil, cannot(err, "nothing was pushed")
	}
	r.signCommit = func(object []byte) ([]byte, error) { return operation.Sign(object, operation.CommitNamespace, signer) }
	if signers != nil {
		namespaces := operation.Namespaces(r.draft.Operation.Spec, r.draft.Override)
		by, refusal := signers.Verify(r.draft.Data, signature, r.clock.Now(), namespaces...)
		if refusal != nil {
			return nil, answerNo(fmt.Errorf("the agent would refuse it (%s), and nothing was pushed: %s", refusal.Reason, refusal.Message), wayOut(refusal.Reason))
		}
		fmt.Fprintf(r.out, "signed for %s by %s\n", r.plan.Namespace, r.clean(by.String()))
		return signature, nil
	}
	fmt.Fprintf(r.out, "signed for %s with %s\n", r.plan.Namespace, r.clean(signingKey(signer)))
	return signature, nil
}

// deliver hands the two files in.
func (r *runOpRun) deliver(ctx context.Context, signature []byte) error {
	switch {
	case r.f.noPush:
		return r.writeFiles(signature)
	case r.f.viaState:
		return r.putInbox(ctx, signature)
	}
	return r.push(ctx, signature)
}

// writeFiles writes the files into the checkout: both, or none.
func (r *runOpRun) writeFiles(signature []byte) error {
	file := filepath.Join(r.desk.checkout.Dir, filepath.FromSlash(r.draft.Path))
	failed := func(err error) error {
		return cannot(fmt.Errorf("writing %s: %w; nothing was written", file, err), "")
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return failed(err)
	}
	if err := writeWhole(file+operation.SignatureSuffix, signature, 0o644, false); err != nil {
		return failed(err)
	}
	if err := writeWhole(file, r.draft.Data, 0o644, false); err != nil {
		_ = os.Remove(file + operation.SignatureSuffix)
		return failed(err)
	}
	fmt.Fprintf(r.out, "%s and its signature are written; nothing is committed\n", r.clean(file))
	fmt.Fprintf(r.out, "commit these two files, as they are, and push them to the branch that the agent watches: git add %s %s%s\n", r.clean(r.draft.Path), r.clean(r.draft.Path),
		operation.SignatureSuffix)
	return nil
}

func (r *runOpRun) putInbox(ctx context.Context, signature []byte) error {
	cluster, name := r.target.Cluster.Name(), r.draft.Operation.Metadata.Name
	err := statefile.PutInbox(ctx, r.store, cluster, name, r.draft.Data, signature)
	switch {
	case errors.Is(err, statefile.ErrInInbox):
		return answerNo(fmt.Errorf("the inbox of %s holds another operation %s since a moment ago; nothing was replaced", cluster, name), "run it again: it takes another name")
	case errors.Is(err, statefile.ErrNotRung):
		fmt.Fprintf(r.err, "warning: %s; it finds the operation within the hour, or sooner when this is run again with the right to write there\n", r.scrubber.Text(err.Error()))
	case err != nil:
		return cannot(r.scrubber.Error(err), "")
	}
	fmt.Fprintf(r.out, "%s and its signature are in the inbox of %s\n", statefile.InboxKey(cluster, name), cluster)
	r.sayNext()
	return nil
}

func (r *runOpRun) push(ctx context.Context, signature []byte) error {
	op := r.draft.Operation
	message := fmt.Sprintf("Operation %s\n\nIt %s.\n", op.Metadata.Name, operation.Sentence(op.Spec))
	if op.Spec.Reason != "" {
		message += "\n" + op.Spec.Reason + "\n"
	}
	added, err := r.desk.remote.Add(ctx, r.branch(), r.desk.watched, gitsource.Addition{Message: message, Sign: r.signCommit, Files: map[string][]byte{
		r.draft.Path: r.draft.Data, r.draft.Path + operation.SignatureSuffix: signature}})
	switch {
	case errors.Is(err, gitsource.ErrTaken):
		return answerNo(fmt.Errorf("nothing was pushed: %w", err), "run it again: it takes another name")
	case err != nil:
		return cannot(err, "run it again; --branch pushes to another branch, and --via-state needs no Git")
	}
	where := fmt.Sprintf("branch %s of %s", r.branch(), r.desk.remote.Shown())
	if added.Commit == "" {
		fmt.Fprintf(r.out, "%s holds %s already\n", r.clean(where), r.clean(r.draft.Path))
	} else {
		fmt.Fprintf(r.out, "pushed %.12s to %s: %s and its signature\n", added.Commit, r.clean(where), r.clean(r.draft.Path))
	}
	if r.branch() != r.desk.watched {
		fmt.Fprintf(r.out, "merge it into %s, unchanged, before %s: the agent watches that branch\n", r.clean(r.desk.watched), op.Spec.ExpiresAt.UTC().Format("2006-01-02T15:04:05Z"))
		return nil
	}
	r.sayNext()
	return nil
}

// sayNext says how to see what becomes of it.
func (r *runOpRun) sayNext() {
	if r.f.follow.follow {
		return
	}
	state := r.f.state.url
	if state == "" {
		state = "URL"
	}
	name := r.draft.Operation.Metadata.Name
	if resumed := r.draft.Operation.Spec.Resume; resumed != nil {
		name = resumed.Operation
	}
	fmt.Fprintf(r.out, "'ichor op show %s --state %s --follow' shows how it goes on; so does the agent's status page\n", name, r.clean(state))
}
