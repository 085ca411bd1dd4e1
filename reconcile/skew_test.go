package reconcile

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/talos"
)

// TestACallOfAWriterWithAnotherClockIsSettledInTime: the call was begun before this process took over, whatever its writer's clock said.
func TestACallOfAWriterWithAnotherClockIsSettledInTime(t *testing.T) {
	timing := DefaultTiming()
	for name, test := range map[string]struct {
		action ActionKind
		// clock is how far the other's was from this one, since for how long this process has been the writer.
		clock, since time.Duration
		want         resolution
	}{
		"a removal, by a clock that was ahead":                    {ActRemoveMember, 5 * time.Hour, timing.WriterQuiet, resolveNone},
		"a first config, by a clock that was ahead":               {ActFirstConfig, 5 * time.Hour, timing.WriterQuiet, resolveNone},
		"a bootstrap, by a clock that was ahead":                  {ActBootstrap, 5 * time.Hour, timing.BootstrapQuiet, resolveNone},
		"a bootstrap, by a clock that was ahead, a moment ago":    {ActBootstrap, 5 * time.Hour, timing.WriterQuiet, resolveWait},
		"a wipe, by a clock that was ahead":                       {ActResetMachine, 5 * time.Hour, timing.Return / 2, resolveNone},
		"a wipe, by a clock that was behind, a moment ago":        {ActResetMachine, -5 * time.Hour, time.Minute, resolveWait},
		"a wipe, by a clock that was behind, and long ago":        {ActResetMachine, -5 * time.Hour, timing.Return / 2, resolveNone},
		"a reboot, by a clock that was ahead, which never came":   {ActReboot, 5 * time.Hour, timing.Return, resolveGiven},
		"a reboot, by a clock that was ahead, which may yet come": {ActReboot, 5 * time.Hour, timing.Return - time.Minute, resolveWait},
	} {
		t.Run(name, func(t *testing.T) {
			s := restorable()
			in := s.in
			in.WriterAge = &test.since
			in.State = &statefile.State{Writer: statefile.Writer{ID: "me", Epoch: 2}, Machines: s.next.Machines, Bootstrap: &statefile.BootstrapRecord{Machine: "cp-3"}}
			intent := statefile.Intent{Action: string(test.action), Machine: "cp-3", BootID: "boot", Member: "3", At: in.Now.Add(test.clock), Writer: statefile.Writer{ID: "other", Epoch: 1}}
			switch test.action {
			case ActFirstConfig:
				intent.BootID = "print"
				s.change("cp-3", func(seen *Seen) { seen.Mode, seen.Fingerprint = talos.ModeMaintenance, "print" })
			case ActBootstrap:
				for _, name := range []string{"cp-1", "cp-2", "cp-3"} {
					s.change(name, func(seen *Seen) { seen.Etcd = talos.EtcdObservation{Data: talos.No, Service: "Preparing"} })
				}
			case ActReboot, ActResetMachine:
				intent.Operation = "d1"
				in.State.Operations = []*statefile.OperationState{{Digest: "d1", Name: "op", Phase: statefile.OperationRunning}}
			}
			next := cloneState(in.State)
			next.Intent = &intent
			got, say := resolve(in, next, viewEtcd(in))
			require.Equal(t, test.want, got, say)
		})
	}
}

// TestACallThatOnlyALostEtcdCouldSettleSaysTheWayOut: no operation begins over it, so that a restore must be made by command.
func TestACallThatOnlyALostEtcdCouldSettleSaysTheWayOut(t *testing.T) {
	for _, operation := range []string{"", "d1"} {
		s := restorable()
		s.silence("cp-1", "cp-2", "cp-3")
		s.in.State.Operations = []*statefile.OperationState{{Digest: "d1", Name: "op", Phase: statefile.OperationRunning}}
		next := cloneState(s.in.State)
		next.Intent = &statefile.Intent{Action: string(ActRemoveMember), Machine: "cp-3", Member: "3", Operation: operation, At: s.in.Now}
		_, say := resolve(s.in, next, s.etcd)
		require.Contains(t, say, "etcd has not given a member list since")
		require.NotContains(t, say, "recover-cluster")
		next.Intent.At = s.in.Now.Add(-s.in.Timing.Return)
		got, say := resolve(s.in, next, s.etcd)
		require.Equal(t, resolveWait, got)
		require.Contains(t, say, "ichor restore --recover-cluster")
	}
}

// TestAWindowIsOpenByBothClocks: a state that was written by a clock that was ahead stood still in a window of the night until the day had caught
// up with it, and machines were rebooted for hours outside of it.
func TestAWindowIsOpenByBothClocks(t *testing.T) {
	night := time.Date(2026, 11, 30, 2, 30, 0, 0, time.UTC)
	for name, test := range map[string]struct {
		now, latest time.Time
		open        bool
		says        string
	}{
		"both in it":                      {night, night.Add(-time.Minute), true, ""},
		"both out of it":                  {night.Add(10 * time.Hour), night, false, "the next at 2026-12-01 02:00Z"},
		"a writer was ahead, in a window": {night.Add(-10 * time.Hour), night, false, "this machine's is 10h0m0s behind that"},
		"a writer was ahead, out of it":   {night, night.Add(10 * time.Hour), false, "ichor state accept prod"},
		"a writer was ahead by a little":  {night.Add(-31 * time.Minute), night, false, "the next at 2026-11-30 02:00Z"},
		"it was set back a little":        {night.Add(20 * time.Minute), night.Add(40 * time.Minute), false, "the next at 2026-12-01 02:00Z"},
	} {
		t.Run(name, func(t *testing.T) {
			in := restorable().in
			in.Now, in.Cluster.Object.Spec.Rollout.Windows = test.now, []schema.Window{{Schedule: "0 2 * * *", Duration: schema.Duration(time.Hour)}}
			open, next := in.windowOpen(&statefile.State{Latest: test.latest})
			require.Equal(t, test.open, open)
			require.Contains(t, next, test.says)
		})
	}
}
