package talos

import (
	"time"

	"github.com/siderolabs/talos/pkg/machinery/config"

	"ichor.maesh.dev/internal/fact"
)

// Fact is yes, no or unknown. The zero value is unknown, and unknown never permits a destructive step.
type Fact = fact.Fact

// The three values of a Fact.
const (
	Unknown = fact.Unknown
	No      = fact.No
	Yes     = fact.Yes
)

// Mode says how a machine's API answers.
type Mode string

// The modes. ModeUnknown: nothing answered, or what answered is neither.
const (
	ModeUnknown     Mode = ""
	ModeMaintenance Mode = "maintenance"
	ModeConfigured  Mode = "configured"
)

// Observation is what one look at one machine showed. Every part that could not be read is unknown or nil, and Problem
// says why in a sentence.
type Observation struct {
	At   time.Time
	Mode Mode
	// Problem is why the machine, or a part of it, could not be read; scrubbed. Empty when all was read.
	Problem string
	// Fingerprint is that of the certificate shown in maintenance mode.
	Fingerprint string
	UUID        string
	// BootID is empty in maintenance mode, where it can't be read.
	BootID       string
	Stage        string // machine status: maintenance, installing, booting, running, rebooting, resetting, ...
	Ready        bool   // means something only in booting and running
	Unmet        []string
	Hostname     string
	Addresses    []string
	TalosVersion string
	MachineType  string
	// Active and Persistent are the configs that run and that the next boot uses; nil when not read. A machine that booted from
	// its disk shows no Persistent until a config is applied: then the next boot uses what this one began with.
	Active, Persistent config.Provider
	// ActiveDigest and PersistentDigest are their Digest; empty when not read.
	ActiveDigest, PersistentDigest string
	// Services are Talos's own services that are registered.
	Services []Service
	// EphemeralMounted is whether /var is the machine's own storage by now.
	EphemeralMounted Fact
	Etcd             EtcdObservation
	Disks            []Disk
	// Discovery is what cluster discovery lists: it lags up to 30 minutes. Nil when not read.
	Discovery []DiscoveredMember
	// NodeReady is the machine's own Kubernetes Node's readiness, as the machine sees it.
	NodeReady Fact
	// Unschedulable is whether that Node is cordoned.
	Unschedulable Fact
}

// Service is one of Talos's own services (etcd, kubelet, trustd, ...).
type Service struct {
	ID string
	// State is as Talos names it: Waiting, Preparing, Running, Finished, Failed, ...
	State   string
	Message string
	Healthy Fact
	// Changed is when it came into this state, by the machine's clock.
	Changed time.Time
	// Started is when it last began to run, by the machine's clock; zero when that is not among the events that Talos keeps (the
	// last 64), or when it doesn't run.
	Started time.Time
}

// ServiceNamed finds a service; false where Talos doesn't list it.
func ServiceNamed(services []Service, id string) (Service, bool) {
	for _, service := range services {
		if service.ID == id {
			return service, true
		}
	}
	return Service{}, false
}

// EtcdObservation is the etcd side of a control plane.
type EtcdObservation struct {
	// Data is whether /var/lib/etcd holds a member. Absent (No) is believed only from a configured machine in stage
	// booting or running whose EPHEMERAL is mounted; any other "no such file" is Unknown.
	Data Fact
	// Service is the service's state as Talos names it (Waiting, Preparing, Running, Finished, Failed, ...), empty when unknown.
	Service        string
	ServiceMessage string
	ServiceHealthy Fact
	// MemberID is the local member's, zero when not known.
	MemberID uint64
	Leader   uint64
	Learner  bool
	Errors   []string
	// Alarms are read where the status shows errors; nil when not read.
	Alarms []EtcdAlarm
	// DBSize is the size of the database file in bytes, DBSizeInUse what of it is used: the rest is what a defragmentation frees.
	DBSize, DBSizeInUse int64
	// RaftIndex and RaftApplied tell whether the member has caught up.
	RaftIndex, RaftApplied uint64
	// Members is a linearizable list; nil when etcd didn't give one within 10 s, and then MembersProblem says why.
	Members        []EtcdMember
	MembersProblem string
}

// EtcdMember is an entry of the member list. A nameless member is one that was added and never started.
type EtcdMember struct {
	ID       uint64
	Name     string
	PeerURLs []string
	Learner  bool
}

// EtcdAlarm is an alarm that a member raised. It stands until somebody disarms it.
type EtcdAlarm struct {
	Member uint64
	Kind   string // NOSPACE or CORRUPT
}

// Disk is a disk of a machine, with what was found on it.
type Disk struct {
	Path     string
	Size     uint64
	Model    string
	Serial   string
	WWID     string
	ReadOnly bool
	// The rest is what Talos's disk selectors and by-id paths go by.
	Symlinks                           []string
	Modalias, UUID, BusPath, Transport string
	Rotational, CDROM                  bool
	// Contents names what was discovered on the disk: partitions and filesystems. Empty: nothing.
	Contents []string
}

// DiscoveredMember is a machine that cluster discovery knows.
type DiscoveredMember struct {
	Name        string
	Addresses   []string
	MachineType string
}
