package machined

import (
	"context"
	"fmt"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	machineconfig "github.com/siderolabs/talos/pkg/machinery/config/machine"
)

// The times of phases that in Talos depend on the machine; those that Talos itself fixes stand where they are used.
const (
	earlyTime    = 1 * time.Second
	phaseTime    = 300 * time.Millisecond
	installTime  = 20 * time.Second
	stopTime     = 2 * time.Second
	bootTimeout  = 70 * time.Minute // constants.BootTimeout
	drainTime    = 3 * time.Second
	drainTimeout = 5 * time.Minute // constants.NodeReadyTimeout and the drain's own
)

// takes is a task that only takes time.
func (m *Machine) takes(name, taskName string, d time.Duration) phase {
	return one(name, taskName, func(ctx context.Context) error { return m.pace.Sleep(ctx, d) })
}

func (m *Machine) initializePhases() []phase {
	config := one("config", "loadConfig", m.loadConfig)
	if m.cfg.Container {
		return []phase{
			{name: "machined", tasks: []task{m.startTask("startApid", "apid"), m.startTask("startMachined", "machined"), m.startTask("startContainerd", "containerd")}},
			config,
		}
	}
	return []phase{
		m.takes("systemRequirements", "enforceKSPPRequirements", phaseTime),
		{name: "earlyServices", tasks: []task{
			m.startTask("startUdevd", "udevd"), m.startTask("startMachined", "machined"), m.startTask("startApid", "apid"),
			m.startTask("startAuditd", "auditd"), m.startTask("startSyslogd", "syslogd"), m.startTask("startContainerd", "containerd"),
		}},
		m.takes("usb", "waitForUSB", earlyTime),
		m.takes("meta", "reloadMeta", phaseTime),
		{name: "dashboard", tasks: []task{m.startTask("startDashboard", "dashboard")}},
		config,
	}
}

func (m *Machine) startTask(name, id string) task {
	return task{name, func(context.Context) error {
		m.services.load(m.serviceDef(id))
		return m.services.start(id)
	}}
}

// loadConfig takes the config from STATE, or waits in maintenance mode until one is applied.
func (m *Machine) loadConfig(ctx context.Context) error {
	m.volumes.locate()
	data, err := m.cfg.Store.Config()
	if err != nil {
		return err
	}
	if data != nil {
		m.volumes.mountState()
		if err := m.conf.load(data); err != nil {
			return fmt.Errorf("the config on STATE: %w", err)
		}
	}
	if m.conf.configured() {
		return nil
	}
	m.publishMachineType()
	m.front.maintain()
	const name = "runningMaintenance"
	m.events.publish(ctx, &machine.TaskEvent{Task: name, Action: machine.TaskEvent_START})
	defer m.events.publish(ctx, &machine.TaskEvent{Task: name, Action: machine.TaskEvent_STOP})
	select {
	case <-m.conf.complete:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// installPhases are empty where nothing has to be installed; the sequence runs all the same.
func (m *Machine) installPhases() []phase {
	if m.cfg.Container || m.cfg.Store.Installed() {
		return nil
	}
	return []phase{
		m.takes("env", "setUserEnvVars", phaseTime),
		one("install", "install", m.install),
		m.takes("meta", "reloadMeta", phaseTime),
		m.takes("saveMeta", "flushMeta", phaseTime),
		one("volumeFinalize", "teardownVolumeLifecycle", m.finalizeVolumes),
		one("stopEverything", "stopAllServices", m.stopEverything),
		m.takes("kexec", "kexecPrepare", phaseTime),
		one("reboot", "reboot", func(context.Context) error { return m.end(Kexec) }),
	}
}

func (m *Machine) install(ctx context.Context) error {
	disk, err := m.installDisk(ctx)
	if err != nil {
		return err
	}
	if err := m.pace.Sleep(ctx, installTime); err != nil {
		return err
	}
	if err := m.cfg.Store.Install(disk); err != nil {
		return err
	}
	m.volumes.locate()
	return nil
}

func (m *Machine) bootPhases() []phase {
	phases := []phase{
		m.takes("memorySizeCheck", "memorySizeCheck", phaseTime),
		m.takes("diskSizeCheck", "diskSizeCheck", phaseTime),
		m.takes("env", "setUserEnvVars", phaseTime),
		m.takes("dbus", "startDBus", phaseTime),
	}
	if m.cfg.Container {
		phases = append(phases, m.takes("sharedFilesystems", "setupSharedFilesystems", phaseTime))
	}
	phases = append(phases, one("ephemeral", "mountEphemeralPartition", func(ctx context.Context) error {
		if err := m.pace.Sleep(ctx, earlyTime); err != nil {
			return err
		}
		return m.volumes.mountEphemeral()
	}))
	if !m.cfg.Container {
		phases = append(phases, m.takes("udevSetup", "writeUdevRules", phaseTime), m.takes("userDisks", "mountUserDisks", phaseTime))
	}
	return append(phases, m.takes("userSetup", "writeUserFiles", phaseTime), one("startEverything", "startAllServices", m.startEverything))
}

// startEverything waits until every service is up: on a control plane that is until etcd is healthy.
func (m *Machine) startEverything(ctx context.Context) error {
	ids := []string{"cri", "kubelet"}
	if m.conf.machineType().IsControlPlane() {
		ids = append(ids, "etcd", "trustd")
	}
	for _, id := range ids {
		m.services.load(m.serviceDef(id))
	}
	for _, id := range ids {
		if err := m.services.start(id); err != nil {
			return err
		}
	}
	ctx, cancel := m.pace.Waiting(ctx, bootTimeout, m.etcd.atWork)
	defer cancel()
	return m.services.waitUp(ctx, append([]string{"machined", "apid", "containerd"}, ids...)...)
}

// stopList is what all sequences do before they end the machine.
func (m *Machine) stopList(kexec bool) []phase {
	if m.cfg.Container {
		return []phase{one("stopEverything", "stopAllServices", m.stopEverything)}
	}
	phases := []phase{
		one("stopServices", "stopServicesEphemeral", m.stopServices),
		m.takes("umount", "unmountPodMounts", phaseTime),
		m.takes("unmountBind", "unmountSystemDiskBindMounts", phaseTime),
		one("unmountSystem", "unmountEphemeralPartition", func(context.Context) error { m.volumes.unmountEphemeral(); return nil }),
		one("volumeFinalize", "teardownVolumeLifecycle", m.finalizeVolumes),
	}
	if kexec {
		phases = append(phases, m.takes("kexec", "kexecPrepare", phaseTime))
	}
	return append(phases, one("stopEverything", "stopAllServices", m.stopEverything))
}

func (m *Machine) stopServices(ctx context.Context) error {
	m.cfg.Faults.halt(ctx, BeforeStopping)
	return m.services.stop(ctx, "kubelet", "etcd", "trustd", "cri")
}

func (m *Machine) finalizeVolumes(ctx context.Context) error {
	m.conf.flush()
	return m.pace.Sleep(ctx, phaseTime)
}

// stopEverything is where the API dies: listeners close and connections are cut without a goodbye.
func (m *Machine) stopEverything(ctx context.Context) error {
	m.cfg.Faults.halt(ctx, BeforeGoingDown)
	err := m.services.stop(ctx, m.services.ids()...)
	if m.cfg.Container {
		// Nothing comes before this in a container, and the answer to the reset may still be on its way.
		m.cfg.Front.Stop()
		return err
	}
	m.cfg.Front.Cut()
	return err
}

func (m *Machine) rebootPhases(mode machine.RebootRequest_Mode) []phase {
	outcome := Reboot
	if mode == machine.RebootRequest_DEFAULT {
		outcome = Kexec
	}
	last := one("reboot", "reboot", func(context.Context) error { return m.end(outcome) })
	if mode == machine.RebootRequest_FORCE {
		return []phase{last}
	}
	return append(append([]phase{
		m.takes("cleanup", "stopAllPods", stopTime),
		m.takes("dbus", "stopDBus", phaseTime),
	}, m.stopList(true)...), last)
}

func (m *Machine) shutdownPhases(force bool) []phase {
	phases := []phase{m.takes("storeShutdown", "storeShutdownEmergency", phaseTime)}
	if !force && !m.skipsNodeRegistration() {
		phases = append(phases, one("drain", "cordonAndDrainNode", m.drain))
	}
	phases = append(phases, m.takes("cleanup", "stopAllPods", stopTime), m.takes("dbus", "stopDBus", phaseTime))
	phases = append(phases, m.stopList(false)...)
	return append(phases, one("shutdown", "shutdown", func(context.Context) error { return m.end(PowerOff) }))
}

func (m *Machine) skipsNodeRegistration() bool {
	p := m.conf.current()
	return p == nil || p.Machine() == nil || p.Machine().Kubelet().SkipNodeRegistration()
}

// resetOptions is a reset request whose checks have passed.
type resetOptions struct {
	graceful, reboot bool
	labels           []string // partitions to wipe; none and wholeDisk: the whole disk
	wholeDisk        bool
}

func (m *Machine) resetPhases(o resetOptions) []phase {
	if m.cfg.Container {
		return append(m.stopList(false), one("shutdown", "shutdown", func(context.Context) error { return m.end(PowerOff) }))
	}
	var phases []phase
	if o.graceful {
		if !m.skipsNodeRegistration() {
			drain := one("drain", "cordonAndDrainNode", m.drain)
			drain.logged = true
			phases = append(phases, drain)
		}
		phases = append(phases, m.takes("cleanup", "removeAllPods", stopTime))
	} else {
		phases = append(phases, m.takes("cleanup", "stopAllPods", stopTime))
	}
	phases = append(phases, m.takes("dbus", "stopDBus", phaseTime))
	if o.graceful && m.conf.machineType() != machineconfig.TypeWorker {
		phases = append(phases, one("leave", "leaveEtcd", m.leaveEtcd))
	}
	phases = append(phases, one("preReset", "sendResetSignal", func(context.Context) error { m.forgetAffiliate(); return nil }))
	kexec := len(o.labels) > 0
	for _, p := range m.stopList(kexec) {
		p.logged = true
		phases = append(phases, p)
	}
	phases = append(phases, m.takes("forceCleanup", "forceCleanup", phaseTime))
	switch {
	case len(o.labels) > 0:
		phases = append(phases, one("resetSpec", "resetSystemDiskSpec", func(ctx context.Context) error { return m.wipe(ctx, o.labels...) }))
	case o.wholeDisk:
		phases = append(phases, one("reset", "resetSystemDisk", func(ctx context.Context) error { return m.wipe(ctx) }))
	}
	if o.reboot {
		outcome := Reboot
		if kexec {
			outcome = Kexec
		}
		return append(phases, one("reboot", "reboot", func(context.Context) error { return m.end(outcome) }))
	}
	return append(phases, one("shutdown", "shutdown", func(context.Context) error { return m.end(PowerOff) }))
}

func (m *Machine) wipe(ctx context.Context, labels ...string) error {
	if err := m.cfg.Faults.fails(ctx, BeforeWipe); err != nil {
		return err
	}
	if err := m.pace.Sleep(ctx, phaseTime); err != nil {
		return err
	}
	// What holds the data folder open ends with the partition.
	m.etcd.kill()
	return m.cfg.Store.Wipe(labels...)
}

// leaveEtcd is the leave phase: it acts only where there is data and an etcd service that has run.
func (m *Machine) leaveEtcd(ctx context.Context) error {
	if !m.volumes.exists(etcdDataPath + "/member") {
		return nil
	}
	switch m.services.stateOf("etcd") {
	case stateRunning, stateStopping, stateFailed:
	default:
		return nil
	}
	if err := m.leaveCluster(ctx); err != nil {
		return fmt.Errorf("failed to leave cluster: %w", err)
	}
	return nil
}

// drain cordons the node and evicts its pods.
func (m *Machine) drain(ctx context.Context) error {
	ctx, cancel := m.pace.Within(ctx, drainTimeout)
	defer cancel()
	if !m.kubelet.certified() {
		return nil // no kubelet certificate: the task is skipped
	}
	if err := m.kubelet.cordon(ctx); err != nil {
		return fmt.Errorf("failed to cordon the node: %w", err)
	}
	if err := m.kubelet.evictAll(ctx); err != nil {
		return fmt.Errorf("failed to drain the node: %w", err)
	}
	return m.pace.Sleep(ctx, drainTime)
}
