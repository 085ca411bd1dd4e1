package reconcile

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/recovery"
	"ichor.maesh.dev/statefile"
)

// TestAnAgentThatWasOustedByOneWithoutALeaseComesBack lets an agent that was frozen in the middle of its take-over go on with it after another
// took the lease. It does nothing more; the one that holds the lease must not wait for it for ever, nor come back while it still writes.
func TestAnAgentThatWasOustedByOneWithoutALeaseComesBack(t *testing.T) {
	w := newMortals(t).newWorld(t, threeMachines)
	holder, frozen := w.mortal(nil), w.mortal(nil)
	_, err := holder.own(t.Context())
	require.NoError(t, err)
	_, err = frozen.own(t.Context())
	require.NoError(t, err)

	reason := func() string {
		_, err := holder.own(t.Context())
		if err == nil {
			return ""
		}
		return err.(*problem).Reason
	}
	require.Equal(t, "OtherWriter", reason())
	for range 3 { // the other one is not idle
		w.model.tick(10 * time.Second)
		require.NoError(t, frozen.state.Swap(t.Context(), func(s *statefile.State) error { s.RefusedMore++; return nil }))
		require.Equal(t, "OtherWriter", reason())
	}
	w.model.tick(statefile.LeaseTTL - time.Second)
	require.Equal(t, "OtherWriter", reason())
	w.model.tick(time.Second)
	require.Empty(t, reason())
	require.ErrorIs(t, frozen.state.Swap(t.Context(), func(s *statefile.State) error { s.RefusedMore++; return nil }), statefile.ErrOtherWriter)
}

// TestAnAgentThatARecoveryOustedWaitsForTheLock keeps it out for as long as the recovery holds the cluster lock, however little that writes.
func TestAnAgentThatARecoveryOustedWaitsForTheLock(t *testing.T) {
	w := newMortals(t).newWorld(t, threeMachines)
	holder := w.mortal(nil)
	_, err := holder.own(t.Context())
	require.NoError(t, err)
	recovery := w.handle("recovery")
	_, err = recovery.TakeOver(t.Context())
	require.NoError(t, err)
	lock := func(l *statefile.Lock) {
		require.NoError(t, recovery.Swap(t.Context(), func(s *statefile.State) error { s.Lock = l; return nil }))
	}
	lock(&statefile.Lock{Holder: "recover:1", Reason: "the cluster is recovered from a snapshot"})
	_, err = holder.own(t.Context())
	require.ErrorIs(t, err, statefile.ErrOtherWriter)
	for range 5 {
		w.model.tick(time.Minute)
		_, err = holder.own(t.Context())
		require.ErrorContains(t, err, "recover:1")
	}
	lock(nil)
	_, err = holder.own(t.Context())
	require.Error(t, err)
	w.model.tick(statefile.LeaseTTL)
	_, err = holder.own(t.Context())
	require.NoError(t, err, "and goes on by itself once it is given back")
}

// TestAnAgentThatComesBackToARestoreBeginsWithItsMarker: between two turns of the same agent another one may have driven it further. What the
// first remembers is not gone on with, and its being out of date is not taken for somebody who interferes, over which the restore would pause.
func TestAnAgentThatComesBackToARestoreBeginsWithItsMarker(t *testing.T) {
	w := newMortals(t).newWorld(t, threeMachines)
	holder, other := w.mortal(nil), w.mortal(nil)
	_, err := holder.own(t.Context())
	require.NoError(t, err)
	view := &RestoreView{Digest: "d1", Marked: true, Step: "configuring"}
	holder.restoration = &restoration{order: RestoreOrder{Digest: "d1", Marked: true}, run: &recovery.Run{}, view: view}
	_, err = holder.own(t.Context())
	require.NoError(t, err)
	require.Equal(t, view, holder.restoreView(), "as long as nobody else had the cluster it goes on")

	_, err = other.own(t.Context())
	require.NoError(t, err)
	_, err = holder.own(t.Context())
	require.ErrorIs(t, err, statefile.ErrOtherWriter)
	_, err = holder.own(t.Context())
	require.Error(t, err)
	w.model.tick(statefile.LeaseTTL)
	_, err = holder.own(t.Context())
	require.NoError(t, err)
	require.Nil(t, holder.restoreView())
	require.Nil(t, holder.restoration)
}
