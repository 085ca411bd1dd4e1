package reconcile

import (
	"fmt"

	"ichor.maesh.dev/talos"
)

const stepAdopt = "adopt"

// refuseAdopt wants a machine that answers and whose config can be read, so that what would change can be said.
func refuseAdopt(s situation) (refuse, wait string) {
	m, refuse := s.target(s.spec.Adopt.MachineRef)
	if refuse != "" {
		return refuse, ""
	}
	name := m.Metadata.Name
	seen, ok := s.in.see(name)
	memory := s.next.Machines[name]
	switch {
	case !ok:
		return s.unseen(m).message, ""
	case seen.Mode != talos.ModeConfigured:
		return fmt.Sprintf("%s is in maintenance mode: there is nothing to adopt, it gets its config like any new machine", name), ""
	case seen.Config.Active == "":
		return fmt.Sprintf("the config that %s runs could not be read: %s", name, nameOr(seen.Problem, "no reason given")), ""
	case seen.Config.Problem != "":
		return fmt.Sprintf("the config that Git wants of %s can't be made: %s", name, seen.Config.Problem), ""
	case memory.Managed && marked(s.in, memory, seen.Config.Owner):
		return fmt.Sprintf("%s is Ichor's to change already; there is nothing to adopt, so cancel this operation", name), ""
	}
	return "", ""
}

// nextAdopt makes the machine Ichor's to change. Nothing is sent to it: what differs from Git is rolled out like any change, one machine at
// a time, tried first.
func nextAdopt(s situation) move {
	name := s.spec.Adopt.MachineRef.Name
	seen, _ := s.in.see(name)
	memory := s.next.Machines[name]
	if memory.Managed && marked(s.in, memory, seen.Config.Owner) {
		return move{step: stepAdopt, done: s.adopted(name, seen)}
	}
	if refuse, wait := refuseAdopt(s); refuse != "" {
		return move{step: stepAdopt, pause: refuse}
	} else if wait != "" {
		return move{step: stepAdopt, wait: wait}
	}
	memory.Managed, memory.ConfigDigest, memory.PersistentDigest = true, seen.Config.Active, seen.Config.Persistent
	if seen.Config.Owner != s.in.Mark {
		memory.TakenFrom = seen.Config.Owner
	}
	return move{step: stepAdopt, done: s.adopted(name, seen)}
}

func (s situation) adopted(name string, seen Seen) string {
	said := fmt.Sprintf("%s is Ichor's to change from now on", name)
	if taken := s.next.Machines[name].TakenFrom; taken != "" {
		said += fmt.Sprintf(", taken over from the state with the mark %s, whose Ichor leaves it alone once the config bears this one's", taken)
	}
	if seen.Config.Diff == "" {
		return said
	}
	return said + "; what differs from Git" + inLines(seen.Config.Diff) + " is rolled out next"
}
