package recovery

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/talos"
)

// leaving has all but the holder leave the old etcd, one at a time, and waits until their API servers are gone. Nothing is lost before the
// holder is wiped, which comes next and never before: a recovery beside a living old etcd would split the cluster.
func (d *decision) leaving() nextStep {
	holder := d.Seen[d.m.Holder]
	if holder.Mode != talos.ModeConfigured || holder.Etcd.Members == nil {
		if d.deserted() {
			return d.served(fmt.Sprintf("the etcd on %s did not answer any more once all others had left it", d.m.Holder))
		}
		return wait("the etcd on %s, which the others leave, doesn't answer: %s", d.m.Holder,
			nameOr(holder.Problem, nameOr(holder.Etcd.MembersProblem, "no look at it succeeded")))
	}
	for _, m := range d.m.Machines {
		if m.Name == d.m.Holder {
			continue
		}
		if step := d.leave(m.Name, holder.Etcd.Members); !step.none() {
			return step
		}
	}
	if len(holder.Etcd.Members) != 1 {
		return wait("the etcd on %s has %d members still, of which nobody knows all", d.m.Holder, len(holder.Etcd.Members))
	}
	return d.served("")
}

// factLast is the fact of a leave that says "yes" where its machine and the holder were the only members.
const factLast = "last"

// deserted says whether the holder's etcd can't come to answer any more: a leader that leaves as the last one but the holder may be gone before
// the holder learns of it, which goes on counting it then and has no quorum of two. All others are seen without data, minutes after they left, so
// that the old etcd lives nowhere; the holder is wiped next in any case. That it has no other member was seen before the last one was told to leave.
func (d *decision) deserted() bool {
	if holder := d.Seen[d.m.Holder]; holder.Mode != talos.ModeConfigured || holder.Etcd.Data != talos.Yes {
		return false
	}
	if !slices.ContainsFunc(d.m.Intents, func(i Intent) bool { return i.Action == ActLeave && i.Facts[factLast] == "yes" }) {
		return false
	}
	for _, m := range d.m.Machines {
		seen, last := d.Seen[m.Name], d.m.last(ActLeave, m.Name)
		if m.Name != d.m.Holder && (last == nil || seen.Mode != talos.ModeConfigured || seen.Etcd.Data != talos.No || d.sinceEnd(last) <= d.Timing.Broken) {
			return false
		}
	}
	return len(d.m.Machines) > 1
}

// served waits until the API servers of those that left are seen gone: one that lived through the switch would serve lists of the old etcd.
// Note is what else is to be said in the end.
func (d *decision) served(note string) nextStep {
	var unseen []string
	for _, m := range d.m.Machines {
		last := d.m.last(ActLeave, m.Name)
		switch server := d.Seen[m.Name].APIServer; {
		case m.Name == d.m.Holder || last == nil || server == talos.No:
		case d.sinceEnd(last) < d.Timing.Servers:
			says := "runs still"
			if server == talos.Unknown {
				says = "may run still"
			}
			return wait("%s left etcd; its API server %s, and is given %s to end, so that none serves old lists", m.Name, says, d.Timing.Servers)
		default:
			unseen = append(unseen, m.Name)
		}
	}
	if len(unseen) == 0 {
		return nextStep{Phase: PhaseConfiguring, Note: note}
	}
	if note != "" {
		note += "; "
	}
	return nextStep{Phase: PhaseConfiguring, Note: note + fmt.Sprintf("the API servers of %s were not seen to end within %s: what reads through them may see the past until they "+
		"start anew", strings.Join(unseen, ", "), d.Timing.Servers)}
}

// leave is what must be done until a machine is out of the old etcd. Another member's list says so, not the answer to the call.
func (d *decision) leave(name string, members []talos.EtcdMember) nextStep {
	if step := d.configured(name); !step.none() {
		return step
	}
	seen := d.Seen[name]
	member := slices.ContainsFunc(members, func(m talos.EtcdMember) bool {
		return m.ID == seen.Etcd.MemberID || m.Name != "" && m.Name == seen.Hostname
	})
	last := d.m.last(ActLeave, name)
	switch {
	case seen.Etcd.Data == talos.No && !member:
		return nextStep{}
	case seen.Etcd.Data != talos.Yes:
		return wait("%s leaves etcd; whether its data is gone is not known yet: %s", name, nameOr(seen.Problem, nameOr(seen.Etcd.ServiceMessage, "it is stopping")))
	case last == nil:
	case last.Outcome == statefile.OutcomeOK && d.since(last) < d.Timing.Again, d.since(last) < d.growing(last.Attempt), last.Outcome == "" && d.since(last) < d.Timing.Again:
		return wait("%s was told to leave etcd: %s", name, nameOr(last.Message, nameOr(seen.Etcd.ServiceMessage, "it does")))
	case last.Attempt >= maxLeaves && !d.died(last) && !d.earlier(last):
		return stop("%s was told to leave etcd %d times and has not: %s", name, last.Attempt, nameOr(last.Message, "it gave no reason"))
	}
	facts := map[string]string{"data": "present"}
	if !slices.ContainsFunc(members, func(m talos.EtcdMember) bool {
		return m.ID != seen.Etcd.MemberID && m.ID != d.Seen[d.m.Holder].Etcd.MemberID
	}) {
		facts[factLast] = "yes"
	}
	return d.act(ActLeave, name, facts, fmt.Sprintf("%s leaves the etcd that is given up; %s holds it to the end", name, d.m.Holder))
}

// growing is the pause after a call that was made so many times: etcd refuses to let a member go until those that are left were connected for
// some seconds, so that what fails is tried again soon, then twice as late each time.
func (d *decision) growing(attempt int) time.Duration {
	pause := d.Timing.Retry
	for range attempt - 1 {
		pause = min(2*pause, d.Timing.Again)
	}
	return pause
}

// sinceEnd is how long ago an intent's call was last known to be under way.
func (d *decision) sinceEnd(i *Intent) time.Duration {
	if own, known := d.Calls[i.Nonce]; known {
		return own.Ended
	}
	ended := *i
	if i.OutcomeAt.After(i.At) {
		ended.At = i.OutcomeAt
	}
	return d.since(&ended)
}
