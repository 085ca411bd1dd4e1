package reconcile

import (
	"context"
	"time"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/internal/talossim/safety"
	"ichor.maesh.dev/statefile"
)

// history is what was done to the lab's machines and what was meant.
func (l *lab) history(ctx context.Context) (safety.History, error) {
	h := safety.Of(l.farm)
	material := l.fleet.bundle.SealingMaterial()
	sealer, err := statefile.NewSealer(material.ClusterID, material.EncryptionSecret, "")
	if err != nil {
		return h, err
	}
	report, err := statefile.VerifyAudit(ctx, l.store, sealer, "prod")
	if err != nil {
		return h, err
	}
	h.Events = report.Events
	return h, nil
}

// promisesKept says that nothing was done that must never be done.
func (l *lab) promisesKept() {
	l.t.Helper()
	h, err := l.history(context.Background())
	require.NoError(l.t, err)
	require.NotEmpty(l.t, h.Events)
	require.Empty(l.t, safety.Check(h))
}

// watchPromises does so until the test ends, and fails it as soon as one is broken.
func (l *lab) watchPromises() { l.watchPromisesEvery(time.Second) }

// watchPromisesEvery is for long histories: each look reads all of it.
func (l *lab) watchPromisesEvery(every time.Duration) {
	ctx, cancel := context.WithCancel(context.Background())
	done, t := make(chan struct{}), l.t
	go func() {
		defer close(done)
		for _, broken := range safety.Watch(ctx, every, l.history) {
			t.Errorf("a promise is broken: %s", broken)
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
}
