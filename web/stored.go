package web

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/utils/clock"

	"ichor.maesh.dev/reconcile"
	"ichor.maesh.dev/statefile"
)

const (
	// storedAge is for how long what was read from the store is shown, or that it couldn't be read, and listedAge for how long its list of clusters.
	storedAge = 5 * time.Second
	listedAge = time.Minute
	// storedLimit bounds how long a page waits for the store; a store that is down must not take the page down.
	storedLimit = 3 * time.Second
	// readLimit bounds one reading, which goes on when no page waits for it any more, and readAtOnce how many clusters are read side by side.
	readLimit  = time.Minute
	readAtOnce = 8
)

// stored is what the store holds of the clusters that this agent doesn't work for: another does, or this one can't. However
// many look, the store is read at most once in storedAge. A reading that takes longer than a page waits is shown by the next page: else
// a slow store, or one of many clusters, would never be shown at all.
type stored struct {
	store statefile.Store
	clock clock.PassiveClock
	limit time.Duration // storedLimit
	// failed is told of a panic over what was read: anybody may have written that, and it must not end the agent.
	failed func(value any)

	mu sync.Mutex
	// listed is when the clusters were listed, or last could not be: then unlisted is set, and they are listed again with the next reading.
	listed   time.Time
	unlisted bool
	names    []string
	known    map[string]storedStatus
	// reading is closed when the reading that is under way ends; nil: none is.
	reading chan struct{}
}

type storedStatus struct {
	read   time.Time
	status *reconcile.ClusterStatus // nil: it could not be read
}

func newStored(store statefile.Store, clock clock.PassiveClock, failed func(value any)) *stored {
	return &stored{store: store, clock: clock, limit: storedLimit, failed: failed, known: map[string]storedStatus{}}
}

var errNoSealer = errors.New("this agent does not work for the cluster")

// get gives the status of each cluster of others and of every one that the store holds beside those that the agent works for, as far as they
// can be read.
func (s *stored) get(ctx context.Context, others []string, working map[string]bool) map[string]*reconcile.ClusterStatus {
	if reading := s.begin(others, working); reading != nil {
		timer := time.NewTimer(s.limit)
		defer timer.Stop()
		select {
		case <-reading:
		case <-timer.C:
		case <-ctx.Done():
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	found := map[string]*reconcile.ClusterStatus{}
	for name, one := range s.known {
		if one.status != nil && !working[name] {
			found[name] = one.status
		}
	}
	return found
}

// begin has read what is old, and gives the reading that is under way; nil where nothing is old.
func (s *stored) begin(others []string, working map[string]bool) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	age := listedAge
	if s.unlisted {
		age = storedAge
	}
	list := !s.fresh(s.listed, age)
	if s.reading == nil && (list || len(s.old(others)) > 0 || len(s.old(without(s.names, working))) > 0) {
		reading := make(chan struct{})
		s.reading = reading
		go func() {
			defer close(reading)
			s.read(others, working, list)
			s.mu.Lock()
			defer s.mu.Unlock()
			s.reading = nil
		}()
	}
	return s.reading
}

// read reads the named clusters, and then those that only the store knows.
func (s *stored) read(others []string, working map[string]bool, list bool) {
	ctx, cancel := context.WithTimeout(context.Background(), readLimit)
	defer cancel()
	s.readAll(ctx, others)
	if list {
		names, err := statefile.Clusters(ctx, s.store)
		s.mu.Lock()
		if err == nil {
			s.names = names
		}
		s.listed, s.unlisted = s.clock.Now(), err != nil
		s.mu.Unlock()
	}
	s.mu.Lock()
	names := without(s.names, working)
	maps.DeleteFunc(s.known, func(name string, _ storedStatus) bool {
		return !slices.Contains(names, name) && !slices.Contains(others, name)
	})
	s.mu.Unlock()
	s.readAll(ctx, names)
}

// readAll reads those of the clusters that are old, side by side.
func (s *stored) readAll(ctx context.Context, names []string) {
	s.mu.Lock()
	old := s.old(names)
	s.mu.Unlock()
	reader := reconcile.StatusReader{Store: s.store, Sealer: func(string) (*statefile.Sealer, error) { return nil, errNoSealer }}
	var group errgroup.Group
	group.SetLimit(readAtOnce)
	for _, name := range old {
		group.Go(func() error {
			status := s.readOne(ctx, reader, name)
			if ctx.Err() != nil {
				return nil // what was known of it stays, and it is read first the next time
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			s.known[name] = storedStatus{read: s.clock.Now(), status: status}
			return nil
		})
	}
	_ = group.Wait() // none fails
}

// readOne reads one cluster; nil where it can't be read.
func (s *stored) readOne(ctx context.Context, reader reconcile.StatusReader, name string) (one *reconcile.ClusterStatus) {
	defer func() {
		if value := recover(); value != nil {
			s.failed(value)
			one = nil
		}
	}()
	status, err := reader.Read(ctx, []string{name})
	if err != nil {
		return nil
	}
	return &status.Clusters[0]
}

// old are those of the clusters that are to be read, the oldest first. The lock is held.
func (s *stored) old(names []string) []string {
	var old []string
	for _, name := range names {
		if !s.fresh(s.known[name].read, storedAge) {
			old = append(old, name)
		}
	}
	slices.SortStableFunc(old, func(a, b string) int { return s.known[a].read.Compare(s.known[b].read) })
	return old
}

func without(names []string, some map[string]bool) []string {
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool { return some[name] })
}

func (s *stored) fresh(read time.Time, limit time.Duration) bool {
	age := s.clock.Since(read)
	return !read.IsZero() && age >= 0 && age < limit
}
