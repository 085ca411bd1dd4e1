package soak

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"ichor.maesh.dev/kube"
	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/statefile"
)

// patience is how long everything may take to converge once the faults have stopped: the longest that anything waits for is twenty minutes, and
// several such things may stand in one queue.
const patience = 4 * time.Hour

// standstill is for how long nobody may have written anything, and nothing have come nearer, until nothing more is waited for.
const standstill = 90 * time.Minute

// converge stops the faults, does what the status asks a person to do, and says what has not converged in the end.
func (r *run) converge(patience time.Duration) []string {
	r.healAll()
	r.push("what was broken is put right")
	var left []string
	quiet, moved := 0, time.Now()
	for ends := time.Now().Add(patience); time.Now().Before(ends) && time.Since(moved) < standstill; {
		time.Sleep(20*time.Second + 11*time.Microsecond)
		before := left
		left = r.unsettled()
		if written := r.w.monitor.lastWrite(); written.After(moved) {
			moved = written
		}
		if !slices.Equal(before, left) {
			moved = time.Now()
		}
		if len(left) == 0 {
			// It must stay so: a rollout may be between two machines.
			if quiet++; quiet >= 4 {
				return nil
			}
			continue
		}
		quiet = 0
		r.person()
	}
	return left
}

// person does what the status asks a person to do.
func (r *run) person() {
	for _, c := range r.fleet.clusters {
		state := r.stateOf(c.c)
		if state == nil {
			continue
		}
		r.seeToPower(c)
		r.seeToConsoles(c)
		r.seeToRefused(c, state)
		r.seeToOperations(c, state)
		r.seeToLostEtcd(c, state)
		r.seeToScrapped(c, state)
		r.seeToLowering(c, state)
		r.seeToCount(c, state)
		r.seeToRollout(c, state)
		r.seeToMachines(c, state)
	}
}

// seeToPower switches machines on that were shut down. What a removal wiped stays off.
func (r *run) seeToPower(c *wantedCluster) {
	for _, name := range c.names() {
		m := c.machines[name].m
		if on := !m.power && m.wiped == 0; on {
			r.w.say("%s/%s is switched on", c.c.name, name)
			r.locked(func() { m.on(time.Now()) })
		}
	}
}

// seeToConsoles looks at the console of a machine that has given no answer for long, because of a stored change with which it booted.
func (r *run) seeToConsoles(c *wantedCluster) {
	for _, name := range c.names() {
		m, right := c.machines[name].m, false
		r.locked(func() {
			if now := time.Now(); now.Sub(m.since) > 30*time.Minute {
				right = m.putRight(now)
			}
		})
		if right {
			r.w.say("the config of %s/%s is put right at its console", c.c.name, name)
		}
	}
}

// seeToRefused approves a control plane again that can't stop being one, as the finding says: it was approved beside one that was removed since.
func (r *run) seeToRefused(c *wantedCluster, state *statefile.State) {
	if state.Revision.Refused == nil {
		return
	}
	for _, name := range c.names() {
		m, said := c.machines[name], state.Machines[name]
		if m.approved || said == nil || said.Removed || !slices.ContainsFunc(state.Revision.Refused.Findings, func(finding string) bool {
			return strings.Contains(finding, name+" can't stop being an approved control plane")
		}) {
			continue
		}
		m.approved = true
		r.push(name + " of " + c.c.name + " can't stop being a control plane, and is approved again")
		return
	}
}

func (r *run) seeToOperations(c *wantedCluster, state *statefile.State) {
	for _, op := range state.Operations {
		key := fmt.Sprint(op.Digest, op.Pause)
		if op.Phase != statefile.OperationPaused || r.resumed[key] {
			continue
		}
		r.resumed[key] = true
		resume := op.Pause <= 1 && r.lot.IntN(2) == 0
		if op.Kind == kindRestore {
			resume = op.Pause <= 3 && (op.Marked || r.takeIn(c, op))
		}
		r.control(c, op, resume, ": "+op.FailureReason)
	}
}

// takeIn raises the count, or approves a machine, where a restore would leave a control plane behind that is held or not approved and has the old etcd's data, as the restore says; true
// where it did, and the restore may go on.
func (r *run) takeIn(c *wantedCluster, op *statefile.OperationState) bool {
	for _, name := range c.names() {
		if m := c.machines[name]; !m.approved && strings.Contains(op.FailureReason, name+" holds etcd data") && strings.Contains(op.FailureReason, "approve it until etcd is restored") {
			m.approved, m.at = true, time.Now()
			r.push(name + " of " + c.c.name + " is approved until its etcd is restored")
			return true
		}
	}
	for _, most := range []int{3, 5} {
		if c.count < most && strings.Contains(op.FailureReason, fmt.Sprintf("/cluster.yaml to %d until etcd is restored", most)) {
			c.lower, c.count = c.count, most
			r.push(fmt.Sprintf("the count of %s is %d until its etcd is restored", c.c.name, most))
			return true
		}
	}
	return false
}

// seeToLowering lowers a count again that was raised for a restore.
func (r *run) seeToLowering(c *wantedCluster, state *statefile.State) {
	if c.lower == 0 || restoreOf(state) != nil {
		return
	}
	whole := false
	r.locked(func() { whole = len(c.unsettledEtcd()) == 0 })
	if !whole {
		return
	}
	c.count, c.lower = c.lower, 0
	r.push(fmt.Sprintf("the etcd of %s is restored, and its count is %d again", c.c.name, c.count))
}

// seeToScrapped says of a machine that a removal wiped and switched off, and that was cancelled before it was over, that it is gone for good.
func (r *run) seeToScrapped(c *wantedCluster, state *statefile.State) {
	for _, name := range c.names() {
		m, said := c.machines[name], state.Machines[name]
		open := func(op *statefile.OperationState) bool { return op.Target == name && !op.Phase.Over() }
		if said == nil || said.Removed || !m.m.scrapped() || slices.ContainsFunc(state.Operations, open) || time.Since(r.lastRemoval) < 3*time.Minute {
			continue
		}
		r.lastRemoval = time.Now()
		r.remove(c, m.m)
		r.push(name + " of " + c.c.name + " is off and wiped, and gone for good")
		return
	}
}

// seeToCount takes a control plane out that is one too many, where no removal does it: its removal was cancelled or refused, or its approval
// was taken back when it was a member already.
func (r *run) seeToCount(c *wantedCluster, state *statefile.State) {
	names := c.approved(schema.RoleControlPlane)
	removed := func(name string) bool { return state.Machines[name] != nil && state.Machines[name].Removed }
	names = slices.DeleteFunc(names, removed)
	most := c.count
	r.locked(func() {
		for _, name := range c.names() {
			if m := c.machines[name]; !m.approved && !removed(name) && m.m.etcd != nil && m.m.etcd.has(m.m.member) {
				names, most = []string{name}, 0
			}
		}
	})
	open := func(op *statefile.OperationState) bool { return op.Action == schema.ActionRemove && !op.Phase.Over() }
	if len(names) <= most || slices.ContainsFunc(state.Operations, open) || time.Since(r.lastRemoval) < 3*time.Minute {
		return
	}
	// One that is held first, else the last by name.
	slices.SortStableFunc(names, func(a, b string) int {
		held := func(name string) bool {
			return state.Machines[name] != nil && state.Machines[name].Ready.Reason == "ControlPlaneOverCap"
		}
		switch {
		case held(a) == held(b):
			return strings.Compare(b, a)
		case held(a):
			return -1
		}
		return 1
	})
	r.lastRemoval = time.Now()
	r.remove(c, c.machines[names[0]].m)
	r.push("one control plane of " + c.c.name + " too many goes")
}

// seeToRollout does what a rollout that stopped asks for: it boots the machine by a signed reboot and, where that doesn't help, changes Git.
func (r *run) seeToRollout(c *wantedCluster, state *statefile.State) {
	stopped := state.Rollout
	if stopped == nil || stopped.Stopped == "" {
		return
	}
	want := c.machines[stopped.Machine]
	key := fmt.Sprint("rollout ", stopped.Machine, stopped.Since)
	switch {
	case want != nil && !r.resumed[key]:
		name := r.sign(c.c, nodeBody(want.m, schema.ActionReboot, ""), false, 2*time.Hour)
		r.push(fmt.Sprintf("%s: reboot %s of %s: %s", name, stopped.Machine, c.c.name, stopped.Stopped))
	case time.Since(r.lastChange) > 30*time.Minute && r.resumed[key]:
		c.live++
		r.push("another setting for " + c.c.name + ": " + stopped.Stopped)
	default:
		return
	}
	r.resumed[key], r.lastChange = true, time.Now()
}

func (r *run) seeToMachines(c *wantedCluster, state *statefile.State) {
	for _, name := range c.names() {
		want, said := c.machines[name], state.Machines[name]
		if said == nil {
			continue
		}
		switch {
		case said.Removed:
			r.w.say("%s of %s is removed: its file goes", name, c.c.name)
			delete(c.machines, name)
			r.push("took " + name + " of " + c.c.name + " out")
		case said.Ready.Reason == "NeedsApproval" && time.Since(want.at) > 2*time.Minute:
			want.at = time.Now()
			r.push("renewed the approval of " + name + ": " + said.Ready.Message)
		}
	}
}

// unsettled says what has not converged yet.
func (r *run) unsettled() (left []string) {
	r.w.mu.Lock()
	defer r.w.mu.Unlock()
	for _, c := range r.fleet.clusters {
		for _, why := range r.unsettledCluster(c) {
			left = append(left, c.c.name+": "+why)
		}
	}
	return left
}

func (r *run) unsettledCluster(c *wantedCluster) (left []string) {
	s := r.w.stateOf(c.c.name)
	if s == nil {
		return []string{"there is no state"}
	}
	if !s.Ready.Status {
		left = append(left, fmt.Sprintf("it is not Ready: %s: %s", s.Ready.Reason, s.Ready.Message))
	}
	if s.Revision.Applied != r.w.git.tip {
		left = append(left, fmt.Sprintf("it is on %.16s and not on %.16s (%+v)", s.Revision.Applied, r.w.git.tip, s.Revision.Refused))
	}
	if s.Intent != nil {
		left = append(left, fmt.Sprintf("what became of %s on %s is not known", s.Intent.Action, s.Intent.Machine))
	}
	if s.Lock != nil {
		left = append(left, fmt.Sprintf("the lock is held by %s: %s", s.Lock.Holder, s.Lock.Reason))
	}
	if s.Rollout != nil {
		left = append(left, fmt.Sprintf("a rollout is at %s (%s): %s", s.Rollout.Machine, s.Rollout.Phase, s.Rollout.Stopped))
	}
	for _, op := range s.Operations {
		if !op.Phase.Over() {
			left = append(left, fmt.Sprintf("%s %s is %s (%s): %s %s", op.Name, op.Action, op.Phase, op.Step, op.Message, op.FailureReason))
		}
	}
	if c.lower != 0 {
		left = append(left, fmt.Sprintf("its count is to be %d again", c.lower))
	}
	left = append(left, r.unsettledMachines(c, s)...)
	return append(left, c.unsettledEtcd()...)
}

func (r *run) unsettledMachines(c *wantedCluster, s *statefile.State) (left []string) {
	for _, m := range c.c.machines {
		if m.node != nil && m.node.CordonedBy != "" {
			left = append(left, fmt.Sprintf("%s is cordoned by %s", m.name, m.node.CordonedBy))
		}
	}
	for _, name := range c.names() {
		want := c.machines[name]
		m := want.m
		if !want.approved {
			continue
		}
		if said := s.Machines[name]; said == nil || !said.Ready.Status {
			left = append(left, fmt.Sprintf("%s is not Ready: %+v", name, said))
			continue
		}
		if m.stage != stageRunning || m.node == nil || m.node.Ready != kube.Yes {
			left = append(left, fmt.Sprintf("%s is %q", name, m.stage))
			continue
		}
		for _, key := range slices.Sorted(maps.Keys(c.settings())) {
			line := fmt.Sprintf("%s: %q", key, c.settings()[key])
			if !strings.Contains(string(m.active.bytes), line) || !strings.Contains(string(m.persistent.bytes), line) {
				left = append(left, fmt.Sprintf("%s does not run with %s", name, line))
			}
		}
		if file := fmt.Sprintf("content: \"%d\"", c.reboot); c.reboot > 0 && !strings.Contains(string(m.active.bytes), file) {
			left = append(left, fmt.Sprintf("%s does not run with the file %s", name, file))
		}
		if !strings.Contains(string(m.active.bytes), "kernel.panic: \"10\"") {
			left = append(left, name+" still runs what was changed by hand")
		}
	}
	return left
}

func (c *wantedCluster) unsettledEtcd() (left []string) {
	wanted := c.approved(schema.RoleControlPlane)
	living := c.c.living()
	if len(living) != 1 {
		return []string{fmt.Sprintf("there are %d etcds", len(living))}
	}
	e := living[0]
	for _, name := range wanted {
		m := c.machines[name].m
		if m.etcd != e || !e.has(m.member) || m.learner {
			left = append(left, name+" is no voter of etcd")
		}
	}
	if len(e.members) != len(wanted) {
		left = append(left, fmt.Sprintf("etcd has %d members and %d are wanted", len(e.members), len(wanted)))
	}
	return left
}
