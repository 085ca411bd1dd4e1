package reconcile

import (
	"fmt"

	"ichor.maesh.dev/statefile"
)

const stepForfeit = "forfeit"

// mostForfeits is how often the leadership is asked to be handed on: Talos hands it to the first other member of the list, and an
// election may come in between.
const mostForfeits = 2

// refuseForfeit wants the member that leads, and others that could.
func refuseForfeit(s situation) (refuse, wait string) {
	m, seen, refuse, wait := s.member(s.spec.Node.MachineRef, s.etcd.joined)
	switch {
	case refuse != "" || wait != "":
		return refuse, wait
	case len(s.etcd.members) < 2:
		return fmt.Sprintf("%s is the only member of etcd, so there is nobody to hand the leadership to", m.Metadata.Name), ""
	case !leads(seen):
		return fmt.Sprintf("%s does not lead etcd; %s does: there is nothing to hand on, so cancel this operation", m.Metadata.Name, nameOr(s.etcd.machine[seen.Etcd.Leader], "nobody at the moment")), ""
	}
	return "", ""
}

// nextForfeit lets the leader hand the leadership on.
func nextForfeit(s situation) move {
	name := s.spec.Node.MachineRef.Name
	seen, ok := s.in.see(name)
	switch {
	case s.op.FailureReason != "":
		return s.failing(name)
	case s.sent(ActForfeit) > 0 && ok && seen.Etcd.Leader != 0 && !leads(seen):
		return move{step: stepForfeit, done: fmt.Sprintf("%s leads etcd now, and %s no longer does", nameOr(s.etcd.machine[seen.Etcd.Leader], hexID(seen.Etcd.Leader)), name)}
	}
	refuse, wait := refuseForfeit(s)
	if held, is := s.held(name, refuse, wait); is {
		return held
	}
	return move{step: stepForfeit, act: &Action{Kind: ActForfeit, Machine: name, UUID: seen.UUID, Boot: seen.BootID, Attempt: 1,
		Facts: map[string]string{"leads": "yes"}, Why: fmt.Sprintf("%s hands the leadership of etcd on, as %s asks", name, s.op.Name)}}
}

// resolveForfeit waits for another leader.
func resolveForfeit(in *Input, intent statefile.Intent) ended {
	name := intent.Machine
	seen, ok := in.see(name)
	age := in.age(intent)
	switch {
	case ok && seen.Etcd.Leader != 0 && seen.Etcd.MemberID != 0 && !leads(seen):
		return ended{result: resolveDone, say: "another member leads"}
	case ok && leads(seen) && age >= in.Timing.ServiceQuiet && intent.Outcome != "" || age >= in.Timing.Patience:
		e := ended{result: resolveGiven, say: "it still leads"}
		switch {
		case !ok:
			e.say = "it gives no answer"
			e.failure = fmt.Sprintf("%s gives no answer since it was asked to hand the leadership of etcd on, so whether it leads is not known; look at it, and resume this operation "+
				"once it answers", name)
		case intent.Attempt >= mostForfeits:
			e.failure = fmt.Sprintf("%s still leads etcd after it was asked %d times to hand the leadership on (its answer: %s)", name, intent.Attempt,
				nameOr(intent.Message, "yes"))
		}
		return e
	}
	return waiting(fmt.Sprintf("%s hands the leadership on", name))
}
