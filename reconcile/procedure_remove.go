package reconcile

import (
	"fmt"
	"slices"
	"sort"
	"strings"
	"time"

	"ichor.maesh.dev/kube"
	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/talos"
)

// The steps of a removal.
const (
	stepLeave  = "leave etcd"
	stepWipe   = "wipe"
	stepDelete = "delete Node"
)

// removed is the machine of a removal: in Git, or gone from there and known to the state.
type removed struct {
	name         string
	controlPlane bool
	seen         Seen
	answers      bool
	// member is its etcd member, where etcd lists one.
	member talos.EtcdMember
	listed bool
}

func (s situation) removed() removed {
	name := s.spec.Node.MachineRef.Name
	r := removed{name: name}
	if m := s.in.Cluster.Machine(name); m != nil {
		r.controlPlane = isControlPlane(m)
	} else if memory := s.next.Machines[name]; memory != nil {
		r.controlPlane = memory.Role == string(schema.RoleControlPlane)
	}
	r.seen, r.answers = s.in.see(name)
	r.member, r.listed = s.etcd.member[name]
	return r
}

// refuseRemove wants a cluster that stands without the machine for good, and a machine that is seen, or is stated to be gone for good.
func refuseRemove(s situation) (refuse, wait string) {
	node, r := s.spec.Node, s.removed()
	memory := s.next.Machines[r.name]
	switch {
	case node.Confirm != r.name:
		return fmt.Sprintf("a removal of %s must say confirm: %s, and says %s", r.name, r.name, nameOr(node.Confirm, "nothing")), ""
	case memory == nil:
		return fmt.Sprintf("neither Git nor the state knows %s", r.name), ""
	case memory.Removed:
		return fmt.Sprintf("%s was removed already; delete its YAML", r.name), ""
	case node.Gone && s.in.nobodyKnown(r.name):
		return fmt.Sprintf("what answers at the address of %s doesn't say which machine it is (%s), so %s may be there; look at it, or switch it off", r.name,
			nameOr(s.in.Seen[r.name].Problem, "no reason given"), r.name), ""
	case node.Gone && r.answers:
		return fmt.Sprintf("%s answers, so it is not gone for good; sign a removal without gone", r.name), ""
	case !node.Gone && !r.answers:
		return fmt.Sprintf("%s gives no answer, so it can't be wiped; bring it up, or sign a removal with gone: true if it is off for good", r.name), ""
	case !node.Gone && r.seen.Mode == talos.ModeConfigured && r.seen.BootID == "":
		return fmt.Sprintf("the boot ID of %s could not be read: %s", r.name, nameOr(r.seen.Problem, "no reason given")), ""
	case !node.Gone && r.seen.Mode == talos.ModeConfigured && r.seen.Config.Active == "" && r.seen.Active == nil:
		return fmt.Sprintf("the config that %s runs could not be read (%s), so whether it bears the mark of another Ichor's state is not known", r.name,
			nameOr(r.seen.Problem, "no reason given")), ""
	case !node.Gone && r.seen.Mode == talos.ModeConfigured && !marked(s.in, memory, r.seen.Config.Owner):
		return fmt.Sprintf("%s bears the mark of another Ichor's state, and is never touched", r.name), ""
	}
	if r.controlPlane {
		return s.mayLoseControlPlane(r)
	}
	return s.lastWorker(r.name), ""
}

// mayLoseControlPlane says what speaks against a cluster without that control plane, or what its removal waits for.
func (s situation) mayLoseControlPlane(r removed) (refuse, wait string) {
	if s.etcd.split != "" {
		return s.etcd.split + "; look at both, and restore one from a backup", ""
	}
	record := s.next.Bootstrap
	bootstraps := s.next.Origin == statefile.OriginNew && (record == nil || record.Done.IsZero())
	if !s.etcd.known && !bootstraps {
		return "no control plane gives a member list, so whether etcd would keep its quorum is not known; wait for etcd, or restore it", ""
	}
	left := 0
	for _, name := range s.wanted {
		if name != r.name {
			left++
		}
	}
	count := s.in.Cluster.Object.Spec.ControlPlane.Count
	switch {
	case left == 0:
		return fmt.Sprintf("%s is the last control plane, and without one there is no cluster", r.name), ""
	case !s.spec.Node.Gone && left < count:
		return fmt.Sprintf("count is %d, and without %s there would be %d approved control planes; approve another one first, or lower spec.controlPlane.count", count, r.name, left), ""
	case !s.etcd.known && s.beforeEtcd() && s.spec.Node.Gone:
		return "", "" // what the bootstrap would wait for: nothing is lost with it, and nothing is sent to it
	case !s.etcd.known:
		return "", fmt.Sprintf("etcd isn't bootstrapped yet, and without its member list %s can't be taken out; the removal begins once etcd answers", r.name)
	}
	return s.mayLoseMember(r), ""
}

// beforeEtcd says whether the cluster is new and nobody was ever asked to bootstrap it.
func (s situation) beforeEtcd() bool {
	return s.next.Origin == statefile.OriginNew && s.next.Bootstrap == nil && s.next.Intent == nil
}

// mayLoseMember says what speaks against an etcd without the machine's member.
func (s situation) mayLoseMember(r removed) string {
	for _, member := range s.etcd.members {
		on := s.etcd.machine[member.ID]
		if !member.Learner && on != r.name && (on == "" || !s.etcd.joined[on]) {
			return fmt.Sprintf("%s: %s is missing; mend it first", countMembers(s.etcd), nameOr(on, nameOr(member.Name, hexID(member.ID))))
		}
	}
	if !r.listed {
		return ""
	}
	if !s.spec.Node.Gone && !s.etcd.joined[r.name] && r.seen.Mode == talos.ModeConfigured && !r.member.Learner {
		return fmt.Sprintf("%s: %s itself is missing; mend it, or shut it down for good and sign a removal with gone: true", countMembers(s.etcd), r.name)
	}
	voters, healthy, _ := s.etcd.quorum()
	return quorumWithoutMember(attempt{action: Action{Member: r.member.ID}, etcd: s.etcd}, voters, healthy)
}

// lastWorker guards the last machine on which pods may run.
func (s situation) lastWorker(name string) string {
	if s.in.Cluster.Object.Spec.ControlPlanesSchedulable() {
		return ""
	}
	for _, m := range s.in.Cluster.Machines {
		if other := m.Metadata.Name; other != name && !isControlPlane(m) && m.Spec.Approved && !s.in.remembered(other).Removed {
			return ""
		}
	}
	return fmt.Sprintf("%s is the last worker, and control planes take no pods (spec.controlPlane.schedulable: false); approve another worker first", name)
}

// nextRemove empties the machine, takes it out of etcd, wipes it, and deletes its Node, in that order: it must not come back into etcd by a
// power cycle, and its Node must not be deleted while its kubelet could make it anew.
func nextRemove(s situation) move {
	r := s.removed()
	if s.op.FailureReason != "" {
		return s.failing(r.name)
	}
	s.say(r.name, "Removing", fmt.Sprintf("%s is being removed, as %s asks", r.name, s.op.Name))
	wiped := r.answers && r.seen.Mode == talos.ModeMaintenance || s.spec.Node.Gone
	if r.answers {
		s.op.SilentSince, s.op.Heartbeat = time.Time{}, time.Time{}
	}
	if s.sent(ActResetMachine) == 0 {
		if m, out := s.takenOut(r, wiped); !out {
			return m
		}
	}
	if !wiped && s.sent(ActDeleteNode) == 0 && !s.off() {
		if m, done := s.wipe(r); !done {
			return m
		}
	}
	return s.deleteNode(r)
}

// takenOut empties the machine and takes it out of etcd; true once both are done. A member that joined again under another ID, before the
// machine was wiped, is taken out again.
func (s situation) takenOut(r removed, wiped bool) (move, bool) {
	if s.op.Left && r.listed {
		s.op.Left = false
	}
	if !s.op.Left && s.sent(ActRemoveMember) == 0 {
		refuse, wait := refuseRemove(s)
		if refuse == "" && wait == "" && s.spec.Node.Gone {
			if s.in.Kubernetes == nil {
				return move{step: stepEvacuate, needKubernetes: true}, false
			}
			refuse = s.runs(r.name)
		}
		if held, is := s.held(r.name, refuse, wait); is {
			return held, false
		}
	}
	if !wiped {
		if empty, is := s.emptied(stepEvacuate, r.name); !is {
			return empty, false
		}
	}
	if s.op.Left {
		return move{}, true
	}
	if m, out := s.leave(r); !out {
		if m.wait != "" && s.op.Step == stepLeave && s.since() >= s.in.Timing.Return {
			return s.fail(r.name, fmt.Sprintf("%s could not be taken out of etcd within %s: %s; mend that, and resume this operation", r.name, s.in.Timing.Return, m.wait)), false
		}
		return m, false
	}
	s.op.Left = true
	return move{}, true
}

// runs says that a machine which was stated to be gone for good runs, by what Kubernetes hears of it.
func (s situation) runs(name string) string {
	if node, known := nodeOf(s.in, name); s.in.Kubernetes.Problem == "" && known && node.Ready == kube.Yes {
		return fmt.Sprintf("Kubernetes has heartbeats of %s (its Node is Ready), so it is not gone for good; switch it off, or sign a removal without gone", name)
	}
	if doubt := s.in.Kubernetes.Doubts[name]; doubt != "" {
		return "whether it still runs isn't known: " + doubt
	}
	return ""
}

// nobodyKnown says whether something answers where a machine should be and doesn't say which machine it is.
func (in *Input) nobodyKnown(name string) bool {
	seen, looked := in.Seen[name]
	return looked && seen.Mode != talos.ModeUnknown && seen.UUID == ""
}

// leave takes the machine's member out of etcd, over another one. Which member it is, the machine says itself, or, of one that is gone, the
// state or its name and address together: a wrong one would be somebody's vote.
func (s situation) leave(r removed) (move, bool) {
	if !r.controlPlane {
		return move{}, true
	}
	if !s.etcd.known && s.beforeEtcd() && s.spec.Node.Gone {
		return move{}, true
	}
	if !s.etcd.known {
		return move{step: stepLeave, wait: "no control plane gives a member list; the removal goes on once etcd answers"}, false
	}
	if !r.listed {
		if member, may := s.etcd.mayHold(r.name); may {
			return s.fail(r.name, fmt.Sprintf("no machine explains %s of etcd, so it may be that of %s; remove it by hand, or mend it, and resume this operation", member, r.name)), false
		}
		return move{}, true
	}
	if why := s.identity(r); why != "" {
		return s.fail(r.name, why), false
	}
	asked := s.sent(ActRemoveMember)
	switch due, over := repeated(asked, s.since(), s.in.Timing.Return); {
	case over:
		return s.fail(r.name, fmt.Sprintf("etcd did not take member %s (%s) out within %s and %d requests: %s; look at etcd, and resume this operation", hexID(r.member.ID), r.name,
			s.in.Timing.Return, asked, nameOr(s.op.Answer, "it gave no answer"))), false
	case s.since() < due:
		return move{step: stepLeave, wait: fmt.Sprintf("etcd did not take member %s (%s) out after %d requests: %s; it is asked again at %s", hexID(r.member.ID), r.name, asked,
			nameOr(s.op.Answer, "it gave no answer"), s.op.StepSince.Add(due).Format("15:04:05Z"))}, false
	}
	carrier := s.carrier(r.name)
	if carrier == "" {
		return move{step: stepLeave, wait: fmt.Sprintf("no other control plane could take %s out of etcd at the moment", r.name)}, false
	}
	seen, _ := s.in.see(carrier)
	s.op.Member = hexID(r.member.ID)
	return move{step: stepLeave, act: &Action{Kind: ActRemoveMember, Machine: r.name, Via: carrier, UUID: seen.UUID, Boot: seen.BootID, Member: r.member.ID,
		Facts: map[string]string{"member": describeMember(r.member)}, Attempt: asked + 1,
		Why: fmt.Sprintf("%s is taken out of etcd (member %s), as %s asks", r.name, hexID(r.member.ID), s.op.Name)}}, false
}

// identity says why a listed member isn't certainly the machine's; empty when it is.
func (s situation) identity(r removed) string {
	id := hexID(r.member.ID)
	if r.answers && r.seen.Mode == talos.ModeConfigured && r.seen.Etcd.MemberID != 0 {
		if r.seen.Etcd.MemberID != r.member.ID {
			return fmt.Sprintf("etcd lists member %s for %s, which says that it is member %s; look at etcd before anything is removed", id, r.name, hexID(r.seen.Etcd.MemberID))
		}
		return ""
	}
	memory := s.next.Machines[r.name]
	if memory.MemberID == id {
		return ""
	}
	if memory.MemberID == "" && strings.EqualFold(r.member.Name, s.in.hostname(r.name)) && containsAny(memberHosts(r.member), s.in.addresses(r.name)) {
		return ""
	}
	return fmt.Sprintf("whether member %s (%s) is that of %s is not certain (the state remembers %s); remove it by hand: talosctl etcd remove-member %s", id,
		nameOr(r.member.Name, "nameless"), r.name, nameOr(memory.MemberID, "none"), id)
}

// carrier is a control plane over which a member can be taken out of etcd: joined, and Ichor's own.
func (s situation) carrier(name string) string {
	var carriers []string
	for other, joined := range s.etcd.joined {
		if joined && other != name && s.eligible(other) {
			carriers = append(carriers, other)
		}
	}
	sort.Strings(carriers)
	if len(carriers) == 0 {
		return ""
	}
	return carriers[0]
}

// off says whether the wipe was followed by the silence of a machine that is off.
func (s situation) off() bool { return s.sent(ActResetMachine) > 0 && s.op.Step == stepDelete }

// wipe wipes STATE and EPHEMERAL, so that the machine knows nothing of the cluster any more.
func (s situation) wipe(r removed) (move, bool) {
	switch sent := s.sent(ActResetMachine); {
	case sent > 0 && !r.answers:
		return s.silent(r)
	case r.seen.BootID == "" && r.answers:
		return s.unwiped(r, fmt.Sprintf("the boot ID of %s could not be read (%s)", r.name, nameOr(r.seen.Problem, "no reason given")))
	case sent > 0 && r.seen.BootID != s.op.BootID:
		return s.fail(r.name, stillConfigured(r.name)), false
	case sent >= 2:
		return s.fail(r.name, fmt.Sprintf("%s was asked twice to wipe itself and still runs, configured, in the same boot; reset it by hand (talosctl reset), and resume this operation", r.name)), false
	case !r.answers:
		return s.unwiped(r, fmt.Sprintf("%s gives no answer", r.name))
	}
	s.op.BootID = r.seen.BootID
	off := s.spec.Node.Then != "reboot"
	after := "powers off"
	if !off {
		after = "reboots into maintenance mode"
	}
	return move{step: stepWipe, act: &Action{Kind: ActResetMachine, Machine: r.name, UUID: r.seen.UUID, Boot: r.seen.BootID, PowerOff: off,
		Attempt: s.sent(ActResetMachine) + 1, Facts: map[string]string{"boot": r.seen.BootID, "then": after},
		Why: fmt.Sprintf("%s wipes STATE and EPHEMERAL and %s, as %s asks", r.name, after, s.op.Name)}}, false
}

// silent wants, of a machine that was asked to wipe itself and gives no answer, the proof that it is off: its intent may have ended
// without one, and a machine that only can't be reached for a moment keeps its Node.
func (s situation) silent(r removed) (move, bool) {
	if s.in.Kubernetes == nil {
		return move{step: stepWipe, needKubernetes: true}, false
	}
	off, say := goneSilent(s.in, s.op, r.name, s.in.Timing.Wiped)
	switch {
	case off:
		return move{}, true
	case s.op.Step == stepWipe && s.since() >= s.in.Timing.Wiped+2*s.in.Timing.Return && s.in.watchedFor(s.in.Timing.Wiped):
		return s.fail(r.name, fmt.Sprintf("%s was asked to wipe itself, and that it is off is not certain: %s; look at it, and resume this operation once it is off or in "+
			"maintenance mode", r.name, say)), false
	}
	return move{step: stepWipe, wait: fmt.Sprintf("%s was asked to wipe itself: %s", r.name, say)}, false
}

// unwiped waits for a while for a machine that can't be wiped at the moment.
func (s situation) unwiped(r removed, why string) (move, bool) {
	if s.op.Step == stepWipe && s.since() >= s.in.Timing.Return {
		return s.fail(r.name, fmt.Sprintf("%s is out of etcd and could not be wiped within %s: %s; bring it up and resume this operation, or cancel it and sign a removal "+
			"with gone: true if it is off for good", r.name, s.in.Timing.Return, why)), false
	}
	return move{step: stepWipe, wait: why + "; it is wiped once that is over"}, false
}

func stillConfigured(name string) string {
	return fmt.Sprintf("%s runs another boot and is still configured, so its wipe came to nothing; reset it by hand (talosctl reset), and resume this operation", name)
}

// deleteNode deletes the machine's Node in Kubernetes, which nothing else does, and ends the removal.
func (s situation) deleteNode(r removed) move {
	if r.answers && r.seen.Mode == talos.ModeConfigured {
		if s.spec.Node.Gone {
			return s.fail(r.name, fmt.Sprintf("%s answers, so it is not gone for good; cancel this operation, and sign a removal without gone", r.name))
		}
		return s.fail(r.name, stillConfigured(r.name))
	}
	if s.in.Kubernetes == nil {
		return move{step: stepDelete, needKubernetes: true}
	}
	if problem := s.in.Kubernetes.Problem; problem != "" && !s.beforeEtcd() {
		if s.op.Step == stepDelete && s.since() >= s.in.Timing.ComeBack {
			return s.fail(r.name, fmt.Sprintf("%s is out of the cluster, and its Node could not be deleted: the Kubernetes API can't be asked: %s; resume this operation once it "+
				"answers", r.name, problem))
		}
		return move{step: stepDelete, wait: fmt.Sprintf("the Node of %s is to be deleted, and the Kubernetes API can't be asked: %s", r.name, problem)}
	}
	node, known := s.in.Kubernetes.Nodes[r.name]
	if why := s.runs(r.name); why != "" && s.spec.Node.Gone && s.sent(ActDeleteNode) == 0 {
		return s.fail(r.name, why)
	}
	if doubt := s.in.Kubernetes.Doubts[r.name]; !known && doubt != "" {
		return s.fail(r.name, fmt.Sprintf("the Node of %s is to be deleted, and %s; then resume this operation", r.name, doubt))
	}
	if known {
		asked := s.sent(ActDeleteNode)
		switch due, over := repeated(asked, s.since(), s.in.Timing.ComeBack); {
		case over:
			return s.fail(r.name, fmt.Sprintf("the Node of %s could not be deleted within %s and %d requests: %s; look at it, and resume this operation", r.name, s.in.Timing.ComeBack,
				asked, nameOr(s.op.Answer, "no answer")))
		case s.since() < due:
			return move{step: stepDelete, wait: fmt.Sprintf("the Node of %s is still there after %d requests: %s; it is asked for again at %s", r.name, asked,
				nameOr(s.op.Answer, "no answer"), s.op.StepSince.Add(due).Format("15:04:05Z"))}
		}
		return move{step: stepDelete, act: &Action{Kind: ActDeleteNode, Machine: r.name, UUID: s.in.uuid(r.name), Boot: nameOr(s.op.BootID, "gone"), Node: node.Name, NodeUID: node.UID,
			Facts: map[string]string{"node": node.UID}, Attempt: asked + 1, Why: fmt.Sprintf("%s is out of the cluster, and its Node is deleted", r.name)}}
	}
	memory := s.next.Machines[r.name]
	memory.Removed, memory.MemberID = true, ""
	if s.op.Evacuation != nil {
		s.op.Evacuation.Lifted = true // the cordon went with the Node
	}
	return move{step: stepDelete, done: s.goodbye(r)}
}

func (s situation) goodbye(r removed) string {
	out := "its Node is gone"
	if r.controlPlane {
		out = "its etcd member and its Node are gone"
	}
	switch {
	case r.controlPlane && s.beforeEtcd():
		return fmt.Sprintf("%s is removed: it was never in etcd, which isn't bootstrapped yet; the machine itself was stated to be off for good, and was not wiped", r.name)
	case s.spec.Node.Gone:
		return fmt.Sprintf("%s is removed: %s; the machine itself was stated to be off for good, and was not wiped", r.name, out)
	case r.answers && r.seen.Mode == talos.ModeMaintenance && s.sent(ActResetMachine) == 0:
		return fmt.Sprintf("%s is removed: it was in maintenance mode already, where nothing can be wiped, so that its disk holds whatever it held (etcd's data and what pods kept may be "+
			"among it), and %s; delete its YAML", r.name, out)
	case r.answers && r.seen.Mode == talos.ModeMaintenance && r.controlPlane && etcdLeftOn(r.seen) != "":
		return fmt.Sprintf("%s is removed: STATE and EPHEMERAL are wiped and it waits in maintenance mode, and %s; etcd's data may be there still: %s holds a partition ETCD, which wasn't; "+
			"wipe that disk before the machine goes anywhere else, and delete its YAML", r.name, out, etcdLeftOn(r.seen))
	case r.answers && r.seen.Mode == talos.ModeMaintenance:
		return fmt.Sprintf("%s is removed: it is wiped and waits in maintenance mode, and %s; delete its YAML", r.name, out)
	}
	return fmt.Sprintf("%s is removed: it is off, and %s; it powered off as it wiped itself, so that the wipe itself was not seen; delete its YAML", r.name, out)
}

// etcdLeftOn names a disk of a machine in maintenance mode on which etcd has a partition of its own; empty where none is seen.
func etcdLeftOn(seen Seen) string {
	for _, disk := range seen.Disks {
		if slices.ContainsFunc(disk.Contents, func(content string) bool { label, _ := partitionOf(content); return label == "ETCD" }) {
			return disk.Path
		}
	}
	return ""
}

// removing is the operation that is removing a machine and has taken it out of etcd, or has begun to wipe it; nil when none does.
func removing(s *statefile.State, name string) *statefile.OperationState {
	for _, op := range s.Operations {
		if op.Target == name && op.Action == schema.ActionRemove && !op.Phase.Over() && (op.Left || op.Sent[string(ActResetMachine)] > 0) {
			return op
		}
	}
	return nil
}
