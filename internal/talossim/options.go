package talossim

import (
	"log/slog"

	"k8s.io/utils/clock"
)

// Role is a hint for whoever writes machine configs for the machines of a farm (DIR/nodes.json carries it). A machine
// itself takes its type from the config it is given, as Talos does.
type Role string

// The roles a hint can name, spelled as Talos spells machine types.
const (
	ControlPlane Role = "controlplane"
	Worker       Role = "worker"
)

// Platform is what Talos runs on.
type Platform string

const (
	// Metal is the default: disks with partitions, an installation before the first boot, a new boot ID at each boot.
	Metal Platform = "metal"
	// Container refuses reboot, shutdown, upgrade and META writes, and shares its host's boot ID.
	Container Platform = "container"
)

// Options describe a farm.
type Options struct {
	// Dir holds a folder for each machine (META, STATE, EPHEMERAL) and nodes.json. A farm started again on the same
	// folder finds the machines as a power cut left them. Required.
	Dir string
	// First is the address of the first machine; the next ones follow it. Default 127.0.10.1.
	First string
	// ControlPlanes and Workers are how many machines there are, named cp-1, cp-2, … and w-1, w-2, …
	ControlPlanes, Workers int
	// Nodes are machines described one by one. They come after those of ControlPlanes and Workers; what is left empty in
	// one is filled in.
	Nodes []NodeSpec
	// TimeScale divides every one of Talos's times. Default 1.
	TimeScale float64
	// LooseMembership makes etcd add and remove members without its own checks (a voter connected for five seconds, enough
	// started members). It saves five real seconds a join, for tests that bring clusters up many times; it takes away refusals
	// that real nodes give.
	LooseMembership bool
	// Impatient lets machines give up at the time scale too: joining after half an hour of Talos's time, booting after seventy
	// minutes. Else they wait for at least ten real minutes for somebody who bootstraps.
	Impatient bool
	// ForeignKubernetes leaves port 6443 of the control planes, and what kubelets report, to somebody else, who follows
	// [world.Kubernetes] and [Node.KubeletUp]: tests that run Kubernetes' own servers. The machines show what that API says.
	ForeignKubernetes bool
	// Platform is Metal unless given.
	Platform Platform
	// Clock turns every wait of the machines (not etcd's own). Default the real one.
	Clock clock.WithTicker
	// Logger gets what the machines' consoles would show. Default none.
	Logger *slog.Logger
}

// NodeSpec describes one machine.
type NodeSpec struct {
	// Name is the machine's name in the farm. It isn't the node's hostname, which the config or Talos decides.
	Name string `json:"name"`
	// Address is a loopback IPv4 address without a port.
	Address string `json:"address"`
	// UUID is the SMBIOS UUID.
	UUID string `json:"uuid"`
	// Role is a hint for config writers.
	Role Role `json:"role"`
	// Disks are the machine's disks. Default one empty disk of 20 GiB, /dev/sda.
	Disks []DiskSpec `json:"disks,omitempty"`
	// DiskOnly is a machine without other boot media: once its system disk is wiped it stays dark.
	DiskOnly bool `json:"diskOnly,omitempty"`
	// Installed is a machine whose disk already holds Talos (META present) at its first start: a config starts it without
	// an installation.
	Installed bool `json:"installed,omitempty"`
}

// DiskSpec describes a disk.
type DiskSpec struct {
	// DevPath is the device, for example /dev/sda.
	DevPath string `json:"devPath"`
	// Size is in bytes. Default 20 GiB.
	Size uint64 `json:"size,omitempty"`
	// Readonly disks can't be wiped or installed to.
	Readonly bool `json:"readonly,omitempty"`
	// Model, Serial and Transport are shown as they are.
	Model     string `json:"model,omitempty"`
	Serial    string `json:"serial,omitempty"`
	Transport string `json:"transport,omitempty"`
	// Partitions are what the disk holds before Talos is installed.
	Partitions []PartitionSpec `json:"partitions,omitempty"`
}

// PartitionSpec is a partition that someone else left on a disk.
type PartitionSpec struct {
	// Label is the partition's label.
	Label string `json:"label,omitempty"`
	// Filesystem is the name of what is on it: ext4, xfs, vfat, … Empty for none that is known.
	Filesystem string `json:"filesystem,omitempty"`
	// Size is in bytes.
	Size uint64 `json:"size,omitempty"`
}
