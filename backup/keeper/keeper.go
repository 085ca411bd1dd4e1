package keeper

import (
	"context"
	"io"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"ichor.maesh.dev/backup"
	"ichor.maesh.dev/backup/drill"
	"ichor.maesh.dev/internal/scrub"
	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/statefile"
)

// State is the handle on the cluster's state of a process that is its writer; *statefile.Cluster is one.
type State interface {
	Known() (*statefile.State, uint64)
	Swap(ctx context.Context, change func(*statefile.State) error, events ...statefile.Event) error
}

// Limits are shared by the keepers of all clusters.
type Limits struct{ takes, drills chan struct{} }

// NewLimits lets so many snapshots be taken at once, and one be drilled.
func NewLimits(takes int) *Limits {
	return &Limits{takes: make(chan struct{}, takes), drills: make(chan struct{}, 1)}
}

// Options are what a Keeper is made of.
type Options struct {
	State  State
	Opener Opener
	Spool  *backup.Spool
	Limits *Limits
	// Drill restores a snapshot and counts what it holds; nil is [drill.Run].
	Drill func(ctx context.Context, plain io.Reader, size int64, spool *backup.Spool) (drill.Counts, error)
	// DrillLimit bounds one drill; zero is three hours.
	DrillLimit time.Duration
	Clock      clock.WithTickerAndDelayedExecution
	Log        *slog.Logger
	Scrubber   *scrub.Scrubber
}

// Want is what a pass over the cluster knows.
type Want struct {
	Fleet   *schema.Fleet
	Backups []*schema.TalosEtcdBackup
	Owner   backup.Owner
	// Nodes are the control planes that may be asked.
	Nodes []backup.Node
	// Hold is why nothing is done at the moment; its reason is empty when it isn't so.
	Hold Verdict
	// Named are the snapshots of each backup that accepted restores name: what is stored meanwhile, a restore's own snapshot of now first of all, must
	// not have the retention take them away. The values say which restore it is.
	Named map[string]map[string]string
}

// Keeper keeps the backups of one cluster.
type Keeper struct {
	options Options

	mu      sync.Mutex
	want    Want
	tenders map[string]*tender
	// life is the context of the loops, and stop ends it; nil: there are none.
	life context.Context
	stop context.CancelFunc
	// running are the loops, ended ones included until they are gone.
	running sync.WaitGroup
}

// New makes a Keeper. It does nothing yet.
func New(options Options) *Keeper {
	if options.Drill == nil {
		options.Drill = drill.Run
	}
	if options.DrillLimit == 0 {
		options.DrillLimit = drillLimit
	}
	return &Keeper{options: options, tenders: map[string]*tender{}}
}

// Tend takes what a pass knows, and keeps the backups until ctx ends or Stop: one loop a backup. It returns at once.
func (k *Keeper) Tend(ctx context.Context, want Want) {
	ended := k.update(want)
	k.mu.Lock()
	defer k.mu.Unlock()
	first := k.stop == nil
	if first {
		k.life, k.stop = context.WithCancel(ctx)
	}
	if life := k.life; first || len(ended) > 0 {
		k.running.Go(func() {
			for _, t := range ended {
				t.gone()
			}
			k.forget(life)
		})
	}
	for _, t := range k.tenders {
		if t.loop == nil {
			t.begin(k.life)
		}
		t.poke()
	}
}

// Once takes what a pass knows and does what is due now, each backup by itself.
func (k *Keeper) Once(ctx context.Context, want Want) {
	k.update(want)
	k.forget(ctx)
	k.mu.Lock()
	tenders := slices.Collect(maps.Values(k.tenders))
	k.mu.Unlock()
	var group sync.WaitGroup
	for _, t := range tenders {
		group.Go(func() { t.once(ctx) })
	}
	group.Wait()
}

// Stop lets go of everything, as when another process is the writer. It doesn't wait.
func (k *Keeper) Stop() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.stop != nil {
		k.stop()
	}
	k.stop = nil
	clear(k.tenders)
}

// Close stops and waits until nothing runs any more.
func (k *Keeper) Close() {
	k.Stop()
	k.running.Wait()
}

// update makes a tender for each backup in Git, and ends those of backups that are gone.
func (k *Keeper) update(want Want) (ended []*tender) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.want = want
	wanted := map[string]bool{}
	for _, b := range want.Backups {
		name := b.Metadata.Name
		wanted[name] = true
		if k.tenders[name] == nil {
			k.tenders[name] = newTender(k, name)
		}
		k.tenders[name].set(b)
	}
	for name, t := range k.tenders {
		if !wanted[name] {
			t.end()
			ended = append(ended, t)
			delete(k.tenders, name)
		}
	}
	return ended
}

// wanted is what the last pass knew.
func (k *Keeper) wanted() Want {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.want
}

// forget drops from the state what is remembered of backups that are no longer in Git.
func (k *Keeper) forget(ctx context.Context) {
	wanted := map[string]bool{}
	for _, b := range k.wanted().Backups {
		wanted[b.Metadata.Name] = true
	}
	state, _ := k.options.State.Known()
	if state == nil {
		return
	}
	for name, m := range state.Backups {
		if wanted[name] {
			continue
		}
		message := "the TalosEtcdBackup " + name + " is no longer in Git; its snapshots stay where they are"
		if m.Attempt != nil {
			message += "; an attempt was under way, and what became of it is not looked at"
		}
		err := k.options.State.Swap(ctx, func(s *statefile.State) error {
			delete(s.Backups, name)
			return nil
		}, statefile.Event{Action: "BackupForgotten", Message: message})
		if err != nil && ctx.Err() == nil {
			k.options.Log.Warn("a backup that is gone could not be forgotten", "backup", name, "error", err)
		}
	}
}

// same says whether two documents ask for the same.
func same(a, b *schema.TalosEtcdBackup) bool { return a != nil && reflect.DeepEqual(a.Spec, b.Spec) }
