package reconcile

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"ichor.maesh.dev/gitsource"
	"ichor.maesh.dev/statefile"
)

// Report says how each cluster stands, as this process last saw it.
type Report struct {
	// Git is why the repository can't be read; empty when it can, or when it was not asked yet.
	Git string
	// Newest is the newest revision that is known; nil when none is.
	Newest *gitsource.Revision
	// Leases are how this agent stands to the lease of each shard.
	Leases   []statefile.LeaseStatus
	Clusters []ClusterReport
}

// ClusterReport is one cluster in a Report.
type ClusterReport struct {
	Name string
	// Ready is the state's own condition, or what keeps the cluster from being worked on.
	Ready statefile.Condition
	// Blocked says that the pass ended before a decision: Ready then says why.
	Blocked bool
	// State is the state as last read or written; nil when it never was. It is shared: nobody may change it.
	State *statefile.State
	// Lease is of the cluster's shard.
	Lease statefile.LeaseStatus
	// Passes counts the passes of this process.
	Passes PassCount
	// Compared is when each machine was last compared with what it should be by this process. It is shared: nobody may
	// change it.
	Compared map[string]time.Time
}

// PassCount counts passes over a cluster.
type PassCount struct {
	// Count is how many were made, whole or not, and Spent how long they took together.
	Count uint64
	Spent time.Duration
	// LastWhole is when the last one that came to a decision ended; zero when none did.
	LastWhole time.Time
}

// Report gives the latest report.
func (a *Agent) Report() Report {
	newest, gitProblem := a.head()
	report := Report{Git: gitProblem, Newest: newest}
	a.mu.Lock()
	if report.Git == "" && len(a.workers) == 0 { // no cluster says it
		report.Git = a.untrusted
	}
	a.mu.Unlock()
	for _, lease := range a.leases {
		report.Leases = append(report.Leases, lease.Status())
	}
	for _, w := range a.current() {
		cluster := w.report()
		cluster.Lease = report.Leases[a.shard(cluster.Name)]
		report.Clusters = append(report.Clusters, cluster)
	}
	return report
}

// machines are sentences on the machines that aren't Ready, where the cluster's own doesn't say it already.
func (c ClusterReport) machines() []string {
	if c.Blocked || c.State == nil {
		return nil
	}
	var list []string
	for _, name := range slices.Sorted(maps.Keys(c.State.Machines)) {
		if m := c.State.Machines[name].Ready; !m.Status && m.Message != "" && !strings.Contains(c.Ready.Message, m.Message) {
			list = append(list, m.Message)
		}
	}
	return list
}

// backups are sentences on the backups that aren't Ready.
func (c ClusterReport) backups() []string {
	if c.State == nil {
		return nil
	}
	var list []string
	for _, name := range slices.Sorted(maps.Keys(c.State.Backups)) {
		if b := c.State.Backups[name].Ready; !b.Status {
			list = append(list, fmt.Sprintf("%s: backup %s: %s: %s", c.Name, name, b.Reason, b.Message))
		}
	}
	return list
}

// Problems are sentences on what is wrong: one a cluster that isn't Ready, and one each of its machines and backups that aren't. None: all
// is well.
func (r Report) Problems() []string {
	var list []string
	if r.Git != "" {
		list = append(list, r.Git)
	}
	for _, c := range r.Clusters {
		if !c.Ready.Status && c.Ready.Reason != "NoCluster" {
			list = append(list, fmt.Sprintf("%s: %s: %s", c.Name, c.Ready.Reason, c.Ready.Message))
			list = append(list, c.machines()...)
		}
		list = append(list, c.backups()...)
		if c.State != nil && c.State.Revision.Refused != nil {
			list = append(list, fmt.Sprintf("%s: commit %.12s is refused: %s", c.Name, c.State.Revision.Refused.Commit,
				strings.Join(c.State.Revision.Refused.Findings, "; ")))
		}
	}
	return list
}
