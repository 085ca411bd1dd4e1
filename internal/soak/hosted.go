package soak

import (
	"slices"
	"time"

	"ichor.maesh.dev/kube"
)

// Agents that live in the cluster which they manage: each is a pod of a Deployment on a control plane of the first cluster. It dies with its
// machine's boot and by eviction. The pod comes back on its machine when that is up again soon, else on another one, and where the cluster can run
// none for long somebody runs the agent elsewhere until it can.
const (
	// podTolerates is for how long a pod stays bound to a Node that isn't Ready.
	podTolerates = 340 * time.Second
	// personWaits is for how long no agent runs until somebody runs one elsewhere, movesIn for how long one runs elsewhere before it moves in.
	personWaits = 10 * time.Minute
	movesIn     = 3 * time.Minute
)

// lodging is where an agent lives; the zero value: elsewhere, for good. The world's lock guards it.
type lodging struct {
	// hosted says that it is to live in the cluster. on is the control plane that it runs on, or ran on last; nil: it runs elsewhere.
	hosted bool
	on     *machine
	// boot is the one of on that it runs in. since is when it came, or when the last one died.
	boot  int
	since time.Time
	// evicted says that its pod was evicted.
	evicted bool
}

// nodeName is what the agent is told of the Node that it runs on.
func (h *host) nodeName() string {
	h.w.mu.Lock()
	defer h.w.mu.Unlock()
	if h.on == nil {
		return ""
	}
	return h.on.c.name + "/" + h.on.hostname
}

// cutOff says whether the machine on which the agent runs keeps it from reaching another one.
func (h *host) cutOff(m *machine) bool {
	return h.on != nil && m != h.on && (h.on.alone || m != nil && m.alone && m.c == h.on.c)
}

// takes says whether a machine starts pods that are bound to it.
func (m *machine) takes(now time.Time) bool {
	return m.controlPlane() && m.power && m.stage == stageRunning && m.node != nil && m.node.Ready == kube.Yes && !m.kubeletStarted.IsZero() && now.Sub(m.kubeletStarted) > 8*time.Second
}

// another says whether a pod that is evicted from a machine can run on another one. Where none can, the agent is run as what drains leave alone,
// a DaemonSet: a pod that evicts itself and can run nowhere else would lift no cordon any more.
func (c *cluster) another(from *machine, now time.Time) bool {
	return slices.ContainsFunc(c.machines, func(m *machine) bool { return m != from && m.takes(now) && !m.node.Unschedulable })
}

// settle finds where the agent runs next; false: nowhere yet. Its pod tolerates a cordon, and goes to a Node without one where it can.
func (h *host) settle(now time.Time) bool {
	c := h.w.clusters[0]
	if !c.served() {
		if h.on == nil && h.since.IsZero() || now.Sub(h.since) > personWaits {
			h.on, h.since = nil, now
			return true
		}
		return false
	}
	if bound := h.on; bound != nil && bound.node != nil && !h.evicted && now.Sub(h.since) < podTolerates {
		if !bound.takes(now) {
			return false
		}
		h.boot, h.since = bound.boot, now
		return true
	}
	var found *machine
	for n := range c.machines {
		m := c.machines[(n+h.number+h.started)%len(c.machines)]
		if m.takes(now) && (found == nil || found.node.Unschedulable && !m.node.Unschedulable) {
			found = m
		}
	}
	if found == nil && now.Sub(h.since) <= personWaits {
		return false
	}
	h.on, h.evicted, h.since = found, false, now
	if found != nil {
		h.boot = found.boot
	}
	return true
}

// lodge waits until the agent can run somewhere; false: the history is over.
func (r *run) lodge(h *host) bool {
	for h.hosted {
		var found bool
		var where string
		r.locked(func() {
			if found = h.settle(time.Now()); found && h.on != nil {
				where = h.on.name
			}
		})
		if found {
			if where != "" {
				r.w.say("%s runs on %s", h.name, where)
			}
			return true
		}
		select {
		case <-r.stopping:
			return false
		case <-time.After(5 * time.Second):
		}
	}
	return true
}

// leaving says why the agent's process ends now; empty: it goes on.
func (h *host) leaving(now time.Time) string {
	m := h.on
	switch {
	case !h.hosted || h.process == nil || h.process.isDead():
		return ""
	case m == nil:
		if h.w.clusters[0].served() && now.Sub(h.since) > movesIn && h.process.started.Before(now.Add(-movesIn)) {
			return "as it moves into the cluster"
		}
	case m.boot != h.boot || !m.power || m.stage == stageAway:
		return "with " + m.name
	case m.goingDown() && now.Sub(m.since) >= m.lasts("pods end", time.Second, 6*time.Second):
		return "as the pods of " + m.name + " end"
	case h.evicted:
		return "as it is evicted from " + m.name
	}
	return ""
}

// endLodgers ends the processes whose machines or pods went away.
func (w *World) endLodgers() {
	for _, h := range w.hosts {
		w.mu.Lock()
		why, p := h.leaving(time.Now()), h.process
		if why != "" {
			h.since = time.Now()
		}
		w.mu.Unlock()
		if why != "" {
			p.kill(why)
		}
	}
}
