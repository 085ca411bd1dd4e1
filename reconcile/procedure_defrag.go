package reconcile

import (
	"fmt"

	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/talos"
)

const stepDefragment = "defragment"

// member looks at a control plane whose own etcd member an operation is about: it answers, and no member of etcd is missing.
func (s situation) member(ref schema.MachineRef, joined map[string]bool) (m *schema.TalosMachine, seen Seen, refuse, wait string) {
	if m, refuse = s.target(ref); refuse != "" {
		return nil, seen, refuse, ""
	}
	name := m.Metadata.Name
	if !isControlPlane(m) {
		return nil, seen, fmt.Sprintf("%s is a worker, and etcd runs on control planes only", name), ""
	}
	if seen, refuse = s.ours(m); refuse != "" {
		return nil, seen, refuse, ""
	}
	if !s.etcd.known {
		return nil, seen, "no control plane gives a member list, so whether a member is missing is not known; wait for etcd, or restore it", ""
	}
	for _, alarm := range seen.Etcd.Alarms {
		if alarm.Kind != "NOSPACE" {
			return nil, seen, fmt.Sprintf("etcd has raised the alarm %s (member %s): nothing is done to it; restore it from a backup", alarm.Kind, hexID(alarm.Member)), ""
		}
	}
	for _, member := range s.etcd.members {
		if on := s.etcd.machine[member.ID]; on == "" || !joined[on] {
			return nil, seen, fmt.Sprintf("%s: %s is missing; wait until all have joined, or mend it", countMembers(s.etcd), nameOr(on, nameOr(member.Name, hexID(member.ID)))), ""
		}
	}
	if !s.etcd.holds(name) {
		return nil, seen, fmt.Sprintf("%s is no member of etcd", name), ""
	}
	return m, seen, "", ""
}

func leads(seen Seen) bool { return seen.Etcd.MemberID != 0 && seen.Etcd.MemberID == seen.Etcd.Leader }

// refuseDefragment wants an etcd of which no member is missing, since the one that is defragmented answers nobody meanwhile. The leader
// of several is defragmented only where that was allowed: etcd takes no writes then.
func refuseDefragment(s situation) (refuse, wait string) {
	m, seen, refuse, wait := s.member(s.spec.Node.MachineRef, s.etcd.working)
	switch {
	case refuse != "" || wait != "":
		return refuse, wait
	case leads(seen) && len(s.etcd.members) > 1 && !s.spec.Node.AllowLeader:
		return fmt.Sprintf("%s leads etcd, which would take no writes while it is defragmented; cancel this operation, sign an "+
			"etcd-forfeit-leadership of %s, and then the defragmentation again; or sign it with allowLeader: true", m.Metadata.Name, m.Metadata.Name), ""
	}
	return "", ""
}

// nextDefragment defragments once.
func nextDefragment(s situation) move {
	name := s.spec.Node.MachineRef.Name
	switch {
	case s.op.FailureReason != "":
		return s.failing(name)
	case s.sent(ActDefragment) > 0:
		seen, _ := s.in.see(name)
		return move{step: stepDefragment, done: fmt.Sprintf("etcd on %s is defragmented: its database takes %s, of which %s are in use, and no alarm stands", name,
			size(seen.Etcd.DBSize), size(seen.Etcd.DBSizeInUse))}
	}
	refuse, wait := refuseDefragment(s)
	if held, is := s.held(name, refuse, wait); is {
		return held
	}
	seen, _ := s.in.see(name)
	return move{step: stepDefragment, act: &Action{Kind: ActDefragment, Machine: name, UUID: seen.UUID, Boot: seen.BootID, Attempt: 1,
		Facts: map[string]string{"leads": yesNo(leads(seen))},
		Why:   fmt.Sprintf("etcd on %s is defragmented, as %s asks; its database takes %s, of which %s are in use", name, s.op.Name, size(seen.Etcd.DBSize), size(seen.Etcd.DBSizeInUse))}}
}

// resolveDefragment wants the machine's own reply, and no alarm left: Ichor disarms none, since what filled the database is a person's to
// see. Without a reply the member must answer again, and what became of it stays unknown.
func resolveDefragment(in *Input, intent statefile.Intent) ended {
	name := intent.Machine
	seen, ok := in.see(name)
	answers := ok && seen.Etcd.MemberID != 0 && seen.Etcd.ServiceHealthy == talos.Yes
	age := in.age(intent)
	switch {
	case answers && len(seen.Etcd.Alarms) > 0 && intent.Outcome == statefile.OutcomeOK:
		return ended{result: resolveGiven, say: "it replied, and an alarm stands", failure: fmt.Sprintf("etcd on %s is defragmented (its database takes %s, of which %s are in use), "+
			"and an alarm stands: %s; Ichor disarms none: see that there is room, and then talosctl -n %s etcd alarm disarm", name, size(seen.Etcd.DBSize),
			size(seen.Etcd.DBSizeInUse), seen.Etcd.Alarms[0].Kind, in.endpoint(name))}
	case answers && len(seen.Etcd.Errors) == 0 && intent.Outcome == statefile.OutcomeOK:
		return ended{result: resolveDone, say: "it replied, and its etcd answers"}
	case answers && intent.Outcome == statefile.OutcomeUnknown, answers && intent.Outcome == "" && age >= in.Timing.Patience:
		return ended{result: resolveGiven, say: "its etcd answers again, and what became of the defragmentation is not known", failure: fmt.Sprintf("what became of the defragmentation on "+
			"%s is not known (%s); its etcd answers again, and its database takes %s, of which %s are in use: it is done again only when this operation is resumed", name,
			nameOr(intent.Message, "no answer came"), size(seen.Etcd.DBSize), size(seen.Etcd.DBSizeInUse))}
	case age >= in.Timing.Defragment+in.Timing.ComeBack:
		return ended{result: resolveGiven, say: "its etcd doesn't answer", failure: fmt.Sprintf("etcd on %s has not answered since it was defragmented (its service is %s): %s",
			name, nameOr(seen.Etcd.Service, "not listed"), nameOr(seen.Etcd.ServiceMessage, "no message"))}
	}
	return waiting(fmt.Sprintf("etcd on %s is defragmented, and answers nobody meanwhile", name))
}

// size is a number of bytes for people.
func size(bytes int64) string {
	const mib = 1 << 20
	if bytes < 10*mib {
		return fmt.Sprintf("%.1f MiB", float64(bytes)/mib)
	}
	return fmt.Sprintf("%d MiB", bytes/mib)
}
