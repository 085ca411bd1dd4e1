package recovery

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"ichor.maesh.dev/statefile"
)

// lockPrefix begins the name of a recovery, in its marker and in the cluster lock.
const lockPrefix = "recover:"

// NewID makes the name of a recovery.
func NewID() string { return lockPrefix + statefile.NewNonce()[:16] }

// FenceError: the cluster's lock is not this recovery's any more.
type FenceError struct{ Why string }

func (e *FenceError) Error() string { return e.Why }

// StateFence is the lock in the cluster's state: agents that find it only look at the machines.
type StateFence struct {
	State *statefile.Cluster
	// ID is the recovery's.
	ID string
}

// Standing says whose recovery the state's lock names, empty where none, and which call of an agent stands in the state without an end,
// and since when. Errors: those of [statefile.Cluster.Load]; one that isn't there is no error.
func Standing(ctx context.Context, cluster *statefile.Cluster) (id string, intent *statefile.Intent, err error) {
	state, err := cluster.Load(ctx)
	if errors.Is(err, statefile.ErrNotFound) {
		return "", nil, nil
	}
	if err != nil {
		return "", nil, err
	}
	if state.Lock != nil && strings.HasPrefix(state.Lock.Holder, lockPrefix) {
		id = state.Lock.Holder
	}
	return id, state.Intent, nil
}

// Take makes this process the state's writer and the recovery the holder of its lock. A state that isn't there is made of identity, so that
// an agent that comes up finds the lock.
func (f *StateFence) Take(ctx context.Context, identity statefile.ClusterIdentity, now time.Time) error {
	lock := &statefile.Lock{Holder: f.ID, Reason: "the cluster is recovered from a snapshot", Since: now}
	state, err := f.State.TakeOver(ctx)
	if errors.Is(err, statefile.ErrNotFound) {
		return f.State.Create(ctx, &statefile.State{SchemaVersion: statefile.SchemaVersion, Cluster: identity, Origin: statefile.OriginLost, Lock: lock},
			statefile.Event{Action: "StateCreated", Message: "made for a recovery: there was none"})
	}
	if err != nil {
		return err
	}
	if state.Cluster.BundleFingerprint != "" && state.Cluster.BundleFingerprint != identity.BundleFingerprint {
		return &FenceError{fmt.Sprintf("the state of %s is of another secrets bundle: its machines and snapshots are not this bundle's; give the one that the "+
			"cluster had", identity.Name)}
	}
	return f.State.Swap(ctx, func(s *statefile.State) error {
		if s.Lock != nil && strings.HasPrefix(s.Lock.Holder, lockPrefix) && s.Lock.Holder != f.ID {
			return &FenceError{fmt.Sprintf("the cluster's lock is held by another recovery (%s, since %s)", s.Lock.Holder, s.Lock.Since.Format(time.RFC3339))}
		}
		if s.Lock == nil || s.Lock.Holder != f.ID {
			s.Lock = lock
		}
		return nil
	}, statefile.Event{Action: "RecoveryBegun", Message: f.ID + " holds the cluster lock: agents only look"})
}

// Hold fails when the lock is another's. An agent that came up meanwhile may have made itself the writer; it does nothing while the lock
// stands, and stops when it is ousted.
func (f *StateFence) Hold(ctx context.Context) error {
	state, err := f.State.Load(ctx)
	if err != nil {
		return fmt.Errorf("the cluster lock could not be looked at: %w", err)
	}
	if state.Lock == nil || state.Lock.Holder != f.ID {
		holder := "nobody"
		if state.Lock != nil {
			holder = state.Lock.Holder
		}
		return &FenceError{fmt.Sprintf("the cluster lock is held by %s by now, and not by this recovery (%s)", holder, f.ID)}
	}
	if !f.State.IsWriter() {
		if _, err := f.State.TakeOver(ctx); err != nil {
			return fmt.Errorf("the cluster lock could not be held: %w", err)
		}
	}
	return nil
}

// Begin is Hold: the marker alone holds this recovery's intents.
func (f *StateFence) Begin(ctx context.Context, _ Intent) error { return f.Hold(ctx) }

// Check is Hold.
func (f *StateFence) Check(ctx context.Context) error { return f.Hold(ctx) }

// Release gives the lock back, and lets go of what agents had begun before: none of that is still to come.
// Restored is what is kept of the restore; nil where none came to its end.
func (f *StateFence) Release(ctx context.Context, what string, restored *statefile.RestoreRecord) error {
	if err := f.Hold(ctx); err != nil {
		var fenced *FenceError
		if errors.As(err, &fenced) {
			return nil // it is given back already
		}
		return err
	}
	return f.State.Swap(ctx, func(s *statefile.State) error {
		s.Lock, s.Intent, s.Rollout, s.Joins = nil, nil, nil, nil
		if restored != nil {
			s.LastRestore = restored
		}
		return nil
	}, statefile.Event{Action: "RecoveryEnded", Message: f.ID + ": " + what})
}

// NoFence is for where no state can be reached: a person said that no agent runs.
type NoFence struct{}

// Hold never fails.
func (NoFence) Hold(context.Context) error { return nil }

// Begin never fails.
func (NoFence) Begin(context.Context, Intent) error { return nil }

// Check never fails.
func (NoFence) Check(context.Context) error { return nil }
