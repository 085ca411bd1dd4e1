package soak

import (
	"fmt"
	"time"

	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/statefile"
)

// event is something that may happen in a history; false: it could not, and another is drawn.
type event struct {
	weight int
	happen func(r *run) bool
}

// events are what histories are made of.
func events() []event {
	return []event{
		{6, (*run).pushLive}, {4, (*run).pushReboot}, {2, (*run).pushBad}, {2, (*run).pushOverCap}, {2, (*run).pushSpoiled}, {2, (*run).pushGrow}, {1, (*run).pushShrink},
		{2, (*run).pushWorker}, {2, (*run).renew},
		{7, (*run).signReboot}, {3, (*run).signShutdown}, {2, (*run).signRestart}, {2, (*run).signDefrag}, {2, (*run).signForfeit}, {3, (*run).signRemove},
		{3, (*run).signControl}, {3, (*run).signForged},
		{4, (*run).powerCycle}, {3, (*run).powerOff}, {4, (*run).powerOn}, {6, (*run).network}, {2, (*run).isolate}, {2, (*run).kubernetesAway}, {3, (*run).loseAnswers},
		{2, (*run).hold}, {2, (*run).drop}, {2, (*run).drift},
		{7, (*run).storeFault}, {3, (*run).gitAway}, {1, (*run).gitRewound}, {9, (*run).kill}, {7, (*run).freeze}, {2, (*run).jump}, {6, (*run).heal},
	}
}

// usual are the events of this history.
func (r *run) usual() []event {
	list := events()
	if r.w.spools != "" {
		list = append(list, ofBackups()...)
	}
	if r.frozen {
		list = append(list, event{30, (*run).freezeLong})
	}
	return list
}

// step lets one event happen.
func (r *run) step() {
	list, sum := r.events, 0
	if list == nil {
		list = r.usual()
	}
	for _, e := range list {
		sum += e.weight
	}
	for range 20 {
		n := r.lot.IntN(sum)
		for _, e := range list {
			if n -= e.weight; n < 0 {
				if e.happen(r) {
					r.steps++
					return
				}
				break
			}
		}
	}
}

// locked does something to the world.
func (r *run) locked(do func()) {
	r.w.mu.Lock()
	defer r.w.mu.Unlock()
	do()
}

func (r *run) aCluster() *wantedCluster { return r.fleet.clusters[r.lot.IntN(len(r.fleet.clusters))] }

func (r *run) aHost() *host { return r.hosts[r.lot.IntN(len(r.hosts))] }

// aMachine is one that Git wants.
func (r *run) aMachine(role schema.Role) (*wantedCluster, *machine) {
	c := r.aCluster()
	var names []string
	if role == "" {
		names = append(c.approved(schema.RoleControlPlane), c.approved(schema.RoleWorker)...)
	} else {
		names = c.approved(role)
	}
	if len(names) == 0 {
		return c, nil
	}
	return c, c.machines[names[r.lot.IntN(len(names))]].m
}

func (r *run) pushLive() bool {
	c := r.aCluster()
	c.live++
	r.push(fmt.Sprintf("a setting of %s that takes effect live is %d", c.c.name, 65530+c.live))
	return true
}

func (r *run) pushReboot() bool {
	c := r.aCluster()
	c.reboot++
	r.push(fmt.Sprintf("a file on the machines of %s, which needs a reboot, is %d", c.c.name, c.reboot))
	return true
}

// pushBad pushes what no revision may hold; the next push puts it right.
func (r *run) pushBad() bool {
	c := r.aCluster()
	folder := "clusters/" + c.c.name + "/"
	name, text := folder+"broken.yaml", "apiVersion: ichor.maesh.dev/v1alpha1\nkind: TalosMachine\n  metadata: {name: [\n"
	switch r.lot.IntN(3) {
	case 0:
		name, text = folder+"broken.yaml", "apiVersion: ichor.maesh.dev/v1alpha1\nkind: TalosMashine\nmetadata: {name: x}\n"
	case 1:
		name, text = folder+"all.yaml", "machine: {sysctlz: {a: b}}\n"
	}
	r.fleet.bad[name] = text
	r.push("broken: " + name)
	delete(r.fleet.bad, name)
	return true
}

// pushOverCap approves more control planes than may be, which is refused, and takes it back with the next push.
func (r *run) pushOverCap() bool {
	c := r.aCluster()
	var more []*wantedMachine
	for _, name := range c.names() {
		if m := c.machines[name]; !m.approved && m.m.role == schema.RoleControlPlane {
			more = append(more, m)
		}
	}
	if len(more) < 2 || len(c.approved(schema.RoleControlPlane)) != c.count {
		return false
	}
	for _, m := range more {
		m.approved, m.at = true, time.Now()
	}
	r.push("approved two control planes of " + c.c.name + " more than may be")
	for _, m := range more {
		m.approved = false
	}
	return true
}

// pushSpoiled pushes a setting that machines refuse, or one that locks the agents out; a later push takes it back.
func (r *run) pushSpoiled() bool {
	c := r.aCluster()
	c.spoiled = []string{settingRefused, settingLocksOut}[r.lot.IntN(2)]
	r.push("spoiled: " + c.spoiled + " on " + c.c.name)
	c.spoiled = ""
	return true
}

// pushGrow raises the count by two and approves the machines that wait for it.
func (r *run) pushGrow() bool {
	c := r.aCluster()
	var more []*wantedMachine
	for _, name := range c.names() {
		if m := c.machines[name]; !m.approved && m.m.role == schema.RoleControlPlane && m.m.wiped == 0 {
			more = append(more, m)
		}
	}
	if len(more) < 2 || len(c.approved(schema.RoleControlPlane)) != c.count || c.count > 3 {
		return false
	}
	c.count += 2
	for _, m := range more[:2] {
		m.approved, m.at = true, time.Now()
	}
	r.push(fmt.Sprintf("%s grows to %d control planes", c.c.name, c.count))
	return true
}

// pushShrink lowers the count by two; removals take the machines out.
func (r *run) pushShrink() bool {
	c := r.aCluster()
	names := c.approved(schema.RoleControlPlane)
	if c.count < 3 || len(names) != c.count {
		return false
	}
	c.count -= 2
	r.push(fmt.Sprintf("%s is to have %d control planes", c.c.name, c.count))
	for _, name := range names[c.count:] {
		r.remove(c, c.machines[name].m)
	}
	r.push("the removals for it")
	return true
}

func (r *run) pushWorker() bool {
	c := r.aCluster()
	for _, name := range c.names() {
		if m := c.machines[name]; !m.approved && m.m.role == schema.RoleWorker && m.m.wiped == 0 {
			m.approved, m.at = true, time.Now()
			r.push("approved " + name + " of " + c.c.name)
			return true
		}
	}
	return false
}

// renew renews an approval, as a person does without need.
func (r *run) renew() bool {
	c, m := r.aMachine("")
	if m == nil {
		return false
	}
	c.machines[m.name].at = time.Now()
	r.push("renewed the approval of " + m.name + " of " + c.c.name)
	return true
}

// signNode signs an operation on a machine.
func (r *run) signNode(role schema.Role, action, more string) bool {
	c, m := r.aMachine(role)
	if m == nil {
		return false
	}
	name := r.sign(c.c, nodeBody(m, action, more), false, time.Hour)
	r.push(fmt.Sprintf("%s: %s %s of %s", name, action, m.name, c.c.name))
	return true
}

func (r *run) signReboot() bool  { return r.signNode("", "reboot", "") }
func (r *run) signRestart() bool { return r.signNode("", "restart-service", "    service: kubelet\n") }
func (r *run) signForfeit() bool {
	return r.signNode(schema.RoleControlPlane, "etcd-forfeit-leadership", "")
}

func (r *run) signDefrag() bool {
	return r.signNode(schema.RoleControlPlane, "etcd-defrag", []string{"", "    allowLeader: true\n"}[r.lot.IntN(2)])
}

func (r *run) signShutdown() bool { return r.signNode("", "shutdown", "") }

// remove signs the removal of a machine.
func (r *run) remove(c *wantedCluster, m *machine) {
	more := "    confirm: " + m.name + "\n"
	switch {
	case m.scrapped():
		more += "    gone: true\n"
	case r.lot.IntN(2) == 0:
		more += "    then: reboot\n"
	}
	name := r.sign(c.c, nodeBody(m, "remove", more), true, time.Hour)
	r.w.say("%s: remove %s of %s", name, m.name, c.c.name)
}

func (r *run) signRemove() bool {
	role := schema.RoleWorker
	if r.lot.IntN(3) == 0 {
		role = schema.RoleControlPlane
	}
	c, m := r.aMachine(role)
	if m == nil {
		return false
	}
	r.remove(c, m)
	r.push("a removal")
	return true
}

// signControl resumes or cancels what there is.
func (r *run) signControl() bool {
	c := r.aCluster()
	state := r.stateOf(c.c)
	if state == nil || len(state.Operations) == 0 {
		return false
	}
	op := state.Operations[r.lot.IntN(len(state.Operations))]
	if op.Kind != "node" || op.Phase == statefile.OperationRefused {
		return false
	}
	r.control(c, op, r.lot.IntN(2) == 0, "")
	return true
}

// control signs a resume or a cancel of an operation.
func (r *run) control(c *wantedCluster, op *statefile.OperationState, resume bool, why string) {
	kind := "cancel"
	body := fmt.Sprintf("  kind: cancel\n  cancel:\n    operation: %s\n    digest: %s\n", op.Name, op.Digest)
	if resume {
		kind = "resume"
		body = fmt.Sprintf("  kind: resume\n  resume:\n    operation: %s\n    digest: %s\n    pause: %d\n", op.Name, op.Digest, max(1, op.Pause))
	}
	name := r.sign(c.c, body, op.Override, time.Hour)
	r.push(fmt.Sprintf("%s: %s %s of %s (%s)%s", name, kind, op.Name, c.c.name, op.Phase, why))
}

func (r *run) signForged() bool {
	c, m := r.aMachine("")
	if m == nil {
		return false
	}
	said := r.forge(c.c, nodeBody(m, []string{"reboot", "shutdown"}[r.lot.IntN(2)], ""), r.lot.IntN(5))
	r.push("forged: " + said + ", on " + m.name)
	r.w.befell("operation forged or expired")
	return true
}

func (r *run) stateOf(c *cluster) (s *statefile.State) {
	r.locked(func() { s = r.w.stateOf(c.name) })
	return s
}

func (r *run) powerCycle() bool {
	_, m := r.aMachine("")
	if m == nil || !m.power {
		return false
	}
	r.w.say("%s/%s loses power for a moment", m.c.name, m.name)
	r.w.befell("power cycle")
	r.locked(func() { m.cycle(time.Now()); m.byHand, m.byUs = time.Now(), "" })
	return true
}

func (r *run) powerOff() bool {
	_, m := r.aMachine("")
	if m == nil || !m.power {
		return false
	}
	r.w.say("%s/%s is switched off", m.c.name, m.name)
	r.w.befell("power off")
	r.locked(func() { m.off(); m.byHand, m.byUs = time.Now(), "" })
	return true
}

func (r *run) powerOn() bool {
	for _, c := range r.fleet.clusters {
		for _, name := range c.names() {
			if m := c.machines[name].m; !m.power && m.wiped == 0 {
				r.w.say("%s/%s is switched on", m.c.name, m.name)
				r.locked(func() { m.on(time.Now()) })
				return true
			}
		}
	}
	return false
}

func (r *run) network() bool {
	_, m := r.aMachine("")
	h := r.aHost()
	if m == nil {
		return false
	}
	mode := []string{"refused", "hangs", "slow"}[r.lot.IntN(3)]
	r.w.say("%s and %s/%s: %s", h.name, m.c.name, m.name, mode)
	r.locked(func() { h.link(m.ip).mode = mode })
	return true
}

func (r *run) loseAnswers() bool {
	_, m := r.aMachine("")
	h := r.aHost()
	if m == nil {
		return false
	}
	r.w.say("%s gets no answer to its next change of %s/%s", h.name, m.c.name, m.name)
	r.locked(func() { h.link(m.ip).lose = 1 + r.lot.IntN(2) })
	return true
}

func (r *run) isolate() bool {
	_, m := r.aMachine("")
	if m == nil {
		return false
	}
	r.w.say("%s/%s is cut off from the other machines", m.c.name, m.name)
	r.w.befell("machines parted")
	r.locked(func() { m.alone, m.byHand = true, time.Now() })
	return true
}

func (r *run) kubernetesAway() bool {
	c := r.aCluster()
	r.w.say("the Kubernetes API of %s gives no answer", c.c.name)
	r.w.befell("kubernetes away")
	r.locked(func() { c.c.kubernetesAway = true })
	return true
}

func (r *run) hold() bool {
	_, m := r.aMachine("")
	if m == nil || m.node == nil {
		return false
	}
	r.w.say("a budget holds the pods of %s/%s", m.c.name, m.name)
	r.w.befell("drain held")
	r.locked(func() { m.node.held, m.node.pods = "is held by the budget shop/web", max(1, m.node.pods) })
	return true
}

func (r *run) drop() bool {
	_, m := r.aMachine("")
	if m == nil {
		return false
	}
	r.w.say("%s/%s will answer OK and do nothing, once", m.c.name, m.name)
	r.locked(func() { m.drops = true })
	return true
}

// drift changes a machine by hand, behind the back of everybody.
func (r *run) drift() bool {
	_, m := r.aMachine("")
	if m == nil || m.active == nil || m.stage != stageRunning {
		return false
	}
	drifted := driftOf(m.active)
	if drifted == nil {
		return false
	}
	r.w.say("somebody changes the config of %s/%s by hand", m.c.name, m.name)
	r.w.befell("drift by hand")
	r.locked(func() { m.active, m.persistent, m.shown, m.before = drifted, drifted, true, nil })
	return true
}

func (r *run) storeFault() bool {
	h := r.aHost()
	mode := []string{"unavailable", "hangs", "flaky", "flaky", "stale"}[r.lot.IntN(5)]
	r.w.say("the store of %s: %s", h.name, mode)
	r.locked(func() { h.store = mode })
	return true
}

func (r *run) gitAway() bool {
	h := r.aHost()
	r.w.say("Git is away for %s", h.name)
	r.locked(func() { h.away = "503" })
	return true
}

// gitRewound lets the branch go back by a few commits for a while; the push after that is on top of the old tip again.
func (r *run) gitRewound() bool {
	if r.lot.IntN(2) == 0 {
		return false
	}
	tip := r.w.git.tip
	back := r.w.git.line(tip)
	if len(back) < 3 {
		return false
	}
	to := back[1+r.lot.IntN(len(back)-1)]
	r.w.say("the branch is rewound to %.16s", to)
	r.w.befell("git rewound")
	r.locked(func() { r.w.git.tip = to })
	time.Sleep(time.Duration(20+r.lot.IntN(90)) * time.Second)
	r.locked(func() { r.w.git.tip = tip })
	r.w.say("the branch is back at %.16s", tip)
	return true
}

// heal puts right what is wrong with the networks and the store, or some of it.
func (r *run) heal() bool {
	h := r.aHost()
	r.w.say("%s reaches everything again", h.name)
	r.locked(func() { h.heal() })
	return true
}

func (h *host) heal() {
	h.store, h.away = "", ""
	for _, l := range h.links {
		*l = link{}
	}
}

// healAll ends every fault. What was wiped by a removal stays off.
func (r *run) healAll() {
	r.w.say("the faults stop")
	r.locked(func() {
		now := time.Now()
		for _, h := range r.hosts {
			h.heal()
			h.ahead = 0
			if p := h.process; p != nil {
				p.mu.Lock()
				p.due = nil
				p.mu.Unlock()
			}
		}
		for _, c := range r.w.clusters {
			c.kubernetesAway = false
			for _, m := range c.machines {
				m.alone, m.drops = false, false
				if m.node != nil {
					m.node.held = ""
				}
				if !m.power && m.wiped == 0 {
					m.on(now)
				}
			}
		}
	})
}
