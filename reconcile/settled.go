package reconcile

import (
	"maps"
	"time"

	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/talos"
)

// unseenFingerprint stands for the fingerprint of a machine that nobody looked at.
const unseenFingerprint = "(not looked at)"

// Waiting is a machine in maintenance mode that nobody looked at. It is taken to be the one that Git declares.
func Waiting(m *schema.TalosMachine, config ConfigView) Seen {
	config.Active, config.Persistent, config.Owner, config.Disk, config.DiskProblem = "", "", "", "", ""
	return Seen{Config: config, Observation: talos.Observation{
		Mode: talos.ModeMaintenance, UUID: m.Spec.UUID, Fingerprint: nameOr(m.Spec.Fingerprint, unseenFingerprint), Stage: "maintenance",
		Ready: true, Addresses: []string{m.Spec.Host()},
	}}
}

// Settled gives an input in which the cluster stands as in.Cluster wants it: every approved machine runs its config, is managed and
// Ready, and etcd has every approved control plane as a member; the other machines wait in maintenance mode. It is what a forecast
// of bringing the cluster up from nothing ends with. Pauses count for nothing here, and neither does the cap: whoever is approved
// counts as having come up before. Configs gives each machine's wanted config.
func Settled(in Input, configs map[string]ConfigView) Input {
	begin := in.Now.Add(-24 * time.Hour)
	up := in
	up.Now, up.Seen, up.Backups = begin, map[string]Seen{}, nil
	up.State = &statefile.State{SchemaVersion: statefile.SchemaVersion, Machines: map[string]*statefile.MachineState{},
		Writer: statefile.Writer{ID: "forecast", Epoch: 1, Since: begin}}
	object := *in.Cluster.Object
	object.Metadata.Annotations = unpaused(object.Metadata.Annotations)
	up.Cluster.Object, up.Cluster.Machines, up.Cluster.Backups = &object, nil, nil
	approved := 0
	for _, m := range in.Cluster.Machines {
		plain := *m
		plain.Metadata.Annotations = unpaused(m.Metadata.Annotations)
		plain.Spec.Fingerprint = nameOr(m.Spec.Fingerprint, unseenFingerprint)
		config := configs[m.Metadata.Name]
		config.Problem = ""
		up.Seen[m.Metadata.Name] = Waiting(&plain, config)
		up.Cluster.Machines = append(up.Cluster.Machines, &plain)
		if m.Spec.Approved && isControlPlane(m) {
			approved++
		}
	}
	object.Spec.ControlPlane.Count = max(object.Spec.ControlPlane.Count, approved)
	Approve(up.State, up.Cluster, begin)
	f := Foretell(up)
	in.State, in.Seen = f.End.Next, f.Seen
	return in
}

func unpaused(annotations map[string]string) map[string]string {
	kept := maps.Clone(annotations)
	delete(kept, schema.AnnotationPaused)
	return kept
}

// Approve notes when machines were approved of which neither Git nor the state says it: at that time. The agent takes the commit's.
func Approve(s *statefile.State, c Cluster, at time.Time) {
	setAside(s, c)
	for _, m := range c.Machines {
		if !m.Spec.Approved || m.Spec.ApprovalDecision != nil && !m.Spec.ApprovalDecision.At.IsZero() {
			continue
		}
		if s.Machines == nil {
			s.Machines = map[string]*statefile.MachineState{}
		}
		memory := s.Machines[m.Metadata.Name]
		if memory == nil {
			memory = &statefile.MachineState{}
			s.Machines[m.Metadata.Name] = memory
		}
		if memory.FirstApproved.IsZero() {
			memory.FirstApproved = stamp(at)
		}
	}
}

// Targets are the machines that a look at a cluster is for: those in Git, and those that only the state knows.
func Targets(c Cluster, s *statefile.State) []talos.Target {
	var targets []talos.Target
	for _, m := range c.Machines {
		targets = append(targets, talos.Target{Name: m.Metadata.Name, Endpoint: m.Spec.Endpoint, ControlPlane: isControlPlane(m)})
	}
	for name, m := range s.Machines {
		if c.Machine(name) == nil && m.Address != "" && !m.Removed {
			targets = append(targets, talos.Target{Name: name, Endpoint: m.Address, ControlPlane: m.Role == string(schema.RoleControlPlane)})
		}
	}
	return targets
}
