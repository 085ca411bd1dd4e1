package recovery

import (
	"fmt"
	"slices"
	"time"

	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/talos"
)

// joining compares what was recovered with the snapshot, and waits until every other control plane has joined it.
func (d *decision) joining() nextStep {
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
	if step := d.unjam(name, etcd.Members); !step.none() {
		return step
	}
	ask := func(one string) nextStep {
		if one == name {
			return nextStep{}
		}
		return d.join(one, d.m.Recovered.Member, etcd.Members)
	}
	if step := d.turns(ask); !step.none() {
		return step
	}
	return nextStep{Phase: PhaseReconciling}
}

// turns asks for the machines. Those that left run pods still: no two of them are rebooted at a time, and the holder, which joins by itself,
// comes first. Those that were wiped are asked side by side. The agent's own one comes last in any case: the agent ends with it.
func (d *decision) turns(ask func(name string) nextStep) nextStep {
	if d.m.Holder == "" {
		if step := d.all(func(name string) nextStep {
			if d.spared(name) {
				return nextStep{}
			}
			return ask(name)
		}); !step.none() {
			return step
		}
		if d.m.machine(d.m.Own) != nil {
			return ask(d.m.Own)
		}
		return nextStep{}
	}
	if d.m.machine(d.m.Holder) != nil {
		if step := ask(d.m.Holder); !step.none() {
			return step
		}
	}
	for _, name := range d.order() {
		if step := ask(name); !step.none() {
			return step
		}
	}
	return nextStep{}
}

// join is what must be done until a machine is a member of the etcd of which reference is a member for certain.
func (d *decision) join(name, reference string, members []talos.EtcdMember) nextStep {
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
	case at < 0 && d.stranger(name, reference):
		return d.straggler(name)
	case etcd.MemberID == 0:
		return wait("%s joins: its etcd doesn't say yet which member it is (%s: %s)", name, etcd.Service, etcd.ServiceMessage)
	case at < 0:
		return wait("%s is member %s, which the etcd that it is to join does not list yet", name, hexID(etcd.MemberID))
	case members[at].Learner || etcd.Learner:
		return wait("%s is a learner and catches up; they join one at a time", name)
	case etcd.ServiceHealthy != talos.Yes:
		return wait("%s is a member and not healthy yet", name)
	}
	return d.lifted(name)
}

// stranger says whether a machine's data is another etcd's for certain: it was removed as a member, its own etcd's list knows nothing of the
// one that it is to join, or it has been missing in that one's list for long. Two lists that were read one after the other may differ by a join.
func (d *decision) stranger(name, reference string) bool {
	if d.removed(name) {
		return true
	}
	if own := d.Seen[name].Etcd.Members; own != nil {
		return !slices.ContainsFunc(own, func(m talos.EtcdMember) bool { return hexID(m.ID) == reference })
	}
	return d.Outside[name] > d.Timing.Broken
}

// removed says whether a machine holds the data of a member that this restore removed.
func (d *decision) removed(name string) bool {
	id := hexID(d.Seen[name].Etcd.MemberID)
	return slices.ContainsFunc(d.m.Intents, func(i Intent) bool {
		return i.Action == ActRemoveMember && i.Facts[factMember] == id && i.Outcome == statefile.OutcomeOK
	})
}

// straggler wipes a machine that holds the data of another etcd than the one that it is to join.
func (d *decision) straggler(name string) nextStep {
	seen := d.Seen[name]
	if last := d.m.last(ActReset, name); last != nil && !neverSent(last) && last.BootID != seen.BootID && d.since(last) < d.Timing.Again {
		return wait("%s holds the data of another etcd again; it is wiped again %s after the last time", name, d.Timing.Again)
	}
	step := d.reset(name, "straggler", fmt.Sprintf("%s holds the data of an etcd that it is not to belong to (member %s)", name, hexID(seen.Etcd.MemberID)), maxResets)
	if step.Action != nil && d.m.Phase == PhaseCancelling {
		step.Action.Note = fmt.Sprintf("%s had been taken out of etcd and kept its data, so that its EPHEMERAL was wiped for it to join again", name)
	}
	return step
}

// factOf and factMember are the facts of a removal: the machine whose member it was, and what the member is.
const (
	factOf     = "of"
	factMember = "member"
)

// unjam removes a learner that was not promoted, and a member that never got a name: Talos mends neither, and both keep the others out.
func (d *decision) unjam(on string, members []talos.EtcdMember) nextStep {
	for _, member := range members {
		grace := d.Timing.Learner
		switch {
		case member.Name == "":
			grace = d.Timing.Nameless
		case !member.Learner:
			continue
		}
		id := hexID(member.ID)
		if d.Unjoined[id] < grace {
			continue
		}
		tries, last := 0, time.Duration(0)
		for _, i := range d.m.Intents {
			if i.Action == ActRemoveMember && i.Facts[factMember] == id && !neverSent(&i) && !d.earlier(&i) {
				tries, last = max(tries, i.Attempt), d.since(&i)
			}
		}
		switch {
		case tries >= maxRemovals:
			return stop("member %s did not come to be one within %s, and could not be removed %d times: the others can't join beside it; look at %s", id, grace, tries,
				nameOr(d.machineOf(member), "the machine that it is"))
		case tries > 0 && last < d.Timing.Again:
			return wait("member %s is removed, since it did not come to be one within %s", id, grace)
		}
		what := "a learner"
		if member.Name == "" {
			what = "a member without a name"
		}
		step := d.act(ActRemoveMember, on, map[string]string{factMember: id, factOf: d.machineOf(member)},
			fmt.Sprintf("member %s of %s has been %s for %s: it is removed, so that it and the others can join", id, nameOr(d.machineOf(member), "an unknown machine"), what, grace))
		step.Action.Member, step.Action.Attempt = member.ID, tries+1
		return step
	}
	return nextStep{}
}

// machineOf finds the machine that a member is; empty where none is known.
func (d *decision) machineOf(member talos.EtcdMember) string {
	for _, m := range d.m.Machines {
		if isMember(m, d.Seen[m.Name], member) {
			return m.Name
		}
	}
	return ""
}

// reboot is for a machine that gave up joining: Talos does that after half an hour, and begins again at the next boot.
func (d *decision) reboot(name string) nextStep {
	last := d.m.last(ActReboot, name)
	if last != nil && last.BootID == d.Seen[name].BootID && !neverSent(last) {
		switch {
		case d.certainly(last) <= d.Timing.Again:
		case d.earlier(last):
			return d.act(ActReboot, name, map[string]string{"data": "absent"}, name+" shows no trace of the reboot that it was told before the pause: it is rebooted now")
		case last.Outcome == "" && last.Epoch != d.m.Driver.Epoch && last.Attempt < maxReboots:
			// Its process died over it, and what that had not sent by then never comes.
			return d.act(ActReboot, name, map[string]string{"data": "absent"}, name+" shows no trace of a reboot that an earlier run had begun: it is rebooted now")
		default:
			return stop("%s was told to reboot and has not: power-cycle it", name)
		}
		return wait("%s reboots, to join anew", name)
	}
	if last != nil && last.Attempt >= maxReboots && !d.earlier(last) {
		return stop("%s was rebooted %d times and its etcd still gives up joining: %s", name, last.Attempt, d.Seen[name].Etcd.ServiceMessage)
	}
	if last != nil && d.since(last) < d.Timing.Retry {
		return wait("%s reboots, to join anew", name)
	}
	step, undrained := d.emptied(name)
	if !step.none() {
		return step
	}
	step = d.act(ActReboot, name, map[string]string{"data": "absent"}, fmt.Sprintf("%s joins once it boots anew (its etcd: %s)", name, d.Seen[name].Etcd.ServiceMessage))
	if undrained != "" {
		step.Action.Undrained = undrained
		step.Action.Why += "; it is rebooted with its pods on it: " + undrained
		step.Action.Note = fmt.Sprintf("%s was rebooted with its pods on it: %s", name, undrained)
	}
	return step
}
