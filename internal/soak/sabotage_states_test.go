package soak

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"time"

	"ichor.maesh.dev/gitsource"
	"ichor.maesh.dev/kube"
	"ichor.maesh.dev/operation"
	"ichor.maesh.dev/reconcile"
	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/talos"
)

// spoiledState is a state of which other things are written than were meant, and read than are there.
type spoiledState struct {
	reconcile.StateStore
	spoil func(*statefile.State)
}

// Swap implements reconcile.StateStore.
func (s spoiledState) Swap(ctx context.Context, change func(*statefile.State) error, events ...statefile.Event) error {
	return s.StateStore.Swap(ctx, func(next *statefile.State) error {
		if err := change(next); err != nil {
			return err
		}
		s.spoil(next)
		return nil
	}, events...)
}

// writing is a sabotage of what is written into states.
func writing(spoil func(*statefile.State)) sabotage {
	return opening(func(store reconcile.StateStore) reconcile.StateStore { return spoiledState{store, spoil} })
}

func opening(wrap func(reconcile.StateStore) reconcile.StateStore) sabotage {
	return sabotage{spoil: func(_ *process, c *reconcile.Config) {
		open := c.OpenState
		c.OpenState = func(name string, bundle *talos.Bundle) (reconcile.StateStore, error) {
			store, err := open(name, bundle)
			if err != nil {
				return nil, err
			}
			return wrap(store), nil
		}
	}}
}

// writerOf lets a process write states under a name that its lease doesn't have, through a store of its own.
func writerOf(name func(*process) string, through func(statefile.Store) statefile.Store) func(*process, *reconcile.Config) {
	return func(p *process, c *reconcile.Config) {
		store := through(p.store())
		c.OpenState = func(cluster string, bundle *talos.Bundle) (reconcile.StateStore, error) {
			return statefile.OpenCluster(store, statefile.Options{Name: cluster, Sealer: p.w.clusterOf(bundle).keys.Sealer, WriterID: name(p), Clock: hostClock{h: p.host}})
		}
	}
}

// unconditional is a store that knows no conditions.
type unconditional struct{ statefile.Store }

// Put implements statefile.Store.
func (s unconditional) Put(ctx context.Context, key string, data []byte, _ statefile.If) (string, error) {
	return s.Store.Put(ctx, key, data, statefile.If{})
}

// mine is a lease that is held whoever holds it.
type mine struct{ reconcile.ShardLease }

// Age implements reconcile.ShardLease.
func (mine) Age() (time.Duration, bool) { return time.Second, true }

// Status implements reconcile.ShardLease.
func (m mine) Status() statefile.LeaseStatus {
	status := m.ShardLease.Status()
	status.Held = true
	return status
}

// frozenGit gives the first revision for ever.
type frozenGit struct {
	reconcile.Source
	first *gitsource.Revision
}

// Poll implements reconcile.Source.
func (g *frozenGit) Poll(ctx context.Context) (*gitsource.Revision, error) {
	revision, err := g.Source.Poll(ctx)
	if g.first == nil && err == nil {
		g.first = revision
	}
	if err != nil {
		return nil, err
	}
	return g.first, nil
}

// cordoning never uncordons.
type cordoning struct{ reconcile.Kubernetes }

// Uncordon implements reconcile.Kubernetes.
func (cordoning) Uncordon(context.Context, kube.Node, string) (bool, error) { return true, nil }

func brokenStates() []faulty {
	return []faulty{
		{name: "the write of an intent is lost", reports: "without an intent that explains it", sabotage: writing(func(s *statefile.State) { s.Intent = nil })},
		{name: "the cluster lock is not written", reports: "without the cluster lock", sabotage: writing(func(s *statefile.State) { s.Lock = nil }), events: []event{saying((*run).signReboot)}},
		{name: "the bootstrap is forgotten", reports: "forgets the bootstrap of", sabotage: writing(func(s *statefile.State) {
			if s.Bootstrap != nil && !s.Bootstrap.Done.IsZero() {
				s.Bootstrap = nil
			}
		})},
		{name: "an operation is said to be completed as it begins", reports: "and took 0 calls for it", sabotage: writing(completed("node")), events: []event{saying((*run).signReboot)}},
		{name: "a restore is said to be completed as it begins", reports: "the etcd that lives did not come of it", options: Options{Restores: true},
			sabotage: writing(completed(kindRestore)), events: []event{saying((*run).signRestore), saying((*run).idle)}},
		{name: "what is over begins again", reports: ", and it was Completed", sabotage: writing(again()), events: []event{saying((*run).signReboot)}},
		{name: "a process writes under another's name", reports: "names agent-9 as its writer", sabotage: sabotage{spoil: writerOf(func(*process) string { return "agent-9" },
			func(s statefile.Store) statefile.Store { return s })}},
		{name: "every agent believes that it holds the lease, and writes whatever stands there", reports: "came in epoch", sabotage: sabotage{spoil: func(p *process, c *reconcile.Config) {
			c.Leases = []reconcile.ShardLease{mine{c.Leases[0]}}
			writerOf(func(p *process) string { return p.id }, func(s statefile.Store) statefile.Store { return unconditional{s} })(p, c)
		}}, events: []event{saying((*run).pushLive)}, from: 102},
		{name: "whoever signs may", reports: "which nobody signed who may", sabotage: sabotage{spoil: func(p *process, c *reconcile.Config) {
			c.Signers = func() (*operation.AllowedSigners, error) { return allowing(p.w.keys.alice, p.w.keys.mallory) }
		}}, events: []event{saying((*run).signForged)}},
		{name: "a secret is logged", reports: "the log of agent-1.1 holds a secret of", sabotage: sabotage{spoil: func(p *process, c *reconcile.Config) {
			open := c.OpenNodes
			c.OpenNodes = func(bundle *talos.Bundle) reconcile.Nodes {
				slog.New(slog.NewTextHandler(p.log, nil)).Info("opened", "bundle", bundle.Scalars())
				return open(bundle)
			}
		}}},
		{name: "a private key is logged, in lines", reports: "the log of agent-1.1 holds a secret of", sabotage: sabotage{spoil: func(p *process, c *reconcile.Config) {
			open := c.OpenNodes
			c.OpenNodes = func(bundle *talos.Bundle) reconcile.Nodes {
				key := slices.IndexFunc(bundle.Scalars(), func(secret string) bool { return strings.HasPrefix(secret, "-----BEGIN") })
				slog.New(slog.NewTextHandler(p.log, nil)).Info("opened", "key", bundle.Scalars()[key])
				return open(bundle)
			}
		}}},
		{name: "a secret stands in the state", reports: "the object prod/state.json holds a secret of", sabotage: sabotage{spoil: func(p *process, c *reconcile.Config) {
			writing(func(s *statefile.State) {
				s.Ready.Message += p.w.clusters[0].keys.Bundle.Scalars()[0]
			}).spoil(p, c)
		}}},
		{name: "Git is not looked at any more", stays: "it is on ", sabotage: sabotage{spoil: func(_ *process, c *reconcile.Config) { c.Source = &frozenGit{Source: c.Source} }},
			events: []event{saying((*run).pushLive)}, from: 101},
		{name: "no cordon is lifted", stays: "is cordoned by", sabotage: sabotage{spoil: func(_ *process, c *reconcile.Config) {
			open := c.OpenKubernetes
			c.OpenKubernetes = func(bundle *talos.Bundle, endpoints []string) (reconcile.Kubernetes, error) {
				k, err := open(bundle, endpoints)
				return cordoning{k}, err
			}
		}}, events: []event{saying((*run).pushReboot)}, from: 101},
	}
}

// again lets each operation that was completed begin anew with the write after that.
func again() func(*statefile.State) {
	over := map[string]bool{}
	return func(s *statefile.State) {
		for _, op := range s.Operations {
			if was := over[op.Digest]; was {
				op.Phase = statefile.OperationPending
			}
			over[op.Digest] = over[op.Digest] || op.Phase == statefile.OperationCompleted
		}
	}
}

// completed says of each operation of a kind that runs that it is completed.
func completed(kind string) func(*statefile.State) {
	return func(s *statefile.State) {
		for _, op := range s.Operations {
			if op.Kind == kind && op.Phase == statefile.OperationRunning {
				op.Phase, op.Message = statefile.OperationCompleted, "it is done"
			}
		}
	}
}
