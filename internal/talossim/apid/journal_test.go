package apid_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/role"
	"github.com/stretchr/testify/require"
	clocktesting "k8s.io/utils/clock/testing"

	"ichor.maesh.dev/internal/talossim/apid"
)

func TestTheJournalFileHoldsWhatMemoryHolds(t *testing.T) {
	a := newAuthority(t)
	dir := t.TempDir()
	fake := clocktesting.NewFakeClock(time.Date(2026, 11, 29, 10, 0, 0, 0, time.UTC))

	journal, err := apid.OpenJournal(dir, "cp-1", fake)
	require.NoError(t, err)

	n := startNodeWith(t, a, "127.0.30.228", journal)
	c := n.dial(t, a, a.client(t, role.Admin))

	require.NoError(t, c.ResetGeneric(within(t, soon), &machine.ResetRequest{}))
	require.Len(t, journal.Accepted("Reset"), 1)

	late := <-n.machine.calls
	late.SetAccepted(false, "sequence not started: locked")
	require.Empty(t, journal.Accepted("Reset"), "a correction made after the answer holds")

	written, err := apid.ReadJournal(filepath.Join(dir, apid.JournalFile))
	require.NoError(t, err)
	require.Len(t, written, 1)
	require.Equal(t, "sequence not started: locked", written[0].Note)
	require.True(t, written[0].Time.Equal(fake.Now()))
	require.NoError(t, journal.Close())

	again, err := apid.OpenJournal(dir, "cp-1", fake)
	require.NoError(t, err)
	require.Len(t, again.Entries(), 1, "a journal goes on after what is there")
	require.NoError(t, again.Close())

	info, err := os.Stat(filepath.Join(dir, apid.JournalFile))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
}

func TestACallOutsideAHandlerTakesCorrectionsInSilence(t *testing.T) {
	apid.CallFrom(context.Background()).SetAccepted(true, "nobody listens")
}

func FuzzDecodeJournal(f *testing.F) {
	f.Add([]byte(`{"seq":1,"method":"/machine.MachineService/Reset","code":"OK","accepted":true}` + "\n"))
	f.Add([]byte(`{"seq":1,"method":"x","accepted":true}` + "\n" + `{"seq":2,"corrects":1,"accepted":false,"note":"locked"}` + "\n"))
	f.Add([]byte(`{"seq":1`))
	f.Add([]byte("\n\n"))

	f.Fuzz(func(t *testing.T, data []byte) {
		entries, err := apid.DecodeJournal(bytes.NewReader(data))
		if err != nil {
			return
		}

		for _, e := range entries {
			require.Zero(t, e.Corrects, "corrections are applied, not listed")
		}

		apid.Accepted(entries, "Reset")
	})
}
