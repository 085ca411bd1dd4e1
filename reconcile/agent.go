package reconcile

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"sort"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/utils/clock"

	"ichor.maesh.dev/gitsource"
	"ichor.maesh.dev/internal/scrub"
	"ichor.maesh.dev/internal/sealed"
	"ichor.maesh.dev/operation"
	"ichor.maesh.dev/recovery"
	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/talos"
)

// Config is what an Agent is made of.
type Config struct {
	Source    Source
	Validator Validator
	// Paths are the folders of the repository that hold documents; empty is all of it.
	Paths []string
	// AllowRewind lets each cluster pass one revision that does not descend from the one it is on.
	AllowRewind bool
	// PollInterval is how often the repository is asked, give or take a tenth.
	PollInterval time.Duration

	// Leases are this agent's leases by shard: as many as there are shards.
	Leases []ShardLease
	// OpenState makes the handle on a cluster's state, OpenNodes the way to its machines.
	OpenState func(cluster string, bundle *talos.Bundle) (StateStore, error)
	OpenNodes func(bundle *talos.Bundle) Nodes
	// OpenKubernetes makes the way to a cluster's Kubernetes API at these addresses; nil: this agent has none, so that no machine can
	// be emptied before it is rebooted.
	OpenKubernetes func(bundle *talos.Bundle, servers []string) (Kubernetes, error)
	// Identities gives what opens sealed files. It is asked each time, so that a corrected file is used without a restart.
	Identities func() (*sealed.Identities, error)
	// Backups is what takes backups; nil: this agent takes none, and refuses the documents that ask for them.
	Backups *Backups
	// StateEndpoint is the host of the state's store, to warn of one that is inside of a cluster; empty: none.
	StateEndpoint string
	// Signers gives who may sign operations. It is asked each time, as Identities is; nil: nobody may, and every operation is refused.
	Signers func() (*operation.AllowedSigners, error)
	// CommitSigners gives who must have signed each commit that is acted upon. It is asked each time; nil: signatures of commits aren't asked for.
	CommitSigners func() (CommitSigners, error)
	// Inbox reads the operations that were given without Git; nil: none are.
	Inbox func(ctx context.Context, cluster string) (files []statefile.InboxFile, more bool, err error)
	// Bell gives a number that is another one whenever something was put into any inbox; nil: each inbox is listed as often as the bell
	// would be asked.
	Bell func(ctx context.Context) (uint64, error)
	// NodeName is the Kubernetes Node that this agent runs on; empty: none that it manages. With a cluster's name and a slash before it, it is
	// one of that cluster's: the machines of several clusters may bear the same names.
	NodeName string
	// RunExisting names operations that are run although they were there when a state was made anew.
	RunExisting []string
	// Skew says how far this machine's clock is from that of the state's store, as last seen; nil: it isn't known.
	Skew func() time.Duration
	// Mark is the hash of the state's location.
	Mark            string
	TrustedNetworks []netip.Prefix
	// SingleAgent is put into each state: the store doesn't honour conditions.
	SingleAgent bool

	Timing Timing
	// RecoveryTiming is how long the steps of a restore wait; the zero value is recovery.DefaultTiming.
	RecoveryTiming recovery.Timing
	// RecoverFlags are the flags that 'ichor restore --recover-cluster' needs to reach what this agent reaches, for the sentences that end
	// with that command.
	RecoverFlags string
	Clock        clock.WithTickerAndDelayedExecution
	Clocks       statefile.Clocks
	Log          *slog.Logger
	Scrubber     *scrub.Scrubber
}

// ShardLease is the lease of one shard; *statefile.Lease is one.
type ShardLease interface {
	Lease
	Run(ctx context.Context, changed func(statefile.LeaseStatus)) error
	Status() statefile.LeaseStatus
	Release(ctx context.Context) error
}

// Agent runs clusters. Each is run by itself, so that one cluster's trouble never delays another's.
type Agent struct {
	config   Config
	source   Source
	history  *history
	leases   []ShardLease
	backups  *Backups
	mark     string
	trusted  []netip.Prefix
	timing   Timing
	clock    clock.WithTickerAndDelayedExecution
	clocks   statefile.Clocks
	log      *slog.Logger
	scrubber *scrub.Scrubber
	// open counts calls to nodes that are under way.
	open atomic.Int64
	// bell is what Config.Bell said last, and when.
	bell struct {
		sync.Mutex
		at    time.Time
		rings uint64
		err   error
	}
	// hidden is how far what came out of sealed files is known to the scrubber.
	hidden struct {
		sync.Mutex
		identities *sealed.Identities
		values     int
	}
	// inside is what the state's endpoint was last said to be, rights who was last said to be allowed to sign what.
	inside, rights string
	// sorted is the commit whose clusters were sorted last; empty where that failed. It belongs to who asks the repository.
	sorted string
	// single says that the agent makes one pass.
	single bool

	mu         sync.Mutex
	newest     *gitsource.Revision
	gitProblem string
	// untrusted is why the newest revision isn't even believed in which clusters there are; empty when it is.
	untrusted string
	workers   map[string]*worker
	on        map[string]string // by cluster, the commit that it is on
	marked    string            // the commit that was marked good last
	polled    chan struct{}     // closed and made anew when the repository was asked
	poll      chan struct{}     // asks for a poll now
}

// New makes an Agent. It does nothing yet.
func New(config Config) *Agent {
	if config.Timing == (Timing{}) {
		config.Timing = DefaultTiming()
	}
	if config.RecoveryTiming == (recovery.Timing{}) {
		config.RecoveryTiming = recovery.DefaultTiming()
	}
	if config.PollInterval <= 0 {
		config.PollInterval = time.Minute
	}
	a := &Agent{config: config, source: config.Source, leases: config.Leases, backups: config.Backups, mark: config.Mark,
		trusted: config.TrustedNetworks, timing: config.Timing, clock: config.Clock, clocks: config.Clocks, log: config.Log,
		scrubber: config.Scrubber, workers: map[string]*worker{}, on: map[string]string{}, polled: make(chan struct{}), poll: make(chan struct{}, 1)}
	a.history = newHistory(config.Source, config.Validator, config.Paths, config.AllowRewind, config.Backups != nil)
	if config.CommitSigners != nil {
		a.history.commits = &commitJudge{source: config.Source, signers: config.CommitSigners}
	}
	return a
}

// Poke makes the next pull immediate.
func (a *Agent) Poke() {
	select {
	case a.poll <- struct{}{}:
	default:
	}
}

// Run works until ctx ends. It then waits for open calls to nodes and releases its leases.
func (a *Agent) Run(ctx context.Context) error {
	a.greet()
	var background, work sync.WaitGroup
	leasing, stopLeasing := context.WithCancel(context.WithoutCancel(ctx))
	defer stopLeasing()
	for n, lease := range a.leases {
		background.Go(func() { a.keepLease(leasing, n, lease) })
	}
	work.Go(func() { a.pollLoop(ctx) })
	work.Go(func() { a.runClusters(ctx) })
	work.Wait()
	stopLeasing()
	background.Wait()
	a.release()
	a.log.Info("the agent has stopped; no call to a machine is open")
	return nil
}

// greet says at start what whoever runs this should know.
func (a *Agent) greet() {
	if a.config.CommitSigners == nil {
		a.log.Info("the agent starts; who can push to the repository is root on its clusters: commit signatures are not checked (--verify-commits)",
			"shards", len(a.leases), "state", a.mark)
	} else {
		a.log.Info("the agent starts; it acts only upon commits that are signed by who may", "shards", len(a.leases), "state", a.mark)
		a.greetSigners()
	}
	if a.config.Signers == nil {
		a.log.Info("operations are refused: nobody said who may sign them (--allowed-signers)")
	}
}

// greetSigners says who may sign commits.
func (a *Agent) greetSigners() {
	signers, err := a.config.CommitSigners()
	if err != nil {
		a.log.Error("who may sign commits can't be read, so no further commit is acted upon", "problem", err)
		return
	}
	for _, who := range signers.Names() {
		a.log.Info("who may sign commits", "signer", who)
	}
	if len(signers.Names()) == 0 {
		a.log.Warn("nobody may sign commits, so no further commit is acted upon")
	}
}

// Once makes one pass over every cluster and reports. It holds the leases meanwhile. Where an earlier agent left a call behind
// it waits until that can't arrive any more (Timing.WriterQuiet), and makes the pass then. A config that is being tried is seen
// through: the machine would take it back by itself; and so is an operation that it begins, since a machine must not be left drained.
func (a *Agent) Once(ctx context.Context) (Report, error) {
	a.greet()
	leasing, stopLeasing := context.WithCancel(context.WithoutCancel(ctx))
	defer stopLeasing()
	var background sync.WaitGroup
	ready := make(chan struct{}, len(a.leases))
	for n, lease := range a.leases {
		background.Go(func() {
			a.runLease(leasing, n, lease, func(s statefile.LeaseStatus) {
				select {
				case ready <- struct{}{}:
				default:
				}
			})
		})
	}
	end := func() {
		stopLeasing()
		background.Wait()
		a.release()
	}
	a.single = true
	a.pollOnce(ctx)
	switch head, gitProblem := a.head(); {
	case head == nil:
		end()
		return Report{}, fmt.Errorf("the repository can't be read: %s", gitProblem)
	case a.sorted != head.Commit:
		end()
		return Report{}, fmt.Errorf("which clusters there are at revision %.12s could not be settled; the log says why", head.Commit)
	}
	a.awaitLeases(ctx, ready)
	a.passAll(ctx)
	if left := a.quietLeft(); left > 0 {
		a.waitFor(ctx, left)
		a.passAll(ctx)
	}
	for ends := a.clock.Now().Add(a.timing.TryTimeout); a.trying() && ctx.Err() == nil && a.clock.Now().Before(ends); {
		a.waitFor(ctx, a.timing.Busy)
		a.passAll(ctx)
	}
	for ends := a.clock.Now().Add(a.timing.MendCap); a.operating() && ctx.Err() == nil && a.clock.Now().Before(ends); {
		a.waitFor(ctx, a.timing.Busy)
		a.passAll(ctx)
	}
	a.backupsOnce(ctx)
	report := a.Report()
	end()
	return report, ctx.Err()
}

func (a *Agent) passAll(ctx context.Context) {
	var group sync.WaitGroup
	for _, w := range a.current() {
		group.Go(func() { w.once(ctx) })
	}
	group.Wait()
}

// quietLeft is how long the call that an earlier agent began must be waited out before anything else is done. Without that
// wait agents that make one pass each would wait for the same call for ever.
func (a *Agent) quietLeft() time.Duration {
	longest := time.Duration(0)
	for _, w := range a.current() {
		r := w.report()
		if s := r.State; s != nil && !r.Blocked && s.Intent != nil && s.Intent.Writer.Epoch != s.Writer.Epoch {
			longest = max(longest, a.timing.WriterQuiet-w.writerAge())
		}
	}
	return longest
}

// trying says whether a config is being tried somewhere, which somebody must confirm.
func (a *Agent) trying() bool {
	for _, c := range a.Report().Clusters {
		if s := c.State; s != nil && !c.Blocked && s.Rollout != nil && (s.Rollout.Phase == phaseTry || s.Rollout.Phase == phaseTried) {
			return true
		}
	}
	return false
}

// operating says whether an operation goes on that needs nothing but further passes.
func (a *Agent) operating() bool {
	for _, c := range a.Report().Clusters {
		if c.State == nil || c.Blocked {
			continue
		}
		for _, op := range c.State.Operations {
			if op.Phase == statefile.OperationRunning && op.Kind != string(schema.OperationEtcdBackup) {
				return true
			}
		}
	}
	return false
}

func (a *Agent) waitFor(ctx context.Context, d time.Duration) {
	timer := a.clock.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C():
	case <-ctx.Done():
	}
}

// awaitLeases waits until each lease is held, or has been another's for longer than a whole life of it.
func (a *Agent) awaitLeases(ctx context.Context, changed <-chan struct{}) {
	patience := a.clock.NewTimer(2*statefile.LeaseTTL + statefile.LeaseRenew)
	defer patience.Stop()
	for {
		all := true
		for _, lease := range a.leases {
			_, held := lease.Age()
			all = all && held
		}
		if all {
			return
		}
		select {
		case <-changed:
		case <-patience.C():
			return
		case <-ctx.Done():
			return
		}
	}
}

func (a *Agent) keepLease(ctx context.Context, shard int, lease ShardLease) {
	a.runLease(ctx, shard, lease, nil)
}

func (a *Agent) runLease(ctx context.Context, shard int, lease ShardLease, also func(statefile.LeaseStatus)) {
	err := lease.Run(ctx, func(s statefile.LeaseStatus) {
		a.log.Info("lease", "shard", shard, "held", s.Held, "holder", s.Holder, "token", s.Token)
		a.wakeAll()
		if also != nil {
			also(s)
		}
	})
	if err != nil && ctx.Err() == nil {
		a.log.Error("the lease can't be kept", "shard", shard, "error", err)
	}
}

// release gives the leases back. All workers have ended, so no call is open.
func (a *Agent) release() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	var group sync.WaitGroup
	for n, lease := range a.leases {
		if _, held := lease.Age(); !held {
			continue
		}
		group.Go(func() {
			if err := lease.Release(ctx); err != nil {
				a.log.Warn("the lease could not be released; it ends by itself", "shard", n, "error", err)
			}
		})
	}
	group.Wait()
}

// runClusters starts each worker once it is there, and waits for all of them.
func (a *Agent) runClusters(ctx context.Context) {
	var group sync.WaitGroup
	started := map[string]bool{}
	for {
		// Taken before the look at the workers, so that one that is made meanwhile is not missed.
		a.mu.Lock()
		polled := a.polled
		a.mu.Unlock()
		for _, w := range a.current() {
			if !started[w.name] {
				started[w.name] = true
				group.Go(func() { w.run(ctx) })
			}
		}
		select {
		case <-ctx.Done():
			group.Wait()
			return
		case <-polled:
		}
	}
}

func (a *Agent) current() []*worker {
	a.mu.Lock()
	defer a.mu.Unlock()
	list := make([]*worker, 0, len(a.workers))
	for _, w := range a.workers {
		list = append(list, w)
	}
	sort.Slice(list, func(i, j int) bool { return list[i].name < list[j].name })
	return list
}

func (a *Agent) wakeAll() {
	for _, w := range a.current() {
		w.poke()
	}
}

// distrusts says whether the newest revision was found unsigned when it was last looked at; who may sign can have changed since.
func (a *Agent) distrusts() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.untrusted != ""
}

func (a *Agent) head() (*gitsource.Revision, string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.newest, a.gitProblem
}

func (a *Agent) shard(cluster string) int { return statefile.ShardOf(cluster, len(a.leases)) }

func (a *Agent) leaseOf(cluster string) Lease { return a.leases[a.shard(cluster)] }

// lease says whether the lease of the cluster's shard is held, and under which token.
func (a *Agent) lease(cluster string) (uint64, bool) {
	lease := a.leases[a.shard(cluster)]
	_, held := lease.Age()
	return lease.Status().Token, held
}

// standby is why this agent does nothing for a cluster whose shard is another's.
func (a *Agent) standby(cluster string) error {
	status := a.leases[a.shard(cluster)].Status()
	switch {
	case status.Problem != "":
		return trouble("StateUnavailable", "nothing is done for %s: the lease of shard %d can't be had: %s", cluster, a.shard(cluster), status.Problem)
	case status.Holder == "":
		return trouble("Standby", "the lease of shard %d is being looked at", a.shard(cluster))
	}
	return trouble("Standby", "the lease of shard %d is held by agent %s: this one stands by", a.shard(cluster), status.Holder)
}

func (a *Agent) identities() (*sealed.Identities, error) { return a.config.Identities() }

// hideOpened makes what came out of sealed files known to the scrubber, each value once for all clusters.
func (a *Agent) hideOpened(identities *sealed.Identities) {
	a.hidden.Lock()
	defer a.hidden.Unlock()
	if a.hidden.identities != identities {
		a.hidden.identities, a.hidden.values = identities, 0
	}
	fresh := identities.ValuesAfter(a.hidden.values)
	a.scrubber.Add(fresh...)
	a.hidden.values += len(fresh)
}

func (a *Agent) openState(name string, bundle *talos.Bundle) (StateStore, error) {
	return a.config.OpenState(name, bundle)
}

func (a *Agent) openNodes(bundle *talos.Bundle) Nodes { return a.config.OpenNodes(bundle) }
