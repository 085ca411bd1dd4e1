package reconcile

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"ichor.maesh.dev/operation"
	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/statefile"
)

// OperationPlan says what an operation would do, in plain sentences.
type OperationPlan struct {
	// Steps are what is done, in that order. Warnings are what goes away meanwhile, or for good. Blockers are why it would not be
	// done; nothing is signed while there is one.
	Steps    []string `json:"steps"`
	Warnings []string `json:"warnings"`
	Blockers []string `json:"blockers"`
	// Confirm is the name that must be typed; empty where a yes is enough.
	Confirm string `json:"confirm,omitempty"`
	// Namespace is what the signature is made for.
	Namespace string `json:"namespace"`
	// Of a restore: what is restored, what is lost for good, and the command that ends it by hand.
	Restores []string `json:"restores,omitempty"`
	Lost     []string `json:"lost,omitempty"`
	WayOut   string   `json:"wayOut,omitempty"`
}

// DescribeOperation says what an operation on a cluster does step by step, as the procedures do it, and what can be known
// beforehand of what speaks against it. state is what is remembered of the cluster; nil where it wasn't read. objections are the
// findings of the repository's rules on the operation.
func DescribeOperation(cluster Cluster, state *statefile.State, op *schema.TalosOperation, objections ...string) OperationPlan {
	return describe(cluster, state, op, nil, objections...)
}

func describe(cluster Cluster, state *statefile.State, op *schema.TalosOperation, known *RestoreKnown, objections ...string) OperationPlan {
	d := &description{cluster: cluster, state: state, spec: op.Spec, known: known, plan: OperationPlan{Steps: []string{}, Warnings: []string{}, Blockers: []string{}}}
	d.named = d.operationNamed()
	d.plan.Confirm = confirmOf(op.Spec)
	d.plan.Namespace = operation.Namespaces(op.Spec, d.named != nil && d.named.Override)[0]
	d.plan.Blockers = append(d.plan.Blockers, objections...)
	d.confirmed()
	d.others()
	switch {
	case op.Spec.Node != nil:
		d.node(*op.Spec.Node)
	case op.Spec.EtcdBackup != nil:
		d.backup(op.Spec.EtcdBackup.BackupRef.Name)
	case op.Spec.EtcdRestore != nil:
		d.restore(*op.Spec.EtcdRestore)
	case op.Spec.Adopt != nil:
		d.adopt(op.Spec.Adopt.MachineRef)
	case op.Spec.Bootstrap != nil:
		d.bootstrap(op.Spec.Bootstrap.MachineRef)
	case op.Spec.Resume != nil:
		d.resume(*op.Spec.Resume)
	case op.Spec.Cancel != nil:
		d.cancel(*op.Spec.Cancel)
	}
	if d.state == nil {
		d.warn("the state was not read, so what runs or is paused at the moment isn't known")
	}
	return d.plan
}

// confirmOf is the name that an operation must bear as its confirmation.
func confirmOf(spec schema.OperationSpec) string {
	switch {
	case spec.Node != nil && spec.Node.Action == schema.ActionRemove:
		return spec.Node.MachineRef.Name
	case spec.EtcdRestore != nil, spec.Bootstrap != nil:
		return spec.ClusterRef.Name
	}
	return ""
}

// description is a plan in the making.
type description struct {
	cluster Cluster
	state   *statefile.State
	spec    schema.OperationSpec
	// named is what the state has of the operation that a resume or cancel names.
	named *statefile.OperationState
	// known is of a restore, and nil where nothing was found out.
	known *RestoreKnown
	plan  OperationPlan
}

func (d *description) step(format string, args ...any) {
	d.plan.Steps = append(d.plan.Steps, fmt.Sprintf(format, args...))
}

func (d *description) warn(format string, args ...any) {
	d.plan.Warnings = append(d.plan.Warnings, fmt.Sprintf(format, args...))
}

func (d *description) block(format string, args ...any) {
	d.plan.Blockers = append(d.plan.Blockers, fmt.Sprintf(format, args...))
}

// confirmed compares the confirmation in the file with what it must be.
func (d *description) confirmed() {
	given := ""
	switch {
	case d.spec.Node != nil:
		given = d.spec.Node.Confirm
	case d.spec.EtcdRestore != nil:
		given = d.spec.EtcdRestore.Confirm
	case d.spec.Bootstrap != nil:
		given = d.spec.Bootstrap.Confirm
	}
	if d.plan.Confirm != "" && given != d.plan.Confirm {
		d.block("the confirmation is %q and must be %s", given, d.plan.Confirm)
	}
}

// others says which other operation is in the way: one is Running or Paused. A machine that a shutdown left off is none. A snapshot
// disturbs nobody, and an adoption may be what a paused operation waits for.
func (d *description) others() {
	if d.state == nil {
		return
	}
	switch d.spec.Kind {
	case schema.OperationResume, schema.OperationCancel, schema.OperationEtcdBackup, schema.OperationAdopt:
		return
	}
	for _, other := range d.state.Operations {
		switch other.Phase {
		case statefile.OperationPaused:
			d.block("the operation %s is paused (%s); resume or cancel it first", other.Name, nameOr(other.FailureReason, "no reason given"))
		case statefile.OperationRunning:
			d.block("the operation %s is running (%s); wait for its end", other.Name, nameOr(other.Step, "it starts"))
		case statefile.OperationPending:
			d.warn("the operation %s waits for its turn, and comes first", other.Name)
		}
	}
	running := slices.ContainsFunc(d.state.Operations, func(o *statefile.OperationState) bool { return o.Phase == statefile.OperationRunning })
	if lock := d.state.Lock; lock != nil && !running {
		d.warn("it waits until the cluster lock is free, which is held by %s (%s)", lock.Holder, lock.Reason)
	}
}

// target says what speaks against acting on a machine, as far as the state knows; nil where Git doesn't have it.
func (d *description) target(ref schema.MachineRef) *schema.TalosMachine {
	if d.state != nil {
		memory := d.state.Machines[ref.Name]
		removing := slices.ContainsFunc(d.state.Operations, func(o *statefile.OperationState) bool {
			return o.Action == schema.ActionRemove && o.Target == ref.Name && !o.Phase.Over()
		})
		switch {
		case memory != nil && memory.Removed:
			d.block("%s was removed from the cluster; it counts again once a revision without its YAML was seen", ref.Name)
		case removing:
			d.block("%s is being removed", ref.Name)
		case d.spec.Node != nil && d.spec.Node.Action != schema.ActionRemove && (memory == nil || !memory.Managed):
			d.block("%s is not managed by this Ichor yet; adopt it first ('ichor run-op adopt %s')", ref.Name, ref.Name)
		}
	}
	return d.cluster.Machine(ref.Name)
}

// controlPlanes are those that count at the moment: etcd's members as the state remembers them, else those that Git wants.
func (d *description) controlPlanes() []string {
	var members []string
	if d.state != nil {
		for name, m := range d.state.Machines {
			if m.MemberID != "" && !m.Removed {
				members = append(members, name)
			}
		}
	}
	if len(members) > 0 {
		slices.Sort(members)
		return members
	}
	for _, m := range d.cluster.Machines {
		if isControlPlane(m) && m.Spec.Approved && !d.removed(m.Metadata.Name) {
			members = append(members, m.Metadata.Name)
		}
	}
	return members
}

func (d *description) removed(name string) bool {
	return d.state != nil && d.state.Machines[name] != nil && d.state.Machines[name].Removed
}

// drains says how a machine is emptied.
func (d *description) drains(name string) {
	d.step("%s is cordoned and drained: its pods are evicted, so that disruption budgets hold, for at most %s; then it waits until their volumes are detached", name,
		inWords(d.cluster.Object.Spec.Rollout.Drain.Limit()))
	if d.cluster.Object.Spec.Rollout.Drain.Force {
		d.warn("pods on %s that no controller would make again are gone for good (spec.rollout.drain.force)", name)
	} else {
		d.warn("a pod on %s that no controller would make again stops the drain, and the operation pauses (spec.rollout.drain.force is not set)", name)
	}
	d.warn("what evicted pods keep in emptyDir volumes on %s is lost; storage on its disks is not moved", name)
	d.evictsAgent(name)
}

// evictsAgent warns of a drain that takes the agent's own pod: which nodes would take that isn't known here.
func (d *description) evictsAgent(name string) {
	if d.state != nil && d.state.AgentOn == name {
		d.warn("the agent runs on %s: its own pod is evicted too, unless a DaemonSet made it; see that another node takes it (kubectl get pods -A -o wide), or nobody lifts the cordon "+
			"and nothing goes on before kubectl uncordon", name)
	}
}

// inWords is a duration for people: 10m instead of 10m0s.
func inWords(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// away says what the cluster is without a control plane; it blocks where etcd would have no quorum.
func (d *description) away(name, what, until string) {
	members := d.controlPlanes()
	if !slices.Contains(members, name) {
		return
	}
	quorum := len(members)/2 + 1
	switch {
	case len(members) == 1:
		d.warn("%s is the only control plane: the Kubernetes API of %s goes away %s; pods run on", name, d.cluster.Name(), until)
	case len(members)-1 < quorum:
		d.block("%s is one of %d control planes: without it etcd would have %d of %d members, and quorum is %d; add a third one first", name, len(members),
			len(members)-1, len(members), quorum)
	default:
		d.warn("while %s is %s etcd has %d of %d members, and quorum is %d", name, what, len(members)-1, len(members), quorum)
	}
	if count := d.cluster.Object.Spec.ControlPlane.Count; len(members) > count && len(members) > 1 {
		d.warn("it waits: etcd has %d members and count is %d, so control planes aren't disturbed before one was removed", len(members), count)
	}
}
