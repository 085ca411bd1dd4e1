package reconcile

import (
	"fmt"
	"slices"
	"time"
)

const stepBootstrap = "bootstrap"

// refuseSignedBootstrap wants every guard of a bootstrap but those that speak of a past: that there is none that counts is what was
// signed. A cluster that has an etcd, or of which a machine holds etcd data, never gets another.
func refuseSignedBootstrap(s situation) (refuse, wait string) {
	m, refuse := s.target(s.spec.Bootstrap.MachineRef)
	if refuse != "" {
		return refuse, ""
	}
	name := m.Metadata.Name
	switch record := s.next.Bootstrap; {
	case s.spec.Bootstrap.Confirm != s.in.Cluster.Name():
		return fmt.Sprintf("a bootstrap must say confirm: %s, the cluster's name", s.in.Cluster.Name()), ""
	case record != nil && !record.Done.IsZero():
		return fmt.Sprintf("the etcd of this cluster runs since %s (%s), and a second bootstrap would make a second cluster", record.Done.Format(time.RFC3339), record.Machine), ""
	case record != nil && record.Machine != name:
		return fmt.Sprintf("a bootstrap of %s was begun at %s, and no other machine is ever bootstrapped", record.Machine, record.At.Format(time.RFC3339)), ""
	case s.etcd.known:
		return fmt.Sprintf("the etcd of %s answers with %d members", s.etcd.source, len(s.etcd.members)), ""
	case !slices.Contains(s.wanted, name):
		return fmt.Sprintf("%s is not a wanted control plane", name), ""
	}
	if why := cannotBootstrap(s.in, s.next, s.wanted, s.says); why != "" {
		return why, ""
	}
	return "", ""
}

// nextSignedBootstrap bootstraps etcd on the machine that was signed.
func nextSignedBootstrap(s situation) move {
	name := s.spec.Bootstrap.MachineRef.Name
	if record := s.next.Bootstrap; record != nil && record.Machine == name && !record.Done.IsZero() && s.sent(ActBootstrap) > 0 {
		return move{step: stepBootstrap, done: fmt.Sprintf("etcd was bootstrapped on %s", name)}
	}
	if refuse, wait := refuseSignedBootstrap(s); refuse != "" {
		if s.op.Step == stepBootstrap && s.since() >= s.in.Timing.Patience {
			return move{step: stepBootstrap, pause: refuse}
		}
		return move{step: stepBootstrap, wait: refuse}
	} else if wait != "" {
		return move{step: stepBootstrap, wait: wait}
	}
	seen, _ := s.in.see(name)
	return move{step: stepBootstrap, act: &Action{Kind: ActBootstrap, Machine: name, UUID: seen.UUID, Boot: seen.BootID, Attempt: s.sent(ActBootstrap) + 1,
		Facts: map[string]string{"data": seen.Etcd.Data.Presence()},
		Why:   fmt.Sprintf("%s permits it, whatever speaks of a past", s.op.Name)}}
}
