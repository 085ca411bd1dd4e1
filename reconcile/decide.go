package reconcile

import (
	"fmt"
	"slices"
	"sort"
	"strings"

	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/talos"
)

// Decide says what comes next for one cluster. It is a pure function: equal inputs give equal plans. The input's state is
// not changed; Plan.Next is what it becomes, and is stored before any action of the plan is begun.
func Decide(in Input) Plan {
	d := newDecision(&in)
	d.decide()
	d.plan.NeedKubernetes = d.plan.NeedKubernetes || d.in.wantKubernetes && d.in.Kubernetes == nil
	d.conclude()
	return d.plan
}

// newDecision puts together what every decision rests on.
func newDecision(in *Input) *decision {
	d := &decision{in: in, next: cloneState(in.State), says: map[string]verdict{}}
	d.prepare()
	d.etcd = viewEtcd(d.in)
	d.held = hold(d.in, d.etcd)
	d.wanted = wantedControlPlanes(d.in, d.held)
	d.strangers = strangers(d.in, d.etcd)
	return d
}

// decision is the work in progress of one Decide.
type decision struct {
	in        *Input
	next      *statefile.State
	etcd      etcdView
	held      map[string]string
	wanted    []string
	strangers []string
	says      map[string]verdict
	cluster   verdict
	plan      Plan
	// operationAct is the call that an operation needs next, judgements how many operation files were judged.
	operationAct *Action
	judgements   int
}

// prepare makes room for the machines in Git and forgets what is over.
func (d *decision) prepare() {
	if d.next.Machines == nil {
		d.next.Machines = map[string]*statefile.MachineState{}
	}
	d.nameMachines()
	for _, m := range d.in.Cluster.Machines {
		if d.next.Machines[m.Metadata.Name] == nil {
			d.next.Machines[m.Metadata.Name] = &statefile.MachineState{}
		}
		memory := d.next.Machines[m.Metadata.Name]
		memory.UUID, memory.Role, memory.Address = m.Spec.UUID, string(m.Spec.Role), m.Spec.Endpoint
		if m.Spec.ApprovalDecision != nil && !m.Spec.ApprovalDecision.At.IsZero() && memory.FirstApproved.IsZero() && m.Spec.Approved {
			memory.FirstApproved = stamp(m.Spec.ApprovalDecision.At)
		}
	}
	for name, memory := range d.next.Machines {
		if d.in.Cluster.Machine(name) != nil || operatedOn(d.next, name) {
			continue
		}
		if forgettable(memory) {
			delete(d.next.Machines, name)
		}
	}
	d.next.Revision.Applied = d.in.Cluster.Commit
}

// operatedOn says whether an operation on a machine was begun and isn't over: what is remembered of the machine is needed to its end.
func operatedOn(s *statefile.State, name string) bool {
	return slices.ContainsFunc(s.Operations, func(op *statefile.OperationState) bool {
		return op.Target == name && (op.Phase == statefile.OperationRunning || op.Phase == statefile.OperationPaused)
	})
}

// decide fills the plan. Each step that stops says so and returns; what comes after it in the order is not looked at.
func (d *decision) decide() {
	d.remember()
	adoptEtcd(d.in, d.next, d.etcd)
	d.admit()
	if reason, is := paused(d.in.Cluster.Object.Metadata); is {
		d.cluster = verdict{"Paused", "the cluster is paused: " + nameOr(reason, "no reason given") + "; nothing is done to it"}
		if d.next.Rollout != nil {
			d.next.Rollout.Epoch = 0 // what is tried now is taken back because nobody confirms it, and says nothing of the change
		}
		return
	}
	if d.foreignLock() {
		return
	}
	if d.next.Intent != nil && !d.settle() {
		return
	}
	if !d.origin() {
		return
	}
	if op := restoring(d.next); op != nil {
		d.restoreOnly(op)
		return
	}
	first := d.machines()
	if r := d.next.Rollout; r != nil && r.Stopped == "" && (r.Phase == phaseTry || r.Phase == phaseTried) {
		first = nil // a machine takes back what it tries unless it is confirmed soon
	}
	act := d.operate()
	switch {
	case len(first) > 0:
		d.plan.Actions = first
		d.plan.Busy = true
		return
	case act != nil:
		d.plan.Actions = []Action{*act}
		d.plan.Busy = true
	}
	d.etcdActs()
	if len(d.plan.Actions) == 0 {
		d.leftovers()
	}
}

// foreignLock stops all acting while somebody else holds the cluster lock: a restore by hand, or a later version's operation.
func (d *decision) foreignLock() bool {
	l := d.next.Lock
	if l == nil || ownLock(l) && (!isOperationLock(l) || d.holding(l) != nil) {
		return false
	}
	d.cluster = verdict{"Locked", fmt.Sprintf("the cluster lock is held by %s since %s (%s): machines are only looked at", l.Holder,
		l.Since.Format("2006-01-02T15:04:05Z"), l.Reason)}
	d.plan.Busy = true
	return true
}

// ownLock says whether the lock is one of those that the agent's own acts take.
func ownLock(l *statefile.Lock) bool {
	return slices.Contains([]string{lockRollout, lockJoins, lockBootstrap}, l.Holder) || isOperationLock(l)
}

// settle resolves the standing intent; false means that it stands on and nothing else is done.
func (d *decision) settle() bool {
	intent := *d.next.Intent
	result, say := resolve(d.in, d.next, d.etcd)
	if result == resolveWait {
		d.cluster = verdict{"InProgress", say}
		d.plan.Busy = true
		if op := operationOf(d.next, intent.Operation); op != nil {
			d.says[intent.Machine] = verdict{"Operating", fmt.Sprintf("%s is being worked on, as %s asks: %s", intent.Machine, op.Name, op.Message)}
		}
		return false
	}
	d.plan.Resolved = &ResolvedIntent{Intent: intent, Outcome: say}
	d.plan.Busy = true
	return true
}

// origin settles whether the cluster is new or lost; false means that it isn't known and nothing is done.
func (d *decision) origin() bool {
	if d.next.Origin != "" {
		return true
	}
	v := decideOrigin(d.in, d.wanted)
	d.plan.NeedBackups = v.needBackups
	if v.origin == "" {
		d.cluster = verdict{"OriginUnknown", v.why}
		d.plan.Busy = true
		return false
	}
	d.next.Origin = v.origin
	if v.origin == statefile.OriginLost {
		spendApprovals(d.in, d.next)
	}
	return true
}

// spendApprovals treats every approval that stands now as used: in a lost state nobody knows whether its config was sent.
func spendApprovals(in *Input, next *statefile.State) {
	for _, m := range in.Cluster.Machines {
		memory := next.Machines[m.Metadata.Name]
		if m.Spec.Approved && memory.ConfigSentFor == "" {
			memory.ConfigSentFor = approvalKey(in, m)
		}
	}
}

// machines decides for each machine by itself: adoption and first configs. It returns the first configs that are due.
func (d *decision) machines() []Action {
	var first []Action
	for _, m := range d.inOrder() {
		name := m.Metadata.Name
		if v := d.standing(m); !v.none() {
			d.says[name] = v
			continue
		}
		seen, ok := d.in.see(name)
		if !ok {
			d.says[name] = d.unseen(m)
			continue
		}
		if memory := d.next.Machines[name]; seen.Mode == talos.ModeConfigured && memory.ConfigSentFor == "" {
			// Whoever turns up in its place in maintenance mode needs an approval of its own.
			memory.ConfigSentFor = approvalKey(d.in, m)
		}
		if why := d.in.Deferred[name]; seen.Mode == talos.ModeMaintenance && why != "" {
			d.says[name] = verdict{"NotConfigured", fmt.Sprintf("%s could not be given its config and is asked again soon: %s", name, why)}
			continue
		}
		if seen.Mode == talos.ModeMaintenance {
			action, v := firstConfig(d.in, d.next, m, seen)
			d.says[name] = v
			if action != nil {
				first = append(first, *action)
			}
			continue
		}
		if v := adopt(d.in, d.next, m, seen); !v.none() {
			d.says[name] = v
		}
	}
	return first
}

// inOrder gives control planes before workers, each the oldest approved first.
func (d *decision) inOrder() []*schema.TalosMachine {
	list := slices.Clone(d.in.Cluster.Machines)
	sort.SliceStable(list, func(i, j int) bool {
		a, b := list[i], list[j]
		if isControlPlane(a) != isControlPlane(b) {
			return isControlPlane(a)
		}
		if c := approvedAt(d.in, a).Compare(approvedAt(d.in, b)); c != 0 {
			return c < 0
		}
		return a.Metadata.Name < b.Metadata.Name
	})
	return list
}

// standing is what keeps a machine from being touched whatever it shows.
func (d *decision) standing(m *schema.TalosMachine) verdict {
	name := m.Metadata.Name
	if d.next.Machines[name].Removed {
		if seen, ok := d.in.see(name); ok && seen.Mode == talos.ModeConfigured {
			return verdict{"RemovedAndBack", fmt.Sprintf("%s was removed, and runs again with the config and the keys that it had: it is kept out of etcd, and its kubelet "+
				"makes its Node anew; nothing is done to it: wipe it (talosctl reset -n %s --graceful=false) or switch it off, and then delete its YAML from Git", name, m.Spec.Endpoint)}
		}
		return verdict{"Removed", fmt.Sprintf("%s was removed; delete its YAML from Git", name)}
	}
	if op := removing(d.next, name); op != nil {
		return verdict{"Removing", fmt.Sprintf("%s is being removed (%s): %s", name, op.Name, op.Message)}
	}
	if !m.Spec.Approved {
		return verdict{"NotApproved", fmt.Sprintf("%s is not approved: it is looked at and never touched; set spec.approved: true", name)}
	}
	if reason, is := paused(m.Metadata); is {
		return verdict{"Paused", fmt.Sprintf("%s is paused: %s; nothing is done to it", name, nameOr(reason, "no reason given"))}
	}
	if why, is := d.held[name]; is {
		return verdict{"ControlPlaneOverCap", why}
	}
	return verdict{}
}

// unseen is the verdict on a machine that doesn't answer, or where another one answers.
func (d *decision) unseen(m *schema.TalosMachine) verdict {
	name := m.Metadata.Name
	seen, looked := d.in.Seen[name]
	switch {
	case !looked:
		return verdict{"NotLookedAt", fmt.Sprintf("%s was not looked at in this pass", name)}
	case seen.Mode == talos.ModeUnknown:
		if strings.HasPrefix(seen.Problem, name+" ") { // a sentence of its own, with the address
			return verdict{"Unreachable", seen.Problem}
		}
		return verdict{"Unreachable", fmt.Sprintf("%s (%s) can't be reached: %s", name, m.Spec.Endpoint, nameOr(seen.Problem, "no answer"))}
	case seen.UUID == "":
		return verdict{"IdentityUnknown", fmt.Sprintf("the UUID of the machine at %s could not be read (%s), so it isn't known to be %s",
			m.Spec.Endpoint, nameOr(seen.Problem, "no reason given"), name)}
	}
	return verdict{"WrongMachine", fmt.Sprintf("the machine at %s has the UUID %s, and %s is %s: it is not touched; correct spec.endpoint or spec.uuid",
		m.Spec.Endpoint, seen.UUID, name, m.Spec.UUID)}
}

// eligible says whether a machine may be changed: approved, not held, not paused, and seen to be Ichor's own.
func (d *decision) eligible(name string) bool {
	m := d.in.Cluster.Machine(name)
	if m == nil || !d.standing(m).none() || !d.next.Machines[name].Managed {
		return false
	}
	seen, ok := d.in.see(name)
	return ok && seen.Mode == talos.ModeConfigured && seen.Config.Active != "" && marked(d.in, d.next.Machines[name], seen.Config.Owner)
}

// etcdActs decides on bootstrap, joins and the rollout: at most one of them acts, in that order, and only when no first
// config is due, and no call of an operation.
func (d *decision) etcdActs() {
	action, v, need := bootstrap(d.in, d.next, d.wanted, d.eligible, d.says)
	d.plan.NeedBackups = d.plan.NeedBackups || need
	d.cluster = v
	if action == nil {
		var says map[string]verdict
		action, says = joins(d.in, d.next, d.etcd, d.wanted, d.eligible)
		d.tell(says)
		lockedOut := action != nil && d.next.Lock != nil && d.next.Lock.Holder != action.Lock
		if lockedOut {
			action = nil
		}
	}
	if action == nil || d.next.Rollout != nil {
		roll, says := rollout(d.in, d.next, d.etcd, d.wanted, d.eligible, func(m *schema.TalosMachine) bool { return !d.standing(m).none() },
			roller{mayReboot: d.mayReboot, returned: func(name, left string) string { return returned(d, name, left) }})
		d.tell(says)
		if action == nil {
			action = roll
		}
	}
	if action != nil && (d.operationAct != nil || isOperationLock(d.next.Lock)) {
		action = nil
	}
	if action != nil {
		d.plan.Actions = []Action{*action}
	}
	if action != nil || d.next.Rollout != nil && d.next.Rollout.Stopped == "" || len(d.next.Joins) > 0 {
		d.plan.Busy = true
	}
}

func (d *decision) tell(says map[string]verdict) {
	for name, v := range says {
		if had, is := d.says[name]; !is || had.none() {
			d.says[name] = v
		}
	}
}

// remember keeps of each machine what a later pass rests on when the machine doesn't answer.
func (d *decision) remember() {
	d.next.AgentOn = d.agentOn()
	for name, memory := range d.next.Machines {
		seen, ok := d.in.see(name)
		if !ok || seen.Mode != talos.ModeConfigured {
			continue
		}
		keep(&memory.BootID, seen.BootID)
		keep(&memory.Hostname, seen.Hostname)
		keep(&memory.TalosVersion, seen.TalosVersion)
		if seen.Etcd.MemberID != 0 && (!d.etcd.known || d.etcd.has(seen.Etcd.MemberID)) {
			memory.MemberID = hexID(seen.Etcd.MemberID)
		}
	}
	if !d.etcd.known {
		return
	}
	for _, memory := range d.next.Machines {
		if id, ok := memberKey(memory.MemberID); ok && !d.etcd.has(id) {
			memory.MemberID = ""
		}
	}
}

func keep(to *string, value string) {
	if value != "" {
		*to = value
	}
}

// cloneState copies a state deeply enough for a decision to change it.
func cloneState(s *statefile.State) *statefile.State {
	c := *s
	c.Machines = make(map[string]*statefile.MachineState, len(s.Machines))
	for name, m := range s.Machines {
		copied := *m
		copied.Conditions = slices.Clone(m.Conditions)
		c.Machines[name] = &copied
	}
	if s.Joins != nil {
		c.Joins = make(map[string]*statefile.JoinState, len(s.Joins))
		for key, j := range s.Joins {
			copied := *j
			c.Joins[key] = &copied
		}
	}
	c.Bootstrap = clonePointer(s.Bootstrap)
	c.LastRestore = clonePointer(s.LastRestore)
	c.Intent = clonePointer(s.Intent)
	c.Lock = clonePointer(s.Lock)
	c.Rollout = clonePointer(s.Rollout)
	if c.Rollout != nil {
		c.Rollout.Evacuation = clonePointer(s.Rollout.Evacuation)
	}
	c.Cordons = slices.Clone(s.Cordons)
	c.Operations = cloneOperations(s.Operations)
	c.Revision.Refused = clonePointer(s.Revision.Refused)
	return &c
}

func clonePointer[T any](p *T) *T {
	if p == nil {
		return nil
	}
	copied := *p
	return &copied
}

func list(names []string) string { return strings.Join(names, ", ") }
