package statefile_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/statefile/storetest"
)

var anOperation = strings.Repeat("ab", 32)

func TestAnOperationBeginsOnce(t *testing.T) {
	store := storetest.NewMemory()
	cluster := create(t, store, "first")
	ctx := t.Context()
	require.NoError(t, cluster.Begin(ctx, "reboot", anOperation, "nonce-1"))
	require.NoError(t, cluster.Begin(ctx, "reboot", anOperation, "nonce-1"), "its own object is as good as a new one")

	var before *statefile.AlreadyBegunError
	require.ErrorAs(t, cluster.Begin(ctx, "reboot", anOperation, "nonce-2"), &before)
	require.Equal(t, "first", before.Once.Writer.ID)
	require.Equal(t, "reboot", before.Once.Name)
	require.ErrorContains(t, before, "an operation runs once")

	next := open(t, store, "second")
	_, err := next.TakeOver(ctx)
	require.NoError(t, err)
	require.NoError(t, next.Begin(ctx, "reboot", anOperation, "nonce-1"), "the next writer goes on with the nonce in the state")
}

func TestAnOperationBeginsOnceInAStoreThatHonoursNoConditionsToo(t *testing.T) {
	store := storetest.NewMemory()
	store.IgnoreConditions = true
	cluster := create(t, store, "first")
	require.NoError(t, cluster.Begin(t.Context(), "reboot", anOperation, "nonce-1"))
	var before *statefile.AlreadyBegunError
	require.ErrorAs(t, cluster.Begin(t.Context(), "reboot", anOperation, "nonce-2"), &before)
	require.NoError(t, cluster.Begin(t.Context(), "reboot", anOperation, "nonce-1"))
}

func TestWhoIsNotTheWriterBeginsNothing(t *testing.T) {
	store := storetest.NewMemory()
	create(t, store, "first")
	other := open(t, store, "second")
	require.ErrorIs(t, other.Begin(t.Context(), "reboot", anOperation, "nonce"), statefile.ErrNotWriter)
	require.ErrorContains(t, create(t, storetest.NewMemory(), "first").Begin(t.Context(), "reboot", "../../x", "nonce"), "is no SHA-256")
}

func TestABeginningWhoseAnswerIsLostIsReadBack(t *testing.T) {
	for _, c := range []struct {
		name  string
		fault storetest.Fault
		again bool
	}{
		{"it was done", storetest.LostReply, false}, {"it was done twice", storetest.ConflictAfterEffect, false},
		{"it was not done", storetest.LostRequest, true}, {"it is done later", storetest.LateRequest, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			inner := storetest.NewMemory()
			lose := true
			store := storetest.NewFaulty(inner, func(call storetest.Call) storetest.Fault {
				if call.Op == storetest.Put && strings.Contains(call.Key, "/once/") && lose {
					lose = false
					return c.fault
				}
				return storetest.None
			})
			cluster := create(t, store, "first")
			err := cluster.Begin(t.Context(), "reboot", anOperation, "nonce")
			require.Equal(t, c.again, err != nil, "%v", err)
			require.NoError(t, cluster.Begin(t.Context(), "reboot", anOperation, "nonce"))
		})
	}
}

func TestAForgedBeginningIsNotTakenForOnesOwn(t *testing.T) {
	store := storetest.NewMemory()
	cluster := create(t, store, "first")
	store.Tamper("prod/audit/once/"+anOperation+".json", []byte(`{"nonce":"nonce"}`))
	var before *statefile.AlreadyBegunError
	require.ErrorAs(t, cluster.Begin(t.Context(), "reboot", anOperation, "nonce"), &before)
	require.NotEmpty(t, before.Forged)
	require.ErrorContains(t, before, "can't be believed")
}
