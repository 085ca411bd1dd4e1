package apid

import (
	"github.com/siderolabs/talos/pkg/machinery/role"
)

// The groups of roles that the table speaks of.
var ( //nolint:gochecknoglobals // constants that Go can't express as such
	adminOnly   = role.MakeSet(role.Admin)
	readers     = role.MakeSet(role.Admin, role.Operator, role.Reader)
	operators   = role.MakeSet(role.Admin, role.Operator)
	backups     = role.MakeSet(role.Admin, role.Operator, role.EtcdBackup)
	etcdReaders = role.MakeSet(role.Admin, role.Operator, role.Reader, role.EtcdBackup)
	metaWriters = role.MakeSet(role.Admin, role.MetaWriter)
	verifiers   = role.MakeSet(role.Admin, role.Operator, role.Reader, role.ImageVerifier)
	// inMaintenance lets readers through the table; outside maintenance mode the handler refuses them.
	inMaintenance = role.MakeSet(role.Admin, role.Reader)
)

// allowed says who may call a method (Talos: rules in internal/app/machined/pkg/system/services/machined.go). What the table
// doesn't name is for admins.
func allowed(method string) role.Set {
	if roles, ok := table()[method]; ok {
		return roles
	}

	return adminOnly
}

// table is built once.
var table = onceTable() //nolint:gochecknoglobals // likewise

func onceTable() func() map[string]role.Set {
	rules := map[string]role.Set{}

	add := func(roles role.Set, service string, methods ...string) {
		for _, m := range methods {
			rules["/"+service+"/"+m] = roles
		}
	}

	const machine = "machine.MachineService"

	add(adminOnly, machine, "Bootstrap", "Copy", "EtcdForfeitLeadership", "EtcdLeaveCluster", "EtcdRecover", "EtcdRemoveMemberByID",
		"EtcdDowngradeValidate", "EtcdDowngradeEnable", "EtcdDowngradeCancel", "GenerateClientConfiguration", "Kubeconfig", "Read",
		"Reset", "Rollback", "Upgrade")
	add(inMaintenance, machine, "ApplyConfiguration")
	add(operators, machine, "EtcdAlarmDisarm", "EtcdDefragment", "ImagePull", "PacketCapture", "Reboot", "Restart", "ServiceStart",
		"ServiceStop", "ServiceRestart", "Shutdown")
	add(backups, machine, "EtcdSnapshot")
	add(etcdReaders, machine, "EtcdAlarmList", "EtcdMemberList", "EtcdStatus")
	add(metaWriters, machine, "MetaWrite", "MetaDelete")
	add(readers, machine, "CPUInfo", "CPUFreqStats", "Containers", "DiskStats", "DiskUsage", "Dmesg", "Events", "Hostname", "ImageList",
		"List", "LoadAvg", "Logs", "LogsContainers", "Memory", "Mounts", "NetworkDeviceStats", "Netstat", "Processes", "ServiceList",
		"Stats", "SystemStat", "Version")
	add(readers, "cluster.ClusterService", "HealthCheck")
	add(readers, "inspect.InspectService", "ControllerRuntimeDependencies")
	add(adminOnly, "machine.ImageService", "Import", "Remove")
	add(operators, "machine.ImageService", "Pull")
	add(readers, "machine.ImageService", "List")
	add(verifiers, "machine.ImageService", "Verify")
	add(adminOnly, "machine.DebugService", "ContainerRun")
	add(adminOnly, "machine.LifecycleService", "Install", "Upgrade")
	add(adminOnly, "cosi.resource.State", "Create", "Destroy", "Update")
	add(readers, "cosi.resource.State", "Get", "List", "Watch")
	add(readers, "storage.StorageService", "Disks")
	add(inMaintenance, "storage.StorageService", "BlockDeviceWipe")
	add(readers, "time.TimeService", "Time", "TimeCheck")

	return func() map[string]role.Set { return rules }
}
