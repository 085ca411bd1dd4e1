package recovery

import (
	"fmt"
	"slices"
	"strings"

	"ichor.maesh.dev/talos"
)

// joining compares what was recovered with the snapshot, and waits until every other control plane has joined it.
func (d *decision) joining() Step {
	name := d.m.Target
	etcd := d.Seen[name].Etcd
	if d.Seen[name].Mode != talos.ModeConfigured || etcd.Members == nil {
		return wait("the recovered etcd on %s doesn't answer: %s", name, nameOr(d.Seen[name].Problem, nameOr(etcd.MembersProblem, "no look at it succeeded")))
	}
	if !slices.ContainsFunc(etcd.Members, func(m talos.EtcdMember) bool { return hexID(m.ID) == d.m.Recovered.Member }) {
		return stop("the recovered etcd is gone from %s: its member %s is not in the list any more", name, d.m.Recovered.Member)
	}
	if d.m.Recovered.Verified == "" {
		return d.act(ActVerify, name, nil, "what was recovered is compared with the snapshot")
	}
	ask := d.all
	if d.m.Holder != "" {
		ask = d.inTurn
	}
	if step := ask(func(one string) Step {
		if one == name {
			return Step{}
		}
		return d.join(one, etcd.Members)
	}); !step.none() {
		return step
	}
	return Step{Phase: PhaseReconciling}
}

// inTurn asks for one machine after the other. Those that left run pods still: no two of them are rebooted at a time. The holder, which joins
// by itself, comes first.
func (d *decision) inTurn(ask func(name string) Step) Step {
	if step := ask(d.m.Holder); !step.none() && d.m.machine(d.m.Holder) != nil {
		return step
	}
	for _, m := range d.m.Machines {
		if step := ask(m.Name); !step.none() {
			return step
		}
	}
	return Step{}
}

// join is what must be done until a machine is a member.
func (d *decision) join(name string, members []talos.EtcdMember) Step {
	if step := d.configured(name); !step.none() {
		return step
	}
	etcd := d.Seen[name].Etcd
	switch etcd.Data {
	case talos.No:
		if etcd.Service == "Failed" || etcd.Service == "Finished" {
			return d.reboot(name)
		}
		return wait("%s joins (%s: %s)", name, nameOr(etcd.Service, "no service yet"), etcd.ServiceMessage)
	case talos.Unknown:
		return wait("whether %s holds etcd data is not known yet: %s", name, nameOr(d.Seen[name].Problem, "it is booting"))
	}
	at := slices.IndexFunc(members, func(m talos.EtcdMember) bool { return m.ID == etcd.MemberID })
	switch {
	case etcd.MemberID == 0:
		return wait("%s joins: its etcd doesn't say yet which member it is (%s: %s)", name, etcd.Service, etcd.ServiceMessage)
	case at < 0 && !d.stranger(name):
		return wait("%s is member %s, which the recovered etcd does not list yet", name, hexID(etcd.MemberID))
	case at < 0:
		// It was seen empty since the recovery began, so nothing of the old cluster is lost.
		return d.reset(name, "straggler", fmt.Sprintf("%s is member %s of another etcd than the recovered one", name, hexID(etcd.MemberID)), maxResets)
	case members[at].Learner || etcd.Learner:
		return wait("%s is a learner and catches up; they join one at a time", name)
	case etcd.ServiceHealthy != talos.Yes:
		return wait("%s is a member and not healthy yet", name)
	}
	return Step{}
}

// stranger says whether a machine is a member of another etcd for certain: its own etcd's list knows nothing of the recovered one, or it has
// been missing in the recovered one's list for long. Two lists that were read one after the other may differ by a join.
func (d *decision) stranger(name string) bool {
	if own := d.Seen[name].Etcd.Members; own != nil {
		return !slices.ContainsFunc(own, func(m talos.EtcdMember) bool { return hexID(m.ID) == d.m.Recovered.Member })
	}
	return d.Outside[name] > d.Timing.Broken
}

// reboot is for a machine that gave up joining: Talos does that after half an hour, and begins again at the next boot.
func (d *decision) reboot(name string) Step {
	last := d.m.last(ActReboot, name)
	if last != nil && last.BootID == d.Seen[name].BootID && !strings.HasPrefix(last.Message, notSent) {
		switch {
		case d.since(last) <= d.Timing.Again:
		case last.Outcome == "" && last.Epoch != d.m.Driver.Epoch && last.Attempt < maxReboots:
			// Its process died over it, and what that had not sent by then never comes.
			return d.act(ActReboot, name, map[string]string{"data": "absent"}, name+" shows no trace of a reboot that an earlier run had begun: it is rebooted now")
		default:
			return stop("%s was told to reboot and has not: power-cycle it", name)
		}
		return wait("%s reboots, to join anew", name)
	}
	if last != nil && last.Attempt >= maxReboots {
		return stop("%s was rebooted %d times and its etcd still gives up joining: %s", name, last.Attempt, d.Seen[name].Etcd.ServiceMessage)
	}
	if last != nil && d.since(last) < d.Timing.Retry {
		return wait("%s reboots, to join anew", name)
	}
	return d.act(ActReboot, name, map[string]string{"data": "absent"}, fmt.Sprintf("the etcd of %s has given up joining (%s)", name, d.Seen[name].Etcd.ServiceMessage))
}
