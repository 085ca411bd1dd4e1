package soak

import (
	"slices"
	"time"

	"ichor.maesh.dev/kube"
	"ichor.maesh.dev/talos"
)

// observe is what a look at the machine shows.
func (m *machine) observe(now time.Time) talos.Observation {
	if !m.answers() {
		return talos.Observation{Problem: m.name + " can't be reached: it refuses the connection"}
	}
	o := talos.Observation{UUID: m.uuid, Stage: m.stage, Hostname: m.hostname, Addresses: []string{m.ip}, TalosVersion: "v1.13.6",
		Disks: []talos.Disk{{Path: "/dev/sda", Size: 100 << 30}}}
	if m.stage == stageMaintenance {
		o.Mode, o.Fingerprint, o.Ready = talos.ModeMaintenance, m.fingerprint(), true
		return o
	}
	o.Mode, o.BootID, o.MachineType = talos.ModeConfigured, m.bootID(), string(m.role)
	o.Active, o.ActiveDigest = m.active.provider, m.active.digest
	if m.shown {
		o.Persistent, o.PersistentDigest = m.persistent.provider, m.persistent.digest
	}
	o.Discovery, o.EphemeralMounted = m.discovery(), talos.No
	if m.mounted(now) {
		o.EphemeralMounted = talos.Yes
	}
	o.Services = m.services(now)
	if m.node != nil && m.c.served() {
		o.NodeReady, o.Unschedulable = talos.No, talos.No
		if m.node.Ready == kube.Yes {
			o.NodeReady = talos.Yes
		}
		if m.node.Unschedulable {
			o.Unschedulable = talos.Yes
		}
	}
	if m.controlPlane() {
		o.Etcd = m.etcdObservation(now)
	}
	o.Ready = m.stage == stageRunning && (!m.controlPlane() || o.Etcd.ServiceHealthy == talos.Yes)
	if !o.Ready {
		o.Unmet = []string{"services: not all are healthy"}
	}
	return o
}

// discovery is what it knows of the other control planes that were configured.
func (m *machine) discovery() []talos.DiscoveredMember {
	found := []talos.DiscoveredMember{}
	for _, other := range m.c.machines {
		if other.configured() {
			found = append(found, talos.DiscoveredMember{Name: other.hostname, Addresses: []string{other.ip}, MachineType: string(other.role)})
		}
	}
	return found
}

func (m *machine) services(now time.Time) []talos.Service {
	var services []talos.Service
	if m.goingDown() {
		return services
	}
	for _, id := range []string{"apid", "containerd", "cri"} {
		services = append(services, talos.Service{ID: id, State: "Running", Healthy: talos.Yes, Started: m.since})
	}
	if !m.kubeletStarted.IsZero() {
		healthy := talos.No
		if now.Sub(m.kubeletStarted) >= 5*time.Second {
			healthy = talos.Yes
		}
		services = append(services, talos.Service{ID: "kubelet", State: "Running", Healthy: healthy, Started: m.kubeletStarted})
	}
	if m.service != "" {
		services = append(services, talos.Service{ID: "etcd", State: m.service, Message: m.serviceMessage, Changed: m.serviceChanged, Started: m.since})
	}
	return services
}

func (m *machine) etcdObservation(now time.Time) talos.EtcdObservation {
	e := talos.EtcdObservation{Service: m.service, ServiceMessage: m.serviceMessage}
	switch {
	case !m.mounted(now):
		e.MembersProblem = "its etcd doesn't run"
		return e
	case m.etcd == nil:
		e.Data, e.MembersProblem = talos.No, "its etcd doesn't run"
		return e
	}
	e.Data, e.ServiceHealthy = talos.Yes, talos.No
	if m.service != "Running" {
		e.MembersProblem = "its etcd doesn't run"
		return e
	}
	if !m.etcd.has(m.member) {
		e.MembersProblem = "no answer in time"
		return e
	}
	e.MemberID, e.Learner = m.member, m.learner
	if m.learner {
		e.MembersProblem = "rpc not supported for learner"
		return e
	}
	if !m.etcd.quorumFor(m) {
		e.MembersProblem = "no answer in time"
		return e
	}
	e.ServiceHealthy, e.Leader, e.DBSize, e.DBSizeInUse = talos.Yes, m.etcd.leader, 64<<20, 16<<20
	e.Members = slices.Clone(m.etcd.members)
	return e
}
