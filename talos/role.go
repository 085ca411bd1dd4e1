package talos

// Role is what a minted client certificate may do on the Talos API.
type Role string

// The roles that Ichor mints, from the least.
const (
	// RoleReader is to observe.
	RoleReader Role = "os:reader"
	// RoleEtcdBackup is for snapshots, which a reader may not take.
	RoleEtcdBackup Role = "os:etcd:backup"
	// RoleOperator is for reboot, shutdown and defragmentation.
	RoleOperator Role = "os:operator"
	// RoleAdmin is for the calls of the gate, and for reading configs and boot IDs.
	RoleAdmin Role = "os:admin"
)
