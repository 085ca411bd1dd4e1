package reconcile

import (
	"context"
	"math/rand/v2"
	"slices"
	"strings"

	"ichor.maesh.dev/gitsource"
	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/validate"
)

func (a *Agent) pollLoop(ctx context.Context) {
	for {
		a.pollOnce(ctx)
		timer := a.clock.NewTimer(gitsource.Jitter(a.config.PollInterval, rand.Float64()))
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C():
		case <-a.poll:
			timer.Stop()
		}
	}
}

// pollOnce asks the repository, and goes on with what is in the cache where it doesn't answer.
func (a *Agent) pollOnce(ctx context.Context) {
	defer a.scrubber.Recover(func(text string) { a.log.Error("asking the repository failed", "panic", text) })
	revision, err := a.source.Poll(ctx)
	if ctx.Err() != nil {
		return
	}
	said := ""
	if err != nil {
		said = stable(a.scrubber.Text(err.Error()))
		if revision, err = a.source.Seen(); err != nil {
			revision = nil
		}
	}
	a.mu.Lock()
	moved := revision != nil && (a.newest == nil || a.newest.Commit != revision.Commit)
	changed := said != a.gitProblem
	if revision != nil {
		a.newest = revision
	}
	a.gitProblem = said
	a.mu.Unlock()
	if changed && said != "" {
		a.log.Error("the repository can't be read; clusters stay on what is known", "problem", said)
	} else if changed {
		a.log.Info("the repository can be read again")
	}
	if moved {
		a.log.Info("revision", "commit", revision.Commit, "subject", revision.Subject, "author", revision.Author)
	}
	if moved || revision != nil && (a.sorted != revision.Commit || a.distrusts()) {
		a.sortOrLater(revision)
	}
	a.mu.Lock()
	close(a.polled)
	a.polled = make(chan struct{})
	a.mu.Unlock()
	if moved || changed {
		a.wakeAll()
	}
}

// sortOrLater sorts the clusters of a revision. What came of a panic is tried again at the next poll, and keeps no cluster that has a worker
// from the revision.
func (a *Agent) sortOrLater(revision *gitsource.Revision) {
	defer a.scrubber.Recover(func(text string) {
		a.log.Error("sorting the clusters of a revision failed; the next poll tries again", "commit", revision.Commit, "panic", text)
	})
	a.sorted = ""
	a.sortClusters(revision)
	a.sorted = revision.Commit
}

// sortClusters makes a worker for each cluster that the newest revision, or the last good one, speaks of. Where commits must be signed,
// the newest that is says which clusters there are: who can push unsigned ones must not keep the agent busy with clusters that aren't.
func (a *Agent) sortClusters(revision *gitsource.Revision) {
	var names []string
	trusted, why := a.history.trusted(revision, a.clock.Now())
	if trusted != nil {
		names = a.history.load(trusted).clusters()
	}
	if last, err := a.source.LastGood(); err == nil {
		names = append(names, a.history.load(last).clusters()...)
	}
	a.mu.Lock()
	said := why == a.untrusted
	a.untrusted = why
	a.mu.Unlock()
	switch {
	case why == "":
		f := a.history.load(revision)
		for _, finding := range a.history.judge(nil, revision).All {
			a.log.Error("the revision is refused for all clusters", "commit", revision.Commit, "finding", finding.String())
		}
		a.warnInside(f.fleet)
	case !said:
		a.log.Error("the newest revision is not acted upon", "commit", revision.Commit, "problem", why)
	}
	if trusted != nil {
		a.sayRights(names)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, name := range names {
		if a.workers[name] == nil {
			a.workers[name] = newWorker(a, name)
		}
	}
}

// warnInside says, once as long as it is so, that the state is kept inside of what it is the memory of.
func (a *Agent) warnInside(fleet *schema.Fleet) {
	inside := ""
	if a.config.StateEndpoint != "" {
		inside = validate.Inside(fleet, a.config.StateEndpoint)
	}
	if inside != a.inside && inside != "" {
		a.log.Warn("the state is kept inside of a cluster that this agent manages: it is lost with that cluster, and out of reach when it is needed most; "+
			"keep it elsewhere", "endpoint", a.config.StateEndpoint, "is", inside)
	}
	a.inside = inside
}

// sayRights says, once as long as it is so, who may sign what on which cluster.
func (a *Agent) sayRights(clusters []string) {
	if a.config.Signers == nil {
		return // greet has said it
	}
	signers, err := a.config.Signers()
	if err != nil {
		a.log.Error("who may sign operations can't be read, so none starts", "problem", err)
		return
	}
	clusters = slices.Clone(clusters)
	slices.Sort(clusters)
	clusters = slices.Compact(clusters)
	var lines []string
	for _, right := range signers.Rights(clusters...) {
		lines = append(lines, right.String())
	}
	rights := strings.Join(lines, "\n")
	if rights == a.rights && rights != "" {
		return
	}
	a.rights = rights
	for _, line := range lines {
		a.log.Info("who may sign", "right", line)
	}
	if len(lines) == 0 {
		a.log.Warn("nobody may sign anything on these clusters", "clusters", strings.Join(clusters, ", "))
	}
}

// reached notes the revision that a cluster is on. The newest is the last good one once every cluster is on it.
func (a *Agent) reached(cluster, commit string) {
	a.mu.Lock()
	a.on[cluster] = commit
	good := a.newest != nil && a.marked != a.newest.Commit
	for name := range a.workers {
		good = good && a.on[name] == a.newest.Commit
	}
	if good {
		a.marked = a.newest.Commit
	}
	a.mu.Unlock()
	if !good {
		return
	}
	if err := a.source.MarkGood(commit); err != nil {
		a.log.Error("the last good revision can't be kept in the cache folder", "error", a.scrubber.Text(err.Error()))
	}
}
