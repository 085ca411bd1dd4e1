package reconcile

import (
	"maps"
	"slices"
	"sort"
	"time"

	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/statefile"
)

// Status is what `ichor status -o json` prints. Its form is stable.
type Status struct {
	Clusters []ClusterStatus `json:"clusters"`
}

// ClusterStatus is one cluster in a Status. It is made from the state alone, so that no agent is needed to ask.
type ClusterStatus struct {
	Name    string `json:"name"`
	ID      string `json:"id"`
	Ready   bool   `json:"ready"`
	Reason  string `json:"reason"`
	Message string `json:"message"`
	// Seal is "checked", or why the state's seal could not be checked.
	Seal     string         `json:"seal"`
	Revision RevisionStatus `json:"revision"`
	Lease    LeaseStatus    `json:"lease"`
	// Lock is who may do disruptive things at the moment; null when nobody does.
	Lock *statefile.Lock `json:"lock"`
	// Waiting is the call whose end is not known yet; null when there is none.
	Waiting  *IntentStatus   `json:"waiting"`
	Machines []MachineStatus `json:"machines"`
	Backups  []BackupStatus  `json:"backups"`
	// Operations stand in the order in which they were first seen. OperationsRefusedMore counts refusals that aren't among them.
	Operations            []OperationStatus `json:"operations"`
	OperationsRefusedMore int               `json:"operationsRefusedMore,omitempty"`
}

// RevisionStatus says which commit was seen, which is acted on, and why the newest is refused where it is.
type RevisionStatus struct {
	Observed string           `json:"observed"`
	Applied  string           `json:"applied"`
	Refused  *RefusedRevision `json:"refused"`
	Problem  string           `json:"problem,omitempty"`
	NotYet   []string         `json:"notYet,omitempty"`
}

// RefusedRevision is a commit that is not acted on.
type RefusedRevision struct {
	Commit   string   `json:"commit"`
	Findings []string `json:"findings"`
}

// LeaseStatus says which agent works for the cluster.
type LeaseStatus struct {
	Holder string `json:"holder"`
	Token  uint64 `json:"token"`
}

// IntentStatus is a call that was begun.
type IntentStatus struct {
	Action  string `json:"action"`
	Machine string `json:"machine"`
	Outcome string `json:"outcome"`
	Since   string `json:"since"`
}

// MachineStatus is one machine in a ClusterStatus.
type MachineStatus struct {
	Name         string                `json:"name"`
	Role         string                `json:"role"`
	Address      string                `json:"address"`
	Ready        bool                  `json:"ready"`
	Reason       string                `json:"reason"`
	Message      string                `json:"message"`
	Conditions   []statefile.Condition `json:"conditions"`
	TalosVersion string                `json:"talosVersion"`
	BootID       string                `json:"bootID"`
}

// BackupStatus is a TalosEtcdBackup in a ClusterStatus.
type BackupStatus struct {
	Name   string `json:"name"`
	Ready  bool   `json:"ready"`
	Reason string `json:"reason"`
	// Message says how it stands, and what it waits for.
	Message     string `json:"message"`
	LastAttempt string `json:"lastAttempt"`
	LastSuccess string `json:"lastSuccess"`
	LastError   string `json:"lastError"`
	Failures    int    `json:"failures"`
	// Drill is the newest drill; null when there was none.
	Drill     *statefile.BackupDrill `json:"drill"`
	Snapshots []SnapshotStatus       `json:"snapshots"`
}

// SnapshotStatus is a stored snapshot in a BackupStatus.
type SnapshotStatus struct {
	Name     string `json:"name"`
	Time     string `json:"time"`
	Size     int64  `json:"size"`
	Revision int64  `json:"revision"`
	Drill    string `json:"drill"`
}

// OperationStatus is an operation in a ClusterStatus.
type OperationStatus struct {
	Name    string `json:"name"`
	Digest  string `json:"digest"`
	Kind    string `json:"kind"`
	Action  string `json:"action"`
	Target  string `json:"target"`
	Phase   string `json:"phase"`
	Pause   int    `json:"pause"`
	Step    string `json:"step"`
	Signer  string `json:"signer"`
	Message string `json:"message"`
	// FailureReason is why it paused, or the reason of its refusal by name.
	FailureReason string `json:"failureReason"`
	StartedAt     string `json:"startedAt"`
	FinishedAt    string `json:"finishedAt"`
	FirstSeen     string `json:"firstSeen"`
	ExpiresAt     string `json:"expiresAt"`
	// WayOut is the command with which a person ends a restore by hand that is past its marker; empty otherwise.
	WayOut string `json:"wayOut,omitempty"`
	// Source is git or inbox, File where it was seen there.
	Source string `json:"source"`
	File   string `json:"file"`
	// Steps are those that were begun, in their order.
	Steps []OperationStepStatus `json:"steps"`
}

// OperationStepStatus is a step of an operation and when it was begun.
type OperationStepStatus struct {
	Name string `json:"name"`
	At   string `json:"at"`
}

// StatusOf makes a cluster's status from its state and the lease of its shard (nil: not known).
func StatusOf(s *statefile.State, lease *statefile.LeaseStatus) ClusterStatus {
	status := ClusterStatus{
		Name: s.Cluster.Name, ID: s.Cluster.ID, Ready: s.Ready.Status, Reason: s.Ready.Reason, Message: s.Ready.Message,
		Revision: RevisionStatus{Observed: s.Revision.Observed, Applied: s.Revision.Applied, Problem: s.Revision.Problem, NotYet: s.Revision.NotYet},
		Lock:     s.Lock, Machines: []MachineStatus{}, Backups: []BackupStatus{}, Operations: []OperationStatus{},
	}
	if s.Revision.Refused != nil {
		status.Revision.Refused = &RefusedRevision{Commit: s.Revision.Refused.Commit, Findings: s.Revision.Refused.Findings}
	}
	if lease != nil {
		status.Lease = LeaseStatus{Holder: lease.Holder, Token: lease.Token}
	}
	if s.Intent != nil {
		status.Waiting = &IntentStatus{Action: s.Intent.Action, Machine: s.Intent.Machine, Outcome: string(s.Intent.Outcome),
			Since: s.Intent.At.Format("2006-01-02T15:04:05Z07:00")}
	}
	for name, m := range s.Machines {
		conditions := append([]statefile.Condition{m.Ready}, m.Conditions...)
		status.Machines = append(status.Machines, MachineStatus{Name: name, Role: m.Role, Address: m.Address, Ready: m.Ready.Status,
			Reason: m.Ready.Reason, Message: m.Ready.Message, Conditions: conditions, TalosVersion: m.TalosVersion, BootID: m.BootID})
	}
	for _, name := range slices.Sorted(maps.Keys(s.Backups)) {
		status.Backups = append(status.Backups, backupStatus(name, s.Backups[name]))
	}
	for _, op := range s.Operations {
		status.Operations = append(status.Operations, operationStatus(op))
	}
	status.OperationsRefusedMore = s.RefusedMore
	sort.Slice(status.Machines, func(i, j int) bool {
		a, b := status.Machines[i], status.Machines[j]
		if (a.Role == string(schema.RoleControlPlane)) != (b.Role == string(schema.RoleControlPlane)) {
			return a.Role == string(schema.RoleControlPlane)
		}
		return a.Name < b.Name
	})
	return status
}

func backupStatus(name string, b *statefile.BackupState) BackupStatus {
	status := BackupStatus{Name: name, Ready: b.Ready.Status, Reason: b.Ready.Reason, Message: b.Ready.Message, LastAttempt: when(b.LastAttempt),
		LastSuccess: when(b.LastSuccess), LastError: b.LastError, Failures: b.Failures, Drill: b.Drill, Snapshots: []SnapshotStatus{}}
	for _, one := range b.Snapshots {
		status.Snapshots = append(status.Snapshots, SnapshotStatus{Name: one.Name, Time: when(one.Time), Size: one.Size, Revision: one.Revision, Drill: one.Drill})
	}
	return status
}

func operationStatus(op *statefile.OperationState) OperationStatus {
	status := OperationStatus{Name: op.Name, Digest: op.Digest, Kind: op.Kind, Action: op.Action, Target: op.Target, Phase: string(op.Phase),
		Pause: op.Pause, Step: op.Step, Signer: op.Signer, Message: op.Message, FailureReason: nameOr(op.FailureReason, op.Refusal),
		StartedAt: when(op.StartedAt), FinishedAt: when(op.FinishedAt), FirstSeen: when(op.FirstSeen), ExpiresAt: when(op.ExpiresAt),
		Source: op.Source, File: op.File, Steps: []OperationStepStatus{}}
	if !op.Phase.Over() {
		status.WayOut = op.WayOut
	}
	for _, step := range op.Steps {
		status.Steps = append(status.Steps, OperationStepStatus{Name: step.Name, At: when(step.At)})
	}
	return status
}

// when is a time in RFC 3339; empty when there is none.
func when(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339)
}
