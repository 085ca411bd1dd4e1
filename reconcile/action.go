package reconcile

import (
	"fmt"
	"sort"
	"strings"

	"ichor.maesh.dev/operation"
	"ichor.maesh.dev/statefile"
)

// ActionKind is a kind of call that changes something. It is what an intent's Action holds.
type ActionKind string

// The kinds of action.
const (
	// ActFirstConfig gives a machine in maintenance mode its first config.
	ActFirstConfig ActionKind = "first-config"
	// ActTry applies a config live; the node reverts it by itself unless it is confirmed.
	ActTry ActionKind = "config-try"
	// ActConfirm makes a tried config stay.
	ActConfirm ActionKind = "config-confirm"
	// ActStage stores a config for the next boot.
	ActStage ActionKind = "config-stage"
	// ActBootstrap starts the cluster's etcd. Once in a cluster's life.
	ActBootstrap ActionKind = "bootstrap"
	// ActRemoveMember takes a member out of etcd by its ID.
	ActRemoveMember ActionKind = "remove-member"
	// ActReset wipes a machine's EPHEMERAL and reboots it.
	ActReset ActionKind = "reset-ephemeral"
	// ActReboot reboots a machine.
	ActReboot ActionKind = "reboot"
	// ActShutdown powers a machine off.
	ActShutdown ActionKind = "shutdown"
	// ActResetMachine wipes a machine's STATE and EPHEMERAL: it knows nothing of the cluster any more.
	ActResetMachine ActionKind = "reset-machine"
	// ActRestartService restarts one of Talos's own services.
	ActRestartService ActionKind = "restart-service"
	// ActDefragment rewrites the database of one etcd member.
	ActDefragment ActionKind = "defragment"
	// ActForfeit lets the etcd member that leads hand the leadership on.
	ActForfeit ActionKind = "forfeit-leadership"
	// ActDeleteNode deletes the Kubernetes Node of a machine that doesn't run any more.
	ActDeleteNode ActionKind = "delete-node"
	// ActCordon keeps new pods away from a machine, ActEvict is one round of moving those off it that are there, ActUncordon lifts
	// the cordon. The Kubernetes API itself keeps them from doing harm when they are late or are made twice.
	ActCordon   ActionKind = "cordon"
	ActEvict    ActionKind = "evict"
	ActUncordon ActionKind = "uncordon"
)

// destructive says whether a call of this kind needs the cluster lock.
func (k ActionKind) destructive() bool {
	switch k {
	case ActBootstrap, ActRemoveMember, ActReset, ActReboot, ActShutdown, ActResetMachine, ActDefragment, ActForfeit, ActDeleteNode:
		return true
	}
	return false
}

// cordoning says whether a call is one of those to the Kubernetes API that need no intent.
func (k ActionKind) cordoning() bool { return k == ActCordon || k == ActEvict || k == ActUncordon }

// Action is one thing to do, as decided from one look at the machines. It says what it saw, and the gate does it only where
// the machine still shows that.
type Action struct {
	Kind    ActionKind
	Machine string
	// Via is the machine that carries the call when that isn't Machine (a member is removed over another one).
	Via string
	// UUID and Boot are those of the machine that carries the call. In maintenance mode the certificate's fingerprint is
	// the boot.
	UUID, Boot string
	// Digest is of the config to send.
	Digest string
	// Member is the etcd member that the action is about.
	Member uint64
	// Lock is who holds the cluster lock meanwhile; empty for none.
	Lock string
	// Facts are what the action rests on; the gate reads them again on the connection that carries the call.
	Facts map[string]string
	// Why is a sentence for the log, the status and the audit.
	Why string
	// Attempt counts the intents for the same purpose from 1.
	Attempt int
	// Approval is the approval that a first config is sent for.
	Approval string
	// Operation is the digest of the operation that asks for it; empty for the agent's own acts.
	Operation string

	// Service is the service to restart. Force: a shutdown doesn't wait for a drain, an eviction takes pods that no controller would
	// make anew. PowerOff: a reset leaves the machine off.
	Service         string
	Force, PowerOff bool
	// Node and NodeUID are the Kubernetes Node that a call to that API is about, Owner whose its cordon is, and Drain which drain
	// a round belongs to.
	Node, NodeUID, Owner, Drain string
}

// carrier is the machine that the call is sent to.
func (a Action) carrier() string {
	if a.Via != "" {
		return a.Via
	}
	return a.Machine
}

// String is the action in one line, for plans, logs and tests.
func (a Action) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s", a.Kind, a.Machine)
	if a.Via != "" {
		fmt.Fprintf(&b, " via %s", a.Via)
	}
	if a.Member != 0 {
		fmt.Fprintf(&b, " member %s", hexID(a.Member))
	}
	if a.Attempt > 1 {
		fmt.Fprintf(&b, " attempt %d", a.Attempt)
	}
	keys := make([]string, 0, len(a.Facts))
	for k := range a.Facts {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	for i, k := range keys {
		if i == 0 {
			b.WriteString(" where")
		}
		fmt.Fprintf(&b, " %s=%s", k, a.Facts[k])
	}
	return b.String()
}

// Plan is what one decision gives: the state as it is to be stored first, and what is to be done then, in that order. The
// first action of a plan is always safe to do; those after it only as long as each before it is a first config.
type Plan struct {
	Next    *statefile.State
	Actions []Action
	// NeedBackups asks for a listing of the backup destinations and another decision, NeedKubernetes for a look at the Kubernetes API.
	NeedBackups, NeedKubernetes bool
	// Busy says that something is under way, so that the next look comes soon; Held that a machine is over the cap.
	Busy, Held bool
	// Resolved is the intent that this decision found the end of, with the sentence that says which.
	Resolved *ResolvedIntent
	// Begin are operations to begin once Next is stored, before anything is done for them: whether this state may is settled by the
	// store, and decided on in the next pass.
	Begin []Beginning
	// Judged are the digests of operations whose signatures were verified for this plan.
	Judged []string
	// Refused are the verdicts of this plan that stay as they are while files and signers do, by Submitted.key.
	Refused map[string]*operation.Refusal
	// Backups are snapshots that operations ask for; they are stored with Next.
	Backups []BackupOrder
	// Restore is the next step of a restore, once Next is stored.
	Restore *RestoreOrder
}

// Beginning is an operation whose audit/once object is to be made.
type Beginning struct {
	Name, Digest, Nonce string
	// Pause is how often the operation has paused.
	Pause int
}

// ResolvedIntent is an intent whose end was seen.
type ResolvedIntent struct {
	Intent  statefile.Intent
	Outcome string
}
