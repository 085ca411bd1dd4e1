package reconcile

import (
	"fmt"
	"maps"
	"net"
	"slices"

	"ichor.maesh.dev/kube"
	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/talos"
)

// imagination is the machines of a forecast: what they showed, changed by each call as the call is meant to change them. A machine
// that did not answer, or is another one than is meant, stays as it is.
type imagination struct {
	in   *Input
	seen map[string]Seen
	// members are those of the one etcd, and left the IDs that were given away.
	members []talos.EtcdMember
	left    uint64
	boots   int
	// cordons are the owners of cordons by machine, drained the last drain: nothing is left of it at once.
	cordons map[string]string
	drained string
	// etcds are the machines that may have an etcd.
	etcds []string
}

// cordonOfOthers owns the cordons that the state knows nothing of.
const cordonOfOthers = "somebody else"

func imagine(in *Input) *imagination {
	w := &imagination{in: in, seen: maps.Clone(in.Seen), members: slices.Clone(viewEtcd(in).members), left: 1, cordons: map[string]string{}}
	if w.seen == nil {
		w.seen = map[string]Seen{}
	}
	for name, s := range w.seen {
		if s.Unschedulable == talos.Yes {
			w.cordons[name] = cordonOfOthers
		}
	}
	w.etcds = controlPlaneNames(in)
	for name, s := range w.seen {
		if s.Etcd.MemberID != 0 && !slices.Contains(w.etcds, name) {
			w.etcds = append(w.etcds, name)
		}
	}
	stands := func(name string, e *statefile.Evacuation) {
		if e != nil && e.Cordoned && !e.Lifted && w.cordons[name] != "" {
			w.cordons[name] = e.Owner
		}
	}
	for _, op := range in.State.Operations {
		stands(op.Target, op.Evacuation)
	}
	for n := range in.State.Cordons {
		stands(in.State.Cordons[n].Machine, &in.State.Cordons[n].Evacuation)
	}
	if r := in.State.Rollout; r != nil {
		stands(r.Machine, r.Evacuation)
	}
	return w
}

// look is what the machines show now. It shares nothing that a later call changes.
func (w *imagination) look() map[string]Seen { return maps.Clone(w.seen) }

// kubernetes is what Kubernetes says of the machines: each has a Node, and nothing holds a pod where it is.
func (w *imagination) kubernetes() *KubernetesView {
	view := &KubernetesView{Nodes: map[string]kube.Node{}, Drain: &kube.Drain{}, DrainOf: w.drained}
	for name, s := range w.seen {
		if s.Mode != talos.ModeConfigured {
			continue
		}
		node := kube.Node{Name: nameOr(s.Hostname, name), UID: "forecast-" + name, SystemUUID: s.UUID, BootID: s.BootID, CordonedBy: w.cordons[name]}
		node.Unschedulable = node.CordonedBy != ""
		if runsReady(s) {
			node.Ready = kube.Yes
		}
		view.Nodes[name] = node
	}
	return view
}

// do makes a call have its effect.
func (w *imagination) do(a Action) {
	switch a.Kind {
	case ActCordon:
		w.cordons[a.Machine] = a.Owner
		w.schedulable(a.Machine)
		return
	case ActUncordon:
		delete(w.cordons, a.Machine)
		w.schedulable(a.Machine)
		return
	case ActEvict:
		w.drained = a.Drain
		return
	}
	s := w.seen[a.Machine]
	c := &s.Config
	switch a.Kind {
	case ActFirstConfig:
		w.configure(&s, a)
	case ActTry:
		c.Active, c.Owner = a.Digest, w.in.Mark
		arrive(c)
	case ActConfirm:
		c.Active, c.Persistent = a.Digest, a.Digest
		arrive(c)
	case ActStage:
		c.Persistent = a.Digest
	case ActBootstrap:
		member := w.member(a.Machine, s, false)
		w.members = []talos.EtcdMember{member}
		s.Etcd = running(member)
	case ActRemoveMember:
		w.members = slices.DeleteFunc(slices.Clone(w.members), func(m talos.EtcdMember) bool { return m.ID == a.Member })
	case ActReset:
		s.Etcd = talos.EtcdObservation{Data: talos.No}
		w.boot(&s)
	case ActReboot:
		w.boot(&s)
	}
	w.seen[a.Machine] = s
	w.spread()
}

// schedulable lets a machine show whether its Node is cordoned.
func (w *imagination) schedulable(name string) {
	s := w.seen[name]
	s.Unschedulable = talos.No
	if w.cordons[name] != "" {
		s.Unschedulable = talos.Yes
	}
	w.seen[name] = s
}

// configure is the first boot from the disk after an install.
func (w *imagination) configure(s *Seen, a Action) {
	m := w.in.Cluster.Machine(a.Machine)
	s.Mode, s.Fingerprint, s.Discovery, s.MachineType = talos.ModeConfigured, "", []talos.DiscoveredMember{}, string(m.Spec.Role)
	s.Hostname = nameOr(m.Spec.Hostname, nameOr(s.Hostname, a.Machine))
	if !slices.Contains(s.Addresses, m.Spec.Host()) {
		s.Addresses = append(slices.Clone(s.Addresses), m.Spec.Host())
	}
	s.TalosVersion = nameOr(s.TalosVersion, w.in.Cluster.Object.Spec.TalosVersion)
	s.EphemeralMounted = talos.Yes
	s.Config.Persistent, s.Config.Owner = a.Digest, w.in.Mark
	if isControlPlane(m) {
		s.Etcd = talos.EtcdObservation{Data: talos.No}
	}
	w.boot(s)
}

// boot starts a machine anew with the config that it stores.
func (w *imagination) boot(s *Seen) {
	for was := s.BootID; s.BootID == was; { // what was seen may be another forecast's end
		w.boots++
		s.BootID = fmt.Sprintf("forecast-%d", w.boots)
	}
	s.Stage, s.Ready, s.Unmet = "booting", false, nil
	if c := &s.Config; c.Persistent != "" {
		c.Active = c.Persistent
		if c.Active == c.Wanted {
			arrive(c)
		}
	}
	if s.MachineType != "worker" && s.Etcd.Data == talos.No {
		s.Etcd.Service, s.Etcd.ServiceHealthy = "Preparing", talos.No
	}
}

// arrive is that a machine runs what it should.
func arrive(c *ConfigView) {
	c.Diff, c.BareSame, c.NeedsReboot, c.Why = "", true, false, ""
}

// live lets the machines do what they do by themselves: boot to the end, join etcd, be promoted. It says whether anything came of it.
func (w *imagination) live(f *Forecast) bool {
	changed := w.promote()
	for _, name := range slices.Sorted(maps.Keys(w.seen)) {
		s, ok := w.in.see(name)
		if s = w.seen[name]; !ok || s.Mode != talos.ModeConfigured || s.Stage != "booting" {
			continue
		}
		if m := w.in.Cluster.Machine(name); m != nil && isControlPlane(m) {
			if s.Etcd.Data == talos.No && s.Etcd.Service == "Preparing" && w.mayJoin() {
				member := w.member(name, s, true)
				w.members = append(slices.Clone(w.members), member)
				s.Etcd = running(member)
				w.seen[name] = s
				w.spread()
				f.Steps = append(f.Steps, Step{Machine: name, Event: EventJoin})
				changed = true
				continue
			}
			if s.Etcd.Data != talos.Yes || s.Etcd.Learner || s.Etcd.ServiceHealthy != talos.Yes {
				continue
			}
		}
		s.Stage, s.Ready, s.NodeReady = "running", true, talos.Yes
		w.seen[name] = s
		w.schedulable(name)
		changed = true
	}
	return changed
}

// promote makes voters of learners.
func (w *imagination) promote() bool {
	changed := false
	for _, name := range w.etcds {
		s := w.seen[name]
		if s.Mode != talos.ModeConfigured || !s.Etcd.Learner {
			continue
		}
		w.members = slices.Clone(w.members)
		for n := range w.members {
			if w.members[n].ID == s.Etcd.MemberID {
				w.members[n].Learner = false
				s.Etcd.Learner, s.Etcd.ServiceHealthy = false, talos.Yes
				w.seen[name] = s
				changed = true
			}
		}
	}
	if changed {
		w.spread()
	}
	return changed
}

// mayJoin says whether etcd takes another learner now: it takes one at a time.
func (w *imagination) mayJoin() bool {
	return len(w.members) > 0 && !slices.ContainsFunc(w.members, func(m talos.EtcdMember) bool { return m.Learner })
}

func (w *imagination) member(name string, s Seen, learner bool) talos.EtcdMember {
	for {
		if w.left++; !slices.ContainsFunc(w.members, func(m talos.EtcdMember) bool { return m.ID == w.left }) {
			break
		}
	}
	peer := "https://" + net.JoinHostPort(w.in.Cluster.Machine(name).Spec.Host(), "2380")
	return talos.EtcdMember{ID: w.left, Name: nameOr(s.Hostname, name), PeerURLs: []string{peer}, Learner: learner}
}

// running is the etcd side of a machine that just became a member.
func running(m talos.EtcdMember) talos.EtcdObservation {
	healthy := talos.Yes
	if m.Learner {
		healthy = talos.No
	}
	return talos.EtcdObservation{Data: talos.Yes, Service: "Running", ServiceHealthy: healthy, MemberID: m.ID, Learner: m.Learner}
}

// spread lets every voter that answers give the list as it is now.
func (w *imagination) spread() {
	for _, name := range w.etcds {
		if s := w.seen[name]; s.Mode == talos.ModeConfigured && s.Etcd.MemberID != 0 && !s.Etcd.Learner && s.Etcd.ServiceHealthy == talos.Yes {
			s.Etcd.Members = w.members
			w.seen[name] = s
		}
	}
}
