package soak

import (
	"slices"
	"time"

	"ichor.maesh.dev/talos"
)

// etcd is one etcd cluster. A second one of a cluster is what must never be.
type etcd struct {
	members []talos.EtcdMember
	leader  uint64
	// began is when it was bootstrapped, or recovered from the snapshot whose bytes are data; nil: it was bootstrapped.
	began time.Time
	data  []byte
	// raised is the revision that a recovered one began at.
	raised int64
}

// ageOfData is how long an etcd stays at one age of its data.
const ageOfData = 7 * time.Minute

// snapshot is what it streams.
func (e *etcd) snapshot(keys *Keys, now time.Time) []byte {
	if e.data != nil {
		return e.data
	}
	return keys.snapshots[min(int(now.Sub(e.began)/ageOfData), agesOfData-1)]
}

// held says whether a machine holds data of it.
func (e *etcd) held(c *cluster) bool {
	return slices.ContainsFunc(c.machines, func(m *machine) bool { return m.etcd == e })
}

// living are the etcds of which a machine holds data.
func (c *cluster) living() (living []*etcd) {
	for _, e := range c.etcds {
		if e.held(c) {
			living = append(living, e)
		}
	}
	return living
}

func (e *etcd) has(id uint64) bool {
	for _, member := range e.members {
		if member.ID == id {
			return true
		}
	}
	return false
}

func (e *etcd) drop(id uint64) {
	for n, member := range e.members {
		if member.ID == id {
			e.members = append(e.members[:n:n], e.members[n+1:]...)
			return
		}
	}
}

// of is the machine that a member runs on, nil where none does.
func (e *etcd) of(c *cluster, id uint64) *machine {
	for _, m := range c.machines {
		if m.etcd == e && m.member == id {
			return m
		}
	}
	return nil
}

// alive says whether a member answers the others.
func (e *etcd) alive(c *cluster, id uint64) bool {
	m := e.of(c, id)
	return m != nil && m.up() && m.service == "Running" && !m.alone
}

// voters counts the voters, and those of them that answer the others.
func (e *etcd) voters(c *cluster) (all, alive int) {
	for _, member := range e.members {
		if member.Learner {
			continue
		}
		all++
		if e.alive(c, member.ID) {
			alive++
		}
	}
	return all, alive
}

// quorum says whether the etcd can decide, as the others see it.
func (e *etcd) quorum(c *cluster) bool {
	all, alive := e.voters(c)
	return alive > all/2
}

// quorumFor says whether the machine's own member is part of an etcd that can decide.
func (e *etcd) quorumFor(m *machine) bool {
	if m.alone {
		all, _ := e.voters(m.c)
		return all == 1
	}
	return e.quorum(m.c)
}

// elect gives the etcd a leader where it can have one.
func (e *etcd) elect(c *cluster) {
	if !e.quorum(c) {
		e.leader = 0
		return
	}
	if e.leader != 0 && e.has(e.leader) && e.alive(c, e.leader) {
		return
	}
	e.leader = 0
	for _, member := range e.members {
		if !member.Learner && e.alive(c, member.ID) {
			e.leader = member.ID
			return
		}
	}
}

func (m *machine) peer() string { return "https://" + m.ip + ":2380" }

// etcdStep is what a control plane's etcd does by itself.
func (m *machine) etcdStep(now time.Time) {
	if !m.up() {
		return
	}
	if !m.controlPlane() {
		if m.stage == stageBooting && now.Sub(m.since) >= m.lasts("booting", 8*time.Second, 30*time.Second) {
			m.enter(now, stageRunning, 0, nil)
		}
		return
	}
	if !m.mounted(now) {
		return
	}
	switch {
	case m.service == "" && m.etcd != nil:
		m.serve("Running", "started")
	case m.service == "":
		m.serve("Preparing", "running pre state")
	case m.service == "Preparing" && m.etcd == nil && !m.alone:
		m.join(now)
	case m.etcd != nil && m.learner && !m.promoteAt.IsZero() && !now.Before(m.promoteAt) && m.etcd.quorumFor(m):
		for n := range m.etcd.members {
			if m.etcd.members[n].ID == m.member {
				m.etcd.members[n].Learner = false
			}
		}
		m.learner, m.promoteAt = false, time.Time{}
	}
	if m.stage == stageBooting && m.etcd != nil && !m.learner && m.etcd.has(m.member) && now.Sub(m.since) >= m.lasts("booting", 8*time.Second, 30*time.Second) {
		m.enter(now, stageRunning, 0, nil)
	}
}

// join is Talos's: through any living etcd, dropping members of its own name, one learner at a time.
func (m *machine) join(now time.Time) {
	if now.Sub(m.since) < 6*time.Second {
		return
	}
	for _, e := range m.c.etcds {
		if !e.quorum(m.c) {
			continue
		}
		for _, member := range e.members {
			if member.Name == m.hostname && !e.blocked(m.c, member) {
				e.drop(member.ID)
				break
			}
		}
		for _, member := range e.members {
			if member.Learner || len(member.PeerURLs) > 0 && member.PeerURLs[0] == m.peer() {
				return
			}
		}
		m.c.nextID++
		id := m.c.nextID<<8 | uint64(m.boot)
		e.members = append(e.members, talos.EtcdMember{ID: id, Name: m.hostname, PeerURLs: []string{m.peer()}, Learner: true})
		m.etcd, m.member, m.learner = e, id, true
		m.serve("Running", "started")
		m.promoteAt = now.Add(m.w.span(10*time.Second, 30*time.Second, "promotion", id))
		return
	}
}

// blocked says whether dropping a member would break the quorum, which etcd refuses.
func (e *etcd) blocked(c *cluster, member talos.EtcdMember) bool {
	if member.Learner {
		return false
	}
	all, alive := 0, 0
	for _, other := range e.members {
		if other.Learner || other.ID == member.ID {
			continue
		}
		all++
		if e.alive(c, other.ID) {
			alive++
		}
	}
	return alive <= all/2
}

// bootstrap starts a new etcd here.
func (m *machine) bootstrap() {
	m.c.nextID++
	id := m.c.nextID << 8
	m.begin(&etcd{members: []talos.EtcdMember{{ID: id, Name: m.hostname, PeerURLs: []string{m.peer()}}}, leader: id, began: time.Now()})
}

// begin makes the machine the only member of a new etcd.
func (m *machine) begin(e *etcd) {
	m.c.etcds = append(m.c.etcds, e)
	m.etcd, m.member, m.learner = e, e.leader, false
	m.serve("Running", "started")
}

// serve is what Talos says of the etcd service from now on.
func (m *machine) serve(state, message string) {
	m.service, m.serviceMessage, m.serviceChanged = state, message, time.Now()
}

// forget takes etcd's data away.
func (m *machine) forget() {
	m.etcd, m.member, m.learner, m.promoteAt = nil, 0, false, time.Time{}
}

// moveLeader gives the leadership to another member than the machine's, where one can have it.
func (e *etcd) moveLeader(from *machine) {
	for _, member := range e.members {
		if member.ID != from.member && !member.Learner && e.alive(from.c, member.ID) {
			e.leader = member.ID
			return
		}
	}
}
