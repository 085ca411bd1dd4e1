package schema

import (
	"crypto/sha256"
	"encoding/hex"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"
)

// Defaults stand in methods: Load leaves an object as it was written, so that what is shown is what the user wrote.
const (
	// DefaultContract is the config generation of a cluster that names none. It is fixed for this version of the kinds: a
	// default that followed talosVersion would change every machine's config with an upgrade.
	DefaultContract = "v1.13"
	// DefaultBackupSchedule is hourly, on the hour, in UTC.
	DefaultBackupSchedule = "0 * * * *"
	// DefaultKeepLast is how many snapshots are kept when retention.keepLast is not given.
	DefaultKeepLast = 24
	// DefaultDrainTimeout bounds a drain when rollout.drain.timeout is not given.
	DefaultDrainTimeout = 10 * time.Minute
	// TalosPort is the port of a machine's endpoint that names none.
	TalosPort = 50000
)

// ClusterID gives the ID that spec.id must hold for a secrets bundle: the first 16 hex digits of
// SHA-256("ichor.maesh.dev/cluster/v1" + cluster.id of the bundle).
func ClusterID(bundleClusterID string) string {
	sum := sha256.Sum256([]byte("ichor.maesh.dev/cluster/v1" + bundleClusterID))
	return hex.EncodeToString(sum[:8])
}

// ControlPlanesSchedulable says whether workloads may run on control planes: true unless the cluster says false.
func (c ClusterSpec) ControlPlanesSchedulable() bool {
	return c.ControlPlane.Schedulable == nil || *c.ControlPlane.Schedulable
}

// ContractVersion is the Talos version whose config generation is used: contract, or [DefaultContract].
func (c ClusterSpec) ContractVersion() string {
	if c.Contract == "" {
		return DefaultContract
	}
	return c.Contract
}

// RebootPolicy is reboots, or [RebootsAutomatic].
func (r RolloutSpec) RebootPolicy() RebootPolicy {
	if r.Reboots == "" {
		return RebootsAutomatic
	}
	return r.Reboots
}

// Limit is how long a drain may take: timeout, or [DefaultDrainTimeout].
func (d DrainSpec) Limit() time.Duration {
	if d.Timeout <= 0 {
		return DefaultDrainTimeout
	}
	return time.Duration(d.Timeout)
}

// Address is the host and port of the machine's Talos API, as net.Dial takes it.
func (m MachineSpec) Address() string {
	host, port := splitEndpoint(m.Endpoint)
	if port == "" {
		port = strconv.Itoa(TalosPort)
	}
	return net.JoinHostPort(host, port)
}

// Host is the machine's endpoint without the port: an IP address or a DNS name, without brackets.
func (m MachineSpec) Host() string {
	host, _ := splitEndpoint(m.Endpoint)
	return host
}

// splitEndpoint takes "host", "host:port", "1.2.3.4", "fd00::1", "[fd00::1]" or "[fd00::1]:port" apart.
func splitEndpoint(endpoint string) (host, port string) {
	if _, err := netip.ParseAddr(endpoint); err == nil {
		return endpoint, ""
	}
	if host, port, err := net.SplitHostPort(endpoint); err == nil {
		return host, port
	}
	return strings.TrimSuffix(strings.TrimPrefix(endpoint, "["), "]"), ""
}

// Cron is the schedule of the backups: schedule, or [DefaultBackupSchedule].
func (b BackupSpec) Cron() string {
	if b.Schedule == "" {
		return DefaultBackupSchedule
	}
	return b.Schedule
}

// Kept is how many snapshots are kept: the last ones, and one a day and one a week.
func (b BackupSpec) Kept() (last, daily, weekly int) {
	if b.Retention == nil {
		return DefaultKeepLast, 0, 0
	}
	last = DefaultKeepLast
	if b.Retention.KeepLast != nil {
		last = *b.Retention.KeepLast
	}
	return last, b.Retention.KeepDaily, b.Retention.KeepWeekly
}

// AddressingStyle is how the bucket is addressed: auto (the default), path or host.
func (s S3Destination) AddressingStyle() string {
	if s.Addressing == "" {
		return "auto"
	}
	return s.Addressing
}

// ThenAction is what a removed machine does at the end: powerOff (the default) or reboot.
func (n NodeOperation) ThenAction() string {
	if n.Then == "" {
		return "powerOff"
	}
	return n.Then
}

// BumpsRevision says whether the snapshot is made revision-safe before it is uploaded: true unless false is said.
func (r RestoreOperation) BumpsRevision() bool { return r.RevisionBump == nil || *r.RevisionBump }

// SeverityOrError is the rule's severity: error unless warning is said.
func (r Rule) SeverityOrError() string {
	if r.Severity == "" {
		return "error"
	}
	return r.Severity
}
