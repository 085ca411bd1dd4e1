package reconcile

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"

	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/statefile"
)

// own is ownOr with the state as it is in the store.
func (w *worker) own(ctx context.Context) (*statefile.State, error) { return w.ownOr(ctx, false) }

// ownOr makes this process the writer of the cluster's state, once for each time it takes the lease, and reads the state, unless what is
// remembered of it is to do.
func (w *worker) ownOr(ctx context.Context, remembered bool) (*statefile.State, error) {
	token, held := w.agent.lease(w.name)
	if !held {
		w.owned = false
		return nil, w.agent.standby(w.name)
	}
	if w.owned && w.token != token {
		w.owned = false
	}
	if !w.owned {
		if w.lostTo == token && token != 0 {
			if err := w.ousted(ctx); err != nil {
				return nil, err
			}
		}
		if err := w.takeOver(ctx); err != nil {
			if why := new(problem); errors.As(err, &why) {
				return nil, err
			}
			return nil, stateTrouble(w.name, err)
		}
		w.dropRestore()
		w.owned, w.token, w.lostTo, w.quietAt, w.ownedAt = true, token, 0, 0, w.agent.clocks.Now()
		known, _ := w.state.Known()
		w.epoch = known.Writer.Epoch
	}
	state, err := w.read(ctx, remembered)
	if err != nil {
		return nil, err
	}
	if state.Writer.Epoch != w.epoch {
		return nil, w.fenced(fmt.Errorf("the state of %s: %w (%.64q, writer number %d); this process was number %d", w.name, statefile.ErrOtherWriter,
			state.Writer.ID, state.Writer.Epoch, w.epoch))
	}
	if len(state.Cluster.CAs) > 0 && !reflect.DeepEqual(state.Cluster.CAs, w.bundle.CAs()) {
		return nil, trouble("WrongBundle", "the secrets bundle of %s has other certificate authorities than its machines were configured with: nothing "+
			"would reach them any more; put the former bundle back", w.name)
	}
	if state.Cluster.BundleFingerprint != "" && state.Cluster.BundleFingerprint != w.bundle.Fingerprint() {
		return nil, trouble("WrongBundle", "the state of %s is of another secrets bundle: every backup would be orphaned; put the former one back", w.name)
	}
	return state, nil
}

// read gives the state, as it is in the store or as it is remembered.
func (w *worker) read(ctx context.Context, remembered bool) (*statefile.State, error) {
	if remembered {
		if state, _ := w.state.Known(); state != nil {
			return state, nil
		}
	}
	w.readAt = w.agent.clock.Now()
	state, err := w.state.Load(ctx)
	if errors.Is(err, statefile.ErrNotFound) {
		// The next pass makes it anew, as one that was lost.
		w.owned = false
		return nil, trouble("StateUnavailable", "the state of %s is gone from the store while this agent worked with it: it is made anew, and the "+
			"machines are adopted as they are", w.name)
	}
	if err != nil {
		return nil, w.fenced(err)
	}
	return state, nil
}

// ousted is why this process stays out of a cluster of which another became the writer while this one held the lease; nil: it may come back.
// The other may be a process that was frozen in the middle of its take-over and went on with it long after it had lost the lease: it does
// nothing more, and if this one did nothing either nobody would, for ever. So this one comes back once the other has written nothing for as long as
// a lease lives. Who recovers the cluster by hand holds the cluster lock meanwhile, and is left alone.
func (w *worker) ousted(ctx context.Context) error {
	state, err := w.state.Load(ctx)
	if err != nil {
		return stateTrouble(w.name, err)
	}
	now := w.agent.clocks.Now()
	if _, generation := w.state.Known(); generation != w.quietAt {
		w.quietAt, w.quietSince = generation, now
	}
	switch {
	case state.Lock != nil && !ownLock(state.Lock):
		w.quietSince = now
		return trouble("OtherWriter", "another process made itself the writer of %s and holds the cluster lock (%s: %s): this one waits until that is given back",
			w.name, state.Lock.Holder, state.Lock.Reason)
	case now.Monotonic-w.quietSince.Monotonic < statefile.LeaseTTL:
		return trouble("OtherWriter", "another agent made itself the writer of %s although this one holds the lease: this one stops, and comes back once that one has "+
			"written nothing for %s; if this is said again and again, look for an agent with another --shards", w.name, statefile.LeaseTTL)
	}
	return nil
}

// writerAge is how long this process has been the writer, by the clock that nobody can set.
func (w *worker) writerAge() time.Duration {
	return w.agent.clocks.Now().Monotonic - w.ownedAt.Monotonic
}

// takeOver swaps this process in as the writer, and makes the state where there is none.
func (w *worker) takeOver(ctx context.Context) error {
	_, err := w.state.TakeOver(ctx)
	if !errors.Is(err, statefile.ErrNotFound) {
		return err
	}
	if w.earlier != "" {
		return trouble("RevisionRefused", "%s", w.earlier)
	}
	traces, err := w.state.Traces(ctx)
	if err != nil {
		return err
	}
	state := &statefile.State{
		SchemaVersion: statefile.SchemaVersion,
		Cluster: statefile.ClusterIdentity{Name: w.name, ID: schema.ClusterID(w.bundle.ClusterID()),
			BundleFingerprint: w.bundle.Fingerprint(), CAs: w.bundle.CAs()},
	}
	message := "nothing of this cluster was in the store"
	if known, _ := w.state.Known(); known != nil {
		traces = append(traces, "this agent's own memory of it")
	}
	if len(traces) > 0 {
		// Something of a past is there without its state: what it knew is lost.
		state.Origin = statefile.OriginLost
		message = "the state is gone and these speak of a past: " + strings.Join(traces, ", ")
		w.log.Warn("the state of this cluster is lost", "traces", strings.Join(traces, ", "))
	}
	return w.state.Create(ctx, state, statefile.Event{Action: "StateCreated", Message: message})
}

// fenced notes that another writer was found; this process then stops for the cluster until it takes the lease again.
func (w *worker) fenced(err error) error {
	if errors.Is(err, statefile.ErrOtherWriter) || errors.Is(err, statefile.ErrNotWriter) {
		w.owned, w.lostTo = false, w.token
	}
	return stateTrouble(w.name, err)
}

func stateTrouble(cluster string, err error) error {
	reason := "StateUnavailable"
	var forged *statefile.StateForgedError
	var rolledBack *statefile.StateRolledBackError
	switch {
	case errors.As(err, &forged):
		reason = "StateForged"
	case errors.As(err, &rolledBack):
		reason = "StateRolledBack"
	case errors.Is(err, statefile.ErrNewerSchema):
		reason = "StateNewer"
	case errors.Is(err, statefile.ErrOtherWriter), errors.Is(err, statefile.ErrNotWriter):
		reason = "OtherWriter"
	}
	return trouble(reason, "nothing is done for %s: %w", cluster, err)
}
