package web

import (
	"context"
	"errors"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"ichor.maesh.dev/reconcile"
	"ichor.maesh.dev/statefile"
)

const (
	// storedAge is for how long what was read from the store is shown, and listedAge for how long its list of clusters.
	storedAge = 5 * time.Second
	listedAge = time.Minute
	// storedLimit bounds how long a page waits for the store; a store that is down must not take the page down.
	storedLimit = 3 * time.Second
)

// stored is what the store holds of the clusters that this agent doesn't work for: another does, or this one can't. However
// many look, the store is read at most once in storedAge.
type stored struct {
	store statefile.Store
	clock clock.PassiveClock

	mu     sync.Mutex
	listed time.Time
	names  []string
	known  map[string]storedStatus
}

type storedStatus struct {
	read   time.Time
	status *reconcile.ClusterStatus // nil: it could not be read
}

func newStored(store statefile.Store, clock clock.PassiveClock) *stored {
	return &stored{store: store, clock: clock, known: map[string]storedStatus{}}
}

var errNoSealer = errors.New("this agent does not work for the cluster")

// get gives the status of each named cluster and of every other that the store holds, as far as they can be read.
func (s *stored) get(ctx context.Context, working map[string]bool) map[string]*reconcile.ClusterStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), storedLimit)
	defer cancel()
	if !s.fresh(s.listed, listedAge) {
		if names, err := statefile.Clusters(ctx, s.store); err == nil {
			s.names = names
		}
		s.listed = s.clock.Now()
	}
	reader := reconcile.StatusReader{Store: s.store, Sealer: func(string) (*statefile.Sealer, error) { return nil, errNoSealer }}
	found := map[string]*reconcile.ClusterStatus{}
	for _, name := range s.names {
		if working[name] {
			delete(s.known, name)
			continue
		}
		one := s.known[name]
		if !s.fresh(one.read, storedAge) {
			one.read, one.status = s.clock.Now(), nil
			if status, err := reader.Read(ctx, []string{name}); err == nil {
				one.status = &status.Clusters[0]
			}
			s.known[name] = one
		}
		if one.status != nil {
			found[name] = one.status
		}
	}
	return found
}

func (s *stored) fresh(read time.Time, limit time.Duration) bool {
	age := s.clock.Since(read)
	return !read.IsZero() && age >= 0 && age < limit
}
