package web

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"ichor.maesh.dev/reconcile"
)

// AgentStatus is how the agent itself stands: /api/v1/agent. Its form is stable.
type AgentStatus struct {
	Version string `json:"version"`
	Ready   bool   `json:"ready"`
	// Problems are sentences on why it isn't ready.
	Problems []string      `json:"problems"`
	Git      GitStatus     `json:"git"`
	Leases   []LeaseStatus `json:"leases"`
}

// GitStatus is the repository as the agent sees it.
type GitStatus struct {
	Commit  string `json:"commit"`
	Subject string `json:"subject"`
	Author  string `json:"author"`
	// LastPoll is when the repository last answered; empty when it never did.
	LastPoll string `json:"lastPoll"`
	Problem  string `json:"problem"`
}

// LeaseStatus is the lease of a shard.
type LeaseStatus struct {
	Shard   int    `json:"shard"`
	Held    bool   `json:"held"`
	Holder  string `json:"holder"`
	Problem string `json:"problem"`
}

// check is one thing that the agent needs, and what is wrong with it; empty: nothing.
type check struct{ name, problem string }

// checks are what the agent needs for doing its work.
func (s *Server) checks(report *reconcile.Report) []check {
	if report == nil {
		why := "the agent is starting"
		if waiting := s.waiting.Load(); waiting != nil {
			why = *waiting
		}
		return []check{{"state", why}}
	}
	git := check{name: "git"}
	switch {
	case report.Git != "":
		git.problem = "the repository can't be read: " + report.Git
	case report.Newest == nil:
		git.problem = "the repository was not read yet"
	}
	state, leases := check{name: "state"}, check{name: "leases"}
	for n, lease := range report.Leases {
		switch {
		case lease.Problem != "":
			state.problem = lease.Problem
		case !lease.Held && lease.Holder == "":
			leases.problem = "whose the lease of shard " + strconv.Itoa(n) + " is isn't known yet"
		}
	}
	return []check{git, state, leases}
}

// agentStatus is AgentStatus from a report; nil: the agent isn't there yet.
func (s *Server) agentStatus(from *sources, report *reconcile.Report) AgentStatus {
	status := AgentStatus{Version: s.config.Version, Ready: true, Problems: []string{}, Leases: []LeaseStatus{}}
	for _, c := range s.checks(report) {
		if c.problem != "" {
			status.Ready = false
			status.Problems = append(status.Problems, c.problem)
		}
	}
	if report == nil {
		return status
	}
	status.Git.Problem = report.Git
	if r := report.Newest; r != nil {
		status.Git.Commit, status.Git.Subject, status.Git.Author = r.Commit, r.Subject, r.Author
	}
	if last := from.git().LastSuccess; !last.IsZero() {
		status.Git.LastPoll = last.UTC().Format(time.RFC3339)
	}
	for n, lease := range report.Leases {
		status.Leases = append(status.Leases, LeaseStatus{Shard: n, Held: lease.Held, Holder: lease.Holder, Problem: lease.Problem})
	}
	return status
}

// read gives the report and the status of all clusters: what `ichor status` shows, and beside it why this agent can't work for
// one. Where the store can't be read, what the agent knows is shown.
func (s *Server) read(ctx context.Context) (*sources, *reconcile.Report, *reconcile.Status) {
	status := &reconcile.Status{Clusters: []reconcile.ClusterStatus{}}
	from := s.sources.Load()
	if from == nil {
		return nil, nil, status
	}
	report := from.agent.Report()
	working := map[string]bool{}
	var standing []string
	for _, c := range report.Clusters {
		if !c.Blocked && c.State != nil {
			working[c.Name] = true
		} else {
			standing = append(standing, c.Name)
		}
	}
	others := from.stored.get(ctx, standing, working)
	for _, c := range report.Clusters {
		status.Clusters = append(status.Clusters, clusterStatus(c, others[c.Name]))
		delete(others, c.Name)
	}
	for _, other := range others {
		status.Clusters = append(status.Clusters, *other)
	}
	slices.SortFunc(status.Clusters, func(a, b reconcile.ClusterStatus) int { return strings.Compare(a.Name, b.Name) })
	return from, &report, status
}

// clusterStatus is a cluster's status from what the agent says of it and, where it doesn't work for it, what the store holds.
func clusterStatus(c reconcile.ClusterReport, stored *reconcile.ClusterStatus) reconcile.ClusterStatus {
	if !c.Blocked && c.State != nil {
		one := reconcile.StatusOf(c.State, &c.Lease)
		one.Seal = "checked"
		return one
	}
	one := reconcile.ClusterStatus{Name: c.Name, Seal: "not checked: the state was not read", Machines: []reconcile.MachineStatus{},
		Backups: []reconcile.BackupStatus{}, Operations: []reconcile.OperationStatus{}}
	switch {
	case stored != nil:
		one = *stored
	case c.State != nil:
		one = reconcile.StatusOf(c.State, &c.Lease)
		one.Seal = "checked when it was last read"
	}
	// That another agent works for the cluster is no fault of it: what that one wrote is the truth.
	if c.Ready.Reason != "Standby" || stored == nil {
		one.Ready, one.Reason, one.Message = false, c.Ready.Reason, c.Ready.Message
	}
	one.Lease = reconcile.LeaseStatus{Holder: c.Lease.Holder, Token: c.Lease.Token}
	return one
}

// find gives the cluster of a name, or nil.
func find(status *reconcile.Status, name string) *reconcile.ClusterStatus {
	for n := range status.Clusters {
		if status.Clusters[n].Name == name {
			return &status.Clusters[n]
		}
	}
	return nil
}
