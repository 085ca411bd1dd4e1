package machined

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/config/container"
	"github.com/siderolabs/talos/pkg/machinery/config/types/v1alpha1"
	"github.com/stretchr/testify/require"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
)

func TestWhoMayInterruptWhom(t *testing.T) {
	all := []string{seqInitialize, seqInstall, seqBoot, seqReboot, seqShutdown, seqReset, seqUpgrade, seqStageUpgrade, seqMaintenanceUpgrade, seqVolumeCleanup}
	allowed := map[string][]string{
		"":            all,
		seqInitialize: {seqMaintenanceUpgrade, seqReboot, seqVolumeCleanup},
		seqBoot:       {seqReboot, seqReset, seqUpgrade, seqVolumeCleanup},
		seqReboot:     {seqReboot},
		seqReset:      {seqReboot},
	}
	for _, running := range append([]string{""}, all...) {
		for _, newcomer := range all {
			t.Run(fmt.Sprintf("%s while %s runs", newcomer, running), func(t *testing.T) {
				want := false
				for _, a := range allowed[running] {
					want = want || a == newcomer
				}
				require.Equal(t, want, mayTakeOver(newcomer, running))
			})
		}
	}
}

func TestTheLockIsHandedOverOnlyWhenTheRunningSequenceLetsGo(t *testing.T) {
	lock := newSequenceLock(Pace{Clock: clock.RealClock{}, Scale: 1})
	running, err := lock.acquire(t.Context(), seqBoot, false)
	require.NoError(t, err)
	_, err = lock.acquire(t.Context(), seqShutdown, false)
	require.ErrorIs(t, err, errLocked)
	require.NoError(t, running.Err(), "a refused newcomer disturbs nobody")

	taken := make(chan error, 1)
	go func() {
		_, err := lock.acquire(context.Background(), seqReset, false)
		taken <- err
	}()
	<-running.Done()
	require.ErrorIs(t, context.Cause(running), context.Canceled)
	select {
	case <-taken:
		t.Fatal("the newcomer runs beside the old sequence")
	default:
	}
	lock.release()
	require.NoError(t, <-taken)
}

func TestTheLockGivesUpAfterAMinute(t *testing.T) {
	clk := clocktesting.NewFakeClock(time.Now())
	lock := newSequenceLock(Pace{Clock: clk, Scale: 1})
	_, err := lock.acquire(t.Context(), seqReboot, false)
	require.NoError(t, err)
	result := make(chan error, 1)
	go func() {
		_, err := lock.acquire(context.Background(), seqReboot, false)
		result <- err
	}()
	require.Eventually(t, clk.HasWaiters, 10*time.Minute, time.Millisecond)
	clk.Step(time.Minute)
	require.EqualError(t, <-result, "failed to acquire lock: timeout")
}

func TestWhatNeedsAReboot(t *testing.T) {
	base := func() *v1alpha1.Config {
		return &v1alpha1.Config{
			MachineConfig: &v1alpha1.MachineConfig{MachineType: "controlplane", MachineToken: "a.b", MachineFeatures: &v1alpha1.FeaturesConfig{}},
			ClusterConfig: &v1alpha1.ClusterConfig{ClusterID: "x"},
		}
	}
	for _, c := range []struct {
		name   string
		change func(*v1alpha1.Config)
		reboot bool
	}{
		{"nothing", func(*v1alpha1.Config) {}, false},
		{"the whole cluster section is live", func(c *v1alpha1.Config) { c.ClusterConfig = &v1alpha1.ClusterConfig{ClusterID: "y"} }, false},
		{"debug is live", func(c *v1alpha1.Config) { c.ConfigDebug = ptr.To(true) }, false},
		{"a sysctl is live", func(c *v1alpha1.Config) { c.MachineConfig.MachineSysctls = map[string]string{"a": "b"} }, false},
		{"a node annotation is live", func(c *v1alpha1.Config) { c.MachineConfig.MachineNodeAnnotations = map[string]string{"a": "b"} }, false},
		{"the install section is live", func(c *v1alpha1.Config) {
			c.MachineConfig.MachineInstall = &v1alpha1.InstallConfig{InstallDisk: "/dev/sdb"}
		}, false},
		{"KubePrism is live", func(c *v1alpha1.Config) { c.MachineConfig.MachineFeatures.KubePrismSupport = &v1alpha1.KubePrism{} }, false},
		{"the type needs a reboot", func(c *v1alpha1.Config) { c.MachineConfig.MachineType = "worker" }, true},
		{"the token needs a reboot", func(c *v1alpha1.Config) { c.MachineConfig.MachineToken = "c.d" }, true},
		//lint:ignore SA1019 what is deprecated is still on the wire
		{"env needs a reboot", func(c *v1alpha1.Config) { c.MachineConfig.MachineEnv = map[string]string{"A": "B"} }, true},
		{"files need a reboot", func(c *v1alpha1.Config) {
			c.MachineConfig.MachineFiles = []*v1alpha1.MachineFile{{FilePath: "/var/x"}}
		}, true},
		{"a disk quota needs a reboot", func(c *v1alpha1.Config) { c.MachineConfig.MachineFeatures.DiskQuotaSupport = ptr.To(true) }, true},
		{"features that vanish need a reboot", func(c *v1alpha1.Config) { c.MachineConfig.MachineFeatures = nil }, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			now := base()
			c.change(now)
			err := canApplyImmediate(container.NewV1Alpha1(base()), container.NewV1Alpha1(now))
			if !c.reboot {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, "this config change can't be applied in immediate mode\ndiff:\n")
		})
	}
}

func TestAStableHostnameFollowsTheIdentity(t *testing.T) {
	require.Equal(t, stableHostname("one"), stableHostname("one"))
	require.NotEqual(t, stableHostname("one"), stableHostname("two"))
	require.Regexp(t, `^talos-[0-9a-z]{3}-[0-9a-z]{3}$`, stableHostname(newNodeID()))
}

func TestAReaderThatFallsBehindIsCutOff(t *testing.T) {
	log := newEventLog(clocktesting.NewFakeClock(time.Unix(1000, 0)))
	publish := func(n int) {
		for range n {
			log.publish(withActor(context.Background(), "me"), &machine.RestartEvent{})
		}
	}
	publish(3)
	events, overrun, changed := log.since(1)
	require.False(t, overrun)
	require.Len(t, events, 2)
	require.Equal(t, "me", events[0].actor)
	require.Equal(t, int64(1), log.tail(nil, 2))
	require.Equal(t, int64(0), log.tail(nil, -1))
	publish(eventSlots)
	<-changed
	_, overrun, _ = log.since(1)
	require.True(t, overrun)
	require.Equal(t, log.next()-(eventSlots-eventGap), log.tail(nil, -1), "the oldest slots aren't safe to read")
	last, _, _ := log.since(log.next() - 1)
	require.Equal(t, log.next(), log.tail(func(e event) bool { return e.id == last[0].id }, 0))
}

func TestADiskRemembersByPartition(t *testing.T) {
	s, err := OpenStore(t.TempDir())
	require.NoError(t, err)
	require.False(t, s.Installed())
	require.NoError(t, s.writeConfig([]byte("a")), "without STATE a config has nowhere to go")
	data, err := s.Config()
	require.NoError(t, err)
	require.Nil(t, data)

	require.NoError(t, s.Install("/dev/sda"))
	require.NoError(t, s.provision(stateLabel))
	require.NoError(t, s.provision(ephemeralLabel))
	require.NoError(t, s.writeConfig([]byte("b: c # kept")))
	require.NoError(t, s.setMeta(map[uint8]string{10: "x"}))
	again, err := OpenStore(s.dir)
	require.NoError(t, err)
	data, err = again.Config()
	require.NoError(t, err)
	require.Equal(t, "b: c # kept", string(data))
	require.Equal(t, map[uint8]string{10: "x"}, again.Meta())

	require.NoError(t, again.Wipe(ephemeralLabel))
	require.True(t, again.Has(stateLabel))
	require.NoError(t, again.Wipe(stateLabel))
	require.True(t, again.Installed(), "META is kept")
	require.Equal(t, "/dev/sda", again.systemDisk())
	require.NoError(t, again.Wipe())
	require.False(t, again.Installed())
	require.Empty(t, again.systemDisk())
	require.True(t, again.EverInstalled())
}

func TestErrorsNameThePathsOfTheMachine(t *testing.T) {
	s, err := OpenStore(t.TempDir())
	require.NoError(t, err)
	v := &volumes{m: &Machine{cfg: Config{Store: s}}, ephemeral: true}
	_, err = os.Stat(v.path("/var/lib/etcd.snapshot"))
	require.EqualError(t, v.inside(err), "stat /var/lib/etcd.snapshot: no such file or directory")
	_, _, err = v.stat("lstat", "/var/lib/etcd/member")
	require.EqualError(t, err, "lstat /var/lib/etcd/member: no such file or directory")
	require.Empty(t, v.path("/var/../../../etc/passwd"), "no path leads out of the machine")
	require.True(t, strings.HasPrefix(v.path("/var/lib/../lib/etcd"), s.Path(ephemeralLabel)))
	v.ephemeral = false
	_, _, err = v.stat("stat", "/var/lib")
	require.True(t, errors.Is(err, os.ErrNotExist), "nothing is mounted")
}

func TestWaitsFollowTheClockAndTheScale(t *testing.T) {
	clk := clocktesting.NewFakeClock(time.Now())
	p := Pace{Clock: clk, Scale: 10}
	done := make(chan error, 1)
	go func() { done <- p.Sleep(t.Context(), 10*time.Second) }()
	require.Eventually(t, clk.HasWaiters, 10*time.Minute, time.Millisecond)
	clk.Step(999 * time.Millisecond)
	select {
	case <-done:
		t.Fatal("slept too little")
	default:
	}
	clk.Step(time.Millisecond)
	require.NoError(t, <-done)

	ctx, cancel := p.Within(t.Context(), 10*time.Second)
	defer cancel()
	require.Eventually(t, clk.HasWaiters, 10*time.Minute, time.Millisecond)
	clk.Step(workFloor - time.Millisecond)
	require.NoError(t, ctx.Err(), "real work gets its five seconds")
	clk.Step(time.Millisecond)
	<-ctx.Done()
	require.ErrorIs(t, context.Cause(ctx), context.DeadlineExceeded)
}

func TestMachinesWaitForOthersHoweverFastTimeRuns(t *testing.T) {
	for name, test := range map[string]struct {
		pace  Pace
		busy  bool
		steps []time.Duration
	}{
		"a wait has ten minutes":                                {Pace{Scale: 60}, false, []time.Duration{waitLimit}},
		"a wait that is long enough anyway follows the scale":   {Pace{Scale: 2}, false, []time.Duration{15 * time.Minute}},
		"an impatient machine follows the scale":                {Pace{Scale: 60, Impatient: true}, false, []time.Duration{30 * time.Second}},
		"an impatient machine lets an etcd finish what it does": {Pace{Scale: 60, Impatient: true}, true, []time.Duration{30 * time.Second, waitLimit - 30*time.Second}},
	} {
		t.Run(name, func(t *testing.T) {
			clk := clocktesting.NewFakeClock(time.Now())
			test.pace.Clock = clk
			ctx, cancel := test.pace.Waiting(t.Context(), 30*time.Minute, func() bool { return test.busy })
			defer cancel()
			for _, step := range test.steps {
				require.Eventually(t, clk.HasWaiters, 10*time.Minute, time.Millisecond)
				clk.Step(step - time.Millisecond)
				require.NoError(t, ctx.Err())
				clk.Step(time.Millisecond)
			}
			<-ctx.Done()
			require.ErrorIs(t, context.Cause(ctx), context.DeadlineExceeded)
		})
	}
}
