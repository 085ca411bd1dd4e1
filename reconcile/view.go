package reconcile

import (
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/talos"
)

// Cluster is what one revision wants of one cluster. Machines are sorted by name.
type Cluster struct {
	Object   *schema.TalosCluster
	Machines []*schema.TalosMachine
	Backups  []*schema.TalosEtcdBackup
	Commit   string
}

// Name is the cluster's name.
func (c Cluster) Name() string { return c.Object.Metadata.Name }

// Machine gives the machine with that name, or nil.
func (c Cluster) Machine(name string) *schema.TalosMachine {
	at, found := slices.BinarySearchFunc(c.Machines, name, func(m *schema.TalosMachine, name string) int {
		return strings.Compare(m.Metadata.Name, name)
	})
	if !found {
		return nil
	}
	return c.Machines[at]
}

// Seen is what one pass knows of one machine: what it showed, and how that compares with what it should run.
type Seen struct {
	talos.Observation
	Config ConfigView
}

// ConfigView compares a machine's configs with the one it should run. Digests are SHA-256 (hex) of the canonical form.
type ConfigView struct {
	// Problem is why the wanted config can't be rendered. Empty when it can.
	Problem string
	// Wanted, Active and Persistent are digests; empty when not known.
	Wanted, Active, Persistent string
	// Diff is the redacted difference from active to wanted; empty when there is none. BareSame is that there is none but Ichor's own mark.
	Diff     string
	BareSame bool
	// NeedsReboot is whether Talos can't take the change live, and Why names the first field behind it.
	NeedsReboot bool
	Why         string
	// Owner is the state's mark that the active config bears; empty when none.
	Owner string
	// Upgrade names a version that Git wants and the machine doesn't run: "Kubernetes v1.36.1 to v1.36.2".
	Upgrade string
	// DiskProblem is why the first install would be refused: the disk isn't there, or holds something. Disk is the one chosen.
	Disk, DiskProblem string
}

// Listing is what the destinations of a cluster's backups hold.
type Listing struct {
	// Snapshots and Markers are names, by backup.
	Snapshots, Markers map[string][]string
	// Problem is why a destination could not be listed, by backup. Such a destination may hold anything.
	Problem map[string]string
}

// Input is everything that a decision is made of.
type Input struct {
	Cluster Cluster
	// State is what is remembered. Decide never changes it.
	State *statefile.State
	// Seen holds one entry for each machine that was looked at, by name. A machine without one was not.
	Seen map[string]Seen
	// Backups is nil when the destinations were not listed in this pass.
	Backups *Listing
	// Kubernetes is nil when the Kubernetes API was not looked at in this pass.
	Kubernetes *KubernetesView
	// wantKubernetes is set by what would need a look at the Kubernetes API.
	wantKubernetes bool
	// Operations is nil where signed operations are none of the decision's business.
	Operations *Operations
	// turn names the operation that comes before any other change.
	turn string
	Now  time.Time
	// WriterAge is how long this process has been the writer, by a clock that nobody sets; nil: as State.Writer.Since says.
	WriterAge *time.Duration
	// ages are how long this process has known of each moment of the state; nil: as Now says.
	ages   map[timeMark]momentAge
	Timing Timing
	// TrustedNetworks are those in which a machine in maintenance mode gets its first config without a fingerprint.
	TrustedNetworks []netip.Prefix
	// Mark is the hash of the state's location that managed machines bear.
	Mark string
	// Deferred are machines in maintenance mode that could not be given their config a moment ago, and why: the others come first.
	Deferred map[string]string
	// Restore is what the last step of a restore left; nil where this process made none.
	Restore *RestoreView
	// NodeName and LocalAddresses tell the machine that the agent runs on, RecoverFlags is what 'ichor restore --recover-cluster' needs
	// besides, as this agent was given it.
	NodeName       string
	LocalAddresses []string
	RecoverFlags   string
	// aside are workers that a forecast looks at later.
	aside asideWorkers
}

func (in *Input) now() time.Time { return stamp(in.Now) }

// writerAge is how long the present writer has been that.
func (in *Input) writerAge(s *statefile.State) time.Duration {
	if in.WriterAge != nil {
		return *in.WriterAge
	}
	return in.Now.Sub(s.Writer.Since)
}

// stamp is a time in the form in which the state keeps it.
func stamp(t time.Time) time.Time { return t.UTC().Round(0).Truncate(time.Millisecond) }

func (in *Input) remembered(name string) *statefile.MachineState {
	if m := in.State.Machines[name]; m != nil {
		return m
	}
	return &statefile.MachineState{}
}

func isControlPlane(m *schema.TalosMachine) bool { return m.Spec.Role == schema.RoleControlPlane }

// host is the address part of an endpoint.
func host(endpoint string) string {
	if h, _, err := net.SplitHostPort(endpoint); err == nil {
		return h
	}
	return strings.Trim(endpoint, "[]")
}

// memberHosts are the addresses in a member's peer URLs.
func memberHosts(m talos.EtcdMember) []string {
	var hosts []string
	for _, u := range m.PeerURLs {
		_, rest, found := strings.Cut(u, "://")
		if !found {
			rest = u
		}
		hosts = append(hosts, host(strings.TrimSuffix(rest, "/")))
	}
	return hosts
}

func hexID(id uint64) string { return strconv.FormatUint(id, 16) }

// paused gives the reason why a cluster or machine is left alone, and whether it is.
func paused(meta schema.ObjectMeta) (string, bool) {
	reason, is := meta.Annotations[schema.AnnotationPaused]
	return reason, is
}

func containsAny(list, wanted []string) bool {
	return slices.ContainsFunc(list, func(s string) bool { return slices.Contains(wanted, s) })
}

// memberKey reads a key of State.Joins: a member's hex ID. Keys that name a machine give false.
func memberKey(key string) (uint64, bool) {
	id, err := strconv.ParseUint(key, 16, 64)
	return id, err == nil
}

// sortMachines sorts machines by name.
func sortMachines(machines []*schema.TalosMachine) {
	slices.SortFunc(machines, func(a, b *schema.TalosMachine) int { return strings.Compare(a.Metadata.Name, b.Metadata.Name) })
}
