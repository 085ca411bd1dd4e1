package statefile

import (
	"encoding/json"
	"fmt"
	"time"
)

// SchemaVersion is the version of the state's format that this program reads and writes.
const SchemaVersion = 1

// State is everything the agent must remember about one cluster. docs/formats.md describes it field by field.
type State struct {
	SchemaVersion int             `json:"schemaVersion"`
	Cluster       ClusterIdentity `json:"cluster"`
	// Writer is the process that may decide for this cluster. Who finds another one stops.
	Writer Writer `json:"writer"`
	// AgentOn is the machine of this cluster that the writer runs on; empty: it runs elsewhere.
	AgentOn string `json:"agentOn,omitempty"`
	// Origin says how this state came to be: "new" (every wanted control plane was seen in maintenance mode and nothing
	// spoke of a past) or "lost" (there may be a past that this state doesn't know).
	Origin Origin `json:"origin,omitempty"`
	// Latest is the latest time that any writer has put here; "now" never runs behind it for expiry.
	Latest   time.Time                `json:"latest,omitzero"`
	Revision RevisionState            `json:"revision"`
	Ready    Condition                `json:"ready"`
	Machines map[string]*MachineState `json:"machines,omitempty"`
	// Bootstrap is written before the one Bootstrap call of the cluster's life, and never removed.
	Bootstrap *BootstrapRecord `json:"bootstrap,omitempty"`
	// Intent is the one mutating call that is begun and whose outcome is not yet seen on the node.
	Intent *Intent `json:"intent,omitempty"`
	Lock   *Lock   `json:"lock,omitempty"`
	// Joins holds what is known of each etcd member that has not joined yet, by hex member ID.
	Joins map[string]*JoinState `json:"joins,omitempty"`
	// Rollout is the change that travels over the machines, if one does.
	Rollout *RolloutState `json:"rollout,omitempty"`
	// Cordons are those of rollouts that ended before they could be lifted.
	Cordons []LeftCordon `json:"cordons,omitempty"`
	// Operations are the signed operations in the order in which they were first seen, those that are over too until 30 days after
	// they expired. RefusedMore counts the refusals that there was no room for.
	Operations  []*OperationState `json:"operations,omitempty"`
	RefusedMore int               `json:"refusedMore,omitempty"`
	// OperationsFrom is the commit at which operation files were first looked for. In a state that was lost, those that were there
	// already are skipped.
	OperationsFrom string `json:"operationsFrom,omitempty"`
	// LastRestore is the last restore of its etcd, by an agent or by command.
	LastRestore *RestoreRecord `json:"lastRestore,omitempty"`
	// Backups holds what is remembered of each TalosEtcdBackup, by name.
	Backups map[string]*BackupState `json:"backups,omitempty"`
	Audit   AuditHead               `json:"audit"`
	// SingleAgent says that the store doesn't honour conditions and the agent was started with --single-agent.
	SingleAgent bool `json:"singleAgent,omitempty"`
}

// RestoreRecord is a restore that is over.
type RestoreRecord struct {
	// At is when it ended, Snapshot what it restored, Target the machine that recovered.
	At       time.Time `json:"at"`
	Snapshot string    `json:"snapshot"`
	Target   string    `json:"target"`
	// Backup is the TalosEtcdBackup beside whose snapshots Pinned, the copy that it rested on, is still kept; both empty where none is.
	Backup string `json:"backup,omitempty"`
	Pinned string `json:"pinned,omitempty"`
}

// Origin is how a state came to be.
type Origin string

// The origins of a state.
const (
	OriginNew  Origin = "new"
	OriginLost Origin = "lost"
)

// ClusterIdentity says whose state this is. A bundle with another fingerprint is refused.
type ClusterIdentity struct {
	Name              string `json:"name"`
	ID                string `json:"id"`
	BundleFingerprint string `json:"bundleFingerprint"`
	// CAs are the SHA-256 fingerprints (hex) of the bundle's certificate authorities by name (os, kubernetes, etcd, aggregator).
	CAs map[string]string `json:"cas,omitempty"`
}

// Writer is an agent process: a random ID made at its start, and how many times the writer changed.
type Writer struct {
	ID    string `json:"id"`
	Epoch uint64 `json:"epoch"`
	// Since is when this writer took over, by its own clock.
	Since time.Time `json:"since,omitzero"`
}

// RevisionState is which revision of the repository was seen, and which one is acted on.
type RevisionState struct {
	Observed string `json:"observed,omitempty"`
	Applied  string `json:"applied,omitempty"`
	// Verified is the newest commit up to which each on the branch, from the one applied on, was found signed by who may. Empty where
	// signatures aren't asked for.
	Verified string           `json:"verified,omitempty"`
	Refused  *RefusedRevision `json:"refused,omitempty"`
	// Problem is why the repository can't be read at the moment; empty when it can.
	Problem string `json:"problem,omitempty"`
	// NotYet names documents that are left alone because what they ask for isn't built yet.
	NotYet []string `json:"notYet,omitempty"`
}

// RefusedRevision is the newest revision when it is not acted on, and why.
type RefusedRevision struct {
	Commit   string   `json:"commit"`
	Findings []string `json:"findings"`
}

// Condition is a statement about something: true or not, one CamelCase reason, one sentence.
type Condition struct {
	Type    string    `json:"type,omitempty"`
	Status  bool      `json:"status"`
	Reason  string    `json:"reason"`
	Message string    `json:"message,omitempty"`
	Since   time.Time `json:"since,omitzero"`
}

// MachineState is what is remembered about a machine.
type MachineState struct {
	UUID         string      `json:"uuid,omitempty"`
	Role         string      `json:"role,omitempty"`
	Address      string      `json:"address,omitempty"`
	Hostname     string      `json:"hostname,omitempty"`
	BootID       string      `json:"bootID,omitempty"`
	MemberID     string      `json:"memberID,omitempty"`
	TalosVersion string      `json:"talosVersion,omitempty"`
	Kubernetes   string      `json:"kubernetesVersion,omitempty"`
	ConfigDigest string      `json:"configDigest,omitempty"`
	Ready        Condition   `json:"ready"`
	Conditions   []Condition `json:"conditions,omitempty"`
	// FirstApproved is approvalDecision.at, else the committer time of the commit that approved the machine, as first seen.
	FirstApproved time.Time `json:"firstApproved,omitzero"`
	// ConfigSentFor is the approval for which the first config was sent (its time in RFC 3339). Once an approval.
	ConfigSentFor string `json:"configSentFor,omitempty"`
	// ConfigSentTo is the maintenance certificate's fingerprint of the boot to which it was sent.
	ConfigSentTo string `json:"configSentTo,omitempty"`
	// Managed is true once Ichor configured or adopted the machine.
	Managed bool `json:"managed,omitempty"`
	// TakenFrom is the mark of another Ichor's state that a signed adopt took the machine over from.
	TakenFrom string `json:"takenFrom,omitempty"`
	// Removed is set by a removal: the machine is never configured again until a revision without it was seen.
	Removed bool `json:"removed,omitempty"`
	// PersistentDigest is of the config that the machine's next boot uses, as Ichor last left it there.
	PersistentDigest string `json:"persistentDigest,omitempty"`
	// LastReconciled is when the machine was last compared with what it should be.
	LastReconciled time.Time `json:"lastReconciled,omitzero"`
}

// BootstrapRecord is the one bootstrap of a cluster's life.
type BootstrapRecord struct {
	Machine string    `json:"machine"`
	UUID    string    `json:"uuid"`
	At      time.Time `json:"at"`
	// Done is when the target's etcd was seen to answer with one member. Zero: begun.
	Done time.Time `json:"done,omitzero"`
	// Adopted says that the etcd was already there when Ichor first saw the cluster.
	Adopted bool `json:"adopted,omitempty"`
}

// Outcome is what is known about a call that was sent.
type Outcome string

// The outcomes. Empty: the intent is written, the call may or may not have been sent.
const (
	OutcomeOK      Outcome = "ok"
	OutcomeRefused Outcome = "refused"
	OutcomeUnknown Outcome = "unknown"
)

// Intent is a mutating call that is about to be made. It is written before the call.
type Intent struct {
	// Nonce is random; only a record with it is one's own write whose acknowledgement was lost.
	Nonce  string `json:"nonce"`
	Action string `json:"action"`
	// Machine, UUID and BootID are the target; in maintenance the certificate's fingerprint stands for the boot ID.
	Machine string `json:"machine"`
	UUID    string `json:"uuid"`
	BootID  string `json:"bootID"`
	// Carrier is the machine that the call goes to when that isn't Machine: a member is removed over another one. UUID and
	// BootID are the carrier's then.
	Carrier string `json:"carrier,omitempty"`
	// Member is the hex ID of the etcd member that the action is about.
	Member string `json:"member,omitempty"`
	// Digest is of the config that is sent.
	Digest string `json:"digest,omitempty"`
	// Operation is the digest of the operation that asks for it; empty for the agent's own acts.
	Operation string `json:"operation,omitempty"`
	// Facts are what the action rests on, as seen on the connection that carries it.
	Facts   map[string]string `json:"facts,omitempty"`
	Attempt int               `json:"attempt"`
	Writer  Writer            `json:"writer"`
	At      time.Time         `json:"at"`
	Outcome Outcome           `json:"outcome,omitempty"`
	// Message is the node's answer, scrubbed.
	Message   string    `json:"message,omitempty"`
	OutcomeAt time.Time `json:"outcomeAt,omitzero"`
}

// Lock is the cluster lock: one disruptive thing at a time.
type Lock struct {
	Holder string    `json:"holder"`
	Reason string    `json:"reason"`
	Since  time.Time `json:"since"`
}

// JoinState is what is known of a member on its way into etcd.
type JoinState struct {
	Machine   string    `json:"machine,omitempty"`
	FirstSeen time.Time `json:"firstSeen"`
	// Acts counts what was done to mend it.
	Acts int `json:"acts,omitempty"`
	// Step is the act that is under way: "remove", "reset", "reboot", or empty.
	Step string `json:"step,omitempty"`
	// BootID is of the boot on which the last reset or reboot was sent.
	BootID string    `json:"bootID,omitempty"`
	ActAt  time.Time `json:"actAt,omitzero"`
}

// RolloutState is a change that travels over the machines one by one.
type RolloutState struct {
	Machine string    `json:"machine"`
	Digest  string    `json:"digest"`
	Phase   string    `json:"phase"`
	Since   time.Time `json:"since"`
	// From is the digest that the machine ran before, and WasReady whether it was Ready then.
	From     string `json:"from,omitempty"`
	WasReady bool   `json:"wasReady,omitempty"`
	// Epoch is the writer's that tried it: another writer may try once more what was reverted when its predecessor died.
	Epoch uint64 `json:"epoch,omitempty"`
	// BootID is of the boot on which it was tried.
	BootID string `json:"bootID,omitempty"`
	// Failures counts the calls that came to nothing on this machine.
	Failures int `json:"failures,omitempty"`
	// Evacuation is how far the machine was emptied for its reboot.
	Evacuation *Evacuation `json:"evacuation,omitempty"`
	// Stopped is set when a machine did not come back: the rollout goes no further.
	Stopped string `json:"stopped,omitempty"`
}

// AuditHead is the end of the chain of audit events.
type AuditHead struct {
	// Sequence is the number of the last event, and Hash the SHA-256 (hex) of its content.
	Sequence uint64 `json:"sequence"`
	Hash     string `json:"hash,omitempty"`
	// Pending are the last events as they will be, or already are, in objects of their own.
	Pending []PendingEvent `json:"pending,omitempty"`
}

// PendingEvent is an event whose object may not be written yet. It came into the state with the change that it tells of, so that
// neither is there without the other.
type PendingEvent struct {
	Nonce   string          `json:"nonce"`
	Content json.RawMessage `json:"content"`
}

// Time is now, or the latest time that any writer has put into the state if that is later: a clock that was set back must not bring
// an expired thing back to life.
func (s *State) Time(now time.Time) time.Time {
	if s.Latest.After(now) {
		return s.Latest
	}
	return now
}

// hole names an entry that is null, which no agent writes, and which whoever works with the state would stumble over; empty: there is none.
// A state may be looked at without its seal, so it may be anybody's.
func (s *State) hole() string {
	for _, op := range s.Operations {
		if op == nil {
			return "an operation"
		}
	}
	for _, hole := range []string{emptyIn("the machine", s.Machines), emptyIn("the backup", s.Backups), emptyIn("the member", s.Joins)} {
		if hole != "" {
			return hole
		}
	}
	return ""
}

func emptyIn[T any](what string, entries map[string]*T) string {
	for name, entry := range entries {
		if entry == nil {
			return fmt.Sprintf("%s %.80q", what, name)
		}
	}
	return ""
}
