package reconcile

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"ichor.maesh.dev/recovery"
	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/statefile"
)

// node describes an action on a machine.
func (d *description) node(node schema.NodeOperation) {
	name := node.MachineRef.Name
	m := d.target(node.MachineRef)
	controlPlane := m != nil && isControlPlane(m)
	switch node.Action {
	case schema.ActionReboot:
		d.reboot(name, controlPlane)
	case schema.ActionShutdown:
		d.shutdown(name, controlPlane)
	case schema.ActionRestartService:
		d.restart(name, node.Service)
	case schema.ActionEtcdDefrag:
		d.defragment(name, node.AllowLeader)
	case schema.ActionEtcdForfeit:
		d.forfeit(name)
	case schema.ActionRemove:
		d.remove(m, node)
	}
	d.unwell(node, controlPlane)
}

// unwell warns of what the agent last saw to be not Ready: the machine itself, where it has to answer, and for a control plane the other
// ones. It doesn't block, since it may be mended until the operation's turn comes.
func (d *description) unwell(node schema.NodeOperation, controlPlane bool) {
	name := node.MachineRef.Name
	if why := d.lastSeen(name); why != "" && !node.Gone && node.Action != schema.ActionShutdown {
		d.warn("when the agent last looked %s was not Ready (%s); the operation pauses if it can't be done when its turn comes", name, why)
	}
	if !controlPlane || node.Action == schema.ActionRestartService {
		return
	}
	for _, other := range d.controlPlanes() {
		if why := d.lastSeen(other); why != "" && other != name {
			d.warn("when the agent last looked %s was not Ready (%s); the operation pauses if a member of etcd is missing when its turn comes", other, why)
		}
	}
}

// lastSeen is why a machine was not Ready by the state; empty where it was, and where that isn't known.
func (d *description) lastSeen(name string) string {
	if d.state == nil || d.state.Machines[name] == nil || d.state.Machines[name].Ready.Status {
		return ""
	}
	return d.state.Machines[name].Ready.Reason
}

func (d *description) reboot(name string, controlPlane bool) {
	if controlPlane {
		d.away(name, "away", "until it is back")
		d.step("it starts when %s is Ready and etcd is healthy: all of its members joined", name)
	} else {
		d.step("it starts when %s is Ready and another node can take its pods", name)
	}
	d.drains(name)
	d.step("%s is rebooted, once", name)
	back := "be Ready"
	if controlPlane {
		back = "be Ready, and rejoin etcd"
	}
	d.step("it has 20 minutes to show another boot ID and to %s; then what Ichor cordoned takes pods again", back)
}

func (d *description) shutdown(name string, controlPlane bool) {
	switch only := controlPlane && len(d.controlPlanes()) == 1; {
	case only:
		d.step("%s is shut down at once: it is the only control plane, so no drain could end", name)
	case controlPlane:
		d.step("it starts when etcd is healthy and keeps its quorum without %s; that %s is well otherwise is not asked for", name, name)
		d.step("Talos drains %s, and shuts it down", name)
		d.evictsAgent(name)
	default:
		d.step("it starts when another node can take the pods of %s; that %s is well is not asked for", name, name)
		d.step("Talos drains %s, and shuts it down", name)
		d.evictsAgent(name)
	}
	d.step("once it stops answering the operation rests as ShutDown and holds nothing up; it completes when somebody switched %s on again", name)
	if controlPlane {
		d.away(name, "off", "until somebody switches it on again")
		if len(d.controlPlanes()) > 2 {
			d.warn("while %s is off it counts as missing: nothing that takes away another control plane starts", name)
		}
	}
}

func (d *description) restart(name, service string) {
	if service == "kubelet" {
		service = "the kubelet"
	}
	d.step("Talos restarts %s on %s", service, name)
	d.step("it is done when Talos reports %s running and healthy, and the Node is Ready again (not before 15 s)", service)
	if service != "the kubelet" {
		d.warn("Talos 1.13 accepts only the kubelet: for %s the operation pauses with Talos's own sentence", service)
	}
}

func (d *description) defragment(name string, allowLeader bool) {
	only := len(d.controlPlanes()) == 1
	d.step("it starts when all etcd members are there and healthy")
	d.step("the database of %s is defragmented, which may take 10 minutes; the member answers nothing meanwhile", name)
	d.step("afterwards etcd must have no alarms; Ichor doesn't disarm any")
	switch {
	case only:
		d.warn("%s is the only etcd member: the Kubernetes API of %s answers nothing until it is done", name, d.cluster.Name())
	case allowLeader:
		d.warn("if %s leads etcd, writes pause while it is defragmented", name)
	default:
		d.warn("if %s leads etcd the operation pauses, and nothing is defragmented; give --allow-leader, or have it forfeit its leadership first", name)
	}
}

func (d *description) forfeit(name string) {
	d.step("it starts when %s leads etcd and all members are there and healthy", name)
	d.step("%s hands its leadership over; it is done when it reports another leader", name)
	d.warn("writes pause for the moment of the election")
	if members := d.controlPlanes(); len(members) == 1 {
		d.block("%s is the only control plane, so no other member can lead", members[0])
	}
}

// remove describes a removal. m is nil where Git doesn't have the machine any more.
func (d *description) remove(m *schema.TalosMachine, node schema.NodeOperation) {
	name := node.MachineRef.Name
	controlPlane := m != nil && isControlPlane(m) || d.state != nil && d.state.Machines[name] != nil && d.state.Machines[name].Role == string(schema.RoleControlPlane)
	if node.Gone {
		d.step("it starts only while %s gives no answer", name)
	} else {
		d.step("it starts when %s answers, since it is to be wiped; one that is off for good is removed with --gone", name)
	}
	if controlPlane {
		d.removalQuorum(name, node.Gone)
	}
	if !node.Gone {
		d.warn("everything on the system disk of %s is lost: its config, pods, images, local and hostPath volumes", name)
		d.drains(name)
	}
	if controlPlane {
		d.step("its etcd member is removed through another control plane, by an ID that was compared with the machine")
	}
	switch {
	case node.Gone:
		d.step("%s itself is not touched, because it is off for good", name)
		d.warn("%s must never be switched on again as it is: it holds this cluster's secrets and data; wipe it before it serves for anything else", name)
	case node.Then == "reboot":
		d.step("Talos wipes STATE and EPHEMERAL of %s and reboots it; it is done when %s is seen in maintenance mode", name, name)
	default:
		d.step("Talos wipes STATE and EPHEMERAL of %s and powers it off; 15 minutes without an answer count as off", name)
		d.warn("a machine that is off can't say whether its wipe succeeded; --then reboot lets it be seen")
	}
	d.step("the Kubernetes Node of %s is deleted", name)
	if controlPlane && !node.Gone {
		d.warn("a replacement comes first: it is approved and joins etcd, then %s is removed; count + 1 control planes may be approved for that", name)
	}
	if controlPlane && node.Gone {
		d.warn("a replacement comes afterwards: it can't join while a dead member is listed")
	}
	if m != nil {
		d.warn("%s stays Removed, and gets no config again, until a revision without its YAML (%s) was seen; take the file out of Git", name, m.Source.File)
	} else {
		d.warn("%s is no longer in Git; what the state remembers of it is removed", name)
	}
	if d.state != nil && d.state.Machines[name] == nil && m == nil {
		d.block("neither Git nor the state knows a machine %s; look at ichor status", name)
	}
}

// removalQuorum says what etcd is without a member.
func (d *description) removalQuorum(name string, gone bool) {
	members := d.controlPlanes()
	if !slices.Contains(members, name) {
		return
	}
	left := len(members) - 1
	switch {
	case left == 0:
		d.block("%s is the last control plane: nothing would be left; add another one first, or restore the cluster elsewhere", name)
	case gone:
		d.step("the other %s must be healthy and a quorum of %d; this is the one action that starts with a member missing",
			numbered(left, "member"), len(members)/2+1)
	default:
		d.step("all members of etcd must be healthy; afterwards it has %s, and quorum is %d", numbered(left, "member"), left/2+1)
	}
}

func numbered(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func (d *description) backup(name string) {
	where := ""
	for _, b := range d.cluster.Backups {
		if b.Metadata.Name != name {
			continue
		}
		if s3 := b.Spec.Destination.S3; s3 != nil {
			where = fmt.Sprintf(" to s3://%s/%s", s3.Bucket, s3.Prefix)
		}
		if b.Spec.Suspend {
			d.block("the backup %s is suspended and takes no snapshots; set spec.suspend: false in %s", name, b.Source.File)
		}
	}
	d.step("a snapshot is taken from a healthy control plane, a follower before the leader, and its digest is checked")
	d.step("it is sealed and uploaded%s, and then the retention of %s is applied", where, name)
	d.warn("it is asked for once, whether it succeeds or not; the schedule counts from it")
}

func (d *description) adopt(ref schema.MachineRef) {
	name := ref.Name
	d.target(ref)
	d.step("from then on Ichor changes %s: its config becomes what Git says, live where Talos can, staged for a reboot where it can't", name)
	d.warn("'ichor plan --live' shows the changes; what stands in the machine's config and not in Git goes")
	d.warn("if %s is managed by another Ichor, this one takes it over; stop the other one first", name)
	if d.state != nil && d.state.Machines[name] != nil && d.state.Machines[name].Managed && d.lastSeen(name) != "ManagedElsewhere" {
		d.block("%s is managed by this Ichor already, so nothing would change", name)
	}
}

func (d *description) bootstrap(ref schema.MachineRef) {
	name := ref.Name
	d.target(ref)
	d.step("it starts when every wanted control plane is configured, booted, and holds no etcd data")
	d.step("etcd begins anew on %s, empty, although there may have been one: that is asked for once in a cluster's life", name)
	d.step("the other control planes join it")
	d.warn("what an etcd of %s held before is not in it; to keep that, restore a snapshot ('ichor restore --recover-cluster') instead", d.cluster.Name())
	d.warn("if another etcd of %s is alive somewhere, there are two clusters afterwards", d.cluster.Name())
	if d.state != nil && d.state.Bootstrap != nil {
		record := d.state.Bootstrap
		when := "was begun"
		if !record.Done.IsZero() {
			when = "was done"
		}
		d.block("the bootstrap of %s %s on %s at %s, and a second one would make a second cluster", d.cluster.Name(), when, record.Machine,
			record.At.UTC().Format(time.RFC3339))
	}
}

// operationNamed is what the state has of the operation that a resume or cancel names.
func (d *description) operationNamed() *statefile.OperationState {
	digest := ""
	switch {
	case d.spec.Resume != nil:
		digest = d.spec.Resume.Digest
	case d.spec.Cancel != nil:
		digest = d.spec.Cancel.Digest
	}
	if d.state == nil || digest == "" {
		return nil
	}
	return accepted(d.state, digest)
}

func (d *description) resume(resume schema.ResumeOperation) {
	op := d.named
	switch {
	case d.state == nil:
		d.step("%s goes on from where it paused", resume.Operation)
	case op == nil || op.Name != resume.Operation:
		d.block("the state has no accepted operation %s with that digest; look at ichor op list", resume.Operation)
	case op.Phase != statefile.OperationPaused:
		d.block("%s is %s and not Paused; a resume is signed for the pause that it ends, and never in advance", op.Name, op.Phase)
	case op.Pause != resume.Pause:
		d.block("%s is at its pause number %d, and this resume is for number %d; look at why it paused, and write a new one", op.Name, op.Pause, resume.Pause)
	default:
		d.step("%s (%s) goes on from %s, after its pause number %d", op.Name, about(op), stepOf(op), op.Pause)
		d.warn("it paused because: %s", nameOr(op.FailureReason, "no reason given"))
	}
}

func (d *description) cancel(cancel schema.CancelOperation) {
	op := d.named
	switch {
	case d.state == nil:
		d.step("%s ends", cancel.Operation)
		return
	case op == nil || op.Name != cancel.Operation:
		d.block("the state has no accepted operation %s with that digest; look at ichor op list", cancel.Operation)
		return
	case op.Phase.Over():
		d.block("%s is %s already", op.Name, op.Phase)
	case op.Marked:
		d.turn(op)
	case op.Phase == statefile.OperationShutDown:
		d.block("%s rests while %s is off, and completes by itself when that is back; there is nothing left to cancel", op.Name, op.Target)
	case op.Phase == statefile.OperationRunning:
		d.block("%s is running (%s), and only what is pending or paused can be cancelled", op.Name, nameOr(op.Step, "it starts"))
	case op.Phase == statefile.OperationPending:
		d.step("%s (%s) ends without having begun", op.Name, about(op))
	default:
		d.step("%s (%s) ends where it paused, at %s; what was done stays done", op.Name, about(op), stepOf(op))
	}
}

// turn says what the cancel of a restore does that is past its marker.
func (d *description) turn(op *statefile.OperationState) {
	why := mayNotTurn(op)
	switch {
	case why != "":
		d.block("%s", why)
	case op.Undo == string(recovery.UndoRejoin):
		d.step("%s (%s) is turned round: the control planes that left etcd join it again, one at a time; nothing was lost", op.Name, about(op))
	default:
		d.step("%s (%s) ends: the etcd that is there stays, and what has not joined it yet is left to the agent's ordinary work", op.Name, about(op))
	}
}

// about says in short what an operation is: "node reboot w-1".
func about(op *statefile.OperationState) string {
	return strings.Join(strings.Fields(op.Kind+" "+op.Action+" "+op.Target), " ")
}

// stepOf names the step at which an operation is.
func stepOf(op *statefile.OperationState) string {
	if op.Step == "" {
		return "its start"
	}
	return "its step " + op.Step
}
