package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"ichor.maesh.dev/backup"
	"ichor.maesh.dev/internal/scrub"
	"ichor.maesh.dev/operation"
	"ichor.maesh.dev/reconcile"
	"ichor.maesh.dev/reconcile/runop"
	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/statefile"
)

// runOpRun is one run of run-op.
type runOpRun struct {
	*app
	f        *runOpFlags
	scrubber *scrub.Scrubber
	desk     *desk
	target   *runop.Target
	// store is nil where no state was named; state is nil where nothing of the cluster is in it.
	store statefile.Store
	state *statefile.State
	// known is what was found out for a restore, else nil; passphrase opens its snapshots.
	known      *reconcile.RestoreKnown
	passphrase backup.Passphrase
	// supposed says that the file accepts a loss that nobody was asked about yet.
	supposed bool
	draft    *runop.Draft
	plan     reconcile.OperationPlan
	// signCommit signs the commit that brings the operation, with the key that signed it.
	signCommit func(object []byte) ([]byte, error)
}

func (a *app) runOp(ctx context.Context, f *runOpFlags) error {
	if err := f.check(a); err != nil {
		return err
	}
	signers, err := f.signers.load()
	if err != nil {
		return err
	}
	r := &runOpRun{app: a, f: f, scrubber: scrub.New()}
	defer r.close()
	if err := r.prepare(ctx); err != nil {
		return err
	}
	if err := r.showPlan(); err != nil {
		return err
	}
	if len(r.plan.Blockers) > 0 {
		return answerNo(fmt.Errorf("%s is not done: %s", r.draft.Operation.Metadata.Name, counted(len(r.plan.Blockers), "thing")+" in the way"), "see what is blocked above")
	}
	if f.dryRun {
		return nil
	}
	if err := r.ask(ctx); err != nil {
		return err
	}
	if f.print {
		if _, err := a.out.Write(r.draft.Data); err != nil {
			return err
		}
		fmt.Fprintf(a.err, "save it as %s; 'ichor op sign %s' signs it; commit both files, and push them to the branch that the agent watches\n", a.clean(r.draft.Path), a.clean(r.draft.Path))
		return nil
	}
	signature, err := r.signDraft(ctx, signers)
	if err != nil {
		return err
	}
	if err := r.deliver(ctx, signature); err != nil {
		return err
	}
	if !f.follow.follow {
		return nil
	}
	cluster := r.draft.Target.Cluster.Name()
	err = a.followOperation(ctx, &f.follow, r.look(), cluster, r.draft.Operation.Metadata.Name, operation.Digest(r.draft.Data))
	if resumed := r.draft.Operation.Spec.Resume; err == nil && resumed != nil { // a resume is over at once, and what it is about begins
		return a.followOperation(ctx, &f.follow, r.look(), cluster, resumed.Operation, resumed.Digest)
	}
	return err
}

func (r *runOpRun) close() {
	if r.desk != nil {
		r.desk.close()
	}
	if r.store != nil {
		_ = r.store.Close()
	}
}

// prepare reads everything and writes the draft. Nothing leaves this machine.
func (r *runOpRun) prepare(ctx context.Context) (err error) {
	f := r.f
	if r.desk, err = r.openDesk(ctx, &f.desk, !(f.dryRun || f.print || f.noPush || f.viaState)); err != nil {
		return err
	}
	if f.noPush && r.desk.checkout == nil {
		return usageError(errors.New("--no-push writes into a checkout, and the repository was given by its URL"), "name a checkout with --repo, or use --print")
	}
	if r.target, err = runop.Find(r.desk.fleet, r.desk.revision.Commit, f.request); err != nil {
		return usageOf(err)
	}
	if err := r.loadState(ctx); err != nil {
		return err
	}
	if f.restore != nil {
		if err := r.prepareRestore(ctx); err != nil {
			return err
		}
	}
	switch {
	case f.request.Action == schema.ActionRemove:
		f.request.Confirm = f.request.Target
	case f.request.Kind == schema.OperationBootstrap:
		f.request.Confirm = r.target.Cluster.Name()
	}
	taken, err := r.taken(ctx)
	if err != nil {
		return err
	}
	now := r.clock.Now()
	r.draft, err = runop.Write(r.target, f.request, runop.Options{Now: now, Folder: r.desk.operations(), State: r.state, Taken: taken})
	if err != nil {
		return usageOf(err)
	}
	engine, err := r.engine()
	if err != nil {
		return err
	}
	r.plan = runop.Plan(engine, r.desk.fleet, r.state, r.draft, r.known, now)
	return nil
}

// usageOf gives an error of package runop its exit code and hint.
func usageOf(err error) error {
	var usage *runop.UsageError
	if errors.As(err, &usage) {
		return usageError(err, usage.Hint)
	}
	return cannot(err, "")
}

// loadState reads what is remembered of the cluster, where it is said where that is.
func (r *runOpRun) loadState(ctx context.Context) (err error) {
	f := r.f
	if f.state.url == "" {
		return nil
	}
	if r.store, err = f.state.open(ctx, r.scrubber, false); err != nil {
		return err
	}
	cluster := r.target.Cluster
	sealer, why := f.state.sealerFor(r.desk.fleet, cluster.Object)
	if why != nil {
		fmt.Fprintf(r.err, "the seal of the state of %s is not checked: %s\n", cluster.Name(), r.clean(r.scrubber.Error(why).Error()))
	}
	handle, err := statefile.OpenCluster(r.store, statefile.Options{Name: cluster.Name(), Sealer: sealer, Clock: r.clock})
	if err == nil {
		r.state, err = handle.Load(ctx)
	}
	switch {
	case errors.Is(err, statefile.ErrNotFound):
		fmt.Fprintf(r.err, "the state holds nothing of %s yet\n", cluster.Name())
	case err != nil:
		return cannot(r.scrubber.Error(err), "mend that, or leave --state out and go on without knowing what runs or is paused")
	}
	return nil
}

// sealerFor makes what a cluster's state is checked with, from the bundle in its fleet. The error is why it can't.
func (f *stateFlags) sealerFor(fleet *schema.Fleet, cluster *schema.TalosCluster) (*statefile.Sealer, error) {
	if len(f.identities) == 0 {
		return nil, errors.New("no --age-identity was given")
	}
	identities, err := f.load()
	if err != nil {
		return nil, err
	}
	bundle, err := reconcile.OpenBundle(fleet, cluster, identities)
	if err != nil {
		return nil, err
	}
	return sealerOf(bundle)
}

// taken says which names are used: in Git, in the state, in its inbox, in the checkout.
func (r *runOpRun) taken(ctx context.Context) (func(string) bool, error) {
	used := map[string]bool{}
	for _, op := range r.desk.fleet.Operations {
		used[op.Metadata.Name] = true
	}
	if r.state != nil {
		for _, op := range r.state.Operations {
			used[op.Name] = true
		}
	}
	if r.f.viaState {
		files, _, err := statefile.ReadInbox(ctx, r.store, r.target.Cluster.Name())
		if err != nil {
			return nil, cannot(r.scrubber.Error(err), "")
		}
		for _, file := range files {
			used[file.Name] = true
		}
	}
	return func(name string) bool {
		if used[name] {
			return true
		}
		file := r.desk.operations() + "/" + name + ".yaml"
		if _, err := r.desk.revision.Tree.Open(file); err == nil || !errors.Is(err, os.ErrNotExist) {
			return true
		}
		if !r.f.noPush {
			return false
		}
		_, err := os.Lstat(filepath.Join(r.desk.checkout.Dir, filepath.FromSlash(file)))
		return err == nil
	}, nil
}

// runOpPlan is the plan in JSON.
type runOpPlan struct {
	Name    string                  `json:"name"`
	Cluster string                  `json:"cluster"`
	File    string                  `json:"file"`
	Does    string                  `json:"does"`
	ReadAt  string                  `json:"readAt"`
	Expires string                  `json:"expiresAt"`
	Plan    reconcile.OperationPlan `json:"plan"`
}

// showPlan prints the plan: to standard output, unless the file itself goes there.
func (r *runOpRun) showPlan() error {
	op := r.draft.Operation
	if r.f.output == "json" {
		encoder := json.NewEncoder(r.out)
		encoder.SetIndent("", "  ")
		return encoder.Encode(runOpPlan{Name: op.Metadata.Name, Cluster: op.Spec.ClusterRef.Name, File: r.draft.Path, Does: operation.Sentence(op.Spec),
			ReadAt: r.desk.readAt, Expires: op.Spec.ExpiresAt.UTC().Format("2006-01-02T15:04:05Z07:00"), Plan: r.plan})
	}
	to := r.out
	if r.f.print {
		to = r.err
	}
	for _, line := range describeOperation(r.asked(), r.clock.Now()) {
		if !strings.HasPrefix(line, "  digest:") { // it isn't signed yet, and may never be
			fmt.Fprintln(to, r.clean(line))
		}
	}
	fmt.Fprintf(to, "  fleet: %s\n", r.clean(r.desk.readAt))
	r.list(to, "what is restored:", r.plan.Restores, false)
	r.list(to, "what is done:", r.plan.Steps, true)
	r.list(to, "what is lost:", r.plan.Lost, false)
	r.list(to, "what to know:", r.plan.Warnings, false)
	if r.plan.WayOut != "" {
		r.list(to, "the way out, if it stops half way (write it down):", []string{r.plan.WayOut}, false)
	}
	r.list(to, "blocked:", r.plan.Blockers, false)
	return nil
}

// asked is the operation as far as a person has said what is in it: what is only supposed is not said to be accepted before it was asked.
func (r *runOpRun) asked() *schema.TalosOperation {
	if !r.supposed {
		return r.draft.Operation
	}
	op, restore := *r.draft.Operation, *r.draft.Operation.Spec.EtcdRestore
	restore.LocalDataLoss = ""
	op.Spec.EtcdRestore = &restore
	return &op
}

func (r *runOpRun) list(to io.Writer, title string, lines []string, numbered bool) {
	if len(lines) == 0 {
		return
	}
	fmt.Fprintln(to, title)
	for n, line := range lines {
		mark := "-"
		if numbered {
			mark = fmt.Sprintf("%d.", n+1)
		}
		fmt.Fprintf(to, "  %s %s\n", mark, r.clean(line))
	}
}

// goal says where the operation goes.
func (r *runOpRun) goal() string {
	switch {
	case r.f.print:
		return "print it, for someone else to sign"
	case r.f.noPush:
		return "sign it and write it into the checkout"
	case r.f.viaState:
		return "sign it and put it into the state's inbox"
	}
	return fmt.Sprintf("sign it and push it to %s of %s", r.branch(), r.desk.remote.Shown())
}

// branch is the one that is pushed to.
func (r *runOpRun) branch() string {
	if r.f.branch != "" {
		return r.f.branch
	}
	return r.desk.watched
}

// ask wants a yes, or the name that must be typed.
func (r *runOpRun) ask(ctx context.Context) error {
	if r.supposed {
		if err := r.askLocalDataLoss(ctx); err != nil {
			return err
		}
	}
	if name := r.plan.Confirm; name != "" {
		return r.askName(ctx, name)
	}
	switch {
	case r.f.yes, r.f.print:
		return nil
	case !r.interactive:
		return cannot(errors.New("there is nobody to ask, and nothing was signed"), "give --yes to "+r.goal()+" without being asked")
	}
	fmt.Fprintf(r.err, "%s? [y/N] ", r.clean(r.goal()))
	answer, err := r.readLine(ctx)
	if err != nil && !errors.Is(err, io.EOF) {
		return cannot(fmt.Errorf("nothing was signed: %w", err), "")
	}
	switch strings.ToLower(answer) {
	case "y", "yes":
		return nil
	}
	return answerNo(errors.New("nothing was signed"), "")
}

func (r *runOpRun) askName(ctx context.Context, name string) error {
	given := r.f.confirm
	if given == "" {
		if !r.interactive {
			return cannot(fmt.Errorf("this needs the name %s typed, and there is nobody to ask; nothing was signed", name), "give --confirm "+name+" (--yes doesn't replace it)")
		}
		fmt.Fprintf(r.err, "type %s to %s: ", name, r.clean(r.goal()))
		var err error
		if given, err = r.readLine(ctx); err != nil && !errors.Is(err, io.EOF) {
			return cannot(fmt.Errorf("nothing was signed: %w", err), "")
		}
	}
	if given != name {
		return answerNo(fmt.Errorf("%q is not %s; nothing was signed", given, name), "")
	}
	return nil
}
