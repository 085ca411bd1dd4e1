package reconcile

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/talos"
)

// errRefused is in every refusal of the gate: nothing was sent, and no intent was written.
var errRefused = errors.New("refused")

// freshLease is how young a lease must be for a call: it ends 15 s after the start of its last renewal.
const freshLease = 10 * time.Second

// freshIntent is how soon after the start of its intent's write a call must be sent.
const freshIntent = 5 * time.Second

// wipe is one partition of a reset.
type wipe struct {
	Label string
	Wipe  bool
}

// modeOf is how the config of a call is applied; empty for calls without one.
func modeOf(kind ActionKind) talos.ApplyMode {
	switch kind {
	case ActFirstConfig, ActConfirm:
		return talos.ApplyNoReboot
	case ActTry:
		return talos.ApplyTry
	case ActStage:
		return talos.ApplyStaged
	}
	return ""
}

// partitionsOf are what a reset wipes.
func partitionsOf(kind ActionKind) []wipe {
	switch kind {
	case ActReset:
		return []wipe{{Label: "EPHEMERAL", Wipe: true}}
	case ActResetMachine:
		// Talos wipes them in this order and stops at the first that fails. STATE comes last: a machine in maintenance mode has lost EPHEMERAL too.
		return []wipe{{Label: "EPHEMERAL", Wipe: true}, {Label: "STATE", Wipe: true}}
	}
	return nil
}

// attempt is a call as it is about to be made, with everything a refusal can rest on.
type attempt struct {
	action Action
	// cluster is what Git wants, bundleID the short ID of the bundle whose secrets are used.
	cluster  *schema.TalosCluster
	bundleID string
	// declared is the UUID that Git (or the state, for a machine no longer there) gives to the machine that carries the call,
	// uuid and boot what the connection showed, facts what was read on it.
	declared, uuid, boot string
	facts                map[string]string
	// state is the state that the intent is about to be written into.
	state *statefile.State
	etcd  etcdView
	// against is the guard that doesn't hold, of a bootstrap.
	against string
	// leaseAge is that of one's own lease; leaseHeld is false without one.
	leaseAge  time.Duration
	leaseHeld bool
	// mode is of an ApplyConfiguration, partitions of a Reset.
	mode       talos.ApplyMode
	partitions []wipe
	// routed is the metadata key that would send the call on to other nodes; hasDeadline whether the call ends by itself.
	routed      string
	hasDeadline bool
	// worker says that the machine is none that etcd runs on.
	worker bool
}

// refuse says why a call is never made; nil when nothing speaks against it. Every refusal names the thing, the number and
// the way out.
func refuse(a attempt) error {
	for _, check := range []func(attempt) string{
		refuseForm, refuseBundle, refuseMachine, refuseFacts, refuseLease, refuseOperation, refuseBootstrap, refuseQuorum,
	} {
		if why := check(a); why != "" {
			return fmt.Errorf("%s on %s is %w: %s", a.action.Kind, a.action.Machine, errRefused, why)
		}
	}
	return nil
}

// refuseForm looks at the call itself: Talos's zero values wipe and reboot.
func refuseForm(a attempt) string {
	switch {
	case a.routed != "":
		return fmt.Sprintf("it bears %q metadata and would be sent on by another node, and nodes are only called directly", a.routed)
	case !a.hasDeadline:
		return "it has no deadline, and a node may never answer"
	}
	switch a.action.Kind {
	case ActFirstConfig, ActTry, ActConfirm, ActStage:
		if a.mode != talos.ApplyNoReboot && a.mode != talos.ApplyStaged && a.mode != talos.ApplyTry {
			return fmt.Sprintf("mode %q may reboot the machine (a config without a mode does); want NO_REBOOT, STAGED or TRY", a.mode)
		}
	case ActReset, ActResetMachine:
		if len(a.partitions) == 0 {
			return "a reset without partitions wipes the whole disk; name EPHEMERAL, STATE or both"
		}
		for _, p := range a.partitions {
			if !p.Wipe {
				return fmt.Sprintf("partition %s bears wipe: false, and a reset that wipes nothing still reboots the machine", p.Label)
			}
		}
	}
	return ""
}

func refuseBundle(a attempt) string {
	if a.bundleID != a.cluster.Spec.ID {
		return fmt.Sprintf("the secrets bundle is of cluster ID %s and spec.id of %s is %s; put the right bundle back", a.bundleID,
			a.cluster.Metadata.Name, a.cluster.Spec.ID)
	}
	if a.state.Cluster.ID != "" && a.state.Cluster.ID != a.bundleID {
		return fmt.Sprintf("the state is of cluster ID %s and the secrets bundle of %s; every backup would be orphaned: put the right "+
			"bundle back", a.state.Cluster.ID, a.bundleID)
	}
	return ""
}

// refuseMachine looks at who answers: the declared machine, in the boot that was decided for.
func refuseMachine(a attempt) string {
	switch {
	case a.declared == "" || !strings.EqualFold(a.uuid, a.declared):
		return fmt.Sprintf("the machine there has the UUID %s, and %s is declared as %s; correct spec.endpoint or spec.uuid",
			nameOr(a.uuid, "(unreadable)"), a.action.carrier(), nameOr(a.declared, "(none)"))
	case a.boot == "" || a.boot != a.action.Boot:
		return fmt.Sprintf("%s shows boot %s and this was decided for boot %s; it is decided anew", a.action.carrier(),
			nameOr(a.boot, "(unreadable)"), nameOr(a.action.Boot, "(none)"))
	}
	return ""
}

// refuseFacts compares what the connection shows with what the decision saw.
func refuseFacts(a attempt) string {
	for _, need := range neededFacts(a.action) {
		if _, is := a.action.Facts[need]; !is {
			return fmt.Sprintf("it was decided without a look at its %s; it is decided anew", need)
		}
	}
	for _, key := range checkedFacts(a.action) {
		if want, got := a.action.Facts[key], a.facts[key]; got != want {
			return fmt.Sprintf("%s is %s now and was %s when this was decided; it is decided anew", key, nameOr(got, "unknown"),
				nameOr(want, "unknown"))
		}
	}
	return ""
}

// neededFacts are those without which a call of a kind is never made.
func neededFacts(a Action) []string {
	switch a.Kind {
	case ActFirstConfig:
		return []string{"mode"}
	case ActTry, ActConfirm, ActStage:
		return []string{"active", "persistent"}
	case ActBootstrap, ActReset:
		return []string{"data"}
	case ActReboot:
		if a.Lock == lockJoins {
			return []string{"data"} // only a machine without any is rebooted to mend its join
		}
	case ActRemoveMember:
		return []string{"member"}
	case ActRestartService:
		return []string{"started"}
	case ActDefragment, ActForfeit:
		return []string{"leads"}
	case ActDeleteNode:
		return []string{"node"}
	}
	return nil
}

// checkedFacts are the facts that the gate reads again. The others only explain.
func checkedFacts(a Action) []string {
	var keys []string
	for _, key := range []string{"mode", "data", "member", "active", "persistent", "started", "leads", "node"} {
		if _, is := a.Facts[key]; is {
			keys = append(keys, key)
		}
	}
	return keys
}

// refuseLease wants the right to act: a young lease, a free or own lock, and no other call whose end isn't known.
func refuseLease(a attempt) string {
	switch {
	case !a.leaseHeld:
		return "the lease of this cluster's shard is not held; another agent may be acting"
	case a.leaseAge >= freshLease:
		return fmt.Sprintf("the lease was last renewed %s ago, and only one younger than %s serves", a.leaseAge.Round(time.Millisecond), freshLease)
	case a.state.Intent != nil:
		return fmt.Sprintf("what became of %s on %s is not known yet", a.state.Intent.Action, a.state.Intent.Machine)
	case a.state.Lock != nil && a.state.Lock.Holder != a.action.Lock && !besideOwnLock(a):
		return fmt.Sprintf("the cluster lock is held by %s (%s)", a.state.Lock.Holder, a.state.Lock.Reason)
	case a.action.Kind.destructive() && a.action.Lock == "":
		return "it needs the cluster lock and asks for none"
	}
	return ""
}

// besideOwnLock says whether the call may be made while another of the agent's own acts holds the lock: a first config disturbs
// nothing that runs, and a machine that waits for one may be what the others wait for; nor does a cordon disturb anything that is lifted,
// which an operation that is over left behind.
func besideOwnLock(a attempt) bool {
	return (a.action.Kind == ActFirstConfig || a.action.Kind == ActUncordon) && ownLock(a.state.Lock)
}

// refuseBootstrap keeps a second bootstrap from ever being sent.
func refuseBootstrap(a attempt) string {
	if a.action.Kind != ActBootstrap {
		return ""
	}
	record := a.state.Bootstrap
	switch {
	case a.action.Facts["data"] != "absent":
		return "it was decided while the machine held etcd data, or may have held some"
	case a.state.Origin != statefile.OriginNew && a.action.Operation == "": // else somebody answers for the past by signature
		return "this state doesn't know the cluster's past; " + wayOutOfALostPast
	case record != nil && !record.Done.IsZero():
		return fmt.Sprintf("the cluster was bootstrapped on %s at %s, and a second bootstrap would make a second cluster", record.Machine,
			record.Done.Format(time.RFC3339))
	case record != nil && (record.Machine != a.action.Machine || !strings.EqualFold(record.UUID, a.uuid)):
		return fmt.Sprintf("a bootstrap of %s (%s) was begun at %s; no other machine is ever bootstrapped", record.Machine, record.UUID,
			record.At.Format(time.RFC3339))
	case a.against != "":
		return a.against
	case a.etcd.known:
		return fmt.Sprintf("the etcd of %s answers with %d members", a.etcd.source, len(a.etcd.members))
	}
	return ""
}

// refuseQuorum keeps etcd able to decide: for good, and meanwhile where it has two or more members. A signed operation doesn't even
// begin while a member is missing.
func refuseQuorum(a attempt) string {
	switch a.action.Kind {
	case ActReset, ActReboot, ActShutdown, ActResetMachine:
		if a.worker {
			return ""
		}
	case ActRemoveMember, ActDefragment, ActForfeit:
	default:
		return ""
	}
	if a.etcd.split != "" {
		return a.etcd.split + "; look at both, and restore one from a backup"
	}
	if !a.etcd.known {
		if a.state.Bootstrap == nil {
			return ""
		}
		return "no control plane gives a member list, so whether etcd would keep its quorum is not known; wait for etcd, or restore it"
	}
	if a.action.Kind == ActRemoveMember {
		if why := refuseMissing(a); why != "" {
			return why
		}
		voters, healthy, _ := a.etcd.quorum()
		return quorumWithoutMember(a, voters, healthy)
	}
	if why := refuseMissing(a); why != "" {
		return why
	}
	name := a.action.Machine
	if a.action.Kind == ActReset && a.etcd.isVoter(name) && a.etcd.voters() == 1 {
		return fmt.Sprintf("%s is the only etcd member, and its data would be lost for good; take a backup and restore it instead", name)
	}
	if a.action.Kind == ActResetMachine {
		if member, may := a.etcd.mayHold(name); may {
			return fmt.Sprintf("%s is still a member of etcd, or may be one (%s), and etcd would miss it; it is taken out of etcd first", name, member)
		}
	}
	if why := quorumWithout(a.etcd, name); why != "" && a.action.Kind != ActDefragment && a.action.Kind != ActForfeit {
		return why + "; wait until all have joined"
	}
	return ""
}

// refuseMissing says which member is missing where a signed operation, or a rolled reboot, is to begin at one. The member that is removed may be missing
// itself.
func refuseMissing(a attempt) string {
	if a.action.Operation == "" && a.action.Lock != lockRollout || !a.etcd.holds(a.action.Machine) {
		return ""
	}
	joined := a.etcd.joined
	if a.action.Kind == ActDefragment {
		joined = a.etcd.working
	}
	for _, m := range a.etcd.members {
		if m.ID == a.action.Member {
			continue
		}
		if name := a.etcd.machine[m.ID]; name == "" || !joined[name] || a.etcd.member[name].ID != m.ID {
			return fmt.Sprintf("%s: %s is missing; wait until all have joined, or mend it", countMembers(a.etcd), nameOr(name, nameOr(m.Name, hexID(m.ID))))
		}
	}
	return ""
}

func quorumWithoutMember(a attempt, voters, healthy int) string {
	member, listed := a.etcd.find(a.action.Member)
	if !listed {
		return fmt.Sprintf("member %s is not in etcd's list", hexID(a.action.Member))
	}
	if member.Learner {
		return ""
	}
	left, name := healthy, a.etcd.machine[member.ID]
	if a.etcd.joined[name] && a.etcd.member[name].ID == member.ID {
		left--
	}
	if need := (voters-1)/2 + 1; voters == 1 || left < need {
		return fmt.Sprintf("%d of %d etcd members are healthy; without member %s there would be %d of %d, quorum is %d; mend the others first",
			healthy, voters, hexID(member.ID), left, voters-1, need)
	}
	return ""
}

func partitionLabels(partitions []wipe) []string {
	labels := make([]string, 0, len(partitions))
	for _, p := range partitions {
		if !slices.Contains(labels, p.Label) {
			labels = append(labels, p.Label)
		}
	}
	return labels
}
