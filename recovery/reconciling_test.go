package recovery

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/talos"
)

// survivors are the machines of working that live through its restore: the target left etcd and recovers where it is, and the workers.
// The holder is wiped, and the third left and is rebooted to join.
var survivors = []string{"cp-1", "w-1", "w-2"}

// requireAnew says that the kubelets that lived through the restore were restarted, each once, and no other; and that on their machines alone
// the pods were replaced, each once.
func requireAnew(t *testing.T, s *stage, before map[string][]string) {
	t.Helper()
	for name := range s.machines {
		restarts := 0
		if slices.Contains(survivors, name) {
			restarts = 1
		}
		require.Equal(t, restarts, s.count("restart kubelet on "+name), "%s: %s", name, s.accepted)
		after := s.kubernetes.uidsOn(t, name)
		require.Len(t, after, 2)
		for _, uid := range before[name] {
			require.Equal(t, restarts == 0, slices.Contains(after, uid), "%s on %s", uid, name)
		}
	}
	require.Len(t, s.kubernetes.deleted, 2*len(survivors), "each pod goes once")
	require.LessOrEqual(t, s.kubernetes.most, 1, "one at a time")
}

func podsBefore(t *testing.T, s *stage) map[string][]string {
	all := map[string][]string{}
	for name := range s.machines {
		all[name] = s.kubernetes.uidsOn(t, name)
	}
	return all
}

func TestWhatLivedThroughTheRestoreReadsEverythingAnew(t *testing.T) {
	s := working(t)
	withKubernetes(s, "w-1", "w-2")
	before := podsBefore(t, s)
	m, _, err := s.run(0)
	require.NoError(t, err, s.said)
	s.requireWhole(m)
	requireAnew(t, s, before)
	require.Empty(t, m.Notes)
	for _, name := range survivors {
		require.NotEqual(t, m.last(ActRestart, name).Facts[factKubelet], started(s.machines[name].kubelet.service))
		require.NotEmpty(t, m.last(ActRestart, name).BootID)
	}
}

func TestWhereAllControlPlanesAreWipedOnlyTheWorkersLiveThroughIt(t *testing.T) {
	s := working(t)
	s.holder = ""
	c := withKubernetes(s, "w-1")
	m, _, err := s.run(0)
	require.NoError(t, err, s.said)
	s.requireWhole(m)
	require.Equal(t, 1, s.count("restart kubelet on"), s.accepted)
	require.Equal(t, 1, s.count("restart kubelet on w-1"))
	require.Len(t, c.deleted, 2)
	require.Empty(t, m.Notes)
}

func TestKilledWhileItReconcilesNoKubeletIsRestartedTwice(t *testing.T) {
	s := working(t)
	withKubernetes(s, "w-1", "w-2")
	_, points, err := s.run(0)
	require.NoError(t, err)
	from := points - 40
	require.Positive(t, from)
	for at := from; at <= points; at++ {
		t.Run(fmt.Sprint("point ", at), func(t *testing.T) {
			s := working(t)
			withKubernetes(s, "w-1", "w-2")
			before := podsBefore(t, s)
			_, _, _ = s.run(at)
			m, _, err := s.run(0)
			require.NoError(t, err, s.said)
			s.requireWhole(m)
			for _, name := range survivors {
				if last := m.last(ActRestart, name); last.Outcome == statefile.OutcomeOK {
					continue // it was seen to be done
				}
				// Its process died over the call: it may have been made or not, and isn't made again.
				require.LessOrEqual(t, s.count("restart kubelet on "+name), 1)
				if s.count("restart kubelet on "+name) == 0 {
					require.Contains(t, fmt.Sprint(m.Notes), name+" was told to restart its kubelet")
					return
				}
			}
			requireAnew(t, s, before)
		})
	}
}

func TestWhatDoesNotComeRightIsSaidAndFailsNothing(t *testing.T) {
	for name, test := range map[string]struct {
		spoil func(s *stage)
		says  string
		// restarts on w-1, and pods that were replaced in all.
		restarts, replaced int
	}{
		"a worker is off":                    {func(s *stage) { s.machines["w-1"].off = true }, "w-1 doesn't answer, and its kubelet may have lived through the restore: connection refused", 0, 4},
		"another machine answers for it":     {func(s *stage) { s.machines["w-1"].uuid = "another" }, "w-1 is not looked after: the machine that answers at w-1 has the UUID", 0, 4},
		"a restart that has no effect":       {func(s *stage) { s.machines["w-1"].kubelet.drop = true }, "w-1 was told to restart its kubelet, and that is Running", 1, 4},
		"restarts that are refused for good": {func(s *stage) { s.machines["w-1"].kubelet.refuse = 9999 }, "w-1 did not restart its kubelet", 0, 4},
		"a kubelet that isn't heard of":      {func(s *stage) { s.machines["w-1"].kubelet.deaf = true }, "w-1 has sent no heartbeat since its kubelet restarted", 1, 4},
		"a machine that isn't Ready":         {func(s *stage) { s.machines["w-1"].kubelet.unready = true }, "w-1 is not Ready: KubeletNotReady: the network plugin is not ready", 1, 6},
		"a wiped machine that isn't Ready":   {func(s *stage) { s.machines["cp-3"].kubelet.unready = true }, "cp-3 is not Ready", 1, 6},
		"a DaemonSet that makes no pod anew": {func(s *stage) { s.kubernetes.frozen = "kube-proxy" }, "the DaemonSet kube-proxy has not made its pod on cp-1 anew yet", 1, 2},
		"a pod that doesn't become ready":    {func(s *stage) { s.kubernetes.slow = 1000 * time.Hour }, "on cp-1 is not ready yet", 1, 1},
		"several things, each in one sentence": {func(s *stage) {
			s.machines["w-1"].off = true
			s.machines["w-2"].kubelet.unready = true
		}, "w-2 is not Ready", 0, 4},
	} {
		t.Run(name, func(t *testing.T) {
			s := working(t)
			withKubernetes(s, "w-1", "w-2")
			m := s.marker()
			test.spoil(s)
			r, _, ctx := s.process(0)
			_, err := r.Marker.Read(ctx)
			require.NoError(t, err)
			require.NoError(t, r.Begin(ctx, m))
			m, err = r.Go(ctx)
			require.NoError(t, err, s.said)
			s.requireWhole(m)
			require.Len(t, m.Notes, 1)
			require.Contains(t, m.Notes[0], test.says)
			require.Contains(t, m.Notes[0], "after 10m0s without progress")
			require.GreaterOrEqual(t, m.Ended.Sub(m.Survivors.Since), 10*time.Minute)
			require.Equal(t, test.restarts, s.count("restart kubelet on w-1"), s.accepted)
			require.Len(t, s.kubernetes.deleted, test.replaced)
		})
	}
}

func TestTenMinutesAreCountedFromWhatLastCameRight(t *testing.T) {
	s := working(t)
	c := withKubernetes(s, "w-1", "w-2")
	c.slow = 9 * time.Minute
	before := podsBefore(t, s)
	m, _, err := s.run(0)
	require.NoError(t, err, s.said)
	requireAnew(t, s, before)
	require.Empty(t, m.Notes)
	require.Greater(t, m.Ended.Sub(m.Survivors.Since), 50*time.Minute)
}

func TestARefusedRestartIsAskedForAgainAndDoneOnce(t *testing.T) {
	s := working(t)
	withKubernetes(s, "w-1", "w-2")
	s.machines["w-1"].kubelet.refuse = 3
	before := podsBefore(t, s)
	m, _, err := s.run(0)
	require.NoError(t, err, s.said)
	requireAnew(t, s, before)
	require.Empty(t, m.Notes)
}

func TestAMachineThatRebootsMeanwhileNeedsNoRestart(t *testing.T) {
	s := working(t)
	withKubernetes(s, "w-1", "w-2")
	s.machines["w-1"].kubelet.refuse = 1
	r, _, ctx := s.process(0)
	require.NoError(t, s.begin(ctx, r))
	for r.marker.last(ActRestart, "w-1") == nil {
		require.NoError(t, r.step(ctx))
	}
	require.Equal(t, statefile.OutcomeRefused, r.marker.last(ActRestart, "w-1").Outcome)
	s.machines["w-1"].rebooted(s.world)
	m, err := r.Go(ctx)
	require.NoError(t, err, s.said)
	require.Zero(t, s.count("restart kubelet on w-1"))
	require.Equal(t, 1, s.count("restart kubelet on w-2"))
	require.Len(t, s.kubernetes.deleted, 4, "nor do its pods")
	require.Empty(t, m.Notes)
}

func TestAMachineWithoutANodeGetsOneFromTheRestart(t *testing.T) {
	s := working(t)
	withKubernetes(s, "w-1", "w-2")
	s.machines["w-1"].kubelet.gone = true // it came after the snapshot
	m, _, err := s.run(0)
	require.NoError(t, err, s.said)
	require.Equal(t, 1, s.count("restart kubelet on w-1"))
	require.Empty(t, m.Notes)
}

func TestWhatOnlySomebodyElseCanChangeIsNamedAndNotWaitedFor(t *testing.T) {
	for name, test := range map[string]struct {
		spoil func(s *stage)
		says  string
	}{
		"a config that waits for a reboot":   {func(s *stage) { s.machines["w-1"].kubelet.staged = " of another" }, "w-1 has a config that takes effect with its next reboot: reboot it"},
		"a machine that has no config":       {func(s *stage) { s.machines["w-1"].maintenance = true }, "w-1 is in maintenance mode: the agent gives it its config"},
		"Nodes that no machine accounts for": {func(s *stage) { s.kubernetes.strangers = []string{"x-1", "x-2"} }, "their kubelets were not restarted: x-1, x-2"},
	} {
		t.Run(name, func(t *testing.T) {
			s := working(t)
			withKubernetes(s, "w-1", "w-2")
			test.spoil(s)
			m, _, err := s.run(0)
			require.NoError(t, err, s.said)
			require.Len(t, m.Notes, 1)
			require.Contains(t, m.Notes[0], test.says)
			require.Less(t, m.Ended.Sub(m.Survivors.Since), 10*time.Minute)
			require.Empty(t, s.count("reboot w-1"))
		})
	}
}

func TestAnAPIThatDoesNotServeTheRecoveredEtcdIsWaitedFor(t *testing.T) {
	s := working(t)
	c := withKubernetes(s, "w-1", "w-2")
	c.awayUntil, c.oldUntil = s.clock.Now().Add(30*time.Minute), s.clock.Now().Add(40*time.Minute)
	before := podsBefore(t, s)
	m, _, err := s.run(0)
	require.NoError(t, err, s.said)
	requireAnew(t, s, before)
	require.Len(t, m.Notes, 1)
	require.Contains(t, m.Notes[0], "cp-2 was rebooted with its pods on it: the Kubernetes API has not answered for 10m0s")
	require.False(t, m.Survivors.Since.Before(c.oldUntil))
	require.Contains(t, fmt.Sprint(s.said), "the Kubernetes API serves revision 7000, which is from before the recovery")
}

func TestAnAPIThatNeverAnswersIsNoSuccess(t *testing.T) {
	s := working(t)
	c := withKubernetes(s, "w-1")
	c.awayUntil = s.clock.Now().Add(1000 * time.Hour)
	m, _, err := s.run(0)
	var stopped *StoppedError
	require.ErrorAs(t, err, &stopped)
	require.ErrorContains(t, err, "the Kubernetes API doesn't answer")
	require.Equal(t, PhaseReconciling, m.Phase)
	require.Zero(t, s.count("restart"))
	c.awayUntil = time.Time{}
	again, _, err := s.run(0)
	require.NoError(t, err)
	require.Equal(t, PhaseDone, again.Phase)
	require.Equal(t, 2, s.count("restart"))
}

func TestWithoutAWayToKubernetesThatIsSaid(t *testing.T) {
	s := working(t)
	m, _, err := s.run(0)
	require.NoError(t, err)
	require.Len(t, m.Notes, 2)
	require.Contains(t, m.Notes[0], "cp-2 was rebooted with its pods on it: no way to the Kubernetes API is known here")
	require.Contains(t, m.Notes[1], "no way to the Kubernetes API is known here, so nothing is known of the machines' kubelets")
}

// A kubelet's heartbeat counts only from after its start, as its own machine tells both; no other machine's clock is asked.
func TestAHeartbeatFromBeforeTheRestartIsNotBelieved(t *testing.T) {
	s := working(t)
	withKubernetes(s, "w-1")
	b := s.machines["w-1"]
	b.kubelet.deaf = true
	r, _, ctx := s.process(0)
	require.NoError(t, s.begin(ctx, r))
	for s.count("restart kubelet on w-1") == 0 {
		b.kubelet.lastHeartbeat = b.kubelet.clock(s.world) // the last of the old process
		require.NoError(t, r.step(ctx))
	}
	for range 100 {
		require.NoError(t, r.step(ctx))
	}
	require.Contains(t, fmt.Sprint(s.said), "w-1 has sent no heartbeat since its kubelet restarted")
	require.Len(t, s.kubernetes.deleted, 2)
	require.Equal(t, PhaseReconciling, r.marker.Phase)
	for _, uid := range s.kubernetes.uidsOn(t, "w-1") {
		require.NotContains(t, s.kubernetes.deleted, uid, "its pods wait for it")
	}
	b.kubelet.deaf = false
	m, err := r.Go(ctx)
	require.NoError(t, err)
	require.Empty(t, m.Notes)
	require.Equal(t, talos.Yes, b.kubelet.service.Healthy)
}
