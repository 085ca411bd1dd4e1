package statefile

import "time"

// OperationPhase is where an operation is in its life.
type OperationPhase string

// The phases of an operation.
const (
	// OperationPending: accepted, and waiting for its turn.
	OperationPending OperationPhase = "Pending"
	// OperationRunning: begun.
	OperationRunning OperationPhase = "Running"
	// OperationShutDown: the machine of a shutdown is off. It holds no lock, and completes when the machine is back.
	OperationShutDown OperationPhase = "ShutDown"
	// OperationPaused: something failed; FailureReason says what. Only a signed resume or cancel goes on.
	OperationPaused OperationPhase = "Paused"
	// OperationCompleted, OperationCancelled: over.
	OperationCompleted OperationPhase = "Completed"
	OperationCancelled OperationPhase = "Cancelled"
	// OperationRefused: never accepted; Refusal says why.
	OperationRefused OperationPhase = "Refused"
	// OperationSkipped: the file was in Git already when a state was made for a cluster whose past isn't known: it may have run.
	OperationSkipped OperationPhase = "Skipped"
)

// OperationPhases are all phases, in the order of a life.
func OperationPhases() []OperationPhase {
	return []OperationPhase{OperationPending, OperationRunning, OperationShutDown, OperationPaused, OperationCompleted, OperationCancelled,
		OperationRefused, OperationSkipped}
}

// Over says whether nothing more happens to an operation in this phase.
func (p OperationPhase) Over() bool {
	switch p {
	case OperationCompleted, OperationCancelled, OperationRefused, OperationSkipped:
		return true
	}
	return false
}

// OperationState is what is remembered of one signed operation. State.Operations holds them in the order in which they were first seen.
type OperationState struct {
	Name string `json:"name"`
	// Digest is the SHA-256 (hex) of the file: with the cluster's ID and the name, the operation's identity.
	Digest string `json:"digest"`
	// Kind and Action are the file's; Action only of kind node. Target is the machine or backup that it is about.
	Kind   string `json:"kind,omitempty"`
	Action string `json:"action,omitempty"`
	Target string `json:"target,omitempty"`
	// Source is "git" or "inbox", File where it was seen there.
	Source string `json:"source"`
	File   string `json:"file"`
	// Data and Signature are the files' exact bytes, printable ASCII both. They are verified again by whoever goes on, and dropped
	// once the operation is over.
	Data      string `json:"data,omitempty"`
	Signature string `json:"signature,omitempty"`
	// Override says that the signature had to be under the override namespace.
	Override bool `json:"override,omitempty"`
	// Signer says who signed: principal, key fingerprint, line and certificate.
	Signer    string    `json:"signer,omitempty"`
	ExpiresAt time.Time `json:"expiresAt,omitzero"`

	Phase OperationPhase `json:"phase"`
	// Step is the step of its procedure, by name, and StepSince when that began.
	Step      string    `json:"step,omitempty"`
	StepSince time.Time `json:"stepSince,omitzero"`
	// Steps are those that were begun, in the order in which they were.
	Steps []OperationStep `json:"steps,omitempty"`
	// Message says what it does or waits for, FailureReason why it paused, Refusal the reason of a refusal by name.
	Message       string `json:"message,omitempty"`
	FailureReason string `json:"failureReason,omitempty"`
	Refusal       string `json:"refusal,omitempty"`
	// Pause counts the pauses from 1: a resume names the one that it ends.
	Pause      int       `json:"pause,omitempty"`
	FirstSeen  time.Time `json:"firstSeen,omitzero"`
	AcceptedAt time.Time `json:"acceptedAt,omitzero"`
	StartedAt  time.Time `json:"startedAt,omitzero"`
	FinishedAt time.Time `json:"finishedAt,omitzero"`
	// OnceNonce is the nonce that audit/once/<digest>.json is made with, Once that it is there and ours.
	OnceNonce string `json:"onceNonce,omitempty"`
	Once      bool   `json:"once,omitempty"`
	// JudgedAt is when the signature was last judged (at the acceptance, the start, and each resume), JudgedEpoch the number of the writer
	// that last verified it: another one verifies it again before it goes on.
	JudgedAt    time.Time `json:"judgedAt,omitzero"`
	JudgedEpoch uint64    `json:"judgedEpoch,omitempty"`

	// What its procedure remembers. BootID is of the boot that a reboot, shutdown or reset is meant for, Member the hex ID of the
	// etcd member, Evacuation how far its machine was emptied, Sent how many intents each call had, by action.
	BootID     string         `json:"bootID,omitempty"`
	Member     string         `json:"member,omitempty"`
	Evacuation *Evacuation    `json:"evacuation,omitempty"`
	Sent       map[string]int `json:"sent,omitempty"`
	// Answer is what was said to the last call that had no effect and may be made again.
	Answer string `json:"answer,omitempty"`
	// SilentSince is since when its machine has given no answer, Heartbeat the last that Kubernetes had of it then. Left: its machine
	// was taken out of etcd, and is no longer wanted there.
	SilentSince time.Time `json:"silentSince,omitzero"`
	Heartbeat   time.Time `json:"heartbeat,omitzero"`
	Left        bool      `json:"left,omitempty"`
	// Marked: the marker of its restore was written. From then on the cluster lock stays with it, paused too.
	Marked bool `json:"marked,omitempty"`
	// Undo is what a cancel would do to a restore past its marker: "rejoin", nothing is lost and those that left etcd join it again; "end",
	// etcd has recovered; empty, it is refused. Cancelling: a cancel was signed, and is carried out.
	Undo       string `json:"undo,omitempty"`
	Cancelling bool   `json:"cancelling,omitempty"`
	// WayOut is the command with which a person ends its restore by hand, from the marker on.
	WayOut string `json:"wayOut,omitempty"`
}

// lockHolder is the holder of the cluster lock while the operation has it.
func (op *OperationState) lockHolder() string {
	return "operation:" + op.Digest[:min(12, len(op.Digest))]
}

// OperationStep is a step of an operation's procedure, and when it was begun.
type OperationStep struct {
	Name string    `json:"name"`
	At   time.Time `json:"at"`
}

// LeftCordon is a cordon of Ichor's own that outlived the rollout that it was made for. It is lifted as soon as it can be.
type LeftCordon struct {
	Machine string `json:"machine"`
	Evacuation
}

// Evacuation is how far the pods were moved off a machine, for an operation or a rollout.
type Evacuation struct {
	// Node and NodeUID are the Kubernetes Node's.
	Node    string `json:"node"`
	NodeUID string `json:"nodeUID"`
	// Owner stands in the cordon's annotation: only a cordon that bears it is lifted.
	Owner string `json:"owner"`
	// Since is when it began. Cordoned: the cordon was asked for. Drained: nothing is left to move. Undrained: why it goes on without.
	Since     time.Time `json:"since"`
	Cordoned  bool      `json:"cordoned,omitempty"`
	Drained   bool      `json:"drained,omitempty"`
	Undrained string    `json:"undrained,omitempty"`
	// Lifted: the cordon is gone again, or was never ours.
	Lifted bool `json:"lifted,omitempty"`
}
